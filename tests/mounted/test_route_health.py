"""A route that hangs or is slow: other routes work, its calls end at their deadline, `status` names it, and processes
that wait for it can be killed."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import mounts
import pytest
from eventually import eventually
from mounts import Mounted, Serve
from programs import ok
from stalling import Control

import fusebackend

DEADLINE_S = 1.0
SLACK_S = 60.0
"""A call may end this much later than its deadline, on a busy machine."""

FOREVER_S = 600.0

READERS = 64

T = TypeVar("T")


@pytest.fixture
def server(stall: Control, serve: Serve) -> Iterator[Mounted]:
    server = serve("memory:", routes={"/hung": "python:stalling:backend"}, options=[f"deadline={DEADLINE_S}"])
    (server.path / "file").write_text("here\n")
    (server.path / "hung" / "file").write_text("here\n")
    yield server
    stall.resume()  # so that the final flush succeeds


@pytest.fixture
def patient(stall: Control, serve: Serve) -> Iterator[Mounted]:
    """Serve a mount with a deadline of ten minutes, longer than any test."""
    server = serve("memory:", routes={"/hung": "python:stalling:backend"}, options=[f"deadline={FOREVER_S}"])
    (server.path / "hung" / "file").write_text("here\n")
    eventually(lambda: health(server)["running"] == 0)  # the kernel sends RELEASE after close(2) has returned
    yield server
    stall.resume()


def status(server: Mounted) -> str:
    return ok("status", server.path, cwd=server.path.parent)


def health(server: Mounted, prefix: str = "/hung/") -> dict[str, Any]:
    routes = json.loads(os.getxattr(server.path, "user.fusebackend.status"))["routes"]
    return next(route["health"] for route in routes if route["prefix"] == prefix)


def number_of(call: Callable[[], object]) -> tuple[int | None, float]:
    """Return the errno of a call, None on success, and its time in seconds."""
    start = time.monotonic()
    try:
        call()
    except OSError as error:
        return error.errno, time.monotonic() - start
    return None, time.monotonic() - start


# -- deadlines ---------------------------------------------------------------------------------------------------


def test_every_request_ends_at_its_deadline(server: Mounted, stall: Control) -> None:
    hung = server.path / "hung"
    for name in ("old", "cut", "gone", "linked", "target"):
        (hung / name).write_bytes(bytes(8192))
    (hung / "empty").mkdir()
    (hung / "symlink").symlink_to("file")
    file = os.open(hung / "file", os.O_RDWR)
    direct = os.open(hung / "old", os.O_RDONLY | os.O_DIRECT)
    directory = os.open(hung, os.O_RDONLY | os.O_DIRECTORY)
    calls: dict[str, Callable[[], object]] = {
        "lookup": lambda: os.stat(hung / "never-seen"),
        "create": lambda: os.close(os.open(hung / "new", os.O_CREAT | os.O_WRONLY)),
        "open": lambda: os.close(os.open(hung / "linked", os.O_RDONLY)),
        "read": lambda: os.pread(direct, 4096, 0),
        "write": lambda: os.pwrite(file, b"x", 0),
        "fsync": lambda: os.fsync(file),
        "truncate": lambda: os.truncate(hung / "cut", 1),
        "mkdir": lambda: os.mkdir(hung / "directory"),
        "mkfifo": lambda: os.mkfifo(hung / "fifo"),
        "symlink": lambda: os.symlink("x", hung / "another"),
        "link": lambda: os.link(hung / "linked", hung / "twin"),
        "unlink": lambda: os.unlink(hung / "gone"),
        "rmdir": lambda: os.rmdir(hung / "empty"),
        "rename": lambda: os.rename(hung / "old", hung / "renamed"),
        "chmod": lambda: os.chmod(hung / "target", 0o600),
        "readdir": lambda: os.listdir(directory),
        "getxattr": lambda: os.getxattr(hung / "file", "user.x"),
        "setxattr": lambda: os.setxattr(hung / "file", "user.x", b"1"),
        "listxattr": lambda: os.listxattr(hung / "file"),
    }
    stall.hang()
    with ThreadPoolExecutor(len(calls)) as threads:  # at once, before the route is known to be down
        ended = dict(zip(calls, threads.map(number_of, calls.values()), strict=True))
    stall.resume()
    for descriptor in (file, direct, directory):
        os.close(descriptor)
    assert {name: number for name, (number, _) in ended.items()} == dict.fromkeys(calls, errno.ETIMEDOUT)
    # Some need the same directory lock of the kernel, and wait for each other.
    changes = 10
    assert max(seconds for _, seconds in ended.values()) < changes * DEADLINE_S + SLACK_S
    log = server.log_text()
    assert "whether it was done is not known" in log
    assert not [line for line in log.splitlines() if "no answer to read (" in line and "not known" in line]


# -- the others --------------------------------------------------------------------------------------------------


@pytest.mark.alone
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can raise the kernel's limit for sure")
def test_readers_of_a_hung_file_do_not_use_up_what_the_kernel_reads_at_once(stall: Control, serve: Serve) -> None:
    """By default the kernel allows a mount 12 background requests at once, which are reads for its page cache."""
    server = serve("memory:", routes={"/hung": "python:stalling:backend"}, options=["deadline=30"])
    names = [server.path / "hung" / f"file{number}" for number in range(40)]
    for path in names:
        path.write_bytes(bytes(4096))
    (server.path / "file").write_bytes(bytes(1 << 20))
    files = [os.open(path, os.O_RDONLY) for path in names]
    stall.hang()
    with ThreadPoolExecutor(len(files)) as threads:
        waiting = [threads.submit(os.pread, file, 4096, 0) for file in files]
        eventually(lambda: health(server)["running"] >= len(files))
        mounts.drop_caches(1)
        start = time.monotonic()
        assert (server.path / "file").read_bytes() == bytes(1 << 20)
        assert time.monotonic() - start < 15
        stall.resume()
        assert all(call.result() == bytes(4096) for call in waiting)
    for file in files:
        os.close(file)


# -- status ------------------------------------------------------------------------------------------------------


def test_status_names_a_route_that_is_down_since_when_and_why(server: Mounted, stall: Control) -> None:
    assert health(server)["state"] == "healthy" and "/hung/ is" not in status(server)
    began = time.time()
    stall.hang()
    with ThreadPoolExecutor(5) as threads:
        list(threads.map(number_of, [(server.path / "hung" / f"name{number}").stat for number in range(5)]))
    told = health(server)
    assert (told["state"], told["why"], told["timeouts"]) == ("down", os.strerror(errno.ETIMEDOUT), 5)
    assert began <= told["since"] <= time.time() and told["deadline_s"] == DEADLINE_S
    assert "/hung/ is down since 20" in status(server) and "calls fail at once until it answers" in status(server)
    assert health(server, "/") == {"state": "healthy"}
    stall.resume()
    eventually(lambda: health(server)["state"] == "healthy")
    assert "/hung/ is" not in status(server)


# -- agents ------------------------------------------------------------------------------------------------------


def test_an_agent_is_not_kept_waiting(server: Mounted, stall: Control) -> None:
    with fusebackend.connect(str(server.path)) as files:
        stall.hang()
        answer = files.read("/hung/file")
        assert answer.error == f"Route '/hung/': no answer to read within {DEADLINE_S:g} s"
        assert "Route '/hung/'" in str(files.write("/hung/new", "text").error)
        assert "no answer" in str(files.ls("/hung").error)
        assert files.stat("/hung/file").error is not None
        assert [info["path"] for info in files.ls("/").entries or ()] == ["/file", "/hung/"]
        assert files.read("/file").error is None
        with ThreadPoolExecutor(3) as threads:  # the route is down: a search skips it before its budget ends
            list(threads.map(number_of, [(server.path / "hung" / f"name{number}").stat for number in range(3)]))
        found = files.grep("here", "/")
        assert ([match["path"] for match in found.matches or ()], found.truncated) == (["/file"], True)
        assert found.error is None and "Route '/hung/'" in str(found.missing)
        names = files.glob("**/f*")
        assert ([info["path"] for info in names.matches or ()], names.truncated) == (["/file"], True)
        assert "Route '/hung/'" in str(names.missing)
        stall.resume()
        eventually(lambda: files.read("/hung/file").error is None)
        assert [match["path"] for match in files.grep("here").matches or ()] == ["/file", "/hung/file"]


# -- killed clients ----------------------------------------------------------------------------------------------

READER = """
import os, sys
file = os.open(sys.argv[1], os.O_RDONLY)
print("open", flush=True)
sys.stdin.readline()
os.pread(file, 4096, 0)
"""


def test_whoever_is_killed_is_let_go(patient: Mounted, stall: Control) -> None:
    for count, number in enumerate((signal.SIGINT, signal.SIGKILL), 1):
        stall.hang()
        cat = subprocess.Popen(["cat", patient.path / "hung" / f"unseen{number}"], stderr=subprocess.DEVNULL)
        eventually(lambda: health(patient)["running"] >= 1)
        cat.send_signal(number)
        assert cat.wait(SLACK_S) == -number
        eventually(lambda count=count: health(patient)["abandoned"] == count)
        stall.resume()
        eventually(lambda: health(patient)["running"] == 0)


@pytest.mark.alone
def test_who_is_killed_while_it_reads_is_let_go(patient: Mounted, stall: Control) -> None:
    """READ does not name the waiting process, so the call is attributed to the process that opened the file."""
    command = [sys.executable, "-S", "-c", READER, patient.path / "hung" / "file"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None and reader.stdin is not None and reader.stdout.readline() == b"open\n"
        mounts.drop_caches(1)
        stall.hang()
        reader.stdin.write(b"\n")
        reader.stdin.flush()
        eventually(lambda: health(patient)["running"] >= 1)
        reader.kill()
        reader.communicate(timeout=SLACK_S)
    assert reader.returncode == -signal.SIGKILL


# -- many at once ------------------------------------------------------------------------------------------------


@pytest.mark.alone
def test_64_readers_of_a_hung_route_are_in_it_at_once(stall: Control, serve: Serve) -> None:
    """None of them waits for another: each asks in a directory of its own, and for a file of its own."""
    options = [f"deadline={FOREVER_S}"]
    server = serve("memory:", routes={"/hung": "python:stalling:backend"}, options=options)
    paths = [server.path / "hung" / f"reader{number}" / "file" for number in range(READERS)]
    for number, path in enumerate(paths):
        path.parent.mkdir()
        path.write_bytes(bytes([number]) * 4096)
    mounts.drop_caches(3)
    for path in paths:
        os.stat(path.parent)
    # Reads are for the kernel's page cache: it sends 12 at once, and only root may raise that.
    reads_at_once = READERS if os.geteuid() == 0 else 12
    with fusebackend.connect(server.path) as client, ThreadPoolExecutor(READERS) as threads:

        def all_at_once(call: Callable[[Any], T], arguments: Sequence[Any], at_once: int) -> list[T]:
            stall.hang()
            waiting = [threads.submit(call, argument) for argument in arguments]
            eventually(lambda: running(client) >= at_once)
            stall.resume()
            return [call.result() for call in waiting]

        files = all_at_once(lambda path: os.open(path, os.O_RDONLY), paths, READERS)
        mounts.drop_caches(1)
        contents = all_at_once(lambda file: os.pread(file, 4096, 0), files, reads_at_once)
    assert contents == [bytes([number]) * 4096 for number in range(READERS)]
    for file in files:
        os.close(file)


def running(client: fusebackend.Client) -> int:
    """Return how many calls are in the route `/hung` now."""
    return next(
        int(route["health"].get("running", 0)) for route in client.status()["routes"] if route["prefix"] == "/hung/"
    )


def test_what_takes_the_place_of_a_route_s_file_is_shown_and_what_is_gone_is_told(tmp_path: Path, serve: Serve) -> None:
    import graphs
    from langgraph.store.sqlite import SqliteStore
    from threadcases import record

    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        with graphs.sqlite_saver(tmp_path / name / "threads.db") as saver:
            agent = graphs.deep_agent(saver, [graphs.say("done")])
            agent.invoke(graphs.user("hello") | {"files": {"/f": record(name)}}, graphs.thread("t"))
        with SqliteStore.from_conn_string(str(tmp_path / name / "store.db")) as store:
            store.setup()
            store.put(("m",), "/f", {"content": name, "encoding": "utf-8"})
        with zipfile.ZipFile(tmp_path / name / "archive.zip", "w") as archive:
            archive.writestr("f", name)
    urls = {
        "/threads": f"threads+sqlite:{tmp_path}/old/threads.db",
        "/store": f"store+sqlite:{tmp_path}/old/store.db?ns=m",
        "/zip": f"fsspec:zip://?fo={tmp_path}/old/archive.zip",
        "/dir": f"dir:{tmp_path}/old/dir",
    }
    (tmp_path / "old/dir").mkdir()
    server = serve("memory:", routes=urls)
    server.expected_log = "can't be relied on|StoreBackend: /new"
    files = [server.path / path for path in ("threads/t/head/f", "store/f", "zip/f")]

    def states() -> list[str]:
        found = json.loads((server.path / ".fusebackend/status.json").read_text())["routes"]
        return [route["health"]["state"] for route in found if route["prefix"] != "/"]

    assert ([file.read_text() for file in files], set(states())) == (["old"] * 3, {"healthy"})
    for file in ("threads.db", "store.db", "archive.zip"):
        os.replace(tmp_path / "new" / file, tmp_path / "old" / file)
    eventually(lambda: [file.read_text() for file in files] == ["new"] * 3)
    assert set(states()) == {"healthy"}
    (tmp_path / "old").rename(tmp_path / "aside")
    assert set(states()) == {"degraded"}
    with pytest.raises(OSError, match="Input/output error"):
        (server.path / "store/new").write_text("lost")
    (server.path / "dir/kept").touch()
    assert (tmp_path / "aside/dir/kept").exists()
    (tmp_path / "aside").rename(tmp_path / "old")
    assert set(states()) == {"healthy"}
    shutil.rmtree(tmp_path / "old/dir")
    eventually(lambda: subprocess.run(["ls", server.path / "dir"], capture_output=True).returncode)
    assert set(states()) == {"healthy", "degraded"}
