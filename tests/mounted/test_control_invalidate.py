"""`invalidate`: after it, the mount shows changes by others at once, however long the kernel's timeouts are."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import fusebackend
from fusebackend.testing.each import each


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Make the directory that is mounted, for changes behind the mount."""
    directory = tmp_path / "outside"
    directory.mkdir()
    return directory


@pytest.fixture
def mount(serve, outside: Path):
    """Mount it, with timeouts of an hour."""
    return serve(f"dir:{outside}", options=["ttl=1h"])


@pytest.fixture
def client(mount):
    with fusebackend.connect(mount.path) as client:
        yield client


ABSENT = {"absent", "d/absent", "d/e/absent", "again", "moved", "t"}


def names_in(top: Path) -> set[str]:
    return {str(path.relative_to(top)) for path in top.rglob("*")}


def at(path: Path) -> str:
    """Describe the file at a path."""
    try:
        if path.is_symlink():
            return f"link to {os.readlink(path)}"
        return f"{path.stat().st_size} bytes: {path.read_text()}" if not path.is_dir() else "directory"
    except (FileNotFoundError, NotADirectoryError):
        return "nothing"


def _links(outside: Path) -> None:
    os.link(outside / "d/file", outside / "again")


def _unlinks_one(outside: Path) -> None:
    (outside / "d/file").unlink()
    (outside / "d/file").write_text("another")


def _retargets(outside: Path) -> None:
    (outside / "link").unlink()
    (outside / "link").symlink_to("d/e/deep")


CHANGES: list[Callable[[Path], object]] = [
    lambda outside: (outside / "d/file").write_text("changed"),
    lambda outside: (outside / "d/file").unlink(),
    lambda outside: os.replace(outside / "d/other", outside / "d/file"),
    lambda outside: (outside / "d").rename(outside / "moved"),
    lambda outside: shutil.rmtree(outside / "d"),
    lambda outside: (shutil.rmtree(outside / "d"), (outside / "d").write_text("a file now")),
    lambda outside: (shutil.rmtree(outside / "d/e"), (outside / "d/e").mkdir()),
    lambda outside: ((outside / "d/e").rename(outside / "t"), (outside / "d").rename(outside / "t/d")),
    _retargets,
    _links,
    _unlinks_one,
    lambda outside: (outside / "absent").write_text("here now"),
    lambda outside: (outside / "d/absent").mkdir(),
    lambda outside: shutil.copytree(outside / "d", outside / "absent"),
]


def test_what_others_have_changed(mount, client, outside):
    for number, case in enumerate(each(itertools.product(enumerate(CHANGES), (False, True)))):
        with case as ((_, change), linked):
            disk = outside / str(number)
            (disk / "d/e").mkdir(parents=True)
            client.invalidate("/")
            here = mount.path / str(number)
            for name in ("d/file", "d/other", "d/e/deep"):
                (disk / name).write_text(name)
            (disk / "link").symlink_to("d/file")
            if linked:
                (disk / "z").mkdir()
                os.link(disk / "d/file", disk / "z/twin")
            before = names_in(disk)
            assert names_in(here) == before
            for name in before | ABSENT:
                assert at(here / name) == at(disk / name)
            change(disk)
            client.invalidate("/")
            for name in before | ABSENT | names_in(disk):  # by name, before anything is listed
                assert at(here / name) == at(disk / name), name
            assert names_in(here) == names_in(disk)


@pytest.mark.parametrize("absent_before", [False, True])
def test_whoever_works_in_a_directory_stays_there(mount, client, outside, absent_before):
    if absent_before:
        assert not (mount.path / "d").exists()
    (mount.path / "d").mkdir()
    before = os.getcwd()
    os.chdir(mount.path / "d")
    try:
        client.invalidate("/")
        assert os.getcwd() == str(mount.path / "d")
        Path("file").write_text("text")
    finally:
        os.chdir(before)
    assert (outside / "d/file").read_text() == "text"


def test_what_is_mounted_in_a_directory_stays_there(serve, mount, client, outside):
    (outside / "d").mkdir()
    inner = serve("memory:", at=str(mount.path / "d"))
    (inner.path / "file").write_text("inner")
    client.invalidate("/")
    assert (inner.path / "file").read_text() == "inner"
    inner.stop()


def test_a_file_that_is_open_goes_on(mount, client, outside):
    (outside / "file").write_text("old")
    with (mount.path / "file").open() as file:
        os.replace(_written(outside / "new", "new"), outside / "file")
        client.invalidate("/")
        assert (mount.path / "file").read_text() == "new"
        assert file.read() == "old"


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_more_absent_names_than_are_remembered(mount, client, outside):
    names = [f"absent-{number}" for number in range(25_000)]
    for name in names:
        assert not os.path.exists(mount.path / name)
    (outside / names[0]).write_text("first")
    (outside / names[-1]).write_text("last")
    client.invalidate("/")
    assert (mount.path / names[0]).read_text() == "first"
    assert (mount.path / names[-1]).read_text() == "last"


def test_only_the_route_that_is_meant(serve, tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    mount = serve("memory:", routes={"/one": f"dir:{tmp_path}/one", "/two": f"dir:{tmp_path}/two"}, options=["ttl=1h"])
    for name in ("one", "two"):
        assert not (mount.path / name / "x").exists()
        (tmp_path / name / "x").write_text(name)
    with fusebackend.connect(mount.path) as client:
        client.invalidate("/two/any/where")
        assert not (mount.path / "one/x").exists()
        assert (mount.path / "two/x").read_text() == "two"
        client.invalidate("/")
        assert (mount.path / "one/x").read_text() == "one"


def test_a_directory_on_the_way_to_a_route(serve, tmp_path):
    (tmp_path / "outside/way").mkdir(parents=True)
    mount = serve(f"dir:{tmp_path}/outside", routes={"/way/to": "memory:"}, options=["ttl=1h"])
    assert not (mount.path / "way/x").exists()
    (tmp_path / "outside/way/x").write_text("text")
    with fusebackend.connect(mount.path) as client:
        client.invalidate("/way")
    assert (mount.path / "way/x").read_text() == "text"
