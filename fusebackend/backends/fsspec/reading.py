"""How a file system of fsspec is asked (`FsAccess`), and what an open file is read by: `Direct` where it is on this
machine, else `remote.ranges.RangedReader` over an `FsFile`.

fsspec's own caches keep one stretch of a file, and the kernel's reads may overtake each other; each that did had it
fetched again. A range arrives in pieces. Pieces of `PIECE_BYTES` also come from memory that was used a moment ago: 64
MiB in blocks of 8 MiB, each with a mapping of its own (`heap.LARGE_BYTES`), took 38 ms to receive, in blocks of 1 MiB
12.
"""

from __future__ import annotations

import contextlib
import errno
import ftplib
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeAlias

from fsspec.implementations.local import LocalFileOpener
from fsspec.implementations.memory import MemoryFile
from fsspec.spec import AbstractBufferedFile

from fusebackend.base.errors import oserror
from fusebackend.base.waiting import will_wait
from fusebackend.protocol.remote import Reader
from fusebackend.remote.ranges import BlockCache, Pace, RangedReader

# -- asking ------------------------------------------------------------------------------------------------------
#
# `FsAccess`: how a file system is asked, and how much of it at a time.
#
# Those of FTP, SFTP and SMB have one connection, which they never make again: after a server ended an idle one, every
# request failed. So a connection that may be lost is made again before the next request.

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


# -- open files --------------------------------------------------------------------------------------------------

PIECE_BYTES = 1 << 20
"""The largest piece of a range, where the file system gives them one by one. Also the blocks that a file is opened
with."""


class FsFile:
    """The `RangeSource` of a reader: an open file, which is opened again when the connection was lost.

    Args:
        path: for errors.
        file: the open file.
        size: of the version that was opened, in bytes.
        asking: how the file system is asked.
        opened: opens the same version again. ESTALE.
    """

    def __init__(self, path: str, file: Any, size: int, asking: FsAccess, opened: Callable[[], Any]) -> None:
        self._path = path
        self._file = file
        self._size = size
        self._asking = asking
        self._opened = opened
        self._fetch = _fetch_of(file, size, asking)
        self._connection = asking.connections
        self._is_closed = False

    def fetch(self, offset: int, size: int, add: Callable[[memoryview], None]) -> None:
        try:
            with self._asking.of(self._path, self._fetch):
                if self._is_closed:
                    return
                if self._connection != self._asking.connections:
                    with contextlib.suppress(Exception):  # of any library: its connection is gone
                        self._file.close()
                    self._file, self._connection = self._opened(), self._asking.connections
                    self._fetch = _fetch_of(self._file, self._size, self._asking)
                for piece in self._fetch(offset, offset + size):
                    add(memoryview(piece))
                    if self._is_closed:
                        return
        except FileNotFoundError:
            raise oserror(errno.ESTALE, self._path) from None

    def close(self) -> None:
        self._is_closed = True
        with self._asking.of(self._path):
            if self._connection == self._asking.connections:  # else it is closed
                self._file.close()


class Direct:
    """Reads a file that is in this machine's memory or page cache anyway."""

    def __init__(self, path: str, file: Any) -> None:
        self._path = path
        self._file = file

    def read(self, offset: int, size: int) -> bytes:
        with told(self._path):
            if isinstance(self._file, LocalFileOpener):
                return os.pread(self._file.fileno(), size, offset)
            self._file.seek(offset)
            data: bytes = self._file.read(size)
            return data

    def close(self) -> None:
        with told(self._path):
            self._file.close()


def reader_of(
    path: str, file: Any, size: int, asking: FsAccess, opened: Callable[[], Any], cache: BlockCache
) -> Reader:
    """A reader of an open file, which it closes. The arguments are those of `FsFile`.

    What is cached is of this open file alone: versions of fsspec may miss a change within a second.
    """
    if isinstance(file, (LocalFileOpener, MemoryFile)):
        return Direct(path, file)
    source = FsFile(path, file, size, asking, opened)
    return RangedReader(path, source, etag=None, size=size, cache=cache)


class Briefly:
    """A file of SMB, open only while a range is fetched. Of a file that its client has open, Samba gives the time of an
    earlier change, so that another's was overwritten; nor may it be replaced (STATUS_ACCESS_DENIED).

    Args:
        file: open for the first range.
        opened: opens it again. ESTALE.
    """

    def __init__(self, file: Any, opened: Callable[[], Any]) -> None:
        self._file: Any = file
        self._opened = opened
        self._version = _smb_version(file)

    def __call__(self, start: int, end: int) -> Iterator[bytes]:
        file, self._file = self._file or self._opened(), None
        with file:
            if _smb_version(file) != self._version:
                raise oserror(errno.ESTALE, file.name)
            yield from _Seeking(file)(start, end)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _smb_version(file: Any) -> tuple[Any, int]:
    """What the server said when it opened the file; asking once more would be two round trips."""
    return file.fd.last_write_time, file.fd.end_of_file


def _fetch_of(file: Any, size: int, asking: FsAccess) -> Fetch:
    if isinstance(file, Briefly):
        return file
    if type(file).__module__ == "fsspec.implementations.ftp":
        return Transfer(file, size, asking)
    if isinstance(file, AbstractBufferedFile) and type(file)._fetch_range is not AbstractBufferedFile._fetch_range:
        return lambda start, end: (file._fetch_range(start, end),)
    if hasattr(file, "readv"):  # paramiko: many requests at once, while `read` waits for each 32 KiB
        return lambda start, end: file.readv(_pieces(start, end))
    return _Seeking(file)


def _pieces(start: int, end: int) -> list[tuple[int, int]]:
    """Offsets and sizes."""
    return [(offset, min(end - offset, PIECE_BYTES)) for offset in range(start, end, PIECE_BYTES)]


class _Seeking:
    """Fetches by `seek` and `read`, in pieces: webdav4 and zipfile copy all they have for each block they add.

    `seek` is left out where it is not needed: some begin a new request for it."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._offset = 0

    def __call__(self, start: int, end: int) -> Iterator[bytes]:
        if start != self._offset:
            self._file.seek(start)
        while start < end:
            self._offset = -1  # unknown after an error
            piece = self._file.read(min(end - start, PIECE_BYTES))
            start += len(piece)
            self._offset = start
            yield piece
            if not piece:
                break


# -- ftp -------------------------------------------------------------------------------------------------------------
#
# `Transfer`: reads a file of an FTP server, with one RETR for ranges that follow each other.
#
# fsspec begins a transfer for each range and aborts it at its end, when the server has sent as much more as the
# sockets hold: 64 MiB took 81 ms in ranges of 5 MiB, and 12 ms in one transfer. The connection takes no other command
# meanwhile, so a transfer is ended before one (`FsAccess.standing`).


class Transfer:
    """A `Fetch` of one open file, and a `StandingRequest`.

    Args:
        file: an `FTPFile`.
        size: of the file, in bytes.
        asking: is held by those that call this.
    """

    def __init__(self, file: Any, size: int, asking: FsAccess) -> None:
        self._fs = file.fs
        self._path = file.path
        self._size = size
        self._asking = asking
        self._data: socket.socket | None = None
        self._ftp: ftplib.FTP | None = None
        self._offset = 0

    def __call__(self, start: int, end: int) -> Iterator[memoryview]:
        if self._data is not None and self._offset != start:
            self.end()
            self._asking.mend()
        if self._data is None:
            self._begin(start)
        while start < end:
            piece = self._piece(min(end - start, PIECE_BYTES))
            start += len(piece)
            yield piece
            if self._data is None:
                break

    def end(self) -> None:
        """Abort the transfer, if there is one. The connection is lost where the server does not follow."""
        data, self._data = self._data, None
        if data is None:
            return
        self._asking.standing = None
        data.close()
        if self._ftp is not self._fs.ftp:
            return
        try:
            self._ftp.abort()
            self._ftp.getmultiline()  # one reply is about the transfer, the other about ABOR
        except (ftplib.Error, EOFError, OSError) as error:
            log.info("%s: the transfer was not aborted, connecting again: %s", self._path, error)
            self._asking.is_lost = True

    def _begin(self, start: int) -> None:
        self._ftp = self._fs.ftp
        self._ftp.voidcmd("TYPE I")
        self._data = self._ftp.transfercmd(f"RETR {self._path}", start or None)
        self._offset = start
        self._asking.standing = self

    def _piece(self, size: int) -> memoryview:
        """The next bytes; fewer than `size` at the end of what the server has. Afterwards there is no transfer."""
        assert self._data is not None
        piece = memoryview(bytearray(size))
        got = 0
        try:
            while got < size and (count := self._data.recv_into(piece[got:])):
                got += count
            self._offset += got
            if got < size or (self._offset == self._size and not self._data.recv(1)):
                self._finish()
        except BaseException:
            self.end()
            raise
        return piece[:got]

    def _finish(self) -> None:
        """Everything has arrived."""
        assert self._data is not None and self._ftp is not None
        data, self._data, self._asking.standing = self._data, None, None
        data.close()
        self._ftp.voidresp()
