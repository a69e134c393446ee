"""What the storage of a native volume has in memory: inodes and chunks.

Files are kept in chunks: one `Chunk` knows its bytes and which of them are not stored yet. `ChunkCache` has some.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass

from fusebackend.base.recent import RecentBytes
from fusebackend.protocol import BLOCK_BYTES, Attr

MAX_FILE_BYTES = (1 << 63) - 1
"""The largest offset `off_t` can hold."""

CHUNK_SHIFT = 16
CHUNK_BYTES = 1 << CHUNK_SHIFT
"""Files are kept in chunks of 64 KiB: a multiple of the page size, small enough to rewrite, large enough to stream."""

ALLOCATION_BYTES = 4096
"""`st_blocks` grows in these steps, as on most disks."""


def allocated_blocks(size: int) -> int:
    """Blocks of `BLOCK_BYTES` that `size` bytes of one chunk take."""
    return -(-size // ALLOCATION_BYTES) * (ALLOCATION_BYTES // BLOCK_BYTES)


def cut_out(chunks: Mapping[int, bytes | bytearray], offset: int, end: int) -> bytes:
    """Part of a file, up to `end`, which is not beyond its own. Chunks are given by their index; one that is not there
    is a hole."""
    pieces: list[bytes | bytearray] = []
    while offset < end:
        start = offset & (CHUNK_BYTES - 1)
        length = min(end - offset, CHUNK_BYTES - start)
        piece = chunks.get(offset >> CHUNK_SHIFT, b"")[start : start + length]
        pieces.append(piece)
        if len(piece) < length:
            pieces.append(bytes(length - len(piece)))
        offset += length
    return bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)


@dataclass(slots=True, eq=False)
class Inode(Attr):
    """An `Attr` that the volume changes in place, with fields that the kernel does not see."""

    _: KW_ONLY
    parent: int = 0  # of a directory, which has one name; 0 for anything else
    opens: int = 0  # open handles …
    unnoted: int = 0  # … and those of them that were opened with O_NOATIME
    xattrs: dict[bytes, bytes] | None = None  # None until they are asked for


class Chunk:
    """Up to `CHUNK_BYTES` of a file. Bytes beyond the end of `data` are zeros. `low`..`high` is not stored yet."""

    __slots__ = ("counted_bytes", "data", "high", "low", "row", "stored_bytes")

    def __init__(self, data: bytes | bytearray = b"", row: int = 0) -> None:
        self.data = data  # bytes as loaded, a bytearray once written to
        self.row = row  # where the storage keeps it; 0 for nowhere yet
        self.stored_bytes = len(data) if row else -1  # of what is copied up, nothing is: a failed flush gives it a row
        self.counted_bytes = 0  # its share of the bytes that wait to be stored
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


CHUNK_COST_BYTES = 512
"""What a chunk takes in memory besides its bytes, roughly."""

ChunkCache = RecentBytes[tuple[int, int], Chunk]
"""Chunks by file and index."""
