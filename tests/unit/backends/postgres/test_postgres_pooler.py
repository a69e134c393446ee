"""PgBouncer before a volume: refused by name in transaction mode, as good as the server in session mode. Stores and
threads work behind it in any mode, and leave nothing for its other clients."""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Iterator

import graphs
import psycopg
import pytest
from services import pgbouncer
from services.postgres import Postgres

from fusebackend.backends import PostgresBackend, volume_of
from fusebackend.protocol.scheme import UrlError
from fusebackend.urls import open_backend

pytestmark = pytest.mark.services

REFUSED = r"can't be kept behind a transaction pooler \(such as PgBouncer with pool_mode = transaction\): give the addr"


@pytest.fixture
def database(postgres: Postgres) -> Iterator[str]:
    """The name of an empty database."""
    with postgres.database() as dsn:
        yield dsn.rpartition("=")[2]


def has_schema(postgres: Postgres, database: str) -> bool:
    with psycopg.connect(postgres.dsn(database)) as connection:
        return connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'fusebackend'").fetchone() is not None


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
    stop = threading.Event()
    failed: list[BaseException] = []

    def work() -> None:
        try:
            with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as connection:
                while not stop.is_set():
                    connection.execute("SELECT pg_sleep(random() / 2000)")
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failed == []


@pytest.mark.parametrize("round_robin", [False, True])
@pytest.mark.parametrize("processes", [1, 2, 3, 8])
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
            with pytest.raises(OSError, match=REFUSED) as refused:
                PostgresBackend(dsn, "v")
            assert refused.value.errno == errno.ENOTSUP
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
