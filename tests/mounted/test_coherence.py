"""A change on one face is visible on the other at once, with names, absence, sizes and pages cached by the kernel.

Random changes through either face are in `test_one_truth.py`.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import random
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import bigthreads
import mounts
import pytest
from eventually import eventually
from mounts import Serve
from stalling import Control
from together import over_and_over
from two_faces import TwoFaces, two_faces

import fusebackend
from fusebackend.linux import mount_table as table
from fusebackend.testing.posix.case import opened, refused

# -- the agent changes, a process looks ----------------------------------------------------------------------------


def test_a_mapped_file_is_edited(faces: TwoFaces) -> None:
    path = faces.path / "file"
    path.write_bytes(b"1" * 20_000)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as shared:
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
    with opened(inside, os.O_RDONLY) as directory:
        assert os.listdir(directory) == ["file"]
        faces.call("delete", "/a")
        assert os.listdir(directory) == []
        assert os.fstat(directory).st_nlink == 0
        refused((errno.ENOENT, errno.ESTALE), os.open, "new", os.O_WRONLY | os.O_CREAT, dir_fd=directory)
        refused(errno.ENOENT, inside.stat)
    assert os.listdir(faces.path) == [] and faces.path.stat().st_nlink == 2
    inside.mkdir(parents=True)
    assert faces.call("ls", "/a/b")["entries"][0]["path"] == "/a/b/c/"


# -- both at once --------------------------------------------------------------------------------------------------


def test_appends_of_a_process_land_behind_what_the_agent_has_written(faces: TwoFaces) -> None:
    log = faces.path / "log"
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    for mode in (flags, os.O_RDWR | os.O_APPEND):
        faces.upload("/log", b"")
        with opened(log, mode) as fd:
            wanted = b""
            for number in range(10):
                os.write(fd, b"process %d\n" % number)
                wanted += b"process %d\n" % number
                assert log.read_bytes() == faces.download("/log") == wanted
                wanted += b"agent %d\n" % number
                faces.upload("/log", wanted)
            os.write(fd, b"end")
            assert log.read_bytes() == faces.download("/log") == wanted + b"end"


def test_whoever_reads_sees_one_version_and_never_an_older_one_again(faces: TwoFaces) -> None:
    """Read beside the agent: versions only go up, on every way of reading."""
    path = faces.path / "file"
    faces.upload("/file", b"%08d" % 0)
    last = dict.fromkeys(("again", "opened"), 0)

    def watch(which: str, read: Callable[[], bytes]) -> None:
        version = int(read())
        assert version >= last[which]
        last[which] = version

    with (
        path.open("rb", buffering=0) as file,
        over_and_over(lambda: watch("again", path.read_bytes)),
        over_and_over(lambda: watch("opened", lambda: os.pread(file.fileno(), 8, 0))),
    ):
        for version in range(1, 300):
            content = b"%08d" % version
            faces.upload("/file", content)
            assert path.read_bytes() == content, "when the call has returned everybody sees it"
            assert os.pread(file.fileno(), 8, 0) == content


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


# --------------------------------------------------------------------------------------------------------------
# Listings that the kernel keeps until the directory changes, and goes on with where it had to drop them
# --------------------------------------------------------------------------------------------------------------


def filled(faces: TwoFaces, count: int, tail: str = "") -> tuple[Path, set[str]]:
    """Make a directory; return it and the names in it."""
    directory = faces.path / "directory"
    directory.mkdir()
    names = {f"{number:05}{tail}" for number in range(count)}
    for name in names:
        (directory / name).touch()
    return directory, names


def asked(faces: TwoFaces) -> int:
    """Return the number of READDIR requests so far."""
    status = json.loads(os.getxattr(faces.path, "user.fusebackend.status"))
    return int(status["counters"].get("readdir", 0))


def test_a_directory_that_was_there_before_the_mount_is_small_once_it_was_seen(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'volume.db'}"
    with two_faces(tmp_path / "mnt", url) as faces:
        _, names = filled(faces, 300)
    with two_faces(tmp_path / "again", url) as faces:
        directory = faces.path / "directory"
        for _ in range(3):  # the first shows that it is small, another one is kept
            assert set(os.listdir(directory)) == names
        before = asked(faces)
        assert set(os.listdir(directory)) == names
        assert asked(faces) == before


class Listing:
    """A listing that is read in pieces, beside others."""

    def __init__(self, directory: Path, names: set[str]) -> None:
        self._entries = os.scandir(directory)
        self.must_be_seen = set(names)  # there all the time
        self.may_be_seen = set(names)  # there at some time
        self.seen: list[str] = []

    def read(self, count: int) -> bool:
        """Read up to `count` names; return False at the end."""
        for _ in range(count):
            entry = next(self._entries, None)
            if entry is None:
                return False
            self.seen.append(entry.name)
        return True

    def close(self) -> None:
        self._entries.close()

    def check(self) -> None:
        self.close()
        assert len(self.seen) == len(set(self.seen)), "a name was seen twice"
        assert self.must_be_seen <= set(self.seen) <= self.may_be_seen


@pytest.mark.alone
def test_whatever_happens_while_several_read(faces: TwoFaces) -> None:
    """Long names make each listing many replies and many pages."""
    seed = random.randrange(10**6)
    print("seed", seed)
    chance = random.Random(seed)
    tail = "." * 180
    directory, names = filled(faces, 400, tail)
    made = 400
    listings: list[Listing] = []

    def add() -> None:
        nonlocal made
        made += 1
        name = f"{chance.randrange(100_000):05}-{made}{tail}"
        if chance.random() < 0.5:
            (directory / name).touch()
        else:
            faces.call("write", f"/directory/{name}", "x")
        names.add(name)
        for listing in listings:
            listing.may_be_seen.add(name)

    def remove() -> None:
        name = chance.choice(sorted(names))
        if chance.random() < 0.5:
            (directory / name).unlink()
        else:
            faces.call("delete", f"/directory/{name}")
        names.remove(name)
        for listing in listings:
            listing.must_be_seen.discard(name)

    def begin() -> None:
        if len(listings) < 6:
            listings.append(Listing(directory, names))

    def go_on() -> None:
        if listings:
            listing = chance.choice(listings)
            if not listing.read(chance.choice([1, 50, 150, 1000])):
                listing.check()
                listings.remove(listing)

    def give_up() -> None:
        if listings:
            listings.pop(chance.randrange(len(listings))).close()

    def compare() -> None:
        assert set(os.listdir(directory)) == names
        assert set(os.listdir(directory)) == names

    def set_back() -> None:
        os.utime(directory, ns=(10**9, 10**9))

    def forget() -> None:
        mounts.drop_caches(chance.choice([1, 2]))

    actions: list[tuple[Callable[[], None], int]] = [
        (add, 6), (remove, 6), (begin, 10), (go_on, 25), (give_up, 2), (compare, 6), (set_back, 3), (forget, 1),
    ]  # fmt: skip
    chosen = chance.choices([action for action, _ in actions], [weight for _, weight in actions], k=400)
    try:
        for action in chosen:
            action()
        for listing in listings:
            while listing.read(1000):
                pass
            listing.check()
    finally:
        for listing in listings:
            listing.close()


# --------------------------------------------------------------------------------------------------------------
# Pages that the kernel drops and reads again while write(2) is between copying its bytes and sending its request
# --------------------------------------------------------------------------------------------------------------

PAGE = mmap.PAGESIZE
LAST = 20
"""The page of the written bytes that the kernel has to ask for."""

FIRST_BYTE = 50
"""Of the write: the bytes before it, in the same page, are another's."""


def opened_at_random(path: Path) -> int:
    """Open a file for reading and writing, without reading ahead."""
    fd = os.open(path, os.O_RDWR)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    return fd


@pytest.mark.parametrize("name", ["file", "waits/file"])
def test_a_write_is_seen_though_its_pages_were_read_again_before_it_arrived(
    stall: Control, serve: Serve, name: str
) -> None:
    server = serve("memory:", routes={"/waits": "python:stalling:backend"})
    path, source = server.path / name, serve("python:stalling:backend").path / "source"
    path.write_bytes(bytes((LAST + 2) * PAGE))
    source.write_bytes(b"x" * ((LAST + 1) * PAGE))
    writer, reader, mapper, written = (opened_at_random(each) for each in (path, path, path, source))
    with (
        fusebackend.connect(server.path) as client,
        mmap.mmap(mapper, 0) as mapped,
        mmap.mmap(written, 0) as source_map,
        memoryview(source_map)[FIRST_BYTE:] as data,
        ThreadPoolExecutor(2) as threads,
    ):
        mapped.madvise(mmap.MADV_RANDOM)
        source_map.madvise(mmap.MADV_RANDOM)
        for page in range(LAST):
            assert os.pread(reader, 1, page * PAGE) == b"\0" and data[page * PAGE] == ord("x")
        stall.hang("read", LAST * PAGE)
        writing = threads.submit(os.pwrite, writer, data, FIRST_BYTE)
        eventually(lambda: mapped[(LAST - 1) * PAGE] == ord("x"))  # it has copied the bytes up to the page that is read
        dropping = threads.submit(client.invalidate, "/")
        eventually(lambda: mapped[FIRST_BYTE] == mapped[3 * PAGE] == 0)  # read again, as the volume still has them
        mapped[0] = ord("m")  # the page is written back as a whole
        assert not writing.done()
        stall.resume()
        assert writing.result(60) == len(data)
        assert mapped[FIRST_BYTE] == mapped[3 * PAGE] == ord("x")
        dropping.result(60)
        whole = b"m" + bytes(FIRST_BYTE - 1) + bytes(data) + bytes(PAGE)
        assert mapped[:] == whole
        mapped.flush()
        assert client.download_files([f"/{name}"])[0].content == whole
    for fd in (writer, reader, mapper, written):
        os.close(fd)


# --------------------------------------------------------------------------------------------------------------
# A walk through more inodes than a volume bears: the kernel drops what is not in use, and finds it again
# --------------------------------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[2]
MOST = 100

SERVER = """
import json, os, subprocess, sys
import fusebackend
from fusebackend.backends import ThreadsBackend
from fusebackend.backends.threads.volume import ThreadsVolume

point, database, most = sys.argv[1:]
ThreadsVolume.most_nodes = int(most) or None

# No `cwd=` in the mount: Python holds its lock until the child is there, and the mount's thread could not answer it.

def walk():
    return sorted(subprocess.run(["find", point], capture_output=True, check=True).stdout.splitlines())

def digest():
    done = subprocess.run("find " + point + " -type f -print0 | sort -z | xargs -0 cat | sha256sum",
                          shell=True, capture_output=True, check=True)
    return done.stdout.decode()

def text(path):
    with open(path) as file:
        return file.read()

def known():
    return json.loads(text(f"{point}/.fusebackend/status.json"))["known_inodes"]

with fusebackend.mount(ThreadsBackend.from_sqlite(database, cache=False), point):
    first = walk()
    directory = f"{point}/thread-0000/history"
    program = ["sh", "-c", "cd " + directory + " && echo there && exec sleep 60"]
    with subprocess.Popen(program, stdout=subprocess.PIPE) as inside, open(f"{point}/thread-0001/state.json") as state:
        inside.stdout.readline()
        before, beginning, counts = digest(), state.read(100), []
        for _ in range(3):
            again = walk()
            counts.append(known())
        after = digest()
        print(json.dumps({
            "entries": len(first),
            "same names": first == again,
            "same bytes": before == after,
            "the directory of a process": os.readlink(f"/proc/{inside.pid}/cwd") == directory,
            "an open file": beginning + state.read() == text(f"{point}/thread-0001/state.json"),
            "known": counts,
        }))
        inside.kill()
"""


def has_the_notice() -> bool:
    return tuple(int(part) for part in os.uname().release.split(".")[:2]) >= (6, 18)


def test_a_walk_beyond_the_limit(tmp_path: Path) -> None:
    """`init_flags` tells the version of the kernel: without it names are dropped, as on kernels before 6.18."""
    bigthreads.make(tmp_path / "threads.db", threads=4, checkpoints=8, files=16)
    point = tmp_path / "agent"
    point.mkdir()

    def found(most: int, off: str = "") -> dict[str, Any]:
        command = [sys.executable, "-W", "error", "-c", SERVER, str(point), f"{tmp_path}/threads.db", str(most)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "FUSEBACKEND_OFF": off}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        assert table.mount_at(str(point)) is None
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    unlimited = found(0)
    known_of_all = unlimited.pop("known")
    for off in ("", "init_flags"):
        limited = found(MOST, off)
        known = limited.pop("known")
        assert limited == unlimited == dict.fromkeys(unlimited, True) | {"entries": unlimited["entries"]}, off
        assert max(known) < (2 * MOST if not off and has_the_notice() else max(known_of_all)), off
