"""`FilesystemBackend`: the published suite on it, both modes, and what one face tells the other."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest
from agentface import get, heard, node_at, put
from together import together

from fusebackend.backends.directory import search as directory_search
from fusebackend.backends.directory.backend import FilesystemBackend
from fusebackend.protocol import ROOT_NODE, Change
from fusebackend.testing.conformance import BackendConformance
from fusebackend.testing.posix.case import refused
from fusebackend.volumes.agent_face import VolumeBackend


class DirectoryCases(BackendConformance):
    resolves_dot_dot = False


class TestDirectory(DirectoryCases):
    """Searched by ripgrep, where that is installed."""

    @pytest.fixture
    def backend(self, tmp_path):
        with FilesystemBackend(tmp_path) as backend:
            yield backend


@pytest.mark.configuration
class TestWithoutRipgrep(DirectoryCases):
    @pytest.fixture
    def backend(self, tmp_path, monkeypatch):
        monkeypatch.setattr(directory_search, "find_candidates", lambda *_: None)
        with FilesystemBackend(tmp_path) as backend:
            yield backend


@pytest.mark.configuration
class TestThatReplaces(DirectoryCases):
    replaces_existing = True

    @pytest.fixture
    def backend(self, tmp_path):
        with FilesystemBackend(tmp_path, on_exists="replace") as backend:
            yield backend


@pytest.fixture
def backend(tmp_path):
    with FilesystemBackend(tmp_path) as backend:
        yield backend


# -- construction ------------------------------------------------------------------------------------------------------


def test_the_attributes_of_the_seeds(tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    os.symlink("real", tmp_path / "link")
    with FilesystemBackend(root_dir=str(tmp_path / "link"), virtual_mode=True, max_file_size_mb=3) as backend:
        assert backend.cwd == tmp_path / "real"
        assert backend.virtual_mode is True
        assert backend.max_file_size_bytes == 3 * 1024 * 1024
    monkeypatch.chdir(tmp_path)
    with FilesystemBackend() as backend:
        assert (backend.cwd, backend.virtual_mode) == (tmp_path, True)


def test_a_root_that_is_missing_or_no_directory(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FileNotFoundError, match=f"There is no directory '{tmp_path}/none'"):
        FilesystemBackend(tmp_path / "none")
    with pytest.raises(NotADirectoryError, match=f"'{tmp_path}/file' is not a directory"):
        FilesystemBackend(tmp_path / "file")
    for wrong in ({"max_file_size_mb": -1}, {"on_exists": "never"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            FilesystemBackend(tmp_path, **wrong)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_directory_that_may_not_be_entered() -> None:
    with tempfile.TemporaryDirectory() as closed:  # 0700, and all above it is open to others
        os.seteuid(65534)
        try:
            with pytest.raises(PermissionError, match=f"The directory '{closed}' may not be entered"):
                FilesystemBackend(closed, virtual_mode=True)
        finally:
            os.seteuid(0)


# -- virtual_mode=False ------------------------------------------------------------------------------------------------


@pytest.fixture
def open_backend(tmp_path):
    (tmp_path / "root" / "sub").mkdir(parents=True)
    (tmp_path / "else").mkdir()
    with FilesystemBackend(tmp_path / "root", virtual_mode=False) as backend:
        yield backend


def test_relative_paths_start_at_the_root_and_results_are_absolute(open_backend, tmp_path):
    root = tmp_path / "root"
    assert open_backend.write("sub/file.py", "needle\n").path == f"{root}/sub/file.py"
    assert open_backend.write(f"{tmp_path}/else/new.py", "needle\n").error is None
    assert [info["path"] for info in open_backend.ls(".").entries] == [f"{root}/sub/"]
    assert [info["path"] for info in open_backend.glob("*.py").matches] == [f"{root}/sub/file.py"]
    assert open_backend.glob("*.py", "/").matches == open_backend.glob_info("*.py") == open_backend.glob("*.py").matches
    assert [match["path"] for match in open_backend.grep("needle").matches] == [f"{root}/sub/file.py"]
    assert [match["path"] for match in open_backend.grep("needle", "../else").matches] == [f"{tmp_path}/else/new.py"]
    assert open_backend.edit("sub/file.py", "needle", "thread").occurrences == 1
    assert open_backend.move("sub/file.py", "../else/moved").path == f"{tmp_path}/else/moved"
    assert open_backend.delete("../else/moved").error is None
    assert [response.path for response in open_backend.upload_files([("a", b"x"), ("~/b", b"y")])] == ["a", "~/b"]
    assert (root / "~" / "b").read_bytes() == b"y"
    (download,) = open_backend.download_files(["a"])
    assert (download.path, download.content) == ("a", b"x")


def test_without_virtual_mode_links_lead_anywhere(open_backend, tmp_path):
    (tmp_path / "else" / "file").write_text("else\n")
    os.symlink(tmp_path / "else", tmp_path / "root" / "absolute")
    os.symlink("../else", tmp_path / "root" / "relative")
    os.symlink("/", tmp_path / "root" / "sub" / "top")
    assert "else" in open_backend.read("absolute/file")
    assert "else" in open_backend.read("relative/file")
    assert "else" in open_backend.read(f"sub/top{tmp_path}/root/absolute/file")
    assert [info["path"] for info in open_backend.ls("absolute").entries] == [f"{tmp_path}/root/absolute/file"]
    entries = {info["path"]: info["is_dir"] for info in open_backend.ls(".").entries}
    assert entries[f"{tmp_path}/root/absolute/"] is True
    assert open_backend.write("absolute/new", "x").error is None
    assert (tmp_path / "else" / "new").exists()


def test_without_virtual_mode_bad_paths_are_still_errors(open_backend):
    for path in ("", "a\0b", "\ud800", "x" * 300, 5):
        assert open_backend.read(path).error
        assert open_backend.write(path, "x").error
        assert open_backend.download_files([path])[0].error == "invalid_path"
    assert open_backend.delete("/").error


def test_the_kernel_face_is_the_root_in_both_modes(open_backend, tmp_path):
    open_backend.write("file", "abc")
    names = [name for name, _ in open_backend.volume.readdir(ROOT_NODE, b"", 10)]
    assert names == [b"file", b"sub"]
    refused(errno.ENOENT, open_backend.volume.lookup, ROOT_NODE, b"etc")


def test_without_virtual_mode_changes_are_told_in_the_numbers_of_the_mount(open_backend, tmp_path):
    volume = open_backend.volume
    (tmp_path / "root" / "file").write_text("old")
    node = volume.lookup(ROOT_NODE, b"file").node
    sub = volume.lookup(ROOT_NODE, b"sub").node
    with heard(open_backend) as changes:
        open_backend.edit("file", "old", "new")
        assert changes == [Change(node=node)]
        changes.clear()
        open_backend.write("sub/new", "x")
        assert Change(node=None, parent=sub, name=b"new") in changes
        changes.clear()
        open_backend.move("file", "sub/file")
        assert {(change.parent, change.name) for change in changes} >= {(ROOT_NODE, b"file"), (sub, b"file")}
        changes.clear()
        open_backend.write(f"{tmp_path}/else/file", "x")
        assert changes == [], "nothing the mount knows of"


# -- two faces ---------------------------------------------------------------------------------------------------------


def test_each_face_sees_what_the_other_does(backend, tmp_path):
    node = put(backend, "/file", b"abc")
    assert (tmp_path / "file").read_bytes() == b"abc"
    backend.volume.open(node, os.O_RDWR)
    backend.volume.write(node, 3, b"def")
    assert get(backend, "/file") == b"abcdef"
    assert backend.edit("/file", "abc", "xyz").error is None
    assert backend.volume.read(node, 0, 10) == b"xyzdef"
    backend.volume.hold(node)
    with heard(backend) as changes:
        assert backend.delete("/file").error is None
    assert Change(node, ROOT_NODE, b"file", "deleted", "/file") in changes
    assert backend.volume.read(node, 0, 10) == b"xyzdef", "open after unlink, across the faces"
    backend.volume.release(node, os.O_RDWR)
    assert backend.volume.getattr(node).nlink == 0
    backend.volume.forget([node])


# -- deleting trees ----------------------------------------------------------------------------------------------------


def test_a_large_tree_is_deleted_and_told(backend, tmp_path):
    for number in range(450):
        (tmp_path / "tree" / f"dir{number % 3}").mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / f"dir{number % 3}" / f"file{number}").touch()
    os.symlink("/etc", tmp_path / "tree" / "link")
    os.mkfifo(tmp_path / "tree" / "fifo")
    node = node_at(backend, "/tree")
    with heard(backend) as changes:
        assert backend.delete("/tree").error is None
    assert os.listdir(tmp_path) == []
    told = {change.name for change in changes if change.name is not None}
    assert told == {b"tree", b"link", b"fifo", *(b"dir%d" % n for n in range(3)), *(b"file%d" % n for n in range(450))}
    assert changes[-1] == Change(node, ROOT_NODE, b"tree", "deleted", "/tree/")


def test_a_deep_tree_is_deleted_read_and_searched(backend, tmp_path):
    deep = tmp_path
    fd = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    with open(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=fd), "w") as file:
        file.write("needle\n")
    os.close(fd)
    (tmp_path / "d" / "z").write_text("needle\n")
    before = len(os.listdir("/proc/self/fd"))
    path = "/d" * 1200 + "/file"
    assert "needle" in backend.read(path)
    assert [info["path"] for info in backend.glob("*").matches] == [path, "/d/z"]
    assert path in [match["path"] for match in backend.grep("needle").matches]
    assert backend.delete("/d").error is None
    assert os.listdir(deep) == []
    backend.volume._nodes.forget_descriptors()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_what_others_put_into_a_tree_that_is_being_deleted_goes_too(backend, tmp_path, monkeypatch):
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "sub" / "file").touch()
    late = iter(["late1", "late2"])
    readdir = backend.volume.readdir

    def names_then_more(*arguments):
        found = readdir(*arguments)
        name = next(late, None)
        if name is not None:
            (tmp_path / "tree" / name).touch()
        return found

    monkeypatch.setattr(backend.volume, "readdir", names_then_more)
    assert backend.delete("/tree").error is None
    assert os.listdir(tmp_path) == []


def test_two_deletes_of_one_tree(backend, tmp_path):
    for number in range(400):
        (tmp_path / "tree" / f"dir{number % 7}").mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / f"dir{number % 7}" / f"file{number}").touch()
    results = []
    together(*[lambda: results.append(backend.delete("/tree"))] * 2)
    assert not (tmp_path / "tree").exists()
    assert None in [result.error for result in results]
    assert all(result.error is None or "not found" in result.error for result in results)


# -- searches ----------------------------------------------------------------------------------------------------------


def test_searches_answer_as_those_of_every_volume(backend, tmp_path):
    for path in ("a", "a-b", "a.txt", "a/x.txt", "b/é.txt", ".hidden/y.txt", "z/.dot.txt", "b/deep/er/y.txt"):
        target: Path = tmp_path / path
        if path == "a":
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(f"needle {path}\n")
    os.symlink("a.txt", tmp_path / "link.txt")
    os.symlink("b", tmp_path / "linked")
    plain = VolumeBackend(backend.volume)
    patterns = ("*", "**/*", "*.txt", "a/*", "/b/**", "b/*/er/*.txt", "{a,b}/*.txt", ".hidden/*", "../x", "", "[", "a/")
    for pattern in patterns:
        for path in (None, "/", "/b", "/linked", "/a.txt", "/none", "/link.txt", "/a.txt/x"):
            assert backend.glob(pattern, path) == plain.glob(pattern, path), (pattern, path)
            assert backend.grep("needle", path, pattern) == plain.grep("needle", path, pattern)


def test_a_file_that_grows_past_the_limit_while_it_is_read(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"needle\n")
    grown = b"needle\n" * 200_000
    with FilesystemBackend(tmp_path, max_file_size_mb=1) as backend:
        monkeypatch.setattr(directory_search, "find_candidates", lambda *_: None)
        monkeypatch.setattr(os, "pread", lambda fd, size, offset: grown[offset : offset + size])
        answer = backend.grep("needle")
    assert (answer.matches, answer.truncated) == ([], True)
