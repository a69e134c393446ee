"""One test for each promise of SEMANTICS.md, under the name of its heading."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import json
import mmap
import os
import re
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import anyio
import mounts
import programs
import pytest
import served
from eventually import eventually
from failing import Failing
from mounts import Serve
from nodes import put
from services.docker import DockerEngine
from services.s3 import Bucket
from two_faces import TwoFaces, two_faces

import fusebackend
from fusebackend.backends import FilesystemBackend, InMemoryBackend, SqliteBackend
from fusebackend.backends.sqlite import check as sqlite_check
from fusebackend.backends.sqlite.backend import SqliteVolume
from fusebackend.integrations.tools import TOOLS
from fusebackend.testing.posix.case import fails

pytestmark = pytest.mark.mounted

SEMANTICS = Path(fusebackend.__file__).with_name("SEMANTICS.md")
MINIMAL_ACL = bytes.fromhex("0200000001000600ffffffff04000400ffffffff20000400ffffffff")
READ_ONLY = errno.EROFS if os.geteuid() == 0 else errno.EACCES
"""The kernel looks at the modes first, except for root."""
NATIVE = ["sqlite:{tmp}/volume.db", "memory:", "dir:{tmp}/files"]


def slug(heading: str) -> str:
    return "test_" + re.sub(r"\W+", "_", heading.lower()).strip("_")


def test_every_promise_has_its_test() -> None:
    headings = re.findall(r"^## (.*)$", SEMANTICS.read_text(), re.MULTILINE)
    promised = [slug(heading) for heading in headings if heading != "What is not promised"]
    here = [name for name in globals() if name.startswith("test_") and name != "test_every_promise_has_its_test"]
    assert promised == here


@pytest.fixture(scope="module", params=["sqlite:{tmp}/volume.db", "memory:"])
def both_faces(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoFaces]:
    tmp = tmp_path_factory.mktemp("faces")
    with two_faces(tmp / "mnt", request.param.format(tmp=tmp)) as faces:
        yield faces


@pytest.fixture
def faces(both_faces: TwoFaces) -> Iterator[TwoFaces]:
    yield both_faces
    mounts.empty(both_faces.path)


@pytest.fixture(scope="module", params=NATIVE, ids=["sqlite", "memory", "dir"])
def native_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    tmp = tmp_path_factory.mktemp("native")
    (tmp / "files").mkdir()
    with mounts.mounted(tmp / "mnt", request.param.format(tmp=tmp), options=mounts.OTHERS) as server:
        yield server.path


@pytest.fixture
def native(native_server: Path) -> Iterator[Path]:
    yield native_server
    mounts.empty(native_server)


def renameat2(source: Path, target: Path, flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    at_fdcwd = -100
    if libc.renameat2(at_fdcwd, os.fsencode(source), at_fdcwd, os.fsencode(target), flags) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def test_what_was_closed_is_seen_by_whoever_opens_next(faces: TwoFaces) -> None:
    file = faces.path / "file"
    assert not file.exists()  # absence is cached now
    faces.call("write", "/file", "one\n")
    assert file.read_text() == "one\n"
    with file.open("rb", buffering=0) as opened:
        mapped = mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ)
        assert mapped[:3] == b"one"
        faces.call("edit", "/file", "one", "two")
        assert os.fstat(opened.fileno()).st_size == 4
        assert opened.read() == b"two\n"
        assert mapped[:3] == b"two"
        mapped.close()
    file.write_text("three\n")
    assert faces.call("read", "/file")["file_data"]["content"] == "three\n"
    assert file.read_text() == "three\n"
    faces.call("move", "/file", "/moved")
    assert not file.exists() and (faces.path / "moved").read_text() == "three\n"
    faces.call("delete", "/moved")
    assert os.listdir(faces.path) == []
    (faces.path / "directory").mkdir()
    (faces.path / "directory" / "new").write_bytes(b"\xff")
    assert faces.download("/directory/new") == b"\xff"


def test_a_search_finds_what_was_closed_and_ends(native: Path) -> None:
    directory = native / "directory"
    directory.mkdir()
    with fusebackend.connect(native) as client:
        for number in range(10):
            (directory / f"{number}.txt").write_text(f"number{number}\n" * 2)
            found = client.grep(f"number{number}")
            assert [match["path"] for match in found.matches or []] == [f"/directory/{number}.txt"] * 2
        (directory / "9.txt").write_text("replaced\n")
        (directory / "8.txt").rename(native / "8.md")
        assert client.grep("number9").matches == []
        assert {match["path"] for match in client.grep("number8").matches or []} == {"/8.md"}
        assert [info["path"] for info in client.glob("[89].*").matches or []] == ["/8.md", "/directory/9.txt"]
        cut = client.grep("number", max_count=3)
        assert (len(cut.matches or []), cut.truncated) == (3, True)


def test_an_agent_s_change_is_whole(faces: TwoFaces) -> None:
    old, new = "a" * 30_000, "b" * 20_000
    faces.call("write", "/file", old)
    seen: set[str] = set()
    ended = threading.Event()

    def look() -> None:
        while not ended.is_set():
            began = time.monotonic()
            with (faces.path / "file").open("rb", buffering=0) as file:
                content = file.read().decode()
            if time.monotonic() < began + 0.03:  # the write barrier waits no longer than 30 ms for a reader
                seen.add(content)

    reader = threading.Thread(target=look)
    reader.start()
    try:
        for _ in range(100):
            faces.call("edit", "/file", old, new)
            faces.call("edit", "/file", new, old)
    finally:
        ended.set()
        reader.join()
    assert seen and seen <= {old, new}
    assert "not found" in faces.ask("edit", "/file", new, old)["error"].lower()
    assert "exists" in faces.ask("write", "/file", "")["error"]
    assert told(InMemoryBackend(), *[("write_file", "/f", {"content": content}) for content in (old, new)]) == [
        "Updated file /f", "Updated file /f",
    ]  # fmt: skip

    (faces.path / "mixed").write_bytes(b"a\rb\x0cc\xe2\x80\xa8d\r\nneedle\nlast\r\n")
    (match,) = faces.call("grep", "needle", "/mixed")["matches"]
    sed = subprocess.run(["sed", "-n", "2p", faces.path / "mixed"], capture_output=True, check=True)
    assert (match["line"], match["text"], sed.stdout) == (2, "needle", b"needle\n")
    assert faces.call("read", "/mixed", match["line"] - 1, 1)["file_data"]["content"] == "needle\n"
    shown = faces.call("read", "/mixed")["file_data"]["content"]
    faces.call("edit", "/mixed", shown, shown.replace("needle\n", "needle\nnew\n"))
    assert (faces.path / "mixed").read_bytes() == b"a\rb\x0cc\xe2\x80\xa8d\r\nneedle\nnew\nlast\r\n"


def told(backend: Any, *calls: tuple[str, str, dict[str, str]], **options: Any) -> list[str]:
    """Return what deepagents' tools say to an agent."""
    import graphs

    script = [graphs.use(graphs.call(tool, file_path=path, **more)) for tool, path, more in calls]
    state = graphs.deep_agent(None, script, backend=backend, **options).invoke(graphs.user("go"))
    return [message.content for message in state["messages"] if message.type == "tool"]


def test_a_route_that_others_change_unseen_is_believed_for_its_ttl(tmp_path: Path, serve: Serve) -> None:
    files = tmp_path / "files"
    files.mkdir()
    path = serve(f"dir:{files}", options=["ttl=0.2"]).path
    (files / "file").write_text("one")
    assert (path / "file").read_text() == "one"
    (files / "file").write_text("three")
    eventually(lambda: (path / "file").read_text() == "three")
    status = os.getxattr(path, "user.fusebackend.status").decode()
    assert '"ttl_s": 0.2' in status


@pytest.mark.services
def test_what_one_host_closes_another_one_opens(postgres_dsn: str, serve: Serve) -> None:
    """`test_two_mounts.py` tests it at random, without a feed, and with other routes."""
    here, there = (serve(f"postgres:{postgres_dsn}?volume=v").path for _ in range(2))
    assert not (there / "d").exists()
    (here / "d").mkdir()
    for text in ("one", "three", "a longer text", ""):
        (here / "d/file").write_text(text)
        assert (there / "d/file").read_text() == text
    (there / "new").write_text("from there")
    (there / "new").rename(there / "d/file")
    assert (here / "d/file").read_text() == "from there"
    with fusebackend.connect(here) as agent:
        assert agent.edit("/d/file", "there", "an agent here").error is None
    assert (there / "d/file").read_text() == "from an agent here"
    (here / "d").rename(here / "e")
    with pytest.raises(FileNotFoundError):
        (there / "d/file").read_text()
    assert os.listdir(there / "e") == ["file"]


def test_when_fsync_returns_the_data_is_durable(tmp_path: Path, serve: Serve) -> None:
    server = serve(f"sqlite:{tmp_path}/volume.db")
    with (server.path / "file").open("wb") as file:
        file.write(b"x" * 100_000)
        file.flush()
        os.fsync(file.fileno())
        # The file alone, as a power cut would leave it: copied without asking the server.
        for name in ("volume.db", "volume.db-wal"):
            (tmp_path / f"copy.{name}").write_bytes((tmp_path / name).read_bytes())
    (tmp_path / "copy.volume.db").rename(tmp_path / "copy.db")
    (tmp_path / "copy.volume.db-wal").rename(tmp_path / "copy.db-wal")
    assert (serve(f"sqlite:{tmp_path}/copy.db").path / "file").read_bytes() == b"x" * 100_000


def test_a_killed_server_loses_nothing_that_was_synced(tmp_path: Path, serve: Serve) -> None:
    server = serve(f"sqlite:{tmp_path}/volume.db")
    for number in range(20):
        with (server.path / f"file{number}").open("wb") as file:
            file.write(os.urandom(50_000) if number % 2 else b"short")
            if number < 15:
                file.flush()
                os.fsync(file.fileno())
    wanted = {
        f"file{number}": hashlib.sha256((server.path / f"file{number}").read_bytes()).digest() for number in range(15)
    }
    server.kill()
    path = serve(f"sqlite:{tmp_path}/volume.db").path
    assert {name: hashlib.sha256((path / name).read_bytes()).digest() for name in wanted} == wanted
    mounts.sync(path)
    assert sqlite_check.check(tmp_path / "volume.db") == []


@pytest.mark.parametrize("url", ["sqlite:{tmp}/volume.db", "dir:{tmp}/files"])
def test_an_unmount_stores_everything(tmp_path: Path, serve: Serve, url: str) -> None:
    (tmp_path / "files").mkdir()
    server = serve(url.format(tmp=tmp_path))
    for number in range(200):
        (server.path / f"file{number}").write_text(str(number))
    server.stop()
    path = serve(url.format(tmp=tmp_path)).path
    assert [(path / f"file{number}").read_text() for number in range(200)] == [str(number) for number in range(200)]


def test_a_full_disk_is_an_error_and_loses_nothing(tmp_path: Path, serve: Serve) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", disk], check=True)
    try:
        server = serve(f"sqlite:{disk}/volume.db")
        server.expected_log = "No space left|disk is full"
        (server.path / "kept").write_bytes(b"k" * 100_000)
        mounts.sync(server.path)
        with pytest.raises(OSError) as failure, (server.path / "large").open("wb", buffering=0) as file:
            for _ in range(64):
                file.write(bytes(1 << 20))
            os.fsync(file.fileno())
        assert failure.value.errno == errno.ENOSPC
        assert (server.path / "kept").read_bytes() == b"k" * 100_000
        (server.path / "large").unlink()
        mounts.sync(server.path)
        (server.path / "after").write_bytes(b"a" * 100_000)
        mounts.sync(server.path)
        server.stop()
        assert sqlite_check.check(disk / "volume.db") == []
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


@pytest.mark.parametrize("url", ["sqlite:{tmp}/volume.db", "memory:"])
def test_a_limit_is_an_error_and_loses_nothing(tmp_path: Path, serve: Serve, url: str) -> None:
    limited = url.format(tmp=tmp_path) + "?limit_bytes=4MiB&limit_files=40"
    server = serve(limited)
    path = server.path

    def usage() -> dict[str, int]:
        (route,) = json.loads((path / ".fusebackend/status.json").read_text())["routes"]
        return dict(route["usage"])

    def room() -> tuple[int, int]:
        found = os.statvfs(path)
        return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize

    def run(*command: object) -> str:
        ended = subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=tmp_path)
        assert ended.returncode != 0
        return ended.stderr

    assert room() == (4 << 20, 4 << 20)
    (path / "kept").write_bytes(b"k" * (1 << 20))
    assert "Disk quota exceeded" in run("dd", "if=/dev/zero", f"of={path}/large", "bs=1M", "count=8")
    assert room() == (4 << 20, 0)
    with (path / "kept").open("r+b", buffering=0) as file:
        file.write(b"K" * (1 << 20))
        with fails(errno.EDQUOT):
            file.write(b"more")
        os.fsync(file.fileno())
        os.truncate(file.fileno(), 1 << 30)
    with fusebackend.connect(path) as client:
        assert "Disk quota exceeded" in (client.write("/agent/file", "text").error or "")
        assert "Disk quota exceeded" in (client.upload_files([("/large", bytes(5 << 20))])[0].error or "")
    assert os.listdir(path) == ["kept", "large"]
    (path / "large").unlink()
    eventually(lambda: usage()["used_bytes"] == 1 << 20, 10)

    (tmp_path / "many").mkdir()
    for number in range(60):
        (tmp_path / "many" / str(number)).write_text("x")
    subprocess.run(["tar", "-cf", "many.tar", "many"], cwd=tmp_path, check=True)
    assert "Disk quota exceeded" in run("tar", "-xf", "many.tar", "-C", path)
    assert usage() == {"used_bytes": (1 << 20) + 39 * 4096, "limit_bytes": 4 << 20, "used_files": 40, "limit_files": 40}
    assert os.statvfs(path).f_ffree == 0
    for command in ("status", "df"):
        shown = programs.command(command, path, cwd=path)
        said = "/ holds 1.15 MiB of 4 MiB (2.85 MiB left), 40 of 40 files and directories (0 left)"
        assert said in shown.stdout, shown
    if url.startswith("sqlite"):
        mounts.sync(path)
        server.kill()
        path = serve(limited).path
        assert (usage()["used_bytes"], usage()["used_files"]) == ((1 << 20) + 39 * 4096, 40)
        with pytest.raises(OSError, match="Disk quota exceeded"):
            (path / "new").touch()


def test_a_bad_row_is_one_bad_entry(tmp_path: Path, serve: Serve) -> None:
    volume = tmp_path / "volume.db"
    with SqliteBackend(volume) as backend:
        for path in ("/bad/file", "/d/file", "/near"):
            backend.write(path, "some words")
    with contextlib.closing(sqlite3.connect(volume)) as connection:
        connection.executescript("""
            UPDATE inode SET size = -1 WHERE node = (SELECT node FROM dentry WHERE name = CAST('bad' AS BLOB));
            INSERT INTO dentry SELECT node, CAST('loop' AS BLOB), node FROM dentry WHERE name = CAST('d' AS BLOB);
        """)
    server = serve(f"sqlite:{volume}")
    server.expected_log = "is damaged"
    found = subprocess.run(["find", server.path, "-type", "f"], capture_output=True, text=True, check=True)
    assert sorted(found.stdout.split()) == [f"{server.path}/d/file", f"{server.path}/near"]
    assert (server.path / "near").read_text() == "some words"
    with pytest.raises(OSError, match="Input/output error"):
        (server.path / "bad").stat()
    (server.path / "d/new").write_text("written")
    server.stop()
    assert any("size of -1" in line for line in sqlite_check.check(volume))


def test_rename_is_atomic_and_replaces_its_target(native: Path) -> None:
    old, new = native / "old", native / "new"
    old.write_text("old")
    new.write_text("new")
    with old.open() as opened:
        new.rename(old)
        assert old.read_text() == "new" and not new.exists()
        assert opened.read() == "old"
    new.write_text("other")
    with pytest.raises(FileExistsError):
        renameat2(new, old, 1)
    renameat2(new, old, 2)
    assert (old.read_text(), new.read_text()) == ("other", "new")


def test_an_unlinked_file_lives_until_it_is_closed(native: Path) -> None:
    with (native / "file").open("w+b", buffering=0) as file:
        file.write(b"one")
        (native / "file").unlink()
        file.write(b"two")
        file.seek(0)
        assert file.read() == b"onetwo"
        assert os.fstat(file.fileno()).st_nlink == 0
        assert os.listdir(native) == []


def test_hard_links_symbolic_links_special_files_modes_owners_and_times_are_kept(native: Path) -> None:
    file = native / "file"
    file.touch()
    os.link(file, native / "linked")
    assert file.stat().st_nlink == 2 and file.stat().st_ino == (native / "linked").stat().st_ino
    os.symlink(b"\xffno such", os.fsencode(native / "link"))
    assert os.readlink(os.fsencode(native / "link")) == b"\xffno such"
    os.mkfifo(native / "fifo", 0o600)
    assert stat.S_ISFIFO((native / "fifo").lstat().st_mode)
    os.chmod(file, 0o640)
    for time_ns in (-1_000_000_001, 5_000_000_000_123_456_789):
        os.utime(file, ns=(time_ns, time_ns))
        assert file.stat().st_mtime_ns == time_ns
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    if os.geteuid() == 0:
        os.chown(file, 65534, 65533)
        assert (file.stat().st_uid, file.stat().st_gid) == (65534, 65533)
        (native / "group").mkdir()
        os.chown(native / "group", 0, 65533)
        os.chmod(native / "group", 0o2775)
        (native / "group" / "inner").mkdir()
        assert (native / "group" / "inner").stat().st_gid == 65533
        assert (native / "group" / "inner").stat().st_mode & stat.S_ISGID


def test_extended_attributes_are_kept_acls_where_the_kernel_checks_them(native: Path) -> None:
    file = native / "file"
    file.touch()
    os.setxattr(file, "user.name", b"\x00value")
    assert os.getxattr(file, "user.name") == b"\x00value" and os.listxattr(file) == ["user.name"]
    os.removexattr(file, "user.name")
    with fails(errno.ENODATA):
        os.getxattr(file, "user.name")
    with fails(errno.ENOTSUP):
        os.setxattr(file, "system.posix_acl_access", MINIMAL_ACL)


def test_names_are_bytes(faces: TwoFaces) -> None:
    names = [b"a\nb", b"\xff\xfe", b"-rf", b"x" * 255, "日本".encode()]
    for name in names:
        with open(os.path.join(os.fsencode(faces.path), name), "wb") as file:
            file.write(name)
    assert sorted(os.listdir(os.fsencode(faces.path))) == sorted(names)
    entries = faces.call("ls", "/")["entries"]
    assert sorted(os.fsencode(entry["path"][1:]) for entry in entries) == sorted(names)
    assert faces.download("/\udcff\udcfe") == b"\xff\xfe"
    with fails(errno.ENAMETOOLONG):
        (faces.path / ("x" * 256)).touch()
    with fusebackend.connect(faces.path) as files:
        listed = anyio.run(lambda: TOOLS["ls"].answer(files, {}))
        shown = sorted(line.split("\t")[0] for line in listed.split("\n"))
        assert shown == sorted(["/a\\nb", "/\\377\\376", "/-rf", "/" + "x" * 255, "/日本"])
        assert anyio.run(lambda: TOOLS["delete"].answer(files, {"path": "/\\377\\376"})) == "/\\377\\376 is deleted"
    assert not os.path.lexists(os.path.join(os.fsencode(faces.path), b"\xff\xfe"))


def test_every_key_of_a_store_has_a_name(tmp_path: Path, serve: Serve) -> None:
    sqlite = pytest.importorskip("langgraph.store.sqlite")
    keys = {"/plain": "plain", "//x": "%/x", "/a/": "a/%", "/..": "%2E%2E", "bare": "bare", "/bare2": "bare2",
            "bare2": "%./bare2", "/both": "both%=", "/both/below": "both/below"}  # fmt: skip
    with sqlite.SqliteStore.from_conn_string(str(tmp_path / "store.db")) as store:
        for key in keys:
            store.put(("m",), key, {"content": key, "encoding": "utf-8"})
        for key in ("prefs", "/plain.json"):
            store.put(("m",), key, {"theme": "dark"})
        store.put(("m",), "notes", {"b": 1, "a": "one\ntwo\n"})
        store.put(("m", "sub"), "/theirs", {"content": "x", "encoding": "utf-8"})
        path = serve(f"store+sqlite:{tmp_path}/store.db?ns=m").path
        shown = {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}
        assert shown == {*keys.values(), "prefs.json", "plain.json.json", "notes.json", "notes.md"}
        assert (path / "notes.md").read_text() == "one\ntwo\n"
        assert (path / "notes.json").read_text() == '{\n  "a": "one\\ntwo\\n",\n  "b": 1\n}\n'
        for key, name in keys.items():
            assert (path / name).read_text() == key
            (path / name).write_text("changed")
            assert store.get(("m",), key).value["content"] == "changed"
        refused = (lambda: (path / "prefs.json").write_text("{}"), (path / "notes.md").unlink)
        for attempt in (*refused, lambda: (path / "prefs.json").rename(path / "y")):
            with pytest.raises(PermissionError):
                attempt()
        assert store.get(("m",), "prefs").value == {"theme": "dark"}


@pytest.mark.services
def test_a_bucket_holds_plain_objects(bucket: Bucket, serve: Serve) -> None:
    """`test_s3.py` and `tests/unit/backends/object_store/` have more."""
    bucket.put("theirs/a.txt", b"theirs\n")
    root = serve("memory:", routes={"/s3": bucket.url()}).path / "s3"
    assert (root / "theirs/a.txt").read_text() == "theirs\n"
    assert stat.S_IMODE((root / "theirs/a.txt").stat().st_mode) == 0o644
    (root / "d").mkdir()
    (root / "d/file").write_text("ours\n")
    (root / "d/file").chmod(0o600)
    (root / "d/link").symlink_to("file")
    (root / "theirs/a.txt").unlink()
    assert (bucket.get("d/file"), bucket.attributes("d/file")["mode"]) == (b"ours\n", str(0o100600))
    assert bucket.get("d/link") == b"file"
    assert os.listdir(root / "theirs") == []
    (root / "d").rename(root / "e")
    assert (root / "e/link").read_text() == "ours\n"
    with pytest.raises(OSError, match="Operation not permitted"):
        os.link(root / "e/file", root / "hard")
    with pytest.raises(OSError, match="Invalid or incomplete multibyte"):
        (root / "two\nlines").touch()
    marker = ".fusebackend.directory"
    assert bucket.all_keys() == [f"e/{marker}", "e/file", "e/link", f"theirs/{marker}"]


def test_files_may_have_holes(native: Path) -> None:
    with (native / "file").open("w+b", buffering=0) as file:
        os.pwrite(file.fileno(), b"end", 1 << 40)
        assert os.fstat(file.fileno()).st_size == (1 << 40) + 3
        assert os.fstat(file.fileno()).st_blocks * 512 < 1 << 20
        assert os.pread(file.fileno(), 5, (1 << 39) + 7) == bytes(5)
        assert os.pread(file.fileno(), 10, 1 << 40) == b"end"


def test_appends_land_at_the_end(native: Path) -> None:
    program = (
        "import os, sys\n"
        "file = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)\n"
        "for _ in range(300): os.write(file, b'line\\n')\n"
    )
    (native / "log").touch()
    writers = [subprocess.Popen([sys.executable, "-c", program, str(native / "log")]) for _ in range(3)]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    assert (native / "log").read_bytes() == b"line\n" * 900


def test_a_directory_can_be_read_while_it_changes(native: Path) -> None:
    stay = {f"stay{number}" for number in range(1000)}
    for name in stay:
        (native / name).touch()
        (native / f"go{name}").touch()
    seen = []
    with os.scandir(native) as entries:
        for number, entry in enumerate(entries):
            seen.append(entry.name)
            if number % 5 == 0:
                (native / f"gostay{number // 5}").unlink(missing_ok=True)
                (native / f"new{number}").touch()
    assert sorted(name for name in seen if name in stay) == sorted(stay)
    assert len(seen) == len(set(seen))


def test_locks_hold_on_one_mount(native: Path) -> None:
    program = (
        "import fcntl,sys\n"
        "f = open(sys.argv[1], 'r+')\n"
        "try: getattr(fcntl, sys.argv[2])(f, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "except OSError: print('locked')\n"
    )
    (native / "file").touch()
    for kind in ("flock", "lockf"):
        with (native / "file").open("r+") as file:
            getattr(fcntl, kind)(file, fcntl.LOCK_EX)
            other = [sys.executable, "-c", program, str(native / "file"), kind]
            assert subprocess.run(other, capture_output=True, check=True).stdout == b"locked\n"
        assert subprocess.run(other, capture_output=True, check=True).stdout == b""


def test_a_route_is_a_mount_point(tmp_path: Path, serve: Serve) -> None:
    path = serve(f"sqlite:{tmp_path}/volume.db", routes={"/a/b": "memory:", "/a/b/c": "memory:"}).path
    assert os.listdir(path) == ["a"] and os.listdir(path / "a") == ["b"] and os.listdir(path / "a" / "b") == ["c"]
    for refused in (lambda: (path / "a" / "b").rmdir(), lambda: (path / "a").rename(path / "z")):
        with fails(errno.EBUSY):
            refused()
    (path / "a" / "file").write_text("real now")
    for crossing in (os.rename, os.link):
        with fails(errno.EXDEV):
            crossing(path / "a" / "file", path / "a" / "b" / "file")
    subprocess.run(["mv", path / "a" / "file", path / "a" / "b" / "c" / "file"], check=True)
    assert (path / "a" / "b" / "c" / "file").read_text() == "real now"
    with fusebackend.connect(path) as client:
        assert client.move("/a/b/c/file", "/a/moved/file").error is None
        assert client.move("/a/moved", "/a/b/moved").error is None
    assert os.listdir(path / "a") == ["b"] and (path / "a/b/moved/file").read_text() == "real now"


def test_a_hung_route_hangs_alone(tmp_path: Path) -> None:
    with two_faces(tmp_path / "mnt", "memory:", "/hung=python:hanging:backend") as faces:
        failures: list[int | None] = []

        def reach() -> None:
            try:
                os.listdir(faces.path / "hung")
            except OSError as error:
                failures.append(error.errno)

        reaching = [threading.Thread(target=reach) for _ in range(3)]
        for thread in reaching:
            thread.start()
        while any(thread.is_alive() for thread in reaching):
            (faces.path / "file").write_text("at once")
            assert (faces.path / "file").read_text() == "at once"
        assert failures == [errno.ETIMEDOUT] * 3
        assert '"timeouts": 0}' not in os.getxattr(faces.path, "user.fusebackend.status").decode().split('"/hung/"')[1]
        # The hung route can't confirm that its files are stored, so the end of the mount reports an error.
        faces.status, faces.mounted.expected_log = 1, "^Traceback|could not close route /hung|^TimeoutError"


def test_a_lost_update_is_an_error(tmp_path: Path) -> None:
    with two_faces(tmp_path / "mnt", "python:seed_backends:DuckBackend") as faces:
        faces.upload("/file", b"theirs one")
        file = os.open(faces.path / "file", os.O_RDWR)
        os.write(file, b"ours")
        faces.call("behind", "upload_files", [["/file", "theirs two"]])
        with fails(errno.ESTALE):
            os.close(file)
        assert faces.download("/file") == b"theirs two"
        faces.mounted.expected_log = "was changed by others"
        (kept,) = [name for name in os.listdir(faces.path) if name.startswith("file.conflict-")]
        assert faces.download(f"/{kept}") == b"oursrs one"


def test_a_backend_of_text_gives_exact_bytes_or_an_error(serve: Serve) -> None:
    routes = {"/least": "python:seed_backends:make_text", "/edits": "python:seed_backends:make_editing"}
    server = serve("memory:", routes=routes)
    least, edits = server.path / "least", server.path / "edits"
    for directory in (least, edits):
        bash = ["bash", "-c", "printf 'one\\ntwo' > lf; printf 'one\\r\\ntwo\\r\\n' > crlf; : > empty; cat lf > copy"]
        subprocess.run(bash, cwd=directory, check=True)
        found = {name: (directory / name).read_bytes() for name in ("lf", "crlf", "empty", "copy")}
        assert found == {"lf": b"one\ntwo", "crlf": b"one\r\ntwo\r\n", "empty": b"", "copy": b"one\ntwo"}
        for data in (b"\xff\xfe", b"a\x0cb"):
            with pytest.raises(OSError) as refused:
                (directory / "new").write_bytes(data)
            assert refused.value.errno == errno.EILSEQ and not (directory / "new").exists()
    with fails(errno.EIO):
        (least / "mixed.txt").read_bytes()
    for _ in range(2):  # by `close`, then by `open`
        with pytest.raises(FileExistsError):
            (least / "lf").write_text("other\n")
        assert (least / "lf").read_bytes() == b"one\ntwo"
    subprocess.run(["bash", "-c", "echo more >> lf; echo other > copy"], cwd=edits, check=True)
    assert (edits / "lf").read_bytes() == b"one\ntwomore\n" and (edits / "copy").read_bytes() == b"other\n"
    with fusebackend.connect(server.path) as client:
        assert client.download_files(["/edits/copy"])[0].content == b"other\n"


def test_every_change_can_be_watched(tmp_path: Path, serve: Serve) -> None:
    path = serve(f"sqlite:{tmp_path}/volume.db", routes={"/m": "memory:"}).path
    with fusebackend.connect(path) as agent, agent.watch("/m") as watch:
        (path / "m" / "d").mkdir()
        (path / "m" / "d" / "f").write_text("one")
        agent.edit("/m/d/f", "one", "two")
        (path / "outside").touch()
        agent.move("/m/d", "/m/e")
        agent.delete("/m/e")
        events = [watch.get(20) for _ in range(7)]
    assert [(event.kind, event.source, event.path) for event in events if event is not None] == [
        ("created", "mount", "/m/d/"),
        ("created", "mount", "/m/d/f"),
        ("modified", "mount", "/m/d/f"),
        ("modified", "api", "/m/d/f"),
        ("moved", "api", "/m/e/"),
        ("deleted", "api", "/m/e/f"),
        ("deleted", "api", "/m/e/"),
    ]


def test_a_thread_shows_what_its_agent_saw(tmp_path: Path, serve: Serve) -> None:
    import graphs

    with graphs.sqlite_saver(tmp_path / "threads.db") as saver:
        script = [graphs.use(graphs.write("/notes.txt", "one\n")), graphs.say("done")]
        agent = graphs.deep_agent(saver, script)
        agent.invoke(graphs.user("hello"), graphs.thread("t"))
        mounted = serve(f"threads+sqlite:{tmp_path}/threads.db")
        ids = graphs.checkpoint_ids(agent, graphs.thread("t"))
        history = sorted(path for path in (mounted.path / "t/history").iterdir() if path.is_dir())
        assert len(history) == len(ids)
        assert [name.split("-", 1)[1] for name in os.listdir(mounted.path / "t/messages")] == [
            "human.md", "ai.calls.json", "ai.md", "tool-write_file.txt", "ai.md",
        ]  # fmt: skip
        assert "+one" in next((mounted.path / "t/changes").iterdir()).read_text()
        assert "hello" in (mounted.path / "@latest/transcript.md").read_text()
        assert os.readlink(mounted.path / "t/history/@latest") == history[-1].name
        assert json.loads((mounted.path / f"t/history/{history[-1].name}.state.json").read_text())["next"] == []
        for checkpoint, directory in zip(ids, history, strict=True):
            files = graphs.state_at(agent, graphs.thread("t"), checkpoint).get("files") or {}
            assert sorted(f"/{path.name}" for path in directory.iterdir()) == sorted(files)
        assert (mounted.path / "t/head/notes.txt").read_text() == "one\n"
        with fails(READ_ONLY):
            (mounted.path / "t/head/new").write_text("")
        agent.invoke(graphs.user("again"), graphs.thread("t"))
        eventually(lambda: len(os.listdir(mounted.path / "t/history")) != 3 * len(ids))


def test_a_store_s_namespaces_are_directories(tmp_path: Path, serve: Serve) -> None:
    from langgraph.store.sqlite import SqliteStore

    with SqliteStore.from_conn_string(str(tmp_path / "store.db")) as store:
        store.setup()
        store.put(("a",), "/b", {"content": "a file", "encoding": "utf-8"})
        store.put(("a", "b"), "/c", {"content": "of the namespace", "encoding": "utf-8"})
        root = serve(f"store+sqlite:{tmp_path}/store.db?tree=1").path
        assert sorted(os.listdir(root / "a")) == ["b", "b%="]
        assert (root / "a/b%=").read_text() == "a file"
        assert (root / "a/b/c").read_text() == "of the namespace"
        (root / "a/new").mkdir()
        (root / "a/new/f").write_text("new")
        assert store.get(("a", "new"), "/f").value["content"] == "new"
        with pytest.raises(PermissionError):
            (root / "top").write_text("")
        os.rename(root / "a/new/f", root / "a/b/f")
        assert store.get(("a", "b"), "/f").value["content"] == "new"
        assert store.get(("a", "new"), "/f") is None


def test_a_container_s_files_are_what_its_commands_see(
    docker_engine: DockerEngine, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", docker_engine.url)
    with docker_engine.container(name="there-before") as container:
        mounted = serve("memory:", routes={"/box": "docker:there-before?root=/tmp"})
        (mounted.path / "box/file").write_text("by the mount\n")
        assert container.exec_run(["cat", "/tmp/file"]).output == b"by the mount\n"
        held = os.open(mounted.path / "box/file", os.O_WRONLY)
        container.exec_run(["sh", "-c", "chmod 600 /tmp/file; echo by a command > /tmp/file"])
        os.write(held, b"late")
        with fails(errno.ESTALE):
            os.close(held)
        mounted.expected_log = "was changed by others"
        eventually(lambda: (mounted.path / "box/file").read_text() == "by a command\n")
        mounted.stop()
        container.reload()
        assert container.status == "running"


def test_a_verb_over_the_control_socket_is_the_verb(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/volume.db"
    with two_faces(tmp_path / "mnt", url) as faces, fusebackend.connect(faces.path) as client:
        assert client.write("/file", "one\n").error is None
        for path in ("/file", "/none", "/../x"):
            assert asdict(client.read(path)) == faces.ask("read", path)
            assert asdict(client.ls(path)) == faces.ask("ls", path)
            assert asdict(client.edit(path, "none", "x")) == faces.ask("edit", path, "none", "x")
        assert asdict(client.write("/file", "two")) == faces.ask("write", "/file", "two")
        (faces.path / "file").write_text("three\n")
        assert client.edit("/file", "three", "four").occurrences == 1
        assert (faces.path / "file").read_text() == "four\n"


def test_without_a_mount_the_verbs_are_the_same(tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    (tmp_path / "mnt").mkdir()
    config = tmp_path / "agent.toml"
    config.write_text(f'mountpoint = "{tmp_path}/mnt"\ndefault = "sqlite:agent.db"\nhistory = "on"\n')
    with served.served("--config", str(config), place=f"{tmp_path}/mnt"):
        with fusebackend.connect(config) as client:
            client.write("/file", "one\n")
            client.create_branch("work")
            client.write("/.fusebackend/branches/work/file2", "two\n")
            assert client.execute("true").exit_code == 126
        assert "is served already" in served.run("mount", "--config", str(config), status=1)
    with mounts.mounted(tmp_path / "mnt", "", config=config) as mounted, fusebackend.connect(config) as client:
        assert client.mountpoint == str(mounted.path)
        assert (mounted.path / ".fusebackend/branches/work/file2").read_text() == "two\n"
        client.undo(client.log(paths=["/file"])[0].call)
        assert not (mounted.path / "file").exists()


def test_a_command_sees_every_route_at_its_path(tmp_path: Path, serve: Serve) -> None:
    mounted = serve(f"sqlite:{tmp_path}/volume.db", routes={"/memories": "memory:"})
    (mounted.path / "memories/x").write_text("one\n")
    with fusebackend.connect(mounted.path) as client:
        assert client.execute("cat /memories/x; echo two >> /memories/x; cp /memories/x /y").output == "one\n"
        assert client.read("/y").file_data["content"] == "one\ntwo\n"
        assert (mounted.path / "memories/x").read_text() == "one\ntwo\n"
        assert client.execute("ls /; ls /home /root /mnt 2>/dev/null").output.startswith("memories\ny\n")
        assert client.execute("touch /usr/x || touch /etc/x || echo no").output.startswith("no\n")
    assert sorted(os.listdir(mounted.path)) == ["memories", "y"]
    (mounted.path / "usr").mkdir()


@pytest.mark.parametrize("library", ["asyncio", "trio"])
def test_what_is_cancelled_ends(tmp_path: Path, serve: Serve, library: str) -> None:
    mounted = serve(f"sqlite:{tmp_path}/volume.db")

    async def main(client: fusebackend.Client) -> float:
        async with anyio.create_task_group() as group:
            group.start_soon(client.aexecute, "touch /begun; sleep 60; touch /changed")
            with anyio.fail_after(30):
                while not (mounted.path / "begun").exists():
                    await anyio.sleep(0.01)
            began = time.monotonic()
            group.cancel_scope.cancel()
        return time.monotonic() - began

    with fusebackend.connect(mounted.path) as client:
        assert anyio.run(main, client, backend=library) < 30, "it would sleep for a minute"
        eventually(lambda: not client.status()["execute"]["running"])
    assert os.listdir(mounted.path) == ["begun"]


def test_a_mount_describes_itself_in_files(native: Path, serve: Serve) -> None:
    own = native / ".fusebackend"
    others = {"branches", "log", "snapshots"}  # promised by the headings below, where the mount keeps them
    assert {"status.json", "version"} <= set(os.listdir(own)) <= {"status.json", "version"} | others
    assert ".fusebackend" not in os.listdir(native)
    assert (own / "version").read_text() == f"{fusebackend.__version__}\n"
    with (own / "status.json").open("rb", buffering=0) as opened:
        first = opened.read(10)
        (native / "d").mkdir()
        now = json.loads((own / "status.json").read_bytes())
        before = json.loads(first + opened.read())
    assert now["counters"]["mkdir"] == before["counters"].get("mkdir", 0) + 1
    told = json.loads(os.getxattr(native, "user.fusebackend.status"))
    assert told.keys() == now.keys() and told["mountpoint"] == now["mountpoint"] == str(native)
    for change, number in (
        (lambda: (own / "version").write_text("x"), READ_ONLY),
        (lambda: (own / "new").mkdir(), READ_ONLY),
        (own.rmdir, errno.EBUSY),
    ):
        with fails(number):
            change()
    (native / "d/.fusebackend").mkdir()
    with fusebackend.connect(native) as client:
        assert str(client.read("/.fusebackend/version")).split()[-1] == fusebackend.__version__
        assert client.write("/.fusebackend/new", "x").error is not None
        assert client.execute("ls /.fusebackend").exit_code != 0
    visible = serve("memory:", options=["trees=visible", "trees_name=.mount"])
    assert os.listdir(visible.path) == [".mount"]
    assert not os.path.lexists(serve("memory:", options=["trees=off"]).path / ".fusebackend")


def test_a_mount_has_several_trees_of_the_same_files(native: Path) -> None:
    tree = native / ".fusebackend/private/sandbox"
    assert ".fusebackend" not in os.listdir(native)
    assert not (tree / ".fusebackend").exists()
    for change in (
        lambda: (native / ".fusebackend").rename(native / "x"),
        lambda: (tree / "usr").rename(tree / "x"),
        lambda: (tree / "usr").rmdir(),
        lambda: (tree / "usr/x").touch(),
    ):
        with fails(errno.EBUSY, errno.EPERM):
            change()
    (native / "usr").symlink_to("elsewhere")
    assert (tree / "usr").is_dir() and not (tree / "usr").is_symlink()
    assert not (tree / "d").exists()
    (native / "d").mkdir()
    (native / "d/file").write_text("one")
    with (tree / "d/file").open("r+") as opened:
        assert os.path.samestat(os.fstat(opened.fileno()), (native / "d/file").stat())
        assert opened.read() == "one"
    assert (tree / "d").stat().st_ino != (native / "d").stat().st_ino
    with fails(errno.EXDEV):
        (tree / "d/file").rename(native / "file")
    (tree / "d/file").rename(tree / "d/other")
    assert os.listdir(native / "d") == ["other"] and not (native / "d/file").exists()


@pytest.mark.parametrize("kind", ["sqlite:{tmp}/volume.db", "memory:"])
def test_a_snapshot_keeps_what_was_there(kind: str, tmp_path: Path, serve: Serve) -> None:
    (tmp_path / "files").mkdir()
    routes = {"/notes": "memory:", "/a/b": f"dir:{tmp_path}/files"}
    mounted = serve(kind.format(tmp=tmp_path), routes=routes, options=["snapshots=manual"]).path
    snapshots = mounted / ".fusebackend/snapshots"
    script = (
        "mkdir d; echo one > d/file; ln d/file linked; ln -s d/file link; mkfifo fifo; chmod 4750 linked;"
        " setfattr -n user.x -v y linked; truncate -s 1M sparse; echo note > notes/note; touch -d @1 link -h"
    )
    subprocess.run(["bash", "-euc", script], cwd=mounted, check=True)
    (mounted / "a/b/live").write_text("live")
    subprocess.run(["cp", "-a", mounted, tmp_path / "copy"], check=True)
    with fusebackend.connect(mounted) as client, (mounted / "d/file").open("r+") as opened:
        assert not (snapshots / "one").exists()
        taken = client.create_snapshot("one")
        assert taken.routes == ["/", "/notes/"]
        opened.write("ONE AND MORE")
        opened.flush()
        subprocess.run(
            ["bash", "-euc", "rm -r d link fifo sparse notes/note; chmod 600 linked"], cwd=mounted, check=True
        )
        one = snapshots / "one"
        shutil.rmtree(tmp_path / "copy/a/b")
        (tmp_path / "copy/a/b").mkdir()
        words = ["diff", "-r", "--no-dereference", "-x", "fifo", one, tmp_path / "copy"]
        subprocess.run(words, check=True)
        for path in ("d", "d/file", "linked", "link", "fifo", "sparse", "notes", "notes/note"):
            now, then = (one / path).lstat(), (tmp_path / "copy" / path).lstat()
            for name in ("st_mode", "st_uid", "st_gid", "st_mtime_ns", "st_size") if path[0] != "n" else ("st_mode",):
                assert getattr(now, name) == getattr(then, name) or stat.S_ISDIR(now.st_mode), (path, name)
        assert (one / "linked").stat().st_ino == (one / "d/file").stat().st_ino != (mounted / "linked").stat().st_ino
        assert os.getxattr(one / "linked", "user.x") == b"y"
        assert os.listdir(one / "a/b") == [] and stat.S_IMODE((one / "a/b").stat().st_mode) == 0o555
        with fails(errno.EROFS):
            (one / "new").touch()
        assert client.write("/.fusebackend/snapshots/one/new", "x").error
        with pytest.raises(FileExistsError):
            client.create_snapshot("one")
        for name in ("main", "-x", "10m", "c42", "a..b", "a/b", "@x"):
            with pytest.raises(ValueError):
                client.create_snapshot(name)
        with pytest.raises(FileNotFoundError):
            client.delete_snapshots("one", "two")
        directory = os.open(one / "d", os.O_RDONLY)
        client.delete_snapshots("one")
        assert os.listdir(snapshots) == [] and not one.exists()
        with fails(errno.ESTALE, errno.ENOENT):
            os.open("file", os.O_RDONLY, dir_fd=directory)
        os.close(directory)


@pytest.mark.parametrize("kind", ["sqlite:{tmp}/volume.db", "memory:"])
def test_what_is_changed_in_a_branch_is_changed_nowhere_else(kind: str, tmp_path: Path, serve: Serve) -> None:
    (tmp_path / "files").mkdir()
    routes = {"/notes": "memory:", "/a/b": f"dir:{tmp_path}/files"}
    mounted = serve(kind.format(tmp=tmp_path), routes=routes, options=["snapshots=manual", "ttl=0"]).path
    branch = mounted / ".fusebackend/branches/one"
    (mounted / "d").mkdir()
    for path in ("d/file", "notes/note", "a/b/live", "a/b/ours"):
        (mounted / path).write_text("before")
    before = _names_and_bytes(mounted)
    with fusebackend.connect(mounted) as client:
        assert client.create_branch("one").routes == {"/": "frozen", "/a/b/": "live", "/notes/": "frozen"}
        assert _names_and_bytes(branch) == before
        (branch / "d/file").write_text("after")
        os.link(branch / "a/b/ours", branch / "linked")
        (branch / "linked").write_text("by both names")
        (branch / "notes/note").rename(branch / "d/note")
        os.setxattr(branch / "a/b", "user.x", b"y")
        assert client.write("/.fusebackend/branches/one/a/b/new", "new").error is None
        assert _names_and_bytes(mounted) == before
        assert (branch / "a/b/ours").read_text() == "by both names"
        (mounted / "d/file").unlink()
        (mounted / "a/b/live").write_text("shows through")
        assert (branch / "d/file").read_text() == "after"
        assert (branch / "a/b/live").read_text() == "shows through"
        client.create_branch("two", "one")
        other = branch.parent / "two"
        assert _names_and_bytes(other) == _names_and_bytes(branch)
        (other / "d/file").write_text("in the other")
        (branch / "d/only").write_text("in the first")
        assert (branch / "d/file").read_text() == "after" and not (other / "d/only").exists()
        client.delete_branches("two")
        with fails(errno.EXDEV):
            (branch / "d/file").rename(mounted / "d/file")
        with fails(errno.EBUSY):
            (branch / "notes").rmdir()
        assert "notes" in client.run("ls", cwd="/.fusebackend/branches/one").output
        (snapshot,) = client.snapshots()
        with fails(errno.EBUSY):
            client.delete_snapshots(snapshot.name)
        with pytest.raises(FileExistsError):
            client.create_branch("one")
        directory = os.open(branch / "d", os.O_RDONLY)
        client.delete_branches("one")
        assert client.snapshots() == [] and not branch.exists()
        with fails(errno.ESTALE, errno.ENOENT):
            os.open("file", os.O_RDONLY, dir_fd=directory)
        os.close(directory)


def test_a_branch_can_be_in_a_plain_directory(tmp_path: Path, serve: Serve) -> None:
    mounted = serve(f"sqlite:{tmp_path}/volume.db").path
    (mounted / "kept").write_text("kept")
    (mounted / "changed").write_text("one")
    plain = tmp_path / "plain"
    with fusebackend.connect(mounted) as client:
        client.create_branch("b", directory=plain)
        (plain / "changed").write_text("two")
        (plain / "run").symlink_to("changed")
        assert (mounted / "changed").read_text() == "one"
        assert [each.path for each in client.merge_branch("b").changes] == ["/changed", "/run"]
        assert (mounted / "run").read_text() == "two"
        (mounted / ".fusebackend/branches/b/changed").write_text("three")
        with pytest.raises(OSError, match="'/changed' was changed in the branch's own tree"):
            client.take_in_branch("b")
        assert (plain / "changed").read_text() == "two"
        client.create_branch("b", directory=plain)
        assert (plain / "changed").read_text() == "three"
        client.delete_branches("b")
        (mounted / "new").write_text("new")
        before = (plain / "kept").stat()
        client.create_branch("c", directory=plain)
        after = (plain / "kept").stat()
        assert (after.st_ino, after.st_ctime_ns) == (before.st_ino, before.st_ctime_ns)
        assert (plain / "new").read_text() == "new" and (plain / "changed").read_text() == "two"
        for directory, says in (
            (Path("/etc"), "is not empty"),
            (mounted / "x", "lie in each other"),
            (plain, "holds branch"),
        ):
            with pytest.raises(OSError, match=says):
                client.create_branch("d", directory=directory)
        assert [each.name for each in client.branches()] == ["c"]


def test_a_merge_takes_what_one_side_has_changed(tmp_path: Path, serve: Serve) -> None:
    (tmp_path / "files").mkdir()
    mounted = serve(f"sqlite:{tmp_path}/volume.db", routes={"/live": f"dir:{tmp_path}/files"}).path
    for top in (mounted, mounted / "live"):
        subprocess.run(["bash", "-euc", "mkdir d; echo 1 > d/one; echo 2 > d/two; echo 3 > three"], cwd=top, check=True)
    with fusebackend.connect(mounted) as client:
        client.create_branch("b")
        for top in (mounted / ".fusebackend/branches/b", mounted / ".fusebackend/branches/b/live"):
            subprocess.run(["bash", "-euc", "mv d e; echo more >> e/one; rm three; ln e/two two"], cwd=top, check=True)
        for top in (mounted, mounted / "live"):
            subprocess.run(["bash", "-euc", "echo new > d/new; echo other > three"], cwd=top, check=True)
        refused = client.merge_branch("b")
        assert [each.path for each in refused.conflicts] == ["/three", "/live/three"]
        assert (mounted / "d/one").read_text() == "1\n"
        with (mounted / "d/one").open("a"):
            assert "/d/one" in [each.path for each in client.merge_branch("b", keep="main").conflicts]
        with (mounted / "d/one").open() as reading:
            merged = client.merge_branch("b", keep="main")
            assert not merged.conflicts
            assert reading.read() == "1\n"
        for top in (mounted, mounted / "live"):
            assert sorted(path.name for path in (top / "e").iterdir()) == ["new", "one", "two"]
            assert (top / "e/one").read_text() == "1\nmore\n"
            assert (top / "three").read_text() == "other\n"
            assert (top / "two").stat().st_nlink == 2
            assert not (top / "d").exists()
        assert not client.merge_branch("b", keep="main").changes
        assert merged.call is not None
        client.undo(merged.call)
        assert sorted(path.name for path in (mounted / "live/d").iterdir()) == ["new", "one", "two"]
        assert (mounted / "d/one").read_text() == "1\n"


def _names_and_bytes(top: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(top)): path.read_bytes() if path.is_file() else None for path in top.rglob("*")}


def test_a_call_in_a_branch_is_a_call(tmp_path: Path, serve: Serve) -> None:
    mounted = serve(f"sqlite:{tmp_path}/volume.db", options=["history=on"]).path
    (mounted / "one").write_text("of the mount\n")
    with fusebackend.connect(mounted) as client:
        client.create_branch("b")
        branch = mounted / ".fusebackend/branches/b"
        of_mount = client.log(limit=1)[0].call
        name = client.begin_call("work in the branch")
        subprocess.run(["bash", "-euc", "echo changed > one; mkdir d; echo 2 > d/two"], cwd=branch, check=True)
        call = client.end_call(name)
        assert client.log(limit=1)[0].call == of_mount, "the log is about the mount"
        assert [each.call for each in client.log(branch="b")] == [call]
        undone = client.undo(call)
        assert undone.conflicts == [], (undone.conflicts, history_of(mounted, "restore"))
        assert (branch / "one").read_text() == "of the mount\n" and not (branch / "d").exists()
        assert client.merge_branch("b").changes == []


def test_a_view_shows_what_its_rules_allow(tmp_path: Path, serve: Serve) -> None:
    config = tmp_path / "views.toml"
    config.write_text(
        """
        [routes]
        "/ro" = { url = "memory:", read_only = true }
        "/hiding" = { url = "memory:", hide = ["*.key"] }
        [views.v]
        rules = [
            { operations = ["read", "write"], paths = ["/**/.env"], mode = "hide" },
            { operations = ["read", "write"], paths = ["/secrets/**"], mode = "deny" },
            { operations = ["write"], paths = ["/log"], mode = "append" },
        ]
        """
    )
    mounted = serve("memory:", config=config).path
    view = mounted / ".fusebackend/views/v"
    (mounted / "secrets").mkdir()
    for name in (".env", "secrets/key", "log", "plain"):
        (mounted / name).write_text("text")
    assert sorted(os.listdir(view)) == ["hiding", "log", "plain", "ro", "secrets"]
    assert os.listdir(view / "secrets") == []
    assert os.stat(view / "plain").st_ino == os.stat(mounted / "plain").st_ino
    os.link(view / "plain", view / "linked")  # git compares the numbers before and after
    assert os.stat(view / "plain").st_ino == os.stat(view / "linked").st_ino == os.stat(mounted / "plain").st_ino
    (view / "linked").unlink()
    for number, work in (
        (errno.ENOENT, lambda: (view / ".env").read_text()),
        (errno.EACCES, lambda: (view / ".env").write_text("x")),
        (errno.EACCES, lambda: (view / "secrets/key").read_text()),
        (errno.EACCES, lambda: os.link(view / "secrets/key", view / "linked")),
        (errno.EACCES, lambda: (view / "log").write_text("x")),
        (errno.EXDEV, lambda: os.rename(view / "secrets", view / "public")),
        (errno.EXDEV, lambda: os.rename(view / "plain", mounted / "moved")),
        (errno.EROFS, lambda: (mounted / "ro/x").write_text("x")),
        (errno.EACCES, lambda: (mounted / "hiding/.key").write_text("x")),
    ):
        with fails(number):
            work()
    with fusebackend.connect(mounted) as client:
        (mounted / "hiding/seen").write_text("1")
        assert client.create_snapshot("s").routes == ["/", "/hiding/", "/ro/"]
        client.create_branch("b")
        assert os.listdir(mounted / ".fusebackend/snapshots/s/hiding") == ["seen"]
        (mounted / ".fusebackend/branches/b/hiding/.key").write_text("x")
        with pytest.raises(PermissionError):
            client.merge_branch("b")
    with (view / "log").open("a") as log:
        log.write("more")
    with fusebackend.connect(mounted, view="v") as client:
        assert client.read("/log").file_data["content"] == "textmore"
        for name in ("seen", ".env"):
            (mounted / "tree/d").mkdir(parents=True, exist_ok=True)
            (mounted / "tree/d" / name).write_text(name)
        for refusal in (client.move("/tree", "/hiding/tree"), client.delete("/tree")):
            assert "Permission denied" in str(refusal.error)
        assert sorted(os.listdir(mounted / "tree/d")) == [".env", "seen"] and os.listdir(mounted / "tree") == ["d"]
        assert os.listdir(mounted / "hiding") == ["seen"]
        assert str(client.read("/.env").error) == "File '/.env' not found"
        assert "Permission denied" in str(client.read("/secrets/key").error)
    with fusebackend.connect(mounted) as client:
        address = client.view_socket("v")
    with fusebackend.connect(address) as client:
        assert "Permission denied" in str(client.read("/secrets/key").error)
        with fails(errno.EPERM):
            client.view_socket("v")
        assert "Permission denied" in client.execute("cat /secrets/key").output
    from deepagents import FilesystemPermission

    (tmp_path / "files/secrets").mkdir(parents=True)
    (tmp_path / "files/way").symlink_to("secrets")
    for name in ("secrets/key", "plain"):
        (tmp_path / "files" / name).write_text("text")
    with FilesystemBackend(tmp_path / "files") as files:
        rules = [FilesystemPermission(operations=["read"], paths=["/secrets/**"], mode="deny")]
        said = told(files, ("read_file", "/way/key", {}), ("read_file", "/plain", {}), permissions=rules)
        assert said[0] == "Error: permission denied for read on /way/key (resolves to /secrets/key)"
        assert said[1].endswith("text")


def test_what_is_interrupted_waits_for_an_approval(tmp_path: Path, serve: Serve) -> None:
    config = tmp_path / "approvals.toml"
    rule = '{ operations = ["write"], paths = ["/prod/**"], mode = "interrupt" }'
    start = '{ operations = ["execute"], paths = ["/prod"], mode = "interrupt" }'
    config.write_text(f"[views.v]\nrules = [{rule}, {start}]\n[approvals]\nwait = '1 ms'\n")
    mounted = serve("memory:", config=config).path
    with fusebackend.connect(mounted, view="v") as agent, fusebackend.connect(mounted) as owner:
        (mounted / "prod").mkdir()
        assert "it is request 1;" in str(agent.write("/prod/a", "one").error)
        assert agent.write("/prod/a", "one").error == agent.write("/prod/a", "one").error
        with pytest.raises(PermissionError):
            agent.approve(1)
        assert not (mounted / "prod/a").exists()
        assert owner.approve(1).state == "made"
        assert (mounted / "prod/a").read_text() == "one"
        assert "it is request 2;" in str(agent.edit("/prod/a", "one", "two").error)
        (mounted / "prod/a").write_text("one more")
        assert owner.approve(2).reason == "'/prod/a' was changed since it was asked for; have it asked for again"
        with pytest.raises(OSError, match="decided already"):
            owner.approve(2)
        assert (mounted / "prod/a").read_text() == "one more"
        with pytest.raises(PermissionError):
            (mounted / ".fusebackend/views/v/prod/a").write_text("x")
        assert [each.state for each in owner.approvals()] == ["made", "failed", "refused"]
        ran = agent.run("touch /ran", cwd="/prod")
        assert (ran.exit_code, "it is request 4;" in ran.output) == (126, True)
        assert owner.approve(4).state == "made"
        assert (mounted / "ran").exists()
        large = agent.upload_files([("/prod/large", bytes(2 << 20))])
        assert "a request keeps at most 1024 KiB" in str(large[0].error)
        titles = [each.title for each in owner.log(limit=100) if each.kind in ("request", "approval")]
        assert "approve 1: write /prod/a" in titles
        assert "request 3: change /prod/a" in titles


@pytest.mark.parametrize("kind", ["sqlite:{tmp}/volume.db", "memory:"])
def test_what_was_there_for_ten_seconds_can_be_had_back(kind: str, tmp_path: Path, serve: Serve) -> None:
    mounted = serve(kind.format(tmp=tmp_path)).path
    snapshots = mounted / ".fusebackend/snapshots"
    (mounted / "work").mkdir()
    (mounted / "work/file").write_text("precious\n")

    def with_file() -> list[str]:
        return sorted(each.parts[-3] for each in snapshots.glob("@*/work/file") if each.read_text() == "precious\n")

    eventually(with_file, 60)
    for loss in ("rm -r work", ": > work/file", "echo other > work/file", "echo x > x; mv x work/file"):
        subprocess.run(["bash", "-euc", loss], cwd=mounted, check=True)
        programs.ok("restore", "work", "--from", with_file()[-1], cwd=mounted)
        assert (mounted / "work/file").read_text() == "precious\n"


def test_a_restore_puts_back_what_was_there(tmp_path: Path, serve: Serve) -> None:
    (tmp_path / "files").mkdir()
    mounted = serve(f"sqlite:{tmp_path}/volume.db", routes={"/live": f"dir:{tmp_path}/files"}).path
    make = "mkdir d; echo 1 > d/one; ln d/one d/two; ln -s one d/sym; chmod 750 d; setfattr -n user.a -v b d/one"
    for top in (mounted, mounted / "live"):
        subprocess.run(["bash", "-euc", make], cwd=top, check=True)
    with fusebackend.connect(mounted) as client:
        client.create_snapshot("then")
        client.create_branch("b")
        (mounted / ".fusebackend/branches/b/live/d/new").write_text("of the branch\n")
        work = "echo 2 >> d/one; mkdir d/extra; rm d/sym; chmod 700 d"
        subprocess.run(["bash", "-euc", work], cwd=mounted, check=True)
        directory = (mounted / "d").stat().st_ino
        with (mounted / "d/two").open("a"):
            refused = client.restore(["/d"], "then")
            assert refused.conflicts and not refused.changes and (mounted / "d/extra").exists()
        with (mounted / "d/one").open() as reading:
            done = client.restore(["/"], "then")
            assert reading.read() == "1\n2\n"
        assert sorted(os.listdir(mounted / "d")) == ["one", "sym", "two"]
        assert (mounted / "d/two").read_text() == "1\n" and os.readlink(mounted / "d/sym") == "one"
        assert os.getxattr(mounted / "d/one", "user.a") == b"b" and (mounted / "d/one").stat().st_nlink == 2
        there = (mounted / "d").stat()
        assert (there.st_ino, stat.S_IMODE(there.st_mode)) == (directory, 0o750)
        assert not (mounted / "live/d/new").exists(), "the snapshot holds nothing of this route"
        assert [each.path for each in client.restore(["/live/d"], "b").changes] == ["/live/d", "/live/d/new"]
        assert (mounted / "live/d/new").read_text() == "of the branch\n"
        client.restore(["/d/one"], "then", to=["/live/d/copy"])
        assert (mounted / "live/d/copy").read_text() == "1\n"
        (mounted / "away").symlink_to(tmp_path)
        with pytest.raises(NotADirectoryError):
            client.restore(["/d/one"], "then", to=["/away/copy"])
        assert client.restore(["/d"], "then").changes == []
        assert done.call is not None
        undone = client.undo(done.call)
        assert undone.conflicts == [], (undone.conflicts, history_of(mounted, "restore"))
        assert (mounted / "d/one").read_text() == "1\n2\n" and (mounted / "d/extra").is_dir()
        client.write("/live/d/exact", "before\n")
        client.edit("/live/d/exact", "before", "after")
        call = client.log(limit=1)[0].call
        client.delete("/live/d/exact")
        client.restore(["/live"], call)
        assert (mounted / "live/d/exact").read_text() == "before\n"


def history_of(mounted: mounts.Mounted, wanted: str) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """Return the calls of a mount that hold a word: kind, title, and the changes by kind and path."""
    with fusebackend.connect(mounted.path) as client:
        return [
            (call.kind, call.title, [(change.change, change.path) for change in client.changes(call.call)])
            for call in reversed(client.log())
            if wanted in call.title
        ]


@pytest.mark.parametrize("kind", ["sqlite:{tmp}/volume.db", "dir:{tmp}/files"], ids=["sqlite", "dir"])
def test_every_change_has_a_call(kind: str, tmp_path: Path, serve: Serve) -> None:
    (tmp_path / "files").mkdir()
    mounted = serve(kind.format(tmp=tmp_path))
    path = mounted.path
    with fusebackend.connect(path) as client:
        assert client.write("/made", "by a verb\n").error is None
        assert client.read("/nowhere").error and client.delete("/nowhere").error
        done = client.run("echo a > /one; setsid sh -c 'echo b >> /two; mv /two /three'; sh -c 'rm /made' & wait")
        assert done.exit_code == 0, done.output
        with fusebackend.acting(fusebackend.Actor(agent="planner", call="toolu_9")):
            client.write("/tool", "x")
            client.edit("/tool", "x", "y")
    script = "echo session1 > f; exec 7> g; (setsid sh -c 'echo h > other'); echo i >&7; ln f l; mkdir d; mv d e"
    subprocess.run(["bash", "-c", script], cwd=path, check=True, start_new_session=True)
    with mmap_of(path / "three") as mapped:
        mapped[0:1] = b"B"
        mapped.flush()
    assert [found[2] for found in history_of(mounted, "write /made")] == [[("create", "/made")]]
    assert history_of(mounted, "nowhere") == []
    ((of_command, _, changes),) = history_of(mounted, "echo a > /one")
    assert of_command == "command"
    assert sorted(changes) == [("create", "/one"), ("create", "/two"), ("remove", "/made"), ("rename", "/two")]
    ((of_tool, _, changes),) = history_of(mounted, "/tool")
    assert (of_tool, changes) == ("tool", [("create", "/tool")])
    ((of_session, _, changes),) = history_of(mounted, "session1")
    assert (of_session, changes) == (
        "session",
        [("create", "/f"), ("create", "/g"), ("create", "/l"), ("create", "/d"), ("rename", "/d")],
    )
    assert [found[2] for found in history_of(mounted, "sh -c echo h")] == [[("create", "/other")]]
    assert ("session", [("content", "/three")]) in [(kind, found) for kind, _, found in history_of(mounted, "")]
    status = json.loads((path / ".fusebackend/status.json").read_text())["history"]
    assert status["incomplete"] is None
    directory = Path(status["path"])
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / "history.db").stat().st_mode) == 0o600
    if kind.startswith("sqlite"):
        with fusebackend.connect(path) as client:
            client.write("/last", "x")
        with open(path / "last") as file:
            os.fsync(file.fileno())  # in the volume's file now, and so its record in the history
        mounted.process.kill()
        mounted.process.wait()
        kept = sqlite3.connect(directory / "history.db")
        assert kept.execute("SELECT kind FROM records WHERE path = ?", (b"/last",)).fetchall() == [("create",)]
        kept.close()


def test_the_log_is_read_as_files(serve: Serve) -> None:
    mounted = serve("memory:")
    log = mounted.path / ".fusebackend/log"
    with fusebackend.connect(mounted.path) as client, open(log / "today.jsonl") as opened:
        for name in ("one", "two"):
            client.write(f"/{name}", "x")
            (line,) = opened.readlines()
            assert json.loads(line)["title"] == f"write /{name}"
            assert json.loads(line)["changed"] == [{"change": "create", "path": f"/{name}", "to_path": None}]
        assert len((log / "calls.tsv").read_text().splitlines()) == 3
        assert {stat.S_IMODE(path.stat().st_mode) for path in log.iterdir()} == {0o400}
        assert os.stat(log / "today.jsonl").st_size == opened.tell()
        with fails(READ_ONLY):
            os.truncate(log / "today.jsonl", 0)
        client.prune()
        assert (log / "today.jsonl").read_text() == ""


@contextlib.contextmanager
def mmap_of(path: Path) -> Iterator[mmap.mmap]:
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        yield mapped


@pytest.mark.parametrize(
    ("kind", "undo"), [("sqlite:{tmp}/volume.db", "instant"), ("dir:{tmp}/files", "copies")], ids=["sqlite", "dir"]
)
def test_the_bytes_before_a_change_are_kept_for_a_day(kind: str, undo: str, tmp_path: Path, serve: Serve) -> None:
    (tmp_path / "files").mkdir()
    mounted = serve(kind.format(tmp=tmp_path))
    path = mounted.path
    big = os.urandom(65 << 20)
    script = "echo old > file; setfattr -n user.a -v b file; chmod 640 file; echo x > gone; truncate -s 8M holes"
    subprocess.run(["bash", "-c", script], cwd=path, check=True, start_new_session=True)
    (path / "big").write_bytes(big)
    with fusebackend.connect(path) as client:
        for number in range(3):
            client.write(f"/verb{number}", "kept\n")
        client.delete("/verb0")
        client.edit("/verb1", "kept", "lost")
        client.move("/verb1", "/verb2")
        ((route,), status) = client.status()["routes"], client.status()["history"]
    assert route["undo"] == undo and status["incomplete"] is None
    script = "echo new > file; rm gone; echo y > holes; : > big; echo t > temporary; rm temporary"
    subprocess.run(["bash", "-c", script], cwd=path, check=True, start_new_session=True)
    with fusebackend.connect(path) as client:
        newest = client.log(limit=1)[0]
        changes = {change.path: change for change in client.changes(newest.call) if change.change != "create"}
        assert [(change.path, change.size) for change in changes.values()] == [
            ("/file", 4), ("/gone", 2), ("/holes", 8 << 20), ("/big", 65 << 20), ("/temporary", 2),
        ]  # fmt: skip
        assert changes["/temporary"].kept is None  # the call had made it itself
        lost = changes["/big"]
        if undo == "instant":
            assert lost.kept == "snapshot"
        else:
            assert (lost.kept, lost.why_lost) == ("lost", "larger than 64 MiB")
            images = Path(status["path"]) / "images"
            assert sum(each.stat().st_blocks for each in images.iterdir()) * 512 < 1 << 20, "holes are kept as holes"
            (path / "big").unlink()
            client.write("/big", "")
        result = client.undo(newest.call)
        assert result.conflicts == [] or undo == "copies"
        if undo == "instant":
            assert (path / "file").read_text() == "old\n" and os.getxattr(path / "file", "user.a") == b"b"
            assert stat.S_IMODE((path / "file").stat().st_mode) == 0o640
            assert (path / "gone").read_text() == "x\n" and not (path / "temporary").exists()
            assert (path / "holes").read_bytes() == bytes(8 << 20)
            assert (path / "big").read_bytes() == big


def test_what_is_forgotten_is_kept_nowhere(tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "kept"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "kept"))
    (tmp_path / "kept").mkdir()
    mounted = serve(f"sqlite:{tmp_path}/kept/volume.db").path
    secret = b"hunter2-correct-horse"
    with fusebackend.connect(mounted) as client:
        client.write("/file", secret.decode())
        client.write("/other", "stays")
        client.create_snapshot("then")
        client.create_branch("b")
        (mounted / ".fusebackend/branches/b/file").write_bytes(b"mine: " + secret)
        changed = client.edit("/file", secret.decode(), "***")
        assert changed.error is None
        call = client.log(paths=["/file"])[0].call
        assert client.forget("/file").branches == ["b"]
        files = [each for each in (tmp_path / "kept").rglob("*") if each.is_file()]
        assert files and not [each.name for each in files if secret in each.read_bytes()]
        assert (mounted / "file").read_text() == "***"
        assert (mounted / ".fusebackend/snapshots/then/other").read_text() == "stays"
        for tree in ("snapshots/then", "branches/b"):
            assert not (mounted / ".fusebackend" / tree / "file").exists()
        assert client.log(paths=["/file"])[0].call == call
        assert "were forgotten" in client.undo(call, dry_run=True).conflicts[0].reason


def test_a_default_that_runs_commands_runs_them_itself(tmp_path: Path, serve: Serve) -> None:
    marked = serve("python:guests:marked", routes={"/notes": "memory:"})
    with fusebackend.connect(marked.path) as client:
        assert client.execute("touch /x").output.startswith("ran in the default itself: 'touch /x'")
        assert not (marked.path / "x").exists()
        assert client.status()["execute"]["unseen_routes"].keys() == {"/notes/"}
        assert client.run("cat", stdin=b"x").exit_code == 126

    elsewhere = serve(f"python:guests:hosted?directory={tmp_path}", routes={"/notes": "memory:"})
    (elsewhere.path / "notes/n").write_text("a note")
    with fusebackend.connect(elsewhere.path) as client:
        assert client.execute("cat notes/n; echo made > notes/made").output == "a note"
        assert (elsewhere.path / "notes/made").read_text() == "made\n"
        (elsewhere.path / "notes/n").write_text("changed here")
        (tmp_path / "root/notes/n").write_text("changed in the sandbox")
        note = client.execute("true").output
        (beside,) = (elsewhere.path / "notes").glob("n.conflict-*")
        assert f"the sandbox's version is /notes/{beside.name}" in note
        assert (elsewhere.path / "notes/n").read_text() == "changed here"
        assert beside.read_text() == "changed in the sandbox"


def test_a_failure_ends_one_request(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve("python:faulty:backend")
    server.expected_log = "^Traceback|injected|defect"
    assert not (server.path / "arm-mkdir-1").exists()
    with fails(errno.EIO):
        (server.path / "directory").mkdir()
    assert not (server.path / "disarm-1").exists()
    (server.path / "directory").mkdir()
    disk = Failing(monkeypatch)  # all statements of all operations: tests/unit/backends/sqlite/test_failing_disk.py
    volume = SqliteVolume(tmp_path / "failing.db")
    file = put(volume, b"file", bytes(200_000))
    volume.sync()
    volume._shrink_all()
    before = volume.getattr(file).fingerprint
    with disk.after(1), fails(errno.EIO):
        volume.write(file, 1, b"x" * 150_000)
    assert (volume.read(file, 0, 1 << 20), volume.getattr(file).fingerprint) == (bytes(200_000), before)
    volume.close()
