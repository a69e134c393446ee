"""Writes of a file: at which offset they are made, and in which order with others' reads and writes of the same bytes.

`AppendEnd`, `RangeOrder` and `RereadPages` close a race each; see each of them.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import NamedTuple

import trio

from fusebackend.vfs.coherence.page_cache import KernelCache
from fusebackend.vfs.handles import FileHandle, HandleTable
from fusebackend.vfs.inodes import InodeTable, KnownInode

# -- append end --------------------------------------------------------------------------------------------------


EARLIER_SIZES = 16
"""So many changes of a file's size may be sent to the kernel while one write is on its way."""

PAGE_BYTES = 4096
"""Pages of a mapping are written from a multiple of this on. The kernel's are as large or larger."""


class AppendEnd:
    """An append goes to the end of the file at its arrival, not to the end that the kernel assumes.

    Race: with O_APPEND the kernel chooses the offset, by its own size of the file (`generic_write_checks`,
    fs/read_write.c). If another face or host has appended meanwhile, that is in the middle of the file, and would
    overwrite its data. So a write at the kernel's end of the file, through a handle with O_APPEND, becomes an append.
    Two kinds of writes keep their offset: pages of a shared mapping, and writes after `fcntl` has cleared O_APPEND,
    which no request reports.

    The kernel may have one of several sizes: it drops attributes that arrive together with another notice of the file,
    and a write may have been sent before a notice of a new size. The earlier ones are kept for that.

    Cost: nothing for a file that others don't change; else 150 bytes a file, while the kernel knows it.
    Switch: `append_end`.

    On the mount's loop, but for `write`.
    """

    def __init__(self, inodes: InodeTable, files: HandleTable[FileHandle], on: bool) -> None:
        self._inodes = inodes
        self._files = files
        self._on = on
        self._earlier: dict[int, tuple[int, ...]] = inodes.by_inode({})  # sizes before `KnownInode.size`

    def size_sent(self, inode: int, known: KnownInode, size: int) -> None:
        """Note that the kernel gets another size than it has."""
        if not known.is_dir:
            self._remember(inode, known.size)
        known.size = size

    def wrote(self, inode: int, known: KnownInode, end: int, appending: bool) -> None:
        """Note a write by the kernel up to `end`: its size of the file is at least that.

        The kernel may not have `known.size`; its next append then begins at `end`.
        """
        if end > known.size:
            known.size = end
        elif appending and end != known.size:
            self._remember(inode, end)

    def _remember(self, inode: int, size: int) -> None:
        self._earlier[inode] = (*self._earlier.get(inode, ())[1 - EARLIER_SIZES :], size)

    def write(self, handle: FileHandle, node: int, offset: int, data: bytes) -> int:
        """Write through a handle with O_APPEND. In the volume's thread."""
        known = self._inodes.get(handle.inode)
        if self._on and (known is None or self.may_be_end(handle.inode, known, offset, len(data))):
            return handle.route.door.append(node, data)
        return handle.route.door.write(node, offset, data)

    def may_be_end(self, inode: int, known: KnownInode, offset: int, length: int) -> bool:
        """True if this offset may have been the kernel's end of the file when it sent the write of this length.

        Also a size from before the last one counts, but not for a mapped page: that page is written where it is. A
        write that begins at a page is not taken for one if it ends elsewhere than a page or the file does: the kernel
        sends a cached append in two where it crosses into a page that it has not read (`fuse_fill_write_pages`).
        """
        if offset == known.size:
            return True
        earlier = self._earlier.get(inode, ())
        is_page = offset < known.size and offset % PAGE_BYTES == 0 and self._is_mapped(inode)
        if is_page and length % PAGE_BYTES:
            end = offset + length
            is_page = end == known.size or end in earlier
        return offset in earlier and not is_page

    def _is_mapped(self, inode: int) -> bool:
        """True if pages of a file may be mapped to write (mmap(2)): it is open for reading and writing."""
        handles = list(self._files.values())
        return any(handle.inode == inode and handle.flags & os.O_ACCMODE == os.O_RDWR for handle in handles)


# -- range order -------------------------------------------------------------------------------------------------


class _WriteUnderWay(NamedTuple):
    start: int
    end: int
    done: trio.Event


class RangeOrder:
    """Where they overlap, reads and writes of a file reach its volume in the order in which the kernel asked.

    Race: while a write through the page cache is on its way, the kernel has its pages unlocked (fs/fuse/file.c,
    `fuse_fill_write_pages`). If they are dropped meanwhile, as by an open of a changed file, the next access reads one
    of them again. A read that overtook the write in another thread would leave the old bytes in the page cache for good
    (seen with four processes at one file of a `postgres:` volume).

    Only volumes that block need it: others answer one request after the other. All calls are made on the mount's own
    loop.

    Cost: on volumes that block, a look into a table for each read and write. Switch: `range_order`.
    """

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


# -- reread pages ------------------------------------------------------------------------------------------------


PATIENCE_S = 0.02
"""How long a write waits for its notice. The notice waits for pages that are being read; and for the last page of the
write if that was not in the cache, which the kernel keeps locked until the write is answered. That page is right, and
the notice has dropped those before it."""

BRIEF_S = 0.002
"""The same on volumes that answer at once, where the last page of the write may be such a one: each write would take
`PATIENCE_S`. On a busy machine the notice may come after the answer then."""

MAX_RANGES = 64
"""Ranges of a file that are remembered apart. More become one range, with what lies between them."""

MAX_NOTICES = 64
"""Notices that are under way at once."""

Range = tuple[int, int]
"""First byte, and the byte after the last."""

Write = Callable[[int, int, bytes], int]
"""As `Volume.write`."""


class RereadPages:
    """Pages that the kernel read again while a write was on its way to the server get the written bytes.

    Race: write(2) copies its bytes into the page cache page by page, unlocks each, and sends the request last
    (`fuse_fill_write_pages`, fs/fuse/file.c). In between it may wait: for a page that another process reads, for the
    memory that its bytes are in, for a processor. If the pages are dropped meanwhile (an open of a changed file, a new
    mtime, a notice) and read again, READ arrives before WRITE, and the old bytes stay in the page cache. A process that
    has the page mapped then sees them until the next drop; and if it changes a byte of its own beside them, the whole
    page is written back and undoes the write in the volume. Seen with four processes at one file of a `postgres:`
    volume: 1 of 400 writes of 50 KB beside openers and readers had stale pages, 1 of 3,000 was undone. On volumes that
    answer within 0.1 ms it was seen twice, on busy machines.

    So a write that meets bytes which were read since the last one is followed by a notice, before it is answered: the
    kernel drops the file's pages. Until then, such a page that is written back changes the other bytes of the page
    alone. The write has not returned, so either order of the two is right.

    Files with one handle are left out: their reads and writes follow each other nearly always.

    Cost: a look into two tables for each read and write. For a file with several handles, of which one reads what
    another writes: a notice, 0.1 ms, after such a write; longer where the kernel keeps the last page locked. Four
    processes that read and write one file as it comes take twice as long. Switch: `reread_pages`.

    On the mount's loop.

    Args:
        kernel: gives the kernel's caches.
    """

    def __init__(self, inodes: InodeTable, kernel: Callable[[], KernelCache], order: RangeOrder, on: bool) -> None:
        self._inodes = inodes
        self._kernel = kernel
        self._order = order
        self._on = on
        self._read: dict[int, list[Range]] = inodes.by_inode({})  # since the last write
        self._settling: dict[int, list[Range]] = {}  # ranges under way; their pages may be old
        self._notices = trio.CapacityLimiter(MAX_NOTICES)

    def read(self, inode: int, start: int, end: int) -> None:
        """Note a READ at its arrival."""
        known = self._inodes.get(inode)
        if known is None or known.opens < 2 or not self._on:
            return
        ranges = self._read.setdefault(inode, [])
        if ranges and ranges[-1][0] <= start <= ranges[-1][1]:
            first, last = ranges.pop()
            start, end = first, max(last, end)
        ranges.append((start, end))
        if len(ranges) > MAX_RANGES:
            ranges[:] = [(min(first for first, _ in ranges), max(last for _, last in ranges))]

    async def write(self, handle: FileHandle, write: Write, offset: int, data: bytes) -> int:
        """Write bytes of a file, and bring pages that were read meanwhile up to date; returns how many were written."""
        inode = handle.inode
        if handle.direct or not (inode in self._read or inode in self._settling):
            return await self._write(handle, write, offset, data)
        mine = (offset, offset + len(data))
        settling = self._settling.get(inode, ())
        if offset % PAGE_BYTES == 0 and _common(mine, settling):
            # Pages of a mapping: write(2) is kept out by the other one, which has the inode's lock (`inode_lock`).
            for start, end in _without(mine, settling):
                await self._write(handle, handle.route.door.write, start, data[start - offset : end - offset])
            return len(data)
        old = _common(mine, self._read.get(inode, ()))
        if old or offset % PAGE_BYTES:
            self._read.pop(inode, None)  # and no other write(2) has begun: each holds the inode's lock
        if not old:
            return await self._write(handle, write, offset, data)
        settling = self._settling.setdefault(inode, [])
        settling += old
        try:
            written = await self._write(handle, write, offset, data)
            is_whole = mine[1] % PAGE_BYTES == 0
            await self._notify(inode, PATIENCE_S if is_whole or handle.route.executor.blocking else BRIEF_S)
        finally:
            for part in old:
                settling.remove(part)
            if not settling:
                del self._settling[inode]
        return written

    async def _write(self, handle: FileHandle, write: Write, offset: int, data: bytes) -> int:
        if not handle.route.executor.blocking:
            return await handle.route.call(write, handle.node, offset, data)
        call = partial(handle.route.call, write, handle.node, offset, data)
        return await self._order.write(handle.inode, offset, len(data), call)

    async def _notify(self, inode: int, patience_s: float) -> None:
        notice = partial(self._kernel().invalidate_inode, inode)
        with trio.move_on_after(patience_s):
            await trio.to_thread.run_sync(notice, abandon_on_cancel=True, limiter=self._notices)


def _common(one: Range, others: Iterable[Range]) -> list[Range]:
    """Return the parts of a range that lie in others."""
    parts = ((max(one[0], start), min(one[1], end)) for start, end in others)
    return [(start, end) for start, end in parts if start < end]


def _without(one: Range, others: Iterable[Range]) -> list[Range]:
    """Return the parts of a range that lie in none of the others, in their order."""
    left, (start, last) = [], one
    for first, end in sorted(_common(one, others)):
        if start < first:
            left.append((start, first))
        start = max(start, end)
    return [*left, (start, last)] if start < last else left
