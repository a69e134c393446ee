"""Checks a volume file against `schema.py`: `check(path)` returns one line for each problem.

It only reads, in one transaction, and claims nothing: a volume may be checked while it is mounted, as of the last
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
from collections.abc import Iterator
from typing import NamedTuple

from fusebackend.backends.sqlite import schema
from fusebackend.backends.sqlite.index import text_of
from fusebackend.backends.sqlite.old_rows import is_needed
from fusebackend.base.lines import split_lines
from fusebackend.databases.sqlite import open_file
from fusebackend.protocol import BLOCK_BYTES, NAME_MAX_BYTES, ROOT_NODE
from fusebackend.volumes import trigram
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
    with contextlib.closing(open_file(name, how)) as connection:
        try:
            schema.require_volume(connection, name)
        except sqlite3.Error as error:
            raise schema.VolumeFileError(errno.EIO, f"'{name}' can't be opened as a volume: {error}") from None
        connection.execute("BEGIN")  # all rules see the same moment of a volume that is being written to
        return describe(connection)


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
