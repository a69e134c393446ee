"""A merge, an undo or a move that can't end is refused before its first change, on routes that change file by file."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from live import live
from seed_backends import DuckBackend

from fusebackend import Client
from fusebackend.backends import CompositeBackend, FilesystemBackend, InMemoryBackend, SqliteBackend
from fusebackend.backends.directory import nodes
from fusebackend.rules.rule import RouteRules
from fusebackend.server.rules import with_route_rules
from fusebackend.testing.each import each


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """The directory of the default route."""
    root = tmp_path / "files"
    for name in ("tree/a", "tree/d/b", "tree/z"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    return root


@pytest.fixture
def files(tmp_path: Path, disk: Path) -> Iterator[Client]:
    """Without names that end with `.env` on the default route."""
    ruled = with_route_rules(CompositeBackend(FilesystemBackend(disk)), {"/": RouteRules(hide=("**/*.env",))})
    with live(tmp_path, ruled.default) as server, server.connect() as client:
        yield client


def found(disk: Path) -> dict[str, str | None]:
    return {str(path): path.read_text() if path.is_file() else None for path in sorted(disk.rglob("*"))}


@contextlib.contextmanager
def immutable(path: Path) -> Iterator[None]:
    done = subprocess.run(["chattr", "+i", path], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this file system has no flags, or the user is not root: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", path], check=True)


@contextlib.contextmanager
def hidden(path: Path) -> Iterator[None]:
    path.with_suffix(".env").touch()
    try:
        yield
    finally:
        path.with_suffix(".env").unlink()


KEPT: dict[str, Callable[[Path], contextlib.AbstractContextManager[None]]] = {"hidden": hidden, "immutable": immutable}
"""How something stays in a directory."""


def calls(files: Client) -> list[str]:
    return [call.title for call in files.log()]


def test_a_merge_that_may_not_remove_one_file_removes_none(files: Client, disk: Path) -> None:
    files.create_branch("b")
    for path in ("tree", "new"):
        assert files.delete(f"/.fusebackend/branches/b/{path}").error is None or path == "new"
    assert files.write("/.fusebackend/branches/b/aaa", "made first").error is None
    for case in each(KEPT):
        with case as keeping, keeping(disk / "tree/d/b"):
            before = found(disk)
            with pytest.raises(PermissionError, match="'/tree' can't be merged: "):
                files.merge_branch("b")
            assert found(disk) == before and calls(files) == []
    assert files.merge_branch("b").conflicts == []
    assert list(found(disk)) == [str(disk / "aaa")]


def test_an_undo_that_may_not_remove_one_file_is_a_conflict(files: Client, disk: Path) -> None:
    assert files.upload_files([("/new/x", b"x"), ("/new/d/y", b"y")])[0].error is None
    for case in each(KEPT):
        with case as keeping, keeping(disk / "new/d/y"):
            before, titles = found(disk), calls(files)
            for dry_run in (True, False):
                (conflict,) = files.undo(dry_run=dry_run).conflicts
                assert conflict.path == "/new" and conflict.reason.startswith("can't be changed: ")
            assert found(disk) == before and calls(files) == titles
    assert files.undo().conflicts == []
    assert not (disk / "new").exists()


def test_a_merge_that_does_not_fit_into_one_route_changes_no_other(disk: Path, tmp_path: Path) -> None:
    with (
        live(tmp_path, FilesystemBackend(disk), {"/s": SqliteBackend(tmp_path / "v.db", limit_bytes=16384)}) as server,
        server.connect() as client,
    ):
        client.create_branch("b")
        for path, size in (("/aaa", 1), ("/s/large", 20_000)):
            assert client.upload_files([(f"/.fusebackend/branches/b{path}", b"x" * size)])[0].error is None
        before = found(disk)
        with pytest.raises(OSError, match="Disk quota exceeded"):
            client.merge_branch("b")
        assert found(disk) == before and client.ls("/s").entries == []
        assert client.upload_files([("/.fusebackend/branches/b/s/large", b"fits")])[0].error is None
        assert client.merge_branch("b").conflicts == []
        assert (disk / "aaa").exists() and client.read("/s/large").error is None


def test_a_deleted_tree_comes_back_that_is_larger_than_what_a_directory_on_disk_keeps_in_mind(
    files: Client, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert all(not each.error for each in files.upload_files([(f"/tree/n/{n}", b"%d" % n) for n in range(9)]))
    monkeypatch.setattr(nodes, "IDLE_FILES", 2)
    before, titles = found(disk), calls(files)
    with immutable(disk / "tree/d/b"):
        assert "Operation not permitted" in str(files.delete("/tree").error)
    assert found(disk) == before and calls(files) == titles
    assert files.delete("/tree").error is None and not (disk / "tree").exists()
    assert files.undo().conflicts == []
    assert found(disk) == before


class Broken(DuckBackend):
    """A backend that gives no answer to a deletion, and has not made it."""

    def delete(self, path: str) -> Any:
        raise ConnectionError("the line is cut")

    def close(self) -> None:
        pass


def test_a_move_that_was_made_in_part_is_recorded(tmp_path: Path) -> None:
    with (
        live(tmp_path, InMemoryBackend(), {"/far": Broken()}) as server,
        server.connect() as client,
    ):
        assert client.write("/far/a", "a").error is None
        assert "It was copied, but the source could not be removed" in str(client.move("/far/a", "/new/a").error)
        assert client.read("/new/a").error is None and client.read("/far/a").error is None
        assert [call.title for call in client.log(paths=["/new/a"])] == ["move /far/a /new/a"]
        assert client.undo().conflicts == []
        assert [entry["path"] for entry in client.ls("/").entries] == ["/far/"]
