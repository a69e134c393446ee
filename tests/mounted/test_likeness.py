"""A mount of a native volume against a plain directory, over a table of thousands of calls by root and by others.

    FUSEBACKEND_LIKENESS_ROWS=0 pytest tests/mounted/test_likeness.py      all rows; else so many of each table

tmpfs is compared with the disk first: they agree, which proves the table before it accuses a mount.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import mounts
import pytest
from profiles import amount

from fusebackend.testing.likeness import LikenessCases

pytestmark = [
    pytest.mark.mounted,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be other users as well"),
]

ROWS = amount("FUSEBACKEND_LIKENESS_ROWS", day=80, night=1_000)


class TestSharedMemory(LikenessCases):
    rows_per_table = ROWS

    @pytest.fixture(scope="class")
    @classmethod
    def root(cls) -> Iterator[Path]:
        home = Path("/dev/shm")
        if not home.is_dir():
            pytest.skip("no /dev/shm here")
        with tempfile.TemporaryDirectory(dir=home) as directory:
            yield Path(directory)


class Mounted(LikenessCases):
    rows_per_table = ROWS
    url: str

    @pytest.fixture(scope="class")
    @classmethod
    def root(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
        tmp = tmp_path_factory.mktemp("mount")
        url = cls.url.format(tmp=tmp)
        with mounts.mounted(tmp / "mnt", url, options=mounts.OTHERS, limit_s=3600) as server:
            yield server.path


class TestSqlite(Mounted):
    url = "sqlite:{tmp}/volume.db"


class TestMemory(Mounted):
    url = "memory:"
