"""Memory that was freed goes back to the system, which neither the C library nor Python does all by itself.

Called after much has been forgotten. What Python keeps its small objects in (arenas of 1 MiB) goes back when nothing is
left in it, so a cache that was filled between what has gone must be emptied before: one name keeps a megabyte. So does
one object that Python holds ready to be used again; a full collection lets go of those.
"""

from __future__ import annotations

SMALL_TABLE = 1000
"""A table that never held more than this is not worth shrinking."""


def is_mostly_empty(length: int, peak: int) -> bool:
    """Is a table that once held `peak` worth copying into a smaller one? Neither dicts nor sets shrink."""
    return length < peak // 4 and peak > SMALL_TABLE


def give_back() -> None:
    """Hand free memory to the system. Takes some milliseconds for each 100 MiB, and for each 10,000 objects alive."""
    import ctypes
    import gc

    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl does not
    if trim is not None:
        trim(0)
