"""Threads and processes that count up in one file by its version: no update is lost, nobody waits without end.

`FUSEBACKEND_COUNTERS=25 FUSEBACKEND_PROCESSES=7` is the race of 200, which `make test-all` has.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from counting_up import FILE, OfVerbs, count, door, others
from live import live
from profiles import amount

from fusebackend.urls import open_backend

PROCESSES = amount("FUSEBACKEND_PROCESSES", day=1, night=7)
"""Besides this one."""

COUNTERS = amount("FUSEBACKEND_COUNTERS", day=4, night=25)
"""In each process."""

COUNTS = amount("FUSEBACKEND_COUNTS", day=3, night=2)
"""Of each."""

LIMIT_S = 5.0 * (PROCESSES + 1) * COUNTERS
"""A hang, or a counter that all others outrun."""

VOLUME = "sqlite:{tmp}/volume.db"

SERVED = {
    "dir": "dir:{tmp}/files",
    "store": "store+sqlite:{tmp}/store.db?ns=a",
}
"""Backends that one process has: the threads of this one count in it, those of others come through its socket. Volumes
have one lock for all kinds."""

KINDS = [
    *SERVED,
    "socket",
    "mcp",
    *(pytest.param(kind, marks=pytest.mark.services) for kind in ("postgres", "s3")),
]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextlib.contextmanager
def raced(kind: str, request: pytest.FixtureRequest, directory: Path) -> Iterator[tuple[Any, str]]:
    """Yield a way for the threads of this process, and the address of the one for others."""
    if kind in ("postgres", "s3"):
        made = request.getfixturevalue("postgres_dsn" if kind == "postgres" else "bucket")
        address = f"postgres:{made}?volume=v" if kind == "postgres" else made.url()
        with door(address) as way:
            yield way, address
        return
    (directory / "files").mkdir(exist_ok=True)
    backend = open_backend(SERVED.get(kind, VOLUME).format(tmp=directory))
    with live(directory, backend) as server:
        address = f"{'mcp' if kind == 'mcp' else 'socket'}:{server.mount.status()['control']['socket']}"
        with door(address) as way:
            yield OfVerbs(backend) if kind in SERVED else way, address


def begin(address: str) -> None:
    with door(address.replace("mcp:", "socket:")) as files:
        assert files.files.write(FILE, "0").error is None


def test_no_update_is_lost_between_threads_and_processes(kind, request, tmp_path):
    with raced(kind, request, tmp_path) as (way, address):
        begin(address)
        with others(address, PROCESSES, COUNTERS, COUNTS, LIMIT_S) as said:
            most = count(way, COUNTERS, COUNTS, LIMIT_S)
        print("the most attempts that a count took:", most, *said)
        assert way.read()[0] == str((PROCESSES + 1) * COUNTERS * COUNTS)


def test_a_version_holds_after_a_restart_and_never_for_other_bytes(kind, request, tmp_path):
    with raced(kind, request, tmp_path) as (way, address):
        begin(address)
        held = way.read()[1]
    with raced(kind, request, tmp_path) as (way, address):
        assert way.edit("0", "1", held) is None
        assert way.edit("1", "2", held).startswith("changed")
        assert way.read()[0] == "1"
