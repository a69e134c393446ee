"""A change on one face is visible on the other at once, with names, absence, sizes and pages cached by the kernel."""

from __future__ import annotations

import errno
import mmap
import os
import random
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import mounts
import pytest
from mounts import Serve
from two_faces import TwoFaces, two_faces

pytestmark = pytest.mark.mounted


@pytest.fixture(scope="module", params=["memory:", "sqlite:{tmp}/volume.db"], ids=["memory", "sqlite"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoFaces]:
    tmp = tmp_path_factory.mktemp("coherence")
    with two_faces(tmp / "mnt", request.param.format(tmp=tmp)) as faces:
        yield faces


@pytest.fixture
def faces(served: TwoFaces) -> Iterator[TwoFaces]:
    yield served
    mounts.empty(served.path)


# -- the agent changes, a process looks ----------------------------------------------------------------------------


def test_a_file_that_is_known_not_to_exist_is_made(faces: TwoFaces) -> None:
    for path in (faces.path / "new", faces.path / "made" / "on" / "the" / "way"):
        for _ in range(2):
            with pytest.raises(FileNotFoundError):
                path.stat()
        faces.call("write", "/" + str(path.relative_to(faces.path)), "here")
        assert path.read_text() == "here"
    assert sorted(os.listdir(faces.path)) == ["made", "new"]
    assert faces.path.stat().st_nlink == 3


def test_an_open_file_is_edited(faces: TwoFaces) -> None:
    path = faces.path / "file"
    path.write_text("a" * 10_000)
    os.link(path, faces.path / "other name")
    with path.open("r+b", buffering=0) as opened, (faces.path / "other name").open("rb", buffering=0) as other:
        assert other.read() == b"a" * 10_000
        faces.call("edit", "/file", "a" * 10_000, "b" * 10_000)  # the same size: only the contents can tell
        assert os.pread(opened.fileno(), 10_000, 0) == os.pread(other.fileno(), 10_000, 0) == b"b" * 10_000
        faces.call("edit", "/file", "b" * 10_000, "longer" * 5_000)
        assert os.fstat(opened.fileno()).st_size == (faces.path / "other name").stat().st_size == 30_000
        assert os.pread(other.fileno(), 100_000, 0) == b"longer" * 5_000
        faces.upload("/file", b"short")
        assert os.fstat(other.fileno()).st_size == 5
        assert os.pread(opened.fileno(), 100_000, 0) == b"short"
        opened.write(b"S")
        assert faces.download("/other name") == b"Short"


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


def test_files_are_moved_and_deleted(faces: TwoFaces) -> None:
    old, new = faces.path / "old", faces.path / "d" / "new"
    old.write_text("content")
    number = old.stat().st_ino
    assert not new.exists()
    with old.open() as opened:
        faces.call("move", "/old", "/d/new")
        assert not old.exists()
        assert new.read_text() == "content" and new.stat().st_ino == number
        faces.call("delete", "/d/new")
        assert not new.exists() and os.listdir(faces.path / "d") == []
        assert os.fstat(opened.fileno()).st_nlink == 0
        assert opened.read() == "content", "whoever has it open keeps it"
    faces.call("write", "/old", "another")
    assert old.read_text() == "another" and old.stat().st_ino != number


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


def test_a_listing_goes_on_while_the_agent_changes_the_directory(faces: TwoFaces) -> None:
    directory = faces.path / "d"
    directory.mkdir()
    for number in range(1000):
        (directory / f"{number:04}").touch()
    with os.scandir(directory) as entries:
        seen = [next(entries).name for _ in range(100)]
        for number in range(1, 1000, 2):
            faces.call("delete", f"/d/{number:04}")
        for number in range(100):
            faces.call("write", f"/d/new{number}", "")
        seen += [entry.name for entry in entries]
    assert len(seen) == len(set(seen))
    assert {f"{number:04}" for number in range(0, 1000, 2)} <= set(seen)
    assert len(os.listdir(directory)) == 600


# -- a process changes, the agent looks ----------------------------------------------------------------------------


def test_every_write_is_seen_before_the_file_is_closed(faces: TwoFaces) -> None:
    with (faces.path / "file").open("wb", buffering=0) as opened:
        assert faces.download("/file") == b""
        opened.write(b"one ")
        assert faces.download("/file") == b"one "
        opened.write(b"two")
        assert faces.download("/file") == b"one two"
        opened.truncate(3)
        assert faces.download("/file") == b"one"
        os.rename(faces.path / "file", faces.path / "renamed")
        opened.seek(0)
        opened.write(b"O")
        assert faces.download("/renamed") == b"One"
    os.mkdir(faces.path / "d")
    os.symlink("../renamed", faces.path / "d" / "link")
    assert faces.download("/d/link") == b"One"
    assert [match["line"] for match in faces.call("grep", "One", "/")["matches"]] == [1]
    os.unlink(faces.path / "renamed")
    assert [entry["path"] for entry in faces.call("ls", "/")["entries"]] == ["/d/"]
    assert faces.ask("read", "/renamed")["error"]


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


class Both:
    """Random changes through either face, a dict of the expected contents, and open files that must follow."""

    NAMES = ("a", "b", "c", "d/e", "d/f")

    def __init__(self, faces: TwoFaces, seed: int) -> None:
        self.faces = faces
        self.chance = random.Random(seed)
        self.files: dict[str, bytearray] = {}  # name → contents, shared by hard links
        self.opened: list[tuple[int, bytearray]] = []
        (faces.path / "d").mkdir()

    def close(self) -> None:
        for fd, _ in self.opened:
            os.close(fd)

    def path(self, name: str) -> Path:
        return self.faces.path / name

    def step(self) -> str:
        done = self.chance.choice([self.by_agent, self.by_process, self.by_handle])()
        self.compare(done)
        return done

    def content(self) -> bytes:
        return self.chance.randbytes(self.chance.choice([0, 1, 100, 5000, 70_000]))

    def by_agent(self) -> str:
        name, other = self.chance.choice(self.NAMES), self.chance.choice(self.NAMES)
        verb = self.chance.choice(["upload", "upload", "delete", "move", "edit"])
        if verb == "upload":
            content = self.content()
            self.faces.upload("/" + name, content)
            self.files.setdefault(name, bytearray())[:] = content
        elif verb == "delete":
            failed = self.faces.ask("delete", "/" + name)["error"]
            assert bool(failed) == (name not in self.files)
            self.files.pop(name, None)
        elif verb == "move":
            failed = self.faces.ask("move", "/" + name, "/" + other)["error"]
            assert bool(failed) == (name not in self.files or other in self.files)
            if not failed:
                self.files[other] = self.files.pop(name)
        elif name in self.files:
            self.faces.upload("/" + name, b"old text")
            self.faces.call("edit", "/" + name, "old", "new")
            self.files[name][:] = b"new text"
        return f"agent: {verb} {name} {other}"

    def by_process(self) -> str:
        name, other = self.chance.choice(self.NAMES), self.chance.choice(self.NAMES)
        verb = self.chance.choice(["write", "append", "truncate", "unlink", "rename", "link", "open", "save"])
        path = self.path(name)
        if verb == "write":
            content = self.content()
            path.write_bytes(content)
            self.files.setdefault(name, bytearray())[:] = content
        elif verb == "save":
            content = self.content()
            self.path("tmp").write_bytes(content)
            os.rename(self.path("tmp"), path)
            self.files[name] = bytearray(content)
        elif name not in self.files:
            assert not path.exists()
        elif verb == "append":
            content = self.content()
            with path.open("ab", buffering=0) as file:
                file.write(content)
            self.files[name] += content
        elif verb == "truncate":
            size = self.chance.choice([0, 1, 5000, 66_000])
            os.truncate(path, size)
            self.resize(self.files[name], size)
        elif verb == "unlink":
            os.unlink(path)
            del self.files[name]
        elif verb == "rename":
            os.rename(path, self.path(other))
            if self.files.get(other) is not self.files[name]:
                self.files[other] = self.files.pop(name)
        elif verb == "link" and other not in self.files:
            os.link(path, self.path(other))
            self.files[other] = self.files[name]
        elif verb == "open" and len(self.opened) < 6:
            self.opened.append((os.open(path, os.O_RDWR), self.files[name]))
        return f"process: {verb} {name} {other}"

    def by_handle(self) -> str:
        if not self.opened:
            return "nothing"
        fd, model = self.chance.choice(self.opened)
        verb = self.chance.choice(["write", "truncate", "map", "close"])
        if verb == "write":
            offset, content = self.chance.choice([0, 10, 4095, 65_530]), self.content()
            os.pwrite(fd, content, offset)
            if content:
                self.resize(model, max(len(model), offset + len(content)))
                model[offset : offset + len(content)] = content
        elif verb == "truncate":
            size = self.chance.choice([0, 7, 4096, 66_000])
            os.ftruncate(fd, size)
            self.resize(model, size)
        elif verb == "map" and model:
            with mmap.mmap(fd, 0) as mapped:
                assert mapped[:] == model
                mapped[0:1] = b"M"
                mapped.flush()
            model[0:1] = b"M"
        elif verb == "close":
            os.close(fd)
            self.opened = [pair for pair in self.opened if pair[0] != fd]
        return f"handle: {verb}"

    @staticmethod
    def resize(model: bytearray, size: int) -> None:
        del model[size:]
        model.extend(bytes(size - len(model)))

    def compare(self, after: str) -> None:
        listed = {name for name in os.listdir(self.faces.path) if name != "d"}
        listed |= {f"d/{name}" for name in os.listdir(self.path("d"))}
        assert listed == set(self.files), after
        for name in self.NAMES:
            if name in self.files:
                model = self.files[name]
                assert self.path(name).stat().st_size == len(model), f"size of {name} after {after}"
                assert self.path(name).read_bytes() == model, f"{name} in a process after {after}"
                assert self.faces.download("/" + name) == model, f"{name} for the agent after {after}"
            else:
                assert not self.path(name).exists(), f"{name} after {after}"
        for fd, model in self.opened:
            assert os.fstat(fd).st_size == len(model), f"size of an open file after {after}"
            assert os.pread(fd, 1 << 20, 0) == model, f"an open file after {after}"


@pytest.mark.parametrize("seed", range(3))
def test_random_changes_through_either_face(faces: TwoFaces, seed: int) -> None:
    both = Both(faces, seed)
    done = []
    try:
        for _ in range(200):
            done.append(both.step())
    except AssertionError:
        print("\n".join(done))
        raise
    finally:
        both.close()


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
