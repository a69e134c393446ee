"""`Branched`: volumes with branches, as a mount has them, and without a mount."""

from __future__ import annotations

import os
from collections.abc import Mapping

from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.protocol import Volume
from fusebackend.testing.by_path import Shown, shown
from fusebackend.trees.branch_volume import BranchVolume
from fusebackend.trees.branches import Branches
from fusebackend.trees.merge.merges import Merges
from fusebackend.trees.merge.run import MainTree
from fusebackend.trees.snapshots import Snapshots


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
