"""`HoldBack`: notices wait until the kernel has applied the attributes that it asks for after an open.

Race: when a file of a shared volume is opened and has changed, a notice expires its attributes, and the kernel asks for
them with the first read: it reads as far as its size of the file. But if another notice of that file arrives while the
answer is on its way, the kernel drops the answer, since it can't know which is newer, and reads by the old size
(`fuse_change_attributes`, fs/fuse/inode.c). That notice is most likely of the very change that the open has found. So
for a moment after such an open, notices of that inode wait.

Cost: on shared volumes alone, a notice of a file that was opened a moment ago comes a quarter of a second later.
Switch: `hold_back`.

`begin` and `is_taken_in` belong to the mount's loop, `tell` to the threads that notify.
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
        self._telling: Counter[int] = Counter()  # inodes with a notice on its way
        self._guard = threading.Lock()

    async def begin(self, inode: int, version: object) -> None:
        """Hold notices back for an inode that is opened with a version that the kernel does not have."""
        if not self._on:
            return
        with self._guard:
            if len(self._opened) >= MAX_OPENED:
                self._drop_expired()
            self._opened[inode] = _Opened(version)
        while self._telling[inode]:
            await trio.sleep(POLL_S)

    def is_taken_in(self, inode: int, version: object) -> bool:
        """True if the kernel will apply the attributes of this version, if it gets them now."""
        opened = self._opened.get(inode)
        return opened is not None and opened.version == version and time.monotonic() < opened.until - CERTAIN_S

    def tell(self, inode: int, notice: Callable[[], None]) -> None:
        """Send a notice of an inode, now or in a moment. With no lock held: it may have to wait for a request."""
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

    def _drop_expired(self) -> None:
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
