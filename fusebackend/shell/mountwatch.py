"""`MountWatch`: is the mount that a command works in still there?

A sandbox keeps the mounted file system alive in its own mount namespace: after `fusermount3 -u` the server would go on
serving it until the command ends, and whoever unmounts waits for the server. So a command ends with its mount. The
kernel tells of changes to the table of mounts by poll(2) on it (proc_pid_mountinfo(5)).
"""

from __future__ import annotations

import os
import select
from typing import Self

from fusebackend.linux import mount_table as table


class MountWatch:
    """Watches one mount point. Used by one thread, as a context manager."""

    def __init__(self, mountpoint: str) -> None:
        self._mountpoint = mountpoint
        self._table = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._table, select.POLLPRI)
        self.gone = not self._is_there()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._table)

    def look(self) -> bool:
        """Is it gone?"""
        if not self.gone and self._poll.poll(0):
            self.gone = not self._is_there()
        return self.gone

    def _is_there(self) -> bool:
        entry = table.mount_at(self._mountpoint)
        return entry is not None and entry.is_ours
