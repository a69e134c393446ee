"""`Prefill`: the kernel is given a small file's pages when it is opened, so that it need not ask for them.

Saves: one request of three. Reading a small file is open, read, release; the content pushed along with the answer to
the first (FUSE_NOTIFY_STORE) spares the second, a third of the time.

Costs: the file is read at each first open, whether anybody reads it or not; 60 bytes for each file that was read, while
the kernel knows it. Switch: `prefill`.

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
from fusebackend.vfs.coherence.kernel_cache import KernelCache
from fusebackend.vfs.handles import FileHandle
from fusebackend.vfs.inodes import InodeTable

FILL_BYTES = 64 << 10
"""The largest file that is pushed: one chunk of a native volume."""


class Prefill:
    """See the module's docstring."""

    def __init__(self, inodes: InodeTable, on: bool) -> None:
        self._on = on
        self.filled: set[int] = inodes.by_inode(set())
        """Files of which the kernel has pages. Discarded from by any thread."""

    def opened(self, kernel: KernelCache, handle: FileHandle, attr: Attr, opens: int) -> None:
        """A file was opened for reading: push its pages, if it is small and nobody else has it open.

        Args:
            opens: how many handles of it are open.
        """
        if opens != 1 or handle.inode in self.filled or handle.flags & os.O_ACCMODE != os.O_RDONLY or not self._on:
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
        self.filled.add(handle.inode)
