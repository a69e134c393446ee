"""Opening what is there: a node in its volume, in one step and one thread; and a name that was to be created."""

from __future__ import annotations

import errno
import stat
from typing import TYPE_CHECKING

from fusebackend.base.errors import oserror
from fusebackend.protocol import Attr, AttrChanges
from fusebackend.vfs.handles import FileHandle, OpenedFile
from fusebackend.vfs.inodes import Entry
from fusebackend.vfs.setid import disarming

if TYPE_CHECKING:
    from fusebackend.vfs.mounted_tree import FileSystem


def open_node(handle: FileHandle, truncate: bool) -> Attr:
    """Open a handle's node, and empty it if asked to; returns what the file then is. An error leaves it closed."""
    route, node = handle.route, handle.node
    attr = route.volume.open(node, handle.flags)
    try:
        if truncate:
            empty = disarming(route.volume, node, AttrChanges(size=0), handle.opener)
            return route.changing.setattr(node, empty)
        return route.volume.getattr(node) if attr is None else attr
    except BaseException:
        route.volume.release(node, handle.flags)
        raise


async def open_existing(filesystem: FileSystem, parent: int, name: bytes, flags: int) -> tuple[Entry, OpenedFile]:
    """A file that somebody else has made since the kernel last looked: without O_EXCL that is as good as a new one.

    ESTALE for anything else, such as a link: the kernel looks again and does what is right. Had it that for an answer,
    it would give EIO, and neither close nor forget it (`fuse_create_open`, fs/fuse/dir.c).
    """
    existing = await filesystem.lookup(parent, name)
    try:
        if existing.attr is None or not stat.S_ISREG(existing.attr.mode):
            raise oserror(errno.ESTALE, name)
        opened = await filesystem.open(existing.inode, flags)
    except BaseException:
        await filesystem.forget([(existing.inode, 1)])
        raise
    return existing._replace(timeout_s=0.0), opened  # as in `FileSystem.link`
