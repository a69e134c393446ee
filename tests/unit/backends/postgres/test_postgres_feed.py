"""The change feed of a PostgreSQL volume: what other hosts change is told, and that the connection was lost.

No row of it is skipped or stalled, in whatever order transactions and servers end.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import psycopg
import pytest
from ears import Ear
from eventually import eventually
from for_each import for_each
from hypothesis import example, given, settings
from hypothesis import strategies as st
from nodes import ME
from postgres_hosts import cut_feed, sql
from profiles import amount, examples
from services.stall import Stall
from together import together

from fusebackend.backends.postgres import feed, host_session, schema
from fusebackend.backends.postgres.volume import PostgresVolume
from fusebackend.databases import listener
from fusebackend.protocol import ROOT_NODE, Change, Link

pytestmark = pytest.mark.services

LIMIT_S = 30.0


class Host(PostgresVolume):
    """A volume that records what it is told of."""

    def __init__(self, dsn: str, name: str) -> None:
        self.ear: Ear[Change] = Ear()
        super().__init__(dsn, name)
        self.subscribe(self.ear)

    def make(self, name: bytes) -> int:
        return self.mknod(ROOT_NODE, name, 0o100644, 0, ME).node

    def wait(self, wanted: Change) -> list[Change]:
        """Wait until it is told of a change. Return what it was told before."""
        return self.ear.until(wanted, LIMIT_S)

    def rest(self) -> list[Change]:
        """Return what it has been told, after one more reading of the rows. One under way may have begun before."""
        self.read_rows()
        self.read_rows()
        self._feed._published.join()
        return self.ear.take()

    def read_rows(self) -> None:
        looked_at = self._feed._looked_at
        self._feed._called = True
        self._feed.wake()
        eventually(lambda: self._feed._looked_at > looked_at, LIMIT_S)


@pytest.fixture
def here(shared_dsn: str, request: pytest.FixtureRequest) -> Iterator[Host]:
    with contextlib.closing(Host(shared_dsn, request.node.name)) as host:
        yield host


@pytest.fixture
def there(here: Host) -> Iterator[Host]:
    """Another host, which `here` knows of."""
    yield from joined(here, 1)


def joined(known: Host, others: int) -> Iterator[Host]:
    """One more host, once the other one has counted it."""
    began = time.monotonic()
    host = Host(known.conninfo, known.name)
    eventually(lambda: known._feed._others == others and known._feed._surveyed_at > began, LIMIT_S)
    with contextlib.closing(host):
        yield host


def rows_of(volume: PostgresVolume) -> int:
    """How many rows the feed of a volume has."""
    ((count,),) = sql(volume.conninfo, "SELECT count(*) FROM fusebackend.change WHERE volume = %s", volume.id)
    return int(count)


class Writer:
    """A transaction of another session that has added a row and is not over."""

    def __init__(self, volume: PostgresVolume, node: int, session: int = 999_999) -> None:
        self.connection = psycopg.connect(volume.conninfo)
        self.node = node
        query, parameters = feed.row(volume.id, session, feed.encode([Change(node)]))
        self.connection.execute(query, parameters)  # type: ignore[call-overload]

    def end(self, *, commits: bool = True) -> None:
        if commits:
            self.connection.commit()
        self.connection.close()


def test_a_lost_connection_is_told_and_so_is_the_next_one(here: Host, there: Host) -> None:
    live: list[bool] = []
    here.subscribe(lambda change: live.append(here.features.change_feed) if change == Change() else None)
    cut_feed(here)
    eventually(lambda: live == [False, True], LIMIT_S)
    node = there.make(b"f")
    here.wait(Change(node, ROOT_NODE, b"f"))


def test_a_server_that_says_nothing_is_as_good_as_lost(
    shared_dsn: str, here: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "PING_S", 0.2)
    words = psycopg.conninfo.conninfo_to_dict(shared_dsn)
    port = f".s.PGSQL.{words['port']}"
    with (
        tempfile.TemporaryDirectory(prefix="fusebackend-") as directory,  # the path of a socket may have 107 bytes
        Stall(f"{words['host']}/{port}", f"{directory}/{port}") as network,
    ):
        dsn = psycopg.conninfo.make_conninfo(shared_dsn, host=directory)
        with contextlib.closing(Host(dsn, here.name)) as volume:
            here.make(b"a")
            volume.wait(Change(ROOT_NODE))
            network.stall()
            volume.wait(Change())
            assert not volume.features.change_feed
            network.resume()
            eventually(lambda: volume.features.change_feed, LIMIT_S)
            node = here.make(b"b")
            volume.wait(Change(node, ROOT_NODE, b"b"))


NONSENSE = ("wake", "wake 1 x", "hello", "wake 1 \N{SNOWMAN}", "busy", "busy 1 x", "nonsense of somebody")


@for_each("words", NONSENSE)
def test_a_wake_up_that_makes_no_sense_is_one(here: Host, there: Host, shared_dsn: str, words: str) -> None:
    """Whoever may connect to the database may send one."""
    with psycopg.connect(shared_dsn, autocommit=True) as connection:
        connection.execute("SELECT pg_notify(%s, %s)", [feed.channel(here.id), words])
    node = there.make(words.encode())
    here.wait(Change(node, ROOT_NODE, words.encode()))
    assert here._session.run(lambda connection: connection.closed) is False


def test_a_subscriber_that_fails_does_not_end_it(here: Host, there: Host) -> None:
    here.subscribe(lambda change: 1 / 0)
    for name in (b"a", b"b"):
        node = there.make(name)
        here.wait(Change(node, ROOT_NODE, name))


def test_links_that_are_not_there_are_found_out(here: Host, there: Host) -> None:
    node = there.make(b"f\xff")
    right = Link(ROOT_NODE, b"f\xff", node)
    wrong = [Link(ROOT_NODE, b"f", node), Link(node, b"f\xff", node), Link(ROOT_NODE, b"f\xff", ROOT_NODE)]
    assert here.wrong_links([]) == here.wrong_links([right]) == []
    assert here.wrong_links([wrong[0], right, *wrong[1:]]) == wrong


def test_a_transaction_that_is_open_for_long_stalls_nobody(here: Host, there: Host, shared_dsn: str) -> None:
    with psycopg.connect(shared_dsn) as dump, psycopg.connect(shared_dsn) as load:
        dump.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        dump.execute("SELECT count(*) FROM fusebackend.inode")
        load.execute("SELECT pg_current_xact_id()")
        for number in range(20):
            node = there.make(b"n%d" % number)
            here.wait(Change(node, ROOT_NODE, b"n%d" % number))
        assert here._feed._position.running, "the transaction is still under way"
        assert here.rest() == [], "no row is read twice"


def test_a_host_that_dies_before_its_wake_up_is_heard_within_a_second(here: Host, there: Host, shared_dsn: str) -> None:
    here.read_rows()
    writer = Writer(here, 1002)
    writer.end()
    begun = time.monotonic()
    here.wait(Change(1002))
    assert time.monotonic() - begun < feed.LOOK_S + 1.0


@settings(max_examples=examples(30))
@example(steps=[(0, "begin"), (1, "begin"), (1, "commit"), (0, "look"), (0, "commit")])
@given(steps=st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["begin", "commit", "abort", "look", "cut"]))))
def test_every_commit_is_told_once_whatever_the_order(postgres_volume: Host, steps: list) -> None:
    """Four transactions begin, commit and abort in any order, and the feed reads and loses its connection between."""
    host = postgres_volume
    host.rest()
    host._feed._surveyed_at = -feed.SURVEY_S
    host.read_rows()
    writers: dict[int, Writer] = {}
    wanted: list[int] = []
    following = 5000
    cuts = 0
    for number, step in steps:
        if step == "begin" and number not in writers:
            following += 1
            writers[number] = Writer(host, following)
        elif step in ("commit", "abort") and number in writers:
            writer = writers.pop(number)
            writer.end(commits=step == "commit")
            if step == "commit":
                wanted.append(writer.node)
        elif step == "look":
            host.read_rows()
        elif step == "cut" and cuts < 2:
            cuts += 1
            cut_feed(host)
            host.ear.wait(lambda heard, cuts=cuts: heard.count(Change()) == 2 * cuts, LIMIT_S)
    for writer in writers.values():
        writer.end(commits=False)
    told = host.rest()
    assert sorted(change.node for change in told if change.node) == sorted(wanted)
    assert told.count(Change()) == 2 * cuts


@pytest.fixture(scope="module")
def postgres_volume(shared_dsn: str) -> Iterator[Host]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listener, "RETRY_S", (0.0,))  # its connections are cut often
        with contextlib.closing(Host(shared_dsn, "any order")) as host:
            yield host


def test_a_reader_that_was_away_for_too_long_invalidates_everything(
    here: Host, there: Host, shared_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows were deleted meanwhile. Time is that of the snapshots: `there` deletes what it saw long ago."""
    monkeypatch.setattr(here._feed, "turn", lambda ask: 0.1)  # as when its process is stopped
    node = there.make(b"missed")
    there.read_rows()
    there._feed._past.clear()
    there._feed._past.append((time.monotonic() - feed.KEEP_S - 1, there._feed._position))
    sql(shared_dsn, "UPDATE fusebackend.change_kept SET at = at - interval '1 minute' WHERE volume = %s", here.id)
    there._session.run(there._feed.sweep)
    assert rows_of(here) == 0
    monkeypatch.undo()
    here._feed.wake()
    assert Change(node) not in here.wait(Change())
    later = there.make(b"later")
    assert Change() not in here.wait(Change(later, ROOT_NODE, b"later"))


def test_rows_are_deleted_in_steps_and_none_that_a_reader_may_need(
    here: Host, there: Host, shared_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = Writer(here, 1003)
    rows = feed.SWEPT_AT_ONCE + 500
    plant = "INSERT INTO fusebackend.change (volume, session, payload) SELECT %s, 9999, %s FROM generate_series(1, %s)"
    sql(shared_dsn, plant, here.id, feed.encode([Change(7)]), rows)
    there.read_rows()
    here.read_rows()
    there._feed._past.clear()
    there._feed._past.append((time.monotonic() - feed.KEEP_S - 1, there._feed._position))
    there.make(b"new")
    assert there._session.run(there._feed.sweep) is False, "another host has just done so"
    sql(shared_dsn, "UPDATE fusebackend.change_kept SET at = at - interval '1 minute' WHERE volume = %s", here.id)
    assert there._session.run(there._feed.sweep) is True
    assert rows_of(here) == 501
    assert there._session.run(there._feed.sweep) is False
    assert rows_of(here) == 1
    late.end()
    here.wait(Change(1003))
    assert rows_of(here) == 2


@for_each("silent", ("killed", "stopped"))
def test_what_the_first_two_hosts_leave_is_done_by_another(
    here: Host, shared_dsn: str, monkeypatch: pytest.MonkeyPatch, silent: str
) -> None:
    """Killed hosts are found only by one that looks, and stopped ones keep their locks: nobody is to wait for them."""
    monkeypatch.setattr(host_session, "GRACE_S", 1.0)
    monkeypatch.setattr(host_session, "PERIOD_S", 0.1)
    monkeypatch.setattr(host_session, "UNLED_S", 0.3)
    monkeypatch.setattr(feed, "SURVEY_S", 0.1)
    monkeypatch.setattr(feed, "IDLE_S", 0.1)
    sessions = (-here.id * 2, -here.id * 2 - 1)
    with psycopg.connect(shared_dsn, autocommit=True) as first_two:
        for number in sessions:
            if silent == "stopped":
                first_two.execute("SELECT pg_advisory_lock(%s::int, %s::int)", [schema.SESSION_LOCK, number])
            add = "INSERT INTO fusebackend.session (volume, id, host, pid) VALUES (%s, %s, 'elsewhere', 1)"
            sql(shared_dsn, add, here.id, number)
        here._feed.wake()
        eventually(lambda: not here._feed.leads, LIMIT_S)
        old = (
            "INSERT INTO fusebackend.change (volume, session, payload, at) SELECT %s, -1, '[]', now() - interval '1 h'"
        )
        sql(shared_dsn, old, here.id)
        here.read_rows()
        here._feed._past.clear()
        here._feed._past.append((time.monotonic() - feed.KEEP_S - 1, here._feed._position))
        sql(shared_dsn, "UPDATE fusebackend.change_kept SET at = at - interval '1 h' WHERE volume = %s", here.id)
        sql(shared_dsn, "INSERT INTO fusebackend.pruning VALUES (%s, 1, 1)", here.id)
        here._session.work_soon()
        left = "SELECT FROM fusebackend.pruning WHERE volume = %s"
        eventually(lambda: rows_of(here) == 0 and not sql(shared_dsn, left, here.id), LIMIT_S)
        if silent == "killed":
            eventually(lambda: here._feed._others == 0, LIMIT_S)


def test_rows_of_another_server_are_passed_over(here: Host, there: Host, shared_dsn: str) -> None:
    """A dump that was restored has rows and a floor with numbers that this server has not reached."""
    sql(shared_dsn, "INSERT INTO fusebackend.change VALUES (%s, '99999999', 999999, '[[1004,null,null]]')", here.id)
    sql(
        shared_dsn,
        "UPDATE fusebackend.change_kept SET floor = '99999999:99999999:', done = floor WHERE volume = %s",
        here.id,
    )
    assert set(here.rest()) <= {Change()}
    node = there.make(b"f")
    assert Change(1004) not in here.wait(Change(node, ROOT_NODE, b"f"))
    Host(shared_dsn, here.name).close()
    floor = "SELECT floor::text FROM fusebackend.change_kept WHERE volume = %s"
    assert sql(shared_dsn, floor, here.id) == [("1:1:",)]


def test_a_single_host_sends_no_wake_up_and_a_second_one_is_sent_all(here: Host, shared_dsn: str) -> None:
    here.make(b"a")
    eventually(lambda: not here._feed._is_due, LIMIT_S)
    assert here._feed._others == 0
    with contextlib.closing(Host(shared_dsn, here.name)) as there:
        node = here.make(b"b")
        there.ear.until(Change(node, ROOT_NODE, b"b"), feed.LOOK_S * 5)
        assert here._feed._others == 1


@pytest.fixture
def third(there: Host) -> Iterator[Host]:
    yield from joined(there, 2)


def test_five_busy_hosts_hear_of_every_change_by_wake_ups(
    here: Host, there: Host, third: Host, shared_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "LOOK_S", 1000.0)  # no host looks by itself
    monkeypatch.setattr(feed, "IDLE_S", 1000.0)
    changes = amount("FEED_CHANGES", day=200, night=3_000)
    with (
        contextlib.closing(Host(shared_dsn, here.name)) as fourth,
        contextlib.closing(Host(shared_dsn, here.name)) as fifth,
    ):
        hosts = [here, there, third, fourth, fifth]
        for host in hosts:
            host.read_rows()
            host._feed._others = len(hosts) - 1
        made: dict[int, set[int]] = {}
        sent = [0]
        monkeypatch.setattr(feed.VolumeFeed, "_tell", counted(feed.VolumeFeed._tell, sent))

        def work(number: int) -> None:
            chance = random.Random(number)
            made[number] = set()
            for turn in range(changes):
                made[number].add(hosts[number].make(b"%d-%d" % (number, turn)))
                time.sleep(chance.choice((0, 0, 0.001, 0.01)))

        together(*(partial(work, number) for number in range(len(hosts))))
        for number, host in enumerate(hosts):
            wanted = set().union(*(nodes for other, nodes in made.items() if other != number))
            host.ear.wait(lambda told, wanted=wanted: wanted <= {change.node for change in told}, LIMIT_S)
            assert Change() not in host.ear.heard, "it is everything that may have changed"
        assert sent[0] < len(hosts) * changes / 2, "they read by themselves"


def counted(method: Any, count: list[int]) -> Any:
    def call(*arguments: Any) -> Any:
        count[0] += 1
        return method(*arguments)

    return call


def test_a_newcomer_reads_what_nobody_tells(
    here: Host, there: Host, third: Host, shared_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others may be reading by themselves."""
    monkeypatch.setattr(feed, "LOOK_S", 1000.0)
    monkeypatch.setattr(feed, "IDLE_S", 1000.0)
    monkeypatch.setattr(feed.VolumeFeed, "_tell", lambda self, ask: None)
    with contextlib.closing(Host(shared_dsn, here.name)) as fourth:
        node = here.make(b"news")
        fourth.wait(Change(node, ROOT_NODE, b"news"))


def test_more_changes_than_can_be_read_are_everything(
    here: Host, shared_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(shared_dsn, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO fusebackend.change (volume, session, payload) SELECT %s, 999999, '[[7,null,null]]'"
            " FROM generate_series(1, %s)",
            [here.id, feed.MAX_ROWS + 1],
        )
    assert here.rest() == [Change()]


def test_many_threads_use_the_connection_of_the_feed(here: Host, there: Host) -> None:
    seen: set[int] = set()

    def take() -> None:
        seen.update(here._session.new_node() for _ in range(600))

    together(*[take] * 8)
    assert len(seen) == 8 * 600
    node = there.make(b"f")
    here.wait(Change(node, ROOT_NODE, b"f"))
