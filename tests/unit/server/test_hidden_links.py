"""Files with several names in a route that hides some: whoever removes one of the names knows that there are others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live import live
from nodes import node_at

from fusebackend import Client
from fusebackend.backends import FilesystemBackend, InMemoryBackend, SqliteBackend
from fusebackend.protocol import Volume
from fusebackend.rules.rule import RouteRules

KINDS: dict[str, Any] = {
    "dir": lambda at: FilesystemBackend(at, virtual_mode=True),
    "sqlite": lambda at: SqliteBackend(at / "v.db"),
}

BRANCH = "/.fusebackend/branches/b"


@contextlib.contextmanager
def served(kind: str, at: Path) -> Iterator[tuple[Client, Volume]]:
    (at / "files").mkdir(parents=True)
    backend = KINDS[kind](at / "files")
    with (
        live(at, InMemoryBackend(), {"/r": backend}, route_rules={"/r": RouteRules(hide=["**/hidden"])}) as server,
        server.connect() as files,
    ):
        files.write("/r/d/one", "text\n")
        volume: Volume = backend.volume
        volume.link(node_at(volume, "d/one"), node_at(volume, "d"), b"two")
        yield files, volume


@pytest.mark.parametrize("kind", KINDS)
def test_one_is_told_of_and_an_undo_makes_one_file_again(tmp_path: Path, kind: str) -> None:
    with served(kind, tmp_path) as (files, volume):
        assert files.stat("/r/d/one").nlink == 1
        for undone in (["/r/d/one", "/r/d/two"], ["/r/d"]):
            assert not [error for path in undone if (error := files.delete(path).error)]
            assert not [conflict for _ in undone for conflict in files.undo().conflicts]
            assert node_at(volume, "d/one") == node_at(volume, "d/two")


@pytest.mark.parametrize("kind", KINDS)
def test_a_branch_keeps_the_other_name(tmp_path: Path, kind: str) -> None:
    with served(kind, tmp_path) as (files, _):
        files.create_branch("b")
        assert files.delete(f"{BRANCH}/r/d/one").error is None
        assert str(files.read(f"{BRANCH}/r/d/two")).endswith("text")
        assert files.delete(f"{BRANCH}/r/d").error is None


def test_a_restore_makes_one_file_again(tmp_path: Path) -> None:
    with served("sqlite", tmp_path) as (files, volume):
        files.create_snapshot("s")
        files.delete("/r/d")
        assert not files.restore(["/r/d"], "s").conflicts
        assert node_at(volume, "d/one") == node_at(volume, "d/two")
