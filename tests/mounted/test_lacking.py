"""A `dir:` route on a file system without extended attributes, links and special files, and one that refuses them."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import folding
import mounts
import pytest
from nodes import ME

import fusebackend
from fusebackend.backends.directory import dirfd
from fusebackend.backends.directory.volume import DirectoryVolume
from fusebackend.protocol import ROOT_NODE, AttrChanges
from fusebackend.testing.posix.case import refused
from fusebackend.volumes import placing
from fusebackend.volumes.placing import KeptSource, state_of


@pytest.fixture(scope="module", params=["ENOTSUP", "ENOSYS", "EPERM"])
def lacking(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    with folding.mounted(tmp_path_factory.mktemp("lacking"), lacks=request.param) as disk:
        yield request.param, disk


def test_a_volume_of_it(lacking: tuple[str, Path]) -> None:
    number, disk = lacking
    there, is_lacking = disk / "volume", number != "EPERM"
    there.mkdir()
    (there / "file").write_text("x")
    with contextlib.closing(DirectoryVolume(there)) as volume:
        assert (volume.features.xattrs, volume.features.acls) == (not is_lacking, not is_lacking)
        attr = volume.lookup(ROOT_NODE, b"file")
        for make in (
            lambda: volume.link(attr.node, ROOT_NODE, b"new"),
            lambda: volume.symlink(ROOT_NODE, b"new", b"file", ME),
            lambda: volume.mknod(ROOT_NODE, b"new", stat.S_IFIFO | 0o600, 0, ME),
        ):
            refused(errno.EPERM, make)
        if is_lacking:
            assert volume.listxattr(attr.node) == []
        else:
            refused(errno.EPERM, volume.listxattr, attr.node)
        state = state_of(volume, attr)
        assert state.xattrs == {} and state.size == 1
        with volume.changing() as changes:
            placed = placing.make(volume, ROOT_NODE, b"copy", KeptSource(state._replace(size=0)), changes, "/copy")
            assert placed.lost == (), "all that the state has"
            wanted = state._replace(size=0, xattrs={b"user.a": b"1"})
            placed = placing.make(volume, ROOT_NODE, b"more", KeptSource(wanted), changes, "/more")
            assert placed.lost == ("extended attributes",)
        volume.setattr(attr.node, AttrChanges(mode=0o600))
        assert sorted(os.listdir(there)) == ["copy", "file", "more"]


def test_a_mount_of_it(lacking: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, disk = lacking
    there = disk / "served"
    there.mkdir()
    (there / "log").write_text("one\n")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with mounts.mounted(tmp_path / "mnt", f"dir:{there}", options=["history=on"]) as server:
        log = server.path / "log"
        with log.open("a") as file:
            file.write("two\n")
        assert (there / "log").read_text() == "one\ntwo\n"
        with fusebackend.connect(server.path) as client:
            call = client.log(paths=["/log"])[0]
            assert [(change.change, change.path) for change in client.changes(call.call)] == [("content", "/log")]
            client.undo(call.call)
        assert (there / "log").read_text() == "one\n"
        assert os.listxattr(log) == [] if lacking[0] != "EPERM" else True
        for make in (
            lambda: os.link(log, server.path / "new"),
            lambda: os.symlink("log", server.path / "new"),
            lambda: os.mkfifo(server.path / "new"),
        ):
            refused(errno.EPERM, make)
        committed(server.path / "work")


def committed(tree: Path) -> None:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    git = ["git", "-C", str(tree), "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    tree.mkdir()
    subprocess.run([*git, "init", "-q"], check=True, timeout=60)
    for text in ("one", "two"):
        (tree / "file").write_text(text)
        subprocess.run([*git, "add", "file"], check=True, timeout=60)
        subprocess.run([*git, "commit", "-q", "-m", text], check=True, timeout=60)
    shown = subprocess.run([*git, "log", "--format=%s"], check=True, capture_output=True, text=True, timeout=60)
    assert shown.stdout == "two\none\n"


def test_a_descriptor_outlives_its_file_system_quietly(tmp_path: Path) -> None:
    with folding.mounted(tmp_path) as disk:
        (disk / "file").write_text("x")
        kept = dirfd.Descriptor(os.open(disk / "file", os.O_RDONLY))
    number = kept.fd
    del kept  # what its `__del__` raises fails the test
    gc.collect()
    refused(errno.EBADF, os.fstat, number)
