"""Branches over a volume: cases to subclass, and a hypothesis state machine, for authors of a `Volume`.

    from fusebackend.testing.branches import BranchCases, BranchMachine

    class TestMine(BranchCases):
        @pytest.fixture
        def volume(self):
            yield (made := MyVolume())            # new and empty for each case
            made.close()

    class MyMachine(BranchMachine):
        def make_volume(self):
            return MyVolume()

    TestMyMachine = MyMachine.TestCase

The cases branch over the volume as a mount does, change the branch, and merge it; the volume below is compared with a
copy of it. In the machine, random operations make files in the volume, then a branch over it takes its place, and the
operations go on there: the model is the same, so the branch must look as the volume did and behave as a volume of its
own, and the volume must not change any more. A `SnapshotVolume` is branched off a snapshot, another one live.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from fusebackend.backends.memory import InMemoryVolume
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.protocol import ROOT_NODE, AttrChanges, SnapshotVolume, Volume
from fusebackend.testing.by_path import (
    Shown,
    at,
    chmod,
    content,
    link,
    mkdir,
    overwrite,
    place,
    remove,
    rename,
    replace,
    shown,
    symlink,
    write,
)
from fusebackend.testing.model import VolumeMachine, contents, offsets
from fusebackend.testing.posix.case import refused
from fusebackend.testing.snapshots import Copied, but_atimes, copy_of, make_scene, wreck_scene
from fusebackend.trees.branch_volume import BranchVolume
from fusebackend.trees.branches import Branches
from fusebackend.trees.merge.merges import Merges
from fusebackend.trees.merge.run import MainTree
from fusebackend.trees.snapshots import Snapshots

# -- a branch without a mount ------------------------------------------------------------------------------------
#
# Volumes with branches, as a mount has them.


class Hidden:
    """A directory of routes that nobody sees."""

    path = AgentPath("/.fusebackend/branches")

    def attach(self, name: str, volume: Volume) -> None:
        """Show nothing."""

    def detach(self, name: str) -> None:
        """Show nothing."""


class Branched:
    """A branch `b` over volumes, as a mount has it.

    Args:
        directory: of its file.
        volumes: prefix → volume, filled.
        create: False for a branch that is there.
    """

    def __init__(self, directory: str, volumes: Mapping[str, Volume], *, create: bool = True) -> None:
        self.volumes = {AgentPath(prefix): volume for prefix, volume in volumes.items()}
        self.directory = directory
        self.branches: Branches
        self.merges: Merges
        self.open()
        if create:
            self.branches.create("b")

    def open(self) -> None:
        """Open the branches; again, after `close`."""
        snapshots = Snapshots(self.volumes)
        self.branches = Branches(self.directory, self.volumes, snapshots, Hidden())
        self.branches.open()
        self.merges = Merges(MainTree(self.branches, self.volumes, lambda: ()))

    @property
    def branch(self) -> BranchVolume:
        """The branch `b`."""
        return self.branches.volume("b")

    @property
    def main(self) -> Volume:
        """The default route."""
        return self.volumes[ROOT]

    def close(self) -> None:
        """Close the branches, not the volumes."""
        self.branches.close()

    def all(self, *, modes: bool = True) -> Shown:
        """Return the files of all routes by their path in the mount."""
        found: Shown = {}
        for prefix, volume in self.volumes.items():
            for path, file in shown(volume, modes=modes).items():
                found[os.fsencode(prefix).strip(b"/") + b"/" + path if prefix != ROOT else path] = file
        return found


# -- cases -------------------------------------------------------------------------------------------------------
#
# A branch over a volume: its contents, that nothing changes below it, and its merge.
#
# A case is a method with the argument `branched`: a branch over the author's volume, which has some files. Links, modes
# and extended attributes below the branch are only made where `volume.features` has them; in the branch they always
# work.


LARGE = bytes(range(256)) * 800
LINES = [b"%d\n" % number for number in range(30)]


def fill(volume: Volume) -> None:
    """Make files that any volume can hold."""
    mkdir(volume, b"d")
    mkdir(volume, b"d/deep")
    write(volume, b"d/x", b"x")
    write(volume, b"d/deep/y", b"y")
    write(volume, b"large", LARGE)
    write(volume, b"lines", b"".join(LINES))
    write(volume, b"gone", b"gone")


def _as_a_user_sees_it(volume: Volume) -> dict[bytes, Copied]:
    """Leave out the root, numbers, times, and where the blocks are."""
    unseen = dict.fromkeys(("node", "blocks", "atime_ns", "mtime_ns", "ctime_ns"), 0)
    return {
        path: each._replace(attributes=each.attributes | unseen, data=())
        for path, each in copy_of(volume).items()
        if path != b"/"
    }


class BranchCases:
    """Every case. Give it a fixture `volume`: a new and empty one, which is closed after the case."""

    @pytest.fixture
    def branched(self, volume: Volume, tmp_path: Path) -> Iterator[Branched]:
        fill(volume)
        made = Branched(str(tmp_path / "branches of a case"), {"/": volume})
        yield made
        made.close()

    @pytest.fixture
    def branch(self, branched: Branched) -> BranchVolume:
        return branched.branch

    # -- what is in it -----------------------------------------------------------------------------------------

    def test_it_begins_with_what_the_volume_has(self, branched: Branched) -> None:
        assert shown(branched.branch) == shown(branched.main)
        assert branched.branch.changed_names() == 0

    def test_nothing_changes_below(self, branched: Branched, branch: BranchVolume) -> None:
        """Every kind of change of what is there; names, attributes, times and bytes below are as before."""
        before = but_atimes(branched.main)
        overwrite(branch, at(branch, b"large").node, 70_000, b"changed")
        replace(branch, b"lines", b"replaced")
        chmod(branch, b"d/x", 0o4711)
        branch.setxattr(at(branch, b"d").node, b"user.name", b"value")
        link(branch, b"d/deep/y", b"linked")
        rename(branch, b"d", b"e")
        remove(branch, b"gone")
        symlink(branch, b"gone", b"large")
        branch.setattr(at(branch, b"e/x").node, AttrChanges(size=100_000))
        branch.sync()
        assert but_atimes(branched.main) == before
        found = shown(branch, modes=False)
        assert set(found) == {b"e", b"e/deep", b"e/deep/y", b"e/x", b"gone", b"large", b"lines", b"linked"}
        assert found[b"large"].data == LARGE[:70_000] + b"changed" + LARGE[70_007:]
        assert found[b"e/x"].data == b"x" + bytes(99_999)

    def test_all_of_posix_works_in_it(self, branched: Branched) -> None:
        """Whatever the volume below can hold: links, modes, owners, devices, holes, exchanges, as in memory."""
        before, branch, model = but_atimes(branched.main), branched.branch, InMemoryVolume()
        for path in (b"d", b"large", b"lines", b"gone"):
            remove(branch, path)
        for each in (branch, model):
            make_scene(each)
        assert _as_a_user_sees_it(branch) == _as_a_user_sees_it(model)
        for each in (branch, model):
            wreck_scene(each)
        assert _as_a_user_sees_it(branch) == _as_a_user_sees_it(model)
        assert but_atimes(branched.main) == before

    def test_bytes_that_were_cut_off_do_not_come_back(self, branched: Branched) -> None:
        branch = branched.branch
        for size in (70_000, 5, 0):  # inside of a chunk, of the first one, and all
            node = at(branch, b"large").node
            branch.setattr(node, AttrChanges(size=size))
            branch.setattr(node, AttrChanges(size=len(LARGE)))
            assert content(branch, at(branch, b"large")) == LARGE[:size] + bytes(len(LARGE) - size)
            branched.close()
            branched.open()
            branch = branched.branch
            assert content(branch, at(branch, b"large")) == LARGE[:size] + bytes(len(LARGE) - size)
        assert content(branched.main, at(branched.main, b"large")) == LARGE

    def test_a_file_that_is_open_sees_its_changes(self, branched: Branched, branch: BranchVolume) -> None:
        node = at(branch, b"large").node
        branch.open(node, os.O_RDONLY)
        assert branch.read(node, 0, 4) == LARGE[:4]
        overwrite(branch, at(branch, b"large").node, 1, b"new")
        assert branch.read(node, 0, 4) == LARGE[:1] + b"new"
        branch.unlink(ROOT_NODE, b"large")
        assert branch.read(node, 0, 4) == LARGE[:1] + b"new"
        branch.release(node, os.O_RDONLY)
        branch.forget([node])
        refused(errno.ESTALE, branch.getattr, node)
        assert content(branched.main, at(branched.main, b"large")) == LARGE

    def test_an_open_file_without_a_name_has_the_bytes_of_below(self, branch: BranchVolume) -> None:
        node = at(branch, b"large").node
        branch.open(node, os.O_RDWR)
        branch.unlink(ROOT_NODE, b"large")
        branch.write(node, 3, b"new")
        assert branch.read(node, 0, 1 << 20) == LARGE[:3] + b"new" + LARGE[6:]
        branch.release(node, os.O_RDWR)

    def test_names_of_one_file_are_copied_up_once(self, branched: Branched, volume: Volume) -> None:
        if not volume.features.links:
            pytest.skip("the volume does not declare links")
        branched.branches.delete(["b"])
        link(volume, b"d/x", b"also x")
        branched.branches.create("b")
        branch = branched.branch
        write(branch, b"also x", b"by the other name")
        assert content(branch, at(branch, b"d/x")) == b"by the other name"
        assert at(branch, b"d/x").nlink == 2 and at(branch, b"d/x").node == at(branch, b"also x").node
        assert content(volume, at(volume, b"d/x")) == b"x"

    def test_what_the_volume_changes_later(self, branch: BranchVolume, volume: Volume) -> None:
        """Over snapshots nothing of it is seen. Live, what the branch has not changed is."""
        before = shown(branch, modes=False)
        overwrite(branch, at(branch, b"large").node, 0, b"ours")
        write(volume, b"large", b"theirs")
        write(volume, b"lines", b"theirs")
        write(volume, b"d/new", b"theirs")
        found = shown(branch, modes=False)
        assert found.pop(b"large").data == b"ours" + LARGE[4:]
        is_frozen = isinstance(volume, SnapshotVolume)
        assert found[b"lines"].data == (b"".join(LINES) if is_frozen else b"theirs")
        assert (b"d/new" in found) == (not is_frozen)
        if is_frozen:
            assert {**found, b"large": before[b"large"]} == before

    # -- its life ----------------------------------------------------------------------------------------------

    def test_it_is_the_same_when_it_is_opened_again(self, branched: Branched) -> None:
        branch = branched.branch
        rename(branch, b"d", b"e")
        overwrite(branch, at(branch, b"large").node, 100_000, b"changed")
        chmod(branch, b"e/x", 0o600)
        write(branch, b"e/new", b"new")
        before = shown(branch)
        nodes = {path: at(branch, path).node for path in (b"e", b"large", b"e/x", b"e/new")}
        branched.close()
        branched.open()
        assert shown(branched.branch) == before
        assert {path: at(branched.branch, path).node for path in nodes} == nodes

    def test_a_branch_of_it_has_its_changes(self, branched: Branched) -> None:
        before, branch = but_atimes(branched.main), branched.branch
        remove(branch, b"d/deep")
        overwrite(branch, at(branch, b"large").node, 0, b"changed")
        branched.branches.create("c", "b")
        other = branched.branches.volume("c")
        assert shown(other) == shown(branch)
        write(other, b"lines", b"of the other")
        write(branch, b"later", b"later")
        assert content(branch, at(branch, b"lines")) == b"".join(LINES) and b"later" not in shown(other)
        branched.branches.delete(["b"])
        assert b"later" not in shown(other) and b"d/deep" not in shown(other)
        assert but_atimes(branched.main) == before

    def test_nothing_is_left_of_a_deleted_one(self, branched: Branched, volume: Volume) -> None:
        before = but_atimes(volume)
        remove(branched.branch, b"d")
        branched.branches.delete(["b"])
        assert but_atimes(volume) == before and os.listdir(branched.directory) == []
        assert not isinstance(volume, SnapshotVolume) or not volume.snapshots()

    # -- its merge ---------------------------------------------------------------------------------------------

    def test_a_merge_makes_its_changes(self, branched: Branched, branch: BranchVolume) -> None:
        overwrite(branch, at(branch, b"large").node, 70_000, b"changed")
        replace(branch, b"lines", b"replaced")
        rename(branch, b"d", b"e")
        rename(branch, b"e/x", b"x")
        mkdir(branch, b"new")
        write(branch, b"new/file", LARGE)
        remove(branch, b"gone")
        write(branched.main, b"theirs", b"theirs")
        result = branched.merges.merge("b")
        assert result.conflicts == [] and result.changes
        found = shown(branched.main, modes=False)
        assert found.pop(b"theirs").data == b"theirs"
        in_branch = shown(branch, modes=False)
        in_branch.pop(b"theirs", None)  # live
        assert found == in_branch
        assert branched.merges.merge("b").changes == [], "nothing is left to be merged"

    def test_a_merge_keeps_what_the_volume_can_hold(self, branched: Branched, volume: Volume) -> None:
        branch, features = branched.branch, volume.features
        chmod(branch, b"d/x", 0o700)
        symlink(branch, b"symbolic", b"d/x")
        link(branch, b"lines", b"hard")
        branch.setxattr(at(branch, b"large").node, b"user.name", b"value")
        result = branched.merges.merge("b")
        assert result.conflicts == []
        found = shown(volume)
        assert (found[b"d/x"].mode == 0o700) == features.persistent_modes
        assert (b"symbolic" in found) == features.symlinks
        assert found[b"hard"].data == b"".join(LINES) or not features.links
        assert (found[b"large"].xattrs == ((b"user.name", b"value"),)) == features.xattrs
        can_all = features.persistent_modes and features.symlinks and features.links and features.xattrs
        assert bool(result.partly) == (not can_all), "what is not carried over is said"

    def test_a_dry_run_changes_nothing(self, branched: Branched) -> None:
        before = but_atimes(branched.main)
        write(branched.branch, b"d/x", b"changed")
        remove(branched.branch, b"gone")
        planned = branched.merges.merge("b", dry_run=True)
        assert but_atimes(branched.main) == before
        assert planned.changes == branched.merges.merge("b").changes

    def test_conflicts_are_refused_and_both_sides_stay(
        self, branched: Branched, branch: BranchVolume, volume: Volume
    ) -> None:
        write(branch, b"lines", b"ours")
        write(volume, b"lines", b"theirs, and longer")
        remove(branch, b"gone")
        write(volume, b"gone", b"changed by them")
        write(branch, b"both", b"made by us")
        write(volume, b"both", b"made by them, too")
        write(branch, b"d/x", b"no conflict, and not merged either")
        main, ours = but_atimes(volume), shown(branch)
        result = branched.merges.merge("b")
        assert sorted(each.path for each in result.conflicts) == ["/both", "/gone", "/lines"] and not result.changes
        assert but_atimes(volume) == main and shown(branch) == ours

    def test_a_reader_keeps_the_file_that_is_replaced(self, branched: Branched, volume: Volume) -> None:
        if not volume.features.random_writes:
            pytest.skip("the volume does not declare random_writes")
        node = volume.lookup(*place(volume, b"lines")).node
        volume.open(node, os.O_RDONLY)
        write(branched.branch, b"lines", b"merged")
        assert branched.merges.merge("b").conflicts == []
        assert volume.read(node, 0, 1 << 20) == b"".join(LINES)
        volume.release(node, os.O_RDONLY)
        assert content(volume, at(volume, b"lines")) == b"merged"


# -- machine -----------------------------------------------------------------------------------------------------
#
# Random operations on a volume, and from some moment on in a branch over it.


class BranchMachine(VolumeMachine):
    """Subclass it and override `make_volume`; see the package's docstring."""

    volume: Any
    below: Volume | None = None
    """The volume under the branch, once there is one."""

    _copy: dict[bytes, Copied]
    _branched: Branched

    @initialize(data=st.data(), files=st.lists(contents, max_size=3), branches=st.booleans())
    def begin(self, data: st.DataObject, files: list[bytes], branches: bool) -> None:
        """Make files, and in half of the examples the branch over them. By chance alone it comes late: in 40 examples
        a file below was written to once."""
        for each in files:
            self.create(data, 0o644)
            self.write(data, 0, each)
        if branches:
            self.branch()

    @precondition(lambda self: self.below is None and len(self.tree.nodes()) > 4)
    @rule()
    def branch(self) -> None:
        """Let a branch take the place of the volume."""
        for node in self.handles:
            self.release(node)
        self.volume.forget([node.number for node in self.held])
        self._copy = but_atimes(self.volume)
        self._branched = Branched(tempfile.mkdtemp(), {ROOT: self.volume})
        self.below = self.volume
        self.start_over(self._opened())
        self.features = self.volume.features

    def _opened(self) -> BranchVolume:
        return self._branched.branch

    @precondition(lambda self: self.below is not None)
    @rule()
    def reopen_branch(self) -> None:
        """Close the branch, and open it again."""
        self._close()
        self._branched.open()
        self.start_over(self._opened())

    def _close(self) -> None:
        self.volume.close()  # raises what it can't store, where `Branches` logs it
        self._branched.close()

    @precondition(lambda self: self.below is not None)
    @rule(data=st.data(), offset=offsets, content=contents)
    def open_and_write(self, data: st.DataObject, offset: int, content: bytes) -> None:
        """Write to a file that mostly nobody has open since the branch began: its first change copies it up."""
        self.open(data)
        if self.handles:
            self.write(data, offset, content)

    @precondition(lambda self: self.below is not None)
    @rule()
    def nothing_changes_below(self) -> None:
        """Compare the volume under the branch with the copy that was made before: all but access times."""
        assert self.below is not None
        assert but_atimes(self.below) == self._copy

    def teardown(self) -> None:
        if self.below is not None:
            try:
                self.nothing_changes_below()
            finally:
                self._close()
                shutil.rmtree(self._branched.directory)
                self.volume = self.below
        super().teardown()
