"""`durable.py`, and that everything which must outlive a loss of power is written by it: file, name, directory."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from fusebackend.base.durable import replace_file
from fusebackend.cli.main import main
from fusebackend.trees.checkouts import Checkouts, Held
from fusebackend.trees.merge.run import Journal


def replaced(path: Path) -> None:
    path.write_text("old")
    replace_file(str(path), b"new")


def checkouts(path: Path) -> None:
    branches: Any = SimpleNamespace(journal=lambda name: str(path.parent / name))
    Checkouts(branches)._write({"/d": Held("branch", 1, 2, 3)})


def hook(path: Path) -> None:
    done = CliRunner().invoke(main, ["hook", "claude-code", "--install"], env={"CLAUDE_CONFIG_DIR": str(path.parent)})
    assert done.exit_code == 0, done.output


def journal(path: Path) -> None:
    Journal(str(path)).begin({"line": 1})


@pytest.mark.parametrize(
    ("write", "name"),
    [(replaced, "file"), (checkouts, "directories.json"), (hook, "settings.json"), (journal, "x.merge")],
)
def test_a_file_its_name_and_its_directory_are_durable_in_this_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], None], name: str
) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def synced(fd: int) -> None:
        place = os.readlink(f"/proc/self/fd/{fd}")
        done.append("sync of the directory" if place == str(tmp_path) else "sync of the file")
        assert place == str(tmp_path) or os.fstat(fd).st_size > 0
        fsync(fd)

    def named(new: str, path: str) -> None:
        done.append("name")
        replace(new, path)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", named)
    write(tmp_path / name)
    assert done == ["sync of the file", "name", "sync of the directory"]
    assert os.listdir(tmp_path) == [name]


def test_the_mode_is_exact_and_leftovers_are_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "file"
    (tmp_path / "file.new").write_text("left by a killed writer, and longer")
    replace_file(str(path), b"new", mode=0o666)
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", 0o666)
    assert os.listdir(tmp_path) == ["file"]
