"""The plans of a volume's statements: each reads the rows that it names, and no others of the volume.

A plan is made when a statement is prepared. The volume is small then, and has no statistics; and it grows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from eventually import eventually
from for_each import for_each

from fusebackend.backends import PostgresBackend
from fusebackend.backends.postgres import old_rows, statements
from fusebackend.backends.postgres.host_session import SETTINGS
from fusebackend.databases.pipeline import Statement
from fusebackend.protocol import ROOT_NODE, Link

SMALL = 200
NAMES = 20_000
MOST_PAGES = 60
"""A join that reads all names takes 147, one that reads all inodes 400; their indexes alone 90."""

DIRECTORY = 1_000_000
"""Its names are `00001` … and their nodes 1000001 …"""


A, B = (DIRECTORY, b"00007"), (DIRECTORY, b"19999")
NODES = (ROOT_NODE, DIRECTORY + 7, DIRECTORY + 19999)
WAY = (b"d", b"19999")
KEPT = DIRECTORY + 9000
"""The last of the nodes that snapshot 2 has otherwise than the volume. Snapshot 1 has all as they are."""

STATEMENTS: dict[str, tuple[Statement, int]] = {
    "inodes": (statements.inodes(1, NODES, False), 3),
    "inodes, locked": (statements.inodes(1, NODES, True), 3),
    "lock_with_entries": (statements.lock_with_entries(1, [ROOT_NODE, DIRECTORY], [A, B]), 4),
    "lock_children": (statements.lock_children(1, DIRECTORY, b"00009", 5), 5),
    "lock_renames": (statements.lock_renames(1, [A, (ROOT_NODE, b"d")]), 1),
    "walk": (statements.walk(1, ROOT_NODE, WAY), 3),
    "lock_walks": (statements.lock_walks(1, ROOT_NODE, [(WAY, 2), ([b"d", b"absent"], 1)]), 2),
    "walked_chunks": (statements.walked_chunks(1, ROOT_NODE, WAY, 4), 1),
    "entry": (statements.entries(1, [A]), 1),
    "entries": (statements.entries(1, [A, B]), 2),
    "links": (statements.links(1, [Link(A[0], A[1], NODES[1]), Link(B[0], B[1], NODES[1])]), 1),
    "is_empty": (statements.is_empty(1, (ROOT_NODE, b"d")), 0),
    "line": (statements.line(1, DIRECTORY), 2),
    "children": (statements.children(1, DIRECTORY, b"00009", 5), 5),
    "listed": (statements.listed(1, DIRECTORY, b"00009", 5), 5),
    "found": (statements.found(1, *A), 1),
    "contents": (statements.contents(1, NODES[1], 0, 1), 1),
    "opened": (statements.opened(1, NODES[1], -1), 1),
    "chunks": (statements.chunks(1, NODES[1], 0, 1, []), 1),
    "last_chunk": (statements.last_chunk(1, NODES[1]), 1),
    "delete_names": (statements.delete_names(1, [A, B]), 0),
    "next_chunk": (statements.next_chunk(1, NODES[1], 0), 1),
    "accessed": (statements.accessed(1, {NODES[1]: 1}), 1),
    "keep_inodes": (old_rows.keep_inodes(1, NODES[:2], 1), 0),
    "keep_names": (old_rows.keep_names(1, [A, B], 1), 0),
    "keep_chunks": (old_rows.keep_chunks(1, NODES[1], [0, 1], 1), 0),
    "keep_cut": (old_rows.keep_cut(1, NODES[1], 0, 1), 0),
    "snapshot's inode": ((old_rows.INODE, (KEPT, 1, 2)), 1),
    "snapshot's found": ((old_rows.FOUND, (DIRECTORY, b"09000", 1, 2)), 1),
    "snapshot's listed": ((old_rows.LISTED, (DIRECTORY, b"08997", 5, 1, 2)), 5),
    "snapshot's chunks": ((old_rows.CHUNKS, (KEPT, 0, 1, 1, 2)), 1),
    "snapshot's next_chunk": ((old_rows.NEXT_CHUNK, (KEPT, 0, 1, 2)), 1),
    **{f"free {table.name}": (old_rows.free(table, 1, (2, 2), ()), 1) for table in old_rows.TABLES},
}
"""With the rows that each returns: one too where a snapshot has none, of nulls."""


@pytest.fixture(scope="module")
def connection(postgres: Any) -> Iterator[psycopg.Connection[Any]]:
    """A volume that has grown since the statements were prepared, before autovacuum has seen it."""
    with postgres.database() as dsn:
        PostgresBackend(dsn, "v").close()
        with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as connection:
            for table in ("dentry", "inode", "chunk"):
                connection.execute(f"ALTER TABLE fusebackend.{table} SET (autovacuum_enabled = off)")
            _make(connection, DIRECTORY - SMALL, DIRECTORY)
            connection.execute("UPDATE fusebackend.dentry SET parent = 1, name = 'd' WHERE node = %s", [DIRECTORY])
            query = "UPDATE fusebackend.inode SET mode = %s, parent = 1 WHERE node = %s"
            connection.execute(query, [0o40755, DIRECTORY])
            for name, value in {**SETTINGS, "plan_cache_mode": "force_generic_plan"}.items():
                connection.execute("SELECT set_config(%s, %s, false)", [name, value])
            for number, ((query, parameters), _) in enumerate(STATEMENTS.values()):
                connection.execute(f"PREPARE statement{number} AS {_numbered(query)}".encode())
                _explain(connection, number, parameters)
            _make(connection, DIRECTORY + 1, DIRECTORY + NAMES)
            _keep(connection)
            yield connection


def _numbered(query: str) -> str:
    pieces = query.split("%s")
    return "".join(f"{piece}${number}" for number, piece in enumerate(pieces[:-1], 1)) + pieces[-1]


def _explain(connection: psycopg.Connection[Any], number: int, parameters: Sequence[object]) -> dict[str, Any]:
    """Execute a prepared statement, undo it, and return its plan."""
    values = ", ".join("%s" for _ in parameters)
    explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE statement{number}({values})"
    with connection.transaction(force_rollback=True), psycopg.ClientCursor(connection) as cursor:
        ((found,),) = cursor.execute(explain.encode(), parameters).fetchall()
    return dict(found[0]["Plan"])


def _make(connection: psycopg.Connection[Any], first: int, last: int) -> None:
    numbers = f"FROM generate_series({first}, {last}) n"
    name = "convert_to(lpad((n - 1000000)::text, 5, '0'), 'UTF8')"
    connection.execute(f"INSERT INTO fusebackend.dentry SELECT 1, {DIRECTORY}, {name}, n {numbers}")
    values = "1, n, 33188, 1, 0, 0, 0, 1, 8, 0, 0, 0, 0, 0, 0, 0"
    connection.execute(f"INSERT INTO fusebackend.inode SELECT {values} {numbers}")
    connection.execute(f"INSERT INTO fusebackend.chunk SELECT 1, n, 0, 'x' {numbers}")


def _keep(connection: psycopg.Connection[Any]) -> None:
    """Snapshots, and old rows of as many nodes as a portion that is freed, times ten."""
    connection.execute("INSERT INTO fusebackend.snapshot SELECT 1, n, n::text::bytea, n FROM generate_series(1, 3) n")
    nodes = range(KEPT - 2499, KEPT + 1)
    kept = [
        old_rows.keep_inodes(1, nodes, 2),
        old_rows.keep_names(1, [(DIRECTORY, b"%05d" % (node - DIRECTORY)) for node in nodes], 2),
        *(old_rows.keep_chunks(1, node, [0], 2) for node in nodes),
    ]
    with connection.pipeline():
        for query, parameters in kept:
            connection.execute(query.encode(), parameters)
    connection.execute("UPDATE fusebackend.inode SET made = 2 WHERE node IN (SELECT node FROM fusebackend.old_inode)")
    connection.execute(f"DELETE FROM fusebackend.dentry WHERE node > {KEPT - 2500} AND node <= {KEPT}")


@for_each("name", STATEMENTS)
def test_a_statement_reads_no_more_than_its_rows(connection: psycopg.Connection[Any], name: str) -> None:
    (_, parameters), rows = STATEMENTS[name]
    plan = _explain(connection, list(STATEMENTS).index(name), parameters)
    assert plan["Actual Rows"] == rows
    most = MOST_PAGES if not name.startswith("free") else 3 * old_rows.PORTION_ROWS
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] <= most, plan


@pytest.mark.parametrize("name", ["inodes, locked", "lock_with_entries"])
def test_a_row_that_changes_while_it_is_waited_for_is_returned_as_it_is_then(
    connection: psycopg.Connection[Any], name: str
) -> None:
    (query, parameters), rows = STATEMENTS[name]
    node = NODES[1]
    with (
        psycopg.connect(connection.info.dsn) as other,
        ThreadPoolExecutor(1) as threads,
        connection.transaction(force_rollback=True),
    ):
        other.execute("UPDATE fusebackend.inode SET version = version + 1 WHERE node = %s", [node])
        waits = threads.submit(lambda: connection.execute(query.encode(), parameters).fetchall())
        eventually(lambda: _waits(other, connection))
        ((version,),) = other.execute("SELECT version FROM fusebackend.inode WHERE node = %s", [node]).fetchall()
        other.commit()
        found = {row[-len(statements.FIELDS)]: row[statements.FIELDS.index("version") - len(statements.FIELDS)]
                 for row in waits.result()}  # fmt: skip
        assert len(found) == rows
        assert found[node] == version
        with pytest.raises(psycopg.errors.LockNotAvailable):
            other.execute("SELECT FROM fusebackend.inode WHERE node = %s FOR UPDATE NOWAIT", [node])


def _waits(other: psycopg.Connection[Any], connection: psycopg.Connection[Any]) -> bool:
    query = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
    return bool(other.execute(query, [connection.info.backend_pid]).fetchall())
