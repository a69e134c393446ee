"""The directory of this user's sockets, and names for everything that a server makes outside of its mount.

It is `$XDG_RUNTIME_DIR/fusebackend`, else a directory under the system's temporary one. It must belong to the user and
have mode 0700.

A killed server leaves control groups, device nodes and directories behind. The next server finds them by their names,
which hold the identity of the process: pid namespace, pid, and start time.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
import tempfile
from collections.abc import Callable

from fusebackend.base.errors import unless
from fusebackend.linux import proc


def directory() -> str:
    """The directory of this user's sockets, made if it is missing.

    Raises:
        OSError: it can't be made, belongs to another user, or is open to others.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if _is_own(runtime):
        with contextlib.suppress(OSError):  # a file system that is read-only, or full
            return _private(os.path.join(runtime, "fusebackend"))
    return _private(os.path.join(tempfile.gettempdir(), f"fusebackend-{os.geteuid()}"))


def _is_own(path: str) -> bool:
    """Return False for a directory of another user, which `su` and `sudo -E` leave in the environment."""
    try:
        return os.path.isabs(path) and os.stat(path).st_uid == os.geteuid()
    except OSError:
        return False


def _private(path: str) -> str:
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
        os.chmod(path, 0o700)  # the umask may have removed bits
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        must = "must be a directory of this user's with mode 0700; remove it, or set XDG_RUNTIME_DIR to another"
        raise OSError(errno.EPERM, f"'{path}' {must}")
    return path


# -- names -----------------------------------------------------------------------------------------------------

PREFIX = "fusebackend"

_numbers = itertools.count(1)


def own_name() -> str:
    """Return a new name with this process's identity."""
    return f"{PREFIX}-{identity(os.getpid())}-{next(_numbers)}"


def remove_stale(directory: str, remove: Callable[[str], None]) -> None:
    """Call `remove` for every path in `directory` that is named after a process which has ended.

    Names of other pid namespaces are left alone, because their processes are not visible here.
    """
    namespace = pid_namespace()
    for entry in os.listdir(directory):
        words = entry.split("-")
        if len(words) != 5 or words[0] != PREFIX or not all(word.isdecimal() for word in words[1:]):
            continue
        if words[1] == namespace and identity(int(words[2])) != "-".join(words[1:4]):
            remove(os.path.join(directory, entry))


def identity(pid: int) -> str | None:
    """Return pid namespace, pid and start time of a process, which no other of this boot has; None if it has ended."""
    fields = unless((errno.ENOENT, errno.ESRCH), proc.stat, pid)
    return None if fields is None else f"{pid_namespace()}-{pid}-{fields[19].decode()}"


def pid_namespace() -> str:
    return str(os.stat("/proc/self/ns/pid").st_ino)
