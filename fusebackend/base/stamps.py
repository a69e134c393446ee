"""`now_ns`: the time that files are stamped with: that of the kernel's coarse clock, or a finer one where that counts.

`touch` has the kernel set the time, by that clock, which ticks every 1 to 10 ms (utimensat(2) with UTIME_NOW; that it
is now is lost on the way to us). Stamps of another clock could be ahead of it: a file that was just touched would be
older than one written before, and `make` would make it again. But in one tick a file may be looked at, and changed
after that: with the same time once more, `make` would miss it.

So a stamp is finer than the tick when the last one of that tick has been given out in attributes. The kernel does the
same for its own file systems since Linux 6.13 (multigrain timestamps, fs/inode.c, `inode_set_ctime_current`), and keeps
a floor: no coarse time that it gives afterwards, to `touch` on any file system, is earlier. To keep that floor, a fine
stamp is taken from a file of this module that the kernel stamps: a memfd, which is asked for its times and changed.
That takes two system calls, 2 µs; a coarse stamp 0.1. Older kernels give the memfd coarse times: then two changes
within a tick have one time, as on their own file systems. `Attr.version` tells them apart.
"""

from __future__ import annotations

import datetime
import os
import threading
import time

CLOCK_REALTIME_COARSE = 5
"""In <linux/time.h>. Python has no name for it."""

TICK_NS = 2 * round(time.clock_getres(CLOCK_REALTIME_COARSE) * 10**9)
"""A stamp is at most so much earlier than it was given, unless the clock is set. That is two ticks, for on virtual
machines they come late: stamps that were 6.5 ms old were seen where there is a tick each 4 ms."""

APART_NS = 0 if tuple(map(int, os.uname().release.split("-")[0].split(".")[:2])) >= (6, 13) else TICK_NS
"""How far apart changes of a file are that have two stamps, if the attributes were given out in between (`saw`)."""

FINER_ATTEMPTS = 3
"""The kernel gives a file a fine time only where the coarse one, or its floor, is not later than the one that the file
has: the second time, unless the clock ticks in between."""

STEP_NS = 10**9
"""Two clocks that differ by more than this have been set, or are not those of one host."""


EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def nanoseconds(moment: datetime.datetime) -> int:
    """A moment in ns since 1970, exact to its microseconds: its `timestamp` is a float, which is not."""
    return (moment - EPOCH) // datetime.timedelta(microseconds=1) * 1000


def coarse_ns() -> int:
    """About what the time is, for a comparison. No stamp: it may be earlier than the last one."""
    return time.clock_gettime_ns(CLOCK_REALTIME_COARSE)


class Clock:
    """Gives stamps that never go back, unless the host's clock does. One for all volumes, used by any thread."""

    __slots__ = ("_last_ns", "_lock", "_memfd", "_seen_ns")

    def __init__(self) -> None:
        self._last_ns = 0
        self._seen_ns = 0  # the latest time that a stat may have returned
        self._lock = threading.Lock()
        self._memfd = -1

    def now_ns(self, finer: bool = True, *, exact: bool = False) -> int:
        """Nanoseconds since the epoch; later than any time that was seen, on Linux 6.13 and newer.

        Args:
            finer: False for changes of attributes alone, which are no modification: a finer one costs 5 µs.
            exact: it lies between all stamps before, seen or not, and all that follow, and is compared with times of
                finer clocks.
        """
        with self._lock:
            tick_ns = coarse_ns()
            if not tick_ns <= self._last_ns < tick_ns + STEP_NS:
                self._last_ns, self._seen_ns = tick_ns, 0
            if exact or (finer and self._last_ns <= self._seen_ns):
                fine_ns = self._fine_ns(time.time_ns() if exact else 0)
                if self._last_ns < fine_ns < tick_ns + STEP_NS:
                    self._last_ns = fine_ns
                if exact:
                    self.saw(self._last_ns)
            return self._last_ns

    def saw(self, time_ns: int) -> None:
        """Attributes with this change time are given out. Called with the lock held under which they are changed."""
        self._seen_ns = max(self._seen_ns, time_ns)

    def saw_all(self) -> None:
        """Attributes of many files are given out."""
        self._seen_ns = self._last_ns

    def passed(self, time_ns: int) -> None:
        """The kernel or a program has given a file this time. Unless it is in the future, what is stamped now is no
        earlier: it may come from the kernel's floor, which is ahead of the coarse clock."""
        if self._last_ns < time_ns <= time.time_ns():
            with self._lock:
                self._last_ns = max(self._last_ns, time_ns)
                self._seen_ns = self._last_ns

    def _fine_ns(self, least_ns: int) -> int:
        """Return the time that the kernel gives a file which is changed after a stat of it; 0 for none.

        Args:
            least_ns: it is tried again for one that is no earlier.
        """
        try:
            if self._memfd < 0:
                self._memfd = os.memfd_create("fusebackend-times")
                os.fstat(self._memfd)
            for _ in range(FINER_ATTEMPTS):
                os.utime(self._memfd)
                fine_ns = os.fstat(self._memfd).st_ctime_ns
                if fine_ns >= least_ns:
                    break
            return fine_ns
        except OSError:  # no descriptor is left: then it is the time of the tick
            return 0


CLOCK = Clock()
now_ns = CLOCK.now_ns
