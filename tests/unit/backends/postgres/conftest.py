"""An empty database for the tests of a module, and volumes in it on two hosts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from postgres_hosts import Host
from round_trips import Trips, counted


@pytest.fixture(scope="module")
def database(shared_dsn: str) -> str:
    return shared_dsn


@pytest.fixture
def one(database: str, request: pytest.FixtureRequest) -> Iterator[Host]:
    with contextlib.closing(Host(database, request.node.name)) as volume:
        yield volume


@pytest.fixture
def two(one: Host, database: str) -> Iterator[Host]:
    """Another host with the volume of `one`."""
    with contextlib.closing(Host(database, one.name)) as volume:
        yield volume


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> Trips:
    return counted(monkeypatch)
