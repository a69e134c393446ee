"""Giving the kernel a small file's pages when it is opened, so that it need not ask for them.

Reading a small file is open, read, release: three requests. The content pushed along with the answer to the first
saves the second, a third of the time.

Pages may be stored from the loop's own thread only while nobody can be waiting for one: a read in the works holds its
page locked until we answer it. So only the first handle of a file is filled, of a volume that answers at once, and
with the volume locked, so that a change by the other face is told to the kernel after the store and not before.

A read of such pages never reaches us, and moves no access time. So a file whose access time the next read has to move
is left alone: the kernel asks for its pages, and knows from that to ask for the time again.
"""

from __future__ import annotations

import os
import stat

from fusebackend.protocol import Attr
from fusebackend.vfs.coherence.invalidation import KernelCache
from fusebackend.vfs.handles import FileHandle
from fusebackend.vfs.inodes import KnownInode

FILL_BYTES = 64 << 10
"""The largest file that is pushed: one chunk of a native volume."""


def fill(kernel: KernelCache, handle: FileHandle, known: KnownInode, attr: Attr) -> None:
    """Push the pages of a file that has just been opened, if it is small, for reading, and nobody else has it open."""
    if known.filled or known.opens != 1 or handle.flags & os.O_ACCMODE != os.O_RDONLY:
        return
    route = handle.route
    if route.offload.blocking or not route.policy.coherent:
        return
    if not stat.S_ISREG(attr.mode) or not 0 < attr.size <= FILL_BYTES or route.volume.access_due(attr):
        return
    with route.volume.lock:
        try:
            content = route.volume.read(handle.node, 0, FILL_BYTES)
        except OSError:
            return  # whoever reads will be told; opening is no reading
        kernel.store(handle.inode, content)
    known.filled = True
