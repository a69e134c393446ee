"""`IndexWalk`: the files below a directory of an SQLite volume that may hold a pattern, from the volume file itself.

It stands where a plain search has its `FileWalk`, and gives the files in the same order; what it leaves out holds no
match. It asks the trigram index, and adds what the index does not speak of: files that have changed since they were
indexed, and large ones. SQLite then drops those whose only chunk does not hold the pattern, which is ten times quicker
than reading them here. A pattern of which the index knows nothing (`volumes/trigram.py`) is looked for in every file,
in that way when the whole volume is searched, and by a `FileWalk` below a directory, which may be a small one.

All of it is one moment of the volume, after a flush; nobody's lock is held.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import stat
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fusebackend.backends.sqlite.schema import INDEXED_BYTES, connect_again
from fusebackend.base import budget, paths
from fusebackend.base.errors import VANISHED
from fusebackend.protocol import ROOT_NODE, Attr
from fusebackend.volumes import trigram
from fusebackend.volumes.chunks import CHUNK_BYTES
from fusebackend.volumes.walk import FileWalk

if TYPE_CHECKING:
    from fusebackend.backends.sqlite.backend import SqliteVolume

log = logging.getLogger(__name__)

POLL_STEPS = 10_000
"""Steps of SQLite's machine, of some 50 ns, between two questions to the budget."""

_FILE = f"(mode & {stat.S_IFMT(0o177777)}) = {stat.S_IFREG}"

_INDEXED = "SELECT rowid AS node FROM trigram WHERE trigram MATCH :query UNION SELECT node FROM unindexed"
_ALL = f"SELECT node FROM inode WHERE size BETWEEN 1 AND {INDEXED_BYTES}"
_NAMES = f"""
    SELECT dentry.parent, dentry.name, dentry.node
    FROM ({{candidates}}) AS candidate CROSS JOIN inode ON inode.node = candidate.node
    LEFT JOIN chunk ON chunk.node = inode.node AND chunk.idx = 0
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


class IndexWalk:
    """See the module's docstring. To be used as a `FileWalk`.

    Attributes:
        unreadable: always False; a volume of this kind can be read throughout.
    """

    unreadable = False

    def __init__(
        self,
        pattern: str,
        volume: SqliteVolume,
        directory: int,
        *,
        below: Sequence[str] = (),
        depth: int | None = None,
    ) -> None:
        self._volume = volume
        self._pattern = pattern
        self._directory = directory
        self._plain = FileWalk(volume, directory, below=below, depth=depth)
        self._budget = budget.current()

    def __iter__(self) -> Iterator[tuple[str, Attr]]:
        """Paths relative to the directory. Also some that a `below` and `depth` would spare the caller."""
        found = self._find()
        if found is None:
            yield from self._plain
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
        try:
            needle = self._pattern.encode("utf-8")
        except UnicodeEncodeError:
            return None
        try:
            self._volume.write_back()
        except OSError:  # the disk is full; what was written stays in memory, where the index does not see it
            return None
        with contextlib.closing(connect_again(self._volume.path)) as db:
            db.set_progress_handler(lambda: self._budget.spent, POLL_STEPS)
            try:
                db.execute("BEGIN")
                query = trigram.query(self._telling(db, needle))
                if not query and self._directory != ROOT_NODE:
                    return None
                names = _NAMES.format(candidates=_INDEXED if query else _ALL)
                rows = db.execute(names, {"query": query, "needle": needle}).fetchall()
                return self._below(db, rows)
            except sqlite3.Error as error:
                self._budget.require()
                log.error("the trigram index of %s failed and is not used: %s", self._volume.path, error)
                return None

    @staticmethod
    def _telling(db: sqlite3.Connection, needle: bytes) -> list[bytes]:
        """The fragments of a pattern that no common word holds."""
        query = "SELECT 1 FROM common_word WHERE instr(word, ?) LIMIT 1"
        return [part for part in trigram.fragments(needle) if db.execute(query, (part,)).fetchone() is None]

    def _below(self, db: sqlite3.Connection, rows: list[tuple[int, bytes, int]]) -> list[tuple[str, int]]:
        """What is below the directory, of names and where they are."""
        prefixes: dict[int, str | None] = {ROOT_NODE: None, self._directory: ""}
        found: list[tuple[str, int]] = []
        for parent, name, node in rows:
            prefix = self._prefix(db, parent, prefixes)
            if prefix is not None and type(name) is bytes and b"/" not in name:
                found.append((prefix + paths.to_text(name), node))
        found.sort()
        return found

    def _prefix(self, db: sqlite3.Connection, directory: int, prefixes: dict[int, str | None]) -> str | None:
        """The way down to a directory, None when it is elsewhere. `prefixes` are those known by now."""
        trail: list[tuple[int, str]] = []
        node = directory
        while node not in prefixes:
            self._budget.require()
            prefixes[node] = None  # until the way down is known; on damaged volumes directories may be in a circle
            row = db.execute(_ABOVE, (node,)).fetchone()
            if row is None:
                break
            trail.append((node, paths.to_text(row[1])))
            node = row[0]
        for below, name in reversed(trail):
            above = prefixes[node]
            prefixes[below] = None if above is None else f"{above}{name}/"
            node = below
        return prefixes[directory]
