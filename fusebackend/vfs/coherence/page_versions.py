"""`PageVersions`: the kernel keeps a file's pages over an `open` only while they are of the version that is opened.

Race: of a route that others change without telling (a TTL instead of a change feed), and of one that other hosts share,
the pages that the kernel has may be of an older version, and it never asks by itself. Each open compares the version
that was opened last with the one that is there: size and times, or the version that a shared volume counts. If it is
another one, the kernel drops the pages (no FOPEN_KEEP_CACHE) and is told to forget the size, by which it reads.

Cost: routes with a change feed of their own pay nothing. Elsewhere a file that was opened takes 150 bytes while the
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
        kernel: gives what is to be told; None when nobody is there.
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
        """May the kernel keep the pages that it has of a file that is being opened?"""
        if not self._on or (route.policy.coherent and not route.shared):
            return True
        known, kernel = self._inodes.get(inode), self._kernel()
        if known is None:
            return False
        if not route.shared:
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
        """The kernel is given the attributes of a version of a shared volume's file, because it has asked."""
        if self._hold_back.is_taken_in(inode, version) and self._inodes.get(inode) is not None:
            self._versions[inode] = version
