"""Who changes a file takes away its power to run as somebody else: the set-user-ID and set-group-ID bits.

POSIX has the bits cleared by chown, and by write and truncate of a process without privileges. The kernel would ask for
two more requests around each write to do so itself; a mount that agrees on FUSE_HANDLE_KILLPRIV_V2 does it here instead
(`mount/handshake.py`). A process has the privilege (CAP_FSETID) if it is root's, as far as a request says.
"""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from fusebackend.protocol import AttrChanges, Volume

if TYPE_CHECKING:
    from fusebackend.vfs.reporting import ReportingVolume


SET_ID = stat.S_ISUID | stat.S_ISGID


def sets_id(mode: int) -> bool:
    """Is it a file that runs as its owner or its group? A set-group-ID bit without the right to execute is another
    thing (mandatory locking, once) and stays."""
    return stat.S_ISREG(mode) and bool(mode & stat.S_ISUID or (mode & stat.S_ISGID and mode & stat.S_IXGRP))


def _harmless(mode: int) -> int:
    mode &= ~stat.S_ISUID
    return mode & ~stat.S_ISGID if mode & stat.S_IXGRP else mode


def disarm(volume: Volume, changing: Volume | ReportingVolume, node: int) -> None:
    """Clear the bits of a file that was written to, by the face of its volume for changes."""
    mode = volume.getattr(node).mode
    if sets_id(mode):
        changing.setattr(node, AttrChanges(mode=_harmless(stat.S_IMODE(mode))))


def disarming(volume: Volume, node: int, changes: AttrChanges, privileged: bool) -> AttrChanges:
    """`changes` of a file's size or owner, with what they have to do to its mode."""
    taken = changes.uid is not None or changes.gid is not None
    if changes.mode is not None or not (taken or (changes.size is not None and not privileged)):
        return changes
    mode = volume.getattr(node).mode
    # A change of owner clears the bits of everything but directories, where they mean something else (chown(2)).
    armed = taken and not stat.S_ISDIR(mode) and mode & SET_ID
    return changes._replace(mode=_harmless(stat.S_IMODE(mode))) if armed or sets_id(mode) else changes
