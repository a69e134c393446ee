"""Awaited verbs of a client of a real mount, and of a mount of the same process: a cancelled call ends, and many calls
at once do not delay others. Under asyncio and trio."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import anyio
import mounts
import pytest
from eventually import eventually
from programs import processes_with, python

import fusebackend
from fusebackend.vfs.watch.async_watch import AsyncWatch

LIMIT_S = 10.0
"""A cancelled call must return within this time; it takes some milliseconds on a quiet machine."""

both = pytest.mark.parametrize("library", ["asyncio", "trio"])


@pytest.fixture(scope="module")
def mountpoint(tmp_path_factory):
    tmp = tmp_path_factory.mktemp("cancelling")
    with mounts.mounted(tmp / "mnt", f"sqlite:{tmp}/files.db") as server:
        yield server.path


@pytest.fixture
def files(mountpoint):
    with fusebackend.connect(mountpoint) as files:
        yield files


SCRIPT = """
import anyio, sys
import fusebackend
files = fusebackend.connect(sys.argv[1])
async def main():
    with anyio.move_on_after(1):
        await files.aexecute(f"sleep {sys.argv[3]}")
    with anyio.move_on_after(0.1):
        async with files.awatch("/") as changes:
            async for change in changes: pass
anyio.run(main, backend=sys.argv[2])
"""


@both
def test_a_process_can_exit_after_cancelling(mountpoint, library):
    began = time.monotonic()
    argument = f"86400.{time.monotonic_ns()}"
    done = python(SCRIPT, mountpoint, library, argument)
    assert (done.returncode, done.stderr) == (0, "")
    assert time.monotonic() - began < 20
    eventually(lambda: not processes_with("sleep", argument), LIMIT_S)


@both
def test_changes_can_be_awaited(files, mountpoint, library):
    directory = f"/watched-{library}"
    files.write(f"{directory}/first", "")

    async def main():
        async with files.awatch(directory) as changes, anyio.create_task_group() as group:
            group.start_soon(files.awrite, f"{directory}/new", "x")
            with anyio.fail_after(30):
                async for change in changes:
                    if change.path == f"{directory}/new":
                        break
            (mountpoint / directory[1:] / "other").write_text("y")
            with anyio.fail_after(30):
                while (change := await anext(changes)).path != f"{directory}/other":
                    pass
            with anyio.move_on_after(0.05) as scope:
                while True:
                    await anext(changes)
            assert scope.cancelled_caught
            with pytest.raises(StopAsyncIteration):
                await anext(changes)

    anyio.run(main, backend=library)
    eventually(lambda: files.status()["control"]["connections"] <= 2, LIMIT_S)


@both
def test_closing_a_watch_ends_its_step(files, library):
    async def main():
        changes = files.awatch("/nothing-happens-here")

        async def close():
            await anyio.sleep(0.05)
            await changes.aclose()

        async with anyio.create_task_group() as group:
            group.start_soon(close)
            with anyio.fail_after(30):
                return [change async for change in changes]

    assert anyio.run(main, backend=library) == []


@both
def test_a_watch_that_begins_when_nobody_waits_any_more_is_closed(library):
    reached, closed = threading.Event(), threading.Event()

    def begin():
        reached.wait(LIMIT_S)
        return SimpleNamespace(close=closed.set)

    async def main():
        with anyio.move_on_after(0.05):
            await anext(AsyncWatch(begin))

    anyio.run(main, backend=library)
    reached.set()
    assert closed.wait(LIMIT_S)


OWN = """
import anyio, os, subprocess, sys, threading, time
import fusebackend
from fusebackend.backends import InMemoryBackend

async def main(files, mountpoint):
    async with anyio.create_task_group() as group:
        group.start_soon(files.aexecute, f"touch /begun; sleep {sys.argv[3]}; touch /changed")
        while "begun" not in str(await files.als("/")):
            await anyio.sleep(0.01)
        began = time.monotonic()
        group.cancel_scope.cancel()
    took_s = time.monotonic() - began
    assert took_s < 30, took_s
    seen = []
    async with files.awatch("/") as changes:
        await files.awrite("/w", "x")
        async for change in changes:
            seen.append(change.path)
            break
        with anyio.move_on_after(0.05):
            await anext(changes)
    assert seen == ["/w"], seen
    assert not files.filesystem.feed._watches
    assert "changed" not in str(await files.als("/"))

with fusebackend.mount(InMemoryBackend(), sys.argv[1]) as files:
    anyio.run(main, files, sys.argv[1], backend=sys.argv[2])
"""


@both
def test_a_mount_of_this_process(tmp_path, library):
    (tmp_path / "own").mkdir()
    argument = f"86411.{time.monotonic_ns()}"
    done = python(OWN, tmp_path / "own", library, argument)
    assert (done.returncode, done.stderr) == (0, "")
    assert not processes_with("sleep", argument)
