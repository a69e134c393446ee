"""Memory that was freed goes back to the system, which neither the C library nor Python does all by itself.

Called after much has been forgotten. Python returns an arena of small objects (1 MiB) when it is empty, so a cache that
was filled meanwhile must be emptied before: one name keeps a megabyte. So does one object that Python holds ready to be
used again; a full collection lets go of those.
"""

from __future__ import annotations

import functools
import os
import resource
import sys
from typing import Any

SMALL_TABLE = 1000
"""A table that never held more than this is not worth shrinking."""


LARGE_BYTES = 4 << 20
"""Blocks of this size have a mapping of their own, that goes back to the system at once."""

KEPT_BYTES = 8 << 20
"""Each arena keeps so much freed memory at its end. With the C library's 128 KiB every buffer of 1 MiB came from the
system anew, 256 page faults: a mount read a local file at 1,000 MiB/s with 44 ms of its processor for 64 MiB, and does
at 1,640 with 18."""

ARENAS = 4
"""Of the C library. Each thread may otherwise have one that keeps up to twice its largest block: 256 connections, each
of which once had a file of 10 MB, kept 400 MiB."""

COLLECTED_AT = 10_000, 20, 20
"""Thresholds of `gc`: the first generation is collected after so many new objects, a millisecond's work."""

SPARE_BYTES = 64 << 20
"""Where memory is limited (`ulimit -v`), so much is left for requests under way and for storing what is not stored."""

CHECKED_BYTES = 4 << 20
"""How much may be written until memory is looked at again."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # mallopt(3)

_MALLINFO2 = (
    "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
)  # fmt: skip


def is_mostly_empty(length: int, peak: int) -> bool:
    """Return True if a table that once held `peak` is worth copying into a smaller one. Neither dicts nor sets
    shrink."""
    return length < peak // 4 and peak > SMALL_TABLE


def give_back() -> None:
    """Hand free memory to the system. Takes some milliseconds for each 100 MiB, and for each 10,000 objects alive."""
    import ctypes
    import gc

    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl does not
    if trim is not None:
        trim(0)


def keep_less() -> None:
    """Make the C library keep less freed memory, for the life of the process. Without glibc, do nothing."""
    import ctypes

    tune = getattr(ctypes.CDLL(None), "mallopt", None)
    if tune is not None:
        tune(_M_MMAP_THRESHOLD, LARGE_BYTES)
        tune(_M_TRIM_THRESHOLD, KEPT_BYTES)
        tune(_M_ARENA_MAX, ARENAS)


def collect_less() -> None:
    """Make Python look for garbage less often, for the life of the process, and never again in the present objects.

    For a process that does nothing but serve. A request makes few cycles, and a walk through a mount makes many objects
    that live: while 1,000 conversations are read, collections take 0.1 s instead of 0.5 of 8.5.
    """
    import gc

    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTED_AT)


def free_bytes() -> int:
    """Return the freed memory that the C library will use again: address space of this process, but not in use. 0 where
    it does not say (before glibc 2.33, and without glibc)."""
    ask = _mallinfo2()
    return 0 if ask is None else int(ask().fordblks)


@functools.cache
def _mallinfo2() -> Any:
    """The function of the C library, made once: near the limit it is called for every change. None where it is not."""
    import ctypes

    class Information(ctypes.Structure):  # mallinfo(3)
        _fields_ = tuple((name, ctypes.c_size_t) for name in _MALLINFO2)

    ask = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if ask is not None:
        ask.restype = Information
    return ask


class Spare:
    """Return True if there is memory for another change. Where the address space is limited, an allocation fails before
    the machine has no more memory; and one that fails inside of pyfuse3 ends the mount. So changes are refused a while
    before."""

    def __init__(self) -> None:
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        self.limit_bytes = sys.maxsize if limit == resource.RLIM_INFINITY else limit
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._unchecked = CHECKED_BYTES

    @property
    def is_limited(self) -> bool:
        return self.limit_bytes != sys.maxsize

    def require(self, size: int) -> None:
        """Raises `MemoryError` when a change of so many bytes leaves too little."""
        self._unchecked += size
        if self._unchecked >= CHECKED_BYTES:
            with open("/proc/self/statm", "rb") as file:
                used = int(file.read().split()[0]) * self._page
            if used + SPARE_BYTES + size > self.limit_bytes + free_bytes():
                raise MemoryError("memory is limited, and little is left")
            self._unchecked = size
