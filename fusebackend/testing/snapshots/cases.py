"""`SnapshotCases`: the contents of snapshots, their errors, and the state after some are deleted.

A case is a method with the argument `volume`, a new and empty one.
"""

from __future__ import annotations

import errno
import os
import stat

import pytest

from fusebackend.protocol import ROOT_NODE, AttrChanges, SnapshotVolume, Volume
from fusebackend.testing.by_path import OWNER, at, content, overwrite, remove, write
from fusebackend.testing.posix.case import all_refused, refused
from fusebackend.testing.snapshots.copy import copy_of, read_once
from fusebackend.testing.snapshots.scene import make_scene, wreck_scene
from fusebackend.volumes.walk import entries


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
