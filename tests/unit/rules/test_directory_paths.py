"""`RuledVolume` keeps the paths of directories as long as the volume says that none has moved, or where each one is."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from nodes import node_at

from fusebackend.backends import FilesystemBackend, InMemoryBackend, SqliteBackend
from fusebackend.protocol import RENAME_EXCHANGE, ROOT_NODE, Caller, Volume
from fusebackend.rules.ruled_volume import RuledVolume
from fusebackend.rules.view import View

ME = Caller(uid=0, gid=0)
RULES = [{"operations": ["read", "write"], "paths": ["/secrets/**"], "mode": "deny"}]


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """What `dir` has its files in."""
    directory = tmp_path / "disk"
    directory.mkdir()
    return directory


@pytest.fixture(params=["memory", "sqlite", "dir"])
def volume(request: pytest.FixtureRequest, tmp_path: Path, disk: Path) -> Iterator[Volume]:
    makers: dict[str, Callable[[], InMemoryBackend | SqliteBackend | FilesystemBackend]] = {
        "memory": InMemoryBackend,
        "sqlite": lambda: SqliteBackend(tmp_path / "volume.db"),
        "dir": lambda: FilesystemBackend(disk),
    }
    with makers[request.param]() as backend:
        volume = backend.volume
        for path in ("secrets/deep", "work/a/b", "other"):
            node = ROOT_NODE
            for name in path.split("/"):
                node = volume.mkdir(node, name.encode(), 0o755, ME).node
            volume.create(node, b"file", 0o644, 0, ME)
        yield volume


@pytest.fixture
def ruled(volume: Volume) -> RuledVolume:
    return RuledVolume(volume, View("v", RULES))


def error(work: Callable[[], object]) -> int | None:
    with pytest.raises(OSError) as caught:
        work()
    return caught.value.errno


def moved(volume: Volume) -> None:
    volume.rename(node_at(volume, "work"), b"a", node_at(volume, "secrets"), b"a")


def exchanged(volume: Volume) -> None:
    volume.rename(node_at(volume, "work"), b"a", node_at(volume, "secrets"), b"deep", RENAME_EXCHANGE)


def exchanged_with_a_file(volume: Volume) -> None:
    volume.create(node_at(volume, "secrets"), b"file", 0o644, 0, ME)
    volume.rename(node_at(volume, "secrets"), b"file", node_at(volume, "work"), b"a", RENAME_EXCHANGE)


def above_moved(volume: Volume) -> None:
    volume.rename(ROOT_NODE, b"work", node_at(volume, "secrets"), b"work")


@pytest.mark.parametrize("change", [moved, exchanged, exchanged_with_a_file, above_moved])
def test_a_directory_that_others_move_is_stale(
    change: Callable[[Volume], None], volume: Volume, ruled: RuledVolume
) -> None:
    deep = node_at(ruled, "work/a/b")
    assert ruled.readdir(deep, b"", 10)[0][0] == b"file"
    change(volume)
    assert error(lambda: ruled.lookup(deep, b"file")) == errno.ESTALE
    assert error(lambda: ruled.readdir(deep, b"", 10)) == errno.ESTALE
    assert error(lambda: ruled.create(deep, b"new", 0o644, 0, ME)) == errno.ESTALE


def test_a_directory_is_decided_by_its_new_place_when_it_is_found_there(volume: Volume, ruled: RuledVolume) -> None:
    deep = node_at(ruled, "work/a/b")
    ruled.lookup(deep, b"file")
    moved(volume)
    assert node_at(ruled, "secrets/a/b") == deep
    assert error(lambda: ruled.readdir(deep, b"", 10)) == errno.EACCES
    volume.rename(node_at(volume, "secrets"), b"a", node_at(volume, "work"), b"a")
    assert node_at(ruled, "work/a/b") == deep
    assert ruled.readdir(deep, b"", 10)[0][0] == b"file"


def test_a_directory_that_is_removed_and_made_again(volume: Volume, ruled: RuledVolume) -> None:
    other = node_at(ruled, "other")
    ruled.lookup(other, b"file")
    volume.unlink(other, b"file")
    volume.rmdir(ROOT_NODE, b"other")
    volume.mkdir(ROOT_NODE, b"other", 0o755, ME)
    assert error(lambda: ruled.lookup(other, b"file")) in (errno.ESTALE, errno.ENOENT)


def test_its_own_rename_moves_the_paths_below(ruled: RuledVolume) -> None:
    deep = node_at(ruled, "work/a/b")
    ruled.lookup(deep, b"file")
    ruled.rename(node_at(ruled, "work"), b"a", node_at(ruled, "other"), b"a")
    assert ruled.lookup(deep, b"file").size == 0
    ruled.mkdir(deep, b"new", 0o755, ME)
    assert node_at(ruled, "other/a/b/new")


@pytest.fixture
def asked(volume: Volume, ruled: RuledVolume, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The names that are looked up in the volume."""
    asked: list[bytes] = []
    lookup = volume.lookup
    monkeypatch.setattr(volume, "lookup", lambda parent, name: asked.append(name) or lookup(parent, name))
    return asked


def test_a_directory_that_goes_takes_no_other_path_with_it(ruled: RuledVolume, asked: list[bytes]) -> None:
    deep, b = node_at(ruled, "work/a"), node_at(ruled, "work/a/b")
    ruled.unlink(b, b"file")
    asked.clear()
    ruled.rmdir(deep, b"b")
    ruled.mkdir(deep, b"new", 0o755, ME)
    assert set(asked) <= {b"b"}, "what is removed"
    assert error(lambda: ruled.mkdir(b, b"in it", 0o755, ME)) == errno.ESTALE


def test_the_way_to_a_directory_is_not_looked_up_again(ruled: RuledVolume, asked: list[bytes]) -> None:
    deep = node_at(ruled, "work/a/b")
    ruled.lookup(deep, b"file")
    asked.clear()
    ruled.lookup(deep, b"file")
    ruled.create(deep, b"new", 0o644, 0, ME)
    ruled.unlink(deep, b"new")
    assert asked == [b"file"]


@pytest.mark.parametrize("volume", ["dir"], indirect=True)
def test_what_other_programs_move_is_stale(disk: Path, ruled: RuledVolume) -> None:
    deep = node_at(ruled, "work/a/b")
    ruled.lookup(deep, b"file")
    for other in (disk / "secrets" / "a", disk.parent / "outside"):
        os.rename(disk / "work" / "a", other)
        assert error(lambda: ruled.lookup(deep, b"file")) == errno.ESTALE
        os.symlink(other, disk / "work" / "a")
        assert error(lambda: ruled.create(deep, b"new", 0o644, 0, ME)) == errno.ESTALE
        os.unlink(disk / "work" / "a")
        os.rename(other, disk / "work" / "a")
        assert node_at(ruled, "work/a/b") == deep
        assert ruled.lookup(deep, b"file").size == 0


@pytest.mark.parametrize("volume", ["dir"], indirect=True)
def test_a_directory_that_another_program_removes_is_stale(disk: Path, ruled: RuledVolume) -> None:
    deep = node_at(ruled, "work/a/b")
    ruled.unlink(deep, b"file")
    os.rmdir(disk / "work" / "a" / "b")
    os.mkdir(disk / "work" / "a" / "b (deleted)")
    assert error(lambda: ruled.create(deep, b"new", 0o644, 0, ME)) == errno.ESTALE


@pytest.mark.parametrize("volume", ["dir"], indirect=True)
def test_a_root_that_is_renamed_moves_nothing_in_it(disk: Path, ruled: RuledVolume, asked: list[bytes]) -> None:
    deep = node_at(ruled, "work/a/b")
    ruled.lookup(deep, b"file")
    os.rename(disk, disk.parent / "renamed")
    asked.clear()
    assert ruled.lookup(deep, b"file").size == 0
    assert asked == [b"file"]
