"""Inodes that the kernel is asked to drop: when, which, and how."""

from __future__ import annotations

import os

import pytest
from smallkernel import SmallKernel, answer

from fusebackend.backends.memory import InMemoryVolume
from fusebackend.base.paths import ROOT
from fusebackend.vfs.coherence import invalidation as pruning
from fusebackend.vfs.coherence.invalidation import LOOKING_SHARE, Pruning
from fusebackend.vfs.inodes import ROOT_INODE
from fusebackend.vfs.mounted_tree import FileSystem
from fusebackend.vfs.switches import Switches

FILES = 20
LOOK_S = 0.5
LIMIT = 10


class Tree:
    """A mount that bears `LIMIT` inodes, and knows the directory `/d` with some files."""

    def __init__(self, *, on: bool = True) -> None:
        self.volume = InMemoryVolume()
        self.volume.most_nodes = LIMIT
        self.filesystem = FileSystem({ROOT: self.volume}, switches=Switches(pruning=on))
        self.kernel = SmallKernel(self.filesystem)
        self.now_s = 100.0
        self.filesystem.pruning = Pruning(self.filesystem.inodes, self.filesystem.invalidation, on, clock=self.clock)
        self.pruned: list[int] = []
        self.filesystem.pruning.prune = self.pruned.extend
        self.kernel.mkdir("/d")
        self.files = [f"/d/{number:02}" for number in range(FILES)]
        for file in self.files:
            self.kernel.put(file, b"")

    def clock(self) -> float:
        """A look at all inodes takes `LOOK_S`."""
        self.now_s += LOOK_S
        return self.now_s

    def open_directory(self) -> None:
        answer(self.filesystem.opendir(ROOT_INODE))


def test_the_older_half_is_dropped_with_the_content_of_a_directory_before_it() -> None:
    tree = Tree()
    tree.open_directory()
    directory = tree.kernel.inode("/d")
    oldest = [directory, *map(tree.kernel.inode, tree.files)][: (FILES + 1) // 2]
    assert tree.pruned == oldest[::-1]
    assert tree.pruned[-1] == directory


def test_nothing_is_dropped_below_the_limit() -> None:
    tree = Tree()
    tree.volume.most_nodes = len(tree.filesystem.inodes)
    tree.open_directory()
    assert tree.pruned == []
    tree.volume.most_nodes -= 1
    tree.open_directory()
    assert tree.pruned


@pytest.mark.parametrize(("on", "most_nodes"), [(True, None), (False, LIMIT)])
def test_nor_in_a_volume_that_bears_any_number_nor_where_it_is_turned_off(on: bool, most_nodes: int | None) -> None:
    tree = Tree(on=on)
    tree.volume.most_nodes = most_nodes
    tree.open_directory()
    assert tree.pruned == []


def test_nor_what_is_open() -> None:
    tree = Tree()
    tree.kernel.open(tree.files[0], os.O_RDONLY)
    tree.open_directory()
    assert tree.kernel.inode(tree.files[0]) not in tree.pruned
    assert tree.kernel.inode(tree.files[1]) in tree.pruned


def test_a_batch_at_each_opendir(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "BATCH", 4)
    tree = Tree()
    sizes = []
    for _ in range(3):
        tree.open_directory()
        sizes.append(len(tree.pruned))
    assert sizes == [4, 8, (FILES + 1) // 2]
    assert len(set(tree.pruned)) == sizes[-1]


def test_a_kernel_that_keeps_them_is_asked_again_after_a_pause() -> None:
    tree = Tree()
    tree.open_directory()
    first, tree.pruned[:] = list(tree.pruned), []
    tree.open_directory()
    assert tree.pruned == []
    tree.now_s += LOOK_S / LOOKING_SHARE
    tree.open_directory()
    assert tree.pruned == first


def test_a_kernel_without_the_notice_drops_names_of_files_and_keeps_directories() -> None:
    tree = Tree()
    opened = tree.files[1]
    tree.kernel.open(opened, os.O_RDONLY)
    tree.filesystem.pruning.prune = None
    directory = tree.kernel.inode("/d")
    tree.open_directory()
    left = {name for _, name in tree.kernel.dentries}
    assert tree.kernel.dentries[ROOT_INODE, b"d"] == directory
    assert b"00" not in left
    assert {os.path.basename(opened).encode(), b"19"} <= left
