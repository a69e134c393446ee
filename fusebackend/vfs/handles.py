"""Open handles of files and directories: one record for each `open` the kernel has not released.

`WriteBarrier` closes a race between agents' edits and fresh opens; see it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple, TypeVar

import trio

from fusebackend.protocol import Attr, AttrChanges, Volume
from fusebackend.vfs.calls import request
from fusebackend.vfs.inodes import inode_number
from fusebackend.vfs.junctions import Junction, Route
from fusebackend.vfs.setid import without_set_id

Handle = TypeVar("Handle", "FileHandle", "DirectoryHandle")


class OpenedFile(NamedTuple):
    """The answer to OPEN or CREATE."""

    number: int
    keep_pages: bool
    """The pages that the kernel has of the file are still valid."""
    direct: bool
    """Writes through this handle pass the page cache by."""


class FileHandle:
    """One open file."""

    __slots__ = ("bare", "direct", "flags", "inode", "node", "opened_at", "opener", "route")

    def __init__(
        self,
        inode: int,
        route: Route,
        node: int,
        flags: int,
        author: Callable[[int], object] | None = None,
    ) -> None:
        """`author` as for `FileSystem.record`."""
        self.inode = inode
        self.route = route
        self.node = node
        self.flags = flags  # of open(2)
        self.direct = False  # its writes pass the kernel's page cache by …
        self.bare = False  # … and the file is known to have no capabilities, see `vfs/setid.py`
        self.opened_at = time.monotonic()
        self.opener = opener = request.current()
        if author is not None and flags & os.O_ACCMODE != os.O_RDONLY and opener.author is request.UNSEEN:
            opener.author = author(opener.thread)

    def open(self, truncate: bool) -> Attr:
        """Open the node, and empty it if `truncate`, in one step and one thread; returns the attributes after that.

        An error leaves it closed.
        """
        volume, node = self.route.volume, self.node
        # An attempt that is given up between two of these calls must still be able to close the node.
        with volume.lock if self.route.executor.tries_all else contextlib.nullcontext():
            attr = volume.open(node, self.flags)
            try:
                if truncate:
                    empty = without_set_id(volume, node, AttrChanges(size=0), self.opener)
                    return self.route.door.setattr(node, empty)
                if attr is None:
                    return volume.getattr(node)
                self.node = attr.node  # that of a content of its own, see `Volume.open`
                return attr
            except BaseException:
                volume.release(node, self.flags)
                raise


def close_all(volume: Volume, handles: Iterable[FileHandle], nodes: Iterable[int]) -> None:
    """After the unmount: close the open handles of a volume, forget its nodes, and make everything durable."""
    for handle in handles:
        volume.release(handle.node, handle.flags)
    volume.forget(nodes)
    volume.sync()


class DirectoryHandle:
    """One open directory, and the names before each position of its listing.

    A position counts the names given out before it, and the listing goes on after the last of these. It goes on by
    name, so that an entry that stays is seen exactly once while others come and go. After a seek back, other names than
    before get positions of their own: all positions stay valid until the listing starts anew.

    A listing that the kernel may keep has other positions, see `listing.py`.
    """

    __slots__ = ("ahead", "ahead_at", "inode", "junction", "kept", "names", "node", "route")

    def __init__(
        self, inode: int, route: Route | None, node: int, junction: Junction | None, kept: bool = False
    ) -> None:
        self.inode = inode
        self.route = route  # None where no volume has this directory
        self.node = node
        self.junction = junction
        self.names: list[bytes] = []
        self.ahead: list[tuple[bytes, Attr]] = []  # fetched and not given to the kernel yet …
        self.ahead_at = (-1, -1, -1)  # … at these counts of all changes and of others'; for this position
        self.kept = kept  # the kernel may keep the listing


class HandleTable(dict[int, Handle]):
    """Handles by number. A number is never used twice. Other threads look at `list(table.values())`."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def add(self, handle: Handle) -> int:
        number = next(self._numbers)
        self[number] = handle
        return number


# -- the write barrier -------------------------------------------------------------------------------------------


GRACE_S = 0.03
"""How long after it was opened a file is not changed. Opening, reading and closing a small file takes a millisecond."""

PATIENCE_S = 1.0
"""How long an `open` waits for a change. It ends before that, unless the disk is slow."""

POLL_S = 0.0005


class WriteBarrier:
    """An agent's edit waits for fresh opens, and an open for an edit in progress.

    Race: the kernel reads a file page by page, and its pages are invalidated one by one. A process that reads while an
    agent replaces the contents may get pages of both versions (measured: one of 500 reads of 16 KiB beside an agent
    that does nothing but edit). So an open waits while the file is being changed, and an edit waits for handles younger
    than `GRACE_S`: a process that opens a file and reads it at once gets one version. Older handles are not waited for;
    their next read shows the change.

    `begin` is called in the thread of the edit, with no lock held; the rest on the mount's own loop. A handle is in the
    table before `admit` looks whether its file is being changed, and a change is noted before `begin` looks for
    handles: one of the two sees the other.

    Cost: an edit of a file that was just opened takes up to 30 ms longer. Switch: `write_barrier`.
    """

    def __init__(self, files: HandleTable[FileHandle], on: bool) -> None:
        self._files = files
        self._on = on
        self._closed = threading.Condition()
        self.changing: Counter[int] = Counter()
        """Inodes whose contents are being changed: empty nearly always."""

    def begin(self, route: Route, node: int) -> Callable[[], None]:
        """Wait until a node of a route can be changed; returns the end of the change."""
        if not self._on:
            return lambda: None
        inode = inode_number(route.index, node)
        with self._closed:
            self.changing[inode] += 1
            while (wait_s := self._youngest(inode) + GRACE_S - time.monotonic()) > 0:
                self._closed.wait(wait_s)
        return partial(self._end, inode)

    def _youngest(self, inode: int) -> float:
        """When the last handle of a file was opened that is still open."""
        return max((handle.opened_at for handle in list(self._files.values()) if handle.inode == inode), default=0.0)

    def _end(self, inode: int) -> None:
        with self._closed:
            self.changing = self.changing - Counter((inode,))  # keeps what is above zero alone

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
        handle = self._files.pop(number)
        if self.changing:
            with self._closed:
                self._closed.notify_all()
        return handle
