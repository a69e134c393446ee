"""The SQL of a volume's reads and changes, one function a statement; and `StoredInode`, an inode as a row has it.

Each statement reads the rows that it names and no others, under any statistics. Rows of several keys are looked up in a
`LATERAL` subquery, which `OFFSET 0` or `FOR UPDATE` keeps apart: a join instead may read all names or inodes of the
volume. PostgreSQL prefers that as long as its statistics are those of a small volume, and a prepared statement keeps
its plan: a path of two names in a volume of 1,200 took 12 ms.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from fusebackend.backends.postgres.schema import CHANGE_LOCK, RENAME_LOCK, TURN_LOCK
from fusebackend.databases.pipeline import Statement
from fusebackend.protocol import ROOT_NODE, Link
from fusebackend.volumes.damage import Damage, is_in_range
from fusebackend.volumes.storage import CHUNK_BYTES, Chunk, Inode

FIELDS = (
    "node", "mode", "nlink", "uid", "gid", "rdev", "size", "blocks", "atime_ns", "mtime_ns", "ctime_ns", "parent",
    "version", "contents", "emptied", "made", "attributes",
)  # fmt: skip
COLUMNS = ", ".join(FIELDS)


_row: Final = operator.attrgetter(*FIELDS)


def columns_of(table: str) -> str:
    return ", ".join(f"{table}.{field}" for field in FIELDS)


class StoredInode(Inode):
    """An `Inode`, with what only the table knows."""

    __slots__ = ("attributes", "contents", "ctime_before_ns", "emptied", "is_new", "made", "mtime_before_ns")

    def __init__(self, node: int, mode: int, *, parent: int = 0) -> None:
        super().__init__(node, mode, parent=parent)
        self.contents = 0  # the version that last changed the bytes
        self.emptied = 0  # the version that last made it 0 bytes long
        self.made = 0  # as the table has it (`old_rows.py`)
        self.attributes: list[bytes] | None = None  # `xattrs` as the table has them; never changed where it is
        self.is_new = True  # the table has no row of it
        self.ctime_before_ns = self.mtime_before_ns = -(1 << 63)

    @classmethod
    def of(cls, row: Sequence[Any]) -> StoredInode:
        """The inode of a row of `COLUMNS`."""
        inode = cls(row[0], row[1], parent=row[11])
        (
            inode.nlink, inode.uid, inode.gid, inode.rdev, inode.size, inode.blocks,
            inode.atime_ns, inode.mtime_ns, inode.ctime_ns,
        ) = row[2:11]  # fmt: skip
        inode.version, inode.contents, inode.emptied, inode.made, inode.attributes = row[12:17]
        inode.is_new = False
        inode.ctime_before_ns, inode.mtime_before_ns = inode.ctime_ns, inode.mtime_ns
        return inode

    @classmethod
    def sound(cls, row: Sequence[Any], damage: Damage) -> StoredInode:
        """The same, where its fields may have any value. EIO for a damaged one."""
        if not is_in_range(row[:12]):
            raise damage.of_inode(row)
        return cls.of(row)

    def __copy__(self) -> StoredInode:
        """Each answer from memory is a copy; by way of `__reduce_ex__` it takes thirteen times as long."""
        twin = StoredInode.__new__(StoredInode)
        (
            twin.node, twin.mode, twin.nlink, twin.uid, twin.gid, twin.rdev, twin.size, twin.blocks,
            twin.atime_ns, twin.mtime_ns, twin.ctime_ns, twin.parent,
            twin.version, twin.contents, twin.emptied, twin.made, twin.attributes,
        ) = self.row  # fmt: skip
        twin.opens, twin.unnoted, twin.xattrs, twin.is_new = self.opens, self.unnoted, None, self.is_new
        twin.ctime_before_ns, twin.mtime_before_ns = self.ctime_before_ns, self.mtime_before_ns
        return twin

    @property
    def row(self) -> tuple[Any, ...]:
        return _row(self)

    def unpacked(self) -> dict[bytes, bytes]:
        """The extended attributes; `pack` follows a change."""
        if self.xattrs is None:
            parts = self.attributes or []
            self.xattrs = dict(zip(parts[::2], parts[1::2], strict=False))
        return self.xattrs

    def pack(self) -> None:
        self.attributes = list(itertools.chain.from_iterable(self.unpacked().items())) or None

    def settle_times(self) -> None:
        """A change is never dated before the one it follows, though the clocks of two hosts may say so.

        What follows within a tick of the clock keeps its date: that of a file which is touched in the same one.
        """
        if self.ctime_ns < self.ctime_before_ns:
            now = self.ctime_before_ns + 1
            if self.mtime_ns == self.ctime_ns:  # set together: now, as this host has it
                self.mtime_ns = max(now, self.mtime_before_ns)
            self.ctime_ns = now
        self.ctime_before_ns, self.mtime_before_ns = self.ctime_ns, self.mtime_ns


FEW = 4
"""Rows that are written by a statement each, which takes less than to put them into arrays."""

LISTED_KEYS: Final = 16


def keyed(types: Sequence[str], keys: Sequence[Sequence[object]]) -> tuple[str, list[object]]:
    """The table of keys, for a FROM, and its parameters.

    A few are listed. Of an array PostgreSQL supposes ten; as it knows better when it plans the statement anew, it
    would do so each time, which takes twice as long as to run it.
    """
    if len(keys) <= LISTED_KEYS:
        row = f"({', '.join(f'%s::{type}' for type in types)})"
        return f"(VALUES {', '.join([row] * len(keys))})", [value for key in keys for value in key]
    arrays = ", ".join(f"%s::{type}[]" for type in types)
    return f"unnest({arrays})", [list(column) for column in zip(*keys, strict=True)]


_I = columns_of("i")
_UNIT_BLOCKS = "((length(data) + 4095) / 4096 * 8)"
"""`allocated_blocks` of a chunk."""

# -- fetching for a change -----------------------------------------------------------------------------------------


DIRECTORY = "(i.mode & 61440) = 16384"
"""Of an inode `i`."""


def _inode_of(node: str, lock: bool) -> str:
    """The subquery of an inode's row; its parameter is the volume."""
    end = "FOR UPDATE" if lock else "OFFSET 0"
    return f"(SELECT {COLUMNS} FROM fusebackend.inode WHERE volume = %s AND node = {node} {end})"


def _dentry_of(parent: str, name: str) -> str:
    """The subquery of a name; its first parameter is the volume."""
    return (
        "(SELECT parent, name, node FROM fusebackend.dentry"
        f" WHERE volume = %s AND parent = {parent} AND name = {name} OFFSET 0)"
    )


TURN_MASK = (1 << 31) - 1
"""A lock has a number of 32 bits. Nodes that share one wait for each other, too."""


def _turn() -> str:
    """The join that waits for `TURN_LOCK` of a node `k`, before its row is locked; its parameter is the volume.

    A commit wakes all transactions that wait for a row, and they wait again, for its next version. For an advisory lock
    they form a queue, and a commit wakes the first.
    """
    # Nodes of all volumes have numbers of their own, but for the root.
    key = f"CASE k.node WHEN {ROOT_NODE} THEN -%s::int ELSE (k.node & {TURN_MASK})::int END"
    return f"CROSS JOIN LATERAL (SELECT pg_advisory_xact_lock({TURN_LOCK}, {key}) OFFSET 0) turn"


def _in_order(nodes: str) -> str:
    """The nodes `k` of a query, in the order of their numbers: those that lock rows by them do so in this order."""
    return f"(SELECT node FROM ({nodes}) nodes (node) ORDER BY node) k"


_COUNT = "pg_sequence_last_value('fusebackend.snapshot_changes'::regclass)"
"""Columns are evaluated in their order, and this one reads no table: it is as of after the lock."""


def lock_changes(volume: int, exclusive: bool, turns: Sequence[int] = (), renames: bool | None = None) -> Statement:
    """The lock of changes, and then `TURN_LOCK` of nodes whose rows are about to be locked (`_turn`).

    Returns the count of `old_rows.Newest` as the second column. No snapshot is taken or deleted until the end of the
    transaction.

    Args:
        renames: take the lock of directories' names in between, alone or shared; None for not at all.
    """
    query = f"SELECT {_lock(exclusive)}, {_COUNT}"
    keys = [CHANGE_LOCK, volume]
    if renames is not None:
        query += f", {_lock(renames)}"
        keys += [RENAME_LOCK, volume]
    return query + _TURN * len(turns), (*keys, *_turn_keys(volume, turns))


def _lock(exclusive: bool) -> str:
    return f"pg_advisory_xact_lock{'' if exclusive else '_shared'}(%s::int, %s::int)"


_TURN: Final = ", pg_advisory_xact_lock(%s::int, %s::int)"


def _turn_keys(volume: int, turns: Sequence[int]) -> list[int]:
    keys: list[int] = []
    for node in turns:
        keys += [TURN_LOCK, -volume if node == ROOT_NODE else node & TURN_MASK]
    return keys


class Guess(NamedTuple):
    """What a change takes the tables to have, without a question before it."""

    rows: Mapping[int, StoredInode]
    """Inodes by their numbers, with their versions and access times."""
    names: Mapping[tuple[int, bytes], int | None]
    """Names in some of these directories, with the nodes under them; None for a name that is not there."""
    empty: int = 0
    """A directory of `rows` that has no names; 0 for none."""
    links: Sequence[Link] = ()
    """Names on the way to it, and where they lead."""
    way: Sequence[StoredInode] = ()
    """The directories on that way, of which only that they are directories is taken for granted."""
    dated: int = 0
    """The only one of `rows`, if names are only made in it: others may have changed its names and times. 0 for none."""


def lock_guessed(volume: int, guess: Guess, count: int | None) -> Statement:
    """The shared lock of changes, and the guessed rows locked in the order of their numbers.

    Returns whether all is as it was guessed, and the count of `old_rows.Newest` as it was then (`count`). If not, the
    statements of `if_guessed` that follow in the transaction do nothing. No error tells that: it would be a line in the
    server's log.

    Names are compared as of the beginning of the statement, which may be long before the locks. They are those of the
    directory's row: a change of names gives it another version, which the lock compares as of its end.
    """
    keys: list[object] = []
    for node, inode in sorted(guess.rows.items()):
        keys += [node, inode.version, inode.atime_ns]
    rows = ", ".join(["(%s::int8, %s::int8, %s::int8)"] * len(guess.rows))
    conditions, names = _as_named(volume, guess)
    return (
        f"WITH lock AS MATERIALIZED (SELECT pg_advisory_xact_lock_shared(%s::int, %s::int), {_COUNT} AS count),"
        " locked AS MATERIALIZED (SELECT i.node FROM lock CROSS JOIN"
        f" (SELECT * FROM (VALUES {rows}) rows (node, version, atime_ns) ORDER BY node) k CROSS JOIN LATERAL"
        f" (SELECT node FROM fusebackend.inode WHERE volume = %s AND node = k.node{AS_GUESSED}"
        " AND lock.count IS NOT DISTINCT FROM %s::int8 FOR UPDATE) i)"
        " SELECT set_config('fusebackend.guessed',"
        f" ((SELECT count(*) FROM locked) = {len(guess.rows)}{conditions})::text, true) = 'true'",
        (CHANGE_LOCK, volume, *keys, volume, count, *names),
    )


def compare_dated(volume: int, guess: Guess, count: int | None) -> Statement:
    """The same answer as that of `lock_guessed`, where the row of `guess.dated` has been locked by a statement before.

    So it sees the names of whatever change this one has waited for, and needs no version of the row.
    """
    inode = guess.rows[guess.dated]
    conditions, names = _as_named(volume, guess)
    return (
        f"SELECT set_config('fusebackend.guessed', ({_COUNT} IS NOT DISTINCT FROM %s::int8"
        " AND EXISTS (SELECT FROM fusebackend.inode WHERE volume = %s AND node = %s AND mode = %s AND gid = %s"
        f" AND attributes IS NOT DISTINCT FROM %s::bytea[] AND nlink > 0){conditions})::text, true) = 'true'",
        (count, volume, inode.node, inode.mode, inode.gid, inode.attributes, *names),
    )


def _as_named(volume: int, guess: Guess) -> tuple[str, list[object]]:
    """The conditions that names are as guessed, and their parameters."""
    conditions, names = "", list[object]()
    wanted = [*guess.names.items(), *(((parent, name), node) for parent, name, node in guess.links)]
    for place, child in wanted:
        found = "SELECT FROM fusebackend.dentry WHERE volume = %s AND parent = %s AND name = %s"
        names += [volume, *place]
        if child is None:
            conditions += f" AND NOT EXISTS ({found})"
        else:
            conditions += f" AND EXISTS ({found} AND node = %s)"
            names.append(child)
    if guess.empty:
        conditions += " AND NOT EXISTS (SELECT FROM fusebackend.dentry WHERE volume = %s AND parent = %s)"
        names += [volume, guess.empty]
    return conditions, names


ALWAYS: Final = "WHERE true"
"""In each statement that writes, for `if_guessed`."""

IF_GUESSED: Final = "WHERE current_setting('fusebackend.guessed', true) = 'true'"

AS_GUESSED: Final = " AND version = k.version AND atime_ns = k.atime_ns"
"""In `lock_guessed`. Without these two a statement can be made again (`scripts/recorded_sql.py`)."""


def if_guessed(statement: Statement) -> Statement:
    """A statement that does nothing where the guess of its transaction was wrong (`lock_guessed`)."""
    query, parameters = statement
    assert ALWAYS in query, query
    return query.replace(ALWAYS, IF_GUESSED), parameters


def take_turns(volume: int, turns: Sequence[int]) -> Statement:
    """`TURN_LOCK` of nodes whose rows are about to be locked, as of `lock_changes`."""
    return (
        f"SELECT turn FROM {_in_order('SELECT unnest(%s::int8[])')} {_turn()}",
        (list(turns), volume),
    )


def lock_renames(volume: int, keys: Sequence[tuple[int, bytes]]) -> Statement:
    """The lock of directories' names, where a directory is under one of these names: then it returns a row."""
    return (
        "SELECT pg_advisory_xact_lock(%s::int, %s::int) FROM (SELECT FROM unnest(%s::int8[], %s::bytea[])"
        f" AS k (parent, name) CROSS JOIN LATERAL {_dentry_of('k.parent', 'k.name')} d"
        f" CROSS JOIN LATERAL {_inode_of('d.node', False)} i WHERE {DIRECTORY} LIMIT 1) directory",
        (RENAME_LOCK, volume, [parent for parent, _ in keys], [name for _, name in keys], volume, volume),
    )


def inodes(volume: int, nodes: Sequence[int], lock: bool) -> Statement:
    """In the order of their numbers: two that lock the same can't wait for each other."""
    if len(nodes) == 1:
        query, parameters = inode(volume, nodes[0])
        return query + (" FOR UPDATE OF inode" if lock else ""), parameters
    return (
        f"SELECT {_I} FROM {_in_order('SELECT unnest(%s::int8[])')} CROSS JOIN LATERAL {_inode_of('k.node', lock)} i",
        (list(nodes), volume),
    )


def lock_with_entries(volume: int, nodes: Sequence[int], keys: Sequence[tuple[int, bytes]]) -> Statement:
    """Lock inodes, together with those under these names, in the order of all their numbers."""
    wanted = (
        "SELECT unnest(%s::int8[]) UNION SELECT d.node FROM unnest(%s::int8[], %s::bytea[]) AS k (parent, name)"
        f" CROSS JOIN LATERAL {_dentry_of('k.parent', 'k.name')} d"
    )
    return (
        f"SELECT {_I} FROM {_in_order(wanted)} CROSS JOIN LATERAL {_inode_of('k.node', True)} i",
        (list(nodes), [parent for parent, _ in keys], [name for _, name in keys], volume, volume),
    )


def lock_children(volume: int, parent: int, after: bytes, limit: int) -> Statement:
    """Lock the inodes of names in a directory, but for directories."""
    named = "SELECT node FROM fusebackend.dentry WHERE volume = %s AND parent = %s AND name > %s ORDER BY name LIMIT %s"
    return (
        f"SELECT i.node FROM {_in_order(f'SELECT DISTINCT node FROM ({named}) d')} CROSS JOIN LATERAL"
        f" (SELECT node FROM fusebackend.inode i WHERE volume = %s AND node = k.node AND NOT {DIRECTORY} FOR UPDATE) i",
        (volume, parent, after, limit, volume),
    )


def _walk(name: str) -> str:
    """The nodes of a path, from a node down as far as they are there."""
    return (
        f"{name} (depth, parent, name, node) AS (SELECT 0, 0::int8, ''::bytea, %s::int8"
        f" UNION ALL SELECT w.depth + 1, d.parent, d.name, d.node FROM {name} w"
        f" CROSS JOIN LATERAL {_dentry_of('w.node', '(%s::bytea[])[w.depth + 1]')} d)"
    )


def walk(volume: int, top: int, names: Sequence[bytes]) -> Statement:
    """The nodes along a path, each after the directory that it is in."""
    return (
        f"WITH RECURSIVE {_walk('walk')} SELECT w.parent, w.name, {_I} FROM walk w"
        f" CROSS JOIN LATERAL {_inode_of('w.node', False)} i ORDER BY w.depth",
        (top, volume, list(names), volume),
    )


def lock_walks(volume: int, top: int, ways: Sequence[tuple[Sequence[bytes], int]]) -> Statement:
    """Lock so many nodes at the ends of paths, in the order of their numbers; the last one of a path that breaks off.

    Returns their numbers only: what they are shows after the wait.
    """
    walks = ", ".join(_walk(f"walk{number}") for number, _ in enumerate(ways))
    ends = " UNION ".join(
        f"SELECT node FROM walk{number} WHERE depth >= least(%s, (SELECT max(depth) FROM walk{number}))"
        for number, _ in enumerate(ways)
    )
    parameters: list[object] = []
    for names, _ in ways:
        parameters += [top, volume, list(names)]
    return (
        # All turns before the first row, as everywhere: an aggregate reads to the end.
        f"WITH RECURSIVE {walks} SELECT i.node FROM (SELECT unnest(array_agg(k.node)) AS node"
        f" FROM {_in_order(ends)} {_turn()}) k CROSS JOIN LATERAL"
        " (SELECT node FROM fusebackend.inode WHERE volume = %s AND node = k.node FOR UPDATE) i",
        (*parameters, *(len(names) + 1 - count for names, count in ways), volume, volume),
    )


def walked_chunks(volume: int, top: int, names: Sequence[bytes], chunks: int) -> Statement:
    """The first chunks of the file at the end of a path."""
    return (
        f"WITH RECURSIVE {_walk('walk')} SELECT node, idx, length(data), data, made FROM fusebackend.chunk"
        " WHERE volume = %s AND idx < %s AND node = (SELECT node FROM walk WHERE depth = %s)",
        (top, volume, list(names), volume, chunks, len(names)),
    )


def entries(volume: int, keys: Sequence[tuple[int, bytes]]) -> Statement:
    names, values = keyed(("int8", "bytea"), keys)
    return (
        f"SELECT d.parent, d.name, {_I} FROM {names} AS k (parent, name)"
        f" CROSS JOIN LATERAL {_dentry_of('k.parent', 'k.name')} d"
        f" CROSS JOIN LATERAL {_inode_of('d.node', False)} i",
        (*values, volume, volume),
    )


def links(volume: int, links: Sequence[Link]) -> Statement:
    """Those of these names that lead to these nodes."""
    keys, values = keyed(("int8", "bytea", "int8"), links)
    return (
        f"SELECT d.parent, d.name, d.node FROM {keys} AS k (parent, name, node)"
        f" CROSS JOIN LATERAL {_dentry_of('k.parent', 'k.name')} d WHERE d.node = k.node",
        (*values, volume),
    )


def is_empty(volume: int, entry: tuple[int, bytes]) -> Statement:
    """The node under a name, if nothing is in it."""
    return (
        f"SELECT d.node FROM {_dentry_of('%s', '%s')} d LEFT JOIN LATERAL"
        " (SELECT 1 AS one FROM fusebackend.dentry WHERE volume = %s AND parent = d.node LIMIT 1) e ON true"
        " WHERE e.one IS NULL",
        (volume, *entry, volume),
    )


def line(volume: int, node: int) -> Statement:
    """A directory and those above it, each with its parent. Their rows are not locked: only renames change them."""
    return (
        "WITH RECURSIVE line (node, parent) AS ("
        " SELECT node, parent FROM fusebackend.inode WHERE volume = %s AND node = %s"
        f" UNION SELECT i.node, i.parent FROM line CROSS JOIN LATERAL {_inode_of('line.parent', False)} i)"
        " SELECT node, parent FROM line",
        (volume, node, volume),
    )


def children(volume: int, parent: int, after: bytes, limit: int) -> Statement:
    return (
        f"SELECT d.name, {_I} FROM fusebackend.dentry d CROSS JOIN LATERAL {_inode_of('d.node', False)} i"
        " WHERE d.volume = %s AND d.parent = %s AND d.name > %s ORDER BY d.name LIMIT %s",
        (volume, volume, parent, after, limit),
    )


def chunks(volume: int, node: int, first: int, last: int, whole: Sequence[int]) -> Statement:
    """Chunks with their lengths, and their bytes but for those in `whole`."""
    return (
        "SELECT node, idx, length(data), CASE WHEN idx = ANY(%s::int8[]) THEN NULL ELSE data END, made"
        " FROM fusebackend.chunk WHERE volume = %s AND node = %s AND idx BETWEEN %s AND %s",
        (list(whole), volume, node, first, last),
    )


def last_chunk(volume: int, node: int) -> Statement:
    return (
        "SELECT c.node, c.idx, length(c.data), c.data, c.made FROM fusebackend.inode i JOIN fusebackend.chunk c"
        " ON c.volume = i.volume AND c.node = i.node AND c.idx = i.size >> 16 WHERE i.volume = %s AND i.node = %s",
        (volume, node),
    )


def freed(volume: int, node: int, first: int) -> Statement:
    """The blocks of the chunks from the index `first` on."""
    return (
        f"SELECT coalesce(sum({_UNIT_BLOCKS}), 0)::int8 FROM fusebackend.chunk"
        " WHERE volume = %s AND node = %s AND idx >= %s",
        (volume, node, first),
    )


# -- writing -------------------------------------------------------------------------------------------------------


def delete_names(volume: int, keys: Sequence[tuple[int, bytes]]) -> Statement:
    if len(keys) == 1:  # in half the time
        return f"DELETE FROM fusebackend.dentry {ALWAYS} AND volume = %s AND parent = %s AND name = %s", (
            volume,
            *keys[0],
        )
    return (
        f"DELETE FROM fusebackend.dentry {ALWAYS} AND ctid = ANY(ARRAY("
        "SELECT d.ctid FROM unnest(%s::int8[], %s::bytea[]) AS k (parent, name) CROSS JOIN LATERAL"
        " (SELECT ctid FROM fusebackend.dentry WHERE volume = %s AND parent = k.parent AND name = k.name OFFSET 0) d))",
        ([parent for parent, _ in keys], [name for _, name in keys], volume),
    )


_REPLACES = "ON CONFLICT (volume, parent, name) DO UPDATE SET node = EXCLUDED.node, made = EXCLUDED.made"


def put_names(volume: int, rows: Sequence[tuple[int, bytes, int]], made: int) -> Statement:
    """Put nodes under names."""
    names, values = keyed(("int8", "bytea", "int8"), rows)
    return (
        "INSERT INTO fusebackend.dentry (volume, made, parent, name, node)"
        f" SELECT %s, %s, * FROM {names} k {ALWAYS} {_REPLACES}",
        (volume, made, *values),
    )


NUMBERS: Final = FIELDS[:-1]
"""All columns but `attributes`."""

_ARRAYS = ", ".join("%s::int8[]" for _ in NUMBERS)
_ASSIGNMENTS = ", ".join(f"{field} = k.{field}" for field in NUMBERS if field not in ("node", "rdev"))


_ADD_ONE = (
    f"INSERT INTO fusebackend.inode (volume, {COLUMNS})"
    f" SELECT %s, {', '.join('%s' for _ in NUMBERS)}, %s::bytea[] {ALWAYS}"
)
_UPDATED = tuple(field for field in FIELDS if field not in ("node", "rdev"))
_UPDATE_ONE = (
    f"UPDATE fusebackend.inode SET {', '.join(f'{field} = %s' for field in _UPDATED)} {ALWAYS}"
    " AND volume = %s AND node = %s"
)


def add_inodes(volume: int, inodes: Sequence[StoredInode]) -> list[Statement]:
    """Rows that are new; a number that has one already is an error."""
    if _one_by_one(inodes):
        return [(_ADD_ONE, (volume, *inode.row)) for inode in inodes]
    return [
        (
            f"INSERT INTO fusebackend.inode (volume, {', '.join(NUMBERS)})"
            f" SELECT %s, * FROM unnest({_ARRAYS}) {ALWAYS}",
            (volume, *_columns(inodes)),
        )
    ]


def update_inodes(volume: int, inodes: Sequence[StoredInode]) -> list[Statement]:
    if _one_by_one(inodes):
        return [(_UPDATE_ONE, (*(getattr(inode, field) for field in _UPDATED), volume, inode.node)) for inode in inodes]
    return [
        (
            f"UPDATE fusebackend.inode i SET {_ASSIGNMENTS}, attributes = NULL"
            f" FROM unnest({_ARRAYS}) AS k ({', '.join(NUMBERS)}) {ALWAYS} AND i.volume = %s AND i.node = k.node",
            (*_columns(inodes), volume),
        )
    ]


def date_directory(volume: int, node: int, at_ns: int, more_links: int, version: int, made: int) -> Statement:
    """Set the times of a directory in which a name was made: as `settle_times`, on the row as it is by then."""
    return (
        "UPDATE fusebackend.inode SET nlink = nlink + %s,"
        " mtime_ns = CASE WHEN ctime_ns <= %s THEN %s ELSE greatest(ctime_ns + 1, mtime_ns) END,"
        " ctime_ns = CASE WHEN ctime_ns <= %s THEN %s ELSE ctime_ns + 1 END, version = %s, made = greatest(made, %s)"
        f" {ALWAYS} AND volume = %s AND node = %s",
        (more_links, at_ns, at_ns, at_ns, at_ns, version, made, volume, node),
    )


def _one_by_one(inodes: Sequence[StoredInode]) -> bool:
    """Whether each row is to be a statement. Arrays are no elements of an array."""
    return len(inodes) <= FEW or any(inode.attributes for inode in inodes)


def _columns(inodes: Iterable[StoredInode]) -> list[list[int]]:
    return [list(column) for column in zip(*(inode.row[:-1] for inode in inodes), strict=True)]


def cut(volume: int, node: int, first: int) -> Statement:
    return f"DELETE FROM fusebackend.chunk {ALWAYS} AND volume = %s AND node = %s AND idx >= %s", (volume, node, first)


def put_chunks(volume: int, chunks: Mapping[tuple[int, int], Chunk], made: int) -> list[Statement]:
    put = "INSERT INTO fusebackend.chunk (volume, made, node, idx, data)"
    replaces = "ON CONFLICT (volume, node, idx) DO UPDATE SET data = EXCLUDED.data, made = EXCLUDED.made"
    if len(chunks) <= FEW:
        query = f"{put} SELECT %s, %s, %s, %s, %s {ALWAYS} {replaces}"
        return [(query, (volume, made, *place, bytes(chunk.data))) for place, chunk in chunks.items()]
    values = (
        volume,
        made,
        [node for node, _ in chunks],
        [index for _, index in chunks],
        [bytes(chunk.data) for chunk in chunks.values()],
    )
    return [(f"{put} SELECT %s, %s, * FROM unnest(%s::int8[], %s::int8[], %s::bytea[]) {ALWAYS} {replaces}", values)]


def put_nameless(volume: int, sessions: Mapping[int, int]) -> Statement:
    return (
        "INSERT INTO fusebackend.nameless (volume, node, session) SELECT %s, * FROM unnest(%s::int8[], %s::int8[])"
        f" {ALWAYS} ON CONFLICT DO NOTHING",
        (volume, list(sessions), list(sessions.values())),
    )


# -- reading -------------------------------------------------------------------------------------------------------

_C = columns_of("c")
_P = columns_of("p")


def inode(volume: int, node: int) -> Statement:
    return f"SELECT {COLUMNS} FROM fusebackend.inode WHERE volume = %s AND node = %s", (volume, node)


def found(volume: int, parent: int, name: bytes) -> Statement:
    """The inode of a directory, and the inode under a name in it, or nulls."""
    return (
        f"SELECT {_P}, {_C} FROM {_inode_of('%s', False)} p LEFT JOIN LATERAL {_dentry_of('p.node', '%s')} d ON true"
        f" LEFT JOIN LATERAL {_inode_of('d.node', False)} c ON true",
        (volume, parent, volume, name, volume),
    )


def listed(volume: int, parent: int, after: bytes, limit: int) -> Statement:
    """The mode, link count, times and version of a directory, and names in it with their inodes, or nulls for none."""
    return (
        f"SELECT p.mode, p.nlink, p.atime_ns, p.mtime_ns, p.ctime_ns, p.version, d.name, {_C}"
        " FROM fusebackend.inode p LEFT JOIN LATERAL (SELECT name, node"
        " FROM fusebackend.dentry WHERE volume = %s AND parent = %s AND name > %s ORDER BY name LIMIT %s) d ON true"
        f" LEFT JOIN LATERAL {_inode_of('d.node', False)} c ON true"
        " WHERE p.volume = %s AND p.node = %s ORDER BY d.name",
        (volume, parent, after, limit, volume, volume, parent),
    )


def contents(volume: int, node: int, first: int, last: int) -> Statement:
    """The inode of a file, with each of its chunks, or nulls for none."""
    return (
        f"SELECT {_I}, k.idx, k.data FROM fusebackend.inode i LEFT JOIN fusebackend.chunk k ON k.volume = i.volume"
        " AND k.node = i.node AND k.idx BETWEEN %s AND %s WHERE i.volume = %s AND i.node = %s ORDER BY k.idx",
        (first, last, volume, node),
    )


def opened(volume: int, node: int, sent: int) -> Statement:
    """The inode of a file with its only chunk, or nulls where it has more, or none, or where its bytes are `sent`."""
    return (
        f"SELECT {_I}, k.data FROM fusebackend.inode i LEFT JOIN fusebackend.chunk k ON k.volume = i.volume"
        " AND k.node = i.node AND k.idx = 0 AND i.size <= %s AND i.contents <> %s WHERE i.volume = %s AND i.node = %s",
        (CHUNK_BYTES, sent, volume, node),
    )


def small(volume: int, nodes: Sequence[int]) -> Statement:
    """The inodes of files with their only chunk, or nulls where they have more, or none."""
    return (
        f"SELECT {_I}, c.data FROM unnest(%s::int8[]) AS k (node) CROSS JOIN LATERAL {_inode_of('k.node', False)} i"
        " LEFT JOIN LATERAL (SELECT data FROM fusebackend.chunk WHERE volume = %s AND node = i.node AND idx = 0"
        " AND i.size <= %s OFFSET 0) c ON true",
        (list(nodes), volume, volume, CHUNK_BYTES),
    )


def next_chunk(volume: int, node: int, index: int) -> Statement:
    """The size of a file, and its first chunk from an index on, or null for none."""
    return (
        "SELECT i.nlink, i.size, (SELECT idx FROM fusebackend.chunk WHERE volume = i.volume AND node = i.node"
        " AND idx >= %s ORDER BY idx LIMIT 1) FROM fusebackend.inode i WHERE i.volume = %s AND i.node = %s",
        (index, volume, node),
    )


def totals(volume: int, opened: Sequence[int]) -> Statement:
    """The blocks of all inodes but the root, their number, and the bytes of extended attributes; of nodes without a
    name only those that are open here: the rows of the others go later. Sums are text: a damaged row may have any
    number."""
    return (
        "SELECT coalesce(sum(blocks), 0)::text, count(*), (SELECT coalesce(sum(length(part)), 0)::text"
        " FROM fusebackend.inode CROSS JOIN unnest(attributes) part"
        " WHERE volume = %s AND (nlink > 0 OR node = ANY(%s))) FROM fusebackend.inode"
        " WHERE volume = %s AND node <> %s AND (nlink > 0 OR node = ANY(%s))",
        (volume, list(opened), volume, ROOT_NODE, list(opened)),
    )


def accessed(volume: int, times: Mapping[int, int]) -> Statement:
    """Set access times of nodes, except of those that somebody is changing: their times will have moved anyway.

    Returns the nodes, and whether that was done.
    """
    query = "SELECT node, fusebackend.note_access(%s::int, node, at) FROM unnest(%s::int8[], %s::int8[]) k (node, at)"
    return query, (volume, list(times), list(times.values()))
