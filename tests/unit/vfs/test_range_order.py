"""Requests for the same bytes of a file wait for the writes before them alone; where an append finds the end."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from fusebackend.protocol import Attr
from fusebackend.vfs import switches
from fusebackend.vfs.coherence.range_order import EARLIER_SIZES, AppendEnd, RangeOrder
from fusebackend.vfs.inodes import ROOT_INODE, InodeTable, KnownInode


class Writes:
    """Writes that end when they are told to, or with an error."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.end: dict[int, trio.Event] = {}
        self.broken: set[int] = set()

    async def write(self, order: RangeOrder, offset: int, size: int, inode: int = 1) -> int:
        return await order.write(inode, offset, size, partial(self._call, offset, size))

    async def _call(self, offset: int, size: int) -> int:
        self.begun.append(offset)
        await self.end.setdefault(offset, trio.Event()).wait()
        if offset in self.broken:
            raise OSError(28, "No space left on device")
        return size


async def read(order: RangeOrder, seen: list[str], name: str, start: int, end: int, inode: int = 1) -> None:
    await order.wait_for_writes(inode, start, end)
    seen.append(name)


@pytest.mark.trio
@pytest.mark.fails_without("range_order")
async def test_a_read_waits_for_the_writes_that_meet_it(autojump_clock: trio.testing.MockClock) -> None:
    order, writes, seen = RangeOrder(switches.DEFAULT.range_order), Writes(), list[str]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writes.write, order, 100, 50)
        nursery.start_soon(writes.write, order, 200, 50)
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
@pytest.mark.fails_without("range_order")
async def test_a_write_waits_for_those_that_meet_it(autojump_clock: trio.testing.MockClock) -> None:
    order, writes = RangeOrder(switches.DEFAULT.range_order), Writes()
    async with trio.open_nursery() as nursery:
        for offset, size in ((0, 4096), (4096, 10), (100, 10), (4090, 100)):
            nursery.start_soon(writes.write, order, offset, size)
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
    order, writes, seen = RangeOrder(switches.DEFAULT.range_order), Writes(), list[str]()
    writes.broken.add(0)

    async def fail() -> None:
        with pytest.raises(OSError, match="No space"):
            await writes.write(order, 0, 10)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail)
        with trio.move_on_after(1):
            await writes.write(order, 5, 10)
        nursery.start_soon(read, order, seen, "read", 0, 20)
        await trio.testing.wait_all_tasks_blocked()
        assert seen == []
        writes.end[0].set()
    assert seen == ["read"]
    await order.wait_for_writes(1, 0, 1 << 62)


@pytest.fixture
def file() -> Iterator[tuple[AppendEnd, InodeTable, KnownInode]]:
    """One of 10,000 bytes, as the kernel believes."""
    inodes = InodeTable()
    known = inodes.reference(5, ROOT_INODE, b"f", Attr(5, stat.S_IFREG | 0o644, size=10_000))
    yield AppendEnd(inodes, cast(Any, {}), True), inodes, known


def test_the_end_that_the_kernel_believes_in(file: tuple[AppendEnd, InodeTable, KnownInode]) -> None:
    """An append is told from other writes by where the kernel has put it; it may not have heard of a new size yet."""
    end, inodes, known = file
    assert end.may_be_end(5, known, 10_000, 4096)
    assert not any(end.may_be_end(5, known, offset, 4096) for offset in (0, 9_999, 20_000))
    for size in (8192, 20_000):
        end.size_sent(5, known, size)
    assert all(end.may_be_end(5, known, offset, 4096) for offset in (20_000, 10_000, 8192))
    end._files[1] = cast(Any, SimpleNamespace(inode=5, flags=os.O_RDWR))
    assert not end.may_be_end(5, known, 8192, 4096), "that is where a page of a mapping goes"
    assert not end.may_be_end(5, known, 8192, 1808), "the last one, as far as the file went"
    assert end.may_be_end(5, known, 8192, 700), "an append across a page comes in two"
    del end._files[1]
    assert end.may_be_end(5, known, 8192, 4096)
    for size in range(30_001, 30_001 + 2 * EARLIER_SIZES):
        end.size_sent(5, known, size)
    assert len(end._earlier[5]) == EARLIER_SIZES and not end.may_be_end(5, known, 10_000, 4096)
    inodes.forget([(5, 1)])
    assert not end._earlier, "what is remembered goes with the inode"


def test_the_end_of_an_append_is_where_the_next_one_comes_if_the_kernel_has_not_heard_of_more(
    file: tuple[AppendEnd, InodeTable, KnownInode],
) -> None:
    end, _, known = file
    end.size_sent(5, known, 19_001)  # thrown away: it was told of something else at that moment
    assert end.may_be_end(5, known, 10_000, 4096)
    end.wrote(5, known, 10_100, True)
    assert end.may_be_end(5, known, 10_100, 4096) and known.size == 19_001
    end.wrote(5, known, 500, False)
    assert not end.may_be_end(5, known, 500, 4096), "a write in the middle says nothing of the end"
    end.wrote(5, known, 20_001, False)
    assert end.may_be_end(5, known, 20_001, 4096)
