"""Checks a volume file against `schema.py`: `check(path)` returns one line for each problem. `repair(path)` mends
it, and `compact(path)` makes it smaller.

A check only reads, in one transaction, and claims nothing: a volume may be checked while it is mounted, as of the last
flush. Every rule is one query whose rows break it, so the file may be of any size; memory has the problems only, up to
`MAX_PROBLEMS`. The trigram index is checked against all texts (`drift`).
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from typing import NamedTuple

from fusebackend.backends.sqlite import schema, sync_log
from fusebackend.backends.sqlite.index import text_of
from fusebackend.backends.sqlite.old_rows import NewestRows, is_needed, prune_all
from fusebackend.backends.sqlite.stored_tree import MAX_ROW
from fusebackend.base.lines import split_lines
from fusebackend.databases.sqlite import open_file, transaction, translate_errors
from fusebackend.protocol import BLOCK_BYTES, NAME_MAX_BYTES, ROOT_NODE
from fusebackend.volumes import trigram
from fusebackend.volumes.damage import Damage
from fusebackend.volumes.posix import DIRECTORY_BYTES
from fusebackend.volumes.storage import ALLOCATION_BYTES, CHUNK_BYTES, CHUNK_SHIFT, MAX_FILE_BYTES, allocated_blocks

MAX_PROBLEMS = 1000
"""A file that is broken throughout is described by this many lines, and one more that says so."""

INODE_NUMBERS = ("mode", "nlink", "uid", "gid", "rdev", "size", "blocks", "atime_ns", "mtime_ns", "ctime_ns", "parent")
"""The columns of `inode` beside its number."""

TYPE = f"(mode & {stat.S_IFMT(0o177777)})"
DIRECTORY = f"{TYPE} = {stat.S_IFDIR}"
FILE = f"{TYPE} = {stat.S_IFREG}"
LINK = f"{TYPE} = {stat.S_IFLNK}"
KNOWN_TYPES = ", ".join(
    str(kind)
    for kind in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK, stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR, stat.S_IFBLK)
)
CHUNK_BLOCKS = f"(length(data) + {ALLOCATION_BYTES - 1}) / {ALLOCATION_BYTES} * {ALLOCATION_BYTES // BLOCK_BYTES}"
REACHED = f"""WITH RECURSIVE reached (node) AS (
    SELECT {ROOT_NODE} UNION SELECT dentry.node FROM reached JOIN dentry ON dentry.parent = reached.node
)"""
INVALID_NAME = f"""(typeof(name) != 'blob' OR length(name) NOT BETWEEN 1 AND {NAME_MAX_BYTES}
    OR instr(name, x'2f') OR instr(name, x'00') OR name IN (x'2e', x'2e2e'))"""
_NAMES = "SELECT node AS named, count(*) AS names FROM dentry GROUP BY node"
_MAX_ID = (1 << 32) - 1
LAST_CHUNK = MAX_FILE_BYTES >> CHUNK_SHIFT
BYTES = "place JOIN chunk ON chunk.id = place.chunk"
PLACED = "(SELECT chunk FROM place UNION ALL SELECT chunk FROM old_place WHERE chunk IS NOT NULL)"
"""Rows of `chunk` that a file has, or had at the time of a snapshot."""
BROKEN_SNAPSHOT = f"""(number < 1 OR {INVALID_NAME} OR typeof(time_ns) != 'integer'
    OR typeof(next_node) != 'integer' OR next_node NOT BETWEEN 2 AND (SELECT value FROM meta WHERE key = 'next_node')
    OR typeof(next_chunk) != 'integer' OR next_chunk < 1)"""
LOST_NAMES = f"""node IS NOT NULL AND NOT EXISTS (SELECT 1 FROM inode WHERE inode.node = old_dentry.node)
    AND NOT EXISTS (SELECT 1 FROM old_inode WHERE old_inode.node = old_dentry.node
        AND until >= (SELECT max(number) FROM snapshot WHERE number <= old_dentry.until))
    AND {is_needed("old_dentry", ("parent", "name"), "old_dentry")}"""


class RowRule(NamedTuple):
    """A query whose rows break the rule, and the sentence that a row's columns fill in."""

    sentence: str
    query: str


RULES = (
    RowRule(
        "the root (inode {}) is not a directory that is its own parent",
        f"SELECT node FROM inode WHERE node = {ROOT_NODE} AND NOT ({DIRECTORY} AND parent = node AND nlink > 1)",
    ),
    RowRule(
        "inode {} has a number that no inode can have",
        f"SELECT node FROM inode WHERE node NOT BETWEEN 1 AND {schema.LAST_NODE}",
    ),
    RowRule(
        "inode {} has a field that is not a number",
        "SELECT node FROM inode WHERE " + " OR ".join(f"typeof({field}) != 'integer'" for field in INODE_NUMBERS),
    ),
    RowRule(
        "inode {} has owner {}, group {} and device {}, of which one is out of range",
        f"""SELECT node, uid, gid, rdev FROM inode
            WHERE uid NOT BETWEEN 0 AND {_MAX_ID} OR gid NOT BETWEEN 0 AND {_MAX_ID}
            OR rdev NOT BETWEEN 0 AND {_MAX_ID}""",
    ),
    RowRule(
        "inode {} has mode {}, which is no type of file",
        f"SELECT node, printf('%o', mode) FROM inode WHERE {TYPE} NOT IN ({KNOWN_TYPES}) OR mode > 65535",
    ),
    RowRule(
        "inode {} has a size of {} and a link count of {}",
        "SELECT node, size, nlink FROM inode WHERE size < 0 OR nlink < 0",
    ),
    RowRule(
        "name {!r} in inode {} leads to inode {}, which does not exist",
        "SELECT name, dentry.parent, node FROM dentry WHERE node NOT IN (SELECT node FROM inode)",
    ),
    RowRule(
        "name {!r} is in inode {}, which is no directory",
        f"""SELECT name, parent FROM dentry
            WHERE parent NOT IN (SELECT node FROM inode WHERE {DIRECTORY} AND nlink > 0)""",
    ),
    RowRule(
        "name {!r} in inode {} is no name that Linux allows",
        f"SELECT name, parent FROM dentry WHERE {INVALID_NAME}",
    ),
    RowRule("the root has the name {!r} in inode {}", f"SELECT name, parent FROM dentry WHERE node = {ROOT_NODE}"),
    RowRule(
        "inode {} can't be reached from the root and has a link count of {}",
        f"{REACHED} SELECT node, nlink FROM inode WHERE nlink != 0 AND node NOT IN reached",
    ),
    RowRule(
        "inode {} has a link count of {} and {} names",
        f"""SELECT inode.node, nlink, coalesce(names, 0) FROM inode LEFT JOIN ({_NAMES}) ON named = inode.node
            WHERE NOT {DIRECTORY} AND nlink != coalesce(names, 0)""",
    ),
    RowRule(
        "directory inode {} has a link count of {} and {} subdirectories",
        f"""SELECT directory.node, nlink, coalesce(children, 0) FROM inode AS directory LEFT JOIN (
                SELECT dentry.parent AS holder, count(*) AS children FROM dentry JOIN inode ON inode.node = dentry.node
                WHERE {DIRECTORY} GROUP BY dentry.parent
            ) ON holder = directory.node
            WHERE {DIRECTORY} AND nlink != 0 AND nlink != 2 + coalesce(children, 0)""",
    ),
    RowRule(
        "directory inode {} has {} names",
        f"""SELECT inode.node, coalesce(names, 0) FROM inode LEFT JOIN ({_NAMES}) ON named = inode.node
            WHERE {DIRECTORY} AND inode.node != {ROOT_NODE} AND coalesce(names, 0) != (nlink > 0)""",
    ),
    RowRule(
        "directory inode {} is in inode {} and says its parent is inode {}",
        f"""SELECT inode.node, dentry.parent, inode.parent FROM inode JOIN dentry ON dentry.node = inode.node
            WHERE {DIRECTORY} AND dentry.parent != inode.parent""",
    ),
    RowRule(
        "inode {} is no directory and says its parent is inode {}",
        f"SELECT node, parent FROM inode WHERE NOT {DIRECTORY} AND parent != 0",
    ),
    RowRule(
        "chunk {} of inode {} belongs to no file and no link",
        f"SELECT idx, node FROM place WHERE node NOT IN (SELECT node FROM inode WHERE {FILE} OR {LINK})",
    ),
    RowRule(
        "chunk {} of inode {} has no bytes",
        "SELECT idx, node FROM place WHERE chunk NOT IN (SELECT id FROM chunk)",
    ),
    RowRule(
        "chunk {} of inode {} holds {} bytes",
        f"""SELECT place.idx, place.node, length(data) FROM {BYTES}
            WHERE typeof(data) != 'blob' OR length(data) > {CHUNK_BYTES} OR place.idx NOT BETWEEN 0 AND {LAST_CHUNK}""",
    ),
    RowRule(
        "chunk {} of inode {} holds {} bytes, beyond the end of the file at {}",
        f"""SELECT place.idx, place.node, length(data), size FROM {BYTES} JOIN inode ON inode.node = place.node
            WHERE (place.idx << {CHUNK_SHIFT}) + length(data) > size""",
    ),
    RowRule("the bytes in row {} of chunk are no file's", f"SELECT id FROM chunk WHERE id NOT IN {PLACED}"),
    RowRule(
        "the bytes in row {} of chunk are in {} places",
        f"SELECT chunk, count(*) AS places FROM {PLACED} GROUP BY chunk HAVING places > 1",
    ),
    RowRule(
        "inode {} says it has {} blocks and its chunks have {}",
        f"""SELECT inode.node, blocks, coalesce(sum({CHUNK_BLOCKS}), 0) AS allocated
            FROM inode LEFT JOIN place ON place.node = inode.node LEFT JOIN chunk ON chunk.id = place.chunk
            WHERE NOT {DIRECTORY} GROUP BY inode.node HAVING blocks != allocated""",
    ),
    RowRule(
        "directory inode {} has a size of {} and {} blocks",
        f"""SELECT node, size, blocks FROM inode WHERE {DIRECTORY}
            AND (size != {DIRECTORY_BYTES} OR blocks != {allocated_blocks(DIRECTORY_BYTES)})""",
    ),
    RowRule(
        "link inode {} has a target of {} bytes, and {} of them are there",
        f"""SELECT inode.node, size, coalesce(length(data), 0) FROM inode
            LEFT JOIN place ON place.node = inode.node AND place.idx = 0 LEFT JOIN chunk ON chunk.id = place.chunk
            WHERE {LINK} AND size != coalesce(length(data), 0)""",
    ),
    RowRule(
        "link inode {} has no target",
        f"""SELECT node FROM inode WHERE {LINK} AND nlink != 0
            AND node NOT IN (SELECT place.node FROM {BYTES} WHERE length(data) > 0)""",
    ),
    RowRule(
        "extended attribute {!r} of inode {}, which does not exist",
        "SELECT name, node FROM xattr WHERE node NOT IN (SELECT node FROM inode)",
    ),
    RowRule(
        "extended attribute {!r} of inode {} is not kept as bytes",
        "SELECT name, node FROM xattr WHERE typeof(name) != 'blob' OR typeof(value) != 'blob'",
    ),
    RowRule(
        "inode {} waits to be indexed, and does not exist",
        "SELECT node FROM unindexed WHERE node NOT IN (SELECT node FROM inode)",
    ),
    RowRule(
        "snapshot {} has a field that can't be",
        f"SELECT number FROM snapshot WHERE {BROKEN_SNAPSHOT}",
    ),
    RowRule(
        "snapshot {} was taken after {}, which should be the newest",
        """SELECT number, coalesce((SELECT value FROM meta WHERE key = 'snapshot'), 'nothing') AS newest FROM snapshot
           WHERE NOT coalesce(number <= newest, 0)""",
    ),
    RowRule(
        "inode {} has a field that is not a number, in snapshots up to {}",
        "SELECT node, until FROM old_inode WHERE "
        + " OR ".join(f"typeof({field}) != 'integer'" for field in INODE_NUMBERS),
    ),
    RowRule(
        "name {!r} in inode {} leads to inode {}, which does not exist, in snapshots up to {}",
        f"SELECT name, parent, node, until FROM old_dentry WHERE {LOST_NAMES}",
    ),
    RowRule(
        "chunk {} of inode {} has no bytes, in snapshots up to {}",
        "SELECT idx, node, until FROM old_place WHERE chunk IS NOT NULL AND chunk NOT IN (SELECT id FROM chunk)",
    ),
    RowRule(
        "the next inode would be {}, and there is an inode {}",
        f"""SELECT coalesce((SELECT value FROM meta WHERE key = 'next_node'), 'nothing'), max(node) FROM inode
            HAVING NOT coalesce((SELECT value FROM meta WHERE key = 'next_node') > max(node), 0)
            OR (SELECT value FROM meta WHERE key = 'next_node') > {schema.LAST_NODE + 1}""",
    ),
)


def check(path: str | os.PathLike[str]) -> list[str]:
    """The problems of a volume file, one line each; an empty list for a sound one.

    Raises:
        VolumeFileError: there is no such file, or it is no volume at all.
    """
    name = os.path.realpath(os.fsdecode(path))  # where SQLite puts the WAL
    try:
        status = os.stat(name)  # never opened here: closing it would drop the locks SQLite may have on it (fcntl(2))
    except OSError as error:
        raise schema.VolumeFileError(error.errno, f"cannot open '{name}': {error.strerror}") from None
    if not stat.S_ISREG(status.st_mode):
        raise schema.VolumeFileError(errno.EINVAL, f"'{name}' is not a regular file")
    # A file without a WAL is open nowhere. Read as it is, or SQLite would leave an empty WAL beside it.
    if not os.path.exists(f"{name}-wal"):
        problems = _check(name, "immutable=1")
        if not os.path.exists(f"{name}-wal"):
            return problems
    return _check(name, "mode=ro")


def _check(name: str, how: str) -> list[str]:
    try:
        with contextlib.closing(open_file(name, how)) as connection:
            schema.require_volume(connection, name)
            connection.execute("BEGIN")  # all rules see the same moment of a volume that is being written to
            return describe(connection)
    except sqlite3.Error as error:
        raise schema.VolumeFileError(errno.EIO, f"'{name}' can't be opened as a volume: {error}") from None


def describe(connection: sqlite3.Connection) -> list[str]:
    """The problems of the file of a connection, which is in a transaction."""
    problems = list(itertools.islice(_problems(connection), MAX_PROBLEMS + 1))
    if len(problems) > MAX_PROBLEMS:
        problems[-1] = f"more than {MAX_PROBLEMS} problems; the rest is not shown"
    return problems


def damaged_pages(connection: sqlite3.Connection) -> Iterator[str]:
    """The problems that SQLite finds in the pages below the tables."""
    for (answer,) in connection.execute(f"PRAGMA integrity_check({MAX_PROBLEMS})"):
        for line in split_lines(answer):
            if line != "ok" and not line.startswith("***"):  # the name of the database, always `main`
                yield f"SQLite: {line}"


def _problems(connection: sqlite3.Connection) -> Iterator[str]:
    try:
        yield from damaged_pages(connection)
        if connection.execute("SELECT count(*) FROM inode WHERE node = ?", (ROOT_NODE,)).fetchone()[0] != 1:
            yield "there is no root directory"
        for rule in RULES:
            for row in connection.execute(rule.query):
                yield rule.sentence.format(*row)
        for node in below_themselves(connection):
            yield f"directory inode {node} is below itself"
        for _, line in drift(connection):
            yield line
    except sqlite3.Error as error:
        yield f"SQLite: {error}"


def below_themselves(connection: sqlite3.Connection) -> Iterator[int]:
    """One directory of every cycle of names; `inode.parent` does not matter.

    None of a cycle is reached from the root, or one of them would have two names.
    """
    query = f"""{REACHED} SELECT dentry.node, dentry.parent FROM dentry JOIN inode ON inode.node = dentry.node
        WHERE {DIRECTORY} AND dentry.node NOT IN reached"""
    parents = dict(connection.execute(query).fetchall())
    seen_from: dict[int, int] = {}
    for start in parents:
        node = start
        while node in parents and node not in seen_from:
            seen_from[node] = start
            node = parents[node]
        if seen_from.get(node) == start and node in parents:
            yield node


_PAIRS = "SELECT term, doc FROM temp.{}_pairs WHERE instr(term, ?) = 0"
"""Trigrams and nodes, sorted. Those across two words depend on the order of the words; no search uses them."""


def drift(db: sqlite3.Connection) -> Iterator[tuple[int, str]]:
    """The node of each file that a search may miss, and a line for it.

    Every file that is not in `unindexed` must be found through the index. So all of them are indexed once more, into a
    temporary table, and its entries are looked for in the index. More is no fault: the index keeps old entries.
    """
    _index_again(db)
    db.execute("CREATE VIRTUAL TABLE temp.kept_pairs USING fts5vocab(main, trigram, instance)")
    db.execute("CREATE VIRTUAL TABLE temp.wanted_pairs USING fts5vocab(temp, wanted, instance)")
    between = (trigram.shown(b" "),)
    kept = db.execute(_PAIRS.format("kept"), between)
    at: tuple[str, int] | None = kept.fetchone()
    reported: set[int] = set()
    for pair in db.execute(_PAIRS.format("wanted"), between):
        while at is not None and at < pair:
            at = kept.fetchone()
        if at != pair and pair[1] not in reported:
            reported.add(pair[1])
            yield pair[1], f"inode {pair[1]} holds {trigram.hidden(pair[0])!r} and the index does not know it"


def _index_again(db: sqlite3.Connection) -> None:
    for table in ("kept_pairs", "wanted_pairs", "wanted"):
        db.execute(f"DROP TABLE IF EXISTS temp.{table}")  # of an earlier look through this connection
    db.execute(f"CREATE VIRTUAL TABLE temp.wanted {schema.TRIGRAMS}")
    db.execute("INSERT INTO temp.wanted (wanted, rank) VALUES ('hashsize', ?)", (schema.HASH_BYTES,))
    for (node,) in db.execute("SELECT node FROM inode WHERE node NOT IN (SELECT node FROM unindexed) ORDER BY node"):
        text = text_of(db, node)
        if text is not None:
            for entry in trigram.entries(text):
                db.execute("INSERT INTO temp.wanted (rowid, words) VALUES (?, ?)", (node, entry))


# -- repair ------------------------------------------------------------------------------------------------------
#
# A repair is one transaction on a file that no other process has open: a repair that is cut short has changed nothing.
# Values that follow from the rest of the file are corrected: counts, sizes, parents, the index. Bytes are never thrown
# away: data without an inode gets one, and files that no path leads to are moved to `/lost+found`, named by their
# numbers (`#17`). Only empty things go: names that lead nowhere, empty files and directories without a name, symbolic
# links without a target.
#
# Where SQLite reports damaged pages nothing is changed: writing to them would spread the damage.


LOST_AND_FOUND = b"lost+found"

_PARENTS = "(SELECT parent FROM dentry)"
_HOLDERS = "(SELECT node FROM place)"
_INODES = "(SELECT node FROM inode)"
_LOST = f"nlink != 0 AND node NOT IN (SELECT node FROM ({REACHED} SELECT node FROM reached))"


class Repair(NamedTuple):
    """The result of a repair.

    Attributes:
        found: problems.
        left: those that are still there.
        rescued: the number of files and directories that were moved to `/lost+found`.
        sizes: those of the file before and after it was made smaller, in bytes; None if it was not.
    """

    found: list[str]
    left: list[str]
    rescued: int = 0
    sizes: tuple[int, int] | None = None


class _DamagedPages(Exception):
    """SQLite reports damaged pages: nothing is changed."""

    def __init__(self, pages: list[str]) -> None:
        super().__init__()
        self.pages = pages


def repair(path: str | os.PathLike[str]) -> Repair:
    """Mend a volume file.

    Raises:
        VolumeFileError: there is no such file, it is no volume, or it is in use.
    """
    found = check(path)
    name = os.path.realpath(os.fsdecode(path))
    if not found:
        return Repair([], [], 0)
    with closing(schema.FileClaim(name)), closing(open_file(name, "mode=rw")) as connection:
        try:
            schema.set_up(connection)
            found += _redo(connection, name)
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            return Repair(found, *_mend(connection, _index_is_readable(name)))
        except _DamagedPages as error:
            return Repair(found, error.pages, 0)
        except sqlite3.Error as error:
            return Repair(found, [f"SQLite: {error}"], 0)


def compact(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Give the free pages of a volume file back to the disk. Returns the size of the file before and after, in bytes.

    The rows that deleted snapshots alone had are freed first. A kill at any point leaves a whole volume file.

    Raises:
        VolumeFileError: there is no such file, it is no volume, or it is in use.
        OSError: ENOSPC: see `schema.rewrite`. The file is as it was then.
    """
    name = os.path.realpath(os.fsdecode(path))
    if not os.path.exists(name):
        raise schema.VolumeFileError(errno.ENOENT, f"there is no file '{name}'")
    with closing(schema.FileClaim(name)):
        with closing(schema.connect(name)) as connection, translate_errors(f"'{name}' can't be made smaller"):
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            before = os.stat(name).st_size
            prune_all(connection)
        schema.rewrite(name)
        return before, os.stat(name).st_size


def _redo(db: sqlite3.Connection, name: str) -> list[str]:
    """Apply the sync log, whose records would not fit a mended file. A log that can't be applied gets another name, and
    is one more problem."""
    salt, number = sync_log.state(db)
    if not salt or next(sync_log.pending(name, salt, number), None) is None:
        return []
    index_is_readable = _index_is_readable(name)
    try:
        with transaction(db):
            _sound_pages(db, index_is_readable)
        last = int(db.execute("SELECT max(id) FROM chunk").fetchone()[0] or 0)
        last = max(last, int(db.execute("SELECT max(next_chunk) FROM snapshot").fetchone()[0] or 0))
        sync_log.redo(db, name, Damage(f"the volume file {name}"), count(last + 1).__next__, NewestRows.of(db))
        return []
    except (OSError, sqlite3.Error, TypeError, ValueError) as error:
        aside = f"{sync_log.log_path(name)}.unapplied"
        os.replace(sync_log.log_path(name), aside)
        return [f"the synced changes in the log can't be applied, and are kept in {aside}: {error}"]


def _sound_pages(db: sqlite3.Connection, index_is_readable: bool) -> None:
    """Look whether the pages of the file are sound, in a transaction that will end with an error if they are not.

    An index that can't be read is emptied before: since 3.44, SQLite asks it, too, and fails with it.

    Raises:
        _DamagedPages: they are not.
    """
    if not index_is_readable:
        _empty_index(db)
    db.execute("REINDEX")
    if pages := [line for line in damaged_pages(db) if "FTS5" not in line]:
        raise _DamagedPages(pages)


def _mend(db: sqlite3.Connection, index_is_readable: bool) -> tuple[list[str], int]:
    """Repair in one transaction. Returns the problems that are left, and the number of rescued files."""
    with transaction(db, "EXCLUSIVE"):
        _sound_pages(db, index_is_readable)
        for step in _STEPS:
            if isinstance(step, str):
                db.execute(step)
            else:
                step(db)
        rescued = _reconnect(db)
        for statement in _COUNTS:
            db.execute(statement)
        _own_rows(db)
        db.execute(f"DELETE FROM chunk WHERE id NOT IN {PLACED}")
        _index(db)
        left = describe(db)
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return left, rescued


# -- sound rows ----------------------------------------------------------------------------------------------------


_NUMBERED = (
    ("inode", "node"), ("dentry", "node"), ("dentry", "parent"), ("place", "node"), ("xattr", "node"),
    ("unindexed", "node"),
)  # fmt: skip
"""Columns with numbers of nodes. Not `inode.parent`: that follows from the names."""


def _renumber(db: sqlite3.Connection) -> None:
    """Give inodes with impossible numbers, and all their rows, other numbers."""
    out_of_range = " UNION ".join(
        f"SELECT {column} FROM {table} WHERE {column} NOT BETWEEN 1 AND {schema.LAST_NODE}"
        for table, column in _NUMBERED
    )
    for (node,) in db.execute(out_of_range).fetchall():
        number = _next_node(db)
        for table, column in _NUMBERED:
            db.execute(f"UPDATE OR REPLACE {table} SET {column} = ? WHERE {column} = ?", (number, node))


def _own_bytes(db: sqlite3.Connection) -> None:
    """Give each place bytes of its own: two with the same would change together."""
    seen: set[int] = set()
    for table, key in (("place", "node, idx"), ("old_place", "node, idx, until")):
        for chunk, *place in db.execute(f"SELECT chunk, {key} FROM {table} WHERE chunk IS NOT NULL").fetchall():
            if chunk in seen:
                copy = "INSERT INTO chunk (node, idx, data) SELECT node, idx, data FROM chunk WHERE id = ?"
                chunk = db.execute(copy, (chunk,)).lastrowid
                marks = ", ".join("?" * len(place))
                db.execute(f"UPDATE {table} SET chunk = ? WHERE ({key}) = ({marks})", (chunk, *place))
            seen.add(chunk)


def _own_rows(db: sqlite3.Connection) -> None:
    """Give nodes that no snapshot can have rows of `chunk` that none can have: others would never be freed."""
    node, chunk = db.execute(
        f"SELECT max(next_node), max(next_chunk) FROM snapshot WHERE NOT ({BROKEN_SNAPSHOT})"
    ).fetchone()
    if node is None or chunk > MAX_ROW:
        return
    row = max(chunk, int(db.execute("SELECT max(id) FROM chunk").fetchone()[0] or 0) + 1)
    places = db.execute("SELECT chunk, node, idx FROM place WHERE node >= ? AND chunk < ?", (node, chunk)).fetchall()
    for old, *place in places:
        db.execute("INSERT INTO chunk SELECT ?, node, idx, data FROM chunk WHERE id = ?", (row, old))
        db.execute("UPDATE place SET chunk = ? WHERE node = ? AND idx = ?", (row, *place))
        row += 1


def _root(db: sqlite3.Connection) -> None:
    """Make the root a directory; data in it becomes a file of its own."""
    db.execute(f"INSERT OR IGNORE INTO inode VALUES ({ROOT_NODE}, {stat.S_IFDIR | 0o755}, 2, {_me()})", _now())
    if db.execute("SELECT 1 FROM place WHERE node = ?", (ROOT_NODE,)).fetchone():
        db.execute("UPDATE place SET node = ? WHERE node = ?", (_next_node(db), ROOT_NODE))
    db.execute(
        f"UPDATE inode SET mode = {stat.S_IFDIR | 0o755} WHERE node = {ROOT_NODE} AND NOT {DIRECTORY}",
    )


def _missing_inodes(db: sqlite3.Connection) -> None:
    """A missing inode with names below it was a directory, one with data a file."""
    for query, mode in (
        (f"SELECT DISTINCT parent FROM dentry WHERE parent NOT IN {_INODES}", stat.S_IFDIR | 0o700),
        (f"SELECT DISTINCT node FROM place WHERE node NOT IN {_INODES}", stat.S_IFREG | 0o600),
    ):
        for (node,) in db.execute(query).fetchall():
            db.execute(f"INSERT INTO inode VALUES ({node}, {mode}, 1, {_me()})", _now())


def _one_name_each(db: sqlite3.Connection) -> None:
    """Leave each directory one name: that in its `parent`, else the first."""
    query = f"""SELECT node FROM dentry WHERE node IN (SELECT node FROM inode WHERE {DIRECTORY})
                GROUP BY node HAVING count(*) > 1"""
    for (node,) in db.execute(query).fetchall():
        names = """SELECT parent, name FROM dentry WHERE node = ?1
                   ORDER BY parent != (SELECT parent FROM inode WHERE node = ?1), parent, name"""
        for parent, name in db.execute(names, (node,)).fetchall()[1:]:
            db.execute("DELETE FROM dentry WHERE parent = ? AND name = ?", (parent, name))


_Step = str | Callable[[sqlite3.Connection], None]

_STEPS: tuple[_Step, ...] = (
    *(f"DELETE FROM {table} WHERE typeof({column}) != 'integer'"
      for table, column in (("dentry", "parent"), ("dentry", "node"), ("place", "node"), ("place", "idx"),
                            ("place", "chunk"), ("xattr", "node"), ("unindexed", "node"))),
    "DELETE FROM place WHERE chunk NOT IN (SELECT id FROM chunk)",
    "UPDATE old_place SET chunk = NULL WHERE chunk NOT IN (SELECT id FROM chunk)",
    f"""INSERT OR IGNORE INTO place SELECT node, idx, id FROM chunk
        WHERE id NOT IN {PLACED} AND typeof(node) = 'integer' AND typeof(idx) = 'integer'""",
    _own_bytes,
    *(f"UPDATE inode SET {field} = CAST({field} AS INTEGER) WHERE typeof({field}) != 'integer'"
      for field in INODE_NUMBERS),
    *(f"UPDATE inode SET {field} = 0 WHERE {field} NOT BETWEEN 0 AND 4294967295" for field in ("uid", "gid", "rdev")),
    "UPDATE inode SET mode = mode & 65535 WHERE mode NOT BETWEEN 0 AND 65535",
    "UPDATE chunk SET data = CAST(data AS BLOB) WHERE typeof(data) != 'blob'",
    f"UPDATE chunk SET data = substr(data, 1, {CHUNK_BYTES}) WHERE length(data) > {CHUNK_BYTES}",
    f"DELETE FROM place WHERE idx NOT BETWEEN 0 AND {LAST_CHUNK}",
    _renumber,
    _root,
    # Names first: a name in a missing directory would otherwise have that made.
    "UPDATE OR IGNORE dentry SET name = CAST(name AS BLOB) WHERE typeof(name) != 'blob'",
    f"DELETE FROM dentry WHERE {INVALID_NAME}",
    f"DELETE FROM dentry WHERE node = {ROOT_NODE}",
    f"DELETE FROM dentry WHERE node NOT IN {_INODES} AND node NOT IN {_HOLDERS} AND node NOT IN {_PARENTS}",
    _missing_inodes,
    # Where a mode can't be right, the rows of a node show its type.
    f"UPDATE inode SET mode = {stat.S_IFREG} | (mode & 4095) WHERE {TYPE} NOT IN ({KNOWN_TYPES})",
    f"""UPDATE inode SET mode = {stat.S_IFREG} | (mode & 4095)
        WHERE NOT {FILE} AND NOT {LINK} AND node IN {_HOLDERS} AND node NOT IN {_PARENTS}""",
    f"""UPDATE inode SET mode = {stat.S_IFDIR} | (mode & 4095)
        WHERE NOT {DIRECTORY} AND node IN {_PARENTS} AND node NOT IN {_HOLDERS}""",
    f"DELETE FROM place WHERE idx != 0 AND node IN (SELECT node FROM inode WHERE {LINK})",
    f"DELETE FROM inode WHERE {LINK} AND node NOT IN (SELECT place.node FROM {BYTES} WHERE length(data) > 0)",
    f"DELETE FROM place WHERE node NOT IN (SELECT node FROM inode WHERE {FILE} OR {LINK})",
    f"DELETE FROM dentry WHERE node NOT IN {_INODES}",
    f"DELETE FROM dentry WHERE parent NOT IN (SELECT node FROM inode WHERE {DIRECTORY})",
    _one_name_each,
    f"DELETE FROM xattr WHERE node NOT IN {_INODES}",
    "UPDATE OR IGNORE xattr SET name = CAST(name AS BLOB) WHERE typeof(name) != 'blob'",
    "DELETE FROM xattr WHERE typeof(name) != 'blob'",
    "UPDATE xattr SET value = CAST(value AS BLOB) WHERE typeof(value) != 'blob'",
    # An inode without names and links was open when the server crashed: it is freed when the volume opens.
    f"UPDATE inode SET nlink = 1 WHERE nlink < 0 OR node IN (SELECT node FROM dentry) OR node IN {_PARENTS}",
    "UPDATE inode SET size = 0 WHERE size < 0",
)  # fmt: skip
"""In this order; each may rely on those before it."""


# -- unreachable nodes ---------------------------------------------------------------------------------------------


def _reconnect(db: sqlite3.Connection) -> int:
    """Give every unreachable node that is not empty a path; returns the number of names that were made.

    It ends, for each round lowers the number of unreachable inodes or that of the names that lead to them. A node
    without a name gets one in `/lost+found`: fewer inodes are lost. Else all lost nodes have their names in lost
    directories, each of which has one name (`_one_name_each`): above each of them is a cycle, and each cycle loses a
    name.
    """
    rescued = 0
    directory: int | None = None
    while True:
        _forget_worthless(db)
        heads = db.execute(f"SELECT node FROM inode WHERE {_LOST} AND node NOT IN (SELECT node FROM dentry)").fetchall()
        if not heads:
            cycles = list(below_themselves(db))
            db.executemany("DELETE FROM dentry WHERE node = ?", [(node,) for node in cycles])
            if not cycles:
                return rescued
            continue
        directory = directory or _lost_and_found(db)
        for (node,) in heads:
            db.execute("INSERT INTO dentry VALUES (?, ?, ?)", (directory, _free_name(db, directory, node), node))
            rescued += 1


def _forget_worthless(db: sqlite3.Connection) -> None:
    """Delete nodes without a name, bytes and extended attributes; the next round may find more of them."""
    worthless = f"""{_LOST} AND node NOT IN (SELECT node FROM dentry) AND node NOT IN (SELECT node FROM xattr)
                    AND node NOT IN {_PARENTS} AND node NOT IN {_HOLDERS} AND (NOT {FILE} OR size = 0)"""
    db.execute(f"DELETE FROM inode WHERE {worthless}")


def _lost_and_found(db: sqlite3.Connection) -> int:
    """The directory of that name in the root, made when there is none."""
    for name in _numbered(LOST_AND_FOUND):
        row = db.execute(
            f"SELECT node, {DIRECTORY} FROM dentry JOIN inode USING (node) WHERE dentry.parent = ? AND name = ?",
            (ROOT_NODE, name),
        ).fetchone()
        if row is None:
            break
        if row[1]:
            return int(row[0])
    node = _next_node(db)
    db.execute(f"INSERT INTO inode VALUES ({node}, {stat.S_IFDIR | 0o700}, 2, {_me()})", _now())
    db.execute("INSERT INTO dentry VALUES (?, ?, ?)", (ROOT_NODE, name, node))
    return node


def _free_name(db: sqlite3.Connection, directory: int, node: int) -> bytes:
    query = "SELECT 1 FROM dentry WHERE parent = ? AND name = ?"
    return next(name for name in _numbered(b"#%d" % node) if db.execute(query, (directory, name)).fetchone() is None)


def _numbered(name: bytes) -> Iterator[bytes]:
    """The name, and then the same with `-2`, `-3` and so on at its end, without end."""
    yield name
    for number in count(2):
        yield b"%b-%d" % (name, number)


# -- values that follow -------------------------------------------------------------------------------------------

_SNAPSHOTS = (
    f"DELETE FROM snapshot WHERE {BROKEN_SNAPSHOT}",
    "DELETE FROM old_inode WHERE " + " OR ".join(f"typeof({field}) != 'integer'" for field in INODE_NUMBERS),
    f"UPDATE old_dentry SET node = NULL WHERE {LOST_NAMES}",
    "INSERT OR REPLACE INTO meta SELECT 'snapshot', coalesce(max(number), 0) FROM ("
    "SELECT number FROM snapshot UNION ALL SELECT until FROM old_inode UNION ALL SELECT until FROM old_dentry"
    " UNION ALL SELECT until FROM old_place UNION ALL SELECT value FROM meta"
    " WHERE key = 'snapshot' AND typeof(value) = 'integer')",
    # What a snapshot had that is lost now is freed.
    "INSERT OR REPLACE INTO pruning SELECT 1, value FROM meta WHERE key = 'snapshot'",
)
"""The rows of snapshots: what is lost there is missing in them, and the rest stays."""

_COUNTS = (
    f"UPDATE inode SET parent = 0 WHERE NOT {DIRECTORY} AND parent != 0",
    f"""UPDATE inode SET parent = coalesce((SELECT parent FROM dentry WHERE dentry.node = inode.node), {ROOT_NODE})
        WHERE {DIRECTORY}""",
    f"""UPDATE inode SET nlink = (SELECT count(*) FROM dentry WHERE dentry.node = inode.node) WHERE NOT {DIRECTORY}""",
    f"""UPDATE inode SET nlink = 2 + (SELECT count(*) FROM inode AS child WHERE child.parent = inode.node
            AND child.node != {ROOT_NODE} AND (child.mode & 61440) = {stat.S_IFDIR}
            AND child.node IN (SELECT node FROM dentry))
        WHERE {DIRECTORY} AND (nlink != 0 OR node = {ROOT_NODE})""",
    f"""UPDATE inode SET size = max(size, coalesce((
            SELECT max((place.idx << {CHUNK_SHIFT}) + length(data)) FROM {BYTES} WHERE place.node = inode.node), 0))
        WHERE {FILE}""",
    f"UPDATE inode SET size = min(size, {MAX_FILE_BYTES}) WHERE {FILE}",
    f"""UPDATE inode SET size = (SELECT length(data) FROM {BYTES} WHERE place.node = inode.node AND place.idx = 0)
        WHERE {LINK}""",
    f"""UPDATE inode SET blocks = coalesce((
            SELECT sum({CHUNK_BLOCKS}) FROM {BYTES} WHERE place.node = inode.node), 0) WHERE NOT {DIRECTORY}""",
    f"""UPDATE inode SET size = {DIRECTORY_BYTES}, blocks = {allocated_blocks(DIRECTORY_BYTES)} WHERE {DIRECTORY}""",
    "DELETE FROM unindexed WHERE node NOT IN (SELECT node FROM inode)",
    "INSERT OR REPLACE INTO meta SELECT 'next_node', max(node) + 1 FROM inode",
    *_SNAPSHOTS,
)


def _index_is_readable(path: str) -> bool:
    """Checked on a connection of its own: after an error of the index a connection can't write any more."""
    with closing(open_file(path, "mode=rw")) as db:
        try:
            for _ in drift(db):
                pass
        except sqlite3.Error:
            return False
    return True


def _index(db: sqlite3.Connection) -> None:
    """Have files indexed anew that the index does not cover in full."""
    for node, _ in list(drift(db)):
        db.execute("INSERT OR REPLACE INTO unindexed VALUES (?, 0)", (node,))


def _empty_index(db: sqlite3.Connection) -> None:
    """Fill the index's tables as those of a new one: a broken index can't be opened or dropped, but its tables can."""
    new = open_file("new", "mode=memory")
    for statement in schema.ALL_TABLES:
        new.execute(statement)
    for table in ("trigram_data", "trigram_idx", "trigram_config"):
        db.execute(f"DELETE FROM {table}")
        for row in new.execute(f"SELECT * FROM {table}"):
            db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
    new.close()
    db.execute("INSERT OR REPLACE INTO unindexed SELECT node, 0 FROM inode WHERE size > 0")


def _next_node(db: sqlite3.Connection) -> int:
    """An unused number: the next one, or the first gap when the last one is taken."""
    used = " UNION ALL ".join(
        f"SELECT {column} AS number FROM {table} WHERE {column} BETWEEN 1 AND {schema.LAST_NODE}"
        for table, column in _NUMBERED
    )
    highest = int(db.execute(f"SELECT coalesce(max(number), {ROOT_NODE}) FROM ({used})").fetchone()[0])
    if highest < schema.LAST_NODE:
        return highest + 1
    gap = f"SELECT min(number) + 1 FROM ({used}) WHERE number + 1 NOT IN (SELECT number FROM ({used}))"
    return int(db.execute(gap).fetchone()[0])


def _me() -> str:
    """The rest of a row of `inode` after its link count: the user of this process owns repaired nodes."""
    return f"{os.geteuid()}, {os.getegid()}, 0, 0, 0, ?1, ?1, ?1, 0"


def _now() -> tuple[int]:
    return (time.time_ns(),)
