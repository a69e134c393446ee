"""Random operations against a dict: a hypothesis state machine for authors of volumes.

    from fusebackend.testing.model import VolumeMachine

    class MyMachine(VolumeMachine):
        def make_volume(self):
            return MyVolume()                     # new and empty

    TestMine = MyMachine.TestCase
    TestMine.settings = hypothesis.settings(max_examples=50, stateful_step_count=40, deadline=None)

`VolumeMachine` drives a `Volume` through its methods; with `reopen_volume` it also closes and opens it again. After
every step all names, link counts, sizes and modes are compared with the model (`tree.py`), and after every write the
whole of the file. Operations that a volume's `features` exclude are skipped.

Over a `DirectoryVolume` (`backends/directory`) of a mounted directory its operations are system calls there; a plain
directory first proves that.

machine.py          the rules, and the invariants after each
tree.py values.py   the model; names, offsets and contents to try
"""

from __future__ import annotations

from fusebackend.testing.model.machine import VolumeMachine
from fusebackend.testing.model.tree import Node, Tree

__all__ = ["Node", "Tree", "VolumeMachine"]
