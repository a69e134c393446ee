"""The change feed of a PostgreSQL volume: what another session changes is told, and that the connection was lost."""

from __future__ import annotations

import queue
import tempfile
from collections.abc import Iterator

import psycopg
import pytest
from services.stall import Stall

from fusebackend.backends import PostgresBackend
from fusebackend.backends.postgres import feed
from fusebackend.backends.postgres.volume import PostgresVolume
from fusebackend.databases import listener
from fusebackend.protocol import ROOT_NODE, Caller, Change, Link

pytestmark = pytest.mark.services

ME = Caller(0, 0)
PATIENCE_S = 30.0


class Ear:
    """Takes what a volume tells."""

    def __init__(self, volume: PostgresVolume) -> None:
        self._told: queue.Queue[Change] = queue.Queue()
        volume.subscribe(self._told.put)

    def wait(self, wanted: Change) -> list[Change]:
        """Until it is told; returns what was told before."""
        before = []
        while (change := self._told.get(timeout=PATIENCE_S)) != wanted:
            before.append(change)
        return before


@pytest.fixture
def here(postgres_dsn: str) -> Iterator[PostgresVolume]:
    with PostgresBackend(postgres_dsn, "v") as backend:
        assert isinstance(backend.volume, PostgresVolume)
        yield backend.volume


@pytest.fixture
def there(postgres_dsn: str) -> Iterator[PostgresVolume]:
    with PostgresBackend(postgres_dsn, "v") as backend:
        assert isinstance(backend.volume, PostgresVolume)
        yield backend.volume


def test_what_another_session_does_is_told_and_nothing_of_ones_own(here: PostgresVolume, there: PostgresVolume) -> None:
    ear = Ear(here)
    here.mknod(ROOT_NODE, b"own", 0o100644, 0, ME)
    node = there.mknod(ROOT_NODE, b"a name\xff", 0o100644, 0, ME).node
    assert set(ear.wait(Change(node, ROOT_NODE, b"a name\xff"))) == {Change(ROOT_NODE)}
    there.write(node, 0, b"x")
    assert ear.wait(Change(node)) == []
    there.rename(ROOT_NODE, b"a name\xff", ROOT_NODE, b"b")
    end = there.mknod(ROOT_NODE, b"end", 0o100644, 0, ME).node
    told = ear.wait(Change(end, ROOT_NODE, b"end"))
    assert {Change(node, ROOT_NODE, b"b"), Change(None, ROOT_NODE, b"a name\xff")} <= set(told)


def test_a_lost_connection_is_told_and_so_is_the_next_one(
    here: PostgresVolume, there: PostgresVolume, postgres_dsn: str
) -> None:
    live: list[bool] = []
    here.subscribe(lambda change: live.append(here.features.change_feed) if change == Change() else None)
    ear = Ear(here)  # told after that
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        feed = f"fusebackend-feed-{here.session}"
        cut = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = %s"  # other tests share the server
        )
        assert connection.execute(cut, [feed]).fetchall() == [(True,)]
    ear.wait(Change())
    ear.wait(Change())
    assert live == [False, True]
    node = there.mknod(ROOT_NODE, b"f", 0o100644, 0, ME).node
    ear.wait(Change(node, ROOT_NODE, b"f"))


def test_a_server_that_says_nothing_is_as_good_as_lost(
    postgres_dsn: str, there: PostgresVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "PING_S", 0.2)
    words = psycopg.conninfo.conninfo_to_dict(postgres_dsn)
    port = f".s.PGSQL.{words['port']}"
    with (
        tempfile.TemporaryDirectory(prefix="fusebackend-") as directory,  # the path of a socket may have 107 bytes
        Stall(f"{words['host']}/{port}", f"{directory}/{port}") as network,
    ):
        dsn = psycopg.conninfo.make_conninfo(postgres_dsn, host=directory)
        with PostgresBackend(dsn, "v") as backend:
            assert isinstance(backend.volume, PostgresVolume)
            ear = Ear(backend.volume)
            there.mknod(ROOT_NODE, b"a", 0o100644, 0, ME)
            ear.wait(Change(ROOT_NODE))
            network.stall()
            ear.wait(Change())
            assert not backend.volume.features.change_feed
            network.resume()
            while not backend.volume.features.change_feed:
                ear.wait(Change())
            node = there.mknod(ROOT_NODE, b"b", 0o100644, 0, ME).node
            ear.wait(Change(node, ROOT_NODE, b"b"))


@pytest.mark.parametrize(
    "words",
    [
        "wake",
        "wake 1 x",
        "wake 1 1:2",
        "wake 1 1:2:x",
        "hello",
        "wake 1 \N{SNOWMAN}",
        "busy 1 x",
        "nonsense of somebody",
    ],
)
def test_a_wake_up_that_makes_no_sense_is_one(
    here: PostgresVolume, there: PostgresVolume, postgres_dsn: str, words: str
) -> None:
    """Whoever may connect to the database may send one."""
    ear = Ear(here)
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute("SELECT pg_notify(%s, %s)", [feed.channel(here.id), words])
    node = there.mknod(ROOT_NODE, b"f", 0o100644, 0, ME).node
    ear.wait(Change(node, ROOT_NODE, b"f"))
    assert here._session.run(lambda connection: connection.closed) is False


def test_a_subscriber_that_fails_does_not_end_it(here: PostgresVolume, there: PostgresVolume) -> None:
    here.subscribe(lambda change: 1 / 0)
    ear = Ear(here)
    for name in (b"a", b"b"):
        node = there.mknod(ROOT_NODE, name, 0o100644, 0, ME).node
        ear.wait(Change(node, ROOT_NODE, name))


def test_links_that_are_not_there_are_found_out(here: PostgresVolume, there: PostgresVolume) -> None:
    node = there.mknod(ROOT_NODE, b"f\xff", 0o100644, 0, ME).node
    right = Link(ROOT_NODE, b"f\xff", node)
    wrong = [Link(ROOT_NODE, b"f", node), Link(node, b"f\xff", node), Link(ROOT_NODE, b"f\xff", ROOT_NODE)]
    assert here.wrong_links([]) == here.wrong_links([right]) == []
    assert here.wrong_links([wrong[0], right, *wrong[1:]]) == wrong
