"""`SetId`: a change of a file clears its set-user-ID and set-group-ID bits.

POSIX has the bits cleared by chown, and by write and truncate of a process without privileges. The kernel would ask for
two more requests around each write to do so itself; a mount that agrees on FUSE_HANDLE_KILLPRIV_V2 does it here instead
(`fuse/pyfuse3_patches/init_flags.py`), by Linux's rules (fs/attr.c, `setattr_should_drop_suidgid`): a set-group-ID bit
without the right to execute goes only if the process is not in the file's group. CAP_FSETID is the privilege to leave
the bits alone; root's processes mostly have it.

A command in a sandbox can't give these bits to a file at all: on a disk (`dir:`) it would be a program that every user
of the machine can run as the server's user or group. The seccomp filter of a sandbox refuses most of it, but a chmod
does not say whether it is of a directory, which may have the set-group-ID bit.

Cost: a test of two bits for each answer, and a question of the volume for a file that has them. Switch: `set_id`.
Capabilities go with a change, too: `Capabilities`.
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from fusebackend.base.errors import UNREAD, oserror, unless
from fusebackend.protocol import Attr, AttrChanges, Volume
from fusebackend.rules.ruled_volume import unruled
from fusebackend.vfs.calls.request import CAP_FOWNER, CAP_FSETID, Request, current
from fusebackend.vfs.door import Door

if TYPE_CHECKING:
    from fusebackend.vfs.coherence.page_cache import KernelCache
    from fusebackend.vfs.handles import FileHandle, HandleTable
    from fusebackend.vfs.inodes import InodeTable
    from fusebackend.vfs.junctions import Route

SET_ID = stat.S_ISUID | stat.S_ISGID


def _harmless(attr: Attr, who: Request) -> int:
    """Return the mode of a file after a change by this process."""
    mode = stat.S_IMODE(attr.mode) & ~stat.S_ISUID
    if mode & stat.S_ISGID and (mode & stat.S_IXGRP or not (who.is_in(attr.gid) or who.can(CAP_FSETID))):
        mode &= ~stat.S_ISGID
    return mode


async def refuse_confined(mode: int, is_directory: Callable[[], Awaitable[bool]] | None = None) -> None:
    """EPERM for a file with these bits from a command in a sandbox. For other modes it costs nothing.

    Args:
        mode: of the new or changed file.
        is_directory: asks the volume, where the file may be a directory.
    """
    if mode & SET_ID and current().is_confined and not (is_directory and await is_directory()):
        raise oserror(errno.EPERM)


def clear_set_gid(volume: Volume, changing: Volume | Door, node: int, who: Request) -> None:
    """Clear the set-group-ID bit after an ACL was set by a process that may not give it (`posix_acl_update_mode`)."""
    attr = volume.getattr(node)
    if attr.mode & stat.S_ISGID and not (who.is_in(attr.gid) or who.can(CAP_FSETID)):
        changing.setattr(node, AttrChanges(mode=stat.S_IMODE(attr.mode) & ~stat.S_ISGID))


def clear_set_id(volume: Volume, changing: Volume | Door, node: int, who: Request) -> None:
    """Clear the bits of a file that was written to by an unprivileged process, by its volume's face for changes: those
    that go with a change of its size."""
    mode = without_set_id(volume, node, AttrChanges(size=0), who).mode
    if mode is not None:
        changing.setattr(node, AttrChanges(mode=mode))


def without_set_id(volume: Volume, node: int, changes: AttrChanges, who: Request) -> AttrChanges:
    """Return `changes` of a file's size or owner with the mode that follows from them.

    The kernel sends `chown(path, -1, -1)`, and some of its own requests before a write, as no change at all. So that is
    no error for a process that must not change the mode.
    """
    nothing = changes == AttrChanges()
    taken = nothing or changes.uid is not None or changes.gid is not None
    if changes.mode is not None or not (taken or changes.size is not None):
        return changes
    attr = volume.getattr(node)
    # A change of owner clears the bits of everything but directories, where they mean something else (chown(2)).
    if not attr.mode & SET_ID or stat.S_ISDIR(attr.mode) or not (taken or stat.S_ISREG(attr.mode)):
        return changes
    if not taken and who.can(CAP_FSETID):
        return changes
    mode = _harmless(attr, who)
    if mode == stat.S_IMODE(attr.mode):
        return changes
    if nothing and who.uid != attr.uid and not who.can(CAP_FOWNER):
        return changes
    return changes._replace(mode=mode)


class SetId:
    """Marks the files that may have these bits, of those that the kernel knows. On the mount's loop.

    Args:
        kernel: gives the kernel's caches.
    """

    def __init__(self, inodes: InodeTable, kernel: Callable[[], KernelCache], on: bool) -> None:
        self._kernel = kernel
        self._on = on
        self.marked: set[int] = inodes.by_inode(set())
        """Empty nearly always."""

    def attr_sent(self, inode: int, attr: Attr) -> None:
        """Note attributes that the kernel gets. Need not be called without the bits while nothing is `marked`."""
        if attr.mode & SET_ID and not attr.is_dir and self._on:
            self.marked.add(inode)
        else:
            self.marked.discard(inode)

    def truncated(self, inode: int) -> None:
        """Have the kernel ask for the mode of a file that was emptied."""
        if inode in self.marked:
            self._kernel().invalidate_inode(inode, attributes_only=True)

    async def written(self, inode: int, route: Route, node: int, opener: Request) -> None:
        """Clear the bits of a `marked` file after a write by a process without the privilege to leave them."""
        if not opener.can(CAP_FSETID):
            self.marked.discard(inode)
            await route.call(clear_set_id, route.volume, route.door, node, opener)
            self._kernel().invalidate_inode(inode, attributes_only=True)


# -- capabilities ------------------------------------------------------------------------------------------------


CAPABILITY = b"security.capability"
"""The extended attribute in which a file has capabilities."""


class Capabilities:
    """A write past the page cache removes the file's capabilities (capabilities(7)).

    Race: none; a duty that the kernel leaves to us. It removes `security.capability` before a cached write
    (`file_remove_privs`, fs/inode.c) and not before one with FOPEN_DIRECT_IO (`DirectIO`). A program that any user
    may append to would run other bytes with the same privileges. After an error here nothing has been written.

    Cost: one `listxattr` of the volume for the first append to a file that existed before. Switch: `capabilities`.

    On the mount's loop.
    """

    def __init__(self, inodes: InodeTable, files: HandleTable[FileHandle], on: bool) -> None:
        self._files = files
        self._on = on
        self._bare: set[int] = inodes.by_inode(set())  # files that were looked at, and have none

    def given(self, inode: int) -> None:
        """Note that a file gets capabilities."""
        self._bare.discard(inode)
        for handle in list(self._files.values()):
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
