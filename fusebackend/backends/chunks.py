"""Files are kept in chunks: one `Chunk` knows its bytes and which of them are not stored yet."""

from __future__ import annotations

from fusebackend.protocol import BLOCK_BYTES

CHUNK_SHIFT = 16
CHUNK_BYTES = 1 << CHUNK_SHIFT
"""Files are kept in chunks of 64 KiB: a multiple of the page size, small enough to rewrite, large enough to stream."""

ALLOCATION_BYTES = 4096
"""`st_blocks` grows in these steps, as on most disks."""


def allocated_blocks(size: int) -> int:
    """Blocks of `BLOCK_BYTES` that `size` bytes of one chunk take."""
    return -(-size // ALLOCATION_BYTES) * (ALLOCATION_BYTES // BLOCK_BYTES)


class Chunk:
    """Up to `CHUNK_BYTES` of a file. Bytes beyond the end of `data` are zeros. `low`..`high` is not stored yet."""

    __slots__ = ("counted_bytes", "data", "high", "low", "row", "stored_bytes")

    def __init__(self, data: bytes | bytearray = b"", row: int = 0) -> None:
        self.data = data  # bytes as loaded, a bytearray once written to
        self.row = row  # where the storage keeps it; 0 for nowhere yet
        self.stored_bytes = len(data)
        self.counted_bytes = 0  # how much of what waits to be stored it is
        self.low = CHUNK_BYTES
        self.high = 0

    def put(self, start: int, piece: bytes | memoryview) -> None:
        data = self.data
        if not isinstance(data, bytearray):
            data = self.data = bytearray(data)
        if start > len(data):
            self.low = min(self.low, len(data))
            data.extend(bytes(start - len(data)))
        end = start + len(piece)
        data[start:end] = piece
        if start < self.low:
            self.low = start
        if end > self.high:
            self.high = end

    def cut(self, size: int) -> None:
        if size < len(self.data):
            self.data = bytearray(self.data[:size])
            self.low, self.high = 0, size
