"""The directory of this user's sockets, and of what else a server makes outside of its mount.

It is `$XDG_RUNTIME_DIR/fusebackend`, or where that can't be used a directory of the user's own under the system's
temporary one. Both must be the user's, and closed to everybody else.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile

ADDRESS_MAX_BYTES = 107
"""Of a Unix socket (unix(7)): `sun_path` with its closing NUL."""

NAME_BYTES = 45
"""A directory of sockets must leave so much room for a name."""


def directory() -> str:
    """The directory of this user's sockets, made if it is missing.

    Raises:
        OSError: it can't be made, or it is somebody else's, or open to others.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if _is_own(runtime) and len(os.fsencode(runtime)) < ADDRESS_MAX_BYTES - NAME_BYTES:
        with contextlib.suppress(OSError):  # a file system that is read-only, or full
            return _private(os.path.join(runtime, "fusebackend"))
    return _private(os.path.join(tempfile.gettempdir(), f"fusebackend-{os.geteuid()}"))


def _is_own(path: str) -> bool:
    """With the environment of somebody else (`su`, `sudo -E`), nothing is left in a directory of theirs."""
    try:
        return os.path.isabs(path) and os.stat(path).st_uid == os.geteuid()
    except OSError:
        return False


def _private(path: str) -> str:
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
        os.chmod(path, 0o700)  # whatever the umask
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise OSError(errno.EPERM, f"'{path}' must be a directory of this user's with mode 0700; remove it")
    return path
