"""A PostgreSQL server that comes back with an older state, from a backup or a standby, beside hosts that live on.

They still have files open, and numbers in hand, that were given out after that state. Nobody else may get the same.
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
from services.postgres import Server, running

from fusebackend.backends.postgres.volume import PostgresVolume
from fusebackend.protocol import ROOT_NODE, Caller, Change
from fusebackend.trees.lower_tree import NODE_BITS

pytestmark = [pytest.mark.services, pytest.mark.timeout(120)]

ME = Caller(1000, 1000)
LIMIT_S = 60.0

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
    for each in opened:
        try:
            each.close()
        except OSError as error:  # what it had not synced is lost
            assert "lost changes" in str(error) or "server closed the connection" in str(error), error


@pytest.fixture(params=["copied while it was stopped", "base backup"])
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
    eventually(lambda: volume._feed.live and not volume._feed._is_back, LIMIT_S)


def test_what_was_open_in_a_lost_file_is_written_into_no_other(
    host: Callable[..., PostgresVolume], set_back: Callable[[], Callable[[], None]]
) -> None:
    host()
    bring_back = set_back()
    living = host()
    lost = made(living, b"lost", b"old")
    bring_back()
    wait_for(living)
    newcomer = host()
    files = [made(newcomer, b"new%d" % number, b"new") for number in range(20)]
    assert lost not in files
    with pytest.raises(OSError, match=r"[Ss]tale"):
        living.write(lost, 0, b"of the lost file")
    with pytest.raises(OSError, match=r"[Ss]tale"):
        living.read(lost, 0, 100)
    assert [newcomer.read(file, 0, 100) for file in files] == [b"new"] * 20


def test_hosts_begin_and_make_files_beside_those_that_live_on(
    host: Callable[..., PostgresVolume], set_back: Callable[[], Callable[[], None]]
) -> None:
    host()
    bring_back = set_back()
    living = [host() for _ in range(3)]
    for number, each in enumerate(living):
        made(each, b"before%d" % number, b"lost")
    bring_back()
    for each in living:
        wait_for(each)
    everybody = [*living, host(), host()]
    assert len({each.session for each in everybody}) == 5
    nodes = [made(each, b"%d by %d" % (number, by), b"x") for number in range(20) for by, each in enumerate(everybody)]
    assert len(set(nodes)) == 100


def test_numbers_stay_small_enough_for_branches(server: Server, host: Callable[..., PostgresVolume]) -> None:
    """Beyond, they number files one by one. And the numbers go up each time."""
    one = host()
    before = made(one, b"first", b"x")
    for number in range(3):
        server.stop()
        server.start()
        wait_for(one)
        node = made(host(), b"new%d" % number, b"x")
        assert before < node < 1 << NODE_BITS
        before = node


def test_a_volume_that_is_lost_is_not_taken_for_a_new_one(
    host: Callable[..., PostgresVolume], set_back: Callable[[], Callable[[], None]]
) -> None:
    host("first")
    bring_back = set_back()
    lost = host("lost")
    made(lost, b"mine", b"x")
    told: list[str] = []
    lost.on_snapshot = told.append
    changes: list[Change] = []
    lost.subscribe(changes.append)
    bring_back()
    wait_for(lost)
    eventually(lambda: Change() in changes, LIMIT_S)
    assert told == []
    another = host("another")
    made(another, b"secret", b"of another agent")
    assert another.id != lost.id
    with pytest.raises(OSError, match=r"[Ss]tale"):
        lost.readdir(ROOT_NODE, b"", 10)
    with pytest.raises(OSError, match=r"[Ss]tale"):
        made(lost, b"more", b"x")
