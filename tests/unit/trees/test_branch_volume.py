"""A branch over every kind of native volume, against the model that the volume itself is tested with."""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import ClassVar

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from profiles import examples

from fusebackend.backends.directory.volume import DirectoryVolume
from fusebackend.backends.memory import InMemoryVolume
from fusebackend.backends.sqlite import backend as sqlite
from fusebackend.backends.sqlite import flusher, stored_tree
from fusebackend.backends.sqlite.backend import SqliteVolume
from fusebackend.protocol import Volume
from fusebackend.testing.branches import BranchMachine
from fusebackend.trees import branch_volume

SETTINGS = hypothesis.settings(max_examples=examples(40), stateful_step_count=60, deadline=None, database=None)


class SmallCaches(BranchMachine):
    """With bounds so small that flushes and evictions happen in the middle of everything."""

    def make_volume(self) -> Volume:
        self.bounds = pytest.MonkeyPatch()
        self.bounds.setattr(stored_tree, "CACHE_INODES", 8)
        self.bounds.setattr(branch_volume, "CACHE_INODES", 8)
        self.bounds.setattr(stored_tree, "CACHE_BYTES", 2000)
        self.bounds.setattr(flusher, "FLUSH_AFTER_S", 3600)
        self.directory = tempfile.mkdtemp()
        return self.make_lower()

    def make_lower(self) -> Volume:
        return InMemoryVolume()

    @initialize(items=st.sampled_from((3, 15, 4000)))
    def bound_buffer(self, items: int) -> None:
        self.bounds.setattr(sqlite, "MAX_DIRTY_ITEMS", items)

    @rule()
    def write_back(self) -> None:
        self.volume.sync()

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self.bounds.undo()
            shutil.rmtree(os.fsencode(self.directory))


class MemoryBranchMachine(SmallCaches):
    """Over `memory:`."""


class SqliteBranchMachine(SmallCaches):
    """Over `sqlite:`."""

    def make_lower(self) -> Volume:
        return SqliteVolume(f"{self.directory}/volume.db")


class DirectoryBranchMachine(SmallCaches):
    """Over `dir:`, live."""

    owners: ClassVar = ((0, 0), (1000, 1000)) if os.geteuid() == 0 else ((os.geteuid(), os.getegid()),)

    def make_lower(self) -> Volume:
        os.mkdir(f"{self.directory}/root")
        return DirectoryVolume(f"{self.directory}/root")


for machine in (MemoryBranchMachine, SqliteBranchMachine, DirectoryBranchMachine):
    case = machine.TestCase
    case.settings = SETTINGS
    globals()[f"Test{machine.__name__}"] = case
del machine, case
