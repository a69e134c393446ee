"""`BranchMachine`: random operations on a volume, and from some moment on in a branch over it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.protocol import SnapshotVolume, Volume
from fusebackend.testing.model import VolumeMachine
from fusebackend.testing.model.values import contents, offsets
from fusebackend.testing.snapshots.copy import Copied, but_atimes
from fusebackend.trees.branch_volume import BranchVolume
from fusebackend.trees.composed import Places
from fusebackend.trees.lower_tree import LowerTree

SNAPSHOT = "below"


def branch_over(path: str | os.PathLike[str], volumes: Mapping[AgentPath, Volume], *, time_ns: int = 0) -> BranchVolume:
    """Open a branch over volumes at prefixes, or make it. Those with snapshots are taken as in the snapshot `below`."""
    places = Places(volumes)
    views: dict[int, Volume] = {}
    frozen = set()
    for route, prefix in enumerate(places.prefixes):
        volume = views[route] = volumes[prefix]
        if isinstance(volume, SnapshotVolume):
            if all(taken.name != SNAPSHOT for taken in volume.snapshots()):
                volume.take_snapshot(SNAPSHOT)
            views[route] = volume.snapshot(SNAPSHOT)
            frozen.add(route)
    return BranchVolume(path, LowerTree(places, views, frozen, time_ns))


class BranchMachine(VolumeMachine):
    """Subclass it and override `make_volume`; see the package's docstring."""

    volume: Any
    below: Volume | None = None
    """The volume under the branch, once there is one."""

    _copy: dict[bytes, Copied]
    _directory: str

    @initialize(data=st.data(), files=st.lists(contents, max_size=3), branches=st.booleans())
    def begin(self, data: st.DataObject, files: list[bytes], branches: bool) -> None:
        """Make files, and in half of the examples the branch over them. By chance alone it comes late: in 40 examples
        a file below was written to once."""
        for content in files:
            self.create(data, 0o644)
            self.write(data, 0, content)
        if branches:
            self.branch()

    @precondition(lambda self: self.below is None and len(self.tree.nodes()) > 4)
    @rule()
    def branch(self) -> None:
        """Let a branch take the place of the volume."""
        for node in self.handles:
            self.release(node)
        self.volume.forget([node.number for node in self.held])
        self.below = self.volume
        self._copy = but_atimes(self.below)
        self._directory = tempfile.mkdtemp()
        self.start_over(self._opened())
        self.features = self.volume.features

    def _opened(self) -> BranchVolume:
        assert self.below is not None
        return branch_over(f"{self._directory}/branch.db", {ROOT: self.below})

    @precondition(lambda self: self.below is not None)
    @rule()
    def reopen_branch(self) -> None:
        """Close the branch, and open it again."""
        self.volume.close()
        self.start_over(self._opened())

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
                self.volume.close()
                shutil.rmtree(self._directory)
                self.volume = self.below
        super().teardown()
