"""`Indexer`: brings the trigram index of an SQLite volume up to date, beside those who write.

Which files it has to look at is in the table `unindexed`, where a flush puts a file in the transaction that changes its
contents. So nothing is missed in a crash, and a search that also reads the files in that table finds everything. The
work is done in portions, each of which is one transaction of some 30 ms on a connection of its own, without the
volume's lock; whoever flushes meanwhile waits for the portion at most. What is changed all the time (a log) waits
until it has been left alone for `QUIET_S`. When the disk is nearly full nothing is indexed.

An entry is never taken out of the index: an old one only makes a search read a file too many. When there are twice as
many as files, all is indexed anew.

`volumes/trigram.py` says what an entry is. Used by one thread.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from fusebackend.backends.sqlite.schema import INDEXED_BYTES
from fusebackend.volumes import trigram

QUIET_S = 2.0
"""A file that was changed more recently is not indexed yet."""

PORTION_S = 0.02
"""After this a portion is committed, which may take as long again."""

PORTION_FILES = 256

RETRY_S = 10.0
"""How long nothing is tried after the disk was too full."""

ROOM_BYTES = 64 << 20
"""The index leaves so much of the disk to the files."""

SAMPLE_FILES = 256
SAMPLED = 4
"""One file of so many is looked at for common words, if it is no longer than `SAMPLED_BYTES`."""

SAMPLED_BYTES = 16 << 10

COMMON_FILES = 4
"""A word that is in so many files of a sample is common."""

COMMON_WORDS = 1 << 14
COMMON_BYTES = 64
"""How many common words there are at most, and how long one may be: some 200 KiB, that a search goes through."""

REBUILD_ENTRIES = 10_000
"""So few entries are never too many."""

_INDEXABLE = f"""SELECT size FROM inode
    WHERE node = ? AND (mode & {stat.S_IFMT(0o177777)}) = {stat.S_IFREG} AND size BETWEEN 1 AND {INDEXED_BYTES}"""


class Piece(NamedTuple):
    """Work that can't be divided: a slice of a file's entry."""

    node: int
    changed_ns: int
    entry: str | None
    last: bool


class Indexer:
    """See the module's docstring. `path` is the volume file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._start_over()

    def _start_over(self) -> None:
        """Know nothing but what the file says."""
        self._pieces: Iterator[Piece] = iter(())
        self._common: set[bytes] | None = None
        self._sample: Counter[bytes] = Counter()
        self._sampled = 0
        self._seen = 0
        self._entry_limit = REBUILD_ENTRIES

    def work(self, db: sqlite3.Connection, quiet_s: float = QUIET_S) -> float | None:
        """Index a portion; gives the seconds after which there may be more to do, None when nothing is left.

        Raises:
            sqlite3.Error: nothing has been indexed. SQLITE_BUSY when somebody writes just now.
        """
        disk = os.statvfs(self._path)
        if disk.f_bavail * disk.f_frsize < ROOM_BYTES:
            return RETRY_S
        db.execute("BEGIN IMMEDIATE")
        try:
            more = self._portion(db, time.monotonic() + PORTION_S, round(quiet_s * 1e9))
            waiting = more or db.execute("SELECT 1 FROM unindexed LIMIT 1").fetchone() is not None
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            self._start_over()
            raise
        if more:
            return 0.0
        return quiet_s if waiting else None

    def _portion(self, db: sqlite3.Connection, until: float, quiet_ns: int) -> bool:
        """Is there more that could be done at once?"""
        if self._common is None:
            self._common = {word for (word,) in db.execute("SELECT word FROM common_word")}
        entries = 0
        while (piece := self._next(db, quiet_ns)) is not None:
            if piece.entry is not None:
                db.execute("INSERT INTO trigram (rowid, words) VALUES (?, ?)", (piece.node, piece.entry))
                entries += piece.last
            if piece.last:
                # Not if it has been changed since its words were taken, in another portion.
                db.execute("DELETE FROM unindexed WHERE node = ? AND changed_ns = ?", (piece.node, piece.changed_ns))
            if time.monotonic() > until:
                break
        if entries:
            add = "INSERT INTO meta VALUES ('indexed', ?1) ON CONFLICT (key) DO UPDATE SET value = value + ?1"
            db.execute(add, (entries,))
            self._rebuild_if_stale(db)
        return piece is not None

    def _next(self, db: sqlite3.Connection, quiet_ns: int) -> Piece | None:
        piece = next(self._pieces, None)
        if piece is None:
            now = time.time_ns()
            rows = db.execute(
                "SELECT node, changed_ns FROM unindexed WHERE changed_ns NOT BETWEEN ? AND ? ORDER BY node LIMIT ?",
                (now - quiet_ns + 1, now, PORTION_FILES),
            ).fetchall()
            self._pieces = self._all_pieces(db, rows)
            piece = next(self._pieces, None)
        return piece

    def _all_pieces(self, db: sqlite3.Connection, rows: list[tuple[int, int]]) -> Iterator[Piece]:
        for node, changed_ns in rows:
            data = text_of(db, node)
            entries = [] if data is None else list(trigram.entries(self._uncommon(db, data)))
            for entry in entries[:-1]:
                yield Piece(node, changed_ns, entry, False)
            yield Piece(node, changed_ns, entries[-1] if entries else None, True)

    def _uncommon(self, db: sqlite3.Connection, data: bytes) -> set[bytes]:
        assert self._common is not None, "no portion has begun"
        found = trigram.words(data) - self._common  # not `-=`, which goes through all the common ones
        self._seen += 1
        if self._seen % SAMPLED == 0 and len(data) <= SAMPLED_BYTES:
            self._sample.update(found)
            self._sampled += 1
            if self._sampled == SAMPLE_FILES:
                self._take_sample(db)
        return found

    def _take_sample(self, db: sqlite3.Connection) -> None:
        """Find words that have become common. For the next files: what has been taken is indexed with them."""
        assert self._common is not None, "no portion has begun"
        often = [
            word for word, files in self._sample.items()
            if files >= COMMON_FILES and trigram.TRIGRAM <= len(word) <= COMMON_BYTES
        ]  # fmt: skip
        del often[COMMON_WORDS - len(self._common) :]
        db.executemany("INSERT OR IGNORE INTO common_word VALUES (?)", [(word,) for word in often])
        self._common.update(often)
        self._sample.clear()
        self._sampled = 0

    def _rebuild_if_stale(self, db: sqlite3.Connection) -> None:
        entries = db.execute("SELECT value FROM meta WHERE key = 'indexed'").fetchone()[0]
        if entries <= self._entry_limit:
            return
        files = db.execute("SELECT count(*) FROM inode").fetchone()[0]
        self._entry_limit = 2 * files + REBUILD_ENTRIES
        if entries > self._entry_limit:
            db.execute("INSERT INTO trigram (trigram) VALUES ('delete-all')")
            db.execute("DELETE FROM common_word")
            db.execute("INSERT OR REPLACE INTO unindexed SELECT node, 0 FROM inode WHERE size > 0")
            db.execute("UPDATE meta SET value = 0 WHERE key = 'indexed'")
            self._start_over()


def text_of(db: sqlite3.Connection, node: int) -> bytes | None:
    """The bytes of a file to be indexed. None for what no search through the index may find: a node that is no regular
    file, is empty or too large, or holds no text, as `text.grep_lines` defines it."""
    # SQLite compares: a damaged row may hold anything, and Python raises for what is no number or a negative one.
    row = db.execute(_INDEXABLE, (node,)).fetchone()
    if row is None:
        return None
    rows = db.execute("SELECT CAST(data AS BLOB) FROM chunk WHERE node = ? ORDER BY idx", (node,)).fetchall()
    data = rows[0][0] if len(rows) == 1 else b"".join(piece for (piece,) in rows)
    if len(data) != row[0] or b"\0" in data:  # what is missing in chunks is zeros
        return None
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return bytes(data)
