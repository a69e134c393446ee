"""Branches over a volume: a hypothesis state machine, for authors of a `Volume`.

    from fusebackend.testing.branches import BranchMachine

    class MyMachine(BranchMachine):
        def make_volume(self):
            return MyVolume()                     # new and empty

    TestMyMachine = MyMachine.TestCase

Random operations make files in the volume, then a branch over it takes its place, and the operations go on there. The
model is the same, so the branch must look as the volume did and behave as a volume of its own; the volume must not
change any more. A `SnapshotVolume` is branched off a snapshot, another one live.

machine.py    the machine
"""

from __future__ import annotations

from fusebackend.testing.branches.machine import BranchMachine, branch_over

__all__ = ["BranchMachine", "branch_over"]
