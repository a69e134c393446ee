"""`FsAccess`: how a file system of fsspec is asked, and how much of it at a time.

Those of FTP, SFTP and SMB have one connection, which they never make again: after a server ended an idle one, every
request failed. So a connection that may be lost is made again before the next request.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeAlias

from fusebackend.base.waiting import will_wait
from fusebackend.remote.ranges import Pace

SMB_PORT = 445

CLOSE_LIMIT_S = 1

CONNECTION_PACE = Pace(part_bytes=8 << 20, window_bytes=16 << 20, threads=1, parts=2)
"""Of a file system with one connection."""

SMB_PACE = CONNECTION_PACE._replace(threads=0)
"""smbprotocol has threads of its own, and one more that fetches ahead costs it a third of its speed."""

LOOP_PACE = Pace(part_bytes=2 << 20, window_bytes=8 << 20, threads=4)
"""Of a file system with a loop of its own, whose ranges arrive as a whole: together 8 MiB each round trip."""

LOST = frozenset({
    errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED, errno.ENOTCONN, errno.ESHUTDOWN, errno.ECONNREFUSED,
    errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ETIMEDOUT,
})  # fmt: skip
"""After one of these there is no connection, or an answer is still to come on it."""

Fetch: TypeAlias = Callable[[int, int], Iterable["bytes | memoryview"]]
"""Yields the bytes from one offset to another, in pieces."""


class StandingRequest(Protocol):
    """A request that stays open for what follows, and that no other may overtake on its connection."""

    def end(self) -> None: ...


class FsAccess:
    """How a file system is asked: by one thread at a time, for its connection is one, unless it has a loop of its own.

    Args:
        fs: an `fsspec.AbstractFileSystem`.
    """

    def __init__(self, fs: Any) -> None:
        self.at_once = bool(fs.async_impl)
        self.is_smb = "smb" in fs.protocol
        self.pace = LOOP_PACE if self.at_once else SMB_PACE if self.is_smb else CONNECTION_PACE
        self.standing: StandingRequest | None = None
        """Ended before anything else is asked."""
        self.is_lost = False
        self.connections = 1
        """How many there were: files of an earlier one are closed."""
        self._fs = fs
        self._connects = hasattr(fs, "_connect")
        self._lock: contextlib.AbstractContextManager[Any] = (
            contextlib.nullcontext() if self.at_once else threading.RLock()
        )

    @contextlib.contextmanager
    def of(self, path: str, fetch: object = None) -> Iterator[None]:
        """Hold the file system. What it raises inside is an `OSError` about `path`.

        Args:
            fetch: what is going to be called; if it is the standing request, that goes on.
        """
        will_wait()
        with self._lock:
            try:
                with told(path):
                    if self.standing is not None and self.standing is not fetch:
                        self.standing.end()
                    self.mend()
                    yield
            except OSError as error:
                # EBADF: the library's reader has seen the end of the connection, and has closed its socket.
                lost = error.errno in LOST or error.errno == errno.EBADF or self._is_closed()
                # EIO is what all other errors of libraries become, those of a lost connection as well.
                if self._connects and (lost or error.errno == errno.EIO):
                    self.is_lost = True
                if lost and error.errno not in LOST:
                    raise OSError(errno.ECONNRESET, os.strerror(errno.ECONNRESET), path) from error
                raise

    def mend(self) -> None:
        """Connect again if the connection may be lost."""
        if not self.is_lost and not self.is_smb:
            return
        try:
            if self.is_lost:
                with contextlib.suppress(Exception):  # of any library: its connection is gone
                    self._close()
            if self.is_lost or self.is_smb:  # smbclient connects by itself, but without the password
                self._fs._connect()
            if self.is_lost and getattr(self._fs, "tls", None) is True:
                self._fs.ftp.prot_p()  # as the constructor of FTP's does
        except Exception as error:
            number = error.errno if isinstance(error, OSError) and error.errno in LOST else errno.ENOTCONN
            raise OSError(number, os.strerror(number)) from error
        self.connections += self.is_lost
        self.is_lost = False

    def _close(self) -> None:
        if self.is_smb:
            import smbclient

            smbclient.delete_session(self._fs.host, self._fs.port or SMB_PORT, timeout=CLOSE_LIMIT_S)
        else:
            getattr(self._fs, "client", self._fs.ftp).close()  # of paramiko or ftplib

    def _is_closed(self) -> bool:
        """Whether SFTP's connection is gone: paramiko raises an `OSError` without a number."""
        client: Any = getattr(self._fs, "client", None)
        transport = client.get_transport() if hasattr(client, "get_transport") else None
        return transport is not None and not transport.is_active()


# -- errors -----------------------------------------------------------------------------------------------------
#
# What file systems of fsspec raise, as an `OSError` with a number.
#
# fsspec asks for `FileNotFoundError` and its like, and many file systems raise them without a number; the libraries
# behind them have classes of their own.


log = logging.getLogger(__name__)

NUMBERS: tuple[tuple[type[BaseException], int], ...] = (
    (FileNotFoundError, errno.ENOENT),
    (FileExistsError, errno.EEXIST),
    (IsADirectoryError, errno.EISDIR),
    (NotADirectoryError, errno.ENOTDIR),
    (PermissionError, errno.EACCES),
    (TimeoutError, errno.ETIMEDOUT),
    (NotImplementedError, errno.EROFS),
)

REPLIES = {"421": errno.ECONNRESET, "550": errno.ENOENT, "530": errno.EACCES, "553": errno.EACCES, "552": errno.ENOSPC}
"""Of FTP servers (RFC 959, 4.2): `ftplib` raises them as text. 421 ends the connection; 550 is no such file, or no
right to it."""

CLOSED = frozenset({"EOFError", "SSHException", "SMBConnectionClosed"})
"""What ftplib, paramiko and smbprotocol raise when the server has closed the connection."""


STATUSES = {401: errno.EACCES, 403: errno.EACCES, 404: errno.ENOENT, 410: errno.ENOENT, 412: errno.ESTALE}
"""Of HTTP (RFC 9110, 15.5): `aiohttp` raises them with a `status`. 412: `If-Match` names another version."""


NT_STATUSES = {0xC0000022: errno.EACCES, 0xC0000043: errno.EBUSY, 0xC000007F: errno.ENOSPC}
"""Of SMB (MS-ERREF, 2.3.1): access denied, sharing violation, disk full. `smbclient` knows the second one, as EPERM."""


@contextlib.contextmanager
def told(path: str) -> Iterator[None]:
    """Raise what is raised inside as an `OSError` about `path`."""
    try:
        yield
    except Exception as error:  # perhaps of the library behind the file system
        number = next((number for kind, number in NUMBERS if isinstance(error, kind)), errno.EIO)
        if isinstance(error, OSError):
            if error.errno is not None and isinstance(error, type(OSError(error.errno, ""))):
                raise
            # smbprotocol's errors have numbers, and are no FileNotFoundError.
            number = NT_STATUSES.get(getattr(error, "ntstatus", 0)) or error.errno or number
        elif number == errno.EIO:
            number = STATUSES.get(getattr(error, "status", 0), errno.EIO)
            if type(error).__module__ == "ftplib":
                number = REPLIES.get(str(error)[:3], errno.EIO)
            if type(error).__name__ in CLOSED:
                number = errno.ECONNRESET
            if number == errno.EIO:
                log.warning("%s: %s: %s", path, type(error).__name__, error)
        raise OSError(number, os.strerror(number), path) from error
