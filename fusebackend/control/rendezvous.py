"""Where a client and a server meet: the directory of the sockets, and the way from a path to its server.

Sockets lie in `$XDG_RUNTIME_DIR/fusebackend`, or where that can't be used in a directory of the user's own under the
system's temporary one. Both must be the user's, and closed to everybody else. A mount names its socket in the extended
attribute `user.fusebackend.socket` of everything in it, so clients need not know that directory.

Which mount a path lies in is for the kernel to say, not for the spelling of the path: one mount may cover another, and
a former mount point may be a directory of the mount below. A stat of a mount waits for its server, so it runs in a
thread that can be abandoned.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import socket
import stat
import threading
from collections.abc import Callable
from typing import TypeVar

from fusebackend.config import escape_mountpoint
from fusebackend.linux import mount_table as table
from fusebackend.linux.mount_table import MountError
from fusebackend.linux.runtime_directory import ADDRESS_MAX_BYTES, directory

SOCKET_XATTR = "user.fusebackend.socket"

ANSWER_TIMEOUT_S = 5.0
"""How long a mount may take to say something before it is called hung."""

T = TypeVar("T")


def address(mountpoint: str) -> str:
    """Where a server of a mount point may listen. No two have the same, not even of two containers with one /tmp."""
    place = directory()
    end = f".{secrets.token_hex(6)}.sock".encode()
    room = ADDRESS_MAX_BYTES - len(os.fsencode(place)) - 1 - len(end)
    name = os.fsencode(escape_mountpoint(mountpoint))[-room:] if room > 0 else b""
    return os.path.join(place, os.fsdecode(name.lstrip(b"-.") + end))


def listen(path: str, backlog: int) -> socket.socket:
    """A listening socket at `path`, mode 0600.

    Raises:
        OSError: the directory can't be used.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    # Until it listens, `remove_stale` must not take it for the socket of a dead server.
    early = path.removesuffix(".sock") + ".new"
    try:
        listener.bind(early)  # the directory is private until this is 0600
        os.chmod(early, 0o600)
        listener.listen(backlog)
        os.rename(early, path)
    except BaseException:
        listener.close()
        with contextlib.suppress(OSError):
            os.unlink(early)
        raise
    return listener


def remove_stale(place: str) -> None:
    """Remove sockets without a listener: of servers that were killed."""
    for name in os.listdir(place):
        path = os.path.join(place, name)
        if not name.endswith(".sock"):
            continue
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)  # a full backlog is EAGAIN: a server listens
            try:
                probe.connect(path)
            except ConnectionRefusedError:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
            except OSError:
                continue  # it is gone, or busy


# -- from a path to its server ---------------------------------------------------------------------------------


def split(path: str | os.PathLike[str], *, follow: bool = False) -> tuple[str, str]:
    """A path as seen from outside, as its mount point and the agent's path; it need not exist.

    Symbolic links on the way are followed. One in the last segment only with `follow`, and if it leads to a mount: its
    target may be a path of agents.

    Raises:
        MountError: it lies in no mount of ours, or the mount's server hangs.
    """
    text = os.path.abspath(os.fspath(path))

    def find() -> tuple[str, str]:
        if follow:
            with contextlib.suppress(MountError):
                return _split(os.path.realpath(text), text)
        return _split(text, text)

    return _timely(text, find)


def mount_or_socket(path: str | os.PathLike[str]) -> str:
    """The mount point of the mount that a path lies in; the path itself, if it is a socket that lies in none. A process
    in a container may have the socket alone.

    Raises:
        MountError: as `split`.
    """
    try:
        return split(path, follow=True)[0]
    except MountError as error:
        if error.errno == errno.EINVAL and is_socket(path):  # else a stat would wait for a server that hangs
            return os.path.abspath(os.fspath(path))
        raise


def is_socket(path: str | os.PathLike[str]) -> bool:
    """Return True if there is a socket at a path, or where a symbolic link there leads."""
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False


def socket_at(mountpoint: str) -> str:
    """The socket of the mount that is on a mount point now; the path itself, if it is that of a socket.

    Raises:
        MountError: there is none of ours, or its server is gone or hangs or has no socket.
    """
    return _timely(mountpoint, lambda: _socket_at(mountpoint))


def _split(path: str, given: str) -> tuple[str, str]:
    parent, name = os.path.split(path)
    real = os.path.join(os.path.realpath(parent), name)
    mount = _mount_of(real)
    if mount is None or not mount.is_ours or not _is_inside(real, mount.mountpoint):
        raise MountError(errno.EINVAL, f"'{given}' lies in no mount of fusebackend")
    inner = real[len(mount.mountpoint.rstrip("/")) :] or "/"
    root = mount.root.rstrip("/")  # of a bind mount of a part: where that part is in the whole
    return mount.mountpoint, (root + inner).rstrip("/") or "/"


def _socket_at(mountpoint: str) -> str:
    mount = _mount_of(mountpoint)
    if mount is None or not mount.is_ours or mount.mountpoint != mountpoint:
        if is_socket(mountpoint):
            return mountpoint
        raise MountError(errno.EINVAL, f"'{mountpoint}' lies in no mount of fusebackend any more")
    try:
        return os.fsdecode(os.getxattr(mountpoint, SOCKET_XATTR))
    except OSError as error:
        words = {
            errno.ENOTCONN: f"the server of the mount at '{mountpoint}' is gone; mount it again",
            errno.ECONNABORTED: f"the server of the mount at '{mountpoint}' is gone; mount it again",
            errno.EACCES: f"the mount at '{mountpoint}' is another user's",
            errno.ENODATA: f"the server of the mount at '{mountpoint}' has no control socket; its log says why",
        }
        number = error.errno or errno.EIO
        raise MountError(number, words.get(number, f"'{mountpoint}': {error.strerror}")) from None


def _is_inside(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _mount_of(path: str) -> table.MountEntry | None:
    """The mount that an absolute path lies in; of a path that does not exist, the mount of the directory above."""
    while True:
        try:
            fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
            break
        except OSError:
            if path == "/":
                raise
            path = os.path.dirname(path)
    try:
        with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as file:
            found = re.search(r"^mnt_id:\s*(\d+)$", file.read(), re.MULTILINE)
    finally:
        os.close(fd)
    number = int(found[1]) if found else -1
    return next((entry for entry in table.mounts() if entry.id == number), None)


def _timely(path: str, find: Callable[[], T]) -> T:
    """Return or raise the outcome of `find`, unless it takes too long."""
    outcome: list[T | BaseException] = []

    def run() -> None:
        try:
            outcome.append(find())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run, name="fusebackend-find", daemon=True)
    thread.start()
    thread.join(ANSWER_TIMEOUT_S)
    if not outcome:
        message = f"the server of the mount at '{path}' does not answer: it hangs, or is stopped"
        raise MountError(errno.ETIMEDOUT, message)
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]
