"""`RereadPages`: pages that the kernel read again while a write was on its way to the server get the written bytes.

Race: write(2) copies its bytes into the page cache page by page, unlocks each, and sends the request last
(`fuse_fill_write_pages`, fs/fuse/file.c). In between it may wait for a page that another process reads, for
milliseconds on a volume behind a network. If the pages are dropped meanwhile (an open of a changed file, a new mtime, a
notice) and read again, READ arrives before WRITE, and the old bytes stay in the page cache. A process that has the page
mapped then sees them until the next drop; and if it changes a byte of its own beside them, the whole page is written
back and undoes the write in the volume. Seen with four processes at one file of a `postgres:` volume: 1 of 400 writes
of 50 KB beside openers and readers had stale pages, 1 of 3,000 was undone.

So a write that meets bytes which were read since the last one is followed by a notice, before it is answered: the
kernel drops the file's pages. Until then, such a page that is written back changes the other bytes of the page alone.
The write has not returned, so either order of the two is right.

Only volumes that block need it: others answer in the order of requests, within 0.1 ms. Files with one handle are left
out: their reads and writes follow each other nearly always.

Cost: on volumes that block, a look into two tables for each read and write. For a file with several handles, of which
one reads what another writes: a notice, 0.1 ms, after such a write. Switch: `reread_pages`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

import trio

from fusebackend.vfs.coherence.append_end import PAGE_BYTES
from fusebackend.vfs.coherence.page_cache import KernelCache
from fusebackend.vfs.handles import FileHandle
from fusebackend.vfs.inodes import InodeTable

PATIENCE_S = 0.02
"""How long a write waits for its notice. The notice waits for pages that are being read; and for the last page of the
write if that was not in the cache, which the kernel keeps locked until the write is answered. That page is right, and
the notice has dropped those before it."""

MAX_RANGES = 64
"""Ranges of a file that are remembered apart. More become one range, with what lies between them."""

MAX_NOTICES = 64
"""Notices that are under way at once."""

Range = tuple[int, int]
"""First byte, and the byte after the last."""

Write = Callable[[int, bytes], int]


class RereadPages:
    """See the module's docstring. On the mount's loop.

    Args:
        kernel: gives the kernel's caches, None before `FileSystem.attach`.
    """

    def __init__(self, inodes: InodeTable, kernel: Callable[[], KernelCache | None], on: bool) -> None:
        self._inodes = inodes
        self._kernel = kernel
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

    async def write(
        self,
        handle: FileHandle,
        write: Write,
        offset: int,
        data: bytes,
        call: Callable[[FileHandle, Write, int, bytes], Awaitable[int]],
    ) -> int:
        """Write bytes of a file by `call`, and bring pages that were read meanwhile up to date; returns its result."""
        inode = handle.inode
        if handle.direct or not (inode in self._read or inode in self._settling):
            return await call(handle, write, offset, data)
        mine = (offset, offset + len(data))
        settling = self._settling.get(inode, ())
        if offset % PAGE_BYTES == 0 and _common(mine, settling):
            # Pages of a mapping: write(2) is kept out by the other one, which has the inode's lock (`inode_lock`).
            for start, end in _without(mine, settling):
                await call(handle, handle.write, start, data[start - offset : end - offset])
            return len(data)
        old = _common(mine, self._read.get(inode, ()))
        if old or offset % PAGE_BYTES:
            self._read.pop(inode, None)  # and no other write(2) has begun: each holds the inode's lock
        if not old:
            return await call(handle, write, offset, data)
        settling = self._settling.setdefault(inode, [])
        settling += old
        try:
            written = await call(handle, write, offset, data)
            await self._notify(inode)
        finally:
            for part in old:
                settling.remove(part)
            if not settling:
                del self._settling[inode]
        return written

    async def _notify(self, inode: int) -> None:
        kernel = self._kernel()
        if kernel is not None:
            with trio.move_on_after(PATIENCE_S):
                await trio.to_thread.run_sync(
                    kernel.invalidate_inode, inode, abandon_on_cancel=True, limiter=self._notices
                )


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
