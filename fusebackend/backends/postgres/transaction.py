"""`Transaction`: one change of a volume, from the rows it decides on to the commit.

It begins with one round trip, which locks and fetches the rows that the rules need (`Wanted`), and ends with another,
which writes the changed rows, notifies other hosts and commits. In between it answers `TreeStorage`: inodes, names,
chunks and extended attributes, from memory first, and then from the tables.

Locks. A single operation takes `CHANGE_LOCK` shared, and locks the rows of the inodes it decides on: that of
a directory stands for its names, that of a file for its chunks and attributes. A rename from one directory to another
takes `RENAME_LOCK` as well, so that two of them on two hosts can't make a ring. A change of several operations
(`exclusive`) has `CHANGE_LOCK` for itself and locks no rows: no other change of the volume is under way.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fusebackend.backends.postgres import statements
from fusebackend.backends.postgres.statements import StoredInode
from fusebackend.base.errors import oserror
from fusebackend.databases.pipeline import BEGIN, COMMIT, Rows, Statement, rollback, send
from fusebackend.databases.postgres import errno_of
from fusebackend.protocol import Change
from fusebackend.volumes.chunks import CHUNK_BYTES, CHUNK_SHIFT, Chunk

if TYPE_CHECKING:
    from psycopg import Connection

MAX_PENDING_BYTES = 8 << 20
"""More than this is written before the commit: a change of several operations may be of any size."""


def gone() -> OSError:
    return oserror(errno.ESTALE)


@dataclass(frozen=True)
class Wanted:
    """The rows that an operation needs."""

    nodes: tuple[int, ...] = ()
    entries: tuple[tuple[int, bytes], ...] = ()
    """Names, with the inodes under them. Their directories are locked, too."""
    empty: bool = False
    """Whether the last of the names is that of an empty directory."""
    line: tuple[int, ...] = ()
    """These directories' ancestors."""
    rename: bool = False
    write: tuple[int, int, int] | None = None
    """The chunks of a node that are changed by writing so many bytes at an offset."""
    read: tuple[int, int, int] | None = None
    """The chunks of a node, from the first index to the last."""
    append: int = 0
    """The last chunk of this node."""
    cut: tuple[int, int] | None = None
    """The blocks that a node loses when it gets this size."""
    xattrs: int = 0
    """All extended attributes of this node."""


class Transaction:
    """See the module's docstring. Used by one thread, between `begin` and `commit` or `rollback`."""

    def __init__(
        self, connection: Connection[Any], volume: int, version: int, *, exclusive: bool = False, begun: bool = False
    ) -> None:
        self._connection = connection
        self._volume = volume
        self._exclusive = exclusive
        self.version = version  # of all that this changes
        self._inodes: dict[int, StoredInode] = {}
        self._names: dict[tuple[int, bytes], int | None] = {}
        self._chunks: dict[tuple[int, int], Chunk | None] = {}
        self._parents: dict[int, int] = {}
        self._empty: set[int] = set()  # directories that have no names in the table
        self._freed: dict[tuple[int, int], int] = {}
        self._begun = begun
        self._failed = False  # the server would answer a commit with a rollback
        # Changes that are not in the tables yet:
        self._changed: dict[int, StoredInode] = {}
        self._set_names: dict[tuple[int, bytes], int | None] = {}
        self._set_chunks: dict[tuple[int, int], Chunk] = {}
        self._cuts: dict[int, int] = {}
        self._set_xattrs: dict[int, StoredInode] = {}
        self._nameless: dict[int, int] = {}  # node → the session that still uses it
        self._pending_bytes = 0
        self._changes: list[Change] = []

    # -- fetching ----------------------------------------------------------------------------------------------

    def fetch(self, wanted: Wanted) -> None:
        """Lock and fetch all of it in one round trip."""
        batch: list[tuple[Statement, Callable[[Rows], None] | None]] = []
        if not self._begun:
            self._begun = True
            batch.append((BEGIN, None))
            batch.append((statements.lock_changes(self._volume, self._exclusive), None))
        volume, lock = self._volume, not self._exclusive
        if wanted.rename and lock:
            batch.append((statements.lock_renames(volume), None))
        directories = {parent for parent, _ in wanted.entries}
        nodes = sorted(({*wanted.nodes} | directories) - self._inodes.keys())
        if nodes:
            batch.append((statements.inodes(volume, nodes, lock), self._take_inodes))
        entries = [entry for entry in wanted.entries if entry not in self._names]
        if entries:
            self._names.update(dict.fromkeys(entries))
            batch.append((statements.entries(volume, entries, lock), self._take_entries))
        if wanted.empty and not self._set_names:
            batch.append((statements.is_empty(volume, wanted.entries[-1]), self._take_empty))
        batch += [(statements.line(volume, node), self._take_line) for node in wanted.line]
        batch += [(statement, self._take_chunks) for statement in self._chunks_for(wanted)]
        if wanted.cut is not None and wanted.cut[0] not in {node for node, _ in self._set_chunks}:
            node, size = wanted.cut
            first = (size >> CHUNK_SHIFT) + bool(size & (CHUNK_BYTES - 1))
            batch.append((statements.freed(volume, node, first), lambda rows: self._take_freed(node, first, rows)))
        if wanted.xattrs and wanted.xattrs not in self._set_xattrs:
            batch.append((statements.xattrs(volume, wanted.xattrs), lambda c: self._take_xattrs(wanted.xattrs, c)))
        self._send(batch)

    def _chunks_for(self, wanted: Wanted) -> list[Statement]:
        """The chunks that will be changed in part, and the lengths of those that are replaced as a whole."""
        if wanted.append:
            return [statements.last_chunk(self._volume, wanted.append)]
        if wanted.cut is not None:
            node, size = wanted.cut
            if not size & (CHUNK_BYTES - 1) or (node, size >> CHUNK_SHIFT) in self._chunks:
                return []
            self._chunks[node, size >> CHUNK_SHIFT] = None
            return [statements.chunks(self._volume, node, size >> CHUNK_SHIFT, size >> CHUNK_SHIFT, [])]
        if wanted.read is not None:
            return self._missing_chunks(*wanted.read, offset=0, size=0)
        if wanted.write is None:
            return []
        node, offset, size = wanted.write
        first, last = offset >> CHUNK_SHIFT, (offset + max(size, 1) - 1) >> CHUNK_SHIFT
        return self._missing_chunks(node, first, last, offset, size)

    def _missing_chunks(self, node: int, first: int, last: int, offset: int, size: int) -> list[Statement]:
        """Chunks that are not in memory; without the bytes of those that `size` bytes at `offset` replace."""
        missing = [index for index in range(first, last + 1) if (node, index) not in self._chunks]
        if not missing or node in self._cuts:
            return []
        self._chunks.update({(node, index): None for index in missing})
        end = offset + size
        whole = [index for index in missing if offset <= index << CHUNK_SHIFT and (index + 1) << CHUNK_SHIFT <= end]
        return [statements.chunks(self._volume, node, missing[0], missing[-1], whole)]

    def _send(self, batch: Sequence[tuple[Statement, Callable[[Rows], None] | None]]) -> None:
        if not batch:
            return
        try:
            answers = send(self._connection, [statement for statement, _ in batch])
        except BaseException:
            self._failed = True
            raise
        for (_, take), rows in zip(batch, answers, strict=True):
            if take is not None:
                take(rows)

    def _take_inodes(self, rows: Rows) -> None:
        for row in rows:
            if row[0] not in self._inodes:
                self._inodes[row[0]] = StoredInode.of(row)

    def _take_entries(self, rows: Rows) -> None:
        for parent, name, *row in rows:
            self._names[parent, name] = row[0]
            if row[0] not in self._inodes:
                self._inodes[row[0]] = StoredInode.of(row)

    def _take_empty(self, rows: Rows) -> None:
        self._empty.update(node for (node,) in rows)

    def _take_line(self, rows: Rows) -> None:
        self._parents.update(rows)

    def _take_chunks(self, rows: Rows) -> None:
        """A chunk without bytes is about to be replaced as a whole: zeros stand in for it."""
        for node, index, size, data in rows:
            if self._chunks.get((node, index)) is None:
                self._chunks[node, index] = Chunk(bytes(size) if data is None else data)

    def _take_freed(self, node: int, first: int, rows: Rows) -> None:
        ((self._freed[node, first],),) = rows

    def _take_xattrs(self, node: int, rows: Rows) -> None:
        inode = self._inodes.get(node)
        if inode is not None and inode.xattrs is None:
            inode.xattrs = dict(rows)

    # -- storage -----------------------------------------------------------------------------------------------

    def inode(self, node: int) -> StoredInode:
        inode = self._inodes.get(node)
        if inode is None:
            self.fetch(Wanted(nodes=(node,)))
            inode = self._inodes.get(node)
            if inode is None:
                raise gone()
        return inode

    def known(self, node: int) -> StoredInode | None:
        """The inode, if it has been fetched. With each name its inode has been."""
        return self._inodes.get(node)

    def parent(self, node: int) -> int:
        if node in self._inodes:
            return self._inodes[node].parent
        if node not in self._parents:
            self.fetch(Wanted(line=(node,)))
        if node not in self._parents:
            raise gone()
        return self._parents[node]

    def add(self, inode: StoredInode) -> None:
        inode.xattrs = {}
        self._inodes[inode.node] = self._changed[inode.node] = inode
        self._empty.add(inode.node)

    def changed(self, inode: StoredInode) -> None:
        self._changed[inode.node] = inode

    def child(self, parent: int, name: bytes) -> int | None:
        if (parent, name) not in self._names:
            self.fetch(Wanted(entries=((parent, name),)))
        return self._names[parent, name]

    def set_child(self, parent: int, name: bytes, node: int | None) -> None:
        self._names[parent, name] = self._set_names[parent, name] = node
        if node is not None:
            self._empty.discard(parent)

    def children(self, parent: int, after: bytes, limit: int) -> list[tuple[bytes, int]]:
        if parent in self._empty:
            return []
        self.flush()
        found: list[tuple[bytes, int]] = []

        def take(rows: Rows) -> None:
            for name, *row in rows:
                found.append((name, row[0]))
                if row[0] not in self._inodes:
                    self._inodes[row[0]] = StoredInode.of(row)

        self._send([(statements.children(self._volume, parent, after, limit), take)])
        return found

    def chunk(self, node: int, index: int) -> Chunk | None:
        key = (node, index)
        if key not in self._chunks:
            if index >= self._cuts.get(node, index + 1):
                return None
            self._chunks[key] = None
            self._send([(statements.chunks(self._volume, node, index, index, []), self._take_chunks)])
        return self._chunks[key]

    def set_chunk(self, node: int, index: int, chunk: Chunk) -> None:
        key = (node, index)
        self._chunks[key] = chunk
        if key not in self._set_chunks:
            self._set_chunks[key] = chunk
            self._pending_bytes += CHUNK_BYTES

    def cut(self, node: int, first: int) -> int:
        """Forget chunks; returns the sum of their blocks."""
        if self._cuts.get(node) is not None or any(other == node for other, _ in self._set_chunks):
            self.flush()
        if (node, first) not in self._freed:
            self._send([(statements.freed(self._volume, node, first), lambda c: self._take_freed(node, first, c))])
        for key in [key for key in self._chunks if key[0] == node and key[1] >= first]:
            del self._chunks[key]
        freed = self._freed.pop((node, first))
        if freed:
            self._cuts[node] = first
        return freed

    def xattrs(self, inode: StoredInode) -> dict[bytes, bytes]:
        if inode.xattrs is None:
            self.fetch(Wanted(xattrs=inode.node))
        assert inode.xattrs is not None
        return inode.xattrs

    def set_xattrs(self, inode: StoredInode) -> None:
        self._set_xattrs[inode.node] = inode

    def set_nameless(self, node: int, session: int) -> None:
        self._nameless[node] = session

    # -- writing -----------------------------------------------------------------------------------------------

    @property
    def is_large(self) -> bool:
        return self._pending_bytes > MAX_PENDING_BYTES

    def flush(self) -> None:
        """Write the changes so far, without a commit."""
        self._send([(statement, None) for statement in self._writing()])
        for key in self._set_chunks:
            self._chunks.pop(key, None)  # fetched again when they are needed: they were many
        for table in (self._changed, self._set_names, self._set_chunks, self._cuts, self._set_xattrs, self._nameless):
            table.clear()
        self._freed.clear()
        self._pending_bytes = 0

    def commit(self, notify: Callable[[Sequence[Change]], list[Statement]]) -> None:
        """Write everything, notify other hosts and commit.

        Raises:
            psycopg.Error: nothing has been changed; or the connection was lost, and the outcome is unknown.
        """
        import psycopg

        if self._failed:
            raise oserror(errno.EIO)
        writing = self._writing()
        writing += notify(self._changes)
        try:
            self._send([(statement, None) for statement in [*writing, COMMIT]])
        except psycopg.OperationalError as error:
            if self._connection.closed:
                words = "PostgreSQL: the connection was lost while a change was being committed"
                raise OSError(errno_of(error), words) from error
            raise

    def rollback(self) -> None:
        """End it with nothing done."""
        rollback(self._connection)

    def _writing(self) -> list[Statement]:
        volume = self._volume
        self._changes += [Change(node=node) for node in self._changed]
        self._changes += [Change(node, parent, name) for (parent, name), node in self._set_names.items()]
        batch: list[Statement] = []
        gone = [key for key, node in self._set_names.items() if node is None]
        here = [(*key, node) for key, node in self._set_names.items() if node is not None]
        if gone:
            batch.append(statements.delete_names(volume, gone))
        if here:
            batch.append(statements.put_names(volume, here))
        batch += [statements.cut(volume, node, first) for node, first in self._cuts.items()]
        for inode in self._changed.values():
            inode.version = self.version
            inode.settle_times()
        added = [inode for inode in self._changed.values() if inode.is_new]
        updated = [inode for inode in self._changed.values() if not inode.is_new]
        if added:
            batch += statements.add_inodes(volume, added)
        if updated:
            batch += statements.update_inodes(volume, updated)
        if self._set_chunks:
            batch.append(statements.put_chunks(volume, self._set_chunks))
        for inode in self._set_xattrs.values():
            batch += statements.put_xattrs(volume, inode.node, inode.xattrs or {})
        if self._nameless:
            batch.append(statements.put_nameless(volume, self._nameless))
        for inode in added:
            inode.is_new = False
        return batch
