"""Pages that the kernel reads again while a write of them is on its way: the write is followed by a notice."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import graphs
import pytest
import trio
import trio.testing
from fakekernel import FakeKernel

from fusebackend.backends.memory import InMemoryVolume
from fusebackend.backends.threads import ThreadsBackend
from fusebackend.backends.threads import volume as threads_volume
from fusebackend.base.paths import ROOT
from fusebackend.protocol import ROOT_NODE, Caller
from fusebackend.vfs.coherence import range_order as reread_pages
from fusebackend.vfs.coherence.range_order import MAX_RANGES, PAGE_BYTES
from fusebackend.vfs.inodes import ROOT_INODE
from fusebackend.vfs.mounted_tree import FileSystem

ME = Caller(os.geteuid(), os.getegid())
PAGES = 8


class SlowVolume(InMemoryVolume):
    """A volume that is called in threads."""

    features = replace(InMemoryVolume.features, blocking=True)


class HeldKernel(FakeKernel):
    """A kernel in which notices of inodes wait until `go_on` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = trio.Event()
        self.go_on = trio.Event()
        self.go_on.set()

    def invalidate_inode(self, inode: int, *, attributes_only: bool = False) -> None:
        trio.from_thread.run_sync(self.waiting.set)
        trio.from_thread.run(self.go_on.wait)
        super().invalidate_inode(inode, attributes_only=attributes_only)


class World:
    """A mount with one file, which is open twice."""

    def __init__(self) -> None:
        self.volume = SlowVolume()
        self.node = self.volume.mknod(ROOT_NODE, b"f", 0o100644, 0, ME).node
        self.volume.write(self.node, 0, bytes(PAGES * PAGE_BYTES))
        self.kernel = HeldKernel()
        self.filesystem = FileSystem({ROOT: self.volume})
        self.filesystem.attach(self.kernel)
        self.inode = 0
        self.one = self.other = 0

    async def begin(self) -> None:
        self.inode = (await self.filesystem.lookup(ROOT_INODE, b"f")).inode
        self.one, self.other = await self.open(), await self.open()

    async def open(self, flags: int = os.O_RDWR) -> int:
        return (await self.filesystem.open(self.inode, flags)).number

    async def read(self, page: int, pages: int = 1) -> bytes:
        return await self.filesystem.read(self.other, page * PAGE_BYTES, pages * PAGE_BYTES)

    async def write(self, offset: int, data: bytes, handle: int | None = None) -> None:
        written = await self.filesystem.write(self.one if handle is None else handle, offset, data)
        assert written == len(data)

    @property
    def content(self) -> bytes:
        return self.volume.read(self.node, 0, PAGES * PAGE_BYTES)


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(reread_pages, "PATIENCE_S", 60.0)  # a busy machine is late with a notice
    world = World()
    await world.begin()
    yield world
    world.filesystem.detach()


@pytest.mark.trio
@pytest.mark.fails_without("reread_pages")
async def test_a_write_of_pages_that_were_read_is_followed_by_a_notice(world: World) -> None:
    await world.read(2)
    await world.write(PAGE_BYTES, bytes(2 * PAGE_BYTES))
    assert world.kernel.told == [("inode", world.inode)]
    await world.write(PAGE_BYTES, bytes(2 * PAGE_BYTES))
    assert len(world.kernel.told) == 1, "nothing was read since"


@pytest.mark.trio
@pytest.mark.fails_without("reread_pages")
async def test_the_notice_comes_before_the_answer(world: World) -> None:
    await world.read(0)
    world.kernel.go_on = trio.Event()
    done = trio.Event()

    async def write() -> None:
        await world.write(10, b"new")
        done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        while not world.kernel.waiting.is_set():
            assert not done.is_set()
            await trio.sleep(0.001)
        await trio.testing.wait_all_tasks_blocked()
        assert not done.is_set()
        assert (await world.read(0))[10:13] == b"new", "the notice may wait for the page of a read"
        world.kernel.go_on.set()
    assert done.is_set()


@pytest.mark.trio
async def test_a_notice_that_waits_for_the_answer_does_not_hold_it_up_for_long(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reread_pages, "PATIENCE_S", 0.02)
    await world.read(0)
    world.kernel.go_on = trio.Event()
    with trio.fail_after(60):
        await world.write(10, b"new")
        world.kernel.go_on.set()
        while not world.kernel.told:
            await trio.sleep(0.001)


@pytest.mark.trio
@pytest.mark.fails_without("reread_pages")
async def test_an_old_page_that_is_written_back_meanwhile_does_not_undo_the_write(world: World) -> None:
    await world.read(0, 2)
    await world.read(2, 2)
    world.kernel.go_on = trio.Event()
    done = trio.Event()

    async def write() -> None:
        await world.write(100, b"w" * (2 * PAGE_BYTES))
        done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        while not (world.kernel.waiting.is_set() or done.is_set()):
            await trio.sleep(0.001)
        # A mapping of the same pages, where another process has changed the bytes around those.
        await world.write(0, b"m" * (3 * PAGE_BYTES), world.other)
        world.kernel.go_on.set()
    whole = b"m" * 100 + b"w" * (2 * PAGE_BYTES) + b"m" * (PAGE_BYTES - 100)
    assert world.content[: 3 * PAGE_BYTES] == whole
    await world.write(0, b"m" * PAGE_BYTES, world.other)
    assert world.content[:PAGE_BYTES] == b"m" * PAGE_BYTES, "a later one writes all of its page"


@pytest.mark.trio
async def test_what_was_read_elsewhere_or_through_the_only_handle_or_before_another_write_needs_no_notice(
    world: World,
) -> None:
    await world.read(5)
    await world.write(0, b"in another page")
    await world.read(1)
    await world.write(10, b"in another page")  # not of a mapping: it has begun after that read
    await world.write(PAGE_BYTES, b"in the page")
    direct = await world.open(os.O_WRONLY | os.O_APPEND)
    await world.read(PAGES - 1)
    await world.write(PAGES * PAGE_BYTES - 10, bytes(10), direct)
    for number in (direct, world.one):
        await world.filesystem.release(number)
    await world.write(3, b"", world.other)
    await world.read(3)
    await world.write(3 * PAGE_BYTES, b"in the page", world.other)
    assert not [notice for notice in world.kernel.told if notice[0] == "inode"]


@pytest.mark.trio
async def test_what_is_remembered_is_bounded_and_goes_with_the_inode(world: World) -> None:
    remembered = world.filesystem.reread_pages._read
    for page in range(0, 10 * MAX_RANGES, 2):
        world.filesystem.reread_pages.read(world.inode, page, page + 1)
        assert len(remembered[world.inode]) <= MAX_RANGES
    world.filesystem.reread_pages.read(world.inode, 10 * MAX_RANGES - 1, 20 * MAX_RANGES)
    await world.write(5 * MAX_RANGES, b"new")
    assert [notice[0] for notice in world.kernel.told] == ["inode"], "forgetting where only adds notices"
    await world.read(0)
    for number in (world.one, world.other):
        await world.filesystem.release(number)
    await world.filesystem.forget([(world.inode, 1)])
    assert not remembered and not world.filesystem.reread_pages._settling


# -- pages of the version that is opened -------------------------------------------------------------------------------


@pytest.mark.trio
@pytest.mark.fails_without("page_versions")
async def test_a_file_that_has_grown_since_its_lookup_is_not_read_to_its_old_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads_volume.Feed, "start", lambda feed: None)
    path = str(tmp_path / "threads.db")
    with graphs.sqlite_saver(path) as saver, ThreadsBackend.from_sqlite(path) as backend:
        script = [graphs.use(graphs.write("/count.txt", "9")), graphs.say("done")]
        agent = graphs.deep_agent(saver, script)
        agent.invoke(graphs.user("go"), graphs.thread("t"))
        filesystem, kernel = FileSystem.of(backend), FakeKernel()
        filesystem.attach(kernel)
        inode = ROOT_INODE
        for name in (b"t", b"head", b"count.txt"):
            inode = (await filesystem.lookup(inode, name)).inode
        opened = await filesystem.open(inode, os.O_RDONLY)
        assert opened.keep_pages and not kernel.told
        await filesystem.release(opened.number)
        agent.model.script.extend([graphs.use(graphs.edit("/count.txt", "9", "10")), graphs.say("done")])
        agent.invoke(graphs.user("go"), graphs.thread("t"))
        opened = await filesystem.open(inode, os.O_RDONLY)
        assert not opened.keep_pages
        assert ("attributes", inode) in kernel.told
        assert await filesystem.read(opened.number, 0, 10) == b"10"
        await filesystem.release(opened.number)
        filesystem.detach()
