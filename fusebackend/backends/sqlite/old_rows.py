"""The rows that snapshots need and the volume has replaced since: how they are kept, read, and freed.

The first change of a row after a snapshot copies it into the `old_` table, with the number of that snapshot as `until`.
So a snapshot has of each row the old one with the lowest `until` that is not below its number; where there is none, the
volume's own. Later changes find a copy there and make none. A chunk's bytes are never copied: its row of `chunk` loses
its place, and the new bytes get another row.

Rows that were made after the newest snapshot have higher numbers than all before (nodes and chunks are numbered
upwards), and are changed without any of this.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from fusebackend.backends.sqlite.schema import LAST_NODE
from fusebackend.databases.sqlite import transaction

PORTION_S: Final = 0.02
PORTION_ROWS: Final = 500
"""Old rows are freed in transactions of so many at a time, and up to so long: others wait to write meanwhile."""

LAST_CHUNK: Final = (1 << 63) - 1

INODE_COLUMNS: Final = "mode, nlink, uid, gid, rdev, size, blocks, atime_ns, mtime_ns, ctime_ns, parent"

_KEEP_XATTRS: Final = """
    INSERT OR IGNORE INTO old_xattr SELECT node, ?1, name, value FROM xattr
    WHERE node = ?2 AND NOT EXISTS (SELECT 1 FROM old_inode WHERE node = ?2 AND until = ?1)"""
_KEEP_INODE: Final = f"INSERT OR IGNORE INTO old_inode SELECT node, ?1, {INODE_COLUMNS} FROM inode WHERE node = ?2"
_KEEP_NAME: Final = """
    INSERT OR IGNORE INTO old_dentry VALUES (?2, ?3, ?1, (SELECT node FROM dentry WHERE parent = ?2 AND name = ?3))"""
_BYTES: Final = "coalesce((SELECT length(data) FROM chunk WHERE id = place.chunk), 0)"
_KEEP_PLACE: Final = f"""
    INSERT OR IGNORE INTO old_place SELECT ?2, ?3, ?1, chunk, {_BYTES}
    FROM (SELECT (SELECT chunk FROM place WHERE node = ?2 AND idx = ?3) AS chunk) AS place
    WHERE chunk IS NULL OR chunk < ?4"""
_KEEP_PLACES: Final = f"""
    INSERT OR IGNORE INTO old_place SELECT node, idx, ?1, chunk, {_BYTES} FROM place
    WHERE node = ?2 AND idx >= ?3 AND chunk < ?4"""


class NewestRows(NamedTuple):
    """Which rows may be in a snapshot: none while there is no snapshot."""

    until: int = 0
    """The number of the newest snapshot there ever was."""
    node: int = 0
    chunk: int = 0
    """Nodes and chunks that the newest one of those that exist can have: those with lower numbers."""

    @classmethod
    def of(cls, db: sqlite3.Connection) -> NewestRows:
        """As the file has it."""
        # What is no number is damage: then anything may be in it.
        row = db.execute(f"""
            SELECT max(number, CASE typeof(newest) WHEN 'integer' THEN newest ELSE 0 END),
                CASE typeof(next_node) WHEN 'integer' THEN next_node ELSE {LAST_NODE} END,
                CASE typeof(next_chunk) WHEN 'integer' THEN next_chunk ELSE {LAST_CHUNK} END
            FROM (SELECT *, (SELECT value FROM meta WHERE key = 'snapshot') AS newest
                  FROM snapshot ORDER BY number DESC LIMIT 1)""").fetchone()
        return cls() if row is None else cls(*row)


def keep(
    db: sqlite3.Connection,
    newest: NewestRows,
    nodes: Collection[int],
    names: Mapping[int, Iterable[bytes]],
    places: Iterable[tuple[int, int]],
    cuts: Iterable[tuple[int, int]],
) -> None:
    """Copy what is about to be changed, inside the caller's transaction.

    Args:
        nodes: whose attributes, extended ones included, change or go.
        names: parent → names.
        places: (node, index) that get other bytes.
        cuts: (node, index) from which on a file's places go.
    """
    until, own_node, own_chunk = newest
    inodes = [(until, node) for node in nodes if node < own_node]
    db.executemany(_KEEP_XATTRS, inodes)
    db.executemany(_KEEP_INODE, inodes)
    db.executemany(_KEEP_PLACES, [(until, *cut, own_chunk) for cut in cuts if cut[0] < own_node])
    db.executemany(_KEEP_PLACE, [(until, *place, own_chunk) for place in places if place[0] < own_node])
    db.executemany(_KEEP_NAME, [(until, above, name) for above in names if above < own_node for name in names[above]])


def forget(db: sqlite3.Connection, newest: NewestRows, nodes: Iterable[int], new_row: Callable[[], int]) -> None:
    """Take nodes out of all snapshots, inside the caller's transaction: no name there leads to them, and they have no
    bytes and no extended attributes. What a node shares with a snapshot gets rows of its own.

    Args:
        new_row: gives an unused number for a row of `chunk`.
    """
    until, own_node, own_chunk = newest
    for node in nodes:
        db.execute(
            "DELETE FROM chunk WHERE id IN (SELECT chunk FROM old_place WHERE node = ?1)"
            " AND id NOT IN (SELECT chunk FROM place WHERE node = ?1)", (node,),
        )  # fmt: skip
        db.execute("UPDATE old_place SET chunk = NULL, bytes = 0 WHERE node = ?", (node,))
        db.execute("DELETE FROM old_xattr WHERE node = ?", (node,))
        db.execute("UPDATE old_dentry SET node = NULL WHERE node = ?", (node,))
        if node >= own_node:
            continue
        db.execute(_KEEP_INODE, (until, node))  # without its extended attributes
        db.execute("INSERT OR IGNORE INTO old_dentry SELECT parent, name, ?, NULL FROM dentry WHERE node = ?",
                   (until, node))  # fmt: skip
        shared = db.execute("SELECT idx, chunk FROM place WHERE node = ? AND chunk < ?", (node, own_chunk)).fetchall()
        for index, chunk in shared:
            row = new_row()
            db.execute("INSERT INTO chunk SELECT ?, node, idx, data FROM chunk WHERE id = ?", (row, chunk))
            db.execute("UPDATE place SET chunk = ? WHERE node = ? AND idx = ?", (row, node, index))
            db.execute("DELETE FROM chunk WHERE id = ?", (chunk,))
            db.execute("INSERT OR IGNORE INTO old_place VALUES (?, ?, ?, NULL, 0)", (node, index, until))


# -- reading: ?1, ?2 … are the key, :until is the snapshot's number ------------------------------------------------

_LIVE: Final = (1 << 63) - 1


def _versions(columns: str, table: str, key: str) -> str:
    """Rows of one key: the old one that the snapshot has, and the volume's own. The first one counts."""
    return f"""
        SELECT {columns}, until FROM (
            SELECT {columns}, until FROM old_{table} WHERE {key} AND until >= :until ORDER BY until LIMIT 1)
        UNION ALL SELECT {columns}, {_LIVE} FROM {table} WHERE {key} ORDER BY until LIMIT 1"""


INODE: Final = f"SELECT node, {INODE_COLUMNS} FROM ({_versions(f'node, {INODE_COLUMNS}', 'inode', 'node = :node')})"
CHILD: Final = f"SELECT node FROM ({_versions('node', 'dentry', 'parent = :node AND name = :name')})"
CHUNK: Final = f"""SELECT id, data FROM chunk
    WHERE id = (SELECT chunk FROM ({_versions("chunk", "place", "node = :node AND idx = :idx")}))"""
XATTRS: Final = """
    SELECT name, value FROM old_xattr WHERE node = :node
        AND until = (SELECT min(until) FROM old_inode WHERE node = :node AND until >= :until)
    UNION ALL SELECT name, value FROM xattr WHERE node = :node
        AND NOT EXISTS (SELECT 1 FROM old_inode WHERE node = :node AND until >= :until)"""


def _of_nodes(columns: str, table: str, nodes: Sequence[int], more: str = "") -> str:
    """Rows of several nodes, at most one for each."""
    listed = f"node IN ({', '.join(map(str, nodes))}) {more}"
    return f"""
        SELECT {columns} FROM (SELECT {columns}, min(until) FROM old_{table} WHERE {listed} AND until >= :until
            GROUP BY node)
        UNION ALL SELECT {columns} FROM {table} AS live WHERE {listed} AND NOT EXISTS (
            SELECT 1 FROM old_{table} AS old WHERE old.node = live.node {more} AND until >= :until)"""


def inodes(nodes: Sequence[int]) -> str:
    """`INODE` for several nodes."""
    return _of_nodes(f"node, {INODE_COLUMNS}", "inode", nodes)


def first_chunks(nodes: Sequence[int]) -> str:
    """`CHUNK` for the first chunks of several nodes, each with its node before the columns."""
    places = _of_nodes("node, chunk", "place", nodes, "AND idx = 0")
    return f"SELECT held.node, id, data FROM ({places}) AS held CROSS JOIN chunk ON id = held.chunk"


def _all_versions(columns: str, table: str, holder: str, key: str, value: str) -> str:
    """Rows of all keys of a holder from `:start` on that the snapshot has, in their order."""
    same = f"other.{holder} = :node AND other.{key} = mine.{key} AND other.until >= :until"
    return f"""
        SELECT {columns} FROM {table} AS mine WHERE {holder} = :node AND {key} >= :start
            AND NOT EXISTS (SELECT 1 FROM old_{table} AS other WHERE {same})
        UNION ALL SELECT {columns} FROM old_{table} AS mine WHERE {holder} = :node AND {key} >= :start
            AND until >= :until AND {value} IS NOT NULL
            AND NOT EXISTS (SELECT 1 FROM old_{table} AS other WHERE {same} AND other.until < mine.until)
        ORDER BY {key} LIMIT :limit"""


CHILDREN: Final = _all_versions("name, node", "dentry", "parent", "name", "node")
PLACES: Final = _all_versions("idx", "place", "node", "idx", "chunk")


# -- freeing -------------------------------------------------------------------------------------------------------


def is_needed(table: str, key: Sequence[str], row: str) -> str:
    """The condition that a snapshot needs a row of an old table: there is one above the `until` of the key's row before
    it, up to its own."""
    same = " AND ".join(f"before.{column} = {row}.{column}" for column in key)
    return f"""EXISTS (
        SELECT 1 FROM snapshot WHERE number <= {row}.until AND number > coalesce((
            SELECT max(until) FROM {table} AS before WHERE {same} AND before.until < {row}.until), 0))"""


class _OldRows(NamedTuple):
    name: str
    key: tuple[str, ...]
    held: str
    """Deletes what a row holds: of its `until` and its key. Empty if it holds nothing."""

    def free(self, db: sqlite3.Connection, rows: Sequence[tuple[object, ...]]) -> None:
        if self.held:
            db.executemany(self.held, rows)
        same = " AND ".join(f"{column} = ?" for column in ("until", *self.key))
        db.executemany(f"DELETE FROM {self.name} WHERE {same}", rows)


_TABLES: Final = (  # names before what they lead to
    _OldRows("old_dentry", ("parent", "name"), ""),
    _OldRows("old_inode", ("node",), "DELETE FROM old_xattr WHERE until = ? AND node = ?"),
    _OldRows("old_place", ("node", "idx"), """DELETE FROM chunk
        WHERE id = (SELECT chunk FROM old_place WHERE until = ?1 AND node = ?2 AND idx = ?3)
        AND id NOT IN (SELECT chunk FROM place WHERE node = ?2 AND idx = ?3)"""),
)  # fmt: skip


class SqlitePruner:
    """Frees the old rows that no snapshot needs any more. Used by one thread.

    `pruning` has the numbers of deleted snapshots whose rows are still to be looked at, so that it goes on after a
    restart.
    """

    failure = "keeps what deleted snapshots had"

    def __init__(self) -> None:
        self._range: tuple[int, int] | None = None
        self._table = 0
        self._after: tuple[object, ...] | None = None

    def work(self, db: sqlite3.Connection) -> float | None:
        """Free a portion; gives 0 if there is more to do, None when nothing is left.

        Raises:
            sqlite3.Error: nothing has been freed. SQLITE_BUSY while another connection writes.
        """
        if db.execute("SELECT 1 FROM pruning LIMIT 1").fetchone() is None:
            return None
        before = self._range, self._table, self._after
        try:
            with transaction(db):
                end = time.monotonic() + PORTION_S
                while (more := self._portion(db)) and time.monotonic() < end:
                    pass
        except BaseException:
            self._range, self._table, self._after = before
            raise
        return 0.0 if more else None

    def _portion(self, db: sqlite3.Connection) -> bool:
        """Look at some rows of one table. Returns whether there is more to do."""
        row = db.execute("SELECT first, last FROM pruning ORDER BY first LIMIT 1").fetchone()
        if row is None:
            return False
        if row != self._range:
            self._range, self._table, self._after = row, 0, None
        table = _TABLES[self._table]
        rows = self._look(db, table, row)
        table.free(db, [found[:-1] for found in rows if not found[-1]])
        if len(rows) == PORTION_ROWS:
            self._after = rows[-1][:-1]
        elif self._table + 1 < len(_TABLES):
            self._table, self._after = self._table + 1, None
        else:
            self._range = None
            db.execute("DELETE FROM pruning WHERE first = ?", row[:1])
        return True

    def _look(self, db: sqlite3.Connection, table: _OldRows, span: tuple[int, int]) -> list[tuple[object, ...]]:
        """Rows with `until` in a range, after the last ones: until, key, and whether a snapshot needs it."""
        columns = ", ".join(("until", *table.key))
        later = "" if self._after is None else f"AND ({columns}) > ({', '.join('?' * (1 + len(table.key)))})"
        return db.execute(
            f"""SELECT {columns}, {is_needed(table.name, table.key, "old")} FROM {table.name} AS old
                WHERE until BETWEEN ? AND ? {later} ORDER BY {columns} LIMIT {PORTION_ROWS}""",
            (*span, *(self._after or ())),
        ).fetchall()


def prune_all(db: sqlite3.Connection) -> None:
    """Free at once what a `SqlitePruner` would."""
    pruner = SqlitePruner()
    while pruner.work(db) is not None:
        pass
