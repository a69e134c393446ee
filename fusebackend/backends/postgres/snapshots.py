"""The snapshots of a PostgreSQL volume: the list of them, and each as a read-only volume.

`old_rows.py` says how they are kept. Any host takes, deletes and reads them. The list is read at each call, which so
sees what other hosts have taken and deleted. After a deletion elsewhere a read is ESTALE, unless the caches here have
all of its answer.
"""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Callable, Sequence

from fusebackend.backends.postgres import old_rows
from fusebackend.backends.postgres.statements import StoredInode
from fusebackend.backends.postgres.transaction import Transaction, gone
from fusebackend.base import waiting
from fusebackend.base.errors import oserror
from fusebackend.base.paths import to_name, to_text
from fusebackend.base.stamps import now_ns
from fusebackend.databases.pipeline import Rows
from fusebackend.protocol import Features, Snapshot
from fusebackend.volumes.damage import is_in_range
from fusebackend.volumes.frozen import StoredSnapshot
from fusebackend.volumes.storage import CHUNK_COST_BYTES, CHUNK_SHIFT, Chunk, Inode, cut_out

Query = Callable[[str, Sequence[object]], Rows]


class PostgresSnapshot(StoredSnapshot):
    """A snapshot of a volume. Any number of reads run at once.

    Args:
        query: runs a statement.
    """

    features = Features(blocking=True, read_only=True)

    def __init__(self, volume: int, taken: Snapshot, query: Query) -> None:
        super().__init__(taken, f"volume {volume} of the database", threading.Lock())
        self.lock = contextlib.nullcontext()
        self._volume = volume
        self._query = query

    def _ask(self, query: str, *key: object) -> Rows:
        """The rows that it has; each query of `old_rows` answers at least one."""
        self._require()
        rows = self._query(query, (*key, self._volume, self.taken.number))
        if not rows:
            self.is_deleted = True
        self._require()
        return rows

    # -- inodes and names --------------------------------------------------------------------------------------

    def _read_inode(self, node: int) -> Inode:
        (row,) = self._ask(old_rows.INODE, node)
        if row[0] is None:
            raise gone()
        return StoredInode.sound(row, self._damage)

    def _child(self, parent: int, name: bytes) -> int | None:
        ((node, *row),) = self._ask(old_rows.FOUND, parent, name)
        if node is None:
            return None
        if row[0] is None:
            self._damage.tell(f"name {name!r} in inode {parent} leads to inode {node}, which does not exist")
            raise oserror(errno.EIO, name)
        self._damage.require_entry(parent, name, self._kept(StoredInode.sound(row, self._damage)))
        return int(node)

    def _children(self, parent: int, after: bytes, limit: int) -> list[tuple[bytes, int]]:
        self._directory(parent)
        rows = self._ask(old_rows.LISTED, parent, after, limit)
        named = [row for row in rows if row[0] is not None]
        for row in named:
            if row[2] is not None and is_in_range(row[2:14]):
                self._kept(StoredInode.of(row[2:]))
        return [(row[0], row[1]) for row in named]

    def _xattrs(self, inode: Inode) -> dict[bytes, bytes]:
        assert isinstance(inode, StoredInode)
        return inode.unpacked()

    # -- bytes -------------------------------------------------------------------------------------------------

    def _get(self, inode: Inode, offset: int, size: int) -> bytes:
        end = min(offset + size, inode.size)
        chunks = self._read_chunks(inode.node, offset >> CHUNK_SHIFT, (end - 1) >> CHUNK_SHIFT) if offset < end else {}
        return cut_out({index: chunk.data for index, chunk in chunks.items()}, offset, end)

    def _read_chunks(self, node: int, first: int, last: int) -> dict[int, Chunk]:
        """Chunks by their index, those that are missing with one query."""
        self._require()
        with self._guard:
            found = {index: self._chunks.get((node, index)) for index in range(first, last + 1)}
        missing = [index for index, chunk in found.items() if chunk is None]
        if missing:
            for index, data in self._ask(old_rows.CHUNKS, node, missing[0], missing[-1]):
                if index is not None and found[index] is None:
                    found[index] = Chunk(data)
            with self._guard:
                for index in missing:
                    chunk = found[index]
                    if chunk is not None and (node, index) not in self._chunks.kept:
                        self._chunks.put((node, index), chunk, len(chunk.data) + CHUNK_COST_BYTES)
        return {index: chunk for index, chunk in found.items() if chunk is not None}

    def _chunk(self, node: int, index: int) -> Chunk | None:
        return self._read_chunks(node, index, index).get(index)

    def _next_chunk(self, node: int, index: int) -> int | None:
        ((found,),) = self._ask(old_rows.NEXT_CHUNK, node, index)
        return None if found is None else int(found)


_LIST = """
SELECT v.taken, s.name, s.number, s.time_ns
FROM fusebackend.volume v LEFT JOIN fusebackend.snapshot s ON s.volume = v.id WHERE v.id = %s ORDER BY s.number
"""
_COUNT = "SELECT nextval('fusebackend.snapshot_changes')", ()
_TAKE = """
WITH numbered AS (
    UPDATE fusebackend.volume SET taken = taken + 1, newest = taken + 1
    WHERE id = %s AND NOT EXISTS (SELECT FROM fusebackend.snapshot WHERE volume = %s AND name = %s) RETURNING taken
)
INSERT INTO fusebackend.snapshot (volume, number, name, time_ns)
SELECT %s, taken, %s, greatest(%s, (SELECT time_ns FROM fusebackend.snapshot WHERE volume = %s
    ORDER BY number DESC LIMIT 1)) FROM numbered RETURNING number, time_ns
"""
_DELETE = """
WITH gone AS (
    DELETE FROM fusebackend.snapshot WHERE volume = %s AND name = %s RETURNING volume, number
), noted AS (
    INSERT INTO fusebackend.pruning (volume, first, last) SELECT v.id, g.number, coalesce((
        SELECT number - 1 FROM fusebackend.snapshot s WHERE s.volume = v.id AND s.number > g.number
        ORDER BY number LIMIT 1), v.taken) FROM gone g JOIN fusebackend.volume v ON v.id = g.volume
)
UPDATE fusebackend.volume v SET newest = coalesce((
    SELECT number FROM fusebackend.snapshot s WHERE s.volume = v.id AND s.number <> gone.number
    ORDER BY number DESC LIMIT 1), 0) FROM gone WHERE v.id = gone.volume RETURNING gone.number
"""


class PostgresSnapshots:
    """The list of a volume's snapshots. Any thread may call any method.

    Args:
        query: runs a statement.
        ask: runs one that is short, with the session's connection: when one of 64 hosts without users takes a snapshot,
            the others open no connection to hear of it.

    Attributes:
        taken: how many were ever taken, as of the last look.
    """

    def __init__(self, volume: int, query: Query, ask: Query) -> None:
        self._volume = volume
        self._query = query
        self._ask = ask
        self._guard = waiting.Lock()  # held while the list is read: what is read later is newer
        self.taken = 0
        self._views: dict[int, PostgresSnapshot] = {}
        self._seen: set[Snapshot] = set()  # by callers of `all`, of those that were there at the last `news` or later
        self._told: set[Snapshot] = set()  # those that were there at the last `news`

    def all(self) -> list[Snapshot]:
        """Those that exist, in the order of their numbers. ESTALE where the volume is gone."""
        with self._guard:
            rows = self._ask(_LIST, (self._volume,))
            if not rows:
                raise gone()
            self.taken = rows[0][0]
            found = [Snapshot(to_text(name), number, time_ns) for _, name, number, time_ns in rows if name is not None]
            self._seen.update(found)
            # A crash of the server may take one, and the next one has its number.
            for view in [view for view in self._views.values() if view.taken not in found]:
                self._views.pop(view.taken.number).is_deleted = True
            return found

    def news(self) -> list[str]:
        """Return the names of those that are new since the last call, and of those that were seen and are deleted."""
        with self._guard:
            found = set(self.all())
            changed = (found - self._told) | (self._seen - found)
            self._told, self._seen = found, set(found)
        return list({each.name: None for each in changed})

    def take(self, transaction: Transaction, name: str) -> Snapshot:
        """Take one, in a transaction that has the volume for itself.

        Raises:
            FileExistsError: there is one of that name.
        """
        transaction.ask(_COUNT)
        at = to_name(name)
        time_ns = now_ns(exact=True)
        volume = self._volume
        rows = transaction.ask((_TAKE, (volume, volume, at, volume, at, time_ns, volume)))
        if not rows:
            raise FileExistsError(errno.EEXIST, f"there is a snapshot '{name}' already")
        return Snapshot(name, *rows[0])

    def delete(self, transaction: Transaction, name: str) -> int:
        """Delete one, in a transaction that has the volume for itself. Returns its number.

        Raises:
            FileNotFoundError: there is none of that name.
        """
        transaction.ask(_COUNT)
        rows = transaction.ask((_DELETE, (self._volume, to_name(name))))
        if not rows:
            raise _none(name)
        return int(rows[0][0])

    def deleted(self, number: int) -> None:
        """The deletion of one has been committed."""
        with self._guard:
            view = self._views.pop(number, None)
        if view is not None:
            view.is_deleted = True

    def forget_cached(self) -> None:
        """Rows of snapshots have changed: read them again."""
        with self._guard:
            views = list(self._views.values())
        for view in views:
            view.forget_cached()

    def view(self, name: str) -> PostgresSnapshot:
        """A snapshot as a volume."""
        with self._guard:
            taken = next((each for each in self.all() if each.name == name), None)
            if taken is None:
                raise _none(name)
            view = self._views.get(taken.number)
            if view is None:
                view = self._views[taken.number] = PostgresSnapshot(self._volume, taken, self._query)
            return view


def _none(name: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, f"there is no snapshot '{name}'")
