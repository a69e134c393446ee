"""Searches of a PostgreSQL volume: their answers are those of a plain scan, and the server is asked few questions."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import hypothesis
import postgres_hosts
import pytest
from agentface import node_at, put
from eventually import eventually
from for_each import for_each
from hypothesis.stateful import rule
from profiles import examples
from search_machine import SearchMachine, scan
from services.postgres import PORT, Postgres
from services.stall import Stall
from together import beside, together

from fusebackend.backends import PostgresBackend
from fusebackend.backends.postgres import host_session, search
from fusebackend.backends.postgres.search import SearchIndexer
from fusebackend.base import budget
from fusebackend.base.budget import Spent
from fusebackend.base.globs import compile_glob
from fusebackend.protocol import ROOT_NODE, AttrChanges, GrepMatch
from fusebackend.volumes.search import FileSearch, globbed

PATIENCE_S = 60
"""How long a test waits for what has no business to take long."""

Sql = Callable[..., list[Any]]


def opened(dsn: str, volume: str | None = None) -> PostgresBackend:
    """A backend, of an empty volume, in which nothing is indexed but where a test says so."""
    backend = PostgresBackend(dsn, volume or uuid.uuid4().hex)
    backend.volume._session.workers.clear()
    return backend


@pytest.fixture
def backend(shared_dsn: str) -> Iterator[PostgresBackend]:
    with opened(shared_dsn) as backend:
        yield backend


@pytest.fixture
def sql(shared_dsn: str) -> Sql:
    """Runs a statement beside the volume, which commits by itself."""
    return functools.partial(postgres_hosts.sql, shared_dsn)


def index_some(backend: PostgresBackend, quiet_s: float = 0) -> bool:
    work = SearchIndexer(backend.volume.id).work
    return backend.volume.connections.run(lambda connection: work(connection, quiet_s))


def index_all(backend: PostgresBackend) -> None:
    while index_some(backend):
        pass


def nodes_in(sql: Sql, table: str, backend: PostgresBackend) -> set[int]:
    return {node for (node,) in sql(f"SELECT node FROM fusebackend.{table} WHERE volume = %s", backend.volume.id)}


def found(backend: PostgresBackend, pattern: str, path: str | None = None, **how: Any) -> list[str]:
    answer = backend.grep(pattern, path, **how)
    assert answer.error is None and answer.matches is not None and not answer.truncated
    return [match["path"] for match in answer.matches]


class Questions(list[str]):
    """The statements of searches, in short."""


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> Questions:
    asked = Questions()
    rows = search.SearchQueries.rows

    def noted(self: search.SearchQueries, query: str, **parameters: Any) -> list[tuple[Any, ...]]:
        kinds = {"unnest(%(nodes)s": "contents", "unnest(%(directories)s": "listings", "indexed AS": "indexed"}
        asked.append(next((kind for words, kind in kinds.items() if words in query), "all"))
        return rows(self, query, **parameters)

    monkeypatch.setattr(search.SearchQueries, "rows", noted)
    return asked


@pytest.fixture
def read_nodes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The nodes whose contents have been searched."""
    nodes: list[int] = []
    read = search.ReadAhead.read

    def noted(self: search.ReadAhead, volume: Any, attr: Any, max_bytes: int, take: Any) -> Any:
        nodes.append(attr.node)
        return read(self, volume, attr, max_bytes, take)

    monkeypatch.setattr(search.ReadAhead, "read", noted)
    return nodes


# -- any history ---------------------------------------------------------------------------------------------------


ORPHANS = """
SELECT node FROM fusebackend.entry WHERE volume = %(volume)s
    AND NOT EXISTS (SELECT FROM fusebackend.inode WHERE volume = entry.volume AND inode.node = entry.node)
    AND NOT EXISTS (SELECT FROM fusebackend.unindexed WHERE volume = entry.volume AND unindexed.node = entry.node)
"""


class PostgresSearchMachine(SearchMachine):
    """One file is a portion; listings and contents are read ahead in small pieces."""

    dsn: ClassVar[str] = ""
    always: ClassVar = ("needle", "文字")

    def __init__(self) -> None:
        super().__init__()
        self.bounds = pytest.MonkeyPatch()
        self.bounds.setattr(search, "PORTION_BYTES", 1)
        self.bounds.setattr(search, "INDEXED_BYTES", 100_000)
        self.bounds.setattr(search, "ENTRIES_AHEAD", 3)
        self.bounds.setattr(search, "FILES_AHEAD", 3)
        self.bounds.setattr(search, "MAX_CANDIDATES", 3)
        self.backend = opened(self.dsn)

    def index_portion(self) -> bool:
        return index_some(self.backend)

    @rule()
    def check_index(self) -> None:
        """There is no entry of what is gone, but where that is still to be looked at."""
        self.index(10_000)
        assert self.backend.queries.rows(ORPHANS) == []

    @rule()
    def reopen(self) -> None:
        name = self.backend.volume.name
        self.backend.close()
        self.backend = opened(self.dsn, name)

    def teardown(self) -> None:
        self.backend.close()
        self.bounds.undo()


@pytest.fixture(scope="module", autouse=True)
def machine_database(shared_dsn: str) -> None:
    PostgresSearchMachine.dsn = shared_dsn


TestPostgresSearchMachine = PostgresSearchMachine.TestCase
TestPostgresSearchMachine.settings = hypothesis.settings(
    max_examples=examples(8), stateful_step_count=25, deadline=None, database=None
)


# -- what the index spares -----------------------------------------------------------------------------------------


def test_only_what_may_match_is_read(backend: PostgresBackend, read_nodes: list[int], questions: Questions) -> None:
    nodes = [put(backend, f"/{number}.txt", b"some words and number%d\n" % number) for number in range(50)]
    index_all(backend)
    assert found(backend, "number17") == ["/17.txt"]
    assert read_nodes == [nodes[17]] and questions == ["indexed", "contents"]
    assert found(backend, "nowhere") == [] and read_nodes == [nodes[17]] and questions[2:] == ["indexed"]


@for_each("pattern", ["so", "(x", "x) ", ") (", "a b"])
def test_what_the_index_does_not_know_is_looked_for_everywhere(
    backend: PostgresBackend, pattern: str, read_nodes: list[int], questions: Questions
) -> None:
    node = put(backend, "/dir/match.txt", b"some(x) (y) a b\n")
    put(backend, "/dir/other.txt", b"another word\n")
    index_all(backend)
    for path, first in (("/", "all"), ("/dir", "listings")):
        read_nodes.clear()
        questions.clear()
        assert found(backend, pattern, path) == ["/dir/match.txt"]
        assert read_nodes == [node] and questions == [first, "contents"], "the server looks first"


@for_each(
    "pattern", ["foo_bar", "oo_b", "100%", r"back\slash", "Foo_Bar", "FOO_BAR", "fooXbar", "_bar", "日本語の", "ïve"]
)
def test_what_means_something_to_like_is_itself(backend: PostgresBackend, pattern: str) -> None:
    text = "foo_bar\nfooXbar\n100%\n1000\nback\\slash\nFoo_Bar\n日本語のneedle\nnaïve\n"
    put(backend, "/file.txt", text.encode())
    put(backend, "/other.txt", b"nothing of it\n")
    index_all(backend)
    lines = [{"path": "/file.txt", "line": number + 1, "text": line} for number, line in enumerate(text.split("\n"))]
    assert backend.grep(pattern).matches == [GrepMatch(**line) for line in lines if pattern in line["text"]]  # type: ignore[typeddict-item]


def test_what_another_host_has_closed_is_found(shared_dsn: str, backend: PostgresBackend, sql: Sql) -> None:
    with opened(shared_dsn, backend.volume.name) as other:
        put(other, "/file.txt", b"first\n")
        assert found(backend, "first") == ["/file.txt"]
        index_all(backend)
        assert found(other, "first") == ["/file.txt"] and nodes_in(sql, "unindexed", backend) == set()
        assert other.edit("/file.txt", "first", "second").error is None
        assert backend.move("/file.txt", "/dir/moved.txt").error is None
        for host in (backend, other):
            assert found(host, "second") == ["/dir/moved.txt"] and found(host, "first") == []


def test_a_large_file_is_always_read(
    backend: PostgresBackend, sql: Sql, monkeypatch: pytest.MonkeyPatch, questions: Questions
) -> None:
    lines = b"a line of text that is one of many\n"
    middling = put(backend, "/middling.txt", lines * 25_000 + b"needle\n")
    large = put(backend, "/large.txt", lines * 40_000 + b"needle\n")
    index_all(backend)
    assert nodes_in(sql, "unindexed", backend) == {large} and nodes_in(sql, "entry", backend) == {middling}
    assert not index_some(backend), "it is not looked at again"
    monkeypatch.setattr(search, "LOCKED_BYTES", 1 << 20)  # the largest is read as other volumes read it
    for number in range(2):
        assert backend.grep("needle").matches == [
            GrepMatch(path="/large.txt", line=40_001, text="needle"),
            GrepMatch(path="/middling.txt", line=25_001, text="needle"),
        ]
        backend.volume.setattr(middling, AttrChanges(mode=0o600 + number))
    put(backend, "/large.txt", b"needle\n")
    index_all(backend)
    assert nodes_in(sql, "unindexed", backend) == set() and nodes_in(sql, "entry", backend) == {middling, large}


def test_what_is_deleted_leaves_nothing(backend: PostgresBackend, sql: Sql) -> None:
    nodes = [put(backend, f"/dir/{number}.txt", b"needle\n") for number in range(4)]
    index_all(backend)
    assert nodes_in(sql, "entry", backend) == set(nodes)
    assert backend.delete("/dir").error is None and found(backend, "needle") == []
    for table in ("chunk", "inode"):  # as it is done, a moment later, to nodes without a name
        sql(f"DELETE FROM fusebackend.{table} WHERE volume = %s AND node = ANY(%s)", backend.volume.id, nodes)
    index_all(backend)
    assert nodes_in(sql, "entry", backend) == nodes_in(sql, "unindexed", backend) == set()


# -- changes while it is indexed -----------------------------------------------------------------------------------


def test_what_is_written_while_it_is_indexed_is_indexed_again(
    backend: PostgresBackend, monkeypatch: pytest.MonkeyPatch, sql: Sql
) -> None:
    """Between the reading of a file and the commit of its entry."""
    node = put(backend, "/file.txt", b"first\n")
    read = SearchIndexer._entries

    def read_and_overwrite(self: SearchIndexer, connection: Any, nodes: list[int]) -> dict[int, str]:
        entries = read(self, connection, nodes)
        put(backend, "/file.txt", b"second\n")
        return entries

    with monkeypatch.context() as patch:
        patch.setattr(SearchIndexer, "_entries", read_and_overwrite)
        assert index_some(backend)
    assert nodes_in(sql, "unindexed", backend) == {node}
    for _ in range(2):
        assert found(backend, "second") == ["/file.txt"]
        index_all(backend)
    assert nodes_in(sql, "unindexed", backend) == set()


def test_who_is_in_the_middle_of_a_change_is_not_waited_for(
    backend: PostgresBackend, shared_dsn: str, sql: Sql
) -> None:
    import psycopg

    node = put(backend, "/file.txt", b"first\n")
    other = put(backend, "/other.txt", b"other\n")
    with psycopg.connect(shared_dsn) as writer:
        change = "UPDATE fusebackend.chunk SET data = 'secon\n' WHERE volume = %s AND node = %s"
        writer.execute(change, [backend.volume.id, node])
        assert index_some(backend), "a wait would end after 10 s, with an error"
        assert nodes_in(sql, "unindexed", backend) == {node} and nodes_in(sql, "entry", backend) == {node, other}
        assert found(backend, "first") == ["/file.txt"]
    assert found(backend, "secon") == ["/file.txt"] and found(backend, "first") == []
    index_all(backend)
    assert found(backend, "secon") == ["/file.txt"] and nodes_in(sql, "unindexed", backend) == set()


def test_one_host_indexes_at_a_time(backend: PostgresBackend, shared_dsn: str, sql: Sql) -> None:
    import psycopg

    node = put(backend, "/file.txt", b"needle\n")
    with psycopg.connect(shared_dsn) as other:
        other.execute("SELECT pg_advisory_xact_lock(%s::int, %s)", [search.INDEX_LOCK, backend.volume.id])
        assert not index_some(backend)
        assert nodes_in(sql, "unindexed", backend) == {node}
    assert index_some(backend)
    assert not index_some(backend)


def test_what_is_changed_all_the_time_waits(backend: PostgresBackend) -> None:
    put(backend, "/log.txt", b"needle\n")
    assert not index_some(backend, quiet_s=3600)
    assert found(backend, "needle") == ["/log.txt"]


def test_a_failure_of_the_indexer_is_told_and_not_the_end_of_it(
    shared_dsn: str, sql: Sql, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(search, "QUIET_S", 0.0)
    for pause in ("PERIOD_S", "GATHER_S"):
        monkeypatch.setattr(host_session, pause, 0.05)
    indexing = SearchIndexer._indexing

    def fail(*_: object) -> None:
        raise OSError("no room for an entry")

    monkeypatch.setattr(SearchIndexer, "_indexing", fail)
    with (
        caplog.at_level(logging.WARNING, host_session.__name__),
        PostgresBackend(shared_dsn, uuid.uuid4().hex) as backend,
    ):
        node = put(backend, "/file.txt", b"needle\n")
        eventually(lambda: "no room for an entry" in caplog.text)
        assert found(backend, "needle") == ["/file.txt"]
        monkeypatch.setattr(SearchIndexer, "_indexing", indexing)
        eventually(lambda: nodes_in(sql, "entry", backend) == {node} and not nodes_in(sql, "unindexed", backend))
        assert found(backend, "needle") == ["/file.txt"]
    assert caplog.text.count("can't be brought up to date") == 1


# -- few questions -------------------------------------------------------------------------------------------------


PLANT = """
WITH planted AS (
    SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::bytea[], %s::bytea[]) AS row (node, parent, name, data)
), inodes AS (
    INSERT INTO fusebackend.inode
    SELECT %s, node, CASE WHEN data IS NULL THEN 16877 ELSE 33188 END, 1, 0, 0, 0, coalesce(length(data), 4096), 8,
        0, 0, 0, CASE WHEN data IS NULL THEN parent ELSE 0 END, 0, 0, 0 FROM planted
), chunks AS (
    INSERT INTO fusebackend.chunk SELECT %s, node, 0, data FROM planted WHERE data IS NOT NULL
)
INSERT INTO fusebackend.dentry (volume, parent, name, node) SELECT %s, parent, name, node FROM planted
"""


@pytest.fixture
def tree(backend: PostgresBackend, sql: Sql) -> PostgresBackend:
    """20 directories of 20, each with 2 files: 800 files in 421 directories. By SQL, for that is quick."""
    entries: list[tuple[int, int, bytes, bytes | None]] = []
    nodes = itertools.count(1 << 40)  # far from those that the volume gives out
    for outer in range(20):
        directory = next(nodes)
        entries.append((directory, ROOT_NODE, b"d%d" % outer, None))
        for inner in range(20):
            below = next(nodes)
            entries.append((below, directory, b"e%d" % inner, None))
            entries += [(next(nodes), below, b"f%d" % file, b"needle\n") for file in range(2)]
    columns = [list(column) for column in zip(*entries, strict=True)]
    sql(PLANT, *columns, backend.volume.id, backend.volume.id, backend.volume.id)
    return backend


def test_a_tree_is_walked_with_few_questions(tree: PostgresBackend, questions: Questions) -> None:
    plain = globbed(FileSearch(tree.volume, "/", compile_glob("**/e1*/f0"), 0))
    answer = tree.glob("**/e1*/f0")
    assert answer == plain and len(answer.matches or []) == 20 * 11
    assert len(questions) <= 8, "16 directories, 64, 256, … with one question each"
    questions.clear()
    assert len(tree.glob("d7/*/f1").matches or []) == 20 and len(questions) <= 3
    questions.clear()
    assert len(tree.glob("*", "/d7/e7").matches or []) == 2 and len(questions) == 1
    questions.clear()
    assert tree.glob("*/*").matches == [] and len(questions) <= 4, "what is deeper is not looked at"


def test_a_directory_too_large_for_a_question_is_read_page_by_page(
    tree: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "ENTRIES_AHEAD", 20)
    assert tree.glob("**") == globbed(FileSearch(tree.volume, "/", compile_glob("**"), 0))


def test_where_the_index_names_too_many_it_is_left(
    tree: PostgresBackend, monkeypatch: pytest.MonkeyPatch, questions: Questions
) -> None:
    monkeypatch.setattr(search, "MAX_CANDIDATES", 50)
    put(tree, "/d1/e1/rare", b"rare\n")
    index_all(tree)
    assert found(tree, "needle", "/d1/e1") == ["/d1/e1/f0", "/d1/e1/f1"]
    assert questions == ["indexed", "listings", "contents"]
    questions.clear()
    assert found(tree, "rare", "/d1/e1") == ["/d1/e1/rare"] and questions == ["indexed", "contents"]
    questions.clear()
    assert len(found(tree, "needle")) == 800 and questions[:2] == ["indexed", "all"]


def test_nothing_is_read_from_end_to_end(tree: PostgresBackend, sql: Sql) -> None:
    """The plans of the questions, with more in the tables than would be read in one go."""
    index_all(tree)
    sql("ANALYZE fusebackend.inode, fusebackend.dentry, fusebackend.chunk, fusebackend.entry, fusebackend.unindexed")
    plans: list[str] = []
    rows = tree.queries.rows

    def explained(query: str, **parameters: Any) -> list[tuple[Any, ...]]:
        plans.append("\n".join(line for (line,) in rows(f"EXPLAIN {query}", **parameters)))
        return rows(query, **parameters)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree.queries, "rows", explained)
        assert found(tree, "rare_word") == [] and len(found(tree, "needle", "/d1/e1")) == 2
        assert len(tree.glob("*", "/d1").matches or []) == 40
    assert len(plans) >= 4
    for plan in plans:
        assert "Seq Scan on inode" not in plan and "Seq Scan on dentry" not in plan, plan
        assert "Seq Scan on chunk" not in plan, plan


# -- how it ends ---------------------------------------------------------------------------------------------------

SLEEP = "SELECT pg_sleep(%(seconds)s)::text"


def test_the_server_stops_when_the_budget_is_spent(backend: PostgresBackend, sql: Sql) -> None:
    queries = backend.queries
    begun = time.monotonic()
    with budget.limited(0.2), pytest.raises(Spent):
        queries.rows(SLEEP, seconds=3600)
    called_off = threading.Event()
    threading.Timer(0.2, called_off.set).start()
    with budget.limited(None, called_off), pytest.raises(Spent):
        queries.rows(SLEEP, seconds=3600)
    assert time.monotonic() - begun < PATIENCE_S
    asleep = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND state = 'active' AND query LIKE '%%pg_sleep(%%' AND pid <> pg_backend_pid()"
    )
    assert sql(asleep) == [(0,)]
    assert queries.rows("SELECT 1") == [(1,)], "the connection is as good as before"


def test_a_search_whose_budget_is_spent_says_so(tree: PostgresBackend) -> None:
    called_off = threading.Event()
    called_off.set()
    with budget.limited(None, called_off):
        answer, listed = tree.grep("needle"), tree.glob("**")
    assert (answer.matches, answer.truncated, answer.error) == ([], True, None)
    assert (listed.matches, listed.truncated, listed.truncation_reason) == ([], True, "budget")


def test_searches_leave_connections_to_others(backend: PostgresBackend) -> None:
    """As many as may be at once, and one more, which waits for its turn or its end."""
    put(backend, "/file.txt", b"needle\n")
    called_off = threading.Event()

    def search_long() -> None:
        with budget.limited(None, called_off), pytest.raises(Spent):
            backend.queries.rows(SLEEP, seconds=3600)

    longest = search.QUERIES_AT_ONCE
    with beside(lambda: together(*[search_long] * longest), limit_s=PATIENCE_S):
        active = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE %s"
        eventually(lambda: backend.volume.connections.query(active, [f"{SLEEP[:15]}%"]) == [(longest,)])
        assert backend.read("/file.txt").error is None, "the volume goes on"
        with budget.limited(0.1):
            assert backend.grep("needle").truncated
        called_off.set()
    assert found(backend, "needle") == ["/file.txt"]


def test_a_search_ends_when_the_server_says_nothing(
    postgres: Postgres, shared_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "STALL_S", 0.5)
    monkeypatch.setattr(search, "CANCEL_S", 0.2)
    name = uuid.uuid4().hex
    with opened(shared_dsn, name) as backend:
        put(backend, "/file.txt", b"needle\n")
    socket = f".s.PGSQL.{PORT}"
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="fusebackend-"))
        network = stack.enter_context(Stall(str(postgres.directory / socket), f"{directory}/{socket}"))
        backend = stack.enter_context(opened(shared_dsn.replace(str(postgres.directory), directory), name))
        assert found(backend, "needle") == ["/file.txt"]
        network.stall()
        begun = time.monotonic()
        with budget.limited(0.2), pytest.raises(Spent):
            backend.queries.rows("SELECT 1")
        assert time.monotonic() - begun < PATIENCE_S
        network.resume()
        eventually(lambda: len(backend.grep("needle").matches or []) == 1)


# -- where there is no index ---------------------------------------------------------------------------------------


def test_without_the_extension_every_file_is_looked_at(postgres: Postgres, caplog: pytest.LogCaptureFixture) -> None:
    import psycopg

    role = f"plain_{uuid.uuid4().hex[:8]}"
    with postgres.database() as dsn:
        PostgresBackend(dsn).close()
        postgres.execute(f"CREATE ROLE {role} LOGIN")
        try:
            with psycopg.connect(dsn, autocommit=True) as owner:
                owner.execute("DROP EXTENSION pg_trgm CASCADE")
                owner.execute(f"GRANT ALL ON SCHEMA fusebackend TO {role}")
                for kind in ("TABLES", "SEQUENCES"):
                    owner.execute(f"GRANT ALL ON ALL {kind} IN SCHEMA fusebackend TO {role}")
            with (
                caplog.at_level(logging.WARNING),
                PostgresBackend(dsn.replace("user=postgres", f"user={role}")) as backend,
            ):
                put(backend, "/dir/file.txt", b"needle\n")
                assert found(backend, "needle") == found(backend, "needle", "/dir") == ["/dir/file.txt"]
                assert not backend.queries.indexed
            assert "CREATE EXTENSION pg_trgm" in caplog.text
            with opened(dsn) as backend:  # its owner makes the index, and finds what is to be indexed
                assert postgres_hosts.sql(dsn, "SELECT count(*) FROM fusebackend.unindexed") == [(1,)]
                assert scan(backend, "needle") == backend.grep("needle")
        finally:
            with psycopg.connect(dsn, autocommit=True) as owner:
                owner.execute(f"DROP OWNED BY {role}")
            postgres.execute(f"DROP ROLE {role}")


def test_in_a_database_of_another_encoding_every_file_is_looked_at(
    postgres: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"latin_{uuid.uuid4().hex[:8]}"
    postgres.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    try:
        with caplog.at_level(logging.WARNING), PostgresBackend(postgres.dsn(name)) as backend:
            put(backend, "/日本/file.txt", "日本語のneedle\n".encode())
            for pattern in ("日本語", "needle"):
                assert found(backend, pattern) == found(backend, pattern, "/日本") == ["/日本/file.txt"]
            assert node_at(backend, "/日本/file.txt")
        assert "its encoding is LATIN1" in caplog.text
    finally:
        postgres.execute(f"DROP DATABASE {name} WITH (FORCE)")
