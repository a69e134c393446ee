"""`SqliteMachine`: random operations on an SQLite volume, for the suites of `fusebackend.testing`."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from fusebackend.backends.sqlite import backend as sqlite
from fusebackend.backends.sqlite import flusher
from fusebackend.backends.sqlite import stored_tree as storedtree
from fusebackend.backends.sqlite.backend import SqliteVolume
from fusebackend.backends.sqlite.check import check
from fusebackend.backends.sqlite.index import Indexer
from fusebackend.protocol import ROOT_NODE, Volume
from fusebackend.testing.model import VolumeMachine


class SqliteMachine(VolumeMachine):
    """With bounds so small that flushes and evictions happen in the middle of everything."""

    keeps_numbers = True

    def make_volume(self) -> Volume:
        self.bounds = pytest.MonkeyPatch()
        self.bounds.setattr(storedtree, "CACHE_INODES", 8)
        self.bounds.setattr(storedtree, "CACHE_BYTES", 2000)
        self.bounds.setattr(flusher, "FLUSH_AFTER_S", 3600)  # only where the machine can do it again
        self.bounds.setattr(sqlite, "SYNCS_BEFORE_LOG", 1)
        self.directory = tempfile.mkdtemp()
        self.path = f"{self.directory}/volume.db"
        return self.reopen_volume()

    def reopen_volume(self) -> SqliteVolume:
        self.opened = SqliteVolume(self.path)
        return self.opened

    @initialize(items=st.sampled_from((3, 15, 4000)))
    def bound_overlay(self, items: int) -> None:
        self.bounds.setattr(sqlite, "MAX_DIRTY_ITEMS", items)

    @rule(portions=st.integers(1, 9))
    def index(self, portions: int) -> None:
        """Beside the writers, as the thread in the background does it; the check then says whether it is complete."""
        db = sqlite3.connect(self.path, isolation_level=None)
        indexer = Indexer(self.path)
        for _ in range(portions):
            indexer.work(db, quiet_s=0)
        db.close()

    @rule()
    def write_back(self) -> None:
        self.opened.write_back()
        assert check(self.path) == []

    @rule()
    def crash(self) -> None:
        """Go on with the files as they are after an `fsync`: with what only the sync log has."""
        self.volume.fsync(ROOT_NODE)
        place = tempfile.mkdtemp(dir=self.directory)
        for suffix in ("", "-wal", "-log"):
            if os.path.exists(self.path + suffix):
                shutil.copyfile(self.path + suffix, f"{place}/volume.db{suffix}")
        self.path = f"{place}/volume.db"
        self.reopen(release=False)
        assert check(self.path) == []

    def teardown(self) -> None:
        try:
            super().teardown()
            assert check(self.path) == []
        finally:
            self.bounds.undo()
            shutil.rmtree(self.directory)
