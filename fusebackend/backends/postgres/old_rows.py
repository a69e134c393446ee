"""The rows that snapshots have and the volume has replaced since: the SQL that keeps, reads and frees them.

`made` of a row is the number of the newest snapshot when it got its present values, 0 for none: the snapshots with
higher numbers have it. The first change after snapshot `until` (`made < until`) copies the row into its `old_` table;
the snapshots above `made`, up to `until`, have the old row. The new row has `until` as `made`, so later changes find
nothing to keep until the next snapshot. A row that was made after a snapshot needs no old one.

The bytes of a chunk are not copied: its row gets the key (volume, -id, idx), where `id` is that of its row in
`old_chunk`, and the file gets another row.

A change holds the lock of changes shared, and a snapshot is taken and deleted with that lock exclusive: the newest
snapshot stays the newest until the commit (`Newest`). A new snapshot needs no old row that is there already, so a row
that no snapshot needs stays unneeded, and any host may free it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from psycopg import Connection

from fusebackend.backends.postgres.schema import PRUNE_LOCK
from fusebackend.backends.postgres.statements import ALWAYS, COLUMNS, columns_of, keyed
from fusebackend.databases.pipeline import BEGIN, COMMIT, Rows, Statement, send

PORTION_ROWS: Final = 250
"""Old rows that are freed by one transaction. With 64 KiB each that takes some 30 ms."""


class Newest:
    """The number of a volume's newest snapshot, as a transaction that has the lock of changes needs it; 0 for none.

    A connection that has read the number reads it again when a count has changed, which every snapshot that is taken or
    deleted in the database raises: the lock's statement returns the count with next to no cost. It is a sequence, so a
    crash of the server may set it back, as may a snapshot that was lost in it; no connection outlives that.
    """

    def __init__(self, volume: int) -> None:
        self._ask: Statement = "SELECT newest FROM fusebackend.volume WHERE id = %s", (volume,)
        self._known: weakref.WeakKeyDictionary[Connection[Any], tuple[int | None, int]] = weakref.WeakKeyDictionary()

    def likely(self, connection: Connection[Any]) -> tuple[int | None, int] | None:
        """The last count that a connection has seen, and the number; None for none.

        A transaction that takes the number before it has the lock compares the count then.
        """
        return self._known.get(connection)

    def of(self, connection: Connection[Any], count: int | None, ask: Callable[[Statement], Rows]) -> int:
        """The number, for a transaction whose lock has returned this count. Asked for where it is not known."""
        known = self._known.get(connection)
        if known is None or known[0] != count:
            rows = ask(self._ask)
            known = self._known[connection] = count, int(rows[0][0]) if rows else 0
        return known[1]


# -- keeping: before the rows are changed, in the same transaction -------------------------------------------------


def keep_inodes(volume: int, nodes: Sequence[int], until: int) -> Statement:
    """The inodes' rows, as they are in the table."""
    keys, values = keyed(("int8",), [(node,) for node in nodes])
    return (
        f"INSERT INTO fusebackend.old_inode (volume, {COLUMNS}, until) SELECT i.volume, {columns_of('i')}, %s::int"
        f" FROM {keys} AS k (node) CROSS JOIN LATERAL (SELECT * FROM fusebackend.inode"
        f" WHERE volume = %s AND node = k.node AND made < %s OFFSET 0) i {ALWAYS} ON CONFLICT DO NOTHING",
        (until, *values, volume, until),
    )


def keep_names(volume: int, keys: Sequence[tuple[int, bytes]], until: int) -> Statement:
    """Names, with the nodes that they lead to."""
    names, values = keyed(("int8", "bytea"), keys)
    return (
        "INSERT INTO fusebackend.old_dentry (volume, parent, name, node, made, until)"
        " SELECT d.volume, d.parent, d.name, d.node, d.made, %s::int"
        f" FROM {names} AS k (parent, name) CROSS JOIN LATERAL (SELECT * FROM fusebackend.dentry"
        " WHERE volume = %s AND parent = k.parent AND name = k.name AND made < %s OFFSET 0) d"
        f" {ALWAYS} ON CONFLICT DO NOTHING",
        (until, *values, volume, until),
    )


_MOVE: Final = "UPDATE fusebackend.chunk SET node = -nextval('fusebackend.old_chunk_id')"
_NOTE: Final = (
    "RETURNING -node AS id, idx, made, length(data) AS bytes)"
    " INSERT INTO fusebackend.old_chunk (volume, node, idx, made, until, bytes, id)"
    " SELECT %s, %s, idx, made, %s, bytes, id FROM moved ON CONFLICT DO NOTHING"
)


def keep_chunks(volume: int, node: int, indices: Sequence[int], until: int) -> Statement:
    """Chunks of a file. They are none of it any more."""
    return (
        f"WITH moved AS ({_MOVE} {ALWAYS} AND volume = %s AND node = %s AND idx = ANY(%s::int8[]) AND made < %s"
        f" {_NOTE}",
        (volume, node, list(indices), until, volume, node, until),
    )


def keep_cut(volume: int, node: int, first: int, until: int) -> Statement:
    """The same for the chunks from an index on."""
    return (
        f"WITH moved AS ({_MOVE} {ALWAYS} AND volume = %s AND node = %s AND idx >= %s AND made < %s {_NOTE}",
        (volume, node, first, until, volume, node, until),
    )


def keep_all(volume: int, nodes: Sequence[int], until: int) -> list[Statement]:
    """Everything of nodes that are about to be freed."""
    cuts = [keep_cut(volume, node, 0, until) for node in nodes]
    return [keep_inodes(volume, nodes, until), *cuts]


def forget(volume: int, nodes: Sequence[int], newest: int) -> list[Statement]:
    """Take nodes out of all snapshots: their rows there go, and what they share with one is of the volume alone. The
    index has them anew."""
    these = (volume, list(nodes))
    where = "WHERE volume = %s AND node = ANY(%s::int8[])"
    bytes_too = (
        f"WITH gone AS (DELETE FROM fusebackend.old_chunk {where} RETURNING volume, id)"
        " DELETE FROM fusebackend.chunk USING gone WHERE chunk.volume = gone.volume AND chunk.node = -gone.id"
    )
    return [
        (bytes_too, these),
        *((f"DELETE FROM fusebackend.{table} {where}", these)
          for table in ("old_dentry", "old_inode", "entry")),
        *((f"UPDATE fusebackend.{table} SET made = %s {where} AND made < %s", (newest, *these, newest))
          for table in ("dentry", "inode", "chunk")),
        (f"UPDATE fusebackend.unindexed SET changed_at = clock_timestamp() {where}", these),
        ("INSERT INTO fusebackend.unindexed (volume, node, changed_at, change)"
         " SELECT DISTINCT volume, node, clock_timestamp(), pg_current_xact_id() FROM fusebackend.chunk"
         f" {where} ON CONFLICT DO NOTHING", these),
    ]  # fmt: skip


TABLES_WITH_BYTES: Final = (
    "fusebackend.chunk, fusebackend.inode, fusebackend.old_inode, fusebackend.entry, fusebackend.logged"
)


# -- reading: no row says that the snapshot `s` is deleted, nulls say that it has nothing there --------------------
#
# One statement sees the rows and the snapshot at one moment, and rows are freed after the snapshot was deleted. Its
# parameters are its key (`_ask`), the volume and the number of the snapshot.


def _seen(columns: str, table: str, key: str) -> str:
    """The rows of a key that a snapshot `s` has."""
    source = f"SELECT {columns} FROM fusebackend"
    return (
        f"{source}.{table} WHERE volume = s.volume AND {key} AND made < s.number"
        f" UNION ALL {source}.old_{table} WHERE volume = s.volume AND {key} AND until >= s.number AND made < s.number"
    )


def _ask(keys: str, columns: str, rows: str) -> str:
    return (
        f"SELECT {columns} FROM fusebackend.snapshot s CROSS JOIN (SELECT {keys}) k {rows}"
        " WHERE s.volume = %s AND s.number = %s"
    )


def _each(query: str, name: str) -> str:
    return f"LEFT JOIN LATERAL ({query} OFFSET 0) {name} ON true"


_I: Final = columns_of("i")
INODE: Final = _ask("%s::int8 AS node", _I, _each(_seen(COLUMNS, "inode", "node = k.node"), "i"))
_CHILD: Final = _each(_seen(COLUMNS, "inode", "node = d.node"), "i")
FOUND: Final = _ask(
    "%s::int8 AS parent, %s::bytea AS name",
    f"d.node, {_I}",
    f"{_each(_seen('node', 'dentry', 'parent = k.parent AND name = k.name'), 'd')} {_CHILD}",
)
"""The node under a name, and its inode."""


def _page(table: str, also: str) -> str:
    return (
        f"(SELECT name, node FROM fusebackend.{table} WHERE volume = s.volume AND parent = k.parent AND name > k.after"
        f" AND made < s.number{also} ORDER BY name LIMIT k.most)"
    )


LISTED: Final = (
    _ask(
        "%s::int8 AS parent, %s::bytea AS after, %s::int8 AS most",
        f"d.name, d.node, {_I}",
        f"LEFT JOIN LATERAL ({_page('dentry', '')} UNION ALL {_page('old_dentry', ' AND until >= s.number')}"
        f" ORDER BY name LIMIT k.most) d ON true {_CHILD}",
    )
    + " ORDER BY d.name"
)
"""Names in a directory, with their nodes and inodes."""


CHUNKS: Final = _ask(
    "%s::int8 AS node, %s::int8 AS first, %s::int8 AS last",
    "c.idx, c.data",
    _each(
        "SELECT idx, data FROM fusebackend.chunk"
        " WHERE volume = s.volume AND node = k.node AND idx BETWEEN k.first AND k.last AND made < s.number"
        " UNION ALL SELECT o.idx, b.data FROM fusebackend.old_chunk o CROSS JOIN LATERAL ("
        "SELECT data FROM fusebackend.chunk WHERE volume = o.volume AND node = -o.id AND idx = o.idx OFFSET 0) b"
        " WHERE o.volume = s.volume AND o.node = k.node AND o.idx BETWEEN k.first AND k.last AND o.until >= s.number"
        " AND o.made < s.number",
        "c",
    ),
)
NEXT_CHUNK: Final = _ask(
    "%s::int8 AS node, %s::int8 AS first",
    "c.idx",
    _each(f"SELECT min(idx) AS idx FROM ({_seen('idx', 'chunk', 'node = k.node AND idx >= k.first')}) each", "c"),
)
"""The first chunk of a file from an index on."""


KEPT_BYTES: Final = "SELECT coalesce(sum(bytes), 0)::int8 FROM fusebackend.old_chunk WHERE volume = %s"
"""The bytes of chunks that no file has any more."""


# -- freeing -------------------------------------------------------------------------------------------------------


class OldTable(NamedTuple):
    name: str
    key: tuple[str, ...]


TABLES: Final = (  # names before what they lead to
    OldTable("old_dentry", ("parent", "name")),
    OldTable("old_inode", ("node",)),
    OldTable("old_chunk", ("node", "idx")),
)


def free(table: OldTable, volume: int, span: tuple[int, int], after: Sequence[object]) -> Statement:
    """Free those of `PORTION_ROWS` rows that no snapshot needs. Returns how many were looked at, and the last one.

    Args:
        span: the lowest and the highest `until`.
        after: `until` and key of the last row that was looked at; empty for none.
    """
    columns = ", ".join(("until", *table.key))
    later = f" AND ({columns}) > ({', '.join('%s' for _ in after)})" if after else ""
    bytes_too = (
        ", bytes AS (DELETE FROM fusebackend.chunk WHERE volume = %s AND node = ANY(ARRAY(SELECT -id FROM freed)))"
        if table.name == "old_chunk"
        else ""
    )
    return (
        f"WITH looked AS (SELECT o.ctid AS place, {columns}, EXISTS (SELECT FROM fusebackend.snapshot s"
        " WHERE s.volume = o.volume AND s.number > o.made AND s.number <= o.until) AS needed"
        f" FROM fusebackend.{table.name} o WHERE volume = %s AND until BETWEEN %s AND %s{later}"
        f" ORDER BY {columns} LIMIT {PORTION_ROWS}), freed AS (DELETE FROM fusebackend.{table.name}"
        " WHERE ctid = ANY(ARRAY(SELECT place FROM looked WHERE NOT needed))"
        f" RETURNING {'id' if bytes_too else 'until'}){bytes_too}"
        f" SELECT (SELECT count(*) FROM looked), {columns} FROM looked"
        f" ORDER BY {', '.join(f'{column} DESC' for column in ('until', *table.key))} LIMIT 1",
        (volume, *span, *after, *((volume,) if bytes_too else ())),
    )


IS_LEFT: Final = "EXISTS (SELECT FROM fusebackend.pruning WHERE volume = %s)"


class Pruner:
    """Frees the old rows of deleted snapshots, in portions. Used by one thread of each host; one of them works.

    The table `pruning` says which rows are to be looked at, so that any host goes on after another one. How far this
    one has come it only has in memory.
    """

    def __init__(self, volume: int) -> None:
        self._volume = volume
        self._span: tuple[int, int] | None = None
        self._table = 0
        self._after: Sequence[object] = ()

    def work(self, connection: Connection[Any]) -> bool:
        """Free a portion. Returns whether there is more to do for this host.

        Raises:
            psycopg.Error: nothing has been freed.
        """
        lock = "SELECT pg_try_advisory_xact_lock(%s::int, %s::int)", (PRUNE_LOCK, self._volume)
        first = "SELECT first, last FROM fusebackend.pruning WHERE volume = %s ORDER BY first LIMIT 1", (self._volume,)
        _, locked, spans = send(connection, [BEGIN, lock, first])
        if locked != [(True,)] or not spans:
            send(connection, [COMMIT])
            self._span = None
            return False
        if spans[0] != self._span:
            self._span, self._table, self._after = spans[0], 0, ()
        (rows,) = send(connection, [free(TABLES[self._table], self._volume, spans[0], self._after)])
        is_last = not rows or rows[0][0] < PORTION_ROWS
        done = is_last and self._table + 1 == len(TABLES)
        if done:
            query = "DELETE FROM fusebackend.pruning WHERE volume = %s AND first = %s AND last = %s"
            send(connection, [(query, (self._volume, *spans[0])), COMMIT])
            self._span = None
        else:
            send(connection, [COMMIT])
            self._table, self._after = (self._table + 1, ()) if is_last else (self._table, rows[0][1:])
        return True
