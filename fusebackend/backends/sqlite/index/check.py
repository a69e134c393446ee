"""Does the trigram index of a volume file know all that it has to? The part of `check.py` that reads texts.

Whatever is not in `unindexed` must be found through the index. So all of it is indexed once more, into a temporary
table, and what is in that one and not in the other is missing. More is no fault: the index keeps old entries.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from fusebackend.backends.sqlite import schema
from fusebackend.backends.sqlite.index.indexer import text_of
from fusebackend.volumes import trigram

_PAIRS = "SELECT term, doc FROM temp.{}_pairs WHERE instr(term, ?) = 0"
"""Trigrams and nodes, sorted. Those across two words depend on the order the words were in; nobody asks for them."""


def drift(db: sqlite3.Connection) -> Iterator[tuple[int, str]]:
    """The node of each file that a search may miss, and a line that says so."""
    _index_again(db)
    db.execute("CREATE VIRTUAL TABLE temp.kept_pairs USING fts5vocab(main, trigram, instance)")
    db.execute("CREATE VIRTUAL TABLE temp.wanted_pairs USING fts5vocab(temp, wanted, instance)")
    between = (trigram.shown(b" "),)
    kept = db.execute(_PAIRS.format("kept"), between)
    at: tuple[str, int] | None = kept.fetchone()
    told: set[int] = set()
    for pair in db.execute(_PAIRS.format("wanted"), between):
        while at is not None and at < pair:
            at = kept.fetchone()
        if at != pair and pair[1] not in told:
            told.add(pair[1])
            yield pair[1], f"inode {pair[1]} holds {trigram.hidden(pair[0])!r} and the index does not know it"


def _index_again(db: sqlite3.Connection) -> None:
    for table in ("kept_pairs", "wanted_pairs", "wanted"):
        db.execute(f"DROP TABLE IF EXISTS temp.{table}")  # of an earlier look through this connection
    db.execute(f"CREATE VIRTUAL TABLE temp.wanted {schema.TRIGRAMS}")
    db.execute("INSERT INTO temp.wanted (wanted, rank) VALUES ('hashsize', ?)", (schema.HASH_BYTES,))
    common = {word for (word,) in db.execute("SELECT word FROM common_word")}
    for (node,) in db.execute("SELECT node FROM inode WHERE node NOT IN (SELECT node FROM unindexed) ORDER BY node"):
        text = text_of(db, node)
        if text is not None:
            for entry in trigram.entries(trigram.words(text) - common):
                db.execute("INSERT INTO temp.wanted (rowid, words) VALUES (?, ?)", (node, entry))
