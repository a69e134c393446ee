"""Volumes that other hosts change too, without a kernel: what an open asks, and what the kernel is told and when."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace

import pytest
import trio
from fakekernel import FakeKernel
from onloop import readdir

from fusebackend.backends.memory import InMemoryVolume
from fusebackend.base.paths import ROOT
from fusebackend.protocol import ROOT_NODE, AttrChanges, Caller, Change, Features
from fusebackend.testing.posix.case import fails
from fusebackend.vfs import switches
from fusebackend.vfs.calls import request
from fusebackend.vfs.coherence import dentries, page_cache
from fusebackend.vfs.coherence.dentries import Dentries
from fusebackend.vfs.coherence.entry_cache import COHERENT_TIMEOUT_S, SHARED_DIRECTORY_TIMEOUT_S
from fusebackend.vfs.coherence.page_cache import PageVersions
from fusebackend.vfs.inodes import ROOT_INODE, InodeTable
from fusebackend.vfs.mounted_tree import FileSystem
from fusebackend.volumes.storage import Inode

ME = Caller(os.geteuid(), os.getegid())
PATIENCE_S = 30.0


class SharedVolume(InMemoryVolume):
    """One that another host, the test, changes by calling it."""

    features = Features(shared=True)

    def _changed(self, inode: Inode) -> None:
        super()._changed(inode)
        inode.version += 1


class World:
    """A mount of a shared volume that holds `/d/f`, which the kernel has looked up."""

    def __init__(self) -> None:
        self.volume = SharedVolume()
        self.kernel = FakeKernel()
        self.filesystem = FileSystem({ROOT: self.volume})
        self.filesystem.attach(self.kernel)
        self.directory = self.volume.mkdir(ROOT_NODE, b"d", 0o755, ME).node
        self.file = self.make(self.directory, b"f")

    def make(self, parent: int, name: bytes) -> int:
        """What another host does."""
        return self.volume.mknod(parent, name, 0o100644, 0, ME).node

    async def walk(self, thread: int, path: str) -> int:
        """Look up every name of a path, as Linux does on a second walk."""
        inode = ROOT_INODE
        for name in path.split("/"):
            request.asked.set(request.Request("lookup", thread, ME.uid, ME.gid))
            inode = (await self.filesystem.lookup(inode, name.encode())).inode
        return inode

    async def open(self, thread: int, inode: int, flags: int = os.O_RDONLY) -> bool:
        """Open it and close it again; returns whether pages were kept."""
        request.asked.set(request.Request("open", thread, ME.uid, ME.gid))
        opened = await self.filesystem.open(inode, flags)
        await self.filesystem.release(opened.number)
        return opened.keep_pages

    async def refused(self, thread: int, inode: int) -> None:
        with fails(errno.ESTALE):
            await self.open(thread, inode)


@pytest.fixture
def world() -> World:
    return World()


async def settled(seen: Callable[[], bool]) -> None:
    with trio.fail_after(PATIENCE_S):
        while not seen():
            await trio.sleep(0.001)


# -- names -------------------------------------------------------------------------------------------------------------


def replace_file(world: World) -> None:
    world.volume.unlink(world.directory, b"f")
    world.make(world.directory, b"f")


def rename_file(world: World) -> None:
    world.volume.rename(world.directory, b"f", ROOT_NODE, b"elsewhere")


def replace_directory(world: World) -> None:
    world.volume.rename(ROOT_NODE, b"d", ROOT_NODE, b"elsewhere")
    world.make(world.volume.mkdir(ROOT_NODE, b"d", 0o755, ME).node, b"f")


@pytest.mark.trio
@pytest.mark.parametrize("change", [replace_file, rename_file, replace_directory])
@pytest.mark.fails_without("revalidation")
async def test_what_has_lost_its_name_is_not_opened_by_it(world: World, change: Callable[[World], None]) -> None:
    inode = await world.walk(1, "d/f")
    await world.open(1, inode)
    change(world)
    await world.refused(1, inode)
    found = await world.walk(1, "d/f")
    assert found != inode
    if found:
        await world.open(1, found)
    else:
        await settled(lambda: any(notice[0] == "entry" for notice in world.kernel.told))


@pytest.mark.trio
async def test_whoever_comes_back_without_a_path_is_believed_and_nobody_else(world: World) -> None:
    inode = await world.walk(1, "d/f")
    rename_file(world)
    await world.refused(1, inode)
    await world.refused(2, inode)
    await world.open(1, inode)
    await world.refused(1, inode)


@pytest.mark.trio
async def test_a_second_walk_that_finds_it_by_another_name_is_believed(world: World) -> None:
    inode = await world.walk(1, "d/f")
    rename_file(world)
    assert await world.walk(1, "elsewhere") == inode
    await world.refused(1, inode)  # nobody knows by which of the two it has come
    assert await world.walk(1, "elsewhere") == inode
    await world.open(1, inode)


@pytest.mark.trio
async def test_what_was_refused_and_ended_otherwise_is_not_believed_later(world: World) -> None:
    inode = await world.walk(1, "d/f")
    rename_file(world)
    await world.refused(1, inode)
    request.asked.set(request.Request("mkdir", 1, ME.uid, ME.gid))
    await world.filesystem.mkdir(ROOT_INODE, b"other", 0o755, ME)
    await world.refused(1, inode)


@pytest.mark.trio
async def test_a_name_is_absent_only_if_its_directory_is_the_right_one(world: World) -> None:
    directory = await world.walk(1, "d")
    absent = await world.filesystem.lookup(directory, b"new")
    assert absent.inode == 0 and absent.timeout_s == 0, "absence is not cached"
    world.volume.rename(ROOT_NODE, b"d", ROOT_NODE, b"elsewhere")
    world.make(world.volume.mkdir(ROOT_NODE, b"d", 0o755, ME).node, b"new")
    with fails(errno.ESTALE):
        await world.filesystem.lookup(directory, b"new")
    assert await world.walk(1, "d/new")


@pytest.mark.trio
async def test_a_second_walk_of_two_paths_is_believed_about_both(world: World) -> None:
    """As of rename(2), which looks up the last name of the old path after all others: a directory whose old name the
    kernel still has was replaced by another one, which it knows by an old name as well."""

    other = world.volume.mkdir(ROOT_NODE, b"e", 0o755, ME).node
    await world.walk(1, "e")
    stale = await world.walk(1, "d")
    world.make(ROOT_NODE, b"new")
    world.volume.unlink(world.directory, b"f")
    world.volume.rename(ROOT_NODE, b"e", ROOT_NODE, b"d")
    request.asked.set(request.Request("lookup", 1, ME.uid, ME.gid))
    with fails(errno.ESTALE):
        await world.filesystem.lookup(stale, b"b")
    directory = await world.walk(1, "d")
    await world.walk(1, "new")
    request.asked.set(request.Request("lookup", 1, ME.uid, ME.gid))
    assert (await world.filesystem.lookup(directory, b"b")).inode == 0, "it is absent"
    await world.filesystem.rename(ROOT_INODE, b"new", directory, b"b", 0)
    assert world.volume.lookup(other, b"b").node
    request.asked.set(request.Request("lookup", 1, ME.uid, ME.gid))
    with pytest.raises(OSError):
        await world.filesystem.lookup(directory, b"c")  # the walk has ended with the rename


@pytest.mark.trio
@pytest.mark.fails_without("revalidation")
async def test_a_truncation_by_a_wrong_name_changes_nothing(world: World) -> None:
    world.volume.write(world.file, 0, b"kept")
    inode = await world.walk(1, "d/f")
    rename_file(world)
    for truncate in (
        lambda: world.filesystem.setattr(inode, AttrChanges(size=0)),
        lambda: world.filesystem.open(inode, os.O_WRONLY | os.O_TRUNC),
    ):
        request.asked.set(request.Request("setattr", 7, ME.uid, ME.gid))
        with fails(errno.ESTALE):
            await truncate()  # type: ignore[no-untyped-call]
        world.filesystem.revalidation.arrived()
    assert world.volume.getattr(world.file).size == 4


@pytest.mark.trio
async def test_what_this_host_renames_is_opened_without_a_question_asked_twice(world: World) -> None:
    inode = await world.walk(1, "d/f")
    directory = await world.walk(1, "d")
    await world.filesystem.rename(directory, b"f", ROOT_INODE, b"g", 0)
    await world.open(1, inode)
    other = (await world.filesystem.mknod(ROOT_INODE, b"h", 0o100644, 0, ME)).inode
    await world.filesystem.rename(ROOT_INODE, b"g", ROOT_INODE, b"h", 2)  # RENAME_EXCHANGE
    await world.open(1, inode)
    await world.open(1, other)
    await world.filesystem.unlink(ROOT_INODE, b"g")
    await world.open(1, other)  # by /proc/self/fd, say


@pytest.mark.trio
async def test_a_name_beside_the_one_that_is_renamed_stays_known(world: World) -> None:
    """The log of a change through it needs the path, also when the other name and its directory are gone."""

    inode = await world.walk(1, "d/f")
    directory = await world.walk(1, "d")
    request.asked.set(request.Request("link", 1, ME.uid, ME.gid))
    await world.filesystem.link(inode, ROOT_INODE, b"beside")
    for old, new in ((b"f", b"g"), (b"g", b"h")):
        await world.filesystem.rename(directory, old, directory, new, 0)
    route = world.filesystem.tree.routes[0]
    assert world.filesystem.names.of(route, world.file) == b"/d/h"
    world.volume.unlink(world.directory, b"h")
    world.volume.rmdir(ROOT_NODE, b"d")
    assert world.filesystem.names.of(route, world.file) == b"/beside"


@pytest.mark.trio
async def test_names_that_a_listing_gave_are_looked_at_too(world: World) -> None:
    directory = await world.walk(1, "d")
    number = await world.filesystem.opendir(directory)
    given = {each.name: each.entry.inode for each in await readdir(world.filesystem, number)}
    await world.open(1, given[b"f"])
    rename_file(world)
    await world.refused(1, given[b"f"])


def test_a_name_the_kernel_was_told_to_drop_counts_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Dentries()
    known.found((1, b"f"), 5)
    dentry = known.get((1, b"f"))
    assert dentry is not None
    known.dropped((1, b"f"), dentry)
    assert known.of(5) == ((1, b"f"),), "somebody may have come by it just before"
    monkeypatch.setattr(dentries, "LINGER_S", -1.0)
    known.dropped((1, b"f"), dentry)
    known.found((1, b"other"), 6)
    known.found((1, b"other"), 6)
    monkeypatch.setattr(dentries.time, "monotonic", lambda: float("inf"))
    known.found((1, b"third"), 7)
    assert known.of(5) == () and known.of(6) and known.of(7)
    known.found((1, b"f"), 8)
    known.dropped((1, b"f"), dentry)
    known.found((1, b"third"), 7)
    assert known.of(8) == ((1, b"f"),), "it was found again since"
    known.forget([6, 7, 8])
    assert all(known.get((1, name)) is None for name in (b"f", b"other", b"third"))


# -- attributes and pages ----------------------------------------------------------------------------------------------


@pytest.mark.trio
@pytest.mark.fails_without("page_versions")
async def test_pages_are_kept_while_the_version_is_the_one_the_kernel_has_asked_for(world: World) -> None:
    inode = await world.walk(1, "d/f")
    assert not await world.open(1, inode)
    assert ("attributes", inode) in world.kernel.told
    assert not await world.open(1, inode), "it has not asked for the size since"
    await world.filesystem.getattr(inode)
    assert await world.open(1, inode)
    world.volume.write(world.file, 0, b"by another host")
    world.kernel.told.clear()
    assert not await world.open(1, inode)
    assert ("attributes", inode) in world.kernel.told


@pytest.mark.trio
@pytest.mark.fails_without("hold_back")
async def test_a_notice_waits_while_the_kernel_takes_in_what_it_has_asked() -> None:
    told: list[int] = []
    waiting = PageVersions(InodeTable(), FakeKernel, True, switches.DEFAULT.hold_back)
    waiting.tell(5, lambda: told.append(1))
    assert told == [1], "nobody has just opened it"
    await waiting.begin(5, version=2)
    for number in (2, 3):
        waiting.tell(5, lambda number=number: told.append(number))
    waiting.tell(6, lambda: told.append(6))
    assert told == [1, 6]
    await settled(lambda: told == [1, 6, 3])
    waiting.tell(5, lambda: told.append(4))
    assert told == [1, 6, 3, 4]


@pytest.mark.trio
async def test_an_open_waits_for_a_notice_that_is_on_its_way() -> None:
    waiting = PageVersions(InodeTable(), FakeKernel, True, switches.DEFAULT.hold_back)
    telling, opened = trio.Event(), trio.Event()
    token = trio.lowlevel.current_trio_token()

    def notice() -> None:
        trio.from_thread.run_sync(telling.set, trio_token=token)
        trio.from_thread.run(trio.sleep, 0.05, trio_token=token)
        assert not opened.is_set()

    async def open_it() -> None:
        await telling.wait()
        await waiting.begin(5, version=2)
        opened.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(open_it)
        await trio.to_thread.run_sync(waiting.tell, 5, notice)


@pytest.mark.trio
async def test_what_is_settled_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cache, "MAX_OPENED", 10)

    waiting = PageVersions(InodeTable(), FakeKernel, True, switches.DEFAULT.hold_back)
    for inode in range(1000):
        await waiting.begin(inode, version=1)
    assert len(waiting._opened) <= 10


# -- the feed ----------------------------------------------------------------------------------------------------------


@pytest.mark.trio
async def test_what_is_heard_of_reaches_the_kernel(world: World) -> None:
    inode = await world.walk(1, "d/f")
    directory = await world.walk(1, "d")
    world.volume.publish(Change(node=world.file, parent=world.directory, name=b"f"))
    assert world.kernel.told == [("inode", inode), ("entry", directory, b"f"), ("attributes", directory)]


@pytest.mark.trio
async def test_a_lost_feed_makes_it_a_route_with_a_ttl_until_it_is_back(world: World) -> None:
    (route,) = world.filesystem.tree.routes
    file, directory = await world.walk(1, "d/f"), await world.walk(1, "d")
    assert (await world.filesystem.lookup(directory, b"f")).timeout_s == COHERENT_TIMEOUT_S
    assert (await world.filesystem.lookup(ROOT_INODE, b"d")).timeout_s == SHARED_DIRECTORY_TIMEOUT_S
    world.volume.features = replace(world.volume.features, change_feed=False)
    world.volume.publish(Change())
    assert not route.policy.coherent
    assert (await world.filesystem.lookup(directory, b"f")).timeout_s == 1.0
    assert {("inode", file), ("inode", directory), ("entry", directory, b"f")} <= set(world.kernel.told)
    assert ("entry", ROOT_INODE, b"d") not in world.kernel.told, "somebody may stand in it"

    world.volume.rename(ROOT_NODE, b"d", ROOT_NODE, b"elsewhere")
    world.kernel.told.clear()
    world.volume.features = replace(world.volume.features, change_feed=True)
    world.volume.publish(Change())
    assert route.policy.coherent
    assert ("entry", ROOT_INODE, b"d") in world.kernel.told


@pytest.mark.trio
async def test_an_explicit_invalidation_looks_at_directories_too(world: World) -> None:
    await world.walk(1, "d/f")
    await world.walk(1, "d")
    world.filesystem.invalidation.expire(world.filesystem.tree.routes[0])
    assert ("entry", ROOT_INODE, b"d") not in world.kernel.told
    world.volume.rename(ROOT_NODE, b"d", ROOT_NODE, b"elsewhere")
    world.filesystem.invalidation.expire(world.filesystem.tree.routes[0])
    assert ("entry", ROOT_INODE, b"d") in world.kernel.told
