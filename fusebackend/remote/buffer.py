"""`Buffer`: the whole of a file while it is open, for backends that take and give whole files only.

In memory up to `spill_bytes`, in an unnamed temporary file beyond, so that many large files don't add up in memory.
Not thread-safe: the volume's lock is held around each call.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from typing import BinaryIO

MEMORY_BYTES = 8 << 20

_PIECE_BYTES = 1 << 20


def digest_of(data: bytes) -> bytes:
    """What `Buffer.digest` is for these bytes."""
    return hashlib.blake2b(data, digest_size=20).digest()


class Buffer:
    """Bytes that can be read, written and resized anywhere. What was never written reads as zeros."""

    def __init__(self, data: bytes = b"", *, spill_bytes: int = MEMORY_BYTES) -> None:
        self._spill_bytes = spill_bytes
        self._memory = bytearray()
        self._file: BinaryIO | None = None
        self.size = 0
        self.write(0, data)

    def read(self, offset: int, size: int) -> bytes:
        if self._file is None:
            return bytes(self._memory[offset : offset + size])
        pieces = []
        while size > 0 and (piece := os.pread(self._file.fileno(), size, offset)):
            pieces.append(piece)
            offset += len(piece)
            size -= len(piece)
        return b"".join(pieces)

    def write(self, offset: int, data: bytes) -> None:
        if not data:
            return
        if offset > self.size:
            self.resize(offset)
        end = offset + len(data)
        self._make_room(end)
        if self._file is None:
            self._memory[offset:end] = data
        else:
            view = memoryview(data)
            while view:
                done = os.pwrite(self._file.fileno(), view, offset)
                view = view[done:]
                offset += done
        self.size = max(self.size, end)

    def resize(self, size: int) -> None:
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
                view = memoryview(self._memory)
                while view:  # a disk that is nearly full takes a part of it, and says so only the next time
                    view = view[file.write(view) :]
            except BaseException:
                file.close()
                raise
            self._file, self._memory = file, bytearray()

    def pieces(self) -> Iterator[bytes]:
        for offset in range(0, self.size, _PIECE_BYTES):
            yield self.read(offset, min(_PIECE_BYTES, self.size - offset))

    def digest(self) -> bytes:
        digest = hashlib.blake2b(digest_size=20)
        for piece in self.pieces():
            digest.update(piece)
        return digest.digest()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
