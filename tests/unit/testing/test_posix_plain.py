"""The POSIX cases on plain directories, which proves the cases before they accuse a mount."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fusebackend.testing.posix import Limits, PosixCases


class TestDisk(PosixCases):
    """The file system of temporary files. The limits are those of ext4, the narrowest of the usual ones."""

    limits = Limits(huge_files=False, xattr_value_bytes=3000, direct_any_size=False, many_entries=3000)

    @pytest.fixture(scope="class")
    @classmethod
    def root(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return tmp_path_factory.mktemp("plain")


@pytest.mark.night
class TestSharedMemory(PosixCases):
    """tmpfs has the sizes that ext4 lacks."""

    limits = Limits(direct_any_size=False)

    @pytest.fixture(scope="class")
    @classmethod
    def root(cls) -> Iterator[Path]:
        home = Path("/dev/shm")
        if not home.is_dir():
            pytest.skip("no /dev/shm here")
        with tempfile.TemporaryDirectory(dir=home) as directory:
            yield Path(directory)
