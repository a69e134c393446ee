"""Listings that the kernel may keep, without a kernel: which they are, and what a position means to another handle."""

from __future__ import annotations

import os
from typing import Any

import pytest
from eventually import tick
from hypothesis import given, settings
from hypothesis import strategies as st
from onloop import readdir, run
from profiles import examples

from fusebackend.backends.memory import InMemoryVolume
from fusebackend.base.paths import ROOT
from fusebackend.base.stamps import now_ns
from fusebackend.protocol import AttrChanges, Caller
from fusebackend.vfs import listing
from fusebackend.vfs.inodes import ROOT_INODE
from fusebackend.vfs.mounted_tree import FileSystem
from fusebackend.volumes import posix as tree

ME = Caller(os.geteuid(), os.getegid())


class Directory:
    """One of a mounted tree."""

    def __init__(self) -> None:
        self.tree = FileSystem({ROOT: InMemoryVolume()})
        self.inode = run(self.tree.mkdir(ROOT_INODE, b"d", 0o755, ME)).inode
        self.volume: Any = self.tree.tree.routes[0].volume

    def make(self, *names: bytes) -> None:
        for name in names:
            run(self.tree.mknod(self.inode, name, 0o100644, 0, ME))

    def remove(self, name: bytes) -> None:
        run(self.tree.unlink(self.inode, name))

    def open(self) -> int:
        return run(self.tree.opendir(self.inode))

    def is_kept(self) -> bool:
        """Would the kernel be told that it may keep a listing that begins now?"""
        number = self.open()
        try:
            return self.tree.directories[number].kept
        finally:
            run(self.tree.releasedir(number))

    def read(self, number: int, position: int, room: int = 10**9) -> list[tuple[bytes, int]]:
        """Up to so many names from a position on, each with the position after it."""
        return [(name, after) for name, _, after in run(readdir(self.tree, number, position, room))]

    def names(self) -> list[bytes]:
        return [name for name, _ in self.read(self.open(), 0)][2:]


def test_an_empty_page_alone_is_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `Volume.readdir` promises: a volume may leave out what is damaged, or hidden."""
    directory = Directory()
    directory.make(*(b"f%d" % number for number in range(5)))
    tick()  # else it is read at the time of the last change, and again later
    assert len(directory.names()) == 5
    tick()
    readdir = directory.volume.readdir
    monkeypatch.setattr(directory.volume, "readdir", lambda node, after, limit: readdir(node, after, min(limit, 2)))
    assert directory.is_kept()
    assert len(directory.names()) == 5


@pytest.fixture
def directory() -> Directory:
    return Directory()


def test_of_one_that_nobody_has_listed_it_is_not(directory: Directory) -> None:
    node = directory.volume.mkdir(1, b"before", 0o755, ME).node
    directory.inode = run(directory.tree.lookup(ROOT_INODE, b"before")).inode
    directory.volume.mknod(node, b"f", 0o100644, 0, ME)
    assert not directory.is_kept()
    assert directory.names() == [b"f"]
    assert directory.is_kept()


@pytest.fixture
def small_is_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "SMALL_ENTRIES", 3)
    monkeypatch.setattr(listing, "KEPT_PAGE_ENTRIES", 2)


@pytest.mark.usefixtures("small_is_three")
def test_of_a_large_one_it_is_not(directory: Directory) -> None:
    names = [b"a", b"b", b"c", b"d"]
    directory.make(*names)
    assert directory.is_kept()  # it was empty when it was last seen
    assert directory.names() == names, "and yet it is listed as a large one, in pages"
    assert not directory.is_kept()
    assert directory.names() == names
    directory.remove(b"a")
    tick()
    assert directory.names() == names[1:]
    assert directory.is_kept()


@pytest.mark.usefixtures("small_is_three")
def test_one_that_has_grown_large_is_not_read_as_a_whole_after_each_change(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.make(*(b"%02d" % number for number in range(40)))
    monkeypatch.setattr(listing, "PAGE_ENTRIES", 4)
    asked: list[int] = []
    readdir = directory.volume.readdir

    def counted(node: int, after: bytes, limit: int) -> Any:
        page = readdir(node, after, limit)
        asked.append(len(page))
        return page

    monkeypatch.setattr(directory.volume, "readdir", counted)
    number, position, seen = directory.open(), 0, []
    while page := directory.read(number, position, 5):
        seen += [name for name, _ in page]
        position = page[-1][1]
        directory.make(b"x%d" % len(seen))
        directory.remove(b"x%d" % len(seen))
    assert seen == [b".", b"..", *(b"%02d" % number for number in range(40))]
    assert sum(asked) < 40 * 3
    assert directory.read(number, 0)[2:] == directory.read(directory.open(), 0)[2:]


@pytest.mark.usefixtures("small_is_three")
def test_a_reader_goes_on_where_another_has_found_it_large(directory: Directory) -> None:
    names = [b"%d" % number for number in range(6)]
    directory.make(*names)
    one, other = directory.open(), directory.open()
    begun = directory.read(one, 0, 5)
    rest = directory.read(other, begun[-1][1], 2)
    rest += directory.read(other, rest[-1][1])
    assert [name for name, _ in begun + rest] == [b".", b"..", *names]
    assert directory.read(one, 0) == directory.read(other, 0)


@pytest.mark.usefixtures("small_is_three")
def test_a_handle_that_began_with_a_large_one_can_begin_anew_with_a_small_one(directory: Directory) -> None:
    names = [b"%d" % number for number in range(6)]
    directory.make(*names)
    number = directory.open()
    assert [name for name, _ in directory.read(number, 0, 4)] == [b".", b"..", b"0", b"1"]
    for name in names[2:]:
        directory.remove(name)
    assert directory.read(number, 4) == []
    again = directory.read(number, 0)
    assert sorted(name for name, _ in again[2:]) == [b"0", b"1"]
    assert [position for _, position in again[2:]] == [listing.position_after(name) for name, _ in again[2:]]


def test_one_that_has_to_move_the_access_time_is_asked_for(directory: Directory) -> None:
    directory.make(b"f")
    tick()
    directory.names()
    assert directory.is_kept()
    tick()
    run(directory.tree.setattr(directory.inode, AttrChanges(mode=0o700)))  # the listing that is kept stays good
    assert not directory.is_kept()
    tick()
    directory.names()
    assert directory.is_kept()
    tick()
    directory.make(b"g")  # it does not
    assert directory.is_kept()


def test_one_that_was_listed_in_the_tick_of_its_last_change_is_asked_for_once_more(directory: Directory) -> None:
    """Perhaps its mode was changed then as well: the kernel would never ask again."""
    frozen = now_ns()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree, "now_ns", lambda finer=True: frozen)
        directory.make(b"f")
        directory.names()
        assert not directory.is_kept()
    tick()
    directory.names()
    assert directory.is_kept()


def test_what_changes_within_a_tick_is_seen(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = now_ns()
    monkeypatch.setattr(tree, "now_ns", lambda finer=True: frozen)
    directory.make(*(b"%d" % number for number in range(20)))
    number = directory.open()
    (*_, (_, position)) = seen = directory.read(number, 0, 8)
    shown = {name for name, _ in seen}
    for name in (b"%d" % number for number in range(20)):
        if name not in shown:
            directory.remove(name)
    directory.make(*(b"new%d" % number for number in range(20)))
    after = [b"new%d" % number for number in range(20)]
    after = [name for name in after if listing.position_after(name) > position]
    assert sorted(name for name, _ in directory.read(number, position)) == sorted(after)


def test_what_is_shown_is_never_older_than_the_last_change(directory: Directory) -> None:
    directory.make(b"a", b"b", b"c")
    number = directory.open()
    seen = directory.read(number, 0, 3)
    gone, stays = (name for name in (b"a", b"b", b"c") if name != seen[-1][0])
    directory.remove(gone)
    assert [name for name, _ in directory.read(number, seen[-1][1])] == [stays]


def test_an_entry_is_as_it_is_now(directory: Directory) -> None:
    directory.make(b"a", b"b")
    number = directory.open()
    (_, _, (first, position)) = directory.read(number, 0, 3)
    other = b"b" if first == b"a" else b"a"
    inode = run(directory.tree.lookup(directory.inode, other)).inode
    run(directory.tree.setattr(inode, AttrChanges(mode=0o600)))
    seen = run(readdir(directory.tree, number, position))
    assert [(each.name, each.entry.attr and each.entry.attr.mode) for each in seen] == [(other, 0o100600)]


@pytest.mark.parametrize("is_large", [False, True])
@settings(max_examples=examples(60), deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["make", "remove", "read", "open"]), st.integers(0, 15), st.integers(1, 6)),
        max_size=60,
    )
)
def test_what_stays_is_seen_once_whoever_goes_on(
    monkeypatch: pytest.MonkeyPatch, is_large: bool, steps: list[tuple[str, int, int]]
) -> None:
    """One listing, which any of several handles goes on with, while names come and go. What is gone is not listed. Of a
    large directory, each handle has positions of its own."""
    if is_large:
        monkeypatch.setattr(listing, "SMALL_ENTRIES", -1)
        monkeypatch.setattr(listing, "PAGE_ENTRIES", 3)
    directory = Directory()
    there = {b"%d" % number for number in range(8)}
    directory.make(*there)
    stayed = set(there)
    handles, position, seen = [directory.open()], 0, list[bytes]()
    for action, number, room in steps:
        name = b"%d" % number
        if action == "make" and name not in there:
            directory.make(name)
            there.add(name)
        elif action == "remove" and name in there:
            directory.remove(name)
            there.remove(name)
            stayed.discard(name)
        elif action == "open":
            opened = directory.open()
            if directory.tree.directories[opened].kept:  # else it has positions of its own
                handles.append(opened)
        elif action == "read":
            for found, after in directory.read(handles[number % len(handles)], position, room):
                assert found in there | {b".", b".."}
                seen.append(found)
                position = after
    seen += [found for found, _ in directory.read(handles[-1], position)]
    assert len(seen) == len(set(seen))
    assert stayed <= set(seen)
