"""`InOrder`: where they overlap, reads and writes of a file reach its volume in the order in which the kernel asked.

While a write through the page cache is on its way, the kernel has its pages unlocked (fs/fuse/file.c,
`fuse_fill_write_pages`). If they are dropped meanwhile, as by an open of a file that has changed, whoever touches one
of them next has it read again. A read that overtook the write in another thread would leave in the page cache what was
there before, for good (seen with four processes at one file of a `postgres:` volume).

Only volumes that block need it: others answer one request after the other. All calls are made on the mount's own loop.
"""

from __future__ import annotations

from typing import NamedTuple

import trio

from fusebackend.vfs.handles import FileHandle
from fusebackend.vfs.inodes import KnownInode


class _Write(NamedTuple):
    start: int
    end: int
    done: trio.Event


class InOrder:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._under_way: dict[int, list[_Write]] = {}  # by inode

    async def settled(self, inode: int, start: int, end: int) -> None:
        """Wait until what was to be written to these bytes before now has been, or has failed."""
        for write in self._meeting(inode, start, end):
            await write.done.wait()

    async def write(self, handle: FileHandle, offset: int, data: bytes, known: KnownInode | None) -> int:
        """Write through a handle, after those who came before; returns how much."""
        if not handle.route.offload.blocking:
            return await handle.route.call(handle.write, offset, data, known)
        earlier = self._meeting(handle.inode, offset, offset + len(data))
        mine = _Write(offset, offset + len(data), trio.Event())
        writes = self._under_way.setdefault(handle.inode, [])
        writes.append(mine)
        try:
            for write in earlier:
                await write.done.wait()
            return await handle.route.call(handle.write, offset, data, known)
        finally:
            writes.remove(mine)
            if not writes:
                del self._under_way[handle.inode]
            mine.done.set()

    def _meeting(self, inode: int, start: int, end: int) -> list[_Write]:
        return [write for write in self._under_way.get(inode, ()) if write.start < end and start < write.end]
