"""`SnapshotCases`: the contents of snapshots, their errors, and the state after some are deleted.

A case is a method with the argument `volume`, a new and empty one.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from fusebackend.protocol import RENAME_EXCHANGE, ROOT_NODE, AttrChanges, Caller, SnapshotVolume, Volume
from fusebackend.testing.snapshots.copy import copy_of, read_once

ME = Caller(0, 0)
CHUNK = 1 << 16


@contextmanager
def _refused(number: int) -> Iterator[None]:
    with pytest.raises(OSError) as refused:
        yield
    assert refused.value.errno == number, refused.value


def _file(volume: Volume, name: bytes, content: bytes, parent: int = ROOT_NODE) -> int:
    """Make a file, and return its node, which is not open."""
    node = volume.create(parent, name, 0o644, os.O_RDWR, ME).node
    volume.write(node, 0, content)
    volume.release(node, os.O_RDWR)
    return node


def _overwrite(volume: Volume, node: int, offset: int, content: bytes) -> None:
    volume.open(node, os.O_RDWR)
    volume.write(node, offset, content)
    volume.release(node, os.O_RDWR)


def _content(volume: Volume, name: bytes, parent: int = ROOT_NODE) -> bytes:
    attr = volume.lookup(parent, name)
    volume.open(attr.node, os.O_RDONLY)
    content = volume.read(attr.node, 0, attr.size + 1)
    volume.release(attr.node, os.O_RDONLY)
    return content


def _scene(volume: Volume) -> None:
    """Make some of everything."""
    directory = volume.mkdir(ROOT_NODE, b"directory", 0o2755, ME).node
    below = volume.mkdir(directory, b"below", 0o700, Caller(1000, 1000)).node
    _file(volume, b"small", b"small")
    large = _file(volume, b"large", bytes(range(256)) * 1024, below)
    holes = _file(volume, b"holes", b"first")
    _overwrite(volume, holes, 5 * CHUNK + 7, b"last")
    volume.setattr(large, AttrChanges(mode=0o4755, uid=1000, gid=1001, mtime_ns=-5, atime_ns=10**18))
    volume.setxattr(large, b"user.name", b"value")
    volume.setxattr(directory, b"user.directory", b"")
    volume.link(large, ROOT_NODE, b"other name of large")
    volume.symlink(directory, b"link", b"../somewhere \xff", ME)
    volume.mknod(directory, b"fifo", stat.S_IFIFO | 0o600, 0, ME)
    volume.mknod(directory, b"device", stat.S_IFCHR | 0o600, os.makedev(1, 3), ME)
    for number in range(30):
        _file(volume, b"%02d" % number, b"x" * number, directory)
    _file(volume, b"odd \xff\n\\name" * 10, b"", below)


def _wreck(volume: Volume) -> None:
    """Change everything that `_scene` has made."""
    directory = volume.lookup(ROOT_NODE, b"directory").node
    below = volume.lookup(directory, b"below").node
    large = volume.lookup(below, b"large").node
    _overwrite(volume, large, 100, b"changed")
    _overwrite(volume, large, 3 * CHUNK, b"changed")
    volume.setattr(large, AttrChanges(mode=0o600, uid=0, gid=0))
    volume.setxattr(large, b"user.name", b"another")
    volume.setxattr(large, b"user.more", b"")
    volume.removexattr(directory, b"user.directory")
    volume.unlink(ROOT_NODE, b"other name of large")
    volume.setattr(volume.lookup(ROOT_NODE, b"holes").node, AttrChanges(size=3))
    _overwrite(volume, volume.lookup(ROOT_NODE, b"small").node, 5, b" and more")
    for name in (b"link", b"fifo", b"device"):
        volume.unlink(directory, name)
    volume.rename(directory, b"00", directory, b"01")
    volume.rename(directory, b"02", directory, b"03", RENAME_EXCHANGE)
    volume.rename(directory, b"below", ROOT_NODE, b"above")
    volume.symlink(directory, b"below", b"above", ME)
    for number in range(10, 30):
        volume.unlink(directory, b"%02d" % number)
    _file(volume, b"new", b"new", directory)


class SnapshotCases:
    """Every case. Give it a fixture `volume`."""

    def test_a_snapshot_holds_all_that_was_there(self, volume: SnapshotVolume) -> None:
        _scene(volume)
        before = copy_of(volume)
        volume.take_snapshot("before")
        assert read_once(volume.snapshot("before")) == before
        _wreck(volume)
        after = copy_of(volume)
        volume.take_snapshot("after")
        assert before.keys() != after.keys()
        _wreck_all(volume)
        assert read_once(volume.snapshot("before")) == before
        assert read_once(volume.snapshot("after")) == after

    def test_files_are_taken_out_of_all_snapshots(self, volume: SnapshotVolume) -> None:
        """A volume that can't do that answers ENOTSUP."""
        _scene(volume)
        volume.take_snapshot("one")
        small = volume.lookup(ROOT_NODE, b"small").node
        _overwrite(volume, small, 0, b"S")
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
        _wreck(volume)
        live = copy_of(volume)
        volume.take_snapshot("three")
        volume.delete_snapshot("one")
        _wreck_all(volume)
        assert copy_of(volume.snapshot("two")) == kept["two"]
        assert copy_of(volume.snapshot("three")) == live

    def test_an_empty_volume_has_snapshots_too(self, volume: SnapshotVolume) -> None:
        volume.take_snapshot("empty")
        _scene(volume)
        (root,) = read_once(volume.snapshot("empty")).items()
        assert root[0] == b"/"

    def test_the_volume_itself_is_none_the_wiser(self, volume: SnapshotVolume) -> None:
        _scene(volume)
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
        with _refused(errno.EEXIST):
            volume.take_snapshot("a")
        assert list(volume.snapshots()) == taken
        volume.delete_snapshot("x" * 255)
        again = volume.take_snapshot("x" * 255)
        assert again.number > numbers[-1], "a number was used again"

    def test_what_is_not_there_is_enoent(self, volume: SnapshotVolume) -> None:
        volume.take_snapshot("there")
        for ask in (volume.snapshot, volume.delete_snapshot):
            with _refused(errno.ENOENT):
                ask("elsewhere")
        volume.delete_snapshot("there")
        for ask in (volume.snapshot, volume.delete_snapshot):
            with _refused(errno.ENOENT):
                ask("there")

    def test_a_snapshot_is_the_same_volume_each_time(self, volume: SnapshotVolume) -> None:
        volume.take_snapshot("one")
        volume.take_snapshot("two")
        assert volume.snapshot("one") is volume.snapshot("one")
        assert volume.snapshot("one") is not volume.snapshot("two")

    def test_every_change_of_a_snapshot_is_erofs(self, volume: SnapshotVolume) -> None:
        _scene(volume)
        volume.take_snapshot("fixed")
        frozen = volume.snapshot("fixed")
        assert frozen.features.read_only
        before = read_once(frozen)
        directory = frozen.lookup(ROOT_NODE, b"directory").node
        small = frozen.lookup(ROOT_NODE, b"small").node
        changes: list[Callable[[], object]] = [
            lambda: frozen.mknod(directory, b"new", stat.S_IFREG | 0o600, 0, ME),
            lambda: frozen.create(directory, b"new", 0o600, os.O_RDWR, ME),
            lambda: frozen.mkdir(directory, b"new", 0o700, ME),
            lambda: frozen.symlink(directory, b"new", b"x", ME),
            lambda: frozen.link(small, directory, b"new"),
            lambda: frozen.unlink(ROOT_NODE, b"small"),
            lambda: frozen.rmdir(directory, b"below"),
            lambda: frozen.rename(ROOT_NODE, b"small", directory, b"new"),
            lambda: frozen.setattr(small, AttrChanges(mode=0o600)),
            lambda: frozen.setattr(small, AttrChanges(size=0)),
            lambda: frozen.setxattr(small, b"user.new", b""),
            lambda: frozen.removexattr(small, b"user.name"),
            lambda: frozen.write(small, 0, b"x"),
            lambda: frozen.append(small, b"x"),
        ]
        for change in changes:
            with _refused(errno.EROFS):
                change()
        assert read_once(frozen) == before

    def test_reads_move_no_access_times(self, volume: SnapshotVolume) -> None:
        file = _file(volume, b"file", b"content")
        volume.setattr(file, AttrChanges(atime_ns=1, mtime_ns=2))
        volume.take_snapshot("fixed")
        frozen = volume.snapshot("fixed")
        for _ in range(2):
            assert _content(frozen, b"file") == b"content"
            assert frozen.getattr(file).atime_ns == 1 and not frozen.access_due(frozen.getattr(file))
        assert _content(volume, b"file") == b"content"
        assert volume.getattr(file).atime_ns > 1, "the volume itself notes its reads"
        assert frozen.getattr(file).atime_ns == 1

    def test_errors_of_a_snapshot_are_those_of_a_volume(self, volume: SnapshotVolume) -> None:
        _scene(volume)
        volume.take_snapshot("fixed")
        later = _file(volume, b"later", b"")
        frozen = volume.snapshot("fixed")
        small = frozen.lookup(ROOT_NODE, b"small").node
        with _refused(errno.ENOENT):
            frozen.lookup(ROOT_NODE, b"later")
        with _refused(errno.ESTALE):
            frozen.getattr(later)
        with _refused(errno.ENOTDIR):
            frozen.lookup(small, b"x")
        with _refused(errno.ENODATA):
            frozen.getxattr(small, b"user.absent")
        with _refused(errno.EINVAL):
            frozen.readlink(small)

    def test_a_deleted_snapshot_is_estale(self, volume: SnapshotVolume) -> None:
        _scene(volume)
        volume.take_snapshot("gone")
        frozen = volume.snapshot("gone")
        small = frozen.lookup(ROOT_NODE, b"small").node
        frozen.open(small, os.O_RDONLY)
        volume.delete_snapshot("gone")
        asked: list[Callable[[], object]] = [
            lambda: frozen.getattr(ROOT_NODE),
            lambda: frozen.lookup(ROOT_NODE, b"small"),
            lambda: frozen.lookup(ROOT_NODE, b"absent"),
            lambda: frozen.readdir(ROOT_NODE, b"", 1),
            lambda: frozen.read(small, 0, 1),
            lambda: frozen.listxattr(small),
        ]
        for ask in asked:
            with _refused(errno.ESTALE):
                ask()
        volume.take_snapshot("gone")
        with _refused(errno.ESTALE):
            frozen.getattr(ROOT_NODE)
        assert volume.snapshot("gone").getattr(small).size == 5

    def test_an_unlinked_file_stays_in_it(self, volume: SnapshotVolume) -> None:
        file = _file(volume, b"file", b"before")
        volume.take_snapshot("fixed")
        volume.open(file, os.O_RDWR)
        volume.unlink(ROOT_NODE, b"file")
        volume.write(file, 0, b"nameless")
        assert volume.read(file, 0, 100) == b"nameless"
        assert _content(volume.snapshot("fixed"), b"file") == b"before"
        volume.release(file, os.O_RDWR)
        volume.forget([file])
        assert _content(volume.snapshot("fixed"), b"file") == b"before"
        assert volume.snapshot("fixed").getattr(file).nlink == 1

    def test_a_file_without_a_name_lives_on(self, volume: SnapshotVolume) -> None:
        file = _file(volume, b"file", b"content")
        volume.open(file, os.O_RDWR)
        volume.unlink(ROOT_NODE, b"file")
        volume.take_snapshot("fixed")
        assert volume.read(file, 0, 100) == b"content"
        volume.write(file, 0, b"C")
        assert list(read_once(volume.snapshot("fixed"))) == [b"/"]
        volume.release(file, os.O_RDWR)
        volume.forget([file])
        volume.delete_snapshot("fixed")
        with _refused(errno.ESTALE):
            volume.getattr(file)

    def test_snapshots_of_every_state_of_a_file(self, volume: SnapshotVolume) -> None:
        """Each change of one file between two snapshots, which are then deleted in an order that mixes both ends."""
        file = _file(volume, b"file", b"")
        states = []
        for number in range(12):
            if number % 4 == 3:
                volume.setattr(file, AttrChanges(size=number * 5_000))
            else:
                _overwrite(volume, file, number * 9_000, bytes([number]) * 30_000)
            states.append(copy_of(volume))
            volume.take_snapshot(str(number))
        left = list(range(12))
        for number in (5, 11, 0, 6, 10, 1, 3, 2, 9, 4, 8, 7):
            volume.delete_snapshot(str(number))
            left.remove(number)
            for other in left:
                assert read_once(volume.snapshot(str(other))) == states[other], f"{other} after {number} was deleted"
        assert copy_of(volume) == states[-1]

    def test_several_snapshots_of_one_state(self, volume: SnapshotVolume) -> None:
        _scene(volume)
        before = copy_of(volume)
        for name in ("one", "two", "three"):
            volume.take_snapshot(name)
        _wreck(volume)
        volume.delete_snapshot("two")
        volume.delete_snapshot("three")
        assert read_once(volume.snapshot("one")) == before


def _wreck_all(volume: Volume) -> None:
    """Remove everything."""

    def empty(node: int) -> None:
        while page := volume.readdir(node, b"", 10):
            for name, is_dir, child in [(name, attr.is_dir, attr.node) for name, attr in page]:
                if is_dir:
                    empty(child)
                    volume.rmdir(node, name)
                else:
                    volume.unlink(node, name)

    empty(ROOT_NODE)
