"""Readers of one open file of fsspec: ranges that grow with a sequential read, fetched once.

fsspec's own caches keep one stretch of a file, and the kernel's reads may overtake each other; each that did had it
fetched again. A range costs a round trip, so they grow. It arrives in pieces, and a read waits for its own only. Pieces
of `PIECE_BYTES` also come from memory that was used a moment ago: 64 MiB in blocks of 8 MiB, each with a mapping of its
own (`heap.LARGE_BYTES`), took 38 ms to receive, in blocks of 1 MiB 12.
"""

from __future__ import annotations

import bisect
import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from fsspec.implementations.local import LocalFileOpener
from fsspec.implementations.memory import MemoryFile
from fsspec.spec import AbstractBufferedFile

from fusebackend.backends.fsspec.asking import Asking, Fetch, told
from fusebackend.base.errors import oserror
from fusebackend.base.waiting import will_wait
from fusebackend.protocol.remote import Reader

UNIT_BYTES = 256 << 10
"""The first range, and what each begins at: a random read of 4 KiB fetches no more."""

PIECE_BYTES = 1 << 20
"""The largest piece of a range, where the file system gives them one by one. Also the blocks that a file is opened
with."""

KEPT_BYTES = 24 << 20
"""So much of an open file is kept, the ranges that were used last."""

SLOW_S = 1.0
"""After a range that took so long the next is no larger: other files wait for all of it."""


class _Range:
    """A part of a file. One thread fetches it; `get` gives another one what has arrived.

    The reader alone uses `start` and `end`. When a fetch failed, it cuts what it holds to what has arrived."""

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self.next_bytes = end - start
        """The size of the range after it."""
        self.is_wanted = True
        self.got = start
        """Up to where it has arrived."""
        self._pieces: list[memoryview] = []
        self._starts: list[int] = []
        self._done = False
        self._changed = threading.Condition()

    def add(self, piece: memoryview) -> None:
        with self._changed:
            if piece:
                self._pieces.append(piece)
                self._starts.append(self.got)
                self.got += len(piece)
            self._changed.notify_all()

    def done(self) -> None:
        """No more will arrive."""
        with self._changed:
            self._done = True
            self._changed.notify_all()

    def get(self, offset: int, end: int) -> memoryview | None:
        """Wait for the piece at `offset`; its bytes from there, up to `end`. None where it could not be fetched."""
        if self.got <= offset and not self._done:
            will_wait()
            with self._changed:
                self._changed.wait_for(lambda: self._done or self.got > offset)
        if self.got <= offset:
            return None
        number = bisect.bisect(self._starts, offset) - 1
        return self._pieces[number][offset - self._starts[number] : end - self._starts[number]]


class Ranged:
    """Reads parts of a file. Not thread-safe: the volume's lock is held.

    After a second range in a row the next ones are fetched by threads meanwhile.

    Args:
        path: for errors.
        file: the open file, for `close`.
        size: of the version that was opened, in bytes.
        fetch: fetches a range.
        asking: how the file system is asked.
        opened: opens the same version again, when the connection was lost. ESTALE.
    """

    def __init__(
        self, path: str, file: Any, size: int, fetch: Fetch, asking: Asking, opened: Callable[[], Any]
    ) -> None:
        self._path = path
        self._file = file
        self._size = size
        self._fetch = fetch
        self._asking = asking
        self._opened = opened
        self._connection = asking.connections
        self._kept: list[_Range] = []  # the one used last is at the end
        self._is_closed = False

    def read(self, offset: int, size: int) -> bytes:
        """ESTALE where the file has fewer bytes than its version had."""
        end = min(offset + size, self._size)
        pieces: list[memoryview] = []
        while offset < end:
            piece = self._at(offset, end)
            if piece is None:
                self._fetch_for(offset, end)
            else:
                pieces.append(piece)
                offset += len(piece)
        return bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        self._is_closed = True
        self._kept.clear()
        with self._asking.of(self._path):
            if self._connection == self._asking.connections:  # else it is closed
                self._file.close()

    def _at(self, offset: int, end: int) -> memoryview | None:
        """Bytes that are kept, from this offset and up to `end` at most."""
        for place, kept in enumerate(self._kept):
            if kept.start <= offset < kept.end:
                piece = kept.get(offset, end)
                del self._kept[place]
                if piece is None:
                    kept.end = kept.got
                if kept.end > kept.start:
                    self._keep(kept)
                if piece is not None and self._is_run(kept, end):
                    self._fetch_ahead(kept)
                return piece
        return None

    def _is_run(self, kept: _Range, end: int) -> bool:
        """Whether a read up to `end` is one of a sequential read: it follows another range, or uses up the first."""
        return (not kept.start and end >= kept.end) or any(other.end == kept.start for other in self._kept)

    def _fetch_for(self, offset: int, end: int) -> None:
        """Fetch what holds `offset`, up to `end` at least if that is not there."""
        before = next((kept for kept in self._kept if kept.end == offset), None)
        start = offset if before else offset // UNIT_BYTES * UNIT_BYTES
        start = max([start, *(kept.end for kept in self._kept if kept.end <= offset)])
        until = max(end, start + (before.next_bytes if before else UNIT_BYTES))
        found = _Range(start, self._until(start, until))
        self._fill(found)
        self._keep(found)

    def _fetch_ahead(self, last: _Range) -> None:
        """Have what follows a range fetched by threads."""
        for _ in range(self._asking.ahead):
            after = next((kept for kept in self._kept if kept.start == last.end), None)
            if after is None:
                after = _Range(last.end, self._until(last.end, last.end + last.next_bytes))
                if after.end == after.start or not self._asking.fetchers.submit(partial(self._fill_ahead, after)):
                    return
                self._kept.insert(-1, after)
            last = after

    def _fill_ahead(self, ahead: _Range) -> None:
        # An error is that of the read that comes to it, which asks again.
        with contextlib.suppress(OSError):
            self._fill(ahead)

    def _fill(self, wanted: _Range) -> None:
        """Fetch a range. ESTALE where the file is gone, or has fewer bytes than its version had."""
        start, end = wanted.start, wanted.end
        began = self._asking.clock()
        try:
            with self._asking.of(self._path, self._fetch):
                if self._is_closed or not wanted.is_wanted:
                    return
                if self._connection != self._asking.connections:
                    with contextlib.suppress(Exception):  # of any library: its connection is gone
                        self._file.close()
                    self._file, self._connection = self._opened(), self._asking.connections
                    self._fetch = _fetch_of(self._file, self._size, self._asking)
                for piece in self._fetch(start, end):
                    wanted.add(memoryview(piece))
                    if self._is_closed:
                        return
            if wanted.got != end:
                raise oserror(errno.ESTALE, self._path)
            if self._asking.clock() - began <= SLOW_S:
                wanted.next_bytes = min(2 * (end - start), self._asking.range_bytes)
        except FileNotFoundError:
            raise oserror(errno.ESTALE, self._path) from None
        finally:
            wanted.done()

    def _until(self, start: int, until: int) -> int:
        """Where a range ends that begins at `start`: before what is there already."""
        return min([self._size, until, *(kept.start for kept in self._kept if kept.start >= start)])

    def _keep(self, used: _Range) -> None:
        self._kept.append(used)
        while len(self._kept) > 1 and sum(kept.end - kept.start for kept in self._kept) > KEPT_BYTES:
            self._kept.pop(0).is_wanted = False


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


def reader_of(path: str, file: Any, size: int, asking: Asking, opened: Callable[[], Any]) -> Reader:
    """A reader of an open file, which it closes. The arguments are those of `Ranged`."""
    if isinstance(file, (LocalFileOpener, MemoryFile)):
        return Direct(path, file)
    return Ranged(path, file, size, _fetch_of(file, size, asking), asking, opened)


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


def _fetch_of(file: Any, size: int, asking: Asking) -> Fetch:
    if isinstance(file, Briefly):
        return file
    if type(file).__module__ == "fsspec.implementations.ftp":
        from fusebackend.backends.fsspec.ftp import Transfer

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
