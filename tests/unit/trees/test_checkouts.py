"""Branches in plain directories, by `fusebackend serve`, which mounts nothing."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import served

import fusebackend
from fusebackend.backends import InMemoryBackend
from fusebackend.control.client.client import Client
from fusebackend.trees.checkouts import Checkouts


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    home = tmp_path_factory.mktemp("x")
    with pytest.MonkeyPatch.context() as patch:
        served.homes(patch, home)
        (home / "live").mkdir()
        config = home / "agent.toml"
        config.write_text('default = "sqlite:a.db"\n[routes]\n"/live/" = "dir:live"\n"/mem/" = "memory:"\n')
        with (
            served.served("--config", str(config), place=str(config)),
            fusebackend.connect(config) as client,
        ):
            client.write("/kept.txt", "kept")
            client.write("/live/file.txt", "live")
            yield client


@pytest.fixture
def name(files: Client, request: pytest.FixtureRequest) -> Iterator[str]:
    """Name a branch for a test, and delete it at its end."""
    yield request.node.name
    there = [each.name for each in files.branches() if each.name.startswith(request.node.name)]
    if there:
        files.delete_branches(*there)


def test_the_copy_has_everything(files: Client, name: str, tmp_path: Path) -> None:
    made = files.create_branch(name, directory=tmp_path / "d")
    assert made.directory == str(tmp_path / "d")
    assert (tmp_path / "d/kept.txt").read_text() == "kept"
    assert (tmp_path / "d/live/file.txt").read_text() == "live"
    assert (tmp_path / "d/mem").is_dir()
    assert not [each for each in os.listdir(tmp_path / "d") if each.startswith(".")]
    assert [each.directory for each in files.branches() if each.name == name] == [made.directory]


def test_everything_that_was_changed_is_taken_in(files: Client, name: str, tmp_path: Path) -> None:
    there = tmp_path / "d"
    files.create_branch(name, directory=there)
    (there / "kept.txt").unlink()
    (there / "live/file.txt").write_text("changed")
    (there / "made").mkdir()
    (there / "made/run").write_text("#!/bin/sh\n")
    (there / "made/run").chmod(0o755)
    os.link(there / "made/run", there / "made/again")
    os.symlink("nowhere", there / "made/link")
    os.setxattr(there / "made/run", "user.who", b"me")
    files.take_in_branch(name)
    tree = f"/.fusebackend/branches/{name}"
    assert files.stat(f"{tree}/kept.txt").code == "file_not_found"
    assert str(files.read(f"{tree}/live/file.txt")).endswith("changed")
    run = files.stat(f"{tree}/made/run")
    assert (run.mode, run.nlink) == (0o755, 2)
    assert files.stat(f"{tree}/made/link").target == "nowhere"
    assert str(files.read("/live/file.txt")).endswith("live")
    merged = files.merge_branch(name)
    assert (files.stat("/made/again").mode, files.stat("/kept.txt").code) == (0o755, "file_not_found")
    files.undo(merged.call or "")
    assert str(files.read("/kept.txt")).endswith("kept")


def test_a_directory_that_held_a_branch_gets_what_differs(files: Client, name: str, tmp_path: Path) -> None:
    there = tmp_path / "d"
    files.create_branch(name, directory=there)
    (there / "mine").write_text("of the deleted branch")
    files.delete_branches(name)
    assert (there / "mine").exists()
    before = os.stat(there / "kept.txt")
    files.create_branch(f"{name}-2", directory=there)
    after = os.stat(there / "kept.txt")
    assert (before.st_ino, before.st_ctime_ns) == (after.st_ino, after.st_ctime_ns)
    assert not (there / "mine").exists()


def test_a_branch_that_there_is_can_be_put_into_a_directory(files: Client, name: str, tmp_path: Path) -> None:
    files.create_branch(name)
    files.write(f"/.fusebackend/branches/{name}/own", "own")
    files.create_branch(name, directory=tmp_path / "d")
    assert (tmp_path / "d/own").read_text() == "own"
    with pytest.raises(OSError, match=r"is in '.*/d' already"):
        files.create_branch(name, directory=tmp_path / "other")
    os.rename(tmp_path / "d", tmp_path / "moved")
    with pytest.raises(OSError, match="is gone: put it back, or delete the branch"):
        files.take_in_branch(name)
    files.create_branch(name, directory=tmp_path / "other")
    assert (tmp_path / "other/own").read_text() == "own"


class TestBothSides:
    def test_a_change_of_the_branch_alone_goes_to_the_directory(self, files: Client, name: str, tmp_path: Path) -> None:
        files.create_branch(name, directory=tmp_path / "d")
        files.edit(f"/.fusebackend/branches/{name}/kept.txt", "kept", "of the branch")
        with pytest.raises(OSError, match=r"'/kept\.txt' was changed in the branch's own tree"):
            files.merge_branch(name)
        files.create_branch(name, directory=tmp_path / "d")
        assert (tmp_path / "d/kept.txt").read_text() == "of the branch"
        files.take_in_branch(name)

    def test_changes_of_both_are_kept_and_named(self, files: Client, name: str, tmp_path: Path) -> None:
        files.create_branch(name, directory=tmp_path / "d")
        files.edit(f"/.fusebackend/branches/{name}/kept.txt", "kept", "of the branch")
        (tmp_path / "d/kept.txt").write_text("of the directory")
        for _ in range(2):
            with pytest.raises(OSError, match=r"'/kept\.txt' was changed in '.*/d', and there are changes in the"):
                files.create_branch(name, directory=tmp_path / "d")
        assert (tmp_path / "d/kept.txt").read_text() == "of the directory"
        assert str(files.read(f"/.fusebackend/branches/{name}/kept.txt")).endswith("of the branch")


class TestRefused:
    def test_what_is_not_of_a_branch_is_never_touched(self, files: Client, name: str, tmp_path: Path) -> None:
        (tmp_path / "full").mkdir()
        (tmp_path / "full/mine").write_text("mine")
        (tmp_path / "file").write_text("mine")
        wrong = (
            ("full", "is not empty"),
            ("file", "is not a directory"),
            ("/proc/none", "'/proc/none' can't be made: No such file"),
        )
        for place, says in wrong:
            with pytest.raises(OSError, match=says):
                files.create_branch(name, directory=tmp_path / place)
        assert (tmp_path / "full/mine").read_text() == "mine" == (tmp_path / "file").read_text()
        assert name not in [each.name for each in files.branches()]

    def test_another_directory_in_the_place_of_one(self, files: Client, name: str, tmp_path: Path) -> None:
        files.create_branch(name, directory=tmp_path / "d")
        files.delete_branches(name)
        os.rename(tmp_path / "d", tmp_path / "moved")
        (tmp_path / "d").mkdir()
        (tmp_path / "d/mine").write_text("mine")
        with pytest.raises(OSError, match="is not empty"):
            files.create_branch(name, directory=tmp_path / "d")
        assert (tmp_path / "d/mine").exists()

    def test_the_directory_of_a_route(self, files: Client, name: str) -> None:
        live = next(each for each in files.status()["routes"] if each["prefix"] == "/live/")["url"].removeprefix("dir:")
        for place in (live, f"{live}/below", os.path.dirname(live)):
            with pytest.raises(OSError, match="lie in each other"):
                files.create_branch(name, directory=place)

    def test_two_branches_in_one(self, files: Client, name: str, tmp_path: Path) -> None:
        files.create_branch(name, directory=tmp_path / "d")
        with pytest.raises(OSError, match=f"holds branch '{name}'"):
            files.create_branch(f"{name}-2", directory=tmp_path / "d")


def test_by_the_command_line(files: Client, name: str, tmp_path: Path) -> None:
    by, there = ("--mount", files.mountpoint), tmp_path / "d"
    assert served.run("branch", "create", *by, name, "--in", str(there)).splitlines()[0] == str(there)
    (there / "cli.txt").write_text("by hand\n")
    assert served.run("diff", *by, "--name-status", f"main..{name}") == "A\tcli.txt\n"
    (found,) = [each for each in json.loads(served.run("branch", "list", *by, "--json")) if each["name"] == name]
    assert found["path"] == found["directory"] == str(there)
    said = served.run("exec", *by, "--branch", name, "--", "true", status=1)
    assert f"run the command in '{there}', where branch '{name}' is" in said
    assert "made /cli.txt" in served.run("branch", "merge", *by, name)
    assert stat.S_ISDIR(os.stat(there).st_mode)
    assert served.run("read", *by, "/cli.txt") == "by hand\n"


@pytest.mark.parametrize("is_there", [False, True])
def test_a_copy_that_can_not_be_completed_is_removed(is_there: bool, tmp_path: Path) -> None:
    with InMemoryBackend() as backend:
        backend.upload_files([("/a", b"a"), ("/d/e/b", b"b"), ("/z", b"z" * 9)])
        volume, read = backend.volume, backend.volume.read

        def fail(node: int, offset: int, size: int) -> bytes:
            if volume.getattr(node).size == 9:
                raise OSError(errno.EIO, "broken")
            return read(node, offset, size)

        volume.read = fail  # type: ignore[method-assign]
        branches: Any = SimpleNamespace(volume=lambda name: volume, journal=lambda name: str(tmp_path / "own" / name))
        (tmp_path / "own").mkdir()
        if is_there:
            (tmp_path / "d").mkdir()
        checkouts = Checkouts(branches)
        for _ in range(2):
            with pytest.raises(OSError, match="broken"):
                checkouts.put("b", str(tmp_path / "d"))
            assert sorted(tmp_path.rglob("*")) == [
                *([tmp_path / "d"] if is_there else []), tmp_path / "own", tmp_path / "own/directories.json"
            ]  # fmt: skip
            assert json.loads((tmp_path / "own/directories.json").read_text()) == {}
        volume.read = read  # type: ignore[method-assign]
        checkouts.put("b", str(tmp_path / "d"))
        assert checkouts.directory("b") == str(tmp_path / "d") and (tmp_path / "d/d/e/b").read_bytes() == b"b"
