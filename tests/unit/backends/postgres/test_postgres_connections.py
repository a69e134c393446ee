"""Connections of volumes: one of an idle host, more while it works, a server that takes no more, and a pooler."""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from collections.abc import Iterator
from functools import partial

import graphs
import psycopg
import pytest
from eventually import eventually
from postgres_hosts import sql
from services import pgbouncer
from services.postgres import Postgres, Server, running
from together import over_and_over, together

from fusebackend.backends import PostgresBackend, volume_of
from fusebackend.databases import postgres as databases
from fusebackend.protocol import ROOT_NODE
from fusebackend.protocol.scheme import UrlError
from fusebackend.testing.posix.case import fails
from fusebackend.urls import open_backend

pytestmark = pytest.mark.services

LIMIT_S = 60.0


@pytest.fixture(scope="module")
def small() -> Iterator[Server]:
    with running("max_connections=12") as server:
        yield server


def clients(dsn: str) -> int:
    """Count the other connections of the server."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
    ((count,),) = sql(dsn, query)
    return int(count)


@contextlib.contextmanager
def all_taken(dsn: str) -> Iterator[list[psycopg.Connection[object]]]:
    """Take every connection that the server still gives."""
    taken: list[psycopg.Connection[object]] = []
    try:
        with pytest.raises(psycopg.OperationalError, match="too many clients"):
            while True:
                taken.append(psycopg.connect(dsn))
        yield taken
    finally:
        for connection in taken:
            connection.close()


def test_connections_are_opened_as_needed_and_given_back(small: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle host has one, so 64 of them fit a server with default settings, which takes 100."""
    monkeypatch.setattr(databases, "IDLE_S", 0.2)
    with PostgresBackend(small.dsn(), "idle"), PostgresBackend(small.dsn(), "idle", connections=4) as backend:
        eventually(lambda: clients(small.dsn()) == 2, LIMIT_S)
        barrier = threading.Barrier(3)

        def work() -> None:
            with backend.volume.viewing():
                barrier.wait(LIMIT_S)
                backend.volume.getattr(ROOT_NODE)

        together(*[work] * 3)
        eventually(lambda: clients(small.dsn()) == 2, LIMIT_S)
        assert backend.write("/again.txt", "x").error is None
    eventually(lambda: clients(small.dsn()) == 0, LIMIT_S)


def test_a_full_server_makes_operations_wait_for_a_connection_of_their_own(small: Server) -> None:
    with PostgresBackend(small.dsn(), "own", connections=8) as backend:
        assert backend.volume.trouble is None
        errors: list[str | None] = []
        with all_taken(small.dsn()):
            thread = threading.Thread(target=lambda: errors.append(backend.write("/file.txt", "x").error))
            with backend.volume.viewing():  # it has the only connection
                thread.start()
                eventually(lambda: backend.volume.trouble, LIMIT_S)
                trouble = backend.volume.trouble
            thread.join()
            assert errors == [None]
        assert trouble is not None
        assert "too many clients" in trouble[1]
        assert "\n" not in trouble[1]


def test_a_full_server_is_waited_for_by_a_host_without_a_connection(
    small: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "IDLE_S", 0.1)
    monkeypatch.setattr(databases, "PATIENCE_S", 0.2)
    with PostgresBackend(small.dsn(), "none") as backend:
        eventually(lambda: clients(small.dsn()) == 1, LIMIT_S)
        with all_taken(small.dsn()) as taken:
            done = threading.Event()
            threading.Timer(1.0, lambda: (done.set(), taken.pop().close())).start()
            assert backend.write("/file.txt", "x").error is None
            assert done.is_set(), "it has waited for longer than for a server that is away"
        eventually(lambda: clients(small.dsn()) == 1, LIMIT_S)
        begun = time.monotonic()
        with all_taken(small.dsn()):
            monkeypatch.setattr(databases, "BUSY_S", 0.5)
            error = backend.write("/other.txt", "x").error
        assert error is not None
        assert "too many clients" in error
        assert time.monotonic() - begun < LIMIT_S


def test_busy_hosts_take_turns_at_a_full_server(small: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them ever rests, and they want twice as many connections as there are."""
    for name in ("COUNT_S", "TURN_S"):
        monkeypatch.setattr(databases, name, getattr(databases, name) / 5)
    hosts = 24
    done = [0] * hosts

    def work(number: int, pool: databases.Connections) -> None:
        pool.query("SELECT pg_sleep(0.05)", ())
        done[number] += 1

    with contextlib.ExitStack() as working:
        for number in range(hosts):
            pool = working.enter_context(contextlib.closing(databases.Connections(small.dsn(), 4)))
            working.enter_context(over_and_over(partial(work, number, pool)))
        eventually(lambda: all(done), LIMIT_S / 3)
        before = list(done)
        eventually(lambda: all(now > then for now, then in zip(done, before, strict=True)), LIMIT_S / 3)


# -- PgBouncer before a volume -----------------------------------------------------------------------------------------


REFUSED = r"can't be kept behind a transaction pooler \(such as PgBouncer with pool_mode = transaction\): give the addr"


@pytest.fixture
def database(postgres: Postgres) -> Iterator[str]:
    """The name of an empty database."""
    with postgres.database() as dsn:
        yield dsn.rpartition("=")[2]


def has_schema(postgres: Postgres, database: str) -> bool:
    return bool(sql(postgres.dsn(database), "SELECT 1 FROM pg_namespace WHERE nspname = 'fusebackend'"))


def require_unchanged(dsn: str, processes: int = 2) -> None:
    """Raise unless the next clients of a pooler find all its processes of the server as they were."""
    settings = "current_setting('lock_timeout'), current_setting('default_transaction_read_only')"
    left = "(SELECT count(*) FROM pg_prepared_statements), (SELECT count(*) FROM pg_listening_channels())"
    with contextlib.ExitStack() as clients:
        for _ in range(processes):  # each client gets one, for its transaction goes on
            client = clients.enter_context(psycopg.connect(dsn, prepare_threshold=None))
            assert client.execute(f"SELECT {settings}, {left}").fetchone() == ("0", "off", 0, 0)


@contextlib.contextmanager
def busy(dsn: str, clients: int) -> Iterator[None]:
    """Other clients of a pooler, which take its processes in no order."""
    with contextlib.ExitStack() as working:
        for _ in range(clients):
            connection = working.enter_context(psycopg.connect(dsn, autocommit=True, prepare_threshold=None))
            query = "SELECT pg_sleep(random() / 2000)"
            working.enter_context(over_and_over(partial(connection.execute, query)))
        yield


@pytest.mark.parametrize(("processes", "round_robin"), [(1, False), (2, True), (8, False)])
def test_a_transaction_pooler_is_refused_by_name(
    postgres: Postgres, database: str, processes: int, round_robin: bool
) -> None:
    with pgbouncer.running(postgres, processes=processes, round_robin=round_robin) as bouncer:
        dsn = bouncer.dsn(database)
        for used in range(1, processes + 1):  # so many that the pooler has opened
            with contextlib.ExitStack() as clients:
                for _ in range(used):
                    client = clients.enter_context(psycopg.connect(dsn, prepare_threshold=None))
                    client.execute("SELECT 1")
            with fails(errno.ENOTSUP, match=REFUSED):
                PostgresBackend(dsn, "v")
        with pytest.raises(UrlError, match=REFUSED) as line:
            open_backend(f"postgres:{dsn}?volume=v")
        assert "\n" not in str(line.value)
        with busy(dsn, 4):
            for _ in range(20):
                with pytest.raises(OSError, match=REFUSED):
                    PostgresBackend(dsn, "v")
        require_unchanged(dsn, processes)
    assert not has_schema(postgres, database)


def test_a_volume_is_as_good_behind_a_pooler_in_session_mode(postgres: Postgres, database: str) -> None:
    with (
        pgbouncer.running(postgres, mode="session", processes=30) as bouncer,
        PostgresBackend(bouncer.dsn(database), "v") as one,
        PostgresBackend(postgres.dsn(database), "v") as other,
    ):
        heard = threading.Event()
        other.volume.subscribe(lambda change: heard.set() if change.name == b"file" else None)
        assert one.write("/file", "content").error is None
        assert heard.wait(60)
        assert other.download("/file").content == b"content"


@pytest.mark.parametrize("round_robin", [False, True])
def test_stores_and_threads_work_behind_a_transaction_pooler(
    postgres: Postgres, database: str, round_robin: bool
) -> None:
    with (
        graphs.postgres_saver(postgres.dsn(database)) as saver,
        pgbouncer.running(postgres, round_robin=round_robin) as bouncer,
    ):
        agent = graphs.deep_agent(saver, [graphs.use(graphs.write("/notes.txt", "one")), graphs.say("done")])
        agent.invoke(graphs.user("hello"), graphs.thread("t1"))
        dsn = bouncer.dsn(database)
        with (
            open_backend(f"store+postgres:{dsn}?ns=a.b") as store,
            open_backend(f"store+postgres:{dsn}?ns=a.b") as other,
            open_backend(f"threads+postgres:{dsn}?write=head") as threads,
            busy(dsn, 3),
        ):
            assert not volume_of(store).features.change_feed, "others' changes are seen after the TTL"
            for number in range(20):
                path = f"/d{number % 3}/{number}"
                assert store.write(path, "content").error is None
                assert other.edit(path, "content", "changed").error is None
                assert store.read(path).file_data["content"] == "changed"
                assert len(store.ls(f"/d{number % 3}").entries) == number // 3 + 1
                assert threads.read("/t1/head/notes.txt").error is None
            for number in range(3):
                assert threads.write(f"/t1/head/{number}", "content").error is None
            assert graphs.state_at(agent, graphs.thread("t1"))["files"].keys() == {"/notes.txt", "/0", "/1", "/2"}
        require_unchanged(dsn)
