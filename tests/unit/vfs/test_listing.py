"""Listings as the kernel asks for them: positions, references, changes on the way, and routes that hang."""

from __future__ import annotations

import errno
import stat
import threading
import time

import pytest
from onloop import Seen, readdir, run
from raising import raising

from fusebackend.backends.memory import InMemoryVolume
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.protocol import Attr, AttrChanges, Caller, Features
from fusebackend.testing.posix.case import refused
from fusebackend.vfs import junctions as mounttree
from fusebackend.vfs import listing
from fusebackend.vfs.inodes import ROOT_INODE
from fusebackend.vfs.mounted_tree import FileSystem
from fusebackend.volumes.posix import TreeVolume

ME = Caller(0, 0)


def ask(filesystem: FileSystem, number: int, position: int, room: int = 1 << 30) -> list[Seen]:
    """One readdir request."""
    return run(readdir(filesystem, number, position, room))


def names(seen: list[Seen]) -> list[bytes]:
    return [one.name for one in seen]


def filled(volume: TreeVolume, count: int) -> list[bytes]:
    every = [b"%04d" % number for number in range(count)]
    for name in every:
        volume.mknod(ROOT_INODE, name, stat.S_IFREG | 0o644, 0, ME)
    return every


@pytest.fixture
def volume() -> TreeVolume:
    return InMemoryVolume()


# -- positions -----------------------------------------------------------------------------------------------------


def test_a_position_stays_good_after_a_seek_back(volume: TreeVolume) -> None:
    every = filled(volume, 60)
    filesystem = FileSystem({ROOT: volume})
    number = run(filesystem.opendir(ROOT_INODE))
    first = ask(filesystem, number, 0, 40)
    early, late = first[9].after, first[39].after
    assert names(ask(filesystem, number, early, 5)) == every[8:13]
    assert names(ask(filesystem, number, late)) == every[38:]
    again = ask(filesystem, number, early, 3)
    assert names(ask(filesystem, number, again[-1].after, 3)) == every[11:14]
    assert names(ask(filesystem, number, late, 2)) == every[38:40]
    assert len(filesystem.directories[number].names) == 60, "nothing changed, so nothing has two positions"


def test_a_listing_that_starts_anew_shows_what_is_there_now(volume: TreeVolume) -> None:
    filled(volume, 3)
    filesystem = FileSystem({ROOT: volume})
    number = run(filesystem.opendir(ROOT_INODE))
    ask(filesystem, number, 0)
    run(filesystem.unlink(ROOT_INODE, b"0001"))
    run(filesystem.mknod(ROOT_INODE, b"new", stat.S_IFREG | 0o644, 0, ME))
    for _ in range(3):
        assert names(ask(filesystem, number, 0)) == [b".", b"..", b"0000", b"0002", b"new"]
    assert len(filesystem.directories[number].names) == 3, "memory does not grow with every start"


def test_a_position_that_was_never_given_out_is_the_end(volume: TreeVolume) -> None:
    filled(volume, 3)
    filesystem = FileSystem({ROOT: volume})
    number = run(filesystem.opendir(ROOT_INODE))
    assert ask(filesystem, number, 1000) == []


# -- references ----------------------------------------------------------------------------------------------------


def test_every_entry_but_the_dots_is_a_reference(volume: TreeVolume) -> None:
    filled(volume, 300)
    filesystem = FileSystem({ROOT: volume, AgentPath("/route"): InMemoryVolume()})
    number = run(filesystem.opendir(ROOT_INODE))
    position, given = 0, list[int]()
    while got := ask(filesystem, number, position, 7):
        given += [one.entry.inode for one in got if one.name not in (b".", b"..")]
        position = got[-1].after
    assert sorted(given) == sorted(inode for inode, count in filesystem.inodes.items() if inode != ROOT_INODE)
    assert {count for _, count in filesystem.inodes.items()} == {1}
    run(filesystem.forget([(inode, 1) for inode in given]))
    assert filesystem.inodes.items() == [(ROOT_INODE, 1)]
    assert volume._held == set()


def test_an_error_on_the_way_keeps_what_was_given_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that is an error gives the kernel nothing, so it would never give the references back."""
    monkeypatch.setattr(listing, "PAGE_ENTRIES", 4)
    volume = InMemoryVolume()
    filled(volume, 10)
    broken = False
    readdir = volume.readdir

    def fail(node: int, after: bytes, limit: int) -> object:
        if broken and after >= b"0003":
            raise OSError(errno.EIO, "broken")
        return readdir(node, after, limit)

    monkeypatch.setattr(volume, "readdir", fail)
    filesystem = FileSystem({ROOT: volume})
    number = run(filesystem.opendir(ROOT_INODE))
    started = ask(filesystem, number, 0, 3)
    broken = True
    assert names(ask(filesystem, number, started[-1].after)) == [b"0001", b"0002", b"0003"]
    got = ask(filesystem, number, 0)
    assert names(got) == [b".", b"..", b"0000", b"0001", b"0002", b"0003"]
    with pytest.raises(OSError, match="broken"):
        ask(filesystem, number, got[-1].after)
    assert len(filesystem.inodes) == 5
    broken = False
    assert len(ask(filesystem, number, got[-1].after)) == 6


def test_entries_say_their_type_and_number(volume: TreeVolume) -> None:
    volume.mkdir(ROOT_INODE, b"d", 0o700, ME)
    volume.symlink(ROOT_INODE, b"l", b"d", ME)
    filesystem = FileSystem({ROOT: volume})
    inode = run(filesystem.lookup(ROOT_INODE, b"d")).inode
    number = run(filesystem.opendir(inode))
    dots = ask(filesystem, number, 0)
    assert [(one.name, one.entry.inode) for one in dots] == [(b".", inode), (b"..", ROOT_INODE)]
    seen = ask(filesystem, run(filesystem.opendir(ROOT_INODE)), 2)
    types = {one.name: stat.S_IFMT(one.entry.attr.mode) for one in seen if one.entry.attr is not None}
    assert types == {b"d": stat.S_IFDIR, b"l": stat.S_IFLNK}


def test_a_broken_route_says_so_when_it_is_entered(monkeypatch: pytest.MonkeyPatch) -> None:
    default, broken = InMemoryVolume(), InMemoryVolume()
    filled(default, 2)

    monkeypatch.setattr(broken, "getattr", raising(OSError(errno.EIO, "broken")))
    filesystem = FileSystem({ROOT: default, AgentPath("/broken"): broken})
    seen = ask(filesystem, run(filesystem.opendir(ROOT_INODE)), 0)
    assert names(seen) == [b".", b"..", b"broken", b"0000", b"0001"]
    for call in (lambda: filesystem.getattr(seen[2].entry.inode), lambda: filesystem.lookup(ROOT_INODE, b"broken")):
        with pytest.raises(OSError, match="broken"):
            run(call())


# -- routes that hang ----------------------------------------------------------------------------------------------


class Hanging(InMemoryVolume):
    """Answers nothing until it is let go."""

    features = Features(blocking=True, change_feed=False)

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def getattr(self, node: int) -> Attr:
        self.go.wait(60)
        return super().getattr(node)

    def lookup(self, parent: int, name: bytes) -> Attr:
        self.go.wait(60)
        return super().lookup(parent, name)


def test_a_route_that_hangs_does_not_keep_the_directory_above_it_waiting() -> None:
    hanging, default = Hanging(), InMemoryVolume()
    filled(default, 2)
    filesystem = FileSystem({ROOT: default, AgentPath("/hung"): hanging}, deadline_s=0.05)
    try:
        seen = ask(filesystem, run(filesystem.opendir(ROOT_INODE)), 0)
        assert names(seen) == [b".", b"..", b"hung", b"0000", b"0001"]
        hung = seen[2].entry
        assert hung.attr is not None and hung.attr.is_dir and hung.timeout_s == 0, "the kernel is to ask when it must"
        assert filesystem.tree.routes[1].executor.health.timeouts == 0
        refused(errno.ETIMEDOUT, run, filesystem.getattr(hung.inode))
        refused(errno.ETIMEDOUT, run, filesystem.lookup(hung.inode, b"x"))
        assert names(ask(filesystem, run(filesystem.opendir(ROOT_INODE)), 3)) == [b"0000", b"0001"]
        assert (
            filesystem.tree.routes[1].executor.health.timeouts,
            filesystem.tree.routes[0].executor.health.timeouts,
        ) == (2, 0)
    finally:
        hanging.go.set()
    assert run(filesystem.lookup(hung.inode, b"x")).inode == 0, "it is asked again, and answers"


def test_the_way_to_a_route_is_open_though_it_leads_through_one_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every path leads through the root, and the kernel asks for the root's mode before it goes on."""
    monkeypatch.setattr(mounttree, "WAY_PATIENCE_S", 0.05)
    hanging, notes = Hanging(), InMemoryVolume()
    filled(notes, 1)
    filesystem = FileSystem({ROOT: hanging, AgentPath("/notes"): notes, AgentPath("/a/b"): notes}, deadline_s=60)

    async def walk() -> None:
        for path in ([b"notes"], [b"a", b"b"]):
            for _ in range(3):
                at = await filesystem.getattr(ROOT_INODE)
                for name in path:
                    assert at.attr is not None and at.attr.is_dir
                    at = await filesystem.lookup(at.inode, name)
                assert (await filesystem.lookup(at.inode, b"0000")).inode != 0

    hanging.go.set()
    hanging.setattr(ROOT_INODE, AttrChanges(mode=0o711))
    known = run(filesystem.getattr(ROOT_INODE)).attr
    assert known is not None and known.mode & 0o777 == 0o711
    hanging.go.clear()
    start = time.monotonic()
    try:
        run(walk())
        assert time.monotonic() - start < 10, "it was waited for twice, the root and the way to b, and not each time"
        shown = run(filesystem.getattr(ROOT_INODE)).attr
        assert shown is not None and shown.mode & 0o777 == 0o711
        inode = run(filesystem.lookup(ROOT_INODE, b"notes")).inode
        seen = ask(filesystem, run(filesystem.opendir(inode)), 0)
        assert [(one.name, one.entry.inode) for one in seen[:2]] == [(b".", inode), (b"..", ROOT_INODE)]
        assert names(seen[2:]) == [b"0000"]
        assert filesystem.tree.routes[0].executor.health.timeouts == 0
    finally:
        hanging.go.set()
