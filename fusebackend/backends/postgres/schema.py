"""The tables of `PostgresBackend`, how they are made, and how a volume is found among them.

All of them are in the PostgreSQL schema `fusebackend`. One database holds any number of separate volumes: nearly every
table has a column `volume`.

Version 1; those of searches are in `search.py`:

| table            | one row for                | columns                                                           |
|------------------|----------------------------|-------------------------------------------------------------------|
| `schema_version` | the database               | version: `VERSION`                                                |
| `volume`         | a volume                   | id, name, made_at; newest: the number of its newest snapshot, 0   |
|                  |                            | for none; taken: how many there ever were                         |
| `inode`          | a file, directory, link …  | volume, node, mode (as st_mode), nlink, uid, gid, rdev, size      |
|                  |                            | (bytes), blocks (of 512 bytes), atime_ns, mtime_ns, ctime_ns,     |
|                  |                            | parent (of a directory; 0 elsewhere), version, contents, emptied, |
|                  |                            | made, attributes (extended ones: names and values in turn; null   |
|                  |                            | for none)                                                         |
| `dentry`         | a name                     | volume, parent (node), name (bytes), node, made                   |
| `chunk`          | up to 64 KiB of a file     | volume, node, idx (offset / 65536), data, made; what is missing   |
|                  |                            | reads as zeros; the target of a symbolic link is its chunk 0; a   |
|                  |                            | negative node is that of an old chunk (`old_chunk.id`)            |
| `session`        | a host that has the volume | volume, id, host, pid, since; its connection holds the advisory   |
|                  | open                       | lock (`SESSION_LOCK`, id) while it lives; missing_since: when     |
|                  |                            | another host has found that it does not                           |
| `nameless`       | a use of a node without a  | volume, node, session (0: none that is known), since              |
|                  | name (`nlink = 0`)         |                                                                   |
| `snapshot`       | a snapshot                 | volume, number, name (bytes), time_ns                             |
| `old_inode` …    | a row that snapshots have  | the columns of `inode` and `dentry`, and until                    |
| `old_chunk`      | a chunk that they have     | volume, node, idx, made, until, bytes, id                         |
| `pruning`        | a snapshot that was        | volume, first, last: old rows with these `until` may be needed no |
|                  | deleted                    | longer                                                            |

A row is in the snapshots with numbers above its `made`, and an old one in those up to its `until` (`old_rows.py`).

The tables of the change feed (`feed.py`) are unlogged, which saves the write-ahead log of each change. A crash of the
server empties them and ends every connection, and a feed that returns after a crash invalidates everything: it misses
no row.

| table            | one row for                | columns                                                           |
|------------------|----------------------------|-------------------------------------------------------------------|
| `change`         | a transaction that has     | volume, xid (the transaction), session, payload (`feed.encode`),  |
|                  | changed a volume           | at                                                                |
| `change_kept`    | a volume                   | volume, incarnation (another one after a crash), floor (changes   |
|                  |                            | that a snapshot sees may be deleted), done (unused), at           |
|                  |                            | volume 0: at is the start of the server (`SKIP_NUMBERS`)          |

What a host's history (`commit_log.py`) may not have yet is logged, for a row is there if its change is:

| table            | one row for                | columns                                                           |
|------------------|----------------------------|-------------------------------------------------------------------|
| `logged`         | a change that a host's     | volume, history (the host's), number (of the record), record      |
|                  | history may not have yet   | (`history_file.py`), at                                           |

`inode.version` changes with the row, chunks, names and attributes of a node, but not with the access time that a read
leaves. It is made of the session's id and a count: so it is never used twice, and versions have no order.
`contents` is the version that last changed the file's bytes, `emptied` the one that last made it 0 bytes long.

    SELECT convert_from(name, 'UTF8'), size FROM fusebackend.dentry JOIN fusebackend.inode USING (volume, node)
        WHERE volume = 1 AND dentry.parent = 1                                   is `ls -l` of volume 1

Opening a volume makes the tables, under an advisory lock; tables of another version are refused.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Any, Final

from psycopg import Connection

from fusebackend.backends.postgres.search import SEARCH_TABLES
from fusebackend.base.stamps import now_ns
from fusebackend.databases.pipeline import Statement
from fusebackend.databases.postgres import connect, translate_errors
from fusebackend.protocol import ROOT_NODE

SCHEMA_LOCK: Final = 0x66620000
CHANGE_LOCK: Final = 0x66620001
RENAME_LOCK: Final = 0x66620002
SESSION_LOCK: Final = 0x66620003
REAP_LOCK: Final = 0x66620004
TURN_LOCK: Final = 0x66620005
PRUNE_LOCK: Final = 0x66620006
LEASE_LOCK: Final = 0x66620007
"""The first keys of our advisory locks; the second is a volume's id, a session's for `SESSION_LOCK`, or one of a node
for `TURN_LOCK` (`statements.py`)."""

NODES_AT_ONCE = 256
"""Node numbers that a session takes at a time."""

SMALL_AGE_S: Final = 2_000_000_000
"""Numbers of 31 bits do not follow the time any further than this (`SKIP_NUMBERS`): until 2089."""

BLOCKS_A_SECOND: Final = 4
"""Numbers of nodes follow the time by so many blocks. With more they would pass 2^37, beyond which branches number
files one by one (`trees/lower_tree.py`), before 2030."""

NAME_MAX_CHARACTERS = 200
"""Of a volume."""

_INODE = (
    "node, mode, nlink, uid, gid, rdev, size, blocks, atime_ns, mtime_ns, ctime_ns, parent, version, contents, emptied,"
    " made, attributes"
)

TABLES: Final = f"""
CREATE TABLE fusebackend.volume (
    id integer GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE,
    made_at timestamptz NOT NULL DEFAULT now(), newest integer NOT NULL DEFAULT 0, taken integer NOT NULL DEFAULT 0
);
CREATE TABLE fusebackend.inode (
    volume integer NOT NULL, node bigint NOT NULL, mode integer NOT NULL, nlink integer NOT NULL, uid bigint NOT NULL,
    gid bigint NOT NULL, rdev bigint NOT NULL, size bigint NOT NULL, blocks bigint NOT NULL, atime_ns bigint NOT NULL,
    mtime_ns bigint NOT NULL, ctime_ns bigint NOT NULL, parent bigint NOT NULL, version bigint NOT NULL,
    contents bigint NOT NULL, emptied bigint NOT NULL, made integer NOT NULL DEFAULT 0, attributes bytea[],
    PRIMARY KEY (volume, node)
) WITH (fillfactor = 85);
CREATE TABLE fusebackend.dentry (
    volume integer NOT NULL, parent bigint NOT NULL, name bytea NOT NULL, node bigint NOT NULL,
    made integer NOT NULL DEFAULT 0, PRIMARY KEY (volume, parent, name)
);
CREATE INDEX dentry_node ON fusebackend.dentry (volume, node);
CREATE TABLE fusebackend.chunk (
    volume integer NOT NULL, node bigint NOT NULL, idx bigint NOT NULL, data bytea NOT NULL,
    made integer NOT NULL DEFAULT 0, PRIMARY KEY (volume, node, idx)
);
ALTER TABLE fusebackend.chunk ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE TABLE fusebackend.session (
    volume integer NOT NULL, id integer GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, host text NOT NULL,
    pid integer NOT NULL, since timestamptz NOT NULL DEFAULT now(), missing_since timestamptz
);
CREATE TABLE fusebackend.nameless (
    volume integer NOT NULL, node bigint NOT NULL, session integer NOT NULL, since timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (volume, node, session)
);
CREATE SEQUENCE fusebackend.node_block INCREMENT BY {NODES_AT_ONCE} START WITH {NODES_AT_ONCE};
CREATE TABLE fusebackend.snapshot (
    volume integer NOT NULL, number integer NOT NULL, name bytea NOT NULL, time_ns bigint NOT NULL,
    PRIMARY KEY (volume, number), UNIQUE (volume, name)
);
CREATE TABLE fusebackend.old_inode (
    LIKE fusebackend.inode, until integer NOT NULL, PRIMARY KEY (volume, node, until)
);
CREATE TABLE fusebackend.old_dentry (
    LIKE fusebackend.dentry, until integer NOT NULL, PRIMARY KEY (volume, parent, name, until)
);
CREATE TABLE fusebackend.old_chunk (
    volume integer NOT NULL, node bigint NOT NULL, idx bigint NOT NULL, made integer NOT NULL, until integer NOT NULL,
    bytes integer NOT NULL, id bigint NOT NULL, PRIMARY KEY (volume, node, idx, until)
);
CREATE INDEX old_inode_until ON fusebackend.old_inode (volume, until, node);
CREATE INDEX old_dentry_until ON fusebackend.old_dentry (volume, until, parent, name);
CREATE INDEX old_chunk_until ON fusebackend.old_chunk (volume, until, node, idx);
CREATE SEQUENCE fusebackend.old_chunk_id;
CREATE SEQUENCE fusebackend.snapshot_changes;
CREATE TABLE fusebackend.pruning (
    volume integer NOT NULL, first integer NOT NULL, last integer NOT NULL, PRIMARY KEY (volume, first)
);
CREATE FUNCTION fusebackend.note_access(of_volume integer, of_node bigint, at_ns bigint) RETURNS boolean
LANGUAGE plpgsql AS $body$
DECLARE
    found_newest integer;
    found_made integer;
BEGIN
    IF NOT pg_try_advisory_xact_lock_shared({CHANGE_LOCK}, of_volume) THEN
        RETURN false;
    END IF;
    SELECT newest INTO found_newest FROM fusebackend.volume WHERE id = of_volume;
    SELECT made INTO found_made FROM fusebackend.inode WHERE volume = of_volume AND node = of_node
        FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF found_made < found_newest THEN
        INSERT INTO fusebackend.old_inode (volume, {_INODE}, until) SELECT volume, {_INODE}, found_newest
            FROM fusebackend.inode WHERE volume = of_volume AND node = of_node ON CONFLICT DO NOTHING;
        UPDATE fusebackend.inode SET atime_ns = at_ns, made = found_newest WHERE volume = of_volume AND node = of_node;
    ELSE
        UPDATE fusebackend.inode SET atime_ns = at_ns WHERE volume = of_volume AND node = of_node;
    END IF;
    RETURN true;
END
$body$;
CREATE UNLOGGED TABLE fusebackend.change (
    volume integer NOT NULL, xid xid8 NOT NULL DEFAULT pg_current_xact_id(), session integer NOT NULL,
    payload text NOT NULL, at timestamptz NOT NULL DEFAULT now()
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);
CREATE INDEX change_place ON fusebackend.change (volume, xid);
CREATE UNLOGGED TABLE fusebackend.change_kept (
    volume integer PRIMARY KEY, incarnation uuid NOT NULL DEFAULT gen_random_uuid(), floor pg_snapshot NOT NULL,
    done pg_snapshot NOT NULL, at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);
CREATE TABLE fusebackend.logged (
    volume integer NOT NULL, history uuid NOT NULL, number bigint NOT NULL, record bytea NOT NULL,
    at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (volume, history, number)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);
CREATE TABLE fusebackend.schema_version (version integer NOT NULL);
"""
"""A function of PL/pgSQL reads what was committed while it waited for a lock; a statement that waits itself does not.
`snapshot_changes` counts snapshots taken and deleted, of all volumes (`old_rows.Newest`)."""

VERSION: Final = 1
"""Of `TABLES` and `SEARCH_TABLES`."""


class VolumeDatabaseError(OSError):
    """The database can't be opened as one of volumes; its text is one line with the reason and the remedy."""


def make_tables(connection: Connection[Any]) -> None:
    """Make the tables if there are none. The connection commits by itself.

    Raises:
        VolumeDatabaseError: they are of another version.
        psycopg.Error: the server refuses.
    """
    if _version(connection) == VERSION:
        return
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s::int, 0)", [SCHEMA_LOCK])
        version = _version(connection)
        if version is None:
            connection.execute("CREATE SCHEMA IF NOT EXISTS fusebackend")
            connection.execute(TABLES + SEARCH_TABLES, prepare=False)
            connection.execute("INSERT INTO fusebackend.schema_version VALUES (%s)", [VERSION])
        elif version != VERSION:
            words = f"its tables are of another version ({version}, and this fusebackend knows {VERSION} alone)"
            raise VolumeDatabaseError(errno.EINVAL, f"{words}; open it with the fusebackend that made them")


def keep_changes(volume: int) -> Statement:
    """The statement that gives a volume its row of `change_kept`, unless it has one."""
    return (
        "INSERT INTO fusebackend.change_kept (volume, floor, done) VALUES (%s::int, '1:1:', '1:1:')"
        # A row from elsewhere, restored from a dump, would be ahead of this server.
        " ON CONFLICT (volume) DO UPDATE SET incarnation = EXCLUDED.incarnation, floor = '1:1:', done = '1:1:'"
        " WHERE pg_snapshot_xmax(change_kept.floor) > pg_snapshot_xmax(pg_current_snapshot())",
        (volume,),
    )


_AGE_S: Final = "extract(epoch FROM now() - timestamptz '2026-01-01 00:00Z')"

SKIP_NUMBERS: Final[Statement] = (
    f"""
WITH numbers (sequence, step, place) AS (VALUES
    ('fusebackend.node_block', {NODES_AT_ONCE}, ({_AGE_S} * {BLOCKS_A_SECOND})::int8 * {NODES_AT_ONCE}),
    (pg_get_serial_sequence('fusebackend.volume', 'id'), 1, least({_AGE_S}::int8, {SMALL_AGE_S})),
    (pg_get_serial_sequence('fusebackend.session', 'id'), 1, least({_AGE_S}::int8, {SMALL_AGE_S}))
), started AS (
    INSERT INTO fusebackend.change_kept (volume, floor, done, at)
    SELECT 0, '1:1:', '1:1:', pg_postmaster_start_time()
    WHERE (SELECT bool_and(has_sequence_privilege(sequence, 'UPDATE')) FROM numbers)
    ON CONFLICT (volume) DO UPDATE SET at = EXCLUDED.at WHERE change_kept.at <> EXCLUDED.at RETURNING volume
)
SELECT setval(sequence, greatest(coalesce(pg_sequence_last_value(sequence::regclass), 0) + step, place))
FROM started CROSS JOIN numbers
WHERE coalesce(pg_sequence_last_value(pg_get_serial_sequence('fusebackend.volume', 'id')::regclass), 0) > 0
""",
    (),
)
"""Has numbers of volumes, sessions and nodes go on elsewhere, once after each start or recovery of the server; to be
sent before any are taken.

The server may have an older state than before: that of a backup, or of a standby that was behind. Hosts may live on
that have files open, or numbers in hand, of a later state. Given out again, these would lead a host's writes into the
files of another, or its mount to another volume. So the numbers go on from the time: those of nodes by 1,024 a second,
the others by one, which is more than are taken on the average. A constant instead would lead from the same state to the
same numbers twice. A role that may not set the sequences leaves them as they are.
"""


def _version(connection: Connection[Any]) -> int | None:
    """Return the version of the tables; None if there are none, 0 if they are not these."""
    # Not to_regclass: it may answer from a cache that a wait for an advisory lock does not refresh.
    names = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'fusebackend'").fetchall()
    if ("schema_version",) not in names:
        return None
    is_ours = ("logged",) in names and ("xattr",) not in names
    return int(_scalar(connection, "SELECT version FROM fusebackend.schema_version")) if is_ours else 0


def volume_names(conninfo: str) -> list[str]:
    """The volumes of a database; none where there are no tables. OSError when the server can't be asked."""
    with translate_errors(), connect(conninfo) as connection:
        if _version(connection) is None:
            return []
        return [name for (name,) in connection.execute("SELECT name FROM fusebackend.volume ORDER BY name LIMIT 100")]


def volume_id(connection: Connection[Any], name: str) -> int:
    """The id of a volume, which is made if there is none of that name."""
    find = "SELECT id FROM fusebackend.volume WHERE name = %s"
    found = _scalar(connection, find, name)
    if found is not None:
        return int(found)
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s::int, 0)", [SCHEMA_LOCK])
        found = _scalar(connection, find, name)
        if found is None:
            connection.execute(*SKIP_NUMBERS)
            found = _scalar(connection, "INSERT INTO fusebackend.volume (name) VALUES (%s) RETURNING id", name)
            now = now_ns()
            connection.execute(
                "INSERT INTO fusebackend.inode VALUES (%s, %s, %s, 2, %s, %s, 0, 4096, 8, %s, %s, %s, %s, 0, 0, 0)",
                [found, ROOT_NODE, stat.S_IFDIR | 0o755, os.geteuid(), os.getegid(), now, now, now, ROOT_NODE],
            )
    return int(found)


def _scalar(connection: Connection[Any], query: str, *parameters: object) -> Any:
    row = connection.execute(query, parameters).fetchone()
    return None if row is None else row[0]
