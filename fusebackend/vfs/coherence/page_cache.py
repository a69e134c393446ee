"""The kernel's page cache: the notices that it is sent, when they wait, and what an open keeps in it.

`KernelCache` are the notices. `HoldBack`, `PageVersions`, `DirectWriters` and `DirectWrites` close a race each; see
each of them.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import trio

from fusebackend.protocol import Attr

if TYPE_CHECKING:
    from fusebackend.vfs.inodes import InodeTable
    from fusebackend.vfs.junctions import Route


class KernelCache(Protocol):
    """The kernel's caches. Callable from any thread; a name the kernel doesn't know is no error."""

    def invalidate_inode(self, inode: int, *, attributes_only: bool = False) -> None: ...

    def invalidate_entry(self, parent: int, name: bytes) -> None: ...

    def store(self, inode: int, content: bytes) -> None:
        """Give the kernel the pages of a file from its beginning. On the loop's thread; see `prefill.py` for when."""


# -- hold-back ---------------------------------------------------------------------------------------------------


QUIET_S = 0.25
"""How long notices wait after an open: many times what the kernel takes to ask, on a busy machine too."""

CERTAIN_S = 0.1
"""An answer that is given so much before the end of that time has been taken in when the notices go on."""

POLL_S = 0.0005

MAX_OPENED = 1_000
"""Of so many, those are dropped for which nothing waits."""


class _ChangedOpen:
    """A file that was opened and had changed."""

    __slots__ = ("until", "version")

    def __init__(self, version: object) -> None:
        self.version = version
        self.until = time.monotonic() + QUIET_S


class HoldBack:
    """Notices wait until the kernel has applied the attributes that it asks for after an open.

    Race: when a file of a shared volume is opened and has changed, a notice expires its attributes, and the kernel asks
    for them with the first read: it reads as far as its size of the file. But if another notice of that file arrives
    while the answer is on its way, the kernel drops the answer, since it can't know which is newer, and reads by the
    old size (`fuse_change_attributes`, fs/fuse/inode.c). That notice is most likely of the very change that the open
    has found. So for a moment after such an open, notices of that inode wait.

    Cost: on shared volumes alone, a notice of a file that was opened a moment ago comes a quarter of a second later.
    Switch: `hold_back`.

    `begin` and `is_taken_in` belong to the mount's loop, `tell` to the threads that notify.
    """

    def __init__(self, on: bool) -> None:
        self._on = on
        self._opened: dict[int, _ChangedOpen] = {}
        self._waiting: dict[int, Callable[[], None]] = {}  # the last notice of each inode: they say the same
        self._telling: Counter[int] = Counter()  # inodes with a notice on its way
        self._guard = threading.Lock()

    async def begin(self, inode: int, version: object) -> None:
        """Hold notices back for an inode that is opened with a version that the kernel does not have."""
        if not self._on:
            return
        with self._guard:
            if len(self._opened) >= MAX_OPENED:
                self._drop_expired()
            self._opened[inode] = _ChangedOpen(version)
        while self._telling[inode]:
            await trio.sleep(POLL_S)

    def is_taken_in(self, inode: int, version: object) -> bool:
        """True if the kernel will apply the attributes of this version, if it gets them now."""
        opened = self._opened.get(inode)
        return opened is not None and opened.version == version and time.monotonic() < opened.until - CERTAIN_S

    def tell(self, inode: int, notice: Callable[[], None]) -> None:
        """Send a notice of an inode, now or in a moment. With no lock held: it may have to wait for a request."""
        with self._guard:
            opened = self._opened.get(inode)
            if opened is not None and (inode in self._waiting or time.monotonic() < opened.until):
                if inode not in self._waiting:
                    self._later(inode, opened)
                self._waiting[inode] = notice
                return
            self._telling[inode] += 1
        try:
            notice()
        finally:
            with self._guard:
                self._telling -= Counter([inode])

    def _drop_expired(self) -> None:
        now = time.monotonic()
        for inode, opened in list(self._opened.items()):
            if opened.until <= now and inode not in self._waiting:
                del self._opened[inode]

    def _later(self, inode: int, opened: _ChangedOpen) -> None:
        timer = threading.Timer(max(0.0, opened.until - time.monotonic()), self._now, [inode])
        timer.daemon = True
        timer.start()

    def _now(self, inode: int) -> None:
        with self._guard:
            opened = self._opened[inode]
            if time.monotonic() < opened.until:  # opened once more since
                self._later(inode, opened)
                return
            del self._opened[inode]
            notice = self._waiting.pop(inode)
        self.tell(inode, notice)


# -- page versions -----------------------------------------------------------------------------------------------


class PageVersions:
    """The kernel keeps a file's pages over an `open` only while they are of the version that is opened.

    Race: on a route that others change without a feed (TTL), or that other hosts share, the kernel's pages may be of an
    older version, and it never asks by itself. Each open compares the version of the last open with the present one:
    size and times, or the version that a shared volume counts. If they differ, the kernel drops the pages (no
    FOPEN_KEEP_CACHE), and a notice expires its size, by which it reads.

    A volume with a change feed may learn of a change by the open itself, before its feed has told the kernel: then only
    the size tells that the pages are old. A file of a thread that became `11` read as `1` (seen once, with an agent
    that writes all the time).

    Cost: volumes that answer without waiting pay nothing. On TTL routes a file that was opened takes 150 bytes while
    the kernel knows it. Switch: `page_versions`.

    On the mount's loop.

    Args:
        kernel: gives the kernel's caches, None before `FileSystem.attach`.
    """

    def __init__(
        self, inodes: InodeTable, hold_back: HoldBack, kernel: Callable[[], KernelCache | None], on: bool
    ) -> None:
        self._inodes = inodes
        self._hold_back = hold_back
        self._kernel = kernel
        self._on = on
        self._versions: dict[int, object] = inodes.by_inode({})

    async def are_good(self, route: Route, inode: int, attr: Attr) -> bool:
        """True if the pages that the kernel has of a file are of the version that is being opened."""
        if not self._on or (route.policy.coherent and not route.shared and not route.executor.blocking):
            return True
        known, kernel = self._inodes.get(inode), self._kernel()
        if known is None:
            return False
        if not route.shared:
            if route.policy.coherent:
                same = known.size == attr.size
            else:
                version = route.policy.version(attr)
                same, self._versions[inode] = self._versions.get(inode) == version, version
            if not same and known.size != attr.size and kernel is not None:
                kernel.invalidate_inode(inode, attributes_only=True)
            return same
        if self._versions.get(inode) == attr.version:
            return True
        await self._hold_back.begin(inode, attr.version)
        if kernel is not None:
            kernel.invalidate_inode(inode, attributes_only=True)
        return False

    def answered(self, inode: int, version: object) -> None:
        """Note the answer to a GETATTR of a shared volume's file: the kernel's pages become of this version."""
        if self._hold_back.is_taken_in(inode, version) and self._inodes.get(inode) is not None:
            self._versions[inode] = version


# -- O_DIRECT --------------------------------------------------------------------------------------------------


class DirectWriters:
    """The kernel keeps no pages of a file over an `open` while a handle with O_DIRECT may write to it.

    Race: a read through the page cache while an asynchronous O_DIRECT write is on its way gets the bytes of before, and
    nothing drops these pages when the write has come (`fuse_direct_IO`, fs/fuse/file.c; xfstests generic/451). So they
    go with each `open` until the last such handle is closed, and with the first one after that.

    Cost: those pages, and a look into a table for each `open`. A handle that was open before may still read them.
    Switch: `o_direct`.

    On the mount's loop.
    """

    def __init__(self, inodes: InodeTable, on: bool) -> None:
        self._on = on
        self._writers: dict[int, int] = inodes.by_inode({})
        """Inodes by how many such handles they have; 0 until the next `open`."""

    def opened(self, inode: int, flags: int) -> bool:
        """Note an open; returns whether pages of a write on its way may be in the kernel."""
        writers = self._writers.get(inode)
        if self._on and flags & os.O_DIRECT and flags & os.O_ACCMODE != os.O_RDONLY:
            self._writers[inode] = (writers or 0) + 1
        elif writers == 0:
            del self._writers[inode]
        return writers is not None

    def closed(self, inode: int, flags: int) -> None:
        """Note that a handle was closed."""
        if flags & os.O_DIRECT and flags & os.O_ACCMODE != os.O_RDONLY and inode in self._writers:
            self._writers[inode] -= 1


# -- direct writes -----------------------------------------------------------------------------------------------


class DirectWrites:
    """Writes through some handles pass the kernel's page cache (FOPEN_DIRECT_IO).

    Saves: a request. Before a cached write the kernel asks for `security.capability`: for each, or, where
    `mount/pyfuse3_patches/init_flags.py` has agreed on more, for the first after it has looked at the file's
    attributes. Creating and writing 1,000 small files takes 5,003 requests instead of 6,003.

    Costs: nothing is in the page cache afterwards, and writes of 1 MiB are two requests instead of one. A handle that
    can't read loses nothing by that: it can't be mapped, and the pages would be dropped anyway when the kernel sees the
    new time. The kernel removes no capabilities for such writes: `capabilities.py` does. Not for setuid and setgid
    files, whose bits a kernel before 5.12 clears only with a cached write.

    Only for a file that this open has created or emptied, where no other process is at work yet. If one process writes
    past the cache and another has the same page mapped, the other's page, written back as a whole, undoes the write.
    Switch: `direct_writes`.

    Race: appends are the other way about. Beside a mapping of the last page, a sync at the same moment has undone a
    cached append (seen with Linux 6.18). So appends always pass the cache. Switch: `direct_appends`.
    """

    def __init__(self, on: bool, appends: bool) -> None:
        self._flags = (os.O_CREAT | os.O_TRUNC if on else 0) | (os.O_APPEND if appends else 0)

    def are_for(self, flags: int, mode: int) -> bool:
        """True if writes of a handle with these `open(2)` flags, of a file of this mode, pass the page cache."""
        fits = flags & self._flags and flags & os.O_ACCMODE == os.O_WRONLY
        return bool(fits) and not mode & (stat.S_ISUID | stat.S_ISGID)
