"""`Notifier`: notices to the kernel's caches, by threads that may wait for the kernel
(`vfs/coherence/invalidation.py`).

Race: a LOOKUP reply with old attributes may still be on its way. The kernel drops notices of an inode that it has not
instantiated (ENOENT, `fuse_reverse_inval_inode`, fs/fuse/inode.c) and would then cache the old reply; once it has the
inode, a notice makes it drop such a reply. So while our lookup count is above 0, the notice is sent again: either the
inode comes, or the reference is given back.

Cost: a notice of an inode that is on its way takes until it has come, at most a second. Switch: `notify_again`.
"""

from __future__ import annotations

import errno
import logging
import queue
import threading
import time
from collections.abc import Callable

import pyfuse3

from fusebackend.vfs.coherence.page_cache import KernelCache
from fusebackend.vfs.inodes import InodeTable

log = logging.getLogger(__name__)

PATIENCE_S = 1.0
"""How long a notice is sent again. It takes a moment, or until a process gets a turn."""

POLL_S = 0.0002


class Notifier(KernelCache):
    """See the module's docstring. Made by the loop's thread.

    Args:
        inodes: those to which the kernel has references, or is about to get one.
        again: send a notice again while the kernel does not know its inode.
    """

    def __init__(self, inodes: InodeTable, again: bool = True) -> None:
        self._inodes = inodes
        self._again = again
        self._loop_thread = threading.get_ident()
        self._waiting: queue.SimpleQueue[tuple[Callable[[], None], int | None] | None] = queue.SimpleQueue()
        self._gate = threading.Lock()
        self._closed = False
        self._in_flight = 0
        self._thread = threading.Thread(target=self._work, name="fusebackend-notify", daemon=True)
        self._thread.start()

    def invalidate_inode(self, inode: int, *, attributes_only: bool = False) -> None:
        def notice() -> None:
            pyfuse3.invalidate_inode(inode, attr_only=attributes_only)

        here = attributes_only and threading.get_ident() == self._loop_thread
        if not (here and self._send(notice)):  # of attributes alone it never waits
            self._notify(notice, inode)

    def store(self, inode: int, content: bytes) -> None:
        self._send(lambda: pyfuse3.notify_store(inode, 0, content))

    def invalidate_entry(self, parent: int, name: bytes) -> None:
        self._notify(lambda: pyfuse3.invalidate_entry(parent, name))

    def hold(self) -> bool:
        """Let no notice begin until `go_on`; False where one is on its way. See `pyfuse3_patches/cached_opendir.py`."""
        if not self._gate.acquire(blocking=False):
            return False
        if self._in_flight:
            self._gate.release()
            return False
        return True

    def go_on(self) -> None:
        self._gate.release()

    def close(self) -> None:
        """Take no more notices. Those on their way may still wait for a request to be answered, see `idle`."""
        with self._gate:
            self._closed = True
        self._waiting.put(None)

    @property
    def idle(self) -> bool:
        """True if no thread is inside the kernel with a notice."""
        return self._in_flight == 0

    def _notify(self, notice: Callable[[], None], inode: int | None = None) -> None:
        if threading.get_ident() == self._loop_thread:
            self._waiting.put((notice, inode))
        else:
            self._send_until_known(notice, inode)

    def _work(self) -> None:
        while (waiting := self._waiting.get()) is not None:
            self._send_until_known(*waiting)

    def _send_until_known(self, notice: Callable[[], None], inode: int | None) -> None:
        give_up_at = time.monotonic() + PATIENCE_S
        while not self._send(notice) and inode is not None:
            known = self._inodes.get(inode)
            if known is None or not self._again or inode in self._inodes.not_instantiated or self._closed:
                return
            if time.monotonic() > give_up_at:
                log.warning("the kernel knows nothing of inode %d, of which it has %d references", inode, known.lookups)
                self._inodes.not_instantiated.add(inode)  # no second wait before the next answer with it
                return
            time.sleep(POLL_S)

    def _send(self, notice: Callable[[], None]) -> bool:
        """Send a notice. False if the kernel does not know its inode or name."""
        with self._gate:
            if self._closed:
                return True
            self._in_flight += 1
        try:
            notice()
        except OSError as error:
            # The others but ENOENT: the mount is going away.
            if error.errno not in (errno.ENOENT, errno.ENOTCONN, errno.EBADF, errno.ENODEV):
                log.error("could not bring a kernel cache up to date: %s", error)
            return error.errno != errno.ENOENT
        else:
            return True
        finally:
            with self._gate:
                self._in_flight -= 1
