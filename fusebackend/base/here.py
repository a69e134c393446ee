"""The current directory, which others may have removed: an absolute path needs none."""

from __future__ import annotations

import errno
import os


def from_here(path: str) -> str:
    """Return an absolute path as it is, and any other below the current directory, neither of them normalised.

    Raises:
        FileNotFoundError: the path is relative, and the current directory was removed. Its text is one line for a user.
    """
    if path.startswith("/"):
        return path
    try:
        return os.path.join(os.getcwd(), path)
    except FileNotFoundError:
        why = f"'{path}' has no start, for the current directory was removed; go to another one, or write '/…'"
        raise FileNotFoundError(errno.ENOENT, why) from None


def absolute(path: str | os.PathLike[str]) -> str:
    """Return a path as `os.path.abspath` does, with the error of `from_here`."""
    return os.path.normpath(from_here(os.fspath(path)))
