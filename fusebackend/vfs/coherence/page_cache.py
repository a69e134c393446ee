"""The kernel's page cache: the notices that it is sent, when they wait, and what an open keeps in it.

`KernelCache` are the notices. `PageVersions` and `DirectIO` close races, and `Prefill` saves requests; see each.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from fusebackend.base.recent import Recent
from fusebackend.base.waiting import WouldWait, at_once
from fusebackend.protocol import Attr

if TYPE_CHECKING:
    from fusebackend.vfs.handles import FileHandle
    from fusebackend.vfs.inodes import InodeTable
    from fusebackend.vfs.junctions import Route


class KernelCache:
    """The kernel's caches. These are of no kernel, as where nothing is mounted: notices go nowhere.

    Callable from any thread; a name the kernel doesn't know is no error.
    """

    def invalidate_inode(self, inode: int, *, attributes_only: bool = False) -> None:
        """Have the kernel ask for the attributes of an inode again, and drop its pages unless `attributes_only`."""

    def invalidate_entry(self, parent: int, name: bytes) -> None:
        """Have the kernel drop a name."""

    def store(self, inode: int, content: bytes) -> None:
        """Give the kernel the pages of a file from its beginning. On the loop's thread; see `Prefill` for when."""


NO_KERNEL: Final = KernelCache()
"""Before a mount, and after it."""


# -- page versions -----------------------------------------------------------------------------------------------


QUIET_S = 0.25
"""How long notices wait after an open: many times what the kernel takes to ask, on a busy machine too."""

CERTAIN_S = 0.1
"""An answer that is given so much before the end of that time has been taken in when the notices go on."""

POLL_S = 0.0005

MAX_OPENED = 1_000
"""Files whose notices are held back at once. Of more, the file that was opened first is left out."""


class _ChangedOpen(NamedTuple):
    """A file that was opened and had changed, and the time until which its notices wait."""

    version: object
    until: float


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

    Race: when a file of a shared volume is opened and has changed, the kernel asks for its attributes with the first
    read: it reads as far as its size of the file. But if another notice of that file arrives while the answer is on its
    way, the kernel drops the answer, since it can't know which is newer, and reads by the old size
    (`fuse_change_attributes`, fs/fuse/inode.c). That notice is most likely of the very change that the open has found.
    So for a moment after such an open, notices of that inode wait until the kernel has applied the attributes.

    Cost: on shared volumes alone, a notice of a file that was opened a moment ago comes a quarter of a second later.
    Switch: `hold_back`.

    On the mount's loop, but for `tell`, which belongs to the threads that notify.

    Args:
        kernel: gives the kernel's caches.
    """

    def __init__(self, inodes: InodeTable, kernel: Callable[[], KernelCache], compares: bool, holds_back: bool) -> None:
        self._inodes = inodes
        self._kernel = kernel
        self._compares = compares
        self._holds_back = holds_back
        self._versions: dict[int, object] = inodes.by_inode({})
        self._opened: Recent[int, _ChangedOpen] = Recent(MAX_OPENED)
        self._waiting: dict[int, Callable[[], None]] = {}  # the last notice of each inode: they say the same
        self._telling: Counter[int] = Counter()  # inodes with a notice on its way
        self._guard = threading.Lock()

    async def are_good(self, route: Route, inode: int, attr: Attr) -> bool:
        """True if the pages that the kernel has of a file are of the version that is being opened."""
        if not self._compares or (route.policy.coherent and not route.shared and not route.executor.blocking):
            return True
        known, kernel = self._inodes.get(inode), self._kernel()
        if known is None:
            return False
        if not route.shared:
            if route.policy.coherent:
                same = known.size == attr.size
            else:
                same, self._versions[inode] = self._versions.get(inode) == attr.fingerprint, attr.fingerprint
            if not same and known.size != attr.size:
                kernel.invalidate_inode(inode, attributes_only=True)
            return same
        if self._versions.get(inode) == attr.version:
            return True
        await self.begin(inode, attr.version)
        kernel.invalidate_inode(inode, attributes_only=True)
        return False

    def answered(self, inode: int, version: object) -> None:
        """Note the answer to a GETATTR of a shared volume's file: the kernel's pages become of this version."""
        opened = self._opened.get(inode)
        is_taken_in = opened is not None and opened.version == version and time.monotonic() < opened.until - CERTAIN_S
        if is_taken_in and self._inodes.get(inode) is not None:
            self._versions[inode] = version

    async def begin(self, inode: int, version: object) -> None:
        """Hold notices back for an inode that is opened with a version that the kernel does not have."""
        if not self._holds_back:
            return
        with self._guard:
            self._opened[inode] = _ChangedOpen(version, time.monotonic() + QUIET_S)
        while self._telling[inode]:
            await trio.sleep(POLL_S)

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

    def _later(self, inode: int, opened: _ChangedOpen) -> None:
        timer = threading.Timer(max(0.0, opened.until - time.monotonic()), self._now, [inode])
        timer.daemon = True
        timer.start()

    def _now(self, inode: int) -> None:
        with self._guard:
            opened = self._opened.get(inode)
            if opened is not None and time.monotonic() < opened.until:  # opened once more since
                self._later(inode, opened)
                return
            self._opened.pop(inode, None)
            notice = self._waiting.pop(inode)
        self.tell(inode, notice)


# -- direct I/O --------------------------------------------------------------------------------------------------


class DirectIO:
    """Writes of some handles pass the kernel's page cache. No pages are kept while a handle with O_DIRECT may write.

    The former (FOPEN_DIRECT_IO) saves a request: before a cached write the kernel asks for `security.capability`:
    for each, or, where `fuse/pyfuse3_patches/init_flags.py` has agreed on more, for the first after it has looked at
    the file's attributes. Creating and writing 1,000 small files takes 5,003 requests instead of 6,003.

    Costs: nothing is in the page cache afterwards, and writes of 1 MiB are two requests instead of one. A handle that
    can't read loses nothing by that: it can't be mapped, and the pages would be dropped anyway when the kernel sees the
    new time. The kernel removes no capabilities for such writes: `vfs/setid.py` does. Not for setuid and setgid files,
    whose bits a kernel before 5.12 clears only with a cached write.

    Only for a file that this open has created or emptied, where no other process is at work yet. If one process writes
    past the cache and another has the same page mapped, the other's page, written back as a whole, undoes the write.
    Switch: `direct_writes`.

    Race: appends are the other way about. Beside a mapping of the last page, a sync at the same moment has undone a
    cached append (seen with Linux 6.18). So appends always pass the cache. Switch: `direct_appends`.

    Race: a read through the page cache while an asynchronous O_DIRECT write is on its way gets the bytes of before, and
    nothing drops these pages when the write has come (`fuse_direct_IO`, fs/fuse/file.c; xfstests generic/451). So they
    go with each `open` until the last such handle is closed, and with the first one after that.

    Cost: those pages, and a look into a table for each `open`. A handle that was open before may still read them.
    Switch: `o_direct`.

    On the mount's loop.
    """

    def __init__(self, inodes: InodeTable, follows: bool, writes: bool, appends: bool) -> None:
        self._follows = follows
        self._flags = (os.O_CREAT | os.O_TRUNC if writes else 0) | (os.O_APPEND if appends else 0)
        self.writers: dict[int, int] = inodes.by_inode({})
        """Inodes by how many handles with O_DIRECT they have that may write; 0 until the next `open`."""

    def opened(self, inode: int, flags: int, mode: int) -> tuple[bool, bool]:
        """Note an open of a file of this mode, with these `open(2)` flags.

        Returns:
            Whether writes of the handle pass the page cache; and whether the kernel may have pages of before a write
            that is on its way.
        """
        writers = self.writers.get(inode)
        if self._follows and flags & os.O_DIRECT and flags & os.O_ACCMODE != os.O_RDONLY:
            self.writers[inode] = (writers or 0) + 1
        elif writers == 0:
            del self.writers[inode]
        passes = flags & self._flags and flags & os.O_ACCMODE == os.O_WRONLY
        return bool(passes) and not mode & (stat.S_ISUID | stat.S_ISGID), writers is not None

    def closed(self, inode: int, flags: int) -> None:
        """Note that a handle was closed, if there are such `writers`."""
        if flags & os.O_DIRECT and flags & os.O_ACCMODE != os.O_RDONLY and inode in self.writers:
            self.writers[inode] -= 1


# -- prefill -----------------------------------------------------------------------------------------------------


FILL_BYTES = 64 << 10
"""The largest file that is pushed: one chunk of a native volume."""


class Prefill:
    """A small file's pages are pushed to the kernel when it is opened.

    Saves: a request. Reading a small file is open, read, release; the content pushed along with the answer to the first
    (FUSE_NOTIFY_STORE) spares the second. Only for files whose access time no read has to move, so not for the first
    read after a change: reading 1,000 files again after the kernel has dropped their pages takes 3,020 requests instead
    of 4,020, and 6 % less time. Files of `threads+sqlite:` have no access times: there each first read gains.

    Costs: the file is read at each first open, also if no read follows; 60 bytes for each file that was read, while the
    kernel knows it. Switch: `prefill`.

    Race: a read in the works holds its page locked until we answer it, and the store would wait for it
    (`fuse_notify_store`, fs/fuse/dev.c). So only the first handle of a file is filled, of a volume that answers at
    once, and with the volume locked, so that the notice of a change by the other face comes after the store.

    A read of such pages sends no request, and moves no access time. So a file whose access time the next read has to
    move is left alone: the kernel asks for its pages, and then for the time.
    """

    def __init__(self, inodes: InodeTable, on: bool) -> None:
        self._on = on
        self.filled: set[int] = inodes.by_inode(set())
        """Files of which the kernel has pages. Discarded from by any thread."""

    def opened(self, kernel: KernelCache, handle: FileHandle, attr: Attr, opens: int) -> None:
        """Push the pages of a file opened for reading, if it is small and has no other handle.

        Args:
            opens: how many handles of it are open.
        """
        if opens != 1 or handle.inode in self.filled or handle.flags & os.O_ACCMODE != os.O_RDONLY or not self._on:
            return
        route = handle.route
        waits = route.executor.blocking and "open" not in route.volume.at_once
        if waits or handle.direct or not route.policy.coherent:
            return
        if not stat.S_ISREG(attr.mode) or not 0 < attr.size <= FILL_BYTES or route.volume.access_due(attr):
            return
        with contextlib.suppress(WouldWait):
            if at_once(partial(_push, kernel, handle)):
                self.filled.add(handle.inode)


def _push(kernel: KernelCache, handle: FileHandle) -> bool:
    """Push the pages; False where the read will fail: opening is no reading."""
    volume = handle.route.volume
    with volume.lock:
        try:
            content = volume.read(handle.node, 0, FILL_BYTES)
        except OSError:
            return False
        kernel.store(handle.inode, content)
    return True
