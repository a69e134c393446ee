"""`PageVersions`: the kernel keeps a file's pages over an `open` only while they are of the version that is opened.

Race: on a route that others change without a feed (TTL), or that other hosts share, the kernel's pages may be of an
older version, and it never asks by itself. Each open compares the version of the last open with the present one: size
and times, or the version that a shared volume counts. If they differ, the kernel drops the pages (no FOPEN_KEEP_CACHE),
and a notice expires its size, by which it reads.

A volume with a change feed may learn of a change by the open itself, before its feed has told the kernel: then only the
size tells that the pages are old. A file of a thread that became `11` read as `1` (seen once, with an agent that writes
all the time).

Cost: volumes that answer without waiting pay nothing. On TTL routes a file that was opened takes 150 bytes while the
kernel knows it. Switch: `page_versions`.
"""

from __future__ import annotations

from collections.abc import Callable

from fusebackend.protocol import Attr
from fusebackend.vfs.coherence.hold_back import HoldBack
from fusebackend.vfs.coherence.kernel_cache import KernelCache
from fusebackend.vfs.inodes import InodeTable
from fusebackend.vfs.junctions import Route


class PageVersions:
    """See the module's docstring. On the mount's loop.

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
