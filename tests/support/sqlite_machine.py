"""`SqliteMachine`: random operations on an SQLite volume, for the suites of `fusebackend.testing`."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from fusebackend.backends.sqlite import backend as sqlite
from fusebackend.backends.sqlite import flusher
from fusebackend.backends.sqlite import stored_tree as storedtree
from fusebackend.backends.sqlite.backend import SqliteVolume
from fusebackend.backends.sqlite.check import check
from fusebackend.backends.sqlite.index import Indexer
from fusebackend.protocol import ROOT_NODE, AttrChanges, Volume
from fusebackend.testing.model import XATTRS, VolumeMachine, contents, offsets

Change: TypeAlias = Callable[[Any, st.DataObject], object]

CHANGES: tuple[Change, ...] = (
    lambda machine, data: machine.create(data, 0o644),
    lambda machine, data: machine.handles and machine.write(data, data.draw(offsets), data.draw(contents)),
    lambda machine, data: machine.handles and machine.close(data),
    lambda machine, data: machine.truncate(data, data.draw(offsets)),
    lambda machine, data: machine.set_xattr(data, XATTRS[0], b"value"),
    lambda machine, data: machine.unlink(data),
)
"""Rules of the machine."""


class SqliteMachine(VolumeMachine):
    """With bounds so small that flushes and evictions happen in the middle of everything."""

    keeps_numbers = True

    def make_volume(self) -> Volume:
        self.bounds = pytest.MonkeyPatch()
        self.bounds.setattr(storedtree, "CACHE_INODES", 8)
        self.bounds.setattr(storedtree, "CACHE_BYTES", 2000)
        self.bounds.setattr(flusher, "FLUSH_AFTER_S", 3600)  # only where the machine can do it again
        self.directory = tempfile.mkdtemp()
        self.path = f"{self.directory}/volume.db"
        return self.reopen_volume()

    def reopen_volume(self) -> SqliteVolume:
        self.opened = SqliteVolume(self.path)
        mode = stat.S_IMODE(self.opened.getattr(ROOT_NODE).mode)
        self.opened.setattr(ROOT_NODE, AttrChanges(mode=mode))  # a change, with the sync of which the log begins
        self.opened.sync()
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

    @rule(data=st.data(), changes=st.lists(st.sampled_from(CHANGES), min_size=1, max_size=6))
    def crash(self, data: st.DataObject, changes: list[Change]) -> None:
        """Go on with the files as they are after some changes and an `fsync` of each: with what only the sync log has.

        Without them most crashes would follow a flush, and no record would be needed.
        """
        for change in changes:
            change(self, data)
            self.volume.fsync(ROOT_NODE)
        place = tempfile.mkdtemp(dir=self.directory)
        for suffix in ("", "-wal", "-log"):
            if os.path.exists(self.path + suffix):
                shutil.copyfile(self.path + suffix, f"{place}/volume.db{suffix}")
        self.path = f"{place}/volume.db"
        self.reopen(release=False)
        assert check(self.path) == []
        self.read_everything()

    def teardown(self) -> None:
        try:
            super().teardown()
            assert check(self.path) == []
        finally:
            self.bounds.undo()
            shutil.rmtree(self.directory)
