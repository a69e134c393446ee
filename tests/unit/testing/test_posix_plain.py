"""The POSIX cases on plain directories, which proves the cases before they accuse a mount."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trees

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
        yield from trees.in_shared_memory()
