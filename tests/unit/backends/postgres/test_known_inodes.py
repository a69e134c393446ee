"""Rows that are answered from memory: never older than a change that this host has made or has been told of."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from eventually import eventually
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, rule
from services.postgres import Postgres

from fusebackend.backends import PostgresBackend
from fusebackend.backends.postgres.known_inodes import MAX_BYTES, MAX_INODES, KnownInodes
from fusebackend.backends.postgres.statements import StoredInode
from fusebackend.backends.postgres.volume import PostgresVolume
from fusebackend.databases import pipeline
from fusebackend.protocol import ROOT_NODE, AttrChanges, Caller, Link, WrongLinks

NODE = 7
LIMIT_S = 30.0
ME = Caller(0, 0)


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


def test_bounds() -> None:
    known = KnownInodes()
    for node in range(1, MAX_INODES + 3):
        known.found(known.moment, row(1, node))
    assert known.get(1) is None is known.get(2) and known.get(3) is not None
    big = bytes(MAX_BYTES // 4)
    for node in range(1, 6):
        known.found(known.moment, row(1, node), big)
    assert [node for node in range(1, 6) if known.data(node)] == [2, 3, 4, 5]


# -- in a volume ---------------------------------------------------------------------------------------------------

Trips = Callable[[Callable[[], object]], int]


@pytest.fixture
def hosts(postgres: Postgres) -> Iterator[tuple[PostgresVolume, PostgresVolume]]:
    with contextlib.ExitStack() as stack:
        dsn = stack.enter_context(postgres.database())
        one, two = (stack.enter_context(PostgresBackend(dsn, "v")).volume for _ in range(2))
        yield one, two


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> Trips:
    sent: list[object] = []
    exchange = pipeline._exchange

    def counted(*args: Any) -> Any:
        sent.append(args)
        return exchange(*args)

    monkeypatch.setattr(pipeline, "_exchange", counted)

    def count(work: Callable[[], object]) -> int:
        sent.clear()
        work()
        return len(sent)

    return count


def put(volume: PostgresVolume, content: bytes) -> int:
    node = volume.create(ROOT_NODE, b"file", 0o644, os.O_RDWR, ME).node
    volume.write(node, 0, content)
    volume.flush(node)
    volume.release(node, os.O_RDWR)
    return node


def whole(volume: PostgresVolume, node: int) -> bytes:
    volume.open(node, os.O_RDONLY)
    try:
        attr = volume.getattr(node)
        content = volume.read(node, 0, 1 << 17)
        assert attr.size == len(content)
        return content
    finally:
        volume.release(node, os.O_RDONLY)


@pytest.mark.services
def test_a_small_file_is_opened_and_read_in_one_round_trip(
    hosts: tuple[PostgresVolume, PostgresVolume], trips: Trips
) -> None:
    one, two = hosts
    node = put(one, b"content")
    eventually(lambda: trips(lambda: whole(two, node)) == 1, LIMIT_S)  # once it is told of all changes
    large = 100_000
    one.open(node, os.O_RDWR)
    one.write(node, 0, bytes(large))
    one.release(node, os.O_RDWR)
    assert whole(one, node) == whole(two, node) == bytes(large)
    eventually(lambda: trips(lambda: whole(two, node)) == 2, LIMIT_S)  # its bytes are asked for by themselves


@pytest.mark.services
def test_an_open_asks_what_another_host_has_closed(hosts: tuple[PostgresVolume, PostgresVolume]) -> None:
    one, two = hosts
    node = put(one, b"0")
    for number in range(1, 30):
        writer, reader = (one, two) if number % 2 else (two, one)
        writer.open(node, os.O_RDWR)
        writer.write(node, 0, b"%d" % number)
        assert writer.read(node, 0, 9) == b"%d" % number
        writer.release(node, os.O_RDWR)
        assert whole(reader, node) == b"%d" % number


@pytest.mark.services
def test_what_was_opened_changes_with_a_change_of_this_host_and_one_that_is_told(
    hosts: tuple[PostgresVolume, PostgresVolume],
) -> None:
    one, two = hosts
    node = put(one, b"before")
    two.open(node, os.O_RDONLY)
    two.open(node, os.O_WRONLY)
    two.write(node, 0, b"after!")
    assert two.read(node, 0, 9) == b"after!"
    two.setattr(node, AttrChanges(size=2))
    assert (two.read(node, 0, 9), two.getattr(node).size) == (b"af", 2)
    two.release(node, os.O_WRONLY)
    two.open(node, os.O_RDONLY)
    one.setattr(node, AttrChanges(size=0))
    eventually(lambda: two.read(node, 0, 9) == b"" and two.getattr(node).size == 0, LIMIT_S)


@pytest.mark.services
def test_access_times_are_shown_at_once_and_stored_together(
    hosts: tuple[PostgresVolume, PostgresVolume], trips: Trips
) -> None:
    one, two = hosts
    node = put(one, b"content")
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


@pytest.mark.services
def test_a_listing_of_few_names_is_one_round_trip_until_there_are_others(
    hosts: tuple[PostgresVolume, PostgresVolume], trips: Trips
) -> None:
    one, two = hosts
    directory = one.mkdir(ROOT_NODE, b"d", 0o755, ME).node

    def names(volume: PostgresVolume) -> list[bytes]:
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
    eventually(lambda: [name for name, _ in two.readdir(directory, b"5", 3)] == [b"6"], LIMIT_S)


@pytest.mark.services
def test_the_names_above_are_compared_with_the_change(
    hosts: tuple[PostgresVolume, PostgresVolume], trips: Trips, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = hosts
    monkeypatch.setattr(KnownInodes, "changed", lambda self, node: None)
    directory = one.mkdir(ROOT_NODE, b"d", 0o755, ME).node
    inner = one.mkdir(directory, b"e", 0o755, ME).node
    links = [Link(ROOT_NODE, b"d", directory), Link(directory, b"e", inner)]

    def chmod(mode: int) -> object:
        return one.through(links, lambda: one.setattr(inner, AttrChanges(mode=mode)))

    assert trips(lambda: chmod(0o700)) == 1
    two.rename(directory, b"e", directory, b"f")
    for _ in range(2):
        with pytest.raises(WrongLinks) as wrong:
            chmod(0o500)
        assert wrong.value.links == links[1:]
    assert stat.S_IMODE(two.getattr(inner).mode) == 0o700
    links[1] = Link(directory, b"f", inner)
    chmod(0o500)
    assert stat.S_IMODE(one.getattr(inner).mode) == 0o500
