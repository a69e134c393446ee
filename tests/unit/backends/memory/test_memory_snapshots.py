"""Snapshots of the memory volume, and what they cost."""

from __future__ import annotations

import os
import tracemalloc

import hypothesis
import pytest
from profiles import examples

from fusebackend.backends.memory import InMemoryVolume
from fusebackend.protocol import ROOT_NODE, Caller
from fusebackend.testing.snapshots import SnapshotCases, SnapshotMachine

ME = Caller(0, 0)


class TestMemory(SnapshotCases):
    @pytest.fixture
    def volume(self) -> InMemoryVolume:
        return InMemoryVolume()


class MemoryMachine(SnapshotMachine):
    def make_volume(self) -> InMemoryVolume:
        return InMemoryVolume()

    def teardown(self) -> None:
        for name in self.copies:
            self.volume.delete_snapshot(name)
        assert self.volume.snapshot_bytes() == 0, "bytes of deleted snapshots are left"
        super().teardown()


TestMemoryMachine = MemoryMachine.TestCase
TestMemoryMachine.settings = hypothesis.settings(max_examples=examples(25), stateful_step_count=50, deadline=None)


def file_of(volume: InMemoryVolume, size: int, name: bytes = b"file") -> int:
    node = volume.create(ROOT_NODE, name, 0o644, 0, ME).node
    for offset in range(0, size, 1 << 20):
        volume.write(node, offset, bytes(1 << 20))
    return node


def test_a_snapshot_copies_no_bytes() -> None:
    volume = InMemoryVolume()
    node = file_of(volume, 16 << 20)
    tracemalloc.start()
    try:
        for number in range(10):
            volume.take_snapshot(str(number))
            volume.read(node, 0, 1 << 20)
            assert len(volume.snapshot("0").read(node, 0, 16 << 20)) == 16 << 20
        assert tracemalloc.get_traced_memory()[0] < 4 << 20
        volume.write(node, 0, b"x")
        assert tracemalloc.get_traced_memory()[0] < 5 << 20, "one chunk is copied for all ten"
    finally:
        tracemalloc.stop()


def test_reading_between_snapshots_leaves_nothing_behind() -> None:
    """Else a search every ten seconds would fill the memory."""
    volume = InMemoryVolume()
    nodes = [file_of(volume, 4096, b"%d" % number) for number in range(50)]
    for number in range(20):
        volume.take_snapshot(str(number))
        for node in nodes:
            volume.read(node, 0, 4096)
            volume.getattr(node)
    volume.take_snapshot("last")
    assert len(list(volume._earlier)) == 50, "each is kept once, when its access time has moved"
    assert volume.snapshot_bytes() == 0


def test_kept_files_share_one_dict_of_no_names() -> None:
    """A million empty dicts take 64 MB."""
    volume = InMemoryVolume()
    nodes = [file_of(volume, 0, b"%d" % number) for number in range(50)]
    volume.take_snapshot("before")
    for node in nodes:
        volume.write(node, 0, b"x")
    assert len({id(kept.names) for kept in volume._earlier}) == 1
    volume.forget_versions(nodes[:1])
    assert len({id(kept.names) for kept in volume._earlier if kept.node in nodes}) == 1


def test_what_snapshots_hold_is_used() -> None:
    """Else `df` would say that the files as they are take less than nothing."""
    volume = InMemoryVolume()
    volume.release(file_of(volume, 1 << 20, b"large"), os.O_RDWR)
    volume.take_snapshot("held")
    volume.unlink(ROOT_NODE, b"large")
    disk = volume.statfs()
    used_bytes = (disk.blocks - disk.blocks_free) * disk.block_bytes
    assert 1 << 20 <= volume.snapshot_bytes() <= used_bytes
