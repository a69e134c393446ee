"""`WriteBarrier`: an agent's edit waits for fresh opens, and an open for an edit in progress.

Race: the kernel reads a file page by page, and its pages are invalidated one by one. A process that reads while an
agent replaces the contents may get pages of both versions (measured: one of 500 reads of 16 KiB beside an agent that
does nothing but edit). So an open waits while the file is being changed, and an edit waits for handles younger than
`GRACE_S`: a process that opens a file and reads it at once gets one version. Older handles are not waited for; their
next read shows the change.

`begin` is called in the thread of the edit, with no lock held; the rest on the mount's own loop. A handle is in the
table before `admit` looks whether its file is being changed, and a change is noted before `begin` looks for handles:
one of the two sees the other.

Cost: an edit of a file that was just opened takes up to 30 ms longer. Switch: `write_barrier`.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

import trio

from fusebackend.vfs.handles import FileHandle, HandleTable
from fusebackend.vfs.inodes import inode_number
from fusebackend.vfs.junctions import Route

GRACE_S = 0.03
"""How long after it was opened a file is not changed. Opening, reading and closing a small file takes a millisecond."""

PATIENCE_S = 1.0
"""How long an `open` waits for a change. It ends before that, unless the disk is slow."""

POLL_S = 0.0005


class WriteBarrier:
    """See the module's docstring."""

    def __init__(self, files: HandleTable[FileHandle], on: bool) -> None:
        self._files = files
        self._on = on
        self._closed = threading.Condition()
        self.changing: Counter[int] = Counter()
        """Inodes whose contents are being changed: empty nearly always."""

    def begin(self, routes: Iterable[Route], node: int) -> Callable[[], None]:
        """Wait until a node of a volume, mounted as these routes, can be changed; returns the end of the change."""
        if not self._on:
            return lambda: None
        inodes = [inode_number(route.index, node) for route in routes]
        with self._closed:
            self.changing.update(inodes)
            while (wait_s := self._youngest(inodes) + GRACE_S - time.monotonic()) > 0:
                self._closed.wait(wait_s)
        return partial(self._end, inodes)

    def _youngest(self, inodes: list[int]) -> float:
        """When the last of these files was opened that is still open."""
        return max((handle.opened_at for _, handle in self._files.items() if handle.inode in inodes), default=0.0)

    def _end(self, inodes: list[int]) -> None:
        with self._closed:
            self.changing = self.changing - Counter(inodes)  # keeps what is above zero alone

    async def admit(self, handle: FileHandle) -> int:
        """Put a new handle into the table, when its file is not just being changed; returns its number."""
        number = self._files.add(handle)
        give_up_at = handle.opened_at + PATIENCE_S
        while handle.inode in self.changing and time.monotonic() < give_up_at:
            self.dismiss(number)
            while handle.inode in self.changing and time.monotonic() < give_up_at:
                await trio.sleep(POLL_S)
            handle.opened_at = time.monotonic()
            number = self._files.add(handle)  # and look again: the next change may have begun
        return number

    def dismiss(self, number: int) -> FileHandle:
        """Take a handle out of the table: it is closed, or could not be opened."""
        handle = self._files.remove(number)
        if self.changing:
            with self._closed:
                self._closed.notify_all()
        return handle
