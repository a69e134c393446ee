"""`PruneNotice`: has the kernel drop inodes that nothing uses.

libfuse 3.14 does not know FUSE_NOTIFY_PRUNE (Linux 6.18, FUSE 7.45): a list of inodes, of which the kernel drops the
dentries that no process uses, and then the inodes (`fuse_notify_prune`, fs/fuse/dev.c). It takes locks of dentries only
and waits for no request, so the loop may send it. The notice is written to a descriptor of our own, since that of
libfuse may be diverted for a moment (`cached_opendir.py`).

The layouts are those of include/uapi/linux/fuse.h, which never change: `fuse_out_header`, `fuse_notify_prune_out`.
"""

from __future__ import annotations

import errno
import logging
import os
import struct
from collections.abc import Sequence

log = logging.getLogger(__name__)

FUSE_NOTIFY_PRUNE = 9
MINOR = 45
"""Of the first protocol that has it."""

_HEAD = struct.Struct("=IiQ II8x")  # len, code, unique; count, padding, spare


class PruneNotice:
    """See the module's docstring. All is called by the loop's thread."""

    def __init__(self) -> None:
        self._kernel = -1

    def prepare(self, descriptor: int, minor: int) -> None:
        """From now on it can be sent, if the kernel knows it.

        Args:
            descriptor: of `/dev/fuse`.
            minor: the kernel's version of the protocol, 7 being the major one.
        """
        if minor >= MINOR:
            self._kernel = os.dup(descriptor)

    @property
    def is_known(self) -> bool:
        """True if the kernel has it."""
        return self._kernel >= 0

    def send(self, inodes: Sequence[int]) -> None:
        """Have the kernel drop those of these inodes that nothing uses."""
        if self._kernel < 0:
            return
        ids = struct.pack(f"={len(inodes)}Q", *inodes)
        try:
            os.write(self._kernel, _HEAD.pack(_HEAD.size + len(ids), FUSE_NOTIFY_PRUNE, 0, len(inodes), 0) + ids)
        except OSError as error:
            if error.errno not in (errno.ENOTCONN, errno.ENODEV):  # the mount is going away
                log.error("the kernel can't be asked to drop inodes: %s", error)
                self.close()

    def close(self) -> None:
        """Close the descriptor after the mount: an open one would keep the kernel's side of it alive."""
        if self._kernel >= 0:
            os.close(self._kernel)
            self._kernel = -1
