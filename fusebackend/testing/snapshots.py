"""Snapshots of a volume: cases to subclass, and a hypothesis state machine, for authors of a `SnapshotVolume`.

    from fusebackend.testing.snapshots import SnapshotCases, SnapshotMachine

    class TestMine(SnapshotCases):
        @pytest.fixture
        def volume(self):
            return MyVolume()                     # new and empty for each case

    class MyMachine(SnapshotMachine):
        def make_volume(self):
            return MyVolume()

    TestMyMachine = MyMachine.TestCase

Each compares a snapshot with a copy of the volume that was made by walking it at that moment (`copy_of`): names, node
numbers, all attributes, extended attributes, link targets, bytes and holes.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
from typing import Any, NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from fusebackend.protocol import RENAME_EXCHANGE, ROOT_NODE, Attr, AttrChanges, Caller, SnapshotVolume, Volume
from fusebackend.testing.by_path import OWNER, at, content, overwrite, remove, write
from fusebackend.testing.model import VolumeMachine
from fusebackend.testing.posix.case import all_refused, refused
from fusebackend.volumes.contents import opened
from fusebackend.volumes.walk import entries, paged

# -- copy --------------------------------------------------------------------------------------------------------
#
# All that a reader finds in a volume, as values to compare.


PAGE_ENTRIES = 3
"""Entries of a directory that are asked for at once: few, so that every listing has several pages."""


class Copied(NamedTuple):
    """One name of a volume, with all that a reader finds behind it."""

    attributes: dict[str, int]
    """Those of `Attr`, by their names, but its version."""
    xattrs: dict[bytes, bytes]
    content: bytes
    """Of a file its bytes, of a symbolic link its target."""
    data: tuple[int, ...]
    """Where `next_data` finds data."""


def copy_of(volume: Volume) -> dict[bytes, Copied]:
    """Return path → what is there, for every name of a volume. Access times are those after the walk."""
    read_once(volume)  # moves those access times that reads move
    return read_once(volume)


def but_atimes(volume: Volume) -> dict[bytes, Copied]:
    """Return what `read_once` does, without access times."""
    return {
        path: each._replace(attributes=each.attributes | {"atime_ns": 0}) for path, each in read_once(volume).items()
    }


def read_once(volume: Volume) -> dict[bytes, Copied]:
    """Return what `copy_of` does, in one walk: of a volume in which reads move no access times."""
    found: dict[bytes, Copied] = {}
    waiting = [(b"/", volume.getattr(ROOT_NODE).node)]
    while waiting:
        path, node = waiting.pop()
        listed = paged(volume.readdir, node, PAGE_ENTRIES) if volume.getattr(node).is_dir else ()
        children = [(name, attr.node) for name, attr in listed]
        found[path] = _copied(volume, node)
        for name, child in children:
            assert volume.lookup(node, name).node == child, f"{name!r} in {path!r} is listed as node {child}"
            waiting.append((path.rstrip(b"/") + b"/" + name, child))
    # Reading moves access times, of directories and links too, so attributes are asked for after everything was read.
    return {
        path: each._replace(attributes=_attributes(volume, each.attributes["node"]))
        for path, each in sorted(found.items())
    }


def _attributes(volume: Volume, node: int) -> dict[str, int]:
    attr = volume.getattr(node)
    return {name: getattr(attr, name) for name in Attr.__slots__ if name != "version"}


def _copied(volume: Volume, node: int) -> Copied:
    attributes = _attributes(volume, node)
    xattrs = {name: volume.getxattr(node, name) for name in volume.listxattr(node)} if volume.features.xattrs else {}
    content, data = b"", tuple[int, ...]()
    if stat.S_ISLNK(attributes["mode"]):
        content = volume.readlink(node)
    elif stat.S_ISREG(attributes["mode"]):
        with opened(volume, node, os.O_RDONLY) as handle:
            content = volume.read(handle, 0, attributes["size"] + 1)
            data = _data(volume, handle, attributes["size"])
    return Copied(attributes, xattrs, content, data)


def _data(volume: Volume, node: int, size: int) -> tuple[int, ...]:
    """Where data begins, seen from each 64 KiB."""
    found = {volume.next_data(node, offset) for offset in range(0, size, 1 << 16)}
    return tuple(sorted(offset for offset in found if offset is not None))


# -- scene -------------------------------------------------------------------------------------------------------
#
# Some of everything, and what wrecks it: for the cases of snapshots and of branches.


CHUNK = 1 << 16


def make_scene(volume: Volume) -> None:
    """Make some of everything."""
    directory = volume.mkdir(ROOT_NODE, b"directory", 0o2755, OWNER).node
    volume.mkdir(directory, b"below", 0o700, Caller(1000, 1000))
    write(volume, b"small", b"small")
    large = write(volume, b"directory/below/large", bytes(range(256)) * 1024)
    holes = write(volume, b"holes", b"first")
    overwrite(volume, holes, 5 * CHUNK + 7, b"last")
    volume.setattr(large, AttrChanges(mode=0o4755, uid=1000, gid=1001, mtime_ns=-5, atime_ns=10**18))
    volume.setxattr(large, b"user.name", b"value")
    volume.setxattr(directory, b"user.directory", b"")
    volume.link(large, ROOT_NODE, b"other name of large")
    volume.symlink(directory, b"link", b"../somewhere \xff", OWNER)
    volume.mknod(directory, b"fifo", stat.S_IFIFO | 0o600, 0, OWNER)
    volume.mknod(directory, b"device", stat.S_IFCHR | 0o600, os.makedev(1, 3), OWNER)
    for number in range(30):
        write(volume, b"directory/%02d" % number, b"x" * number)
    write(volume, b"directory/below/" + b"odd \xff\n\\name" * 10, b"")


def wreck_scene(volume: Volume) -> None:
    """Change everything that `make_scene` has made."""
    directory = volume.lookup(ROOT_NODE, b"directory").node
    below = volume.lookup(directory, b"below").node
    large = volume.lookup(below, b"large").node
    overwrite(volume, large, 100, b"changed")
    overwrite(volume, large, 3 * CHUNK, b"changed")
    volume.setattr(large, AttrChanges(mode=0o600, uid=0, gid=0))
    volume.setxattr(large, b"user.name", b"another")
    volume.setxattr(large, b"user.more", b"")
    volume.removexattr(directory, b"user.directory")
    volume.unlink(ROOT_NODE, b"other name of large")
    volume.setattr(volume.lookup(ROOT_NODE, b"holes").node, AttrChanges(size=3))
    overwrite(volume, volume.lookup(ROOT_NODE, b"small").node, 5, b" and more")
    for name in (b"link", b"fifo", b"device"):
        volume.unlink(directory, name)
    volume.rename(directory, b"00", directory, b"01")
    volume.rename(directory, b"02", directory, b"03", RENAME_EXCHANGE)
    volume.rename(directory, b"below", ROOT_NODE, b"above")
    volume.symlink(directory, b"below", b"above", OWNER)
    for number in range(10, 30):
        volume.unlink(directory, b"%02d" % number)
    write(volume, b"directory/new", b"new")


# -- cases -------------------------------------------------------------------------------------------------------
#
# The contents of snapshots, their errors, and the state after some are deleted.
#
# A case is a method with the argument `volume`, a new and empty one.


def _content(volume: Volume) -> bytes:
    return content(volume, at(volume, b"file"))


def _remove_all(volume: Volume) -> None:
    for name, _ in list(entries(volume, ROOT_NODE)):
        remove(volume, name)


class SnapshotCases:
    """Every case. Give it a fixture `volume`."""

    @pytest.fixture
    def scene(self, volume: SnapshotVolume) -> None:
        """Some of everything, in the volume."""
        make_scene(volume)

    def test_a_snapshot_holds_all_that_was_there(self, scene: None, volume: SnapshotVolume) -> None:
        before = copy_of(volume)
        volume.take_snapshot("before")
        assert read_once(volume.snapshot("before")) == before
        wreck_scene(volume)
        after = copy_of(volume)
        volume.take_snapshot("after")
        assert before.keys() != after.keys()
        _remove_all(volume)
        assert read_once(volume.snapshot("before")) == before
        assert read_once(volume.snapshot("after")) == after

    def test_files_are_taken_out_of_all_snapshots(self, scene: None, volume: SnapshotVolume) -> None:
        """A volume that can't do that answers ENOTSUP."""
        volume.take_snapshot("one")
        small = volume.lookup(ROOT_NODE, b"small").node
        overwrite(volume, small, 0, b"S")
        volume.setxattr(small, b"user.kept", b"kept")
        volume.take_snapshot("two")
        going = {small, volume.lookup(ROOT_NODE, b"other name of large").node}
        gone = {b"/small", b"/other name of large", b"/directory/below/large"}
        before = {name: copy_of(volume.snapshot(name)) for name in ("one", "two")}
        live = copy_of(volume)
        try:
            volume.forget_versions(going)
        except OSError as error:
            if error.errno == errno.ENOTSUP:
                pytest.skip(str(error))
            raise
        kept = {name: {path: each for path, each in copy.items() if path not in gone} for name, copy in before.items()}
        for _ in range(2):
            assert {name: copy_of(volume.snapshot(name)) for name in kept} == kept
            assert copy_of(volume) == live
            volume.forget_versions(going)  # it changes nothing more
        wreck_scene(volume)
        live = copy_of(volume)
        volume.take_snapshot("three")
        volume.delete_snapshot("one")
        _remove_all(volume)
        assert copy_of(volume.snapshot("two")) == kept["two"]
        assert copy_of(volume.snapshot("three")) == live

    def test_an_empty_volume_has_snapshots_too(self, volume: SnapshotVolume) -> None:
        volume.take_snapshot("empty")
        make_scene(volume)
        (root,) = read_once(volume.snapshot("empty")).items()
        assert root[0] == b"/"

    def test_the_volume_itself_is_none_the_wiser(self, scene: None, volume: SnapshotVolume) -> None:
        volume.take_snapshot("one")
        before = copy_of(volume)
        volume.take_snapshot("two")
        assert copy_of(volume) == before
        volume.delete_snapshot("one")
        volume.delete_snapshot("two")
        assert copy_of(volume) == before

    def test_names_are_unique_and_numbers_rise(self, volume: SnapshotVolume) -> None:
        assert list(volume.snapshots()) == []
        names = ["b", "a", "é \udcff", "x" * 255]
        taken = [volume.take_snapshot(name) for name in names]
        assert list(volume.snapshots()) == taken
        assert [each.name for each in taken] == names
        numbers = [each.number for each in taken]
        assert numbers == sorted(set(numbers)) and numbers[0] > 0
        assert [each.time_ns for each in taken] == sorted(each.time_ns for each in taken)
        refused(errno.EEXIST, volume.take_snapshot, "a")
        assert list(volume.snapshots()) == taken
        volume.delete_snapshot("x" * 255)
        again = volume.take_snapshot("x" * 255)
        assert again.number > numbers[-1], "a number was used again"

    def test_what_is_not_there_is_enoent(self, volume: SnapshotVolume) -> None:
        volume.take_snapshot("there")
        for ask in (volume.snapshot, volume.delete_snapshot):
            refused(errno.ENOENT, ask, "elsewhere")
        volume.delete_snapshot("there")
        for ask in (volume.snapshot, volume.delete_snapshot):
            refused(errno.ENOENT, ask, "there")

    def test_a_snapshot_is_the_same_volume_each_time(self, volume: SnapshotVolume) -> None:
        volume.take_snapshot("one")
        volume.take_snapshot("two")
        assert volume.snapshot("one") is volume.snapshot("one")
        assert volume.snapshot("one") is not volume.snapshot("two")

    def test_every_change_of_a_snapshot_is_erofs(self, scene: None, volume: SnapshotVolume) -> None:
        volume.take_snapshot("fixed")
        frozen = volume.snapshot("fixed")
        assert frozen.features.read_only
        before = read_once(frozen)
        directory = frozen.lookup(ROOT_NODE, b"directory").node
        small = frozen.lookup(ROOT_NODE, b"small").node
        all_refused(
            (errno.EROFS, frozen.mknod, directory, b"new", stat.S_IFREG | 0o600, 0, OWNER),
            (errno.EROFS, frozen.create, directory, b"new", 0o600, os.O_RDWR, OWNER),
            (errno.EROFS, frozen.mkdir, directory, b"new", 0o700, OWNER),
            (errno.EROFS, frozen.symlink, directory, b"new", b"x", OWNER),
            (errno.EROFS, frozen.link, small, directory, b"new"),
            (errno.EROFS, frozen.unlink, ROOT_NODE, b"small"),
            (errno.EROFS, frozen.rmdir, directory, b"below"),
            (errno.EROFS, frozen.rename, ROOT_NODE, b"small", directory, b"new"),
            (errno.EROFS, frozen.setattr, small, AttrChanges(mode=0o600)),
            (errno.EROFS, frozen.setattr, small, AttrChanges(size=0)),
            (errno.EROFS, frozen.setxattr, small, b"user.new", b""),
            (errno.EROFS, frozen.removexattr, small, b"user.name"),
            (errno.EROFS, frozen.write, small, 0, b"x"),
            (errno.EROFS, frozen.append, small, b"x"),
        )
        assert read_once(frozen) == before

    def test_reads_move_no_access_times(self, volume: SnapshotVolume) -> None:
        file = write(volume, b"file", b"content")
        volume.setattr(file, AttrChanges(atime_ns=1, mtime_ns=2))
        volume.take_snapshot("fixed")
        frozen = volume.snapshot("fixed")
        for _ in range(2):
            assert _content(frozen) == b"content"
            assert frozen.getattr(file).atime_ns == 1 and not frozen.access_due(frozen.getattr(file))
        assert _content(volume) == b"content"
        assert volume.getattr(file).atime_ns > 1, "the volume itself notes its reads"
        assert frozen.getattr(file).atime_ns == 1

    def test_errors_of_a_snapshot_are_those_of_a_volume(self, scene: None, volume: SnapshotVolume) -> None:
        volume.take_snapshot("fixed")
        later = write(volume, b"later", b"")
        frozen = volume.snapshot("fixed")
        small = frozen.lookup(ROOT_NODE, b"small").node
        all_refused(
            (errno.ENOENT, frozen.lookup, ROOT_NODE, b"later"),
            (errno.ESTALE, frozen.getattr, later),
            (errno.ENOTDIR, frozen.lookup, small, b"x"),
            (errno.ENODATA, frozen.getxattr, small, b"user.absent"),
            (errno.EINVAL, frozen.readlink, small),
        )

    def test_a_deleted_snapshot_is_estale(self, scene: None, volume: SnapshotVolume) -> None:
        volume.take_snapshot("gone")
        frozen = volume.snapshot("gone")
        small = frozen.lookup(ROOT_NODE, b"small").node
        frozen.open(small, os.O_RDONLY)
        volume.delete_snapshot("gone")
        all_refused(
            (errno.ESTALE, frozen.getattr, ROOT_NODE),
            (errno.ESTALE, frozen.lookup, ROOT_NODE, b"small"),
            (errno.ESTALE, frozen.lookup, ROOT_NODE, b"absent"),
            (errno.ESTALE, frozen.readdir, ROOT_NODE, b"", 1),
            (errno.ESTALE, frozen.read, small, 0, 1),
            (errno.ESTALE, frozen.listxattr, small),
        )
        volume.take_snapshot("gone")
        refused(errno.ESTALE, frozen.getattr, ROOT_NODE)
        assert volume.snapshot("gone").getattr(small).size == 5

    def test_an_unlinked_file_stays_in_it(self, volume: SnapshotVolume) -> None:
        file = write(volume, b"file", b"before")
        volume.take_snapshot("fixed")
        volume.open(file, os.O_RDWR)
        volume.unlink(ROOT_NODE, b"file")
        volume.write(file, 0, b"nameless")
        assert volume.read(file, 0, 100) == b"nameless"
        assert _content(volume.snapshot("fixed")) == b"before"
        volume.release(file, os.O_RDWR)
        volume.forget([file])
        assert _content(volume.snapshot("fixed")) == b"before"
        assert volume.snapshot("fixed").getattr(file).nlink == 1

    def test_a_file_without_a_name_lives_on(self, volume: SnapshotVolume) -> None:
        file = write(volume, b"file", b"content")
        volume.open(file, os.O_RDWR)
        volume.unlink(ROOT_NODE, b"file")
        volume.take_snapshot("fixed")
        assert volume.read(file, 0, 100) == b"content"
        volume.write(file, 0, b"C")
        assert list(read_once(volume.snapshot("fixed"))) == [b"/"]
        volume.release(file, os.O_RDWR)
        volume.forget([file])
        volume.delete_snapshot("fixed")
        refused(errno.ESTALE, volume.getattr, file)

    def test_snapshots_of_every_state_of_a_file(self, volume: SnapshotVolume) -> None:
        """Each change of one file between two snapshots, which are then deleted in an order that mixes both ends."""
        file = write(volume, b"file", b"")
        states = []
        for number in range(12):
            if number % 4 == 3:
                volume.setattr(file, AttrChanges(size=number * 5_000))
            else:
                overwrite(volume, file, number * 9_000, bytes([number]) * 30_000)
            states.append(copy_of(volume))
            volume.take_snapshot(str(number))
        left = list(range(12))
        for number in (5, 11, 0, 6, 10, 1, 3, 2, 9, 4, 8, 7):
            volume.delete_snapshot(str(number))
            left.remove(number)
            for other in left:
                assert read_once(volume.snapshot(str(other))) == states[other], f"{other} after {number} was deleted"
        assert copy_of(volume) == states[-1]

    def test_several_snapshots_of_one_state(self, scene: None, volume: SnapshotVolume) -> None:
        before = copy_of(volume)
        for name in ("one", "two", "three"):
            volume.take_snapshot(name)
        wreck_scene(volume)
        volume.delete_snapshot("two")
        volume.delete_snapshot("three")
        assert read_once(volume.snapshot("one")) == before


# -- machine -----------------------------------------------------------------------------------------------------
#
# Random operations on a volume, with snapshots taken and deleted between them.
#
# After every step each snapshot is compared with the copy that was made when it was taken.


MAX_SNAPSHOTS = 5
"""Each is read as a whole after every step."""


class SnapshotMachine(VolumeMachine):
    """Subclass it and override `make_volume`; see the package's docstring."""

    volume: Any

    def __init__(self) -> None:
        super().__init__()
        assert isinstance(self.volume, SnapshotVolume)
        self.copies: dict[str, dict[bytes, Copied]] = {}
        self.numbers: dict[str, int] = {}
        self._names = (f"s{number}" for number in itertools.count())
        self._last = 0

    @precondition(lambda self: len(self.copies) < MAX_SNAPSHOTS)
    @rule()
    def take(self) -> None:
        name = next(self._names)
        copy = copy_of(self.volume)
        taken = self.volume.take_snapshot(name)
        assert taken.name == name and taken.number > self._last, f"{taken} after number {self._last}"
        self._last = self.numbers[name] = taken.number
        self.copies[name] = copy

    @precondition(lambda self: self.copies)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.copies)))
        gone = self.volume.snapshot(name)
        self.volume.delete_snapshot(name)
        del self.copies[name], self.numbers[name]
        refused(errno.ESTALE, gone.getattr, 1)

    @invariant()
    def snapshots_are_right(self) -> None:
        listed = [(taken.name, taken.number) for taken in self.volume.snapshots()]
        assert listed == list(self.numbers.items())
        for name, wanted in self.copies.items():
            assert read_once(self.volume.snapshot(name)) == wanted, f"snapshot {name}"
