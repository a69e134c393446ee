"""Paths from a current directory that others have removed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fusebackend.base.here import absolute, from_here
from fusebackend.control import rendezvous
from fusebackend.linux import mount_table
from fusebackend.urls import parse


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()


def test_a_relative_path_begins_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert from_here("a/../b") == f"{tmp_path}/a/../b"


def test_an_absolute_path_needs_no_current_directory(nowhere: None, tmp_path: Path) -> None:
    path = os.path.realpath(tmp_path)
    assert mount_table.resolve(path) == path
    assert parse(f"dir:{path}").path == path
    assert parse("dir:sub", base=path).path == f"{path}/sub"


def test_a_relative_path_says_what_it_lacks(nowhere: None) -> None:
    for find in (
        mount_table.resolve,
        lambda path: parse(f"dir:{path}"),
        from_here,
        absolute,
        rendezvous.find_served,
        rendezvous.split,
    ):
        with pytest.raises(FileNotFoundError, match="'sub' has no start, for the current directory was removed; go to"):
            find("sub")
