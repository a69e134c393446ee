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

cases.py      contents, what is below, life, merges
machine.py    random operations
branched.py   a branch without a mount
"""

from __future__ import annotations

from fusebackend.testing.branches.branched import Branched
from fusebackend.testing.branches.cases import BranchCases
from fusebackend.testing.branches.machine import BranchMachine, branch_over

__all__ = ["BranchCases", "BranchMachine", "Branched", "branch_over"]
