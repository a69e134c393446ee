"""`Buffer`: the whole of a file while it is written, or while it is open where there are no ranges.

In memory up to `MEMORY_BYTES`, in an unnamed sparse temporary file beyond, so that many large files don't add up in
memory. Thread-safe: a writer waits while the buffer is `frozen` for an upload.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import BinaryIO

from fusebackend.protocol.versions import Digest

MEMORY_BYTES = 8 << 20

_PIECE_BYTES = 1 << 20


class Buffer:
    """Bytes that can be read, written and resized anywhere. What was never written reads as zeros.

    Attributes:
        tail_from: the size from which on it holds what the remote does not, if it was only appended to.
    """

    def __init__(self, data: bytes | memoryview = b"", *, spill_bytes: int = MEMORY_BYTES) -> None:
        self._spill_bytes = spill_bytes
        self._lock = threading.RLock()
        self._memory = bytearray()
        self._file: BinaryIO | None = None
        self.size = 0
        self.tail_from: int | None = None
        self.write(0, data)

    @classmethod
    def of(cls, pieces: Iterable[bytes | memoryview]) -> Buffer:
        """A buffer with these bytes."""
        buffer = cls()
        try:
            for piece in pieces:
                buffer.write(buffer.size, piece)
        except BaseException:
            buffer.close()
            raise
        return buffer

    def read(self, offset: int, size: int) -> bytes:
        with self._lock:
            if self._file is None:
                return bytes(self._memory[offset : offset + size])
            pieces = []
            while size > 0 and (piece := os.pread(self._file.fileno(), size, offset)):
                pieces.append(piece)
                offset += len(piece)
                size -= len(piece)
            return b"".join(pieces)

    def write(self, offset: int, data: bytes | memoryview) -> None:
        if not data:
            return
        with self._lock:
            if offset > self.size:
                self.resize(offset)
            end = offset + len(data)
            self._make_room(end)
            if self._file is None:
                self._memory[offset:end] = data
            else:
                _write_all(self._file.fileno(), data, offset)
            self.size = max(self.size, end)

    def resize(self, size: int) -> None:
        with self._lock:
            self._make_room(size)
            if self._file is not None:
                os.ftruncate(self._file.fileno(), size)
            elif size < self.size:
                del self._memory[size:]
            else:
                self._memory.extend(bytes(size - self.size))
            self.size = size

    def _make_room(self, size: int) -> None:
        if self._file is None and size > self._spill_bytes:
            file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed by `close`
            try:
                _write_all(file.fileno(), self._memory, 0)
            except BaseException:
                file.close()
                raise
            self._file, self._memory = file, bytearray()

    def pieces(self, offset: int = 0) -> Iterator[bytes]:
        """The bytes from an offset to the end."""
        while piece := self.read(offset, _PIECE_BYTES):
            yield piece
            offset += len(piece)

    def digest(self) -> bytes:
        digest = Digest()
        for _ in digest.passing(self.pieces()):
            pass
        return digest.value()

    @contextmanager
    def frozen(self) -> Iterator[memoryview]:
        """The bytes as one view, without a copy in memory.

        Writers wait until it is closed: a mapped file that is cut short kills the process that reads it.
        """
        with self._lock:
            if self._file is None or not self.size:
                yield memoryview(bytes(self._memory))
                return
            mapped = mmap.mmap(self._file.fileno(), self.size, prot=mmap.PROT_READ)
            view = memoryview(mapped)
            try:
                yield view
            finally:
                try:
                    view.release()
                    mapped.close()
                except BufferError:  # a store in memory keeps the view itself; a request may not quite have ended
                    copy = Buffer.of(self.pieces())  # the file is still mapped, and so may never change
                    self._file.close()
                    self._file, self._memory = copy._file, copy._memory

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                self._file.close()


def _write_all(descriptor: int, data: bytes | bytearray | memoryview, offset: int) -> None:
    """A disk that is nearly full takes a part, and says so only the next time."""
    view = memoryview(data)
    while view:
        done = os.pwrite(descriptor, view, offset)
        view = view[done:]
        offset += done
