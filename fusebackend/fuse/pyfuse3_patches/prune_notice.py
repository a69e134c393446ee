"""`PruneNotice`: has the kernel drop inodes that nothing uses.

libfuse 3.14 does not know FUSE_NOTIFY_PRUNE (Linux 6.18, FUSE 7.45): a list of inodes, of which the kernel drops the
dentries that no process uses, and then the inodes (`fuse_notify_prune`, fs/fuse/dev.c). It takes locks of dentries only
and waits for no request, so the loop may send it. The notice goes through a descriptor of our own, since libfuse's may
be diverted for a moment (`diversion.py`).

The layouts are those of include/uapi/linux/fuse.h, which never change: `fuse_out_header`, `fuse_notify_prune_out`.
"""

from __future__ import annotations

import errno
import logging
import os
import struct
from collections.abc import Sequence

from fusebackend.fuse.pyfuse3_patches.diversion import Diversion

log = logging.getLogger(__name__)

FUSE_NOTIFY_PRUNE = 9
MINOR = 45
"""Of the first protocol that has it."""

_HEAD = struct.Struct("=IiQ II8x")  # len, code, unique; count, padding, spare


class PruneNotice:
    """See the module's docstring. All is called by the loop's thread."""

    def __init__(self, diversion: Diversion) -> None:
        self._diversion = diversion
        self._is_refused = False

    def send(self, inodes: Sequence[int]) -> None:
        """Have the kernel drop those of these inodes that nothing uses."""
        if self._is_refused or self._diversion.kernel < 0:  # closed
            return
        ids = struct.pack(f"={len(inodes)}Q", *inodes)
        try:
            head = _HEAD.pack(_HEAD.size + len(ids), FUSE_NOTIFY_PRUNE, 0, len(inodes), 0)
            os.write(self._diversion.kernel, head + ids)
        except OSError as error:
            if error.errno not in (errno.ENOTCONN, errno.ENODEV):  # the mount is going away
                log.error("the kernel can't be asked to drop inodes: %s", error)
                self._is_refused = True
