"""One test for each promise of SEMANTICS.md, under the name of its heading: the promise alone. The modules that its
docstring names have the errors, the other volumes, and random work. What POSIX promises is a table of the cases of
`fusebackend.testing.posix`."""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import re
import sqlite3
import stat
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import mounts
import programs
import pytest
import served
from eventually import eventually
from kinds import MEMORY
from mounts import Serve
from services.docker import DockerEngine
from services.s3 import Bucket
from together import beside, over_and_over, together
from two_faces import TwoFaces

import fusebackend
from fusebackend.backends import FilesystemBackend, InMemoryBackend, SqliteBackend
from fusebackend.backends.sqlite import check as sqlite_check
from fusebackend.integrations.tools import TOOLS
from fusebackend.testing.posix import PosixCases
from fusebackend.testing.posix.case import fails, opened, refused

SEMANTICS = Path(fusebackend.__file__).with_name("SEMANTICS.md")
MINIMAL_ACL = bytes.fromhex("0200000001000600ffffffff04000400ffffffff20000400ffffffff")
READ_ONLY = errno.EROFS if os.geteuid() == 0 else errno.EACCES
"""The kernel looks at the modes first, except for root."""
NATIVE = ["sqlite:{tmp}/volume.db", MEMORY, "dir:{tmp}/files"]


def slug(heading: str) -> str:
    return "test_" + re.sub(r"\W+", "_", heading.lower()).strip("_")


POSIX = {
    "Rename is atomic and replaces its target": (
        "test_the_target_of_a_rename_is_never_missing",
        "test_rename_over_an_open_file_keeps_the_old_data_for_its_handle",
        "test_noreplace_refuses_an_existing_target",
        "test_exchange_swaps_two_files",
    ),
    "An unlinked file lives until it is closed": (
        "test_a_file_unlinked_while_open_lives_on",
        "test_a_removed_directory_that_is_open_is_empty",
    ),
    "Hard links, symbolic links, special files, modes, owners and times are kept": (
        "test_a_hard_link_is_the_same_file",
        "test_a_symlink_is_followed",
        "test_a_dangling_symlink",
        "test_a_fifo_passes_data",
        "test_mknod_keeps_the_device_number",
        "test_chmod_of_a_file",
        "test_chmod_is_seen_through_every_link",
        "test_chown_sets_owner_and_group",
        "test_a_setgid_directory_passes_its_group_on",
        "test_times_before_1970_and_after_2038",
        "test_changing_contents_without_privileges_clears_the_bits",
    ),
    "Files may have holes": (
        "test_a_sparse_file_of_2_to_the_50",
        "test_a_hole_reads_as_zeros",
        "test_a_hole_takes_no_blocks",
        "test_a_size_near_the_largest_is_refused_or_kept",
    ),
    "Appends land at the end": (
        "test_two_appending_processes_lose_nothing",
        "test_o_append_writes_at_the_end_whatever_the_offset",
    ),
    "A directory can be read while it changes": (
        "test_a_large_directory_read_while_it_changes",
        "test_a_large_directory_read_while_another_process_changes_it",
    ),
    "Locks hold on one mount": (
        "test_flock_excludes_another_handle",
        "test_twenty_waiters_on_one_flock",
        "test_record_locks_exclude_another_process",
    ),
}
"""Promises that POSIX makes as well, with the cases that check them. `test_posix_mounts.py` runs them on each kind of
volume: by day on `sqlite:`, `memory:` and `dir:` at least."""


def test_every_promise_has_its_test() -> None:
    headings = re.findall(r"^## (.*)$", SEMANTICS.read_text(), re.MULTILINE)
    promised = [slug(heading) for heading in headings if heading not in ("What is not promised", *POSIX)]
    here = [name for name in globals() if name.startswith("test_") and name != "test_every_promise_has_its_test"]
    assert promised == here
    assert POSIX.keys() <= set(headings)
    assert {name for names in POSIX.values() for name in names} <= set(dir(PosixCases))


@pytest.fixture(scope="module", params=NATIVE, ids=["sqlite", "memory", "dir"])
def native_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with mounts.of_kind(request, tmp_path_factory, request.param, options=mounts.OTHERS) as server:
        yield server.path


@pytest.fixture
def native(native_server: Path) -> Iterator[Path]:
    yield native_server
    mounts.empty(native_server)


def test_what_was_closed_is_seen_by_whoever_opens_next(faces: TwoFaces) -> None:
    """`test_coherence.py` and `test_one_truth.py` have mappings, moves and random changes."""
    file = faces.path / "file"
    assert not file.exists()  # absence is cached now
    faces.call("write", "/file", "one\n")
    with file.open("rb", buffering=0) as opened:
        assert opened.read() == b"one\n"
        faces.call("edit", "/file", "one", "three")
        assert (os.fstat(opened.fileno()).st_size, os.pread(opened.fileno(), 9, 0)) == (6, b"three\n")
    file.write_text("four\n")
    assert faces.call("read", "/file")["file_data"]["content"] == "four\n"
    faces.call("move", "/file", "/moved")
    assert os.listdir(faces.path) == ["moved"] and not file.exists()


def test_a_search_finds_what_was_closed_and_ends(native: Path) -> None:
    with fusebackend.connect(native) as client:
        for number in range(3):
            (native / f"{number}.txt").write_text(f"number{number}\n" * 2)
            found = client.grep(f"number{number}").matches or []
            assert [match["path"] for match in found] == [f"/{number}.txt"] * 2
        (native / "1.txt").write_text("replaced\n")
        (native / "2.txt").rename(native / "2.md")
        assert client.grep("number1").matches == []
        assert {match["path"] for match in client.grep("number2").matches or []} == {"/2.md"}
        cut = client.grep("number", max_count=3)
        assert (len(cut.matches or []), cut.truncated) == (3, True)


def test_an_agent_s_change_is_whole(faces: TwoFaces) -> None:
    old, new = "a" * 30_000, "b" * 20_000
    faces.call("write", "/file", old)
    seen: set[str] = set()

    def look() -> None:
        began = time.monotonic()
        with (faces.path / "file").open("rb", buffering=0) as file:
            content = file.read().decode()
        if time.monotonic() < began + 0.03:  # the write barrier waits no longer than 30 ms for a reader
            seen.add(content)

    with over_and_over(look):
        for _ in range(100):
            faces.call("edit", "/file", old, new)
            faces.call("edit", "/file", new, old)
    assert seen and seen <= {old, new}
    assert "not found" in faces.ask("edit", "/file", new, old)["error"].lower()
    assert "exists" in faces.ask("write", "/file", "")["error"]
    assert told(InMemoryBackend(), *[("write_file", "/f", {"content": content}) for content in (old, new)]) == [
        "Updated file /f", "Updated file /f",
    ]  # fmt: skip
    (faces.path / "mixed").write_bytes(b"a\rb\x0cc\xe2\x80\xa8d\r\nneedle\nlast\r\n")
    (match,) = faces.call("grep", "needle", "/mixed")["matches"]
    assert (match["line"], match["text"]) == (2, "needle"), "the line of `sed -n 2p`"
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


def test_what_one_host_closes_another_one_opens(postgres_dsn: str, serve: Serve) -> None:
    """`test_two_mounts.py` tests it at random, without a feed, and with other routes."""
    here, there = (serve(f"postgres:{postgres_dsn}?volume=v").path for _ in range(2))
    assert not (there / "file").exists()
    for text in ("one", "three", ""):
        (here / "file").write_text(text)
        assert (there / "file").read_text() == text
    with fusebackend.connect(there) as agent:
        assert agent.upload_files([("/file", b"by an agent")])[0].error is None
    assert (here / "file").read_text() == "by an agent"


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
    """`test_crash.py` kills servers at random, with writers beside them."""
    server = serve(f"sqlite:{tmp_path}/volume.db")
    wanted = {f"file{number}": os.urandom(50_000) if number % 2 else b"short" for number in range(8)}
    for name, content in wanted.items():
        with (server.path / name).open("wb", buffering=0) as file:
            file.write(content)
            os.fsync(file.fileno())
    (server.path / "not synced").touch()
    server.kill()
    path = serve(f"sqlite:{tmp_path}/volume.db").path
    assert {name: (path / name).read_bytes() for name in wanted} == wanted
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


def test_a_full_disk_is_an_error_and_loses_nothing(small_disk: Path, serve: Serve) -> None:
    """`test_limits.py` fills it file by file, and kills the server."""
    server = serve(f"sqlite:{small_disk}/volume.db")
    server.expected_log = "No space left|disk is full"
    (server.path / "kept").write_bytes(b"k" * 100_000)
    mounts.sync(server.path)
    with fails(errno.ENOSPC), (server.path / "large").open("wb", buffering=0) as file:
        for _ in range(64):
            file.write(bytes(1 << 20))
        os.fsync(file.fileno())
    (server.path / "large").unlink()
    mounts.sync(server.path)
    assert (server.path / "kept").read_bytes() == b"k" * 100_000
    server.stop()
    assert sqlite_check.check(small_disk / "volume.db") == []


@pytest.mark.parametrize("url", ["sqlite:{tmp}/volume.db", MEMORY])
def test_a_limit_is_an_error_and_loses_nothing(tmp_path: Path, serve: Serve, url: str) -> None:
    """`tests/unit/volumes/test_quota.py` counts at random, and has the other ways to be refused."""
    limited = url.format(tmp=tmp_path) + "?limit_bytes=4MiB&limit_files=40"
    server = serve(limited)
    path = server.path

    def usage() -> dict[str, int]:
        (route,) = json.loads((path / ".fusebackend/status.json").read_text())["routes"]
        return dict(route["usage"])

    def room() -> tuple[int, int]:
        found = os.statvfs(path)
        return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize

    assert room() == (4 << 20, 4 << 20)
    (path / "kept").write_bytes(b"k" * (1 << 20))
    dd = ["dd", "if=/dev/zero", f"of={path}/large", "bs=1M", "count=8"]
    assert b"Disk quota exceeded" in subprocess.run(dd, capture_output=True).stderr
    assert room() == (4 << 20, 0)
    with (path / "kept").open("r+b", buffering=0) as file:
        file.write(b"K" * (1 << 20))
        refused(errno.EDQUOT, file.write, b"more")
        os.truncate(file.fileno(), 1 << 30)
    with fusebackend.connect(path) as client:
        assert "Disk quota exceeded" in (client.write("/agent/file", "text").error or "")
    (path / "large").unlink()
    eventually(lambda: usage()["used_bytes"] == 1 << 20, 10)
    with fails(errno.EDQUOT):
        for number in range(60):
            (path / str(number)).write_text("x")
    assert usage() == {"used_bytes": (1 << 20) + 39 * 4096, "limit_bytes": 4 << 20, "used_files": 40, "limit_files": 40}
    assert os.statvfs(path).f_ffree == 0
    said = "/ holds 1.15 MiB of 4 MiB (2.85 MiB left), 40 of 40 files and directories (0 left)"
    assert said in programs.ok("status", path, cwd=path) and said in programs.ok("df", cwd=path)
    if url.startswith("sqlite"):
        mounts.sync(path)
        server.kill()
        path = serve(limited).path
        assert (usage()["used_bytes"], usage()["used_files"]) == ((1 << 20) + 39 * 4096, 40)


def test_a_bad_row_is_one_bad_entry(tmp_path: Path, serve: Serve) -> None:
    """`tests/unit/backends/sqlite/test_sqlite_damage.py` has every damage."""
    volume = tmp_path / "volume.db"
    with SqliteBackend(volume) as backend:
        backend.write("/bad/file", "some words")
        backend.write("/near", "some words")
    with contextlib.closing(sqlite3.connect(volume)) as connection, connection:
        bad = "(SELECT node FROM dentry WHERE name = CAST('bad' AS BLOB))"
        connection.execute(f"UPDATE inode SET size = -1 WHERE node = {bad}")
    server = serve(f"sqlite:{volume}")
    server.expected_log = "is damaged"
    assert (server.path / "near").read_text() == "some words"
    refused(errno.EIO, (server.path / "bad").stat)
    (server.path / "new").write_text("written")
    server.stop()
    assert any("size of -1" in line for line in sqlite_check.check(volume))


def test_extended_attributes_are_kept_acls_where_the_kernel_checks_them(native: Path) -> None:
    file = native / "file"
    file.touch()
    os.setxattr(file, "user.name", b"\x00value")
    assert os.getxattr(file, "user.name") == b"\x00value" and os.listxattr(file) == ["user.name"]
    os.removexattr(file, "user.name")
    refused(errno.ENODATA, os.getxattr, file, "user.name")
    refused(errno.ENOTSUP, os.setxattr, file, "system.posix_acl_access", MINIMAL_ACL)


def test_names_are_bytes(faces: TwoFaces) -> None:
    names = [b"a\nb", b"\xff\xfe", b"-rf", b"x" * 255, "日本".encode()]
    for name in names:
        with open(os.path.join(os.fsencode(faces.path), name), "wb") as file:
            file.write(name)
    entries = faces.call("ls", "/")["entries"]
    assert sorted(os.listdir(os.fsencode(faces.path))) == sorted(names)
    assert sorted(os.fsencode(entry["path"][1:]) for entry in entries) == sorted(names)
    assert faces.download("/\udcff\udcfe") == b"\xff\xfe"
    refused(errno.ENAMETOOLONG, (faces.path / ("x" * 256)).touch)
    with fusebackend.connect(faces.path) as files:
        assert anyio.run(lambda: TOOLS["delete"].answer(files, {"path": "/\\377\\376"})) == "/\\377\\376 is deleted"
    assert not os.path.lexists(os.path.join(os.fsencode(faces.path), b"\xff\xfe"))


def test_every_key_of_a_store_has_a_name(tmp_path: Path, serve: Serve) -> None:
    sqlite = pytest.importorskip("langgraph.store.sqlite")
    keys = {"/plain": "plain", "//x": "%/x", "/a/": "a/%", "/..": "%2E%2E", "bare": "bare", "/bare2": "bare2",
            "bare2": "bare2%=", "/both": "both%=", "/both/below": "both/below"}  # fmt: skip
    with sqlite.SqliteStore.from_conn_string(str(tmp_path / "store.db")) as store:
        for key in keys:
            store.put(("m",), key, {"content": key, "encoding": "utf-8"})
        store.put(("m",), "notes", {"b": 1, "a": "one\ntwo\n"})
        store.put(("m", "sub"), "/theirs", {"content": "x", "encoding": "utf-8"})
        path = serve(f"store+sqlite:{tmp_path}/store.db?ns=m").path
        shown = {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}
        assert shown == {*keys.values(), "notes.json", "notes.md"}
        assert (path / "notes.md").read_text() == "one\ntwo\n"
        assert (path / "notes.json").read_text() == '{\n  "a": "one\\ntwo\\n",\n  "b": 1\n}\n'
        for key, name in keys.items():
            assert (path / name).read_text() == key
            (path / name).write_text("changed")
            assert store.get(("m",), key).value["content"] == "changed"
        for attempt in (lambda: (path / "notes.json").write_text("{}"), (path / "notes.md").unlink):
            with pytest.raises(PermissionError):
                attempt()


def test_a_bucket_holds_plain_objects(bucket: Bucket, serve: Serve) -> None:
    """`test_s3.py` and `tests/unit/backends/object_store/` have more."""
    bucket.put("theirs/a.txt", b"theirs\n")
    root = serve("memory:", routes={"/s3": bucket.url()}).path / "s3"
    assert (root / "theirs/a.txt").read_text() == "theirs\n"
    (root / "d").mkdir()
    (root / "d/file").write_text("ours\n")
    (root / "d/file").chmod(0o600)
    (root / "d/link").symlink_to("file")
    (root / "theirs/a.txt").unlink()
    assert (bucket.get("d/file"), bucket.attributes("d/file")["mode"]) == (b"ours\n", str(0o100600))
    assert bucket.get("d/link") == b"file"
    (root / "d").rename(root / "e")
    assert (root / "e/link").read_text() == "ours\n" and os.listdir(root / "theirs") == []
    with pytest.raises(OSError, match="Operation not permitted"):
        os.link(root / "e/file", root / "hard")
    marker = ".fusebackend.directory"
    assert bucket.all_keys() == [f"e/{marker}", "e/file", "e/link", f"theirs/{marker}"]


def test_a_route_is_a_mount_point(tmp_path: Path, serve: Serve) -> None:
    path = serve(f"sqlite:{tmp_path}/volume.db", routes={"/a/b": "memory:", "/a/b/c": "memory:"}).path
    assert (os.listdir(path), os.listdir(path / "a"), os.listdir(path / "a/b")) == (["a"], ["b"], ["c"])
    for change in (lambda: (path / "a" / "b").rmdir(), lambda: (path / "a").rename(path / "z")):
        refused(errno.EBUSY, change)
    (path / "a" / "file").write_text("real now")
    for crossing in (os.rename, os.link):
        refused(errno.EXDEV, crossing, path / "a" / "file", path / "a" / "b" / "file")
    with fusebackend.connect(path) as client:
        assert client.move("/a/file", "/a/b/moved/file").error is None
    assert os.listdir(path / "a") == ["b"] and (path / "a/b/moved/file").read_text() == "real now"


def test_a_hung_route_hangs_alone(serve: Serve) -> None:
    server = serve("memory:", routes={"/hung": "python:hanging:backend"}, options=["deadline=1"])
    reach = partial(refused, errno.ETIMEDOUT, os.listdir, server.path / "hung")
    with beside(partial(together, reach, reach, reach)) as reaching:
        while not reaching.done():
            (server.path / "file").write_text("at once")
            assert (server.path / "file").read_text() == "at once"
            time.sleep(0.01)
    assert '"timeouts": 0}' not in os.getxattr(server.path, "user.fusebackend.status").decode().split('"/hung/"')[1]
    # The hung route can't confirm that its files are stored, so the end of the mount reports an error.
    server.process.terminate()
    assert server.process.wait(mounts.STOP_LIMIT_S) == 1
    assert "could not close route /hung" in server.log_text()


def test_a_lost_update_is_an_error(tmp_path: Path, serve: Serve) -> None:
    sqlite = pytest.importorskip("langgraph.store.sqlite")
    with sqlite.SqliteStore.from_conn_string(str(tmp_path / "store.db")) as store:
        store.put(("m",), "/file", {"content": "theirs one", "encoding": "utf-8"})
        server = serve(f"store+sqlite:{tmp_path}/store.db?ns=m")
        file = os.open(server.path / "file", os.O_RDWR)
        os.write(file, b"ours")
        store.put(("m",), "/file", {"content": "theirs two", "encoding": "utf-8"})
        refused(errno.ESTALE, os.close, file)
        assert store.get(("m",), "/file").value["content"] == "theirs two"
        server.expected_log = "was changed by others"
        (kept,) = server.path.glob("file.conflict-*")
        assert kept.read_text() == "oursrs one"


def test_a_backend_of_text_gives_exact_bytes_or_an_error(serve: Serve) -> None:
    routes = {"/least": "python:seed_backends:make_text", "/edits": "python:seed_backends:make_editing"}
    server = serve("memory:", routes=routes)
    least, edits = server.path / "least", server.path / "edits"
    wanted = {"lf": b"one\ntwo", "crlf": b"one\r\ntwo\r\n", "empty": b""}
    for directory in (least, edits):
        for name, data in wanted.items():
            (directory / name).write_bytes(data)
        assert {name: (directory / name).read_bytes() for name in wanted} == wanted
        for data in (b"\xff\xfe", b"a\x0cb"):
            refused(errno.EILSEQ, (directory / "new").write_bytes, data)
            assert not (directory / "new").exists()
    refused(errno.EIO, (least / "mixed.txt").read_bytes)
    for _ in range(2):  # by `close`, then by `open`
        refused(errno.EEXIST, (least / "lf").write_text, "other\n")
        assert (least / "lf").read_bytes() == b"one\ntwo"
    with (edits / "lf").open("a") as file:
        file.write("more\n")
    assert (edits / "lf").read_bytes() == b"one\ntwomore\n"


def test_every_change_can_be_watched(tmp_path: Path, serve: Serve) -> None:
    """`test_watch.py` has everything that shells and editors do."""
    path = serve(f"sqlite:{tmp_path}/volume.db", routes={"/m": "memory:"}).path
    with fusebackend.connect(path) as agent, agent.watch("/m") as watch:
        (path / "m" / "f").write_text("one")
        agent.edit("/m/f", "one", "two")
        (path / "outside").touch()
        agent.move("/m/f", "/m/g")
        agent.delete("/m/g")
        events = [watch.get(20) for _ in range(5)]
    assert [(event.kind, event.source, event.path) for event in events if event is not None] == [
        ("created", "mount", "/m/f"),
        ("modified", "mount", "/m/f"),
        ("modified", "api", "/m/f"),
        ("moved", "api", "/m/g"),
        ("deleted", "api", "/m/g"),
    ]


def test_a_thread_shows_what_its_agent_saw(tmp_path: Path, serve: Serve) -> None:
    """`test_threads.py` and `tests/unit/backends/threads/` have long threads, and agents at work."""
    import graphs

    with graphs.sqlite_saver(tmp_path / "threads.db") as saver:
        script = [graphs.use(graphs.write("/notes.txt", "one\n")), graphs.say("done")]
        agent = graphs.deep_agent(saver, script)
        agent.invoke(graphs.user("hello"), graphs.thread("t"))
        mounted = serve(f"threads+sqlite:{tmp_path}/threads.db")
        ids = graphs.checkpoint_ids(agent, graphs.thread("t"))
        history = sorted(path for path in (mounted.path / "t/history").iterdir() if path.is_dir())
        assert [name.split("-", 1)[1] for name in os.listdir(mounted.path / "t/messages")] == [
            "human.md", "ai.calls.json", "ai.md", "tool-write_file.txt", "ai.md",
        ]  # fmt: skip
        assert "+one" in next((mounted.path / "t/changes").iterdir()).read_text()
        assert "hello" in (mounted.path / "@latest/transcript.md").read_text()
        for checkpoint, directory in zip(ids, history, strict=True):
            files = graphs.state_at(agent, graphs.thread("t"), checkpoint).get("files") or {}
            assert sorted(f"/{path.name}" for path in directory.iterdir()) == sorted(files)
        assert (mounted.path / "t/head/notes.txt").read_text() == "one\n"
        refused(READ_ONLY, (mounted.path / "t/head/new").write_text, "")
        agent.invoke(graphs.user("again"), graphs.thread("t"))
        eventually(lambda: len(os.listdir(mounted.path / "t/history")) != 3 * len(ids))


def test_a_store_s_namespaces_are_directories(tmp_path: Path, serve: Serve) -> None:
    """`tests/unit/backends/store/test_store_namespaces.py` has more."""
    from langgraph.store.sqlite import SqliteStore

    with SqliteStore.from_conn_string(str(tmp_path / "store.db")) as store:
        store.setup()
        store.put(("a",), "/b", {"content": "a file", "encoding": "utf-8"})
        store.put(("a", "b"), "/c", {"content": "of the namespace", "encoding": "utf-8"})
        root = serve(f"store+sqlite:{tmp_path}/store.db?tree=1").path
        assert ((root / "a/b%=").read_text(), (root / "a/b/c").read_text()) == ("a file", "of the namespace")
        (root / "a/new").mkdir()
        (root / "a/new/f").write_text("new")
        assert store.get(("a", "new"), "/f").value["content"] == "new"
        with pytest.raises(PermissionError):
            (root / "top").write_text("")
        os.rename(root / "a/new/f", root / "a/b/f")
        assert (store.get(("a", "b"), "/f").value["content"], store.get(("a", "new"), "/f")) == ("new", None)


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
        refused(errno.ESTALE, os.close, held)
        mounted.expected_log = "was changed by others"
        eventually(lambda: (mounted.path / "box/file").read_text() == "by a command\n")
        mounted.stop()
        container.reload()
        assert container.status == "running"


def test_a_verb_over_the_control_socket_is_the_verb(tmp_path: Path) -> None:
    mounted = tmp_path / "mnt"
    mounted.mkdir()
    with (
        SqliteBackend(tmp_path / "volume.db") as backend,
        fusebackend.mount(backend, mounted) as here,
        fusebackend.connect(mounted) as client,
    ):
        assert client.write("/file", "one\n").error is None
        for path in ("/file", "/none", "/../x"):
            assert asdict(client.read(path)) == asdict(here.read(path))
            assert asdict(client.ls(path)) == asdict(here.ls(path))
            assert asdict(client.edit(path, "none", "x")) == asdict(here.edit(path, "none", "x"))
        assert asdict(client.write("/file", "two")) == asdict(here.write("/file", "two"))
        assert client.edit("/file", "one", "four").occurrences == 1
        assert programs.sh(f"cat {mounted}/file", tmp_path) == "four\n"


def test_without_a_mount_the_verbs_are_the_same(tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """`tests/unit/server/test_unmounted.py` has every verb."""
    for variable in ("XDG_STATE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / "kept"))
    (tmp_path / "mnt").mkdir()
    config = tmp_path / "agent.toml"
    config.write_text(f'mountpoint = "{tmp_path}/mnt"\ndefault = "sqlite:agent.db"\nhistory = "on"\n')
    with served.served("--config", str(config), place=f"{tmp_path}/mnt"), fusebackend.connect(config) as client:
        client.write("/file", "one\n")
        client.create_branch("work")
        client.write("/.fusebackend/branches/work/file2", "two\n")
        assert "is served already" in served.run("mount", "--config", str(config), status=1)
    with mounts.mounted(tmp_path / "mnt", "", config=config) as mounted, fusebackend.connect(config) as client:
        assert client.mountpoint == str(mounted.path)
        assert (mounted.path / ".fusebackend/branches/work/file2").read_text() == "two\n"
        client.undo(client.log(paths=["/file"])[0].call)
        assert not (mounted.path / "file").exists()


def test_a_command_sees_every_route_at_its_path(tmp_path: Path, serve: Serve) -> None:
    """`test_execute.py` and `test_execute_escape.py` have more."""
    mounted = serve(f"sqlite:{tmp_path}/volume.db", routes={"/memories": "memory:"})
    (mounted.path / "memories/x").write_text("one\n")
    with fusebackend.connect(mounted.path) as client:
        assert client.execute("cat /memories/x; echo two >> /memories/x; cp /memories/x /y").output == "one\n"
        assert (mounted.path / "y").read_text() == "one\ntwo\n"
        assert client.execute("ls /; ls /home /root /mnt 2>/dev/null").output.startswith("memories\ny\n")
        assert client.execute("touch /usr/x || touch /etc/x || echo no").output.startswith("no\n")
    assert sorted(os.listdir(mounted.path)) == ["memories", "y"]


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
    """`test_trees.py` has the options, and ordinary tools."""
    own = native / ".fusebackend"
    assert {"status.json", "version"} <= set(os.listdir(own)) and ".fusebackend" not in os.listdir(native)
    assert (own / "version").read_text() == f"{fusebackend.__version__}\n"
    with (own / "status.json").open("rb", buffering=0) as opened:
        first = opened.read(10)
        (native / "d").mkdir()
        now = json.loads((own / "status.json").read_bytes())
        before = json.loads(first + opened.read())
    assert now["counters"]["mkdir"] == before["counters"].get("mkdir", 0) + 1
    assert json.loads(os.getxattr(native, "user.fusebackend.status")).keys() == now.keys()
    for change, number in (
        (lambda: (own / "version").write_text("x"), READ_ONLY),
        (lambda: (own / "new").mkdir(), READ_ONLY),
        (own.rmdir, errno.EBUSY),
    ):
        refused(number, change)
    (native / "d/.fusebackend").mkdir()
    with fusebackend.connect(native) as client:
        assert str(client.read("/.fusebackend/version")).split()[-1] == fusebackend.__version__
        assert client.write("/.fusebackend/new", "x").error is not None
    assert not os.path.lexists(serve("memory:", options=["trees=off"]).path / ".fusebackend")


def test_a_mount_has_several_trees_of_the_same_files(native: Path) -> None:
    """`test_trees.py` has more, both ways round."""
    tree = native / ".fusebackend/private/sandbox"
    for change in (
        lambda: (native / ".fusebackend").rename(native / "x"),
        lambda: (tree / "usr").rename(tree / "x"),
        lambda: (tree / "usr/x").touch(),
    ):
        refused((errno.EBUSY, errno.EPERM), change)
    (native / "usr").symlink_to("elsewhere")
    assert (tree / "usr").is_dir() and not (tree / "usr").is_symlink()
    (native / "d").mkdir()
    (native / "d/file").write_text("one")
    assert os.path.samefile(tree / "d/file", native / "d/file")
    assert (tree / "d").stat().st_ino != (native / "d").stat().st_ino
    refused(errno.EXDEV, (tree / "d/file").rename, native / "file")
    (tree / "d/file").rename(tree / "d/other")
    assert os.listdir(native / "d") == ["other"] and not (native / "d/file").exists()


@pytest.mark.parametrize("kind", ["sqlite:{tmp}/volume.db", MEMORY])
def test_a_snapshot_keeps_what_was_there(kind: str, tmp_path: Path, serve: Serve) -> None:
    """`test_snapshots.py` compares all attributes, at random; the published cases have names and errors."""
    (tmp_path / "files").mkdir()
    routes = {"/notes": "memory:", "/a/b": f"dir:{tmp_path}/files"}
    mounted = serve(kind.format(tmp=tmp_path), routes=routes, options=["snapshots=manual"]).path
    one = mounted / ".fusebackend/snapshots/one"
    (mounted / "d").mkdir()
    for path in ("d/file", "notes/note", "a/b/live"):
        (mounted / path).write_text("before")
    with fusebackend.connect(mounted) as client, (mounted / "d/file").open("r+") as file:
        assert not one.exists()
        assert client.create_snapshot("one").routes == ["/", "/notes/"]
        file.write("AFTER")
        file.flush()
        (mounted / "notes/note").unlink()
        assert ((one / "d/file").read_text(), (one / "notes/note").read_text()) == ("before", "before")
        assert os.listdir(one / "a/b") == [] and stat.S_IMODE((one / "a/b").stat().st_mode) == 0o555
        refused(errno.EROFS, (one / "new").touch)
        assert client.write("/.fusebackend/snapshots/one/new", "x").error
        with opened(one / "d", os.O_RDONLY) as directory:
            client.delete_snapshots("one")
            assert os.listdir(one.parent) == [] and not one.exists()
            refused((errno.ESTALE, errno.ENOENT), os.open, "file", os.O_RDONLY, dir_fd=directory)


@pytest.mark.parametrize("kind", ["sqlite:{tmp}/volume.db", MEMORY])
def test_what_is_changed_in_a_branch_is_changed_nowhere_else(kind: str, tmp_path: Path, serve: Serve) -> None:
    """`test_branches.py` has real work, and branches of branches; the published cases every change."""
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
        assert client.write("/.fusebackend/branches/one/a/b/new", "new").error is None
        assert _names_and_bytes(mounted) == before
        assert (branch / "a/b/ours").read_text() == "by both names"
        (mounted / "d/file").unlink()
        (mounted / "a/b/live").write_text("shows through")
        assert (branch / "d/file").read_text() == "after"
        assert (branch / "a/b/live").read_text() == "shows through"
        refused(errno.EXDEV, (branch / "d/file").rename, mounted / "d/file")
        refused(errno.EBUSY, (branch / "notes").rmdir)
        (snapshot,) = client.snapshots()
        refused(errno.EBUSY, client.delete_snapshots, snapshot.name)
        client.delete_branches("one")
        assert client.snapshots() == [] and not branch.exists()


def test_a_branch_can_be_in_a_plain_directory(tmp_path: Path, serve: Serve) -> None:
    """`tests/unit/trees/test_checkouts.py` has more."""
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
        client.create_branch("b", directory=plain)
        assert (plain / "changed").read_text() == "three"
        client.delete_branches("b")
        with pytest.raises(OSError, match="lie in each other"):
            client.create_branch("d", directory=mounted / "x")


def test_a_merge_takes_what_one_side_has_changed(tmp_path: Path, serve: Serve) -> None:
    """`tests/unit/trees/merge/` has every conflict, random trees and kills."""
    (tmp_path / "files").mkdir()
    mounted = serve(f"sqlite:{tmp_path}/volume.db", routes={"/live": f"dir:{tmp_path}/files"}).path
    for top in (mounted, mounted / "live"):
        subprocess.run(["bash", "-euc", "mkdir d; echo 1 > d/one; echo 3 > three"], cwd=top, check=True)
    with fusebackend.connect(mounted) as client:
        client.create_branch("b")
        for top in (mounted / ".fusebackend/branches/b", mounted / ".fusebackend/branches/b/live"):
            subprocess.run(["bash", "-euc", "mv d e; echo more >> e/one; rm three"], cwd=top, check=True)
        for top in (mounted, mounted / "live"):
            subprocess.run(["bash", "-euc", "echo new > d/new; echo other > three"], cwd=top, check=True)
        refused = client.merge_branch("b")
        assert [each.path for each in refused.conflicts] == ["/three", "/live/three"]
        assert (mounted / "d/one").read_text() == "1\n"
        with (mounted / "d/one").open("a"):
            assert "/d/one" in [each.path for each in client.merge_branch("b", keep="main").conflicts]
        # The server hears of a close a moment later.
        eventually(lambda: not client.merge_branch("b", keep="main", dry_run=True).conflicts)
        merged = client.merge_branch("b", keep="main")
        for top in (mounted, mounted / "live"):
            assert sorted(path.name for path in (top / "e").iterdir()) == ["new", "one"] and not (top / "d").exists()
            assert ((top / "e/one").read_text(), (top / "three").read_text()) == ("1\nmore\n", "other\n")
        assert merged.call is not None and not client.merge_branch("b", keep="main").changes
        (info,) = client.branches()
        assert info.conflicts == 0 and client.merge_branch("b").conflicts == []
        client.undo(merged.call)
        assert sorted(path.name for path in (mounted / "live/d").iterdir()) == ["new", "one"]
        assert (mounted / "d/one").read_text() == "1\n"


def _names_and_bytes(top: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(top)): path.read_bytes() if path.is_file() else None for path in top.rglob("*")}


def test_a_call_in_a_branch_is_a_call(tmp_path: Path, serve: Serve) -> None:
    """`test_branch_undo.py` has more."""
    mounted = serve("memory:", options=["history=on"]).path
    with fusebackend.connect(mounted) as client:
        client.write("/one", "of the mount\n")
        client.create_branch("b")
        of_mount = client.log(limit=1)[0].call
        client.write("/.fusebackend/branches/b/two", "new\n")
        assert client.log(limit=1)[0].call == of_mount, "the log is about the mount"
        (call,) = client.log(branch="b")
        assert client.undo(call.call).conflicts == []
        assert os.listdir(mounted / ".fusebackend/branches/b") == ["one"] and client.merge_branch("b").changes == []


def test_a_view_shows_what_its_rules_allow(tmp_path: Path, serve: Serve) -> None:
    """`test_views.py` has every door, operation and mode."""
    config = tmp_path / "views.toml"
    config.write_text(
        """
        [routes]
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
    assert sorted(os.listdir(view)) == ["hiding", "log", "plain", "secrets"]
    assert os.listdir(view / "secrets") == []
    os.link(view / "plain", view / "linked")  # git compares the numbers before and after
    assert os.stat(view / "plain").st_ino == os.stat(view / "linked").st_ino == os.stat(mounted / "plain").st_ino
    (view / "linked").unlink()
    for number, work in (
        (errno.ENOENT, lambda: (view / ".env").read_text()),
        (errno.EACCES, lambda: (view / "secrets/key").read_text()),
        (errno.EACCES, lambda: (view / "log").write_text("x")),
        (errno.EACCES, lambda: (mounted / "hiding/.key").write_text("x")),
    ):
        refused(number, work)
    with (view / "log").open("a") as log:
        log.write("more")
    with fusebackend.connect(mounted, view="v") as client:
        assert client.read("/log").file_data["content"] == "textmore"
        (mounted / "tree/d").mkdir(parents=True)
        (mounted / "tree/d/.env").write_text("hidden")
        for refusal in (client.move("/tree", "/hiding/tree"), client.delete("/tree"), client.read("/secrets/key")):
            assert "Permission denied" in str(refusal.error)
        assert os.listdir(mounted / "tree/d") == [".env"]
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
    """`test_approvals.py` and `tests/unit/server/test_approval*.py` have every verb, and waiting."""
    config = tmp_path / "approvals.toml"
    rule = '{ operations = ["write"], paths = ["/prod/**"], mode = "interrupt" }'
    start = '{ operations = ["execute"], paths = ["/prod"], mode = "interrupt" }'
    config.write_text(f"[views.v]\nrules = [{rule}, {start}]\n[approvals]\nwait = '1 ms'\n")
    mounted = serve("memory:", config=config).path
    with fusebackend.connect(mounted, view="v") as agent, fusebackend.connect(mounted) as owner:
        (mounted / "prod").mkdir()
        for _ in range(2):
            assert "it is request 1;" in str(agent.write("/prod/a", "one").error)
        with pytest.raises(PermissionError):
            agent.approve(1)
        assert not (mounted / "prod/a").exists()
        assert owner.approve(1).state == "made"
        assert (mounted / "prod/a").read_text() == "one"
        assert "it is request 2;" in str(agent.edit("/prod/a", "one", "two").error)
        (mounted / "prod/a").write_text("one more")
        assert owner.approve(2).reason == "'/prod/a' was changed since it was asked for; have it asked for again"
        with pytest.raises(PermissionError):
            (mounted / ".fusebackend/views/v/prod/a").write_text("x")
        assert [each.state for each in owner.approvals()] == ["made", "failed", "refused"]
        ran = agent.run("touch /ran", cwd="/prod")
        assert (ran.exit_code, "it is request 4;" in ran.output) == (126, True)
        assert owner.approve(4).state == "made" and (mounted / "ran").exists()
        large = agent.upload_files([("/prod/large", bytes(2 << 20))])
        assert "a request keeps at most 1024 KiB" in str(large[0].error)


def test_what_was_there_for_ten_seconds_can_be_had_back(tmp_path: Path, serve: Serve) -> None:
    mounted = serve(f"sqlite:{tmp_path}/volume.db", routes={"/memory": "memory:"}).path
    snapshots = mounted / ".fusebackend/snapshots"
    works = (mounted / "work", mounted / "memory/work")
    for work in works:
        work.mkdir()
        (work / "file").write_text("precious\n")

    def with_files() -> list[str]:
        return sorted(
            taken.name
            for taken in snapshots.glob("@*")
            if [path.read_text() for path in taken.rglob("work/file")] == ["precious\n"] * 2
        )

    eventually(with_files, 60)
    for loss in ("rm -r work", ": > work/file", "echo other > work/file", "echo x > x; mv x work/file"):
        for work in works:
            subprocess.run(["bash", "-euc", loss], cwd=work.parent, check=True)
            programs.ok("restore", "work", "--from", with_files()[-1], cwd=work.parent)
            assert (work / "file").read_text() == "precious\n"


def test_a_restore_puts_back_what_was_there(tmp_path: Path, serve: Serve) -> None:
    """`tests/unit/trees/test_restore.py` has all attributes, errors and kills."""
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
        with (mounted / "d/two").open("a"):
            refused = client.restore(["/d"], "then")
            assert refused.conflicts and not refused.changes and (mounted / "d/extra").exists()
        # The server hears of a close a moment later.
        eventually(lambda: not client.restore(["/"], "then", dry_run=True).conflicts)
        done = client.restore(["/"], "then")
        assert sorted(os.listdir(mounted / "d")) == ["one", "sym", "two"]
        assert (mounted / "d/two").read_text() == "1\n" and (mounted / "d/one").stat().st_nlink == 2
        assert stat.S_IMODE((mounted / "d").stat().st_mode) == 0o750
        assert not (mounted / "live/d/new").exists(), "the snapshot holds nothing of this route"
        assert [each.path for each in client.restore(["/live/d"], "b").changes] == ["/live/d", "/live/d/new"]
        client.restore(["/d/one"], "then", to=["/live/d/copy"])
        assert (mounted / "live/d/copy").read_text() == "1\n"
        assert done.call is not None and client.restore(["/d"], "then").changes == []
        undone = client.undo(done.call)
        assert undone.conflicts == [], (undone.conflicts, history_of(mounted, "restore"))
        assert (mounted / "d/one").read_text() == "1\n2\n" and (mounted / "d/extra").is_dir()
        client.write("/live/d/exact", "before\n")
        client.delete("/live/d/exact")
        client.restore(["/live"], client.log(limit=1)[0].call)
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
    """`test_log_is_complete.py` has ten actors and kills, `test_history_cli.py` agents that name their calls."""
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
    programs.session(script, path)
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
    assert json.loads((path / ".fusebackend/status.json").read_text())["history"]["incomplete"] is None


def test_the_log_is_read_as_files(serve: Serve) -> None:
    """`test_history_cli.py` has more."""
    mounted = serve("memory:")
    log = mounted.path / ".fusebackend/log"
    with fusebackend.connect(mounted.path) as client, open(log / "today.jsonl") as opened:
        for name in ("one", "two"):
            client.write(f"/{name}", "x")
            (line,) = opened.readlines()
            assert json.loads(line)["title"] == f"write /{name}"
        assert len((log / "calls.tsv").read_text().splitlines()) == 3
        refused(READ_ONLY, os.truncate, log / "today.jsonl", 0)
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
    """`test_undo.py` and `tests/unit/history/` have more."""
    (tmp_path / "files").mkdir()
    mounted = serve(kind.format(tmp=tmp_path))
    path = mounted.path
    big = os.urandom(65 << 20)
    (path / "big").write_bytes(big)
    programs.session("echo old > file; chmod 640 file; truncate -s 8M holes", path)
    programs.session("echo new > file; echo y > holes; : > big; echo t > temporary; rm temporary", path)
    with fusebackend.connect(path) as client:
        ((route,), status) = client.status()["routes"], client.status()["history"]
        assert route["undo"] == undo and status["incomplete"] is None
        newest = client.log(limit=1)[0]
        changes = {change.path: change for change in client.changes(newest.call) if change.change != "create"}
        assert [(change.path, change.size) for change in changes.values()] == [
            ("/file", 4), ("/holes", 8 << 20), ("/big", 65 << 20), ("/temporary", 2),
        ]  # fmt: skip
        assert changes["/temporary"].kept is None  # the call had made it itself
        if undo == "copies":
            assert (changes["/big"].kept, changes["/big"].why_lost) == ("lost", "larger than 64 MiB")
            images = Path(status["path"]) / "images"
            assert sum(each.stat().st_blocks for each in images.iterdir()) * 512 < 1 << 20, "holes are kept as holes"
            return
        assert changes["/big"].kept == "snapshot" and client.undo(newest.call).conflicts == []
    assert (path / "file").read_text() == "old\n" and stat.S_IMODE((path / "file").stat().st_mode) == 0o640
    assert (path / "holes").read_bytes() == bytes(8 << 20) and (path / "big").read_bytes() == big


def test_what_is_forgotten_is_kept_nowhere(tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """`test_undo.py` has all routes, attributes, and calls."""
    for variable in ("XDG_STATE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / "kept"))
    (tmp_path / "kept").mkdir()
    mounted = serve(f"sqlite:{tmp_path}/kept/volume.db").path
    secret = b"hunter2-correct-horse"
    with fusebackend.connect(mounted) as client:
        client.write("/file", secret.decode())
        client.create_snapshot("then")
        client.edit("/file", secret.decode(), "***")
        client.forget("/file")
        files = [each for each in (tmp_path / "kept").rglob("*") if each.is_file()]
        assert files and not [each.name for each in files if secret in each.read_bytes()]
        assert (mounted / "file").read_text() == "***"
        assert not (mounted / ".fusebackend/snapshots/then/file").exists()


def test_a_default_that_runs_commands_runs_them_itself(tmp_path: Path, serve: Serve) -> None:
    """`test_execute.py` and `test_execute_carried.py` have more."""
    marked = serve("python:guests:marked", routes={"/notes": "memory:"})
    with fusebackend.connect(marked.path) as client:
        assert client.execute("touch /x").output.startswith("ran in the default itself: 'touch /x'")
        assert client.status()["execute"]["unseen_routes"].keys() == {"/notes/"}

    elsewhere = serve(f"python:guests:hosted?directory={tmp_path}", routes={"/notes": "memory:"})
    (elsewhere.path / "notes/n").write_text("a note")
    with fusebackend.connect(elsewhere.path) as client:
        assert client.execute("cat notes/n; echo made > notes/made").output == "a note"
        assert (elsewhere.path / "notes/made").read_text() == "made\n"


def test_a_failure_ends_one_request(serve: Serve) -> None:
    """`test_faults.py` has every call; `tests/unit/backends/sqlite/test_failing_disk.py` every statement."""
    server = serve("python:faulty:backend")
    server.expected_log = "^Traceback|injected|defect"
    assert not (server.path / "arm-mkdir-1").exists()
    refused(errno.EIO, (server.path / "directory").mkdir)
    assert not (server.path / "disarm-1").exists()
    (server.path / "directory").mkdir()
