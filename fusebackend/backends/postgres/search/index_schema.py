"""What a PostgreSQL volume keeps for its `grep`: two tables, a trigger, and an index by pg_trgm.

| table       | one row for                | columns                                                              |
|-------------|----------------------------|----------------------------------------------------------------------|
| `unindexed` | a node whose contents have | volume, node, changed_at (by the server's clock), change (the        |
|             | changed since its entry,   | transaction that did it), large: too large for an entry, so its row  |
|             | or that is too large       | stays                                                                |
| `entry`     | a text file                | volume, node, words: the distinct words (`trigram.words`) of its     |
|             |                            | chunks, with a space between them                                    |

A trigger of `chunk` puts a node into `unindexed` in the transaction that changes its bytes, whoever makes it. So a
search that looks at the entries and also reads the files in `unindexed` misses nothing, at any moment. An entry tells
of a file's chunks alone, so that a change of the file's size, which is no change of a chunk, can't make it wrong.

The index needs the extension pg_trgm. Whoever opens a volume makes both where that is allowed; where it isn't, nothing
is indexed and every search reads what the server finds by going through the chunks.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from psycopg import Connection

log = logging.getLogger(__name__)

INDEXED_BYTES: Final = 1 << 20
"""Larger files have no entry: every search reads them."""

INDEX_LOCK: Final = 0x66620010
"""First key of the advisory lock under which a volume (the second key) is indexed; with 0, the index is made."""

INDEX: Final = "fusebackend.entry_words"

PENDING_KIB: Final = 4096
"""How much new text the index gathers before it sorts that in. A search goes through it, for up to 10 ms; with 64 KiB,
the least there may be, indexing takes five times as long. The indexer has it sorted in when all else is done."""

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
    changed fusebackend.chunk%ROWTYPE;
BEGIN
    IF TG_OP = 'DELETE' THEN changed := OLD; ELSE changed := NEW; END IF;
    INSERT INTO fusebackend.unindexed (volume, node, changed_at, change)
        VALUES (changed.volume, changed.node, clock_timestamp(), pg_current_xact_id())
        ON CONFLICT (volume, node) DO UPDATE
            SET changed_at = excluded.changed_at, change = excluded.change, large = false
            WHERE unindexed.change <> excluded.change;
    RETURN NULL;
END
$body$;
CREATE TRIGGER contents_changed AFTER INSERT OR UPDATE OR DELETE ON fusebackend.chunk
    FOR EACH ROW EXECUTE FUNCTION fusebackend.contents_changed();
INSERT INTO fusebackend.unindexed (volume, node, changed_at, change)
    SELECT DISTINCT volume, node, clock_timestamp(), pg_current_xact_id() FROM fusebackend.chunk;
"""
"""The migration; `postgres/schema.py` runs it."""

_STATE = """
SELECT to_regclass(%(index)s) IS NOT NULL, current_setting('server_encoding'),
    (SELECT quote_ident(nspname) FROM pg_extension JOIN pg_namespace ON pg_namespace.oid = extnamespace
     WHERE extname = 'pg_trgm')
"""


def make_index(connection: Connection[Any]) -> bool:
    """Make the index if it is not there. Can it be used? If not, one line in the log says why.

    Args:
        connection: one that commits by itself.

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
            return True  # somebody else makes it, and a search is right without it
        made, _, namespace = _state(connection)
        if namespace is None:
            connection.execute("CREATE EXTENSION pg_trgm")
            _, _, namespace = _state(connection)
        if not made:
            connection.execute(
                f"CREATE INDEX entry_words ON fusebackend.entry USING gin (words {namespace}.gin_trgm_ops) "
                f"WITH (fastupdate = on, gin_pending_list_limit = {PENDING_KIB})"
            )
    return True


def _state(connection: Connection[Any]) -> tuple[bool, str, str | None]:
    """Is there an index; the encoding of the database; the schema that pg_trgm is in."""
    row = connection.execute(_STATE, {"index": INDEX}).fetchone()
    assert row is not None, "a SELECT without FROM has a row"
    return row[0], row[1], row[2]
