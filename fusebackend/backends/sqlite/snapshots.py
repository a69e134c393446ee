"""The snapshots of an SQLite volume: the list of them, and each as a read-only volume.

`old_rows.py` says how they are kept. A snapshot is read on a connection of its own, which all snapshots of a volume
share: neither face of the volume itself waits for it.
"""

from __future__ import annotations

import contextlib
import errno
import sqlite3
import threading
from collections.abc import Sequence
from typing import Any

from fusebackend.backends.sqlite import old_rows, schema
from fusebackend.backends.sqlite.old_rows import NewestRows
from fusebackend.backends.sqlite.stored_tree import chunk_of, inode_of, sqlite_errors, xattrs_of
from fusebackend.base.errors import oserror
from fusebackend.base.paths import to_name, to_text
from fusebackend.base.stamps import now_ns
from fusebackend.databases.sqlite import transaction
from fusebackend.protocol import Snapshot
from fusebackend.volumes.damage import Damage
from fusebackend.volumes.frozen import StoredSnapshot
from fusebackend.volumes.storage import CHUNK_COST_BYTES, Chunk, Inode


class SqliteSnapshot(StoredSnapshot):
    """A snapshot of a volume file."""

    def __init__(self, snapshot: Snapshot, snapshots: SqliteSnapshots) -> None:
        super().__init__(snapshot, f"the volume file {snapshots.path}", snapshots.read_lock)
        self.lock = snapshots.read_lock
        self._snapshots = snapshots

    def _ask(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        found = self._snapshots.ask(statement, until=self.taken.number, **values)
        self._require()  # deleted meanwhile, its rows may be gone
        return found

    def _read_inode(self, node: int) -> Inode:
        rows = self._ask(old_rows.INODE, node=node)
        if not rows:
            raise oserror(errno.ESTALE)
        return inode_of(self._damage, rows[0])

    def ahead(self, nodes: Sequence[int], *, contents: bool = False) -> None:
        with self.lock:
            missing = [node for node in nodes if node not in self._inodes]
            for row in self._ask(old_rows.inodes(missing)) if missing else ():
                with contextlib.suppress(OSError):  # damaged: whoever reads it hears of it
                    self._inodes[row[0]] = inode_of(self._damage, row)
            for node, row, data in self._ask(old_rows.first_chunks(nodes)) if contents else ():
                with contextlib.suppress(OSError):
                    chunk = chunk_of(self._damage, node, 0, (row, data))
                    self._chunks.put((node, 0), chunk, len(data) + CHUNK_COST_BYTES)

    def _child(self, parent: int, name: bytes) -> int | None:
        rows = self._ask(old_rows.CHILD, node=parent, name=name)
        if not rows or rows[0][0] is None:
            return None
        node: int = rows[0][0]
        self._damage.require_entry(parent, name, self._inode(node))
        return node

    def _children(self, parent: int, after: bytes, limit: int) -> list[tuple[bytes, int]]:
        self._directory(parent)
        start = after + b"\0" if after else b""  # the next name there can be
        return self._ask(old_rows.CHILDREN, node=parent, start=start, limit=limit)

    def _chunk(self, node: int, index: int) -> Chunk | None:
        self._require()
        chunk = self._chunks.get((node, index))
        if chunk is None:
            rows = self._ask(old_rows.CHUNK, node=node, idx=index)
            if not rows:
                return None
            chunk = chunk_of(self._damage, node, index, rows[0])
            self._chunks.put((node, index), chunk, len(chunk.data) + CHUNK_COST_BYTES)
        return chunk

    def _next_chunk(self, node: int, index: int) -> int | None:
        rows = self._ask(old_rows.PLACES, node=node, start=index, limit=1)
        return rows[0][0] if rows else None

    def _xattrs(self, inode: Inode) -> dict[bytes, bytes]:
        if inode.xattrs is None:
            rows = self._ask(old_rows.XATTRS, node=inode.node)
            inode.xattrs = xattrs_of(self._damage, inode.node, rows)
        return inode.xattrs


class SqliteSnapshots:
    """The list of a volume's snapshots. Called with the volume's lock held.

    Args:
        db: the volume's connection.
        path: its file.
    """

    def __init__(self, db: sqlite3.Connection, path: str) -> None:
        self._db = db
        self.path = path
        self.read_lock = threading.RLock()
        """Of the connection that all snapshots are read on."""
        self._connection: sqlite3.Connection | None = None
        self._views: dict[str, SqliteSnapshot] = {}
        with sqlite_errors():
            rows = db.execute("SELECT name, number, time_ns FROM snapshot ORDER BY number").fetchall()
            self.newest = NewestRows.of(db)
        sound = [row for row in rows if tuple(map(type, row)) == (bytes, int, int)]
        if len(sound) < len(rows):
            Damage(f"the volume file {path}").tell("the table snapshot has a row that is no snapshot; it is not shown")
        self.listed = tuple(Snapshot(to_text(name), number, time_ns) for name, number, time_ns in sound)
        """All, in the order of their numbers. A history asks for them at each change, so this is no copy."""

    @property
    def newest_ns(self) -> int:
        """When the newest one was taken."""
        return self.listed[-1].time_ns if self.listed else 0

    def kept_bytes(self) -> int:
        """Bytes of chunks that no file has any more. On the snapshots' connection, so without the volume's lock."""
        return int(self.ask("SELECT coalesce(sum(bytes), 0) FROM old_place")[0][0])

    def take(self, name: str, next_node: int, next_chunk: int) -> Snapshot:
        """Make a snapshot of what is in the file.

        Args:
            next_node, next_chunk: the numbers that the volume gives next.
        """
        if any(each.name == name for each in self.listed):
            raise FileExistsError(errno.EEXIST, f"there is a snapshot '{name}' already")
        with transaction(self._db):
            row = self._db.execute(
                "SELECT value FROM meta WHERE key = 'snapshot' AND typeof(value) = 'integer'"
            ).fetchone()
            number = max(self.newest.until, row[0] if row is not None else 0) + 1
            snapshot = Snapshot(name, number, now_ns(exact=True))
            row = (number, to_name(name), snapshot.time_ns, next_node, next_chunk)
            self._db.execute("INSERT INTO snapshot VALUES (?, ?, ?, ?, ?)", row)
            self._db.execute("INSERT OR REPLACE INTO meta VALUES ('snapshot', ?)", (number,))
        self.listed += (snapshot,)
        self.newest = NewestRows(number, next_node, next_chunk)
        return snapshot

    def delete(self, name: str) -> None:
        """Forget a snapshot. Its rows are freed by a `SqlitePruner`."""
        gone = self._find(name)
        with transaction(self._db):
            following = "SELECT min(number) - 1 FROM snapshot WHERE number > ?1"
            last = f"coalesce(({following}), (SELECT value FROM meta WHERE key = 'snapshot'), ?1)"
            self._db.execute(f"INSERT OR REPLACE INTO pruning VALUES (?1, {last})", (gone.number,))
            self._db.execute("DELETE FROM snapshot WHERE number = ?", (gone.number,))
            newest = NewestRows.of(self._db)
        self.listed = tuple(each for each in self.listed if each is not gone)
        self.newest = newest
        view = self._views.pop(name, None)
        if view is not None:
            view.is_deleted = True

    def view(self, name: str) -> SqliteSnapshot:
        """A snapshot as a volume."""
        snapshot = self._find(name)
        view = self._views.get(name)
        if view is None:
            view = self._views[name] = SqliteSnapshot(snapshot, self)
        return view

    def ask(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        """The rows of a query, which sees one state of the file. The volume's lock is not needed."""
        with self.read_lock, sqlite_errors():
            if self._connection is None:
                self._connection = schema.connect_again(self.path)
                self._connection.execute("PRAGMA query_only = ON")
            return self._connection.execute(statement, values).fetchall()

    def forget_cached(self) -> None:
        """Rows of snapshots have changed: read them again."""
        with self.read_lock:
            for view in self._views.values():
                view.forget_cached()

    def _find(self, name: str) -> Snapshot:
        for each in self.listed:
            if each.name == name:
                return each
        raise FileNotFoundError(errno.ENOENT, f"there is no snapshot '{name}'")

    def close(self) -> None:
        for view in self._views.values():
            view.is_deleted = True
        with self.read_lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
