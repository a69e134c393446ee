"""The search index of a PostgreSQL volume: two tables, a trigger, an index by pg_trgm, and its `SearchIndexer`.

| table       | one row for                | columns                                                              |
|-------------|----------------------------|----------------------------------------------------------------------|
| `unindexed` | a node whose contents have | volume, node, changed_at (by the server's clock), change (the        |
|             | changed since its entry,   | transaction that did it), large: too large for an entry, so its row  |
|             | or that is too large       | stays                                                                |
| `entry`     | a text file                | volume, node, words: the distinct words (`trigram.words`) of its     |
|             |                            | chunks, with a space between them                                    |

A trigger of `chunk` puts a node into `unindexed` in each transaction that changes its bytes. So a search by the entries
that also reads the files in `unindexed` misses nothing, at any moment. An entry depends on a file's chunks alone: a
change of the size, which changes no chunk, can't make it wrong.

The index needs the extension pg_trgm. Opening a volume makes both where that is allowed; elsewhere nothing is indexed,
and the server goes through all chunks for every search.

The indexer works in the thread of the host's session, as what frees old rows does, on the two hosts that have had the
volume open for longest; an advisory lock lets one of them at a time. Each portion of the work is one transaction, which
takes some 50 ms here and as long again in the server. A row leaves `unindexed` only if it has not changed since it was
read: a writer waits for a commit at most, and its bytes are indexed again. A file that changes all the time (a log)
waits until it has been left alone for `QUIET_S`. A crash, or the lack of an indexer, costs no match: every search reads
the files without an entry.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fusebackend.backends.postgres.search.query import REGULAR
from fusebackend.base.batches import by_size
from fusebackend.databases.pipeline import BEGIN, COMMIT, Statement, send
from fusebackend.volumes import trigram
from fusebackend.volumes.storage import CHUNK_BYTES

if TYPE_CHECKING:
    from psycopg import Connection

log = logging.getLogger(__name__)

INDEXED_BYTES: Final = 1 << 20
"""Larger files have no entry: every search reads them."""

INDEX_LOCK: Final = 0x66620010
"""First key of the advisory lock under which a volume (the second key) is indexed; with 0, the index is made."""

INDEX: Final = "fusebackend.entry_words"

PENDING_KIB: Final = 4096
"""New text that the index gathers before it sorts it in. A search goes through it, for up to 10 ms; with 64 KiB, the
minimum, indexing takes five times as long. The indexer has it sorted in when it has nothing else to do."""

SEARCH_TABLES: Final = """
CREATE TABLE fusebackend.unindexed (
    volume integer NOT NULL, node bigint NOT NULL, changed_at timestamptz NOT NULL, change xid8 NOT NULL,
    large boolean NOT NULL DEFAULT false,
    PRIMARY KEY (volume, node)
) WITH (fillfactor = 70);
CREATE TABLE fusebackend.entry (
    volume integer NOT NULL, node bigint NOT NULL, words text COLLATE "C" NOT NULL,
    PRIMARY KEY (volume, node)
);
CREATE FUNCTION fusebackend.contents_changed() RETURNS trigger LANGUAGE plpgsql AS $body$
DECLARE
    of_volume integer;
    of_node bigint;
BEGIN
    IF TG_OP = 'DELETE' OR (TG_OP = 'UPDATE' AND NEW.node < 0) THEN
        of_volume := OLD.volume;
        of_node := OLD.node;
    ELSE
        of_volume := NEW.volume;
        of_node := NEW.node;
    END IF;
    IF of_node < 0 THEN
        RETURN NULL;
    END IF;
    INSERT INTO fusebackend.unindexed (volume, node, changed_at, change)
        VALUES (of_volume, of_node, clock_timestamp(), pg_current_xact_id())
        ON CONFLICT (volume, node) DO UPDATE
            SET changed_at = excluded.changed_at, change = excluded.change, large = false
            WHERE unindexed.change <> excluded.change;
    RETURN NULL;
END
$body$;
CREATE TRIGGER contents_changed AFTER INSERT OR UPDATE OR DELETE ON fusebackend.chunk
    FOR EACH ROW EXECUTE FUNCTION fusebackend.contents_changed();
"""
"""A chunk that only snapshots have has a negative node (`old_rows.py`), and is not searched."""

_STATE = """
SELECT to_regclass(%(index)s) IS NOT NULL, current_setting('server_encoding'),
    (SELECT quote_ident(nspname) FROM pg_extension JOIN pg_namespace ON pg_namespace.oid = extnamespace
     WHERE extname = 'pg_trgm')
"""


def make_index(connection: Connection[Any]) -> bool:
    """Make the index if it is missing. Returns whether it can be used; if not, a line in the log gives the reason.

    Args:
        connection: in autocommit mode.

    Raises:
        psycopg.OperationalError: the connection is lost.
    """
    import psycopg

    try:
        return _make(connection)
    except psycopg.Error as error:
        if connection.closed:
            raise
        reason = str(error).partition("\n")[0]
        log.warning(
            "grep has no index in the database '%s' and goes through all files: %s. Have somebody who may run "
            "'CREATE EXTENSION pg_trgm' there, and open the volume again",
            connection.info.dbname, reason,
        )  # fmt: skip
        return False


def _make(connection: Connection[Any]) -> bool:
    made, encoding, _ = _state(connection)
    if encoding != "UTF8":
        log.warning(
            "grep has no index in the database '%s' and goes through all files: its encoding is %s, not UTF8",
            connection.info.dbname, encoding,
        )  # fmt: skip
        return False
    if made:
        return True
    with connection.transaction():
        taken = connection.execute("SELECT pg_try_advisory_xact_lock(%s::int, 0)", [INDEX_LOCK]).fetchone()
        if taken == (False,):
            return True  # another host makes it, and a search is right without it
        connection.execute("CREATE EXTENSION IF NOT EXISTS pg_trgm")
        _, _, namespace = _state(connection)
        connection.execute(
            f"CREATE INDEX IF NOT EXISTS entry_words ON fusebackend.entry USING gin (words {namespace}.gin_trgm_ops) "
            f"WITH (fastupdate = on, gin_pending_list_limit = {PENDING_KIB})"
        )
    return True


def _state(connection: Connection[Any]) -> tuple[bool, str, str | None]:
    """Whether there is an index; the encoding of the database; the schema that pg_trgm is in."""
    row = connection.execute(_STATE, {"index": INDEX}).fetchone()
    assert row is not None, "a SELECT without FROM has a row"
    return row[0], row[1], row[2]


# -- bringing it up to date ----------------------------------------------------------------------------------------

QUIET_S = 2.0
"""A file that was changed more recently is not indexed yet."""

PORTION_FILES: Final = 256
PORTION_BYTES: Final = 2 << 20
"""Bounds of one transaction."""

_WAITING: Final = f"""
SELECT unindexed.node, change::text, (
    SELECT coalesce(sum(octet_length(data)), 0)::bigint FROM fusebackend.chunk
    WHERE chunk.volume = unindexed.volume AND chunk.node = unindexed.node
), EXISTS (
    SELECT FROM fusebackend.inode WHERE inode.volume = unindexed.volume AND inode.node = unindexed.node AND {REGULAR}
)
FROM fusebackend.unindexed
WHERE volume = %s AND NOT large AND changed_at NOT BETWEEN clock_timestamp() - make_interval(secs => %s::float8)
    AND clock_timestamp()
ORDER BY node LIMIT {PORTION_FILES}
"""
_CHUNKS: Final = """
SELECT node, idx, data FROM fusebackend.chunk WHERE volume = %s AND node = ANY(%s::bigint[]) ORDER BY node, idx
"""
_PUT: Final = """
INSERT INTO fusebackend.entry (volume, node, words) SELECT %s::int, * FROM unnest(%s::bigint[], %s::text[])
ON CONFLICT (volume, node) DO UPDATE SET words = excluded.words WHERE entry.words <> excluded.words
"""
_REMOVE: Final = "DELETE FROM fusebackend.entry WHERE volume = %s AND node = ANY(%s::bigint[])"

# A row that another transaction has locked stays: waiting for it could be a deadlock.
_SEEN: Final = """
WITH seen AS (
    SELECT node FROM fusebackend.unindexed JOIN unnest(%s::bigint[], %s::text[]) AS read (node, change) USING (node)
    WHERE volume = %s AND unindexed.change::text = read.change FOR UPDATE OF unindexed SKIP LOCKED
)
"""
_DONE: Final = _SEEN + "DELETE FROM fusebackend.unindexed USING seen WHERE volume = %s AND unindexed.node = seen.node"
_LARGE: Final = _SEEN + (
    "UPDATE fusebackend.unindexed SET large = true FROM seen WHERE volume = %s AND unindexed.node = seen.node"
)
_SORT_IN: Final = f"""
SELECT gin_clean_pending_list(oid) FROM pg_class WHERE oid = to_regclass('{INDEX}') AND pg_has_role(relowner, 'USAGE')
"""


class ChangedFile(NamedTuple):
    """A file to be indexed. `bytes` are in its chunks."""

    node: int
    change: str
    bytes: int
    is_file: bool


LEFT: Final = "EXISTS (SELECT FROM fusebackend.unindexed WHERE volume = %s AND NOT large)"


class SearchIndexer:
    """See the module's docstring. Its `work` is that of a `Worker` (`host_session.py`)."""

    def __init__(self, volume: int) -> None:
        self._volume = volume
        self._unsorted = False  # the index has gathered entries of this indexer

    def work(self, connection: Connection[Any], quiet_s: float | None = None) -> bool:
        """Index a portion, in one transaction of three round trips, which the pool rolls back if it fails. Returns
        whether there is more that has been left alone for long enough.

        Raises:
            psycopg.Error: nothing has been indexed.
        """
        lock = ("SELECT pg_try_advisory_xact_lock(%s::int, %s::int)", [INDEX_LOCK, self._volume])
        looked = (_WAITING, [self._volume, QUIET_S if quiet_s is None else quiet_s])
        _, locked, rows = send(connection, [BEGIN, lock, looked])
        waiting = [ChangedFile(*row) for row in rows] if locked == [(True,)] else []
        portion = next(by_size(waiting, _read_bytes, PORTION_FILES, PORTION_BYTES), [])
        if portion:
            self._unsorted = True
            send(connection, [*self._indexing(connection, portion), COMMIT])
            return True
        send(connection, [(_SORT_IN, []), COMMIT] if self._unsorted else [COMMIT])
        self._unsorted = False
        return False

    def _indexing(self, connection: Connection[Any], portion: list[ChangedFile]) -> list[Statement]:
        """The statements. Last come those that lock rows which writers of these files need."""
        large = [file for file in portion if file.is_file and file.bytes > INDEXED_BYTES]
        entries = self._entries(connection, [file.node for file in portion if file.is_file and file not in large])
        without = [file.node for file in portion if file.node not in entries]
        statements: list[Statement] = []
        if entries:
            statements.append((_PUT, [self._volume, list(entries), list(entries.values())]))
        if without:
            statements.append((_REMOVE, [self._volume, without]))
        for statement, files in ((_LARGE, large), (_DONE, [file for file in portion if file not in large])):
            if files:
                seen = [[file.node for file in files], [file.change for file in files]]
                statements.append((statement, [*seen, self._volume, self._volume]))
        return statements

    def _entries(self, connection: Connection[Any], nodes: list[int]) -> dict[int, str]:
        """The entries of nodes; none for a file without text.

        The chunks are read after the rows of `unindexed`: a change in between is indexed now, and once more.
        """
        if not nodes:
            return {}
        chunks: dict[int, list[tuple[int, bytes]]] = {}
        (rows,) = send(connection, [(_CHUNKS, [self._volume, nodes])])
        for node, index, data in rows:
            chunks.setdefault(node, []).append((index, data))
        texts = ((node, text_of(found)) for node, found in chunks.items())
        return {node: words_of(text) for node, text in texts if text is not None}


def _read_bytes(file: ChangedFile) -> int:
    """How much of a file is read to index it."""
    return file.bytes if file.bytes <= INDEXED_BYTES else 0


def text_of(chunks: list[tuple[int, bytes]]) -> bytes | None:
    """The text in these chunks, in order; None where they hold none, as `text.grep_lines` defines it.

    A longer file ends in zeros, which are no text. Cutting it changes no chunk and may make it text, so the size is not
    looked at.
    """
    last = len(chunks) - 1
    if any(index != place or (place < last and len(data) < CHUNK_BYTES) for place, (index, data) in enumerate(chunks)):
        return None  # zeros between them
    text = b"".join(data for _, data in chunks)
    return text if trigram.is_text(text) else None


def words_of(text: bytes) -> str:
    """An entry: the words that are long enough for the index."""
    return b" ".join(sorted(word for word in trigram.words(text) if len(word) >= trigram.TRIGRAM)).decode("utf-8")
