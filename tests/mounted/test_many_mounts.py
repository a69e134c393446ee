"""One PostgreSQL volume, mounted by two or five hosts (server processes here), whose database is disturbed between
changes.

`FUSEBACKEND_MANY_MOUNTS_STEPS=20000` makes so many random changes instead of some dozens, and
`FUSEBACKEND_SERVER_KILLS=100` kills PostgreSQL so often beside writers. Changes are checked as in `test_two_mounts.py`.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import mounts
import psycopg
import pytest
from eventually import eventually
from hosts import RandomChanges, SharedVolume
from mounts import Serve
from postgres_check import check
from profiles import amount
from services.postgres import Server, running

from fusebackend.backends.postgres.volume import PostgresVolume

STEPS = amount("FUSEBACKEND_MANY_MOUNTS_STEPS", day=20, night=2_000)
KILLS = amount("FUSEBACKEND_SERVER_KILLS", day=3, night=40)
RUN_STEPS = 50
"""Changes of one tree, before the next one with another seed."""
EVERY = amount("FUSEBACKEND_MANY_MOUNTS_EVERY", day=10, night=10)
"""Changes between two disturbances, which take far longer: `RUN_STEPS` is the most."""
LIMIT_S = mounts.LIFE_LIMIT_S + STEPS + 20 * KILLS

pytestmark = [pytest.mark.mounted, pytest.mark.services, pytest.mark.timeout(LIMIT_S)]

CUT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = 'postgres'"


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that waits for the disk, for this test alone."""
    with running(durable=True) as server:
        yield server


def mounted(serve: Serve, server: Server, count: int) -> list[mounts.Mounted]:
    """Mount the server's volume by so many hosts."""
    found = [serve(f"postgres:{server.dsn()}?volume=v", limit_s=LIMIT_S) for _ in range(count)]
    for each in found:
        each.expected_log = "PostgreSQL|postgres|connection|server"
    return found


def restart(server: Server) -> None:
    server.stop()
    server.start()


def crash(server: Server, paths: Sequence[Path]) -> None:
    """All that was closed is on the disk by then: else the server might lose it."""
    for path in paths:
        mounts.sync(path)
    server.crash()
    server.start()


def crash_within(server: Server, paths: Sequence[Path]) -> None:
    """One of its processes is killed, as by the kernel for want of memory: it recovers, and has no other start time."""
    for path in paths:
        mounts.sync(path)
    with psycopg.connect(server.dsn()) as connection:
        os.kill(connection.info.backend_pid, signal.SIGKILL)
        with contextlib.suppress(psycopg.OperationalError):
            while True:
                connection.execute("SELECT 1")
    server.wait()


def cut(server: Server) -> None:
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute(CUT)


@pytest.mark.parametrize("count", [pytest.param(2, marks=pytest.mark.night, id="two"), pytest.param(5, id="five")])
def test_hosts_open_what_was_closed_whatever_happens_to_connections(server: Server, serve: Serve, count: int) -> None:
    paths = [each.path for each in mounted(serve, server, count)]
    disturbances = [restart, cut, cut, partial(crash, paths=paths), partial(crash_within, paths=paths)]
    with contextlib.closing(SharedVolume(paths)) as volume:
        for base in range(0, STEPS, RUN_STEPS):
            seed = random.randrange(1 << 32)
            print(f"seed {seed}")
            changes = RandomChanges(volume.hosts(f"/run{base}"), seed, volume.catch_up)
            for step in range(0, min(RUN_STEPS, STEPS - base), EVERY):
                changes.run(min(EVERY, STEPS - base - step))
                changes.random.choice(disturbances)(server)


class Writer(threading.Thread):
    """Writes files of one directory and syncs them, one after the other, and keeps what `fsync` has confirmed.

    Before it replaces a file, it compares what another host has of it: a loss in any of the kills shows.
    """

    def __init__(self, directory: Path, elsewhere: Path) -> None:
        super().__init__(daemon=True)
        self.directory = directory
        self.elsewhere = elsewhere  # the same directory at the other host
        self.synced: dict[str, bytes] = {}
        self.confirmed = self.compared = 0
        self.lost: list[str] = []
        self.refused: list[OSError] = []
        self.ending = threading.Event()

    def run(self) -> None:
        number = 0
        while not self.ending.is_set():
            number += 1
            name, content = f"file{number % 5}", f"{number} ".encode() * (number % 500)
            try:
                self.compare(name)
                with open(self.directory / "new", "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                os.rename(self.directory / "new", self.directory / name)
                mounts.sync(self.directory)
                self.synced[name] = content
                self.confirmed += 1
            except OSError as error:
                # What was asked may have happened or not, so either content is right until the next one is confirmed.
                self.synced.pop(name, None)
                self.refused.append(error)
                self.ending.wait(0.05)

    def compare(self, name: str) -> None:
        while name in self.synced and not self.ending.is_set():
            found: bytes | None = None
            try:
                found = (self.elsewhere / name).read_bytes()
            except FileNotFoundError:
                pass
            except OSError:  # the server is away
                self.ending.wait(0.05)
                continue
            if found != self.synced[name]:
                self.lost.append(f"{name} of {self.directory}: {found!r:.60} in place of {self.synced[name]!r:.60}")
            self.compared += 1
            return


def test_nothing_that_was_synced_is_lost_when_postgresql_is_killed_beside_writers(server: Server, serve: Serve) -> None:
    hosts = mounted(serve, server, 2)
    paths = [host.path for host in hosts]
    names = [(number, f"by{number}{each}") for number in range(2) for each in "ab"]
    writers = [Writer(paths[number] / name, paths[1 - number] / name) for number, name in names]
    for writer in writers:
        writer.directory.mkdir()
        writer.start()
    chance = random.Random()
    for _ in range(KILLS):
        goals = [(writer, writer.confirmed + 4) for writer in writers]
        eventually(
            lambda goals=goals: all(writer.confirmed >= goal for writer, goal in goals), 60, "the writers are stuck"
        )
        time.sleep(chance.random() / 2)
        server.crash()
        server.start()
    for writer in writers:
        writer.ending.set()
        writer.join(120)
        assert not writer.is_alive()
    for writer in writers:
        assert not writer.lost
        for place in (writer.elsewhere, writer.directory):
            for name, content in writer.synced.items():
                assert (place / name).read_bytes() == content, (place / name, len(content))
    print(f"compared {sum(writer.compared for writer in writers)}, refused {sum(len(w.refused) for w in writers)}")
    for host in hosts:
        host.kill()  # one that ends would say that the crash took what nobody had synced
    with contextlib.closing(PostgresVolume(server.dsn(), "v")) as opened:
        assert check(server.dsn(), opened.id) == []
