"""Who walks through a bucket once more has the next directories listed ahead, and nobody else has."""

from __future__ import annotations

import contextlib
import errno
import itertools
import threading
from collections.abc import Iterator

import obstore
import pytest
from eventually import eventually
from objects import names
from obstore.store import MemoryStore

from fusebackend.backends.object_store import tree
from fusebackend.backends.object_store.bucket.object_keys import Contents
from fusebackend.backends.object_store.bucket.requests import Bucket
from fusebackend.backends.object_store.volume import ObjectStoreVolume
from fusebackend.backends.object_store.walk_ahead import AHEAD
from fusebackend.base.errors import oserror
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
def volume(store: MemoryStore, clock: Clock, listings: Listings) -> Iterator[ObjectStoreVolume]:
    """All of it was listed once, a while ago."""
    with contextlib.closing(ObjectStoreVolume(store, ttl_s=1.0, clock=clock)) as volume:
        walk(volume)
        assert listings.ahead == [], "how large a directory is that nobody has listed, nobody knows"
        clock.s += 5
        listings.waited_for.clear()
        yield volume


def walk(volume: ObjectStoreVolume) -> None:
    enter(volume)
    for top, below in itertools.product(range(4), range(30)):
        if not below:
            enter(volume, f"d{top}")
        enter(volume, f"d{top}", f"e{below:02}")


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


def below(top: int, first: int, count: int) -> list[str]:
    return [f"d{top}/e{number:02}/" for number in range(first, first + count)]


def test_the_next_directories_are_listed_when_two_were(volume: ObjectStoreVolume, listings: Listings) -> None:
    enter(volume)
    enter(volume, "d0")
    enter(volume, "d0", "e00")
    assert listings.ahead == []
    enter(volume, "d0", "e01")
    settle(volume, listings, below(0, 2, AHEAD))
    listings.waited_for.clear()
    for number in range(2, 2 + AHEAD):
        assert names(volume, enter(volume, "d0", f"e{number:02}")) == [b"file"]
    assert listings.waited_for == []


def test_a_walk_waits_for_a_few(volume: ObjectStoreVolume, listings: Listings) -> None:
    walk(volume)
    assert len(listings.waited_for) < (1 + 4 + 4 * 30) / 4
    assert len(listings.waited_for) + len(listings.ahead) == 1 + 4 + 4 * 30, "none is listed twice"


def test_a_walk_goes_on_in_the_next_directory_above(volume: ObjectStoreVolume, listings: Listings) -> None:
    """What is in `d1` comes before `d2`, and after it comes what is in there."""
    enter(volume)
    enter(volume, "d0")
    enter(volume, "d1")
    settle(volume, listings, below(1, 0, AHEAD))
    listings.ahead.clear()
    enter(volume, "d1", f"e{AHEAD}")
    settle(volume, listings, [*below(1, AHEAD + 1, 29 - AHEAD), "d2/", *below(2, 0, 2 * AHEAD - 30)])


@pytest.mark.parametrize("way", [("d1", "d3", "d0"), ("d3", "d2", "d0")])
def test_who_goes_here_and_there_has_nothing_listed_ahead(
    volume: ObjectStoreVolume, listings: Listings, way: tuple[str, ...]
) -> None:
    for name in way[:2]:
        enter(volume, name)
        enter(volume, name, "e07")
    enter(volume, way[2], "e20")
    volume.close()  # whatever was begun has begun by now
    assert listings.ahead == []


def test_nor_who_comes_back_after_a_while(volume: ObjectStoreVolume, listings: Listings, clock: Clock) -> None:
    for number in range(10):
        enter(volume, "d0", f"e{number:02}")
        clock.s += 2.5
    assert listings.ahead == []


def test_a_large_directory_is_not_listed_ahead(
    volume: ObjectStoreVolume, listings: Listings, clock: Clock, monkeypatch: pytest.MonkeyPatch, store: MemoryStore
) -> None:
    monkeypatch.setattr(tree, "PAGE_OBJECTS", 3)
    for number in range(4):
        obstore.put(store, f"d0/e03/{number}", b"")
    enter(volume, "d0", "e03")
    clock.s += 5
    for number in (0, 1):
        enter(volume, "d0", f"e{number:02}")
    settle(volume, listings, [name for name in below(0, 2, AHEAD + 1) if name != "d0/e03/"])


def test_nothing_is_listed_that_the_kernel_does_not_know(
    volume: ObjectStoreVolume, listings: Listings, clock: Clock
) -> None:
    """It would never say that it has forgotten what is in there."""
    forgotten = [volume.lookup(volume.lookup(ROOT_NODE, b"d0").node, b"e%02d" % number).node for number in range(2, 20)]
    volume.forget(forgotten)
    clock.s += 5
    for number in (0, 1):
        node = volume.lookup(ROOT_NODE, b"d0").node
        volume.readdir(volume.lookup(node, b"e%02d" % number).node, b"", 10)
    settle(volume, listings, [*below(0, 20, 10), "d1/", *below(1, 0, AHEAD - 11)])


def test_a_listing_made_ahead_grows_old_as_any_other(
    volume: ObjectStoreVolume, listings: Listings, clock: Clock, store: MemoryStore
) -> None:
    for number in (0, 1):
        enter(volume, "d0", f"e{number:02}")
    settle(volume, listings, below(0, 2, AHEAD))
    obstore.put(store, "d0/e05/new", b"")
    clock.s += 1.1
    assert names(volume, enter(volume, "d0", "e05")) == [b"file", b"new"]


def test_what_can_not_be_listed_ahead_is_said_to_who_gets_there(volume: ObjectStoreVolume, listings: Listings) -> None:
    node = volume.lookup(volume.lookup(ROOT_NODE, b"d0").node, b"e03").node
    listings.failing["d0/e03/"] = errno.EIO
    for number in (0, 1):
        enter(volume, "d0", f"e{number:02}")
    settle(volume, listings, below(0, 2, AHEAD))
    with pytest.raises(OSError) as failed:
        volume.readdir(node, b"", 10)
    assert failed.value.errno == errno.EIO
    listings.failing.clear()
    assert names(volume, node) == [b"file"]


def test_without_a_ttl_every_listing_is_asked_for(store: MemoryStore, listings: Listings) -> None:
    with contextlib.closing(ObjectStoreVolume(store, ttl_s=0.0)) as volume:
        walk(volume)
        walk(volume)
    assert listings.ahead == []
