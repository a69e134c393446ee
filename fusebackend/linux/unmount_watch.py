"""`UnmountWatch`: tells when a mount is taken away from outside.

A second mount of the same file system (a bind mount, a container) keeps it alive: after `fusermount3 -u` its server
would serve on, and the unmount would wait for the server. So that second mount must end with the first one.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable

from fusebackend.linux import mount_table as table


class UnmountWatch:
    """Calls back once, in a thread of its own, when no mount of ours is on a mount point any more.

    Args:
        mountpoint: as the table of mounts spells it.
        then: is called.
        name: of the thread.
    """

    def __init__(self, mountpoint: str, then: Callable[[], None], name: str) -> None:
        self._mountpoint = mountpoint
        self._then = then
        stop, self._stopper = os.pipe()  # closing it ends the thread
        self._thread = threading.Thread(target=self._watch, args=(stop,), name=name, daemon=True)
        self._thread.start()

    def _watch(self, stop: int) -> None:
        with open("/proc/self/mountinfo", "rb") as mounts:
            poll = select.poll()
            poll.register(mounts, select.POLLPRI)
            poll.register(stop, select.POLLIN | select.POLLHUP)
            while True:
                entry = table.mount_at(self._mountpoint)
                if entry is None or not entry.is_ours:
                    self._then()
                    break
                if any(descriptor == stop for descriptor, _ in poll.poll()):
                    break
        os.close(stop)

    def close(self) -> None:
        """End it, before the mount is taken away by its own server."""
        os.close(self._stopper)
        self._thread.join()
