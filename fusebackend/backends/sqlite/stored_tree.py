"""`StoredTree`: what an SQLite volume holds, looked for in the overlay, then in memory, then in its file.

It answers `TreeStorage`'s questions and never writes to the file; `backend.py` decides when the overlay is written, and
calls `_settle` when it has been. Every method is called with the volume's lock held.
"""

from __future__ import annotations

import abc
import contextlib
import errno
import itertools
import logging
import sqlite3
from collections import OrderedDict
from collections.abc import Iterable, Iterator

from fusebackend.backends.sqlite.dirty import Overlay
from fusebackend.backends.sqlite.schema import LAST_NODE
from fusebackend.base import heap
from fusebackend.base.errors import oserror
from fusebackend.volumes.chunks import CHUNK_BYTES, CHUNK_SHIFT, Chunk, ChunkCache, allocated_blocks
from fusebackend.volumes.damage import Damage, is_sound
from fusebackend.volumes.posix import TreeVolume
from fusebackend.volumes.storage import Inode

log = logging.getLogger(__name__)

CACHE_INODES = 20_000
CACHE_NAMES = 4_096
CACHE_BYTES = 16 << 20
"""Bounds of what is kept in memory though the file has it: some 10 MiB of inodes, 1 of names, and 16 MiB of chunks."""

MAX_ROW = (1 << 63) - (1 << 40)
"""Rows of `chunk` are numbered up to this, and a little further: SQLite has 2^63."""

_INODE_FIELDS = "node, mode, nlink, uid, gid, rdev, size, blocks, atime_ns, mtime_ns, ctime_ns, parent"
_ERRNO_OF_SQLITE = {sqlite3.SQLITE_FULL: errno.ENOSPC, sqlite3.SQLITE_READONLY: errno.EROFS}


@contextlib.contextmanager
def sqlite_errors() -> Iterator[None]:
    """A database error becomes an `OSError`: ENOSPC and EROFS where they are meant, EIO for all else, logged."""
    try:
        yield
    except sqlite3.Error as error:
        number = _ERRNO_OF_SQLITE.get(getattr(error, "sqlite_errorcode", 0) & 0xFF, errno.EIO)
        log.error("the volume file failed: %s (%s)", error, getattr(error, "sqlite_errorname", "no code"))
        raise oserror(number) from error


class StoredTree(TreeVolume):
    """See the module's docstring. Raises `OSError` when the file can't be read.

    Args:
        db: the volume's connection to its file.
        path: the file, for the log.
    """

    def __init__(self, db: sqlite3.Connection, path: str) -> None:
        super().__init__()
        self._db = db
        self._damage = Damage(f"the volume file {path}")
        self._overlay = Overlay()
        self._inodes: OrderedDict[int, Inode] = OrderedDict()
        # None for a name that the file does not have: the kernel looks before it creates.
        self._names: OrderedDict[tuple[int, bytes], int | None] = OrderedDict()
        self._chunks = ChunkCache(CACHE_BYTES)
        self._unstored: set[int] = set()  # nodes the file has no row for yet
        self._leaving: set[int] = set()  # nodes that were to be let go of while their changes waited
        self._peak_held = 0  # the most nodes the kernel has known since memory was last given back
        # A number that is in use already would overwrite what has it, so the table has a say as well.
        self._stored_next_node = self._scalar("SELECT value FROM meta WHERE key = 'next_node'")
        highest = max(self._stored_next_node - 1, self._scalar("SELECT max(node) FROM inode"))
        self._next_node = highest + 1 if highest < LAST_NODE else self._after_gap("inode", "node", LAST_NODE)
        last = self._scalar("SELECT max(id) FROM chunk")
        self._rows = itertools.count(last + 1 if last < MAX_ROW else self._after_gap("chunk", "id", MAX_ROW))

    @abc.abstractmethod
    def _note(self, items: int, size: int) -> None:
        """The overlay has grown by so many things to write, and so many bytes."""

    # -- storage: inodes ---------------------------------------------------------------------------------------

    def _inode(self, node: int) -> Inode:
        inode = self._inodes.get(node)
        if inode is not None:
            self._inodes.move_to_end(node)  # what an operation has in hand is never let go of by `_shrink_inodes`
        else:
            with sqlite_errors():
                row = self._db.execute(f"SELECT {_INODE_FIELDS} FROM inode WHERE node = ?", (node,)).fetchone()
            if row is None or node in self._overlay.dead:
                raise oserror(errno.ESTALE)
            if not is_sound(row):
                self._damage.tell(f"inode {node} has {row[1:]!r}")
                raise oserror(errno.EIO)
            inode = self._inodes[node] = _inode_from(row)
            self._renewed(inode)  # the file has no versions: it may have been another one when it was here before
            if len(self._inodes) > CACHE_INODES:
                self._shrink_inodes()
        return inode

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
        if inode.node not in self._overlay.inodes:
            # Also where it is looked for: a walk up a very deep tree may have let go of what a rename has in hand.
            self._overlay.inodes[inode.node] = self._inodes[inode.node] = inode
            self._note(1, 0)

    def _let_go(self, node: int) -> None:
        inode = self._inodes.get(node)
        overlay = self._overlay
        if node in overlay.inodes or node in overlay.xattrs:
            self._leaving.add(node)
        elif inode is not None and inode.opens == 0:
            del self._inodes[node]

    def _drop(self, inode: Inode) -> None:
        node, overlay = inode.node, self._overlay
        overlay.inodes.pop(node, None)
        overlay.xattrs.pop(node, None)
        overlay.cuts.pop(node, None)
        overlay.contents.discard(node)
        self._pop_chunks(node, 0, inode.size)
        self._inodes.pop(node, None)
        if node in self._unstored:
            self._unstored.discard(node)
            overlay.names.pop(node, None)
        else:
            overlay.dead.add(node)
            self._note(1, 0)

    def forget(self, nodes: Iterable[int]) -> None:
        with self.lock:
            self._peak_held = max(self._peak_held, len(self._held))
            super().forget(nodes)
            if heap.is_mostly_empty(len(self._held), self._peak_held):
                self._shrink_all()

    def _shrink_all(self) -> None:
        """The kernel has dropped most of what it knew: so do we, for what is left would keep all memory around it."""
        self._names.clear()
        self._chunks.clear()
        self._held = set(self._held)
        self._peak_held = len(self._held)
        heap.give_back()

    # -- storage: names ----------------------------------------------------------------------------------------

    def _child(self, parent: int, name: bytes) -> int | None:
        names = self._overlay.names.get(parent)
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
        if len(self._names) > CACHE_NAMES:
            self._names.popitem(last=False)
        return node

    def _sound_entry(self, parent: int, name: bytes, node: int) -> int:
        """What the file has under a name; EIO where it is damaged."""
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
        return self._damage.entries(directory, children, self._inode)

    def _empty(self, inode: Inode, name: bytes) -> None:
        """Names that are not shown keep a directory from being removed: what they lead to would be lost."""
        children = self._children(inode.node, b"", 1)
        if children and not self._entries(inode.node, children):
            raise oserror(errno.EIO, name)
        super()._empty(inode, name)

    def _set_child(self, parent: int, name: bytes, node: int | None) -> None:
        self._names.pop((parent, name), None)
        names = self._overlay.names.setdefault(parent, {})
        if node is None and parent in self._unstored:
            names.pop(name, None)  # the file never had it
            return
        if name not in names:
            self._note(1, 0)
        names[name] = node

    def _children(self, parent: int, after: bytes, limit: int) -> list[tuple[bytes, int]]:
        self._directory(parent)
        changed = {name: node for name, node in self._overlay.names.get(parent, {}).items() if name > after}
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

    def _chunk(self, node: int, index: int) -> Chunk | None:
        key = (node, index)
        chunk = self._overlay.chunks.get(key)
        if chunk is not None:
            return chunk
        chunk = self._chunks.get(key)
        if chunk is not None:
            return chunk
        cut = self._overlay.cuts.get(node)
        if (cut is not None and index >= cut) or node in self._unstored:
            return None
        with sqlite_errors():
            row = self._db.execute("SELECT id, data FROM chunk WHERE node = ? AND idx = ?", key).fetchone()
        if row is None:
            return None
        if type(row[1]) is not bytes or len(row[1]) > CHUNK_BYTES:
            self._damage.tell(f"chunk {index} of inode {node} is not up to {CHUNK_BYTES} bytes")
            raise oserror(errno.EIO)
        chunk = Chunk(row[1], row[0])
        self._chunks.put(key, chunk)
        return chunk

    def _next_chunk(self, node: int, index: int) -> int | None:
        if (node, index) in self._overlay.chunks or (node, index) in self._chunks:
            return index
        found = [other for holder, other in self._overlay.chunks if holder == node and other >= index]
        if node not in self._unstored:
            with sqlite_errors():
                query = "SELECT min(idx) FROM chunk WHERE node = ? AND idx >= ?"
                stored = self._db.execute(query, (node, index)).fetchone()[0]
            if stored is not None and stored < self._overlay.cuts.get(node, stored + 1):
                found.append(stored)
        return min(found, default=None)

    def _new_chunk(self, node: int, index: int) -> Chunk:
        return Chunk()

    def _chunk_changed(self, node: int, index: int, chunk: Chunk) -> None:
        key = (node, index)
        if key not in self._overlay.chunks:
            self._overlay.chunks[key] = chunk
            self._overlay.contents.add(node)
            self._chunks.pop(key)
            chunk.counted_bytes = 0
            self._note(1, 0)
        if len(chunk.data) > chunk.counted_bytes:  # a chunk that is appended to grows while it is here
            self._overlay.bytes += len(chunk.data) - chunk.counted_bytes
            chunk.counted_bytes = len(chunk.data)

    def _resize(self, inode: Inode, size: int) -> None:
        super()._resize(inode, size)
        self._overlay.contents.add(inode.node)  # also where no chunk has changed: zeros make it no text, or text again

    def _drop_chunks(self, node: int, first: int) -> int:
        """See `TreeVolume`. Chunks that only the file knows are counted there."""
        popped = self._pop_chunks(node, first, self._inodes[node].size)
        freed = sum(map(allocated_blocks, popped.values()))
        if node not in self._unstored:
            cut = self._overlay.cuts.get(node)
            with sqlite_errors():
                rows = self._db.execute(
                    "SELECT idx, length(data) FROM chunk WHERE node = ? AND idx >= ?", (node, first)
                )
                freed += sum(
                    allocated_blocks(size)
                    for index, size in rows
                    if index not in popped and (cut is None or index < cut)
                )
            self._overlay.cuts[node] = first if cut is None else min(cut, first)
            self._note(1, 0)
        return freed

    def _pop_chunks(self, node: int, first: int, size: int) -> dict[int, int]:
        """Take the chunks of a file of `size` bytes from index `first` on out of memory; gives index → bytes."""
        last = max(size - 1, 0) >> CHUNK_SHIFT
        popped = {}
        for table in (self._overlay.chunks, self._chunks):
            if last - first < len(table):
                keys = [(node, index) for index in range(first, last + 1) if (node, index) in table]
            else:
                keys = [key for key in table if key[0] == node and key[1] >= first]
            for key in keys:
                chunk = table.pop(key)
                assert chunk is not None
                popped[key[1]] = len(chunk.data)
        return popped

    # -- storage: extended attributes --------------------------------------------------------------------------

    def _xattrs(self, inode: Inode) -> dict[bytes, bytes]:
        if inode.xattrs is None:
            with sqlite_errors():
                rows = self._db.execute("SELECT name, value FROM xattr WHERE node = ?", (inode.node,)).fetchall()
            inode.xattrs = {name: value for name, value in rows if type(name) is type(value) is bytes}
            if len(inode.xattrs) < len(rows):
                self._damage.tell(f"an extended attribute of inode {inode.node} is not kept as bytes")
        return inode.xattrs

    def _xattrs_changed(self, inode: Inode) -> None:
        self._overlay.xattrs[inode.node] = inode
        self._note(1, sum(map(len, (inode.xattrs or {}).values())))

    # -- after a flush -----------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """The overlay is in the file: what it held is now clean, and kept only as far as the caches go."""
        overlay = self._overlay
        for key, chunk in overlay.chunks.items():
            chunk.low, chunk.high, chunk.stored_bytes = CHUNK_BYTES, 0, len(chunk.data)
            self._chunks.put(key, chunk)
        for parent, names in overlay.names.items():
            self._names.update({(parent, name): node for name, node in names.items()})
        while len(self._names) > CACHE_NAMES:
            self._names.popitem(last=False)
        self._unstored.clear()
        self._stored_next_node = self._next_node
        self._overlay = Overlay()
        leaving, self._leaving = self._leaving, set()
        for node in leaving - self._held:
            self._let_go(node)
        if len(self._inodes) > CACHE_INODES:
            self._shrink_inodes()

    def _shrink_inodes(self) -> None:
        """Let go of the oldest half of the inodes that the file has and nobody has open.

        One that the kernel holds may go too, unless it has no name left: then its row alone can't say who holds it.
        """
        keep = self._overlay.inodes, self._overlay.xattrs
        for inode in list(self._inodes.values())[: CACHE_INODES // 2]:
            if inode.opens == 0 and inode.nlink > 0 and not any(inode.node in table for table in keep):
                del self._inodes[inode.node]

    def _scalar(self, query: str) -> int:
        """The one number a query gives; 0 for NULL, for no row and for what is no number."""
        with sqlite_errors():
            row = self._db.execute(query).fetchone()
        return row[0] if row is not None and type(row[0]) is int else 0

    def _after_gap(self, table: str, column: str, last: int) -> int:
        """Where to go on with numbers when damage has taken the last one: in the widest gap there is, to `last`."""
        self._damage.tell(f"the last number that a row of {table} can have is taken")
        return self._scalar(f"""
            SELECT {column} + 1 FROM (
                SELECT {column}, lead({column}, 1, {last + 1}) OVER (ORDER BY {column}) AS following FROM (
                    SELECT 0 AS {column} UNION ALL SELECT {column} FROM {table} WHERE {column} BETWEEN 1 AND {last}))
            ORDER BY following - {column} DESC LIMIT 1""")


def _inode_from(row: tuple[int, ...]) -> Inode:
    inode = Inode(row[0], row[1], parent=row[11])
    (
        inode.nlink, inode.uid, inode.gid, inode.rdev, inode.size, inode.blocks,
        inode.atime_ns, inode.mtime_ns, inode.ctime_ns,
    ) = row[2:11]  # fmt: skip
    return inode
