"""`RangeOrder`: where they overlap, reads and writes of a file reach its volume in the order in which the kernel asked.

Race: while a write through the page cache is on its way, the kernel has its pages unlocked (fs/fuse/file.c,
`fuse_fill_write_pages`). If they are dropped meanwhile, as by an open of a changed file, the next access reads one of
them again. A read that overtook the write in another thread would leave the old bytes in the page cache for good (seen
with four processes at one file of a `postgres:` volume).

Only volumes that block need it: others answer one request after the other. All calls are made on the mount's own loop.

Cost: on volumes that block, a look into a table for each read and write. Switch: `range_order`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import trio


class _WriteUnderWay(NamedTuple):
    start: int
    end: int
    done: trio.Event


class RangeOrder:
    """See the module's docstring."""

    def __init__(self, on: bool) -> None:
        self._on = on
        self._under_way: dict[int, list[_WriteUnderWay]] = {}  # by inode

    async def wait_for_writes(self, inode: int, start: int, end: int) -> None:
        """Wait until earlier writes to these bytes are done, or have failed."""
        for write in self._meeting(inode, start, end):
            await write.done.wait()

    async def write(self, inode: int, offset: int, size: int, call: Callable[[], Awaitable[int]]) -> int:
        """Write bytes of a file by `call`, after earlier writes that overlap; returns its result."""
        earlier = self._meeting(inode, offset, offset + size)
        mine = _WriteUnderWay(offset, offset + size, trio.Event())
        writes = self._under_way.setdefault(inode, [])
        writes.append(mine)
        try:
            for write in earlier:
                await write.done.wait()
            return await call()
        finally:
            writes.remove(mine)
            if not writes:
                del self._under_way[inode]
            mine.done.set()

    def _meeting(self, inode: int, start: int, end: int) -> list[_WriteUnderWay]:
        if not self._on:
            return []
        return [write for write in self._under_way.get(inode, ()) if write.start < end and start < write.end]
