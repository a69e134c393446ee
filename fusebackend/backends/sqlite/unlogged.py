"""`Unlogged`: the changes since the last record of the sync log, or since the last flush; and how a record holds them.

All of them are in the dirty buffer as well. `StoredTree` notes each change here, with the volume's lock held.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from fusebackend.volumes.chunks import Chunk
from fusebackend.volumes.storage import Inode

MAX_ITEMS: Final = 1000
"""With more changes than this a flush takes hardly longer than a record."""

_COUNTS: Final = struct.Struct("<q6I")
_INODE: Final = struct.Struct("<12q")
_NAME: Final = struct.Struct("<qqH")
_XATTRS: Final = struct.Struct("<qI")
_XATTR: Final = struct.Struct("<II")
_NODE: Final = struct.Struct("<q")
_CUT: Final = struct.Struct("<qq")
_PIECE: Final = struct.Struct("<qqIII")  # node, index, offset, size of the chunk, bytes that follow


class Patch:
    """Bytes for a stored chunk that is not in memory. They lie inside it, so its size stays.

    Args:
        chunk_bytes: that size.
    """

    __slots__ = ("bytes", "chunk_bytes", "logged", "pieces")

    def __init__(self, chunk_bytes: int) -> None:
        self.chunk_bytes = chunk_bytes
        self.pieces: list[tuple[int, bytes]] = []
        """Offset in the chunk, and bytes: later ones over those before."""
        self.bytes = 0
        self.logged = 0
        """So many of the pieces are in the sync log."""

    def apply(self, chunk: Chunk) -> None:
        for start, data in self.pieces:
            chunk.put(start, data)


class Piece(NamedTuple):
    """Bytes of a chunk from `offset` on, which then has `size` bytes."""

    offset: int
    size: int
    data: bytes


class Changes(NamedTuple):
    """A record, decoded. The fields are those of `DirtyBuffer`."""

    next_node: int
    dead: list[int]
    cuts: dict[int, int]
    names: dict[int, dict[bytes, int | None]]
    inodes: list[tuple[int, ...]]
    xattrs: dict[int, dict[bytes, bytes]]
    pieces: list[tuple[int, int, Piece]]
    """Node, index, and the bytes: later ones over those before."""


class Unlogged:
    """Changes by what they are of; the fields are those of `DirtyBuffer`."""

    def __init__(self) -> None:
        self.inodes: dict[int, Inode] = {}
        self.names: dict[int, dict[bytes, int | None]] = {}
        self.chunks: dict[tuple[int, int], Chunk] = {}
        self.patches: dict[tuple[int, int], Patch] = {}
        self.cuts: dict[int, int] = {}
        self.xattrs: dict[int, Inode] = {}
        self.dead: set[int] = set()

    def __bool__(self) -> bool:
        contents = self.chunks or self.patches or self.cuts
        return bool(self.inodes or self.names or contents or self.xattrs or self.dead)

    def is_small(self, bound_bytes: int) -> bool:
        """Return whether a record would be worth it: not more items than `MAX_ITEMS`, nor bytes of chunks than this."""
        items = len(self.inodes) + len(self.names) + len(self.chunks) + len(self.patches) + len(self.dead)
        if items > MAX_ITEMS:
            return False
        return sum(len(data) for *_, data in self._pieces()) <= bound_bytes

    def _pieces(self) -> Iterator[tuple[int, int, int, int, memoryview | bytes]]:
        """The changed bytes, as node, index, offset, size of the chunk, bytes."""
        for (node, index), chunk in self.chunks.items():
            if chunk.high > chunk.low:
                yield node, index, chunk.low, len(chunk.data), memoryview(chunk.data)[chunk.low : chunk.high]
        for (node, index), patch in self.patches.items():
            for start, data in patch.pieces[patch.logged :]:
                yield node, index, start, patch.chunk_bytes, data

    def encode(self, next_node: int) -> bytes:
        """Return what `decode` takes."""
        names = [(parent, name, node) for parent, each in self.names.items() for name, node in each.items()]
        pieces = list(self._pieces())
        found: list[bytes | memoryview] = [
            _COUNTS.pack(
                next_node, len(self.dead), len(self.cuts), len(names), len(self.inodes), len(self.xattrs), len(pieces)
            )
        ]
        found += map(_NODE.pack, self.dead)
        found += [_CUT.pack(node, first) for node, first in self.cuts.items()]
        for parent, name, node in names:
            found += (_NAME.pack(parent, node or 0, len(name)), name)
        found += [_INODE.pack(*row_of(inode)) for inode in self.inodes.values()]
        for node, inode in self.xattrs.items():
            values = inode.xattrs or {}
            found.append(_XATTRS.pack(node, len(values)))
            for name, value in values.items():
                found += (_XATTR.pack(len(name), len(value)), name, value)
        for *where, data in pieces:
            found += (_PIECE.pack(*where, len(data)), data)
        return b"".join(found)


def row_of(inode: Inode) -> tuple[int, ...]:
    """Return the row of `inode` in the table."""
    return (
        inode.node, inode.mode, inode.nlink, inode.uid, inode.gid, inode.rdev, inode.size, inode.blocks,
        inode.atime_ns, inode.mtime_ns, inode.ctime_ns, inode.parent,
    )  # fmt: skip


class _Cursor:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, layout: struct.Struct) -> tuple[int, ...]:
        found = layout.unpack_from(self._data, self._at)
        self._at += layout.size
        return found

    def each(self, layout: struct.Struct, count: int) -> Iterator[tuple[int, ...]]:
        for _ in range(count):
            yield self.take(layout)

    def bytes(self, size: int) -> bytes:
        self._at += size
        return self._data[self._at - size : self._at]


def decode(record: bytes) -> Changes:
    """Return the changes of a record whose checksum was right."""
    cursor = _Cursor(record)
    next_node, dead, cuts, names, inodes, xattrs, pieces = cursor.take(_COUNTS)
    found = Changes(next_node, [node for (node,) in cursor.each(_NODE, dead)], {}, {}, [], {}, [])
    found.cuts.update((node, first) for node, first in cursor.each(_CUT, cuts))
    for parent, node, size in cursor.each(_NAME, names):
        found.names.setdefault(parent, {})[cursor.bytes(size)] = node or None
    found.inodes.extend(cursor.each(_INODE, inodes))
    for node, count in cursor.each(_XATTRS, xattrs):
        values = found.xattrs.setdefault(node, {})
        for name_bytes, value_bytes in cursor.each(_XATTR, count):
            name = cursor.bytes(name_bytes)
            values[name] = cursor.bytes(value_bytes)
    for node, index, offset, chunk_bytes, size in cursor.each(_PIECE, pieces):
        found.pieces.append((node, index, Piece(offset, chunk_bytes, cursor.bytes(size))))
    return found
