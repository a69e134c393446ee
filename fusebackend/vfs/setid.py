"""`SetId`: a change of a file takes its set-user-ID and set-group-ID bits away.

POSIX has the bits cleared by chown, and by write and truncate of a process without privileges. The kernel would ask for
two more requests around each write to do so itself; a mount that agrees on FUSE_HANDLE_KILLPRIV_V2 does it here instead
(`mount/pyfuse3_patches/init_flags.py`), by Linux's rules (fs/attr.c, `setattr_should_drop_suidgid`): a set-group-ID bit
without the right to execute goes only where whoever changes the file is not in its group. A process has the privilege
if it has the capability CAP_FSETID, as root's mostly have.

A command in a sandbox can't give these bits to a file at all: on a disk (`dir:`) it would be a program that every user
of the machine can run as the server's user or group. The seccomp filter of a sandbox refuses most of it, but a chmod
does not say whether it is of a directory, which may have the set-group-ID bit.

Cost: a test of two bits for each answer, and a question of the volume for a file that has them. Switch: `set_id`.
Capabilities, which go with a change too: `coherence/capabilities.py`.
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Awaitable, Callable

from fusebackend.base.errors import oserror
from fusebackend.protocol import Attr, AttrChanges, Volume, Writable
from fusebackend.vfs.calls.request import CAP_FOWNER, CAP_FSETID, Request, current
from fusebackend.vfs.coherence.kernel_cache import KernelCache
from fusebackend.vfs.inodes import InodeTable
from fusebackend.vfs.junctions import Route

SET_ID = stat.S_ISUID | stat.S_ISGID


def _harmless(attr: Attr, who: Request) -> int:
    """The mode that is left of a file when somebody changes it."""
    mode = stat.S_IMODE(attr.mode) & ~stat.S_ISUID
    if mode & stat.S_ISGID and (mode & stat.S_IXGRP or not (who.is_in(attr.gid) or who.can(CAP_FSETID))):
        mode &= ~stat.S_ISGID
    return mode


async def refuse_confined(mode: int, is_directory: Callable[[], Awaitable[bool]] | None = None) -> None:
    """EPERM for a file with these bits from a command in a sandbox. For other modes it costs nothing.

    Args:
        mode: what the file is to have.
        is_directory: tells whether it is one, where that may be.
    """
    if mode & SET_ID and current().is_confined and not (is_directory and await is_directory()):
        raise oserror(errno.EPERM)


def disarm(volume: Volume, changing: Writable, node: int, who: Request) -> None:
    """Clear the bits of a file that was written to by an unprivileged process, by its volume's face for changes."""
    attr = volume.getattr(node)
    if stat.S_ISREG(attr.mode) and attr.mode & SET_ID:
        mode = _harmless(attr, who)
        if mode != stat.S_IMODE(attr.mode):
            changing.setattr(node, AttrChanges(mode=mode))


def disarming(volume: Volume, node: int, changes: AttrChanges, who: Request) -> AttrChanges:
    """`changes` of a file's size or owner, with what they have to do to its mode.

    No change at all is what the kernel makes of `chown(path, -1, -1)`, and of what it does before some writes, so it is
    no error where it is not the caller's to make.
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
    """Which of the inodes that the kernel knows have these bits. On the mount's loop.

    Args:
        kernel: gives what is to be told of another mode; None when nobody is there.
    """

    def __init__(self, inodes: InodeTable, kernel: Callable[[], KernelCache | None], on: bool) -> None:
        self._kernel = kernel
        self._on = on
        self.armed: set[int] = inodes.by_inode(set())
        """Files that may have them: empty nearly always."""

    def told(self, inode: int, attr: Attr) -> None:
        """The kernel is told these attributes. Need not be called without the bits, while nothing is `armed`."""
        if attr.mode & SET_ID and not attr.is_dir and self._on:
            self.armed.add(inode)
        else:
            self.armed.discard(inode)

    def truncated(self, inode: int) -> None:
        """A file was emptied, and its mode may be another one."""
        if inode in self.armed:
            self._tell(inode)

    async def written(self, inode: int, route: Route, node: int, opener: Request) -> None:
        """Clear the bits of an `armed` file after a write by a process without the privilege to leave them."""
        self.armed.discard(inode)
        await route.call(disarm, route.volume, route.changing, node, opener)
        self._tell(inode)

    def _tell(self, inode: int) -> None:
        kernel = self._kernel()
        if kernel is not None:
            kernel.invalidate_inode(inode, attributes_only=True)
