"""Random operations against a dict: two hypothesis state machines for authors of volumes.

    from fusebackend.testing.model import VolumeMachine

    class MyMachine(VolumeMachine):
        def make_volume(self):
            return MyVolume()                     # new and empty

    TestMine = MyMachine.TestCase
    TestMine.settings = hypothesis.settings(max_examples=50, stateful_step_count=40, deadline=None)

`VolumeMachine` drives a `Volume` through its methods; with `reopen_volume` it also closes and opens it again.
`DirectoryMachine` drives a directory with system calls: give it a mounted one in `make_directory`, and a plain one
first, which proves the machine. After every step all names, link counts, sizes and modes are compared with the model
(`tree.py`), and after every write the whole of the file. Operations that a volume's `features` exclude are skipped.

volume.py directory.py     the two machines
machine.py                 their rules, and the invariants after each
tree.py values.py          the model; names, offsets and contents to try
"""

from __future__ import annotations

from fusebackend.testing.model.directory import DirectoryMachine
from fusebackend.testing.model.tree import Node, Tree
from fusebackend.testing.model.volume import VolumeMachine

__all__ = ["DirectoryMachine", "Node", "Tree", "VolumeMachine"]
