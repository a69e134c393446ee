"""The trigram index of an SQLite volume: `Indexer` brings it up to date, `IndexWalk` finds files with it.

The indexer works in the flusher's thread. It takes files from `unindexed` in portions of some 30 ms, on a connection of
its own, without the volume's lock; a flush waits for one portion at most. A file that changes all the time (a log)
waits until it has been left alone for `QUIET_S`. When the disk is nearly full nothing is indexed. An entry is never
taken out of the index: an old one only makes a search read one file more. With twice as many entries as files, all is
indexed anew.

The walk gives the files below a directory that may hold a pattern, in the order of a `FileWalk`; a file that it leaves
out has no match. It queries the index, adds the files that the index does not cover (changed since they were indexed,
or large), and has SQLite drop those whose only chunk lacks the pattern, which is ten times quicker than reading them
here. A pattern without a word (`volumes/trigram.py`) is looked for in every file, in that way when the whole volume
is searched, and by a `FileWalk` below a directory, which may be a small one. All of it is one moment of the volume,
after a flush, without any lock.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import stat
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple, cast

from fusebackend.backends.sqlite.schema import INDEXED_BYTES, clear_index, connect_again
from fusebackend.backends.sqlite.stored_tree import SqliteTree
from fusebackend.base import paths
from fusebackend.base.errors import VANISHED
from fusebackend.databases.sqlite import transaction
from fusebackend.protocol import ROOT_NODE, Attr
from fusebackend.volumes import trigram
from fusebackend.volumes.storage import CHUNK_BYTES
from fusebackend.volumes.walk import FileWalk, prefix_of

log = logging.getLogger(__name__)

QUIET_S = 2.0
"""A file that was changed more recently is not indexed yet."""

PORTION_S = 0.02
"""After this a portion is committed, which may take as long again."""

PORTION_FILES = 256

RETRY_S = 10.0
"""The pause after the disk was too full."""

ROOM_BYTES = 64 << 20
"""The index leaves so much of the disk to the files."""

REBUILD_ENTRIES = 10_000
"""So few entries are never too many."""

_INDEXABLE = f"""SELECT size FROM inode
    WHERE node = ? AND (mode & {stat.S_IFMT(0o177777)}) = {stat.S_IFREG} AND size BETWEEN 1 AND {INDEXED_BYTES}"""

_DATA = """SELECT CAST(data AS BLOB) FROM place JOIN chunk ON id = chunk WHERE place.node = ? ORDER BY place.idx"""


class EntrySlice(NamedTuple):
    """Work that can't be divided: a slice of a file's entry."""

    node: int
    changed_ns: int
    entry: str | None
    last: bool


class Indexer:
    """Indexes the files of a volume. Used by one thread. `path` is the volume file."""

    failure = "can't have its index brought up to date"

    def __init__(self, path: str) -> None:
        self._path = path
        self._start_over()

    def _start_over(self) -> None:
        """Forget everything that is not in the file."""
        self._pieces: Iterator[EntrySlice] | None = None  # what the last portion has not come to
        self._entry_limit = REBUILD_ENTRIES

    def work(self, db: sqlite3.Connection, quiet_s: float = QUIET_S) -> float | None:
        """Index a portion; gives the seconds after which there may be more to do, None when nothing is left.

        Raises:
            sqlite3.Error: nothing has been indexed. SQLITE_BUSY while another connection writes.
        """
        disk = os.statvfs(self._path)
        if disk.f_bavail * disk.f_frsize < ROOM_BYTES:
            return RETRY_S
        try:
            with transaction(db):
                more = self._portion(db, time.monotonic() + PORTION_S, round(quiet_s * 1e9))
                waiting = more or db.execute("SELECT 1 FROM unindexed LIMIT 1").fetchone() is not None
        except BaseException:
            self._start_over()
            raise
        if more:
            return 0.0
        return quiet_s if waiting else None

    def _portion(self, db: sqlite3.Connection, until: float, quiet_ns: int) -> bool:
        """Index for some time. Returns whether there is more to do."""
        entries, more = 0, False
        pieces = self._pieces or self._slices(db, quiet_ns)
        self._pieces = None
        for piece in pieces:
            if piece.entry is not None:
                db.execute("INSERT INTO trigram (rowid, words) VALUES (?, ?)", (piece.node, piece.entry))
                entries += piece.last
            if piece.last:
                # Not if it has been changed since its words were taken, in another portion.
                db.execute("DELETE FROM unindexed WHERE node = ? AND changed_ns = ?", (piece.node, piece.changed_ns))
            if time.monotonic() > until:
                self._pieces, more = pieces, True
                break
        if entries:
            add = "INSERT INTO meta VALUES ('indexed', ?1) ON CONFLICT (key) DO UPDATE SET value = value + ?1"
            db.execute(add, (entries,))
            self._rebuild_if_stale(db)
        return more

    def _slices(self, db: sqlite3.Connection, quiet_ns: int) -> Iterator[EntrySlice]:
        """Yield the work that is due. The caller takes the files of each query out of the table."""
        due = "SELECT node, changed_ns FROM unindexed WHERE changed_ns NOT BETWEEN ? AND ? ORDER BY node LIMIT ?"
        now = time.time_ns()
        while rows := db.execute(due, (now - quiet_ns + 1, now, PORTION_FILES)).fetchall():
            for node, changed_ns in rows:
                data = text_of(db, node)
                entries = [] if data is None else list(trigram.entries(data))
                for entry in entries[:-1]:
                    yield EntrySlice(node, changed_ns, entry, False)
                yield EntrySlice(node, changed_ns, entries[-1] if entries else None, True)
            now = time.time_ns()

    def _rebuild_if_stale(self, db: sqlite3.Connection) -> None:
        entries = db.execute("SELECT value FROM meta WHERE key = 'indexed'").fetchone()[0]
        if entries <= self._entry_limit:
            return
        files = db.execute("SELECT count(*) FROM inode").fetchone()[0]
        self._entry_limit = 2 * files + REBUILD_ENTRIES
        if entries > self._entry_limit:
            self.clear(db)

    def clear(self, db: sqlite3.Connection) -> None:
        """Have all files indexed anew, inside the caller's transaction, which any thread may have: none has another."""
        clear_index(db)
        self._start_over()


def text_of(db: sqlite3.Connection, node: int) -> bytes | None:
    """The bytes of a file to be indexed. None for a node that is no regular file, is empty or too large, or is no text
    as `text.grep_lines` defines it."""
    # SQLite compares: in Python a damaged row, which may hold any type, would raise.
    row = db.execute(_INDEXABLE, (node,)).fetchone()
    if row is None:
        return None
    rows = db.execute(_DATA, (node,)).fetchall()
    data = rows[0][0] if len(rows) == 1 else b"".join(piece for (piece,) in rows)
    return bytes(data) if len(data) == row[0] and trigram.is_text(data) else None  # missing chunks are zeros


# -- searching -------------------------------------------------------------------------------------------------------

POLL_STEPS = 10_000
"""Steps of SQLite's machine, of some 50 ns, between two looks at the budget."""

_FILE = f"(mode & {stat.S_IFMT(0o177777)}) = {stat.S_IFREG}"

_INDEXED = "SELECT rowid AS node FROM trigram WHERE trigram MATCH :query UNION SELECT node FROM unindexed"
_ALL = f"SELECT node FROM inode WHERE size BETWEEN 1 AND {INDEXED_BYTES}"
_NAMES = f"""
    SELECT dentry.parent, dentry.name, dentry.node
    FROM ({{candidates}}) AS candidate CROSS JOIN inode ON inode.node = candidate.node
    LEFT JOIN place ON place.node = inode.node AND place.idx = 0 LEFT JOIN chunk ON chunk.id = place.chunk
    CROSS JOIN dentry ON dentry.node = inode.node
    WHERE {_FILE} AND size <= {INDEXED_BYTES} AND (size > {CHUNK_BYTES} OR instr(chunk.data, :needle))
    UNION ALL
    SELECT dentry.parent, dentry.name, dentry.node FROM inode CROSS JOIN dentry ON dentry.node = inode.node
    WHERE {_FILE} AND size > {INDEXED_BYTES}
"""
_ABOVE = """
    SELECT dentry.parent, name FROM dentry JOIN inode ON inode.node = dentry.node
    WHERE dentry.node = ? AND inode.parent = dentry.parent AND typeof(name) = 'blob' LIMIT 1
"""


class IndexWalk(FileWalk):
    """A `FileWalk` of the files that may hold a pattern, by the index."""

    _volume: SqliteTree

    def __init__(
        self,
        pattern: str,
        volume: SqliteTree,
        directory: int,
        *,
        below: Sequence[str] = (),
        depth: int | None = None,
    ) -> None:
        super().__init__(volume, directory, below=below, depth=depth)
        self._pattern = pattern

    def __iter__(self) -> Iterator[tuple[str, Attr]]:
        """Paths relative to the directory, some of them outside of `below` and `depth`."""
        found = self._find()
        if found is None:
            yield from super().__iter__()
            return
        for relative, node in found:
            self._budget.require()
            try:
                attr = self._volume.getattr(node)
            except OSError as error:
                if error.errno not in VANISHED:
                    raise
                continue
            yield relative, attr

    def _find(self) -> list[tuple[str, int]] | None:
        """Relative paths and nodes, sorted. None when the index is of no use here."""
        needle = self._pattern.encode("utf-8", "surrogatepass")  # no text holds a lone surrogate
        try:
            self._volume.write_back()
        except OSError:  # the disk is full: the index does not cover the dirty buffer
            return None
        with contextlib.closing(connect_again(self._volume.path)) as db:
            db.set_progress_handler(lambda: self._budget.spent, POLL_STEPS)
            try:
                db.execute("BEGIN")
                query = trigram.query(needle)
                if not query and self._directory != ROOT_NODE:
                    return None
                names = _NAMES.format(candidates=_INDEXED if query else _ALL)
                rows = db.execute(names, {"query": query, "needle": needle}).fetchall()
                return self._files(db, rows)
            except sqlite3.Error as error:
                self._budget.require()
                log.error("the trigram index of %s failed and is not used: %s", self._volume.path, error)
                return None

    def _files(self, db: sqlite3.Connection, rows: list[tuple[int, bytes, int]]) -> list[tuple[str, int]]:
        """The files below the directory, of names with their directories."""
        prefixes: dict[int, str | None] = {ROOT_NODE: None, self._directory: ""}
        found: list[tuple[str, int]] = []
        for parent, name, node in rows:
            prefix = prefix_of(parent, partial(self._place, db), prefixes)
            if prefix is not None and type(name) is bytes and b"/" not in name:
                found.append((prefix + paths.to_text(name), node))
        found.sort()
        return found

    def _place(self, db: sqlite3.Connection, directory: int) -> tuple[int, bytes] | None:
        self._budget.require()
        return cast("tuple[int, bytes] | None", db.execute(_ABOVE, (directory,)).fetchone())
