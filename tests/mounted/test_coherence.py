"""A change on one face is visible on the other at once, with names, absence, sizes and pages cached by the kernel.

Random changes through either face are in `test_one_truth.py`.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import threading
from pathlib import Path

import pytest
from mounts import Serve
from two_faces import TwoFaces

pytestmark = pytest.mark.mounted

# -- the agent changes, a process looks ----------------------------------------------------------------------------


def test_a_mapped_file_is_edited(faces: TwoFaces) -> None:
    path = faces.path / "file"
    path.write_bytes(b"1" * 20_000)
    with path.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as shared:
        assert shared[:] == b"1" * 20_000
        faces.upload("/file", b"2" * 20_000)
        assert shared[:] == b"2" * 20_000
        shared[4096:4100] = b"mmap"
        shared.flush()
        assert faces.download("/file") == b"2" * 4096 + b"mmap" + b"2" * 15_900
        faces.upload("/file", b"3" * 20_000)
        assert shared[:] == b"3" * 20_000


def test_a_tree_is_deleted_under_who_stands_in_it(faces: TwoFaces) -> None:
    inside = faces.path / "a" / "b" / "c"
    inside.mkdir(parents=True)
    (inside / "file").write_text("x")
    directory = os.open(inside, os.O_RDONLY)
    try:
        assert os.listdir(directory) == ["file"]
        faces.call("delete", "/a")
        assert os.listdir(directory) == []
        assert os.fstat(directory).st_nlink == 0
        with pytest.raises(OSError) as caught:
            os.open("new", os.O_WRONLY | os.O_CREAT, dir_fd=directory)
        assert caught.value.errno in (errno.ENOENT, errno.ESTALE)
        with pytest.raises(FileNotFoundError):
            inside.stat()
    finally:
        os.close(directory)
    assert os.listdir(faces.path) == [] and faces.path.stat().st_nlink == 2
    inside.mkdir(parents=True)
    assert faces.call("ls", "/a/b")["entries"][0]["path"] == "/a/b/c/"


# -- both at once --------------------------------------------------------------------------------------------------


def test_appends_of_a_process_land_behind_what_the_agent_has_written(faces: TwoFaces) -> None:
    log = faces.path / "log"
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    for mode in (flags, os.O_RDWR | os.O_APPEND):
        faces.upload("/log", b"")
        fd = os.open(log, mode, 0o644)
        try:
            wanted = b""
            for number in range(10):
                os.write(fd, b"process %d\n" % number)
                wanted += b"process %d\n" % number
                assert log.read_bytes() == faces.download("/log") == wanted
                wanted += b"agent %d\n" % number
                faces.upload("/log", wanted)
            os.write(fd, b"end")
            assert log.read_bytes() == faces.download("/log") == wanted + b"end"
        finally:
            os.close(fd)


def test_whoever_reads_sees_one_version_and_never_an_older_one_again(faces: TwoFaces) -> None:
    """Read beside the agent: versions only go up, on every way of reading."""
    path = faces.path / "file"
    faces.upload("/file", b"%08d" % 0)
    stop = threading.Event()
    failures: list[str] = []

    def watch(read: object) -> None:
        last = 0
        while not stop.is_set():
            version = int(read())  # type: ignore[operator]
            if version < last:
                failures.append(f"{version} after {last}")
            last = version

    with path.open("rb", buffering=0) as opened:
        watchers = [
            threading.Thread(target=watch, args=(path.read_bytes,)),
            threading.Thread(target=watch, args=(lambda: os.pread(opened.fileno(), 8, 0),)),
        ]
        for watcher in watchers:
            watcher.start()
        try:
            for version in range(1, 300):
                content = b"%08d" % version
                faces.upload("/file", content)
                assert path.read_bytes() == content, "when the call has returned everybody sees it"
                assert os.pread(opened.fileno(), 8, 0) == content
        finally:
            stop.set()
            for watcher in watchers:
                watcher.join()
    assert failures == []


def test_modes_and_types_reach_the_other_face(faces: TwoFaces) -> None:
    faces.call("write", "/made", "x")
    assert stat.S_IMODE((faces.path / "made").stat().st_mode) == 0o644
    os.mkfifo(faces.path / "pipe")
    listed = {entry["path"]: entry["is_dir"] for entry in faces.call("ls", "/")["entries"]}
    assert listed == {"/made": False, "/pipe": False}
    assert faces.ask("read", "/pipe")["error"], "a pipe is never waited for"


def test_a_file_that_was_changed_behind_a_route_is_read_to_its_new_end(tmp_path: Path, serve: Serve) -> None:
    """The kernel caches its size for the TTL, but every open reads it anew."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files/file").write_text("one")
    path = serve(f"dir:{tmp_path}/files", options=["ttl=600"]).path / "file"
    assert path.stat().st_size == 3
    for text in ("a longer text", "x", "three"):
        (tmp_path / "files/file").write_text(text)
        assert path.read_text() == text
