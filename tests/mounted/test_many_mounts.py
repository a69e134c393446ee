"""One PostgreSQL volume, mounted by two or five hosts (server processes here), whose database is disturbed between
changes.

`FUSEBACKEND_MANY_MOUNTS_STEPS=20000` makes so many random changes instead of some dozens. They are checked as in
`test_two_mounts.py`. What an `fsync` has confirmed when PostgreSQL is killed is tested without a mount, in
`tests/unit/backends/postgres/test_postgres_unsynced.py`.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import mounts
import psycopg
import pytest
from hosts import RandomChanges, SharedVolume
from mounts import Serve
from profiles import amount
from services.postgres import Server, running

STEPS = amount("FUSEBACKEND_MANY_MOUNTS_STEPS", day=20, night=2_000)
RUN_STEPS = 50
"""Changes of one tree, before the next one with another seed."""
EVERY = amount("FUSEBACKEND_MANY_MOUNTS_EVERY", day=10, night=10)
"""Changes between two disturbances, which take far longer: `RUN_STEPS` is the most."""
LIMIT_S = mounts.LIFE_LIMIT_S + STEPS

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
