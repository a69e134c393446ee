"""`a…` verbs: what becomes of them when they are cancelled, how many run at once, and whose coroutines are awaited."""

from __future__ import annotations

import asyncio
import copy
import logging
import subprocess
import sys
import threading
import time

import anyio
import pytest
from eventually import eventually

from fusebackend.backends import (
    CompositeBackend,
    InMemoryBackend,
    LocalShellBackend,
)
from fusebackend.base import awaiting
from fusebackend.protocol import (
    BackendProtocol,
    ExecuteResponse,
    FileDownloadResponse,
    FileUploadResponse,
    GrepResult,
    LsResult,
    ReadResult,
    SandboxBackendProtocol,
)

LIMIT_S = 20.0
"""What is cancelled would go on for 30 s or longer."""

both = pytest.mark.parametrize("library", ["asyncio", "trio"])

on_both = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
"""Of a coroutine, which runs in a loop of either library."""


def cancelled_s(library, call, begun=None):
    """How long it takes until a call has returned that is cancelled after `begun`."""

    async def main():
        async with anyio.create_task_group() as group:
            group.start_soon(call)
            with anyio.fail_after(30):
                while begun is not None and not begun():
                    await anyio.sleep(0.005)
            began = time.monotonic()
            group.cancel_scope.cancel()
        return time.monotonic() - began

    return anyio.run(main, backend=library)


class Stuck(BackendProtocol):
    """Reads never return before `release`."""

    def __init__(self):
        self.release = threading.Event()
        self.begun = []

    def read(self, file_path, offset=0, limit=2000):
        self.begun.append(file_path)
        assert self.release.wait(30)
        return ReadResult(error="too late")

    def ls(self, path):
        return ReadResult(error="here")


@pytest.fixture
def stuck():
    stuck = Stuck()
    yield stuck
    stuck.release.set()


@both
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_cancelled_command_is_killed_and_its_effects_with_it(tmp_path, library, wrapped):
    shell = LocalShellBackend(tmp_path, inherit_env=True)
    files = CompositeBackend(shell) if wrapped else shell
    argument = f"86500.{time.monotonic_ns()}"
    command = f"echo $$ > begun; sleep {argument}; touch changed"
    took_s = cancelled_s(library, lambda: files.aexecute(command), (tmp_path / "begun").exists)
    assert took_s < LIMIT_S
    search = ["pgrep", "-f", argument]  # a killed process is there until it has run once more
    eventually(lambda: subprocess.run(search, check=False, capture_output=True).returncode == 1, LIMIT_S)
    assert not (tmp_path / "changed").exists()


EXIT = """
import os, sys, time, anyio
from fusebackend.backends import LocalShellBackend
from fusebackend.protocol import BackendProtocol

class Hung(BackendProtocol):
    def read(self, file_path, offset=0, limit=2000):
        time.sleep(86400)

async def main():
    with anyio.move_on_after(0.2):
        await Hung().aread("/f")
    async with anyio.create_task_group() as group:
        group.start_soon(LocalShellBackend(sys.argv[2]).aexecute, "touch begun; sleep 3; touch changed")
        while not os.path.exists(sys.argv[2] + "/begun"):
            await anyio.sleep(0.01)
        group.cancel_scope.cancel()

anyio.run(main, backend=sys.argv[1])
"""


@both
def test_a_process_exits_after_cancelling_what_hangs(tmp_path, library):
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", EXIT, library, tmp_path], check=True, timeout=60)
    assert time.monotonic() - began < 20
    assert (tmp_path / "begun").exists() and not (tmp_path / "changed").exists()


@both
def test_what_can_not_be_interrupted_is_left_and_logged(stuck, library, caplog):
    caplog.set_level(logging.INFO)
    assert cancelled_s(library, lambda: stuck.aread("/f"), lambda: stuck.begun) < LIMIT_S
    assert "Stuck.read was cancelled and can't be interrupted" in caplog.text
    stuck.release.set()
    eventually(lambda: "Stuck.read, which was cancelled, has ended now" in caplog.text, 10)


@pytest.mark.anyio
@on_both
async def test_what_waits_for_a_place_never_begins_once_cancelled(stuck):
    async with anyio.create_task_group() as group:
        for number in range(awaiting.MAX_CALLS + 50):
            group.start_soon(stuck.aread, f"/{number}")
        with anyio.fail_after(30):
            while len(stuck.begun) < awaiting.MAX_CALLS:
                await anyio.sleep(0.005)
        group.cancel_scope.cancel()
    stuck.release.set()
    with anyio.fail_after(30):
        assert (await stuck.als("/")).error == "here"

    assert len(stuck.begun) == awaiting.MAX_CALLS


@pytest.mark.anyio
@on_both
async def test_commands_have_places_of_their_own(tmp_path):
    class Busy(InMemoryBackend, SandboxBackendProtocol):
        running = 0
        release = threading.Event()

        def execute(self, command, *, timeout=None):
            self.running += 1
            assert self.release.wait(60)
            return ExecuteResponse(output=command, exit_code=0)

    busy = Busy()
    busy.write("/f", "here")

    async with anyio.create_task_group() as group:
        for _ in range(200):
            group.start_soon(busy.aexecute, "x")
        with anyio.fail_after(30):
            while busy.running < 200:
                await anyio.sleep(0.01)
            assert "here" in await busy.aread("/f")
        busy.release.set()


@both
def test_a_cancelled_batch_asks_no_further_backend(stuck, library):
    class Slow(Stuck):
        def upload_files(self, files):
            self.begun.append(files)
            assert self.release.wait(30)
            return [FileUploadResponse(path) for path, _ in files]

    slow, memory = Slow(), InMemoryBackend()
    files = CompositeBackend(InMemoryBackend(), {"/a/": slow, "/b/": memory})
    batch = [("/a/f", b"1"), ("/b/f", b"2")]
    assert cancelled_s(library, lambda: files.aupload_files(batch), lambda: slow.begun) < LIMIT_S
    slow.release.set()
    with anyio.from_thread.start_blocking_portal() as portal:
        assert portal.call(files.aread, "/a/f").error  # its thread is through
    assert memory.ls("/").entries == []


@both
def test_a_copy_of_a_backend_has_places_of_its_own(library):
    class Plain(BackendProtocol):
        def ls(self, path):
            return LsResult(entries=[])

    backend = Plain()
    anyio.run(backend.als, "/", backend=library)
    assert anyio.run(copy.deepcopy(backend).als, "/", backend=library) == LsResult(entries=[])


# -- whose coroutines are awaited ------------------------------------------------------------------------------


class Native(BackendProtocol):
    """Has verbs that are coroutines, and plain ones that nobody should call from a loop."""

    def __init__(self):
        self.threads = set()
        self.running = self.most = 0
        self.cancelled = []

    def read(self, file_path, offset=0, limit=2000):
        return ReadResult(error="the plain verb")

    async def aread(self, file_path, offset=0, limit=2000):
        self.threads.add(threading.get_ident())
        await anyio.sleep(0)
        return ReadResult(error=f"native {file_path}")

    async def agrep(self, pattern, path=None, glob=None, *, max_count=None):
        await self._nap()
        return GrepResult(matches=[{"path": "/f", "line": 1, "text": pattern}])

    async def adownload_files(self, paths):
        await self._nap()
        return [FileDownloadResponse(path, b"x") for path in paths]

    async def awrite(self, file_path, content):
        try:
            await anyio.sleep(3600)
        except BaseException:
            self.cancelled.append(file_path)
            raise

    async def aexecute(self, command, *, timeout=None):
        return ExecuteResponse(output=f"native {command} {timeout}", exit_code=0)

    def execute(self, command, *, timeout=None):
        return ExecuteResponse(output="the plain verb", exit_code=1)

    async def _nap(self):
        Native.now += 1
        Native.together = max(Native.together, Native.now)
        await anyio.sleep(0.2)
        Native.now -= 1

    now = together = 0


@pytest.mark.anyio
@on_both
async def test_a_composite_awaits_the_coroutines_of_a_route():
    native = Native()
    files = CompositeBackend(native, {"/r/": native})

    assert (await files.aread("/r/f")).error == "native /r/f"
    assert (await files.aexecute("x", timeout=3)).output == "native x 3"
    assert threading.get_ident() in native.threads and len(native.threads) == 1

    assert "the plain verb" in files.read("/r/f").error


@both
def test_coroutines_of_routes_are_cancelled_with_their_caller(library):
    native = Native()
    files = CompositeBackend(InMemoryBackend(), {"/r/": native})

    async def main():
        with anyio.move_on_after(0.1) as scope:
            await files.awrite("/r/f", "x")
        return scope.cancelled_caught

    began = time.monotonic()
    assert anyio.run(main, backend=library)
    assert time.monotonic() - began < LIMIT_S
    assert native.cancelled == ["/f"]


@pytest.mark.anyio
@on_both
async def test_routes_are_awaited_at_the_same_time_within_a_bound():
    routes = {f"/r{number:02}/": Native() for number in range(30)}
    files = CompositeBackend(InMemoryBackend(), routes)
    Native.together = 0

    found = await files.agrep("needle")
    assert [match["path"] for match in found.matches] == [f"{prefix}f" for prefix in routes]
    answers = await files.adownload_files([f"{prefix}f" for prefix in routes])
    assert [answer.content for answer in answers] == [b"x"] * len(routes)

    assert 1 < Native.together <= 16


@both
def test_a_plain_verb_of_a_subclass_is_not_passed_over(library):
    class Plain(Native):
        def read(self, file_path, offset=0, limit=2000):
            return ReadResult(error=f"plain {file_path}")

    files = CompositeBackend(InMemoryBackend(), {"/r/": Plain()})
    assert anyio.run(files.aread, "/r/f", backend=library).error == "plain /r/f"


def test_a_stranger_is_awaited_in_the_asyncio_loop_that_it_belongs_to_and_on_its_own_under_trio():
    class Stranger:
        async def als(self, path):
            asyncio.get_running_loop()
            return [{"path": "/f"}]

        async def aread(self, file_path, offset=0, limit=2000):
            await asyncio.sleep(3600)

    files = CompositeBackend(Stranger())
    for library in ("asyncio", "trio"):
        assert anyio.run(files.als, "/", backend=library).entries[0]["path"] == "/f"
        began = time.monotonic()

        async def main():
            with anyio.move_on_after(0.1):
                await files.aread("/f")

        anyio.run(main, backend=library)
        assert time.monotonic() - began < LIMIT_S
