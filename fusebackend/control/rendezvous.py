"""Where a client and a server meet: the directory of the sockets, and the way from a path to its server.

Sockets lie in `$XDG_RUNTIME_DIR/fusebackend`, or where there is none in a directory of the user's own under the
system's temporary one. Both must be the user's, and closed to everybody else. A mount names its socket in the extended
attribute `user.fusebackend.socket` of everything in it, so nobody has to know that directory.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import tempfile

from fusebackend.config import escape_mountpoint
from fusebackend.mount import table
from fusebackend.mount.error import MountError

SOCKET_XATTR = "user.fusebackend.socket"

ADDRESS_MAX_BYTES = 107
"""Of a Unix socket (unix(7)): `sun_path` with its closing NUL."""


def directory() -> str:
    """The directory of this user's sockets, made if it is missing.

    Raises:
        OSError: it can't be made, or it is somebody else's, or open to others.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime) and os.path.isdir(runtime):
        path = os.path.join(runtime, "fusebackend")
    else:
        path = os.path.join(tempfile.gettempdir(), f"fusebackend-{os.geteuid()}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise OSError(errno.EPERM, f"'{path}' must be a directory of this user's with mode 0700; remove it")
    return path


def address(mountpoint: str) -> str:
    """Where the server of a mount point listens. With its process id, for two may follow each other closely."""
    place = directory()
    name = f"{escape_mountpoint(mountpoint)}.{os.getpid()}.sock"
    room = ADDRESS_MAX_BYTES - len(os.fsencode(place)) - 1
    if len(os.fsencode(name)) > room:
        name = os.fsdecode(os.fsencode(name)[-room:].lstrip(b"-")) if room > 40 else f"{os.getpid()}.sock"
    return os.path.join(place, name)


def listen(path: str, backlog: int) -> socket.socket:
    """A listening socket at `path`, mode 0600. What an ended server left there is replaced.

    Raises:
        OSError: the directory can't be used.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.bind(path)  # nobody else gets into the directory before this is 0600
        os.chmod(path, 0o600)
        listener.listen(backlog)
    except BaseException:
        listener.close()
        raise
    return listener


def remove_stale(place: str) -> None:
    """Remove the sockets that nobody listens at any more: of servers that were killed."""
    for name in os.listdir(place):
        path = os.path.join(place, name)
        if not name.endswith(".sock"):
            continue
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)  # a full backlog is EAGAIN: somebody listens
            try:
                probe.connect(path)
            except ConnectionRefusedError:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
            except OSError:
                continue  # it is gone, or busy


def socket_of(path: str) -> str:
    """The socket of the mount that a path lies in; the path itself need not exist.

    Raises:
        MountError: it lies in none of ours, or the mount's server is gone or has no socket.
    """
    place = path
    while True:
        try:
            return os.fsdecode(os.getxattr(place, SOCKET_XATTR))
        except OSError as error:
            if error.errno in (errno.ENOTCONN, errno.ECONNABORTED):
                raise MountError(
                    errno.ENOTCONN, f"the server of the mount at '{place}' is gone; mount it again"
                ) from None
            parent = os.path.dirname(place)
            if error.errno not in (errno.ENOENT, errno.ENODATA, errno.ENOTSUP, errno.ENOTDIR, errno.EPERM):
                raise MountError(error.errno or errno.EIO, f"'{place}': {error.strerror}") from None
            if parent == place or not _is_ours(parent):
                raise MountError(errno.EINVAL, f"'{path}' lies in no mount of fusebackend") from None
            place = parent


def _is_ours(path: str) -> bool:
    mount = mount_over(path)
    return mount is not None and mount.is_ours


def mount_over(path: str) -> table.MountEntry | None:
    """The mount that an absolute path lies in."""
    found = None
    for entry in table.mounts():
        inside = path == entry.mountpoint or path.startswith(entry.mountpoint.rstrip("/") + "/")
        if inside and (found is None or len(entry.mountpoint) >= len(found.mountpoint)):
            found = entry
    return found


def split(path: str | os.PathLike[str]) -> tuple[str, str]:
    """A path as seen from outside, as its mount point and the agent's path.

    Symbolic links on the way are followed, but not one in the last segment.

    Raises:
        MountError: it lies in no mount of ours.
    """
    text = os.path.abspath(os.fspath(path))
    parent, name = os.path.split(text)
    real = text if _mountpoint(text) else os.path.join(os.path.realpath(parent), name)
    mount = mount_over(real)
    if mount is None or not mount.is_ours:
        raise MountError(errno.EINVAL, f"'{os.fspath(path)}' lies in no mount of fusebackend")
    inner = real[len(mount.mountpoint.rstrip("/")) :] or "/"
    root = mount.root.rstrip("/")  # of a bind mount of a part: where that part is in the whole
    return mount.mountpoint, (root + inner).rstrip("/") or "/"


def _mountpoint(path: str) -> bool:
    mount = table.mount_at(path)
    return mount is not None and mount.is_ours
