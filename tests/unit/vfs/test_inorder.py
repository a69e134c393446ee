"""Requests for the same bytes of a file wait for the writes before them alone; where an append finds the end."""

from __future__ import annotations

import stat
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from fusebackend.protocol import Attr
from fusebackend.vfs.coherence.range_order import InOrder
from fusebackend.vfs.inodes import EARLIER_SIZES, KnownInode


class Writes:
    """Handles whose writes end when they are told to, or with an error."""

    def __init__(self, *, blocking: bool = True) -> None:
        self.begun: list[int] = []
        self.end: dict[int, trio.Event] = {}
        self.broken: set[int] = set()
        self._route = SimpleNamespace(offload=SimpleNamespace(blocking=blocking), call=self._call)

    def handle(self, inode: int) -> Any:
        return SimpleNamespace(inode=inode, route=self._route, write=None)

    async def _call(self, function: Callable[..., int], offset: int, data: bytes, known: object) -> int:
        self.begun.append(offset)
        await self.end.setdefault(offset, trio.Event()).wait()
        if offset in self.broken:
            raise OSError(28, "No space left on device")
        return len(data)


async def read(order: InOrder, seen: list[str], name: str, start: int, end: int, inode: int = 1) -> None:
    await order.settled(inode, start, end)
    seen.append(name)


@pytest.mark.trio
async def test_a_read_waits_for_the_writes_that_meet_it(autojump_clock: trio.testing.MockClock) -> None:
    order, writes, seen = InOrder(), Writes(), list[str]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(order.write, writes.handle(1), 100, b"x" * 50, None)
        nursery.start_soon(order.write, writes.handle(1), 200, b"x" * 50, None)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(read, order, seen, "before", 0, 100)
        nursery.start_soon(read, order, seen, "between", 150, 200)
        nursery.start_soon(read, order, seen, "of another file", 0, 4096, 2)
        nursery.start_soon(read, order, seen, "the first", 0, 101)
        nursery.start_soon(read, order, seen, "both", 149, 4096)
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(seen) == ["before", "between", "of another file"]
        writes.end[100].set()
        await trio.testing.wait_all_tasks_blocked()
        assert seen[3:] == ["the first"]
        writes.end[200].set()
    assert seen[4:] == ["both"]


@pytest.mark.trio
async def test_a_write_waits_for_those_that_meet_it(autojump_clock: trio.testing.MockClock) -> None:
    order, writes = InOrder(), Writes()
    async with trio.open_nursery() as nursery:
        for offset, size in ((0, 4096), (4096, 10), (100, 10), (4090, 100)):
            nursery.start_soon(order.write, writes.handle(1), offset, b"x" * size, None)
            await trio.testing.wait_all_tasks_blocked()
        assert writes.begun == [0, 4096]
        writes.end[0].set()
        await trio.testing.wait_all_tasks_blocked()
        assert writes.begun == [0, 4096, 100], "the last one meets another as well"
        for offset in (4096, 100, 4090):
            writes.end.setdefault(offset, trio.Event()).set()
            await trio.testing.wait_all_tasks_blocked()
    assert writes.begun == [0, 4096, 100, 4090]


@pytest.mark.trio
async def test_a_write_that_fails_or_is_given_up_holds_nobody_back(autojump_clock: trio.testing.MockClock) -> None:
    order, writes, seen = InOrder(), Writes(), list[str]()
    writes.broken.add(0)

    async def fail() -> None:
        with pytest.raises(OSError, match="No space"):
            await order.write(writes.handle(1), 0, b"x" * 10, None)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail)
        with trio.move_on_after(1):
            await order.write(writes.handle(1), 5, b"x" * 10, None)
        nursery.start_soon(read, order, seen, "read", 0, 20)
        await trio.testing.wait_all_tasks_blocked()
        assert seen == []
        writes.end[0].set()
    assert seen == ["read"]
    await order.settled(1, 0, 1 << 62)


@pytest.mark.trio
async def test_a_volume_that_does_not_block_keeps_the_order_itself(autojump_clock: trio.testing.MockClock) -> None:
    order, writes, seen = InOrder(), Writes(blocking=False), list[str]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(order.write, writes.handle(1), 0, b"x", None)
        await trio.testing.wait_all_tasks_blocked()
        await read(order, seen, "read", 0, 10)
        writes.end[0].set()
    assert seen == ["read"]


def test_the_end_that_the_kernel_believes_in() -> None:
    """An append is told from other writes by where the kernel has put it; it may not have heard of a new size yet."""
    known = KnownInode(is_dir=False)
    known.told(Attr(5, stat.S_IFREG | 0o644, size=10_000))
    known.lookups = 1
    assert known.may_end_at(10_000)
    assert not known.may_end_at(0) and not known.may_end_at(9_999) and not known.may_end_at(20_000)
    for size in (10_000, 8192, 20_000):
        known.told(Attr(5, stat.S_IFREG | 0o644, size=size))
    assert known.may_end_at(20_000) and known.may_end_at(10_000)
    assert known.may_end_at(8192)
    known.mappers = 1
    assert not known.may_end_at(8192), "that is where a page of a mapping goes"
    for size in range(30_001, 30_001 + 2 * EARLIER_SIZES):
        known.told(Attr(5, stat.S_IFREG | 0o644, size=size))
    assert len(known.earlier_sizes) == EARLIER_SIZES and not known.may_end_at(10_000)


def test_the_end_of_an_append_is_where_the_next_one_comes_if_the_kernel_has_not_heard_of_more() -> None:
    known = KnownInode(is_dir=False)
    known.lookups = 1
    known.told(Attr(5, stat.S_IFREG | 0o644, size=1_000))
    known.told(Attr(5, stat.S_IFREG | 0o644, size=9_001))  # thrown away: it was told of something else at that moment
    assert known.may_end_at(1_000)
    known.wrote(1_100, True)
    assert known.may_end_at(1_100) and known.size == 9_001
    known.wrote(500, False)
    assert not known.may_end_at(500), "who writes in the middle says nothing of the end"
    known.wrote(10_001, False)
    assert known.may_end_at(10_001)
