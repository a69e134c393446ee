"""`Capabilities`: a write past the page cache removes the file's capabilities (capabilities(7)).

Race: none; a duty that the kernel leaves to us. It removes `security.capability` before a cached write
(`file_remove_privs`, fs/inode.c) and not before one with FOPEN_DIRECT_IO (`page_cache.py`). A program that any user
may append to would run other bytes with the same privileges. After an error here nothing has been written.

Cost: one `listxattr` of the volume for the first append to a file that existed before. Switch: `capabilities`.
"""

from __future__ import annotations

from fusebackend.base.errors import UNREAD, unless
from fusebackend.protocol import Volume
from fusebackend.rules.ruled_volume import unruled
from fusebackend.vfs.door import Door
from fusebackend.vfs.handles import FileHandle, HandleTable
from fusebackend.vfs.inodes import InodeTable

CAPABILITY = b"security.capability"
"""The extended attribute in which a file has capabilities."""


class Capabilities:
    """See the module's docstring. On the mount's loop."""

    def __init__(self, inodes: InodeTable, files: HandleTable[FileHandle], on: bool) -> None:
        self._files = files
        self._on = on
        self._bare: set[int] = inodes.by_inode(set())  # files that were looked at, and have none

    def given(self, inode: int) -> None:
        """Note that a file gets capabilities."""
        self._bare.discard(inode)
        for _, handle in self._files.items():
            if handle.inode == inode:
                handle.bare = False

    async def writes(self, handle: FileHandle) -> None:
        """Remove capabilities before a write past the page cache, through a handle that is not known to be `bare`."""
        handle.bare = True
        if self._on and handle.inode not in self._bare:
            self._bare.add(handle.inode)
            await handle.route.call(_discharge, handle.route.volume, handle.route.door, handle.node)


def _discharge(volume: Volume, changing: Volume | Door, node: int) -> None:
    # A reader who may not read the file, or only append to it, may not do this; the mount has to.
    volume, changing, node = unruled(volume, changing, node)
    if volume.features.xattrs and CAPABILITY in (unless(UNREAD, volume.listxattr, node) or ()):
        unless(UNREAD, changing.removexattr, node, CAPABILITY)
