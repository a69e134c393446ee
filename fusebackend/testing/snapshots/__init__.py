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

Each compares a snapshot with a copy of the volume that was made by walking it at that moment (`copy.py`): names, node
numbers, all attributes, extended attributes, link targets, bytes and holes.

cases.py      contents of snapshots, errors, deletion
machine.py    random operations, with snapshots taken and deleted between them
scene.py      files of every kind, and what wrecks them
copy.py       the copy to compare with
"""

from __future__ import annotations

from fusebackend.testing.snapshots.cases import SnapshotCases
from fusebackend.testing.snapshots.copy import Copied, copy_of
from fusebackend.testing.snapshots.machine import SnapshotMachine

__all__ = ["Copied", "SnapshotCases", "SnapshotMachine", "copy_of"]
