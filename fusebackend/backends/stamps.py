"""`now_ns`: the time that files are stamped with, which is that of the kernel's coarse clock.

`touch` has the kernel say what the time is, by that clock, which ticks every 1 to 10 ms (utimensat(2) with UTIME_NOW;
that it is now is lost on the way to us). Stamps of a finer clock would be ahead of it: a file that was just touched
would be older than one written before, and `make` would make it again. Disk file systems use the same clock.

So two changes may have one time. Who must tell them apart asks for `Attr.version` as well.
"""

from __future__ import annotations

import time

CLOCK_REALTIME_COARSE = 5
"""In <linux/time.h>. Python has no name for it."""


def now_ns() -> int:
    """Nanoseconds since the epoch."""
    return time.clock_gettime_ns(CLOCK_REALTIME_COARSE)
