"""The published cases of branches, over every kind of route."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fusebackend.backends.directory.volume import DirectoryVolume
from fusebackend.backends.memory import InMemoryVolume
from fusebackend.backends.sqlite.backend import SqliteVolume
from fusebackend.protocol import Volume
from fusebackend.testing.branches import BranchCases


class TestMemory(BranchCases):
    @pytest.fixture
    def volume(self) -> Iterator[Volume]:
        yield (made := InMemoryVolume())
        made.close()


class TestSqlite(BranchCases):
    @pytest.fixture
    def volume(self, tmp_path: Path) -> Iterator[Volume]:
        yield (made := SqliteVolume(tmp_path / "volume.db"))
        made.close()


class TestDirectory(BranchCases):
    """Live."""

    @pytest.fixture
    def volume(self, tmp_path: Path) -> Iterator[Volume]:
        (tmp_path / "files").mkdir()
        yield (made := DirectoryVolume(tmp_path / "files"))
        made.close()


class TestStore(BranchCases):
    """Live, over files that are stored whole, without links, modes or extended attributes."""

    @pytest.fixture
    def volume(self) -> Iterator[Volume]:
        memory = pytest.importorskip("langgraph.store.memory")
        from fusebackend.backends import StoreBackend
        from fusebackend.remote.volume import volume_of

        yield (made := volume_of(StoreBackend(memory.InMemoryStore())))
        made.close()
