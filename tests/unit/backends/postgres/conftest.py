"""Volumes on two hosts, in the database that the tests of a module share, and how many round trips a call takes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from postgres_hosts import Host
from round_trips import Trips, counted


@pytest.fixture
def one(shared_dsn: str, request: pytest.FixtureRequest) -> Iterator[Host]:
    with contextlib.closing(Host(shared_dsn, request.node.name)) as volume:
        yield volume


@pytest.fixture
def two(one: Host, shared_dsn: str) -> Iterator[Host]:
    """Another host with the volume of `one`."""
    with contextlib.closing(Host(shared_dsn, one.name)) as volume:
        yield volume


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> Trips:
    return counted(monkeypatch)
