"""errno to error code and back.

The agent face speaks in four codes, the kernel face in errno; these tables translate between them. An errno without a
code is said in the system's own words (`os.strerror`), and found again by them: no other text is guessed at. Each
backend has a table from the errors of its database or service to errno (`databases/postgres.py`,
`databases/sqlite.py`, `backends/object_store/bucket/errors.py`, `backends/sandbox/scripts.py`).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection
from typing import Any, TypeVar

T = TypeVar("T")


class UserError(Exception):
    """An error that a user can cause. Its text is one line for the user; its other base says what kind it is."""


class Unanswered(Exception):
    """A backend of another package did not answer. The text says why, or is an error code."""


FILE_NOT_FOUND = "file_not_found"
PERMISSION_DENIED = "permission_denied"
IS_DIRECTORY = "is_directory"
INVALID_PATH = "invalid_path"

CODE_OF_ERRNO: dict[int, str] = {
    errno.ENOENT: FILE_NOT_FOUND,
    errno.ESTALE: FILE_NOT_FOUND,  # the node went away under us; a new lookup would say ENOENT
    errno.EACCES: PERMISSION_DENIED,
    errno.EPERM: PERMISSION_DENIED,
    errno.EROFS: PERMISSION_DENIED,
    errno.EISDIR: IS_DIRECTORY,
    errno.ENOTDIR: INVALID_PATH,
    errno.EINVAL: INVALID_PATH,
    errno.ENAMETOOLONG: INVALID_PATH,
    errno.ELOOP: INVALID_PATH,
    errno.EXDEV: INVALID_PATH,  # a symbolic link that leaves its route
    errno.EEXIST: INVALID_PATH,  # the CMDC seed: writing an existing file is :invalid_path
}

ERRNO_OF_CODE: dict[str, int] = {
    FILE_NOT_FOUND: errno.ENOENT,
    PERMISSION_DENIED: errno.EACCES,
    IS_DIRECTORY: errno.EISDIR,
    INVALID_PATH: errno.EINVAL,
}

VANISHED = frozenset({errno.ENOENT, errno.ESTALE, errno.ENOTDIR})
"""Errors in a walk when a file that it has just seen is removed."""

# What is not everywhere: extended attributes, ACLs, links, special files, owners. An error of it has one of three
# meanings, and each caller takes them in its own way:
#
#                             none, for any file      not of this file   refused to this process
#                             ENOTSUP, ENOSYS         ENODATA            EPERM, EACCES (EINVAL: an owner, a mode)
#   listing of attributes     nothing to list                            the caller's error
#   an attribute for a copy   left out                left out           left out
#   an ACL of `dir:`          ENODATA                 ENODATA            the caller's error
#   a default ACL, to make    none                    none               none
#   capabilities, at a write  none                    none               none (cap_inode_need_killpriv)
#   giving a copy attributes  lost, and said so       lost, and said so  lost, and said so
#   link, symlink, mknod      EPERM                                      the caller's error

LACKING = frozenset({errno.ENOTSUP, errno.ENOSYS})
ABSENT = LACKING | {errno.ENODATA}
UNREAD = ABSENT | {errno.EPERM, errno.EACCES}
NOT_TAKEN = UNREAD | {errno.EINVAL}

ERRNO_OF_LACK: dict[str, int] = dict.fromkeys(("link", "symlink", "mknod"), errno.EPERM)
"""Of these methods of a volume that has none, as in POSIX and Linux (`vfs_link`); of others ENOTSUP. At EPERM programs
copy instead (yarn, bun, emacs), at ENOTSUP they fail."""

_ERRNO_OF_WORDS: dict[str, int] = {os.strerror(number): number for number in errno.errorcode}


def code_of(error: Exception) -> str:
    """Return the error code for an exception: `invalid_path` for a refused path or pattern, the text of `Unanswered`,
    and the system's own words (`No space left on device`) for an errno outside of the table.

    EIO says nothing, so its error's own text does; `errno_of` returns EIO for that too.
    """
    if not isinstance(error, OSError):
        return str(error) if isinstance(error, Unanswered) else INVALID_PATH
    number = error.errno
    if number is None:
        return str(error)
    if number == errno.EIO:
        return error.strerror or os.strerror(number)
    return CODE_OF_ERRNO.get(number) or os.strerror(number)


def errno_of(code: str) -> int:
    """The errno for an error code, or for the system's own words as `code_of` gives them; EIO for any other string."""
    return ERRNO_OF_CODE.get(code) or _ERRNO_OF_WORDS.get(code, errno.EIO)


def words_of(code: str) -> str:
    """An error code in the system's words, for a sentence; any other string is itself."""
    return os.strerror(ERRNO_OF_CODE[code]) if code in ERRNO_OF_CODE else code


def about(error: OSError, path: str | None) -> OSError:
    """An error of a call that names a path, with that path, unless its text is a sentence of its own."""
    if path is None or error.errno is None or error.strerror != os.strerror(error.errno):
        return error
    return OSError(error.errno, error.strerror, path)


def unless(numbers: Collection[int], function: Callable[..., T], *args: Any) -> T | None:
    """Return the result of a call, or None after an `OSError` with one of these errnos. A context manager would take
    1.5 µs."""
    try:
        return function(*args)
    except OSError as error:
        if error.errno not in numbers:
            raise
        return None


def oserror(number: int, what: object = None) -> OSError:
    """An `OSError` with the system's message, as the C library would have it."""
    return OSError(number, os.strerror(number), what) if what is not None else OSError(number, os.strerror(number))
