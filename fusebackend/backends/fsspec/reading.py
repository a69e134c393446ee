"""Readers of one open file of fsspec: ranges that grow with a sequential read, fetched once.

fsspec's own caches keep one stretch of a file, and the kernel's reads may overtake each other; each that did had it
fetched again. A range costs a round trip, and on FTP an aborted transfer: 64 MiB in ranges of 1 MiB were read half as
fast as in ranges of 8.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from fsspec.implementations.local import LocalFileOpener
from fsspec.implementations.memory import MemoryFile
from fsspec.spec import AbstractBufferedFile

from fusebackend.backends.fsspec.told import told
from fusebackend.base.errors import oserror
from fusebackend.base.waiting import will_wait
from fusebackend.protocol.remote import Reader
from fusebackend.remote.fetchers import Fetchers

UNIT_BYTES = 256 << 10
"""The first range, and what each begins at: a random read of 4 KiB fetches no more."""

RANGE_BYTES = 8 << 20
"""The largest range: twice the one before it, in a sequential read."""

KEPT_BYTES = 24 << 20
"""So much of an open file is kept, the ranges that were used last."""

SLOW_S = 1.0
"""The next range is no larger than one that took so long: a read waits for all of it."""

FILE_BYTES = 1 << 20
"""The size of blocks that a file is opened with: what some take from a socket at once, such as those of FTP."""

Fetch = Callable[[int, int], bytes]
"""Returns the bytes from one offset to another."""


class Asking:
    """How a file system is asked: by one thread at a time, for its connection is one, unless it has a loop of its own.

    Args:
        fs: an `fsspec.AbstractFileSystem`.
        clock: seconds that only grow.
    """

    def __init__(self, fs: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.fetchers = Fetchers(1)
        self.at_once = bool(fs.async_impl)
        self._lock: contextlib.AbstractContextManager[Any] = (
            contextlib.nullcontext() if self.at_once else threading.RLock()
        )

    @contextlib.contextmanager
    def of(self, path: str) -> Iterator[None]:
        """Hold the file system. What it raises inside is an `OSError` about `path`."""
        will_wait()
        with self._lock, told(path):
            yield


class _Range:
    """A part of a file, which is fetched at once or by a thread."""

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self.data = memoryview(b"")
        self.next_bytes = 0
        """The size of the range after it; 0 if it could not be fetched."""
        self._done = threading.Event()

    def fetch(self, asking: Asking, path: str, fetch: Fetch) -> None:
        """ESTALE where the file is gone, or has fewer bytes than its version had."""
        began = asking.clock()
        try:
            try:
                with asking.of(path):
                    data = fetch(self.start, self.end)
            except FileNotFoundError:
                raise oserror(errno.ESTALE, path) from None
            if len(data) != self.end - self.start:
                raise oserror(errno.ESTALE, path)
            is_slow = asking.clock() - began > SLOW_S
            self.data = memoryview(data)
            self.next_bytes = min(len(data) if is_slow else 2 * len(data), RANGE_BYTES)
        finally:
            self._done.set()

    def arrived(self) -> bool:
        """Wait for the thread; return whether the bytes are there."""
        if not self._done.is_set():
            will_wait()
            self._done.wait()
        return bool(self.next_bytes)


class Ranged:
    """Reads parts of a file. Not thread-safe: the volume's lock is held.

    After a second range in a row the next one is fetched by a thread meanwhile, if it has not begun by then.

    Args:
        path: for errors.
        file: the open file, for `close`.
        size: of the version that was opened, in bytes.
        fetch: fetches a range.
        asking: how the file system is asked.
    """

    def __init__(self, path: str, file: Any, size: int, fetch: Fetch, asking: Asking) -> None:
        self._path = path
        self._file = file
        self._size = size
        self._fetch = fetch
        self._asking = asking
        self._kept: list[_Range] = []  # the one used last is at the end
        self._is_closed = False

    def read(self, offset: int, size: int) -> bytes:
        """ESTALE where the file has fewer bytes than its version had."""
        end = min(offset + size, self._size)
        pieces: list[bytes | memoryview] = []
        while offset < end:
            found = self._at(offset) or self._fetched(offset, end)
            pieces.append(found.data[offset - found.start : end - found.start])
            offset += len(pieces[-1])
        return bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        self._is_closed = True
        self._kept.clear()
        with self._asking.of(self._path):
            self._file.close()

    def _at(self, offset: int) -> _Range | None:
        """The range that is kept of this offset."""
        for place, kept in enumerate(self._kept):
            if kept.start <= offset < kept.end:
                arrived = kept.arrived()
                del self._kept[place]
                if not arrived:
                    return None
                self._keep(kept)
                if not any(other.start == kept.end for other in self._kept):
                    self._fetch_ahead(kept)
                return kept
        return None

    def _fetched(self, offset: int, end: int) -> _Range:
        before = next((kept for kept in self._kept if kept.end == offset), None)
        start = offset if before else offset // UNIT_BYTES * UNIT_BYTES
        start = max([start, *(kept.end for kept in self._kept if kept.end <= offset)])
        until = max(end, start + (before.next_bytes if before else UNIT_BYTES))
        found = _Range(start, self._until(start, until))
        found.fetch(self._asking, self._path, self._fetch)
        self._keep(found)
        if before:
            self._fetch_ahead(found)
        return found

    def _fetch_ahead(self, before: _Range) -> None:
        start = before.end
        ahead = _Range(start, self._until(start, start + before.next_bytes))
        if ahead.end > start and self._asking.fetchers.submit(lambda: self._work(ahead)):
            self._kept.insert(-1, ahead)

    def _work(self, ahead: _Range) -> None:
        # An error is that of the read that comes to it, which asks again.
        with contextlib.suppress(OSError):
            ahead.fetch(self._asking, self._path, self._fetch_if_open)

    def _fetch_if_open(self, start: int, end: int) -> bytes:
        return b"" if self._is_closed else self._fetch(start, end)

    def _until(self, start: int, until: int) -> int:
        """Where a range ends that begins at `start`: before what is there already."""
        return min([self._size, until, *(kept.start for kept in self._kept if kept.start >= start)])

    def _keep(self, used: _Range) -> None:
        self._kept.append(used)
        while len(self._kept) > 1 and sum(kept.end - kept.start for kept in self._kept) > KEPT_BYTES:
            del self._kept[0]


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


def reader_of(path: str, file: Any, size: int, asking: Asking) -> Reader:
    """A reader of an open file, which it closes."""
    if isinstance(file, (LocalFileOpener, MemoryFile)):
        return Direct(path, file)
    return Ranged(path, file, size, _fetch_of(file), asking)


def _fetch_of(file: Any) -> Fetch:
    if isinstance(file, AbstractBufferedFile) and type(file)._fetch_range is not AbstractBufferedFile._fetch_range:
        return file._fetch_range  # type: ignore[no-any-return]
    if hasattr(file, "readv"):  # paramiko: many requests at once, while `read` waits for each 32 KiB
        return lambda start, end: b"".join(file.readv([(start, end - start)]))
    return _Seeking(file)


class _Seeking:
    """Fetches by `seek` and `read`, in pieces: webdav4 and zipfile copy all they have for each block they add.

    `seek` is left out where it is not needed: some begin a new request for it."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._offset = 0

    def __call__(self, start: int, end: int) -> bytes:
        if start != self._offset:
            self._file.seek(start)
        pieces = []
        self._offset = start
        while self._offset < end and (piece := self._file.read(min(end - self._offset, FILE_BYTES))):
            pieces.append(piece)
            self._offset += len(piece)
        return b"".join(pieces)
