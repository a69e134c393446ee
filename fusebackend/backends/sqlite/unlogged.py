"""`Delta`: changes of a volume's rows that wait in memory; and how a record of the sync log holds them.

One is the dirty buffer: all changes since the last flush. Another one is `SqliteTree._unlogged`: those since the last
record or flush, which are in the dirty buffer as well. Both are noted with the volume's lock held.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from fusebackend.volumes.storage import Chunk, Inode

MAX_ITEMS: Final = 1000
"""With more changes than this a flush takes hardly longer than a record."""


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

    @property
    def new_pieces(self) -> Sequence[tuple[int, bytes]]:
        """Those that are not in the sync log."""
        return self.pieces[self.logged :]

    def apply(self, chunk: Chunk) -> None:
        for start, data in self.pieces:
            chunk.put(start, data)


class LoggedBytes(NamedTuple):
    """Bytes of a chunk from `offset` on, which then has `size` bytes."""

    node: int
    idx: int
    offset: int
    size: int
    data: bytes


class Changes(NamedTuple):
    """A record, in msgpack. The fields are those of `Delta`, but for the bytes: later ones over those before."""

    next_node: int
    dead: list[int]
    cuts: dict[int, int]
    names: dict[int, dict[bytes, int | None]]
    inodes: list[tuple[int, ...]]
    xattrs: dict[int, dict[bytes, bytes]]
    pieces: list[LoggedBytes]
    recorded: tuple[str, int] | None = None
    """What `SnapshotVolume.before_commit` has returned for them."""


class Delta:
    """Changes by what they are of."""

    def __init__(self) -> None:
        self.inodes: dict[int, Inode] = {}
        self.names: dict[int, dict[bytes, int | None]] = {}  # parent → name → node, None where the name is gone
        self.chunks: dict[tuple[int, int], Chunk] = {}
        self.patches: dict[tuple[int, int], Patch] = {}  # of chunks that are neither above nor in the cache
        self.cuts: dict[int, int] = {}  # node → first chunk index that the file still has and that is gone
        self.xattrs: dict[int, Inode] = {}
        self.dead: set[int] = set()  # nodes that the file still has and that are gone

    def __bool__(self) -> bool:
        contents = self.chunks or self.patches or self.cuts
        return bool(self.inodes or self.names or contents or self.xattrs or self.dead)

    def is_small(self, bound_bytes: int) -> bool:
        """Return whether a record would be worth it: not more items than `MAX_ITEMS`, nor bytes of chunks than this."""
        items = len(self.inodes) + len(self.names) + len(self.chunks) + len(self.patches) + len(self.dead)
        if items > MAX_ITEMS:
            return False
        size = sum(max(chunk.high - chunk.low, 0) for chunk in self.chunks.values())
        return size + sum(len(data) for patch in self.patches.values() for _, data in patch.new_pieces) <= bound_bytes

    def _pieces(self) -> Iterator[LoggedBytes]:
        """The changed bytes."""
        for (node, index), chunk in self.chunks.items():
            if chunk.high > chunk.low:
                data = bytes(memoryview(chunk.data)[chunk.low : chunk.high])
                yield LoggedBytes(node, index, chunk.low, len(chunk.data), data)
        for (node, index), patch in self.patches.items():
            for start, data in patch.new_pieces:
                yield LoggedBytes(node, index, start, patch.chunk_bytes, data)

    def encode(self, next_node: int, recorded: tuple[str, int] | None = None) -> bytes:
        """Return what `decode` takes."""
        import msgspec

        inodes = list(map(row_of, self.inodes.values()))
        xattrs = {node: inode.xattrs or {} for node, inode in self.xattrs.items()}
        pieces = list(self._pieces())
        changes = Changes(next_node, list(self.dead), self.cuts, self.names, inodes, xattrs, pieces, recorded)
        return msgspec.msgpack.encode(changes)


def row_of(inode: Inode) -> tuple[int, ...]:
    """Return the row of `inode` in the table."""
    return (
        inode.node, inode.mode, inode.nlink, inode.uid, inode.gid, inode.rdev, inode.size, inode.blocks,
        inode.atime_ns, inode.mtime_ns, inode.ctime_ns, inode.parent,
    )  # fmt: skip


def decode(record: bytes) -> Changes:
    """Return the changes of a record whose checksum was right."""
    import msgspec

    return msgspec.msgpack.decode(record, type=Changes)
