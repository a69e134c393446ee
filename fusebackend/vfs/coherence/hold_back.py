"""`HoldBack`: the kernel takes in what it is about to ask, before it is told of more.

Race: when a file of a shared volume is opened and has changed, the kernel is told to forget its attributes, and asks
for them with the first read: it has to, for it reads as far as the size it believes. But if anything is told of that
file while the answer is on its way, the kernel throws the answer away, as it can't know which is newer, and reads by
the old size (`fuse_change_attributes`, fs/fuse/inode.c). What is told of is most likely the very change that the open
has found. So for a moment after such an open, notices of that inode wait.

Cost: on shared volumes alone, a notice of a file that was opened a moment ago comes a quarter of a second later.
Switch: `hold_back`.

`begin` and `is_taken_in` belong to the mount's loop, `tell` to the threads of those who tell.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

import trio

QUIET_S = 0.25
"""How long notices wait after an open: many times what the kernel takes to ask, on a busy machine too."""

CERTAIN_S = 0.1
"""An answer that is given so much before the end of that time has been taken in when the notices go on."""

POLL_S = 0.0005

MAX_OPENED = 1_000
"""Of so many, those are dropped for which nothing waits."""


class _Opened:
    """A file that was opened and had changed."""

    __slots__ = ("until", "version")

    def __init__(self, version: object) -> None:
        self.version = version
        self.until = time.monotonic() + QUIET_S


class HoldBack:
    """See the module's docstring."""

    def __init__(self, on: bool) -> None:
        self._on = on
        self._opened: dict[int, _Opened] = {}
        self._waiting: dict[int, Callable[[], None]] = {}  # the last notice of each inode: they say the same
        self._telling: Counter[int] = Counter()  # inodes of which the kernel is being told something
        self._guard = threading.Lock()

    async def begin(self, inode: int, version: object) -> None:
        """An inode is being opened with a version of which the kernel knows nothing yet."""
        if not self._on:
            return
        with self._guard:
            if len(self._opened) >= MAX_OPENED:
                self._drop_settled()
            self._opened[inode] = _Opened(version)
        while self._telling[inode]:
            await trio.sleep(POLL_S)

    def is_taken_in(self, inode: int, version: object) -> bool:
        """Does the kernel's cache become of this version, if it is given its attributes now?"""
        opened = self._opened.get(inode)
        return opened is not None and opened.version == version and time.monotonic() < opened.until - CERTAIN_S

    def tell(self, inode: int, notice: Callable[[], None]) -> None:
        """Tell the kernel of an inode, now or in a moment. With no lock held: it may have to wait for a request."""
        with self._guard:
            opened = self._opened.get(inode)
            if opened is not None and (inode in self._waiting or time.monotonic() < opened.until):
                if inode not in self._waiting:
                    self._later(inode, opened)
                self._waiting[inode] = notice
                return
            self._telling[inode] += 1
        try:
            notice()
        finally:
            with self._guard:
                self._telling -= Counter([inode])

    def _drop_settled(self) -> None:
        now = time.monotonic()
        for inode, opened in list(self._opened.items()):
            if opened.until <= now and inode not in self._waiting:
                del self._opened[inode]

    def _later(self, inode: int, opened: _Opened) -> None:
        timer = threading.Timer(max(0.0, opened.until - time.monotonic()), self._now, [inode])
        timer.daemon = True
        timer.start()

    def _now(self, inode: int) -> None:
        with self._guard:
            opened = self._opened[inode]
            if time.monotonic() < opened.until:  # opened once more since
                self._later(inode, opened)
                return
            del self._opened[inode]
            notice = self._waiting.pop(inode)
        self.tell(inode, notice)
