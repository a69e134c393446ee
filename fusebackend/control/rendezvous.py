"""Where a client and a server meet: the directory of the sockets, and the way from a path to its server.

Sockets lie in `$XDG_RUNTIME_DIR/fusebackend`, or where that can't be used in a directory of the user's own under the
system's temporary one. Both must be the user's, and closed to everybody else. A mount names its socket in the extended
attribute `user.fusebackend.socket` of everything in it, so clients need not know that directory.

What is served without a mount has a record in that directory, `NAME.served`: what stands for its mount point, and its
socket. Its server keeps it locked, so there is one server of it at a time.

Which mount a path lies in is for the kernel to say, not for the spelling of the path: one mount may cover another, and
a former mount point may be a directory of the mount below. A stat of a mount waits for its server, so it runs in a
thread that can be abandoned.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import socket
import stat
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from fusebackend import config
from fusebackend.base.context import closing_fd
from fusebackend.base.deadline import GivenUp, within
from fusebackend.base.here import absolute
from fusebackend.base.paths import is_below
from fusebackend.base.settings import ConfigError
from fusebackend.config import escape_mountpoint
from fusebackend.linux import mount_table as table
from fusebackend.linux import proc
from fusebackend.linux.mount_table import MountError
from fusebackend.linux.runtime_directory import directory

SOCKET_XATTR = "user.fusebackend.socket"

ADDRESS_MAX_BYTES = 107
"""Of a Unix socket (unix(7)): `sun_path` with its closing NUL."""

ANSWER_TIMEOUT_S = 5.0
"""How long a mount may take to say something before it is called hung."""

T = TypeVar("T")


def address(mountpoint: str) -> str:
    """Where a server of a mount point may listen. No two have the same, not even of two containers with one /tmp."""
    return _named(mountpoint, f".{secrets.token_hex(6)}.sock")


def _named(place: str, end: str) -> str:
    """A path in the runtime directory that a socket may have: as much of the name of a place as fits, and an end."""
    room = ADDRESS_MAX_BYTES - len(os.fsencode(directory())) - 1 - len(end)
    name = os.fsencode(escape_mountpoint(place))[-room:] if room > 0 else b""
    return os.path.join(directory(), os.fsdecode(name.lstrip(b"-.")) + end)


@contextlib.contextmanager
def short(address: str) -> Iterator[str]:
    """Give a name of a socket's path that bind(2) and connect(2) take, for the length of a block: that of a long path
    leads through a descriptor of its directory.

    Raises:
        OSError: the directory can't be opened.
    """
    if len(os.fsencode(address)) <= ADDRESS_MAX_BYTES:
        yield address
        return
    place, name = os.path.split(address)
    with closing_fd(os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
        yield f"/proc/self/fd/{fd}/{name}"


def listen(path: str, backlog: int) -> socket.socket:
    """A listening socket at `path`, mode 0600.

    Raises:
        OSError: the directory can't be used.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    # Until it listens, `remove_stale` must not take it for the socket of a dead server.
    early = path.removesuffix(".sock") + ".new"
    try:
        with short(early) as name:
            listener.bind(name)  # the directory is private until this is 0600
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
        with contextlib.suppress(OSError):  # it is gone
            if name.endswith(".sock") and not _has_listener(path):
                os.unlink(path)


def _has_listener(path: str) -> bool:
    """Return False for the socket of a dead server. FileNotFoundError: there is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            with short(path) as address, contextlib.suppress(BlockingIOError):  # a full backlog: a server listens
                probe.connect(address)
        except ConnectionRefusedError:
            return False
    return True


# -- without a mount -------------------------------------------------------------------------------------------

SERVED = ".served"
"""The ending of a record of what is served without a mount."""


SESSIONS = ".sessions"
"""The ending of the file that the sessions of a place keep locked."""

LOCK_ATTEMPTS, LOCK_PAUSE_S = 20, 0.01
"""For the lock of a record."""

END_ATTEMPTS, END_PAUSE_S = 600, 0.1
"""For a server to end, when a session waits for that."""


class Served(NamedTuple):
    """A record of what is served without a mount.

    Attributes:
        place: stands for its mount point: a mount point, a configuration file, or another absolute path.
        socket: its address.
        pid: of its server.
    """

    place: str
    socket: str
    pid: int


@contextlib.contextmanager
def claimed(place: str, address: str | None = None) -> Iterator[str]:
    """Be the only server of a place, for the length of a block. Gives the address to listen at.

    Args:
        place: see `Served`.
        address: another one than the usual in the runtime directory.

    Raises:
        MountError: EBUSY, there is another server of it.
        OSError: the runtime directory can't be used.
    """
    record = _record(place)
    chosen = address or record.removesuffix(SERVED) + ".sock"
    if address and len(os.fsencode(address)) > ADDRESS_MAX_BYTES:  # other programs connect to it by this path
        raise MountError(errno.ENAMETOOLONG, f"socket '{chosen}' has more than {ADDRESS_MAX_BYTES} bytes")
    with closing_fd(os.open(record, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)) as fd:
        # A client that looks at the record has it locked for a moment, too.
        if not _locked(fd, fcntl.LOCK_EX, LOCK_ATTEMPTS, LOCK_PAUSE_S):
            found = _read(record)
            where = "" if found is None else f" by process {found.pid}, on {found.socket}"
            raise MountError(errno.EBUSY, f"'{place}' is served already{where}")
        _require_free(chosen)
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps(Served(place, chosen, os.getpid())._asdict()).encode(), 0)
        try:
            yield chosen
        finally:  # the file stays: another server may be waiting for its lock
            os.ftruncate(fd, 0)


@contextlib.contextmanager
def session(place: str) -> Iterator[str]:
    """Keep the server of a place alive for the length of a block, if it was started for sessions. Gives the file that
    such a server gets (`wait_for_sessions`).

    The lock is the kernel's, so a session that was killed is over as well. A server that is ending has the lock until
    it is gone: a new session waits for that, and finds that nothing is served.

    Raises:
        MountError: ETIMEDOUT, the server has been ending for a minute.
        OSError: the runtime directory can't be used.
    """
    path = _record(place).removesuffix(SERVED) + SESSIONS
    with closing_fd(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)) as fd:
        if not _locked(fd, fcntl.LOCK_SH, END_ATTEMPTS, END_PAUSE_S):
            raise MountError(errno.ETIMEDOUT, f"the former server of '{place}' has not ended yet; its log may say why")
        yield path


def wait_for_sessions(path: str) -> None:
    """Wait until no session is left, and let none begin until this process ends."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)  # never closed
    fcntl.flock(fd, fcntl.LOCK_EX)


def served() -> list[Served]:
    """Return what is served without a mount, by place."""
    with contextlib.suppress(OSError):
        names = [os.path.join(directory(), name) for name in os.listdir(directory()) if name.endswith(SERVED)]
        return sorted(found for name in names if (found := _live(name)) is not None)
    return []


def server_of(place: str) -> Served | None:
    """Return the server of a place that is not mounted, or None."""
    with contextlib.suppress(OSError):
        return _live(_record(place))
    return None


def require_unserved(mountpoint: str) -> None:
    """Raise `MountError` if a server has the branches and the history of a mount point, without a mount."""
    found = server_of(mountpoint)
    if found is not None:
        end = f"end that with 'kill {found.pid}'"
        why = f"'{mountpoint}' is served already, without a mount, by process {found.pid}; {end}"
        raise MountError(errno.EBUSY, why)


def find_served(path: str) -> Served | None:
    """Return the server that a path means, which is its socket, its configuration, or its place; None without one."""
    text = absolute(path)
    kind = _kind(text)
    if kind == stat.S_IFSOCK:
        return next((each for each in served() if os.path.realpath(each.socket) == os.path.realpath(text)), None)
    with contextlib.suppress(MountError):
        return server_of(_configured(text) if kind == stat.S_IFREG else table.resolve(text))
    return None


def place_of(path: str | os.PathLike[str]) -> tuple[str, bool]:
    """The mount that a path means, and whether it is one: the mount point of a path in a mount; else the socket or
    the configuration file that it is. A file that names a mount point means the mount there, if there is one.

    Raises:
        MountError: it is nothing of these, or the mount's server hangs.
    """
    try:
        return split(path, follow=True)[0], True
    except MountError as error:
        text = absolute(path)
        kind = 0 if error.errno == errno.ETIMEDOUT else _kind(text)
        if kind == stat.S_IFSOCK:
            return text, False
        if not os.path.lexists(text):
            raise MountError(errno.ENOENT, f"'{text}' does not exist, so it lies in no mount of fusebackend") from None
        if kind != stat.S_IFREG:
            raise
    place = _configured(text)
    entry = table.mount_at(place)
    return (place, True) if entry is not None and entry.is_ours else (text, False)


def socket_of(place: str) -> str:
    """The socket of what `place_of` has found, and that is no mount.

    Raises:
        MountError: it is not served.
    """
    if _kind(place) == stat.S_IFSOCK:
        return place
    found = server_of(_configured(place))
    if found is None:
        raise MountError(errno.ENOTCONN, f"'{place}' is not served; 'fusebackend serve --config {place}' does that")
    return found.socket


def _configured(path: str) -> str:
    try:
        return config.place_of(path, config.read_file(path))
    except ConfigError as error:
        raise MountError(errno.EINVAL, f"no mount, no socket and no configuration: {error}") from None


def _kind(path: str) -> int:
    """The type of a file, 0 if there is none. Not for a path that may lie in a mount that hangs."""
    try:
        return stat.S_IFMT(os.stat(path).st_mode)
    except OSError:
        return 0


def _locked(fd: int, kind: int, attempts: int, pause_s: float) -> bool:
    for _ in range(attempts):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
            return True
        time.sleep(pause_s)
    return False


def _record(place: str) -> str:
    return _named(place, f".{hashlib.sha256(os.fsencode(place)).hexdigest()[:12]}{SERVED}")


def _read(record: str) -> Served | None:
    try:
        with open(record, "rb") as file:
            return Served(**json.loads(file.read() or b"null"))
    except (OSError, ValueError, TypeError):
        return None


def _live(record: str) -> Served | None:
    """Return a record whose server lives."""
    try:
        with open(record, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read(record)
    except FileNotFoundError:
        pass
    return None


def _require_free(address: str) -> None:
    """Remove the socket of a dead server. MountError: EBUSY, something listens there; EEXIST, it is another file."""
    kind = _kind(address)
    if kind not in (0, stat.S_IFSOCK):
        raise MountError(errno.EEXIST, f"'{address}' is a file, and no socket; choose another path")
    if not os.access(f"{os.path.dirname(address)}/", os.W_OK | os.X_OK):
        raise MountError(
            errno.ENOENT,
            f"there is no directory '{os.path.dirname(address)}' for the socket, or it can't be written to",
        )
    with contextlib.suppress(FileNotFoundError):
        if not _has_listener(address):
            os.unlink(address)
            return
        raise MountError(errno.EBUSY, f"a server listens on '{address}' already; choose another path for this one")


# -- from a path to its server ---------------------------------------------------------------------------------


def split(path: str | os.PathLike[str], *, follow: bool = False) -> tuple[str, str]:
    """A path as seen from outside, as its mount point and the agent's path; it need not exist.

    Symbolic links on the way are followed. One in the last segment only with `follow`, and if it leads to a mount: its
    target may be a path of agents.

    Raises:
        MountError: it lies in no mount of ours, or the mount's server hangs.
    """
    text = absolute(path)

    def find() -> tuple[str, str]:
        if follow:
            with contextlib.suppress(MountError):
                return _split(os.path.realpath(text), text)
        return _split(text, text)

    return _timely(text, find)


def is_socket(path: str | os.PathLike[str]) -> bool:
    """Return True if there is a socket at a path, or where a symbolic link there leads."""
    return _kind(os.fspath(path)) == stat.S_IFSOCK


def socket_at(mountpoint: str) -> str:
    """The socket of the mount that is on a mount point now.

    Raises:
        MountError: there is none of ours, or its server is gone or hangs or has no socket.
    """
    return _timely(mountpoint, lambda: _socket_at(mountpoint))


def _split(path: str, given: str) -> tuple[str, str]:
    parent, name = os.path.split(path)
    real = os.path.join(os.path.realpath(parent), name)
    mount = _mount_of(real)
    if mount is None or not mount.is_ours or not is_below(real, mount.mountpoint):
        raise MountError(errno.EINVAL, f"'{given}' lies in no mount of fusebackend")
    inner = real[len(mount.mountpoint.rstrip("/")) :] or "/"
    root = mount.root.rstrip("/")  # of a bind mount of a part: where that part is in the whole
    return mount.mountpoint, (root + inner).rstrip("/") or "/"


def _socket_at(mountpoint: str) -> str:
    mount = _mount_of(mountpoint)
    if mount is None or not mount.is_ours or mount.mountpoint != mountpoint:
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
    with closing_fd(fd):
        found = re.search(rb"^mnt_id:\s*(\d+)$", proc.read(f"self/fdinfo/{fd}"), re.MULTILINE)
    number = int(found[1]) if found else -1
    return next((entry for entry in table.mounts() if entry.id == number), None)


def _timely(path: str, find: Callable[[], T]) -> T:
    """Return or raise the outcome of `find`, unless it takes too long."""
    try:
        return within(ANSWER_TIMEOUT_S, find)
    except GivenUp:
        message = f"the server of the mount at '{path}' does not answer: it hangs, or is stopped"
        raise MountError(errno.ETIMEDOUT, message) from None
