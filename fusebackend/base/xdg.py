"""The directories of the XDG base directory specification."""

from __future__ import annotations

import os


def path(variable: str, otherwise: str, *names: str) -> str:
    """A path of ours below the directory that a variable names, such as `XDG_CACHE_HOME`.

    Args:
        otherwise: the variable's default, below `$HOME`.
        names: below `fusebackend` there.
    """
    value = os.environ.get(variable, "")  # a relative path is to be ignored
    start = value if os.path.isabs(value) else os.path.join(os.path.expanduser("~"), otherwise)
    return os.path.join(start, "fusebackend", *names)
