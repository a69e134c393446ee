"""The directories of the XDG base directory specification."""

from __future__ import annotations

import os

_HOMES = {"XDG_DATA_HOME": ".local/share", "XDG_STATE_HOME": ".local/state", "XDG_CACHE_HOME": ".cache"}
"""The directory below `$HOME` that a variable stands for where it is not set."""


def path(variable: str, *names: str) -> str:
    """A path of ours below the directory that a variable names, such as `XDG_CACHE_HOME`.

    Args:
        names: below `fusebackend` there.
    """
    value = os.environ.get(variable, "")  # a relative path is to be ignored
    start = value if os.path.isabs(value) else os.path.join(os.path.expanduser("~"), _HOMES[variable])
    return os.path.join(start, "fusebackend", *names)


def make_directory(path: str, variable: str) -> None:
    """Make a directory of ours, and those above it. A user such as `nobody` has no home to make it in.

    Raises:
        OSError: with one line for the user, which names the variable that puts it elsewhere.
    """
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
    except OSError as error:
        text = f"the directory '{path}' can't be made: {error.strerror}; set {variable} to another place"
        raise OSError(error.errno, text) from None
