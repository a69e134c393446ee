"""A PostgreSQL server that comes back with an older state, from a backup or a standby, beside hosts that live on.

They still have files open, and numbers in hand, that were given out after that state. Nobody else may get the same.
The last test has a volume whose address names a primary and its standby.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from eventually import eventually
from nodes import put, whole
from postgres_hosts import ME, sql
from services.postgres import PORT, Server, running

from fusebackend.backends.postgres.volume import PostgresVolume
from fusebackend.databases import postgres
from fusebackend.protocol import ROOT_NODE, Change
from fusebackend.testing.each import each
from fusebackend.trees.lower_tree import NODE_BITS

pytestmark = [pytest.mark.services, pytest.mark.timeout(120)]


AWAY_S = 6.0
"""How old the state is. Small numbers go on by one a second (`schema.SKIP_NUMBERS`), and a test takes a few."""


@pytest.fixture
def server() -> Iterator[Server]:
    with running(durable=True) as server:
        yield server


@pytest.fixture
def host(server: Server) -> Iterator[Callable[..., PostgresVolume]]:
    """Yield a function that opens a volume by one more host."""
    opened: list[PostgresVolume] = []

    def one_more(name: str = "v") -> PostgresVolume:
        opened.append(PostgresVolume(server.dsn(), name))
        return opened[-1]

    yield one_more
    for volume in opened:
        try:
            volume.close()
        except OSError as error:  # what it had not synced is lost
            assert "lost changes" in str(error) or "server closed the connection" in str(error), error


@pytest.fixture(params=[pytest.param("copied while it was stopped", marks=pytest.mark.night), "base backup"])
def set_back(server: Server, request: pytest.FixtureRequest) -> Callable[[], Callable[[], None]]:
    """A function that keeps the state of the server, and returns one that brings it back."""
    kept = server.directory / "kept"

    def keep() -> Callable[[], None]:
        kept_at = time.time()
        if request.param == "base backup":
            server.base_backup(kept)
        else:
            server.stop()
            subprocess.run(["cp", "-a", server.data, kept], check=True, timeout=60)
            server.start()
        return lambda: bring_back(server, kept, kept_at + AWAY_S)

    return keep


def bring_back(server: Server, kept: Path, at: float) -> None:
    server.stop()
    shutil.rmtree(server.data)
    kept.rename(server.data)
    time.sleep(max(0.0, at - time.time()))
    server.start()


def made(volume: PostgresVolume, name: bytes, data: bytes) -> int:
    """The node of a file that is on the server's disk, and stays open."""
    node = volume.create(ROOT_NODE, name, 0o644, os.O_RDWR, ME).node
    volume.write(node, 0, data)
    volume.fsync(node)
    return node


def wait_for(volume: PostgresVolume) -> None:
    """Wait until a host has its connection again."""
    eventually(lambda: volume._feed.live and not volume._feed._is_back)


# -- what lives on: each begins, does something in the state that will be lost, and meets the server that is back -----

Host = Callable[..., PostgresVolume]


def what_was_open_in_a_lost_file_is_written_into_no_other(host: Host) -> Iterator[None]:
    host("files")
    yield
    living = host("files")
    lost = made(living, b"lost", b"old")
    yield
    wait_for(living)
    newcomer = host("files")
    files = [made(newcomer, b"new%d" % number, b"new") for number in range(20)]
    assert lost not in files
    with pytest.raises(OSError, match=r"[Ss]tale"):
        living.write(lost, 0, b"of the lost file")
    with pytest.raises(OSError, match=r"[Ss]tale"):
        living.read(lost, 0, 100)
    assert [newcomer.read(file, 0, 100) for file in files] == [b"new"] * 20


def hosts_begin_and_make_files_beside_those_that_live_on(host: Host) -> Iterator[None]:
    host("hosts")
    yield
    living = [host("hosts") for _ in range(3)]
    for number, volume in enumerate(living):
        made(volume, b"before%d" % number, b"lost")
    yield
    for volume in living:
        wait_for(volume)
    everybody = [*living, host("hosts"), host("hosts")]
    assert len({volume._session.id for volume in everybody}) == 5
    nodes = [
        made(volume, b"%d by %d" % (number, by), b"x") for number in range(20) for by, volume in enumerate(everybody)
    ]
    assert len(set(nodes)) == 100


def a_volume_that_is_lost_is_not_taken_for_a_new_one(host: Host) -> Iterator[None]:
    yield
    lost = host("lost")
    made(lost, b"mine", b"x")
    told: list[str] = []
    lost.on_snapshot = told.append
    changes: list[Change] = []
    lost.subscribe(changes.append)
    yield
    wait_for(lost)
    eventually(lambda: Change() in changes)
    assert told == []
    another = host("another")
    made(another, b"secret", b"of another agent")
    assert another.id != lost.id
    with pytest.raises(OSError, match=r"[Ss]tale"):
        lost.readdir(ROOT_NODE, b"", 10)
    with pytest.raises(OSError, match=r"[Ss]tale"):
        made(lost, b"more", b"x")


def test_hosts_that_live_on_meet_the_server_that_is_back(
    host: Host, set_back: Callable[[], Callable[[], None]]
) -> None:
    stories = (
        a_volume_that_is_lost_is_not_taken_for_a_new_one,
        what_was_open_in_a_lost_file_is_written_into_no_other,
        hosts_begin_and_make_files_beside_those_that_live_on,
    )
    told = {story.__name__: story(host) for story in stories}
    for story in told.values():
        next(story)
    bring_back = set_back()
    for story in told.values():
        next(story)
    bring_back()
    for case in each(told):
        with case as story:
            assert next(story, None) is None


def test_numbers_stay_small_enough_for_branches(server: Server, host: Callable[..., PostgresVolume]) -> None:
    """Beyond, they number files one by one. And the numbers go up each time."""
    one = host()
    before = made(one, b"first", b"x")
    for number in range(2):
        server.stop()
        server.start()
        wait_for(one)
        node = made(host(), b"new%d" % number, b"x")
        assert before < node < 1 << NODE_BITS
        before = node


# -- a primary and its standby -----------------------------------------------------------------------------------------


@pytest.fixture
def standby(server: Server) -> Iterator[Server]:
    """It applies what it gets three seconds later, as a standby does that is behind."""
    standby = Server(durable=True)
    try:
        server.base_backup(standby.data)
        (standby.data / "standby.signal").touch()
        with (standby.data / "postgresql.auto.conf").open("a") as settings:
            settings.write(f"primary_conninfo = 'host={server.directory} port={PORT} user=postgres'\n")
            settings.write("recovery_min_apply_delay = '3s'\n")
            settings.write("wal_retrieve_retry_interval = '100ms'\n")
        standby.start()
        yield standby
    finally:
        standby.remove()


def test_a_standby_answers_nothing_until_it_is_promoted(
    server: Server, standby: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "PATIENCE_S", 0.5)
    alone = PostgresVolume(server.dsn(), "v")
    either = PostgresVolume(
        f"host={server.directory},{standby.directory} port={PORT} user=postgres dbname=postgres", "v"
    )
    file = put(alone, b"file", b"first")
    alone.fsync(file)
    assert whole(either, file) == b"first"
    server.stop()
    with pytest.raises(OSError, match="can't be reached"):
        whole(either, file)
    server.start()
    alone.fsync(put(alone, b"other", b"x"))
    alone.open(file, os.O_RDWR)
    alone.write(file, 0, b"later")
    alone.fsync(file)
    assert whole(either, file) == b"later"
    ((at,),) = sql(server.dsn(), "SELECT pg_current_wal_flush_lsn()")
    received = f"SELECT pg_last_wal_receive_lsn() >= '{at}'"
    eventually(lambda: sql(standby.dsn(), received) == [(True,)])
    server.stop()
    standby.execute("SELECT pg_promote()")
    eventually(lambda: either._feed.live)
    assert whole(either, file) == b"later"
    assert put(either, b"new", b"new") != file
    assert whole(either, either.lookup(ROOT_NODE, b"new").node) == b"new"
    either.close()
    with pytest.raises(OSError, match=r"PostgreSQL"):
        alone.close()
