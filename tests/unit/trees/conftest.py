"""Fixtures for comparisons of two directories."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest


@pytest.fixture
def sides(tmp_path: Path) -> tuple[Path, Path]:
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    after.mkdir()
    return before, after


@pytest.fixture
def without_holes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system that does not know SEEK_DATA and SEEK_HOLE."""
    seek = os.lseek

    def unknowing(fd: int, offset: int, whence: int) -> int:
        if whence in (os.SEEK_DATA, os.SEEK_HOLE):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return seek(fd, offset, whence)

    monkeypatch.setattr(os, "lseek", unknowing)
