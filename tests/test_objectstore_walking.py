"""Who walks through a bucket has the next directories listed ahead, and nobody else has."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator

import obstore
import pytest
from eventually import eventually
from objects import names
from obstore.store import MemoryStore

from fusebackend.backends.objectstore import walkahead
from fusebackend.backends.objectstore.bucket import Bucket
from fusebackend.backends.objectstore.names import Contents
from fusebackend.backends.objectstore.volume import ObjectStoreVolume
from fusebackend.errors import oserror
from fusebackend.protocol import ROOT_NODE

LIMIT_S = 30.0


class Listings:
    """Which directories are listed, by whom, and where that fails."""

    def __init__(self) -> None:
        self.waited_for: list[str] = []
        self.ahead: list[str] = []
        self.failing: dict[str, int] = {}


@pytest.fixture
def listings(monkeypatch: pytest.MonkeyPatch) -> Listings:
    listings, contents, reader = Listings(), Bucket.contents, threading.current_thread()

    def noted(bucket: Bucket, directory: str) -> Contents:
        (listings.waited_for if threading.current_thread() is reader else listings.ahead).append(directory)
        if directory in listings.failing:
            raise oserror(listings.failing[directory], directory)
        return contents(bucket, directory)

    monkeypatch.setattr(Bucket, "contents", noted)
    return listings


class Clock:
    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    for top, below in itertools.product(range(4), range(30)):
        obstore.put(store, f"d{top}/e{below:02}/file", b"")
    return store


@pytest.fixture
def volume(store: MemoryStore, clock: Clock) -> Iterator[ObjectStoreVolume]:
    with contextlib.closing(ObjectStoreVolume(store, ttl_s=1.0, clock=clock)) as volume:
        yield volume


def enter(volume: ObjectStoreVolume, *path: str) -> int:
    """List a directory, and have the kernel know all that is in it, as `find` does."""
    node = ROOT_NODE
    for name in path:
        node = volume.lookup(node, name.encode()).node
    for _, attr in volume.readdir(node, b"", 1000):
        volume.hold(attr.node)
    return node


def settle(volume: ObjectStoreVolume, listings: Listings, expected: list[str]) -> None:
    """Wait for what is to be listed ahead. A directory that nobody should have listed would be among the first."""
    eventually(lambda: len(listings.ahead) >= len(expected), LIMIT_S)
    assert sorted(listings.ahead) == sorted(expected)


def test_the_next_directories_are_listed_when_two_were(volume: ObjectStoreVolume, listings: Listings) -> None:
    enter(volume)
    enter(volume, "d0")
    enter(volume, "d0", "e00")
    assert listings.ahead == []
    enter(volume, "d0", "e01")
    settle(volume, listings, [f"d0/e{number:02}/" for number in range(2, 2 + walkahead.AHEAD)])
    listings.waited_for.clear()
    for number in range(2, 2 + walkahead.AHEAD):
        assert names(volume, enter(volume, "d0", f"e{number:02}")) == [b"file"]
    assert listings.waited_for == []


def test_a_walk_goes_on_in_the_next_directory_above(volume: ObjectStoreVolume, listings: Listings) -> None:
    """The first directory of `d1` comes after the last of `d0`."""
    enter(volume)
    enter(volume, "d0")
    enter(volume, "d0", "e29")
    listings.ahead.clear()
    enter(volume, "d1")  # the one before is d0
    settle(volume, listings, ["d2/", "d3/"])
    listings.ahead.clear()
    enter(volume, "d1", "e00")  # nothing is before it there, and d0 is before d1
    settle(volume, listings, [f"d1/e{number:02}/" for number in range(1, 1 + walkahead.AHEAD)])


def test_what_is_known_below_comes_before_what_is_beside(
    volume: ObjectStoreVolume, listings: Listings, clock: Clock
) -> None:
    enter(volume)
    for top in range(4):
        enter(volume, f"d{top}")
    settle(volume, listings, ["d2/", "d3/"])
    clock.s += 5
    listings.ahead.clear()
    enter(volume, "d0")
    enter(volume, "d1")
    settle(volume, listings, [f"d1/e{number:02}/" for number in range(walkahead.AHEAD)])


@pytest.mark.parametrize("way", [("d1", "d3", "d0"), ("d3", "d2", "d0")])
def test_who_goes_here_and_there_has_nothing_listed_ahead(
    volume: ObjectStoreVolume, listings: Listings, way: tuple[str, ...]
) -> None:
    enter(volume)
    for name in way[:2]:
        enter(volume, name)
        enter(volume, name, "e07")
    enter(volume, way[2], "e20")
    volume.close()  # whatever was begun has begun by now
    assert [name for name in listings.ahead if name.count("/") == 2] == []


def test_nor_who_comes_back_after_a_while(volume: ObjectStoreVolume, listings: Listings, clock: Clock) -> None:
    for number in range(10):
        enter(volume, "d0", f"e{number:02}")
        clock.s += 2.5
    assert listings.ahead == []


def test_nothing_is_listed_that_the_kernel_does_not_know(volume: ObjectStoreVolume, listings: Listings) -> None:
    """It would never say that it has forgotten what is in there."""
    for number in (0, 1):
        volume.readdir(volume.lookup(volume.lookup(ROOT_NODE, b"d0").node, b"e%02d" % number).node, b"", 10)
    assert listings.ahead == []


def test_a_listing_made_ahead_grows_old_as_any_other(
    volume: ObjectStoreVolume, listings: Listings, clock: Clock, store: MemoryStore
) -> None:
    enter(volume, "d0")
    for number in (0, 1):
        enter(volume, "d0", f"e{number:02}")
    eventually(lambda: len(listings.ahead) == walkahead.AHEAD, LIMIT_S)
    obstore.put(store, "d0/e05/new", b"")
    clock.s += 1.1
    assert names(volume, enter(volume, "d0", "e05")) == [b"file", b"new"]


def test_what_can_not_be_listed_ahead_is_said_to_who_gets_there(volume: ObjectStoreVolume, listings: Listings) -> None:
    enter(volume, "d0")
    nodes = [volume.lookup(enter(volume, "d0"), b"e%02d" % number).node for number in range(30)]
    listings.failing["d0/e03/"] = 5
    for number in (0, 1):
        enter(volume, "d0", f"e{number:02}")
    eventually(lambda: "d0/e03/" in listings.ahead and len(listings.ahead) == walkahead.AHEAD, LIMIT_S)
    with pytest.raises(OSError) as failed:
        volume.readdir(nodes[3], b"", 10)
    assert failed.value.errno == 5
    listings.failing.clear()
    assert names(volume, nodes[3]) == [b"file"]


def test_without_a_ttl_every_listing_is_asked_for(store: MemoryStore, listings: Listings) -> None:
    with contextlib.closing(ObjectStoreVolume(store, ttl_s=0.0)) as volume:
        for number in range(6):
            enter(volume, "d0", f"e{number:02}")
    assert listings.ahead == []
