"""Rows that are answered from memory: never older than a change that this host has made or has been told of."""

from __future__ import annotations

import copy
import os

from eventually import eventually
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, rule
from nodes import put, whole
from postgres_hosts import ME, Host
from profiles import examples
from round_trips import Trips

from fusebackend.backends.postgres.known_inodes import (
    MAX_ATTRIBUTE_BYTES,
    MAX_BYTES,
    MAX_INODES,
    MAX_NAMES,
    UNKNOWN,
    KnownInodes,
)
from fusebackend.backends.postgres.statements import StoredInode
from fusebackend.protocol import ROOT_NODE, AttrChanges
from fusebackend.volumes.storage import CHUNK_COST_BYTES

NODE = 7


def row(version: int, node: int = NODE) -> StoredInode:
    inode = StoredInode(node, 0o100644)
    inode.nlink, inode.version = 1, version
    return inode


class Tables(RuleBasedStateMachine):
    """One row, which this host and another one change; reads and commits end some time after the server did them."""

    reads = Bundle("reads")
    commits = Bundle("commits")

    def __init__(self) -> None:
        super().__init__()
        self.known = KnownInodes()
        self.version = 1
        self.mine = 0  # the place in `order` of the last commit that this host has seen to its end
        self.order = [1]
        self.untold = 0

    @rule(target=reads)
    def read(self) -> tuple[int, int]:
        return self.known.moment, self.version

    @rule(read=consumes(reads))
    def has_read(self, read: tuple[int, int]) -> None:
        self.known.found(read[0], row(read[1]), b"bytes")
        self.check()

    def _change(self) -> int:
        before, self.version = self.version, max(self.order) + 1
        self.order.append(self.version)
        return before

    @rule(target=commits)
    def commit(self) -> tuple[int, int, int]:
        moment = self.known.moment
        return moment, self._change(), self.version

    @rule(commit=consumes(commits))
    def has_committed(self, commit: tuple[int, int, int]) -> None:
        moment, before, version = commit
        self.known.committed(moment, [row(version)], {NODE: before})
        self.mine = max(self.mine, self.order.index(version))
        self.check()

    @rule()
    def other_host(self) -> None:
        self._change()
        self.untold = self.order.index(self.version)

    @rule(everything=st.booleans())
    def told(self, everything: bool) -> None:
        self.known.changed(None if everything else NODE)
        self.mine = max(self.mine, self.untold)
        self.check()

    def check(self) -> None:
        found = self.known.get(NODE)
        assert found is None or self.order.index(found.version) >= self.mine


TestTables = Tables.TestCase

DIRECTORY = 3
NAMES = st.sampled_from([b"a", b"b", b"c", b"d"])
Names = dict[bytes, int]


def directory(version: int) -> StoredInode:
    inode = StoredInode(DIRECTORY, 0o040755)
    inode.nlink, inode.version = 2, version
    return inode


class Listings(RuleBasedStateMachine):
    """The names of a directory that only this host changes; lookups, listings and commits end later than they happen.

    An answer is one of those that were right since the last commit or change that has been noted here.
    """

    lookups = Bundle("lookups")
    pages = Bundle("pages")
    commits = Bundle("commits")

    def __init__(self) -> None:
        super().__init__()
        self.known = KnownInodes()
        self.history: list[Names] = [{}]  # by versions, from 1 on
        self.noted = 1

    @property
    def version(self) -> int:
        return len(self.history)

    @rule(target=lookups, name=NAMES)
    def look(self, name: bytes) -> tuple[int, int, bytes]:
        return self.known.moment, self.version, name

    @rule(lookup=consumes(lookups))
    def has_looked(self, lookup: tuple[int, int, bytes]) -> None:
        moment, version, name = lookup
        self.known.looked(moment, DIRECTORY, version, name, self.history[version - 1].get(name))
        self.check()

    @rule(target=pages, after=st.just(b"") | NAMES, limit=st.integers(1, 5))
    def list(self, after: bytes, limit: int) -> tuple[int, int, bytes, int]:
        return self.known.moment, self.version, after, limit

    @rule(page=consumes(pages))
    def has_listed(self, page: tuple[int, int, bytes, int]) -> None:
        moment, version, after, limit = page
        names = {name: node for name, node in sorted(self.history[version - 1].items()) if name > after}
        found = dict(list(names.items())[:limit])
        self.known.listed_names(moment, DIRECTORY, version, after, found, is_end=len(found) < limit)
        self.check()

    @rule(target=commits, name=NAMES, node=st.none() | st.integers(10, 20))
    def commit(self, name: bytes, node: int | None) -> tuple[int, int, bytes, int | None]:
        names = {known: number for known, number in self.history[-1].items() if known != name}
        self.history.append(names if node is None else {**names, name: node})
        return self.known.moment, self.version, name, node

    @rule(commit=consumes(commits), is_flushed=st.booleans())
    def has_committed(self, commit: tuple[int, int, bytes, int | None], is_flushed: bool) -> None:
        moment, version, name, node = commit
        names = None if is_flushed else {(DIRECTORY, name): node}
        self.known.committed(moment, [directory(version)], {DIRECTORY: version - 1}, names)
        self.noted = max(self.noted, version)
        self.check()

    @rule(everything=st.booleans())
    def changed(self, everything: bool) -> None:
        self.known.changed(None if everything else DIRECTORY)
        self.noted = self.version
        self.check()

    def check(self) -> None:
        for name in (b"a", b"b", b"c", b"d"):
            node = self.known.child(DIRECTORY, name)
            right = [names.get(name) for names in self.history[self.noted - 1 :]]
            assert node == UNKNOWN or node in right, (name, node, right)


TestListings = Listings.TestCase
TestTables.settings = settings(max_examples=examples(40))


def test_names_of_a_new_directory_and_their_bound() -> None:
    known = KnownInodes()
    new = directory(9)
    known.committed(known.moment, [new], {DIRECTORY: 0}, {(DIRECTORY, b"a"): 5})
    assert (known.child(DIRECTORY, b"a"), known.child(DIRECTORY, b"b")) == (5, None)
    names = {b"%05d" % number: number for number in range(1, MAX_NAMES + 2)}
    known.listed_names(known.moment, 4, 1, b"", names, is_end=True)
    assert (known.child(DIRECTORY, b"a"), known.child(4, b"00001")) == (5, UNKNOWN)
    del names[b"00001"]
    known.listed_names(known.moment, 4, 1, b"", names, is_end=True)
    assert (known.child(DIRECTORY, b"a"), known.child(4, b"00002")) == (UNKNOWN, 2)
    known.changed(4)
    known.listed_names(known.moment, 4, 1, b"", {b"a": 8}, is_end=True)
    assert (known.child(4, b"a"), known.child(4, b"b")) == (8, None)
    known.committed(known.moment, [new], {DIRECTORY: 0})
    assert known.child(DIRECTORY, b"a") == UNKNOWN


def test_a_copy_has_every_field() -> None:
    fields = [name for part in StoredInode.__mro__ for name in getattr(part, "__slots__", ()) if name != "xattrs"]
    inode = StoredInode(1, 0o100644)
    for number, name in enumerate(fields):
        setattr(inode, name, number)
    twin = copy.copy(inode)
    assert [getattr(twin, name) for name in fields] == list(range(len(fields)))
    assert twin.xattrs is None, "they are changed where they are"


def test_bounds() -> None:
    known = KnownInodes()
    for node in range(1, MAX_INODES + 3):
        known.found(known.moment, row(1, node))
    assert known.get(1) is None is known.get(2) and known.get(3) is not None
    big = bytes(MAX_BYTES // 4 - CHUNK_COST_BYTES)
    for node in range(1, 6):
        known.found(known.moment, row(1, node), big)
    assert [node for node in range(1, 6) if known.data(node)] == [2, 3, 4, 5]
    large = row(2, 3)
    large.attributes = [b"user.x", bytes(MAX_ATTRIBUTE_BYTES)]
    known.found(known.moment, large)
    assert known.get(3) is None is known.data(3)


# -- in a volume ---------------------------------------------------------------------------------------------------


def test_a_small_file_is_opened_and_read_in_one_round_trip(one: Host, two: Host, trips: Trips) -> None:
    node = put(one, b"file", b"content")
    eventually(lambda: trips(lambda: whole(two, node)) == 1)  # once it is told of all changes
    large = 100_000
    one.open(node, os.O_RDWR)
    one.write(node, 0, bytes(large))
    one.release(node, os.O_RDWR)
    assert whole(one, node) == whole(two, node) == bytes(large)
    eventually(lambda: trips(lambda: whole(two, node)) == 2)  # its bytes are asked for by themselves


def test_access_times_are_shown_at_once_and_stored_together(one: Host, two: Host, trips: Trips) -> None:
    node = put(one, b"file", b"content")
    one.setattr(node, AttrChanges(atime_ns=1, mtime_ns=2))
    assert trips(lambda: whole(one, node)) == 1
    shown = one.getattr(node).atime_ns
    assert shown > 2
    assert one.lookup(ROOT_NODE, b"file").atime_ns == shown
    assert [attr.atime_ns for name, attr in one.readdir(ROOT_NODE, b"", 10) if name == b"file"] == [shown]
    assert two.lookup(ROOT_NODE, b"file").atime_ns == 1
    assert one.setattr(node, AttrChanges(mode=0o600)).atime_ns == shown, "it is stored before"
    assert two.lookup(ROOT_NODE, b"file").atime_ns == shown
    one.setattr(node, AttrChanges(atime_ns=1, mtime_ns=2))
    assert one.getattr(node).atime_ns == 1
    whole(one, node)
    one.sync()
    assert two.lookup(ROOT_NODE, b"file").atime_ns == one.getattr(node).atime_ns > shown
    assert trips(lambda: one.unlink(ROOT_NODE, b"file")) == 1, "its row is guessed with that time"


def test_a_listing_of_few_names_is_one_round_trip_until_there_are_others(one: Host, two: Host, trips: Trips) -> None:
    directory = one.mkdir(ROOT_NODE, b"d", 0o755, ME).node

    def names(volume: Host) -> list[bytes]:
        found: list[bytes] = []
        while page := volume.readdir(directory, found[-1] if found else b"", 3):
            found += [name for name, _ in page]
        return found

    for number in range(4):
        one.mkdir(directory, b"%d" % number, 0o755, ME)
    assert names(one) == [b"0", b"1", b"2", b"3"]
    assert trips(lambda: names(one)) == 2, "a page of three and one of one"
    one.rename(directory, b"1", directory, b"5")
    assert one.readdir(directory, b"3", 3)[0][0] == b"5"
    names(two)
    one.mkdir(directory, b"6", 0o755, ME)
    eventually(lambda: [name for name, _ in two.readdir(directory, b"5", 3)] == [b"6"])
