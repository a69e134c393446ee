"""`SqliteTree`: the storage of an SQLite volume: the dirty buffer first, then caches, then the file.

It implements the storage of `TreeVolume` and never writes to the file; `backend.py` decides when the `DirtyBuffer` is
flushed, and calls `_flushed` afterwards. Every method is called with the volume's lock held.
"""

from __future__ import annotations

import abc
import contextlib
import errno
import logging
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, NamedTuple

from fusebackend.backends.sqlite.old_rows import INODE_COLUMNS, NewestRows, keep
from fusebackend.backends.sqlite.schema import LAST_NODE
from fusebackend.base import heap
from fusebackend.base.errors import oserror
from fusebackend.base.recent import Recent
from fusebackend.databases.sqlite import errno_of
from fusebackend.volumes.damage import Damage, is_sound
from fusebackend.volumes.posix import TreeVolume
from fusebackend.volumes.storage import (
    CHUNK_BYTES,
    CHUNK_COST_BYTES,
    CHUNK_SHIFT,
    Chunk,
    ChunkCache,
    Inode,
    allocated_blocks,
)

log = logging.getLogger(__name__)

CACHE_INODES = 20_000
CACHE_NAMES = 4_096
CACHE_BYTES = 16 << 20
"""Bounds of the caches: some 10 MiB of inodes, 1 MiB of names, and 16 MiB of chunks."""

PATCH_BYTES = 16 << 10
"""Up to so many bytes for a stored chunk wait without the rest of it; with more, the chunk is read."""

PATCH_ITEMS = 2
"""Such bytes count as so many items of the dirty buffer: writing them takes 50 µs."""

READ_TOGETHER = 512
"""Inodes that one query reads."""

MAX_ROW = (1 << 63) - (1 << 40)
"""Rows of `chunk` are numbered up to this, and a little further: SQLite has 2^63."""

_CHUNK = "SELECT id, data FROM place JOIN chunk ON id = chunk WHERE place.node = ? AND place.idx = ?"
_LENGTH = """SELECT CASE typeof(data) WHEN 'blob' THEN length(data) END FROM place JOIN chunk ON id = chunk
    WHERE place.node = ? AND place.idx = ?"""
_LENGTHS = "SELECT place.idx, length(data) FROM place JOIN chunk ON id = chunk WHERE place.node = ? AND place.idx >= ?"


@contextlib.contextmanager
def sqlite_errors() -> Iterator[None]:
    """Log a database error and raise it as ENOSPC, EROFS or EIO: of an open file, other errnos would mislead."""
    try:
        yield
    except sqlite3.Error as error:
        number = errno_of(error)
        log.error("the volume file failed: %s (%s)", error, getattr(error, "sqlite_errorname", "no code"))
        raise oserror(number if number in (errno.ENOSPC, errno.EROFS) else errno.EIO) from error


# -- changes in memory -------------------------------------------------------------------------------------------
#
# `Delta`: changes of a volume's rows that wait in memory; and how a record of the sync log holds them.
#
# One is the dirty buffer: all changes since the last flush. Another one is `SqliteTree._unlogged`: those since the last
# record or flush, which are in the dirty buffer as well. Both are noted with the volume's lock held.


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


@dataclass(eq=False)
class Delta:
    """Changes by what they are of."""

    inodes: dict[int, Inode] = field(default_factory=dict)
    names: dict[int, dict[bytes, int | None]] = field(default_factory=dict)
    """Parent → name → node, None where the name is gone."""
    chunks: dict[tuple[int, int], Chunk] = field(default_factory=dict)
    patches: dict[tuple[int, int], Patch] = field(default_factory=dict)
    """Of chunks that are neither above nor in the cache."""
    cuts: dict[int, int] = field(default_factory=dict)
    """Node → first chunk index that the file still has and that is gone."""
    xattrs: dict[int, Inode] = field(default_factory=dict)
    dead: set[int] = field(default_factory=set)
    """Nodes that the file still has and that are gone."""

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


row_of: Callable[[Inode], tuple[int, ...]] = attrgetter("node", *INODE_COLUMNS.split(", "))
"""Returns the row of an inode in the table."""


def decode(record: bytes) -> Changes:
    """Return the changes of a record whose checksum was right."""
    import msgspec

    return msgspec.msgpack.decode(record, type=Changes)


@dataclass(eq=False)
class DirtyBuffer(Delta):
    """The changes that are not in the file yet. Replaced by a new one only after a `write` was committed."""

    logged: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    """Bytes of `chunks` in the sync log: low, high."""
    contents: set[int] = field(default_factory=set)
    """Nodes with changed bytes, for the index."""
    bytes: int = 0
    items: int = 0
    """Changes that were noted, also of what is gone again. Without any there is nothing to be written."""

    def is_change(self, since_ns: int) -> bool:
        """Return True if there is more here than access times: reading a file is none for `SnapshotVolume`."""
        if self.names or self.chunks or self.patches or self.cuts or self.xattrs or self.dead:
            return True
        return any(inode.ctime_ns >= since_ns for inode in self.inodes.values())

    def write(self, db: sqlite3.Connection, new_row: Callable[[], int], newest: NewestRows) -> None:
        """Write everything, inside the caller's transaction, and keep what a snapshot has. Deletions come first.

        Args:
            new_row: gives an unused number for a row of `chunk`.
            newest: which rows may be in a snapshot.
        """
        cuts = [*self.cuts.items(), *((node, 0) for node in self.dead)]
        if newest.until:
            places = [*self.chunks, *self.patches]
            keep(db, newest, {*self.inodes, *self.xattrs, *self.dead}, self.names, places, cuts)
        # Chunks that a snapshot may have stay, without a place.
        gone = "DELETE FROM chunk WHERE id IN (SELECT chunk FROM place WHERE chunk >= ? AND node = ? AND idx >= ?)"
        db.executemany(gone, [(newest.chunk, *cut) for cut in cuts])
        db.executemany("DELETE FROM place WHERE node = ? AND idx >= ?", cuts)
        for table in ("inode", "xattr", "unindexed"):
            db.executemany(f"DELETE FROM {table} WHERE node = ?", [(node,) for node in self.dead])
        names = [(parent, name, node) for parent, below in self.names.items() for name, node in below.items()]
        db.executemany("DELETE FROM dentry WHERE parent = ? AND name = ?", [row[:2] for row in names if row[2] is None])
        here = [row for row in names if row[2] is not None]
        db.executemany("INSERT OR REPLACE INTO dentry VALUES (?, ?, ?)", here)
        db.executemany(
            "INSERT OR REPLACE INTO inode VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [row_of(inode) for inode in self.inodes.values()],
        )
        if self.chunks:
            self._write_chunks(db, new_row, newest.chunk)
        if self.patches:
            self._write_patches(db, new_row, newest.chunk)
        now = time.time_ns()
        db.executemany("INSERT OR REPLACE INTO unindexed VALUES (?, ?)", [(node, now) for node in self.contents])
        for node, inode in self.xattrs.items():
            db.execute("DELETE FROM xattr WHERE node = ?", (node,))
            rows = [(node, name, value) for name, value in (inode.xattrs or {}).items()]
            db.executemany("INSERT INTO xattr VALUES (?, ?, ?)", rows)

    def were_logged(self, unlogged: Delta) -> None:
        """The changed bytes of these chunks are in the sync log now."""
        for key, chunk in unlogged.chunks.items():
            low, high = self.logged.get(key, (CHUNK_BYTES, 0))
            self.logged[key] = min(low, chunk.low), max(high, chunk.high)
            chunk.low, chunk.high = CHUNK_BYTES, 0
        for patch in unlogged.patches.values():
            patch.logged = len(patch.pieces)

    def _write_chunks(self, db: sqlite3.Connection, new_row: Callable[[], int], first_own: int) -> None:
        """Small changes of stored chunks are written in place; the rest as whole rows.

        A row below `first_own` may be a snapshot's: the chunk gets another one.
        """
        whole: list[tuple[int, int, int, bytes | bytearray]] = []
        for (node, index), chunk in self.chunks.items():
            size = len(chunk.data)
            if chunk.row < first_own:
                chunk.row, chunk.stored_bytes = 0, -1
            low, high = chunk.low, chunk.high
            if (logged := self.logged.get((node, index))) is not None:
                low, high = min(low, logged[0]), max(high, logged[1])
            if chunk.row and size == chunk.stored_bytes and high - low <= size // 2:
                with db.blobopen("chunk", "data", chunk.row) as blob:
                    blob.seek(low)
                    blob.write(chunk.data[low:high])
                continue
            if not chunk.row:
                # The number is spent even if this transaction fails: the chunk keeps it for the next one.
                chunk.row = new_row()
            whole.append((chunk.row, node, index, chunk.data))
        db.executemany("INSERT OR REPLACE INTO chunk VALUES (?, ?, ?, ?)", whole)
        places = ((node, index, row) for row, node, index, _ in whole)
        db.executemany("INSERT OR REPLACE INTO place VALUES (?, ?, ?)", places)

    def _write_patches(self, db: sqlite3.Connection, new_row: Callable[[], int], first_own: int) -> None:
        """Write bytes into stored chunks. A row below `first_own` may be a snapshot's: the chunk gets another one."""
        for (node, index), patch in sorted(self.patches.items()):
            (row,) = db.execute("SELECT chunk FROM place WHERE node = ? AND idx = ?", (node, index)).fetchone()
            if row < first_own:
                (data,) = db.execute("SELECT data FROM chunk WHERE id = ?", (row,)).fetchone()
                chunk = Chunk(data)
                patch.apply(chunk)
                row = new_row()
                db.execute("INSERT INTO chunk VALUES (?, ?, ?, ?)", (row, node, index, chunk.data))
                db.execute("INSERT OR REPLACE INTO place VALUES (?, ?, ?)", (node, index, row))
                continue
            with db.blobopen("chunk", "data", row) as blob:
                for start, piece in patch.pieces:
                    blob.seek(start)
                    blob.write(piece)


# -- the tree ----------------------------------------------------------------------------------------------------


class SqliteTree(TreeVolume):
    """See the module's docstring. Raises `OSError` when the file can't be read.

    Args:
        db: the volume's connection to its file.
        path: the file.
    """

    _buffer: type[DirtyBuffer] = DirtyBuffer
    """The kind of its dirty buffer."""
    keeps_patches = True
    """Whether a few bytes for a stored chunk wait without the rest of it. Not where chunks are elsewhere as well."""

    def __init__(self, db: sqlite3.Connection, path: str) -> None:
        super().__init__()
        self.path = path
        self._db = db
        self._damage = Damage(f"the volume file {path}")
        self._dirty = self._buffer()
        self._unlogged = Delta()
        self._inodes: OrderedDict[int, Inode] = OrderedDict()
        # None for a name that the file does not have: the kernel looks before it creates.
        self._names: Recent[tuple[int, bytes], int | None] = Recent(CACHE_NAMES)
        self._chunks = self.byte_cache = ChunkCache(CACHE_BYTES)
        self._unstored: set[int] = set()  # nodes the file has no row for yet
        self._leaving: set[int] = set()  # nodes to be dropped from memory after the next flush
        self._peak_held = 0  # the most nodes the kernel has known since memory was last given back
        # `meta` may be damaged: a number that is in use already would overwrite its row.
        self._stored_next_node = self._scalar("SELECT value FROM meta WHERE key = 'next_node'")
        highest = max(self._stored_next_node - 1, self._scalar("SELECT max(node) FROM inode"))
        self._next_node = highest + 1 if highest < LAST_NODE else self._after_gap("inode", "node", LAST_NODE)
        # A snapshot has the numbers below its own, also of rows that have gone.
        last = max(self._scalar("SELECT max(id) FROM chunk"), self._scalar("SELECT max(next_chunk) - 1 FROM snapshot"))
        self._next_row = last + 1 if last < MAX_ROW else self._after_gap("chunk", "id", MAX_ROW)

    @abc.abstractmethod
    def _note(self, items: int, size: int) -> None:
        """The dirty buffer has grown by so many items, and so many bytes."""

    @abc.abstractmethod
    def write_back(self) -> None:
        """Write the dirty buffer to the file."""

    # -- storage: inodes ---------------------------------------------------------------------------------------

    def _prepare(self, inode: Inode, names: bool = False) -> None:
        if self._quota is not None:
            self._xattrs(inode)  # what they count goes with the last name

    def _inode(self, node: int) -> Inode:
        inode = self._inodes.get(node)
        if inode is not None:
            self._inodes.move_to_end(node)  # `_shrink_inodes` drops none that an operation uses
        else:
            with sqlite_errors():
                row = self._db.execute(f"SELECT node, {INODE_COLUMNS} FROM inode WHERE node = ?", (node,)).fetchone()
            if row is None or node in self._dirty.dead:
                raise oserror(errno.ESTALE)
            inode = self._inodes[node] = inode_of(self._damage, row)
            self._renewed(inode)  # the file has no versions: it may have changed since it was dropped
            if len(self._inodes) > CACHE_INODES:
                self._shrink_inodes()
        return inode

    def _new_row(self) -> int:
        self._next_row += 1
        return self._next_row - 1

    def _new_inode(self, mode: int, parent: int) -> Inode:
        node = self._next_node
        if node > LAST_NODE:
            raise oserror(errno.ENOSPC)
        self._next_node += 1
        inode = self._inodes[node] = Inode(node, mode, parent=parent)
        inode.xattrs = {}
        self._unstored.add(node)
        return inode

    def _changed(self, inode: Inode) -> None:
        if inode.node in self._unlogged.inodes:
            return
        self._unlogged.inodes[inode.node] = inode
        if inode.node not in self._dirty.inodes:
            # In the cache as well: a walk up a very deep tree may have dropped an inode that a rename uses.
            self._dirty.inodes[inode.node] = self._inodes[inode.node] = inode
            self._note(1, 0)

    def _let_go(self, node: int) -> None:
        inode = self._inodes.get(node)
        if inode is not None and self._may_leave(inode):
            del self._inodes[node]
        elif node in self._dirty.inodes or node in self._dirty.xattrs:
            self._leaving.add(node)

    def _may_leave(self, inode: Inode) -> bool:
        """Return True for an inode that need not be in memory: it is stored, and not open."""
        return inode.opens == 0 and not (inode.node in self._dirty.inodes or inode.node in self._dirty.xattrs)

    def _drop(self, inode: Inode) -> None:
        node, dirty = inode.node, self._dirty
        for delta in (dirty, self._unlogged):
            delta.inodes.pop(node, None)
            delta.xattrs.pop(node, None)
            delta.cuts.pop(node, None)
        dirty.contents.discard(node)
        self._unlogged.dead.add(node)
        self._pop_chunks(node, 0, inode.size)
        self._inodes.pop(node, None)
        if node in self._unstored:
            self._unstored.discard(node)
            dirty.names.pop(node, None)
        else:
            dirty.dead.add(node)
            self._note(1, 0)

    def forget(self, nodes: Iterable[int]) -> None:
        with self.lock:
            self._peak_held = max(self._peak_held, len(self._held))
            super().forget(nodes)
            if heap.is_mostly_empty(len(self._held), self._peak_held):
                self._shrink_all()

    def _shrink_all(self) -> None:
        """The kernel has dropped most of its inodes: drop the caches, for a few objects keep much memory in use."""
        self._names.clear()
        self._chunks.clear()
        self._held = set(self._held)
        self._peak_held = len(self._held)
        heap.give_back()

    # -- storage: names ----------------------------------------------------------------------------------------

    def _child(self, parent: int, name: bytes) -> int | None:
        names = self._dirty.names.get(parent)
        if names is not None and name in names:
            return names[name]
        if parent in self._unstored:
            return None
        key = (parent, name)
        if key in self._names:
            return self._names[key]
        with sqlite_errors():
            row = self._db.execute("SELECT node FROM dentry WHERE parent = ? AND name = ?", key).fetchone()
        node = None if row is None else self._sound_entry(parent, name, row[0])
        self._names[key] = node
        return node

    def find(self, parent: int, name: bytes) -> Inode | None:
        with self.lock:
            node = self._child(parent, name)
            if node is None:
                self._directory(parent)
                return None
            return self._inode(node)

    def _sound_entry(self, parent: int, name: bytes, node: int) -> int:
        """The node that the file has under a name; EIO where it is damaged."""
        try:
            inode = self._inode(node)
        except OSError as error:
            if error.errno == errno.ESTALE:
                self._damage.tell(f"name {name!r} in inode {parent} leads to inode {node!r}, which does not exist")
                raise oserror(errno.EIO, name) from None
            raise
        self._damage.require_entry(parent, name, inode)
        return node

    def _entries(self, directory: int, children: list[tuple[bytes, int]]) -> list[tuple[bytes, Inode]]:
        self._read_inodes([node for _, node in children if node not in self._inodes])
        return self._damage.entries(directory, children, self._inode)

    def _read_inodes(self, nodes: list[int]) -> None:
        """Read the inodes of a page of a listing together: a query for each takes most of a listing's time.

        Those that are damaged, or not there, are left to `_inode`, which says so.
        """
        for first in range(0, len(nodes), READ_TOGETHER):
            some = nodes[first : first + READ_TOGETHER]
            query = f"SELECT node, {INODE_COLUMNS} FROM inode WHERE node IN ({', '.join('?' * len(some))})"
            with sqlite_errors():
                rows = self._db.execute(query, some).fetchall()
            for row in rows:
                if is_sound(row) and row[0] not in self._dirty.dead:
                    inode = self._inodes[row[0]] = _inode_of(row)
                    self._renewed(inode)
            if len(self._inodes) > CACHE_INODES:
                self._shrink_inodes()

    def _empty(self, inode: Inode, name: bytes) -> None:
        """Names that are not shown keep a directory from being removed: their files would be lost."""
        children = self._children(inode.node, b"", 1)
        if children and not self._entries(inode.node, children):
            raise oserror(errno.EIO, name)
        super()._empty(inode, name)

    def _set_child(self, parent: int, name: bytes, node: int | None) -> None:
        self._names.pop((parent, name), None)
        self._unlogged.names.setdefault(parent, {})[name] = node
        names = self._dirty.names.setdefault(parent, {})
        if node is None and parent in self._unstored:
            names.pop(name, None)  # the file never had it
            return
        if name not in names:
            self._note(1, 0)
        names[name] = node

    def _children(self, parent: int, after: bytes, limit: int) -> list[tuple[bytes, int]]:
        self._directory(parent)
        changed = {name: node for name, node in self._dirty.names.get(parent, {}).items() if name > after}
        # The file still has the removed names: so many rows hold `limit` that stay, or reach the end.
        rows = limit + sum(node is None for node in changed.values())
        with sqlite_errors():
            stored = self._db.execute(
                "SELECT name, node FROM dentry WHERE parent = ? AND name > ? ORDER BY name LIMIT ?",
                (parent, after, rows),
            ).fetchall()
        if not changed:
            return stored
        merged = dict(stored) | changed
        if len(stored) == rows:  # the file has more: only names up to the last one are known to be complete
            last = stored[-1][0]
            merged = {name: node for name, node in merged.items() if name <= last}
        return sorted((name, node) for name, node in merged.items() if node is not None)[:limit]

    # -- storage: chunks ---------------------------------------------------------------------------------------

    def peek(self, node: int, size: int) -> bytes:
        with self.lock:
            return self._get(self._inode(node), 0, size)

    def _chunk(self, node: int, index: int) -> Chunk | None:
        key = (node, index)
        chunk = self._dirty.chunks.get(key)
        if chunk is not None:
            return chunk
        chunk = self._chunks.get(key)
        if chunk is not None:
            return chunk
        if self._is_not_stored(node, index):
            return None
        with sqlite_errors():
            chunk = stored_chunk(self._db, self._damage, node, index)
        if chunk is not None:
            if key in self._dirty.patches:
                self._patch_whole(node, index, chunk)
            else:
                self._chunks.put(key, chunk, len(chunk.data) + CHUNK_COST_BYTES)
        return chunk

    def _is_not_stored(self, node: int, index: int) -> bool:
        """Return whether the file can't have a chunk there, or has one that is gone."""
        cut = self._dirty.cuts.get(node)
        return (cut is not None and index >= cut) or node in self._unstored

    def _put(self, inode: Inode, offset: int, data: bytes) -> None:
        """As in `TreeVolume`. A few bytes in place of others need not read the chunk they are in."""
        key = (inode.node, offset >> CHUNK_SHIFT)
        is_here = key in self._dirty.chunks or key in self._chunks.kept
        is_small = 0 < len(data) <= PATCH_BYTES and offset + len(data) <= inode.size
        if is_here or not (is_small and self.keeps_patches and self._put_patch(key, offset & (CHUNK_BYTES - 1), data)):
            super()._put(inode, offset, data)

    def _put_patch(self, key: tuple[int, int], start: int, data: bytes) -> bool:
        """Keep bytes for a chunk that is not in memory; False where none is stored, and for many bytes."""
        patch = self._dirty.patches.get(key)
        if patch is None:
            if self._is_not_stored(*key):
                return False
            with sqlite_errors():
                row = self._db.execute(_LENGTH, key).fetchone()
            if row is None or type(row[0]) is not int or row[0] > CHUNK_BYTES:
                return False
            patch = Patch(row[0])
        if start + len(data) > patch.chunk_bytes or patch.bytes + len(data) > PATCH_BYTES:
            return False
        if not patch.pieces:
            self._dirty.patches[key] = patch
            self._dirty.contents.add(key[0])
            self._note(PATCH_ITEMS, 0)
        patch.pieces.append((start, bytes(data)))
        patch.bytes += len(data)
        self._dirty.bytes += len(data)
        self._unlogged.patches[key] = patch
        return True

    def _patch_whole(self, node: int, index: int, chunk: Chunk) -> None:
        """The chunk of a patch has been read: it is a changed one now."""
        patch = self._dirty.patches.pop((node, index))
        self._unlogged.patches.pop((node, index), None)
        self._dirty.bytes -= patch.bytes
        patch.apply(chunk)
        self._chunk_changed(node, index, chunk)

    def _next_chunk(self, node: int, index: int) -> int | None:
        if (node, index) in self._dirty.chunks or (node, index) in self._chunks.kept:
            return index
        found = [other for holder, other in self._dirty.chunks if holder == node and other >= index]
        if node not in self._unstored:
            with sqlite_errors():
                query = "SELECT min(idx) FROM place WHERE node = ? AND idx >= ?"
                stored = self._db.execute(query, (node, index)).fetchone()[0]
            if stored is not None and stored < self._dirty.cuts.get(node, stored + 1):
                found.append(stored)
        return min(found, default=None)

    def _indices(self, node: int, first: int, last: int) -> set[int]:
        """Return which chunks a file has, from index `first` up to `last`. None is loaded."""
        found = {index for holder, index in self._dirty.chunks if holder == node and first <= index <= last}
        if node not in self._unstored:
            cut = self._dirty.cuts.get(node, last + 1)
            with sqlite_errors():
                query = "SELECT idx FROM place WHERE node = ? AND idx >= ? AND idx <= ?"
                found.update(row[0] for row in self._db.execute(query, (node, first, min(last, cut - 1))))
        return found

    def _chunk_changed(self, node: int, index: int, chunk: Chunk) -> None:
        key = (node, index)
        if key not in self._unlogged.chunks:
            self._unlogged.chunks[key] = chunk
            if key not in self._dirty.chunks:
                self._dirty.chunks[key] = chunk
                self._dirty.contents.add(node)
                self._chunks.pop(key)
                chunk.counted_bytes = 0
                self._note(1, 0)
        if len(chunk.data) > chunk.counted_bytes:  # a chunk that is appended to grows while it is here
            self._dirty.bytes += len(chunk.data) - chunk.counted_bytes
            chunk.counted_bytes = len(chunk.data)

    def _resize(self, inode: Inode, size: int) -> None:
        super()._resize(inode, size)
        self._dirty.contents.add(inode.node)  # also where no chunk has changed: zeros make it no text, or text again

    def _drop_chunks(self, node: int, first: int) -> int:
        """As in `TreeVolume`. Chunks that are only in the file are counted there."""
        stored: dict[int, int] = {}
        cut = self._dirty.cuts.get(node)
        if node not in self._unstored:
            with sqlite_errors():
                rows = self._db.execute(_LENGTHS, (node, first))
                stored = {index: size for index, size in rows if cut is None or index < cut}
            self._dirty.cuts[node] = first if cut is None else min(cut, first)
            self._note(1, 0)
        self._unlogged.cuts[node] = min(first, self._unlogged.cuts.get(node, first))
        lengths = stored | self._pop_chunks(node, first, self._inodes[node].size)
        return sum(map(allocated_blocks, lengths.values()))

    def _pop_chunks(self, node: int, first: int, size: int) -> dict[int, int]:
        """Take the chunks of a file of `size` bytes from index `first` on out of memory; gives index → bytes."""
        last = max(size - 1, 0) >> CHUNK_SHIFT
        indices: Iterable[int] = range(first, last + 1)
        tables: tuple[Mapping[tuple[int, int], object], ...]
        tables = self._dirty.patches, self._dirty.chunks, self._chunks.kept
        if last - first > sum(len(table) for table in tables):  # a file of holes, mostly
            indices = {index for table in tables for holder, index in table if holder == node and index >= first}
        popped = {}
        for index in indices:
            key = (node, index)
            patch = self._dirty.patches.pop(key, None)
            if patch is not None:
                self._dirty.bytes -= patch.bytes
                self._unlogged.patches.pop(key, None)
            chunk = self._dirty.chunks.pop(key, None) or self._chunks.pop(key)
            if chunk is not None:
                popped[index] = len(chunk.data)
                self._unlogged.chunks.pop(key, None)
                self._dirty.logged.pop(key, None)
        return popped

    # -- storage: extended attributes --------------------------------------------------------------------------

    def _xattrs(self, inode: Inode) -> dict[bytes, bytes]:
        if inode.xattrs is None:
            with sqlite_errors():
                rows = self._db.execute("SELECT name, value FROM xattr WHERE node = ?", (inode.node,)).fetchall()
            inode.xattrs = xattrs_of(self._damage, inode.node, rows)
        return inode.xattrs

    def _xattrs_changed(self, inode: Inode) -> None:
        self._dirty.xattrs[inode.node] = self._unlogged.xattrs[inode.node] = inode
        self._note(1, sum(map(len, (inode.xattrs or {}).values())))

    # -- after a flush -----------------------------------------------------------------------------------------

    def _flushed(self) -> None:
        """The dirty buffer is in the file: its contents are clean now, and go into the caches."""
        dirty = self._dirty
        for key, chunk in dirty.chunks.items():
            chunk.low, chunk.high, chunk.stored_bytes = CHUNK_BYTES, 0, len(chunk.data)
            self._chunks.put(key, chunk, len(chunk.data) + CHUNK_COST_BYTES)
        for parent, names in dirty.names.items():
            self._names.update({(parent, name): node for name, node in names.items()})
        self._unstored.clear()
        self._stored_next_node = self._next_node
        self._dirty = self._buffer()
        self._unlogged = Delta()
        leaving, self._leaving = self._leaving, set()
        for node in leaving - self._held:
            self._let_go(node)
        if len(self._inodes) > CACHE_INODES:
            self._shrink_inodes()

    def _shrink_inodes(self) -> None:
        """Drop the oldest half of the inodes that may leave.

        An inode that the kernel holds may go too, unless it has no name left: its row does not tell that it is held.
        """
        for inode in list(self._inodes.values())[: CACHE_INODES // 2]:
            if inode.nlink > 0 and self._may_leave(inode):
                del self._inodes[inode.node]

    def _scalar(self, query: str) -> int:
        """The one number of a query's result; 0 for NULL, for no row and for anything else."""
        with sqlite_errors():
            row = self._db.execute(query).fetchone()
        return row[0] if row is not None and type(row[0]) is int else 0

    def _after_gap(self, table: str, column: str, last: int) -> int:
        """The next number when damage has taken the last one: in the widest gap up to `last`."""
        self._damage.tell(f"the last number that a row of {table} can have is taken")
        return self._scalar(f"""
            SELECT {column} + 1 FROM (
                SELECT {column}, lead({column}, 1, {last + 1}) OVER (ORDER BY {column}) AS following FROM (
                    SELECT 0 AS {column} UNION ALL SELECT {column} FROM {table} WHERE {column} BETWEEN 1 AND {last}))
            ORDER BY following - {column} DESC LIMIT 1""")


def inode_of(damage: Damage, row: tuple[int, ...]) -> Inode:
    """Return the inode of a row; EIO for a damaged one."""
    if not is_sound(row):
        raise damage.of_inode(row)
    return _inode_of(row)


def _inode_of(row: tuple[int, ...]) -> Inode:
    inode = Inode(row[0], row[1], parent=row[11])
    (
        inode.nlink, inode.uid, inode.gid, inode.rdev, inode.size, inode.blocks,
        inode.atime_ns, inode.mtime_ns, inode.ctime_ns,
    ) = row[2:11]  # fmt: skip
    return inode


def stored_chunk(db: sqlite3.Connection, damage: Damage, node: int, index: int) -> Chunk | None:
    """Return the chunk that the file has there, None for a hole; EIO for a damaged one."""
    row = db.execute(_CHUNK, (node, index)).fetchone()
    return None if row is None else chunk_of(damage, node, index, row)


def chunk_of(damage: Damage, node: int, index: int, row: tuple[int, bytes]) -> Chunk:
    """Return the chunk of a row with its id and data; EIO for a damaged one."""
    if type(row[1]) is not bytes or len(row[1]) > CHUNK_BYTES:
        damage.tell(f"chunk {index} of inode {node} is not up to {CHUNK_BYTES} bytes")
        raise oserror(errno.EIO)
    return Chunk(row[1], row[0])


def xattrs_of(damage: Damage, node: int, rows: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return the extended attributes of rows, but those that are damaged."""
    found = {name: value for name, value in rows if type(name) is type(value) is bytes}
    if len(found) < len(rows):
        damage.tell(f"an extended attribute of inode {node} is not kept as bytes")
    return found
