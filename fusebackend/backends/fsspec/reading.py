"""Readers of one open file of fsspec: ranges that grow with a sequential read, fetched once.

fsspec's own caches keep one stretch of a file, and the kernel's reads may overtake each other; each that did had it
fetched again. A range costs a round trip, and on FTP an aborted transfer: 64 MiB in ranges of 1 MiB were read half as
fast as in ranges of 8.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from fsspec.implementations.local import LocalFileOpener
from fsspec.implementations.memory import MemoryFile
from fsspec.spec import AbstractBufferedFile

from fusebackend.backends.fsspec.told import told
from fusebackend.base.errors import oserror
from fusebackend.protocol.remote import Reader

UNIT_BYTES = 256 << 10
"""The first range, and what each begins at: a random read of 4 KiB fetches no more."""

RANGE_BYTES = 8 << 20
"""The largest range: twice the one before it, in a sequential read."""

KEPT_BYTES = 16 << 20
"""So much of an open file is kept, the ranges that were used last."""

SLOW_S = 1.0
"""The next range is no larger than one that took so long: a read waits for all of it."""

FILE_BYTES = 1 << 20
"""The size of blocks that a file is opened with: what some take from a socket at once, such as those of FTP."""

Fetch = Callable[[int, int], bytes]
"""Returns the bytes from one offset to another."""


class Ranged:
    """Reads parts of a file. Not thread-safe: the volume's lock is held.

    Args:
        path: for errors.
        file: the open file, for `close`.
        size: of the version that was opened, in bytes.
        fetch: fetches a range.
        clock: seconds that only grow.
    """

    def __init__(
        self, path: str, file: Any, size: int, fetch: Fetch, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = path
        self._file = file
        self._size = size
        self._fetch = fetch
        self._clock = clock
        self._kept: list[_Range] = []  # the one used last is at the end

    def read(self, offset: int, size: int) -> bytes:
        """ESTALE where the file has fewer bytes than its version had."""
        end = min(offset + size, self._size)
        pieces: list[bytes | memoryview] = []
        while offset < end:
            found = self._at(offset) or self._fetched(offset, end)
            pieces.append(found.data[offset - found.start : end - found.start])
            offset += len(pieces[-1])
        return b"".join(pieces)

    def close(self) -> None:
        self._kept.clear()
        with told(self._path):
            self._file.close()

    def _at(self, offset: int) -> _Range | None:
        """The range that is kept of this offset."""
        for place, kept in enumerate(self._kept):
            if kept.start <= offset < kept.end:
                self._kept.append(self._kept.pop(place))
                return kept
        return None

    def _fetched(self, offset: int, end: int) -> _Range:
        before = next((kept for kept in self._kept if kept.end == offset), None)
        start = offset if before else offset // UNIT_BYTES * UNIT_BYTES
        until = max(end, start + (before.next_bytes if before else UNIT_BYTES))
        until = min([self._size, *(kept.start for kept in self._kept if kept.start > offset), until])
        start = max([start, *(kept.end for kept in self._kept if kept.end <= offset)])
        began = self._clock()
        with told(self._path):
            data = self._fetch(start, until)
        if len(data) != until - start:
            raise oserror(errno.ESTALE, self._path)
        is_slow = self._clock() - began > SLOW_S
        found = _Range(start, memoryview(data), min(len(data) if is_slow else 2 * len(data), RANGE_BYTES))
        self._kept.append(found)
        while len(self._kept) > 1 and sum(len(kept.data) for kept in self._kept) > KEPT_BYTES:
            del self._kept[0]
        return found


class _Range(NamedTuple):
    start: int
    data: memoryview
    next_bytes: int
    """The size of the range after it."""

    @property
    def end(self) -> int:
        return self.start + len(self.data)


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


def reader_of(path: str, file: Any, size: int) -> Reader:
    """A reader of an open file, which it closes."""
    if isinstance(file, (LocalFileOpener, MemoryFile)):
        return Direct(path, file)
    return Ranged(path, file, size, _fetch_of(file))


def _fetch_of(file: Any) -> Fetch:
    if isinstance(file, AbstractBufferedFile) and type(file)._fetch_range is not AbstractBufferedFile._fetch_range:
        return file._fetch_range  # type: ignore[no-any-return]
    if hasattr(file, "readv"):  # paramiko: many requests at once, while `read` waits for each 32 KiB
        return lambda start, end: b"".join(file.readv([(start, end - start)]))
    return _Seeking(file)


class _Seeking:
    """Fetches by `seek` and `read`. `seek` is left out where it is not needed: some begin a new request for it."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._offset = 0

    def __call__(self, start: int, end: int) -> bytes:
        if start != self._offset:
            self._file.seek(start)
        pieces = []
        self._offset = start
        while self._offset < end and (piece := self._file.read(end - self._offset)):
            pieces.append(piece)
            self._offset += len(piece)
        return b"".join(pieces)
