"""Read-ahead: `Run` decides how far, `Allowance` bounds the memory of all readers.

The threads (`remote/fetchers.py`) are best effort: a reader that needs a part which none has begun fetches it itself.
"""

from __future__ import annotations

import threading
from typing import Protocol

BLOCK_BYTES = 256 << 10
"""What is fetched for one small read, and the unit of the cache.

From SeaweedFS on the same machine 4 KiB take 1.45 ms, 128 KiB 1.54, 256 KiB 1.75 and 1 MiB 5.5; over a network with
50 ms the difference vanishes. So this is the most that a small read gets at nearly no price.
"""

WINDOW_BYTES = 64 << 20
"""The farthest that one reader is ahead: 64 MiB every 50 ms are more than the network of one host."""

PART_BYTES = 4 << 20
"""The largest request: 1 GiB from SeaweedFS on the same machine took 2.0 s, of 8 MiB each 2.1, of 2 MiB each 2.5."""

ALLOWANCE_BYTES = 256 << 20
"""What all readers of a cache may have in memory that was not asked for yet."""

GROWTH = 4
"""The window is so many times what was read in one go, so what may have been read in vain is in proportion."""

_NEAR_READS = 4
"""Requests of one reader arrive in any order; so many sizes beside the expected offset is still the same reader."""


class Run:
    """Reads that follow each other. Offsets in bytes; `ahead` is the end of the last request."""

    __slots__ = ("ahead", "frontier", "got")

    def __init__(self, offset: int, end: int) -> None:
        self.frontier = end
        """The end of the highest read."""
        self.got = end - offset if offset == 0 else 0  # a read at the beginning counts as sequential
        self.ahead = 0

    def follows(self, offset: int, end: int) -> bool:
        """Whether this read goes on with the run."""
        near = _NEAR_READS * (end - offset)
        return self.frontier - near <= offset <= self.frontier + near

    def advance(self, offset: int, end: int) -> None:
        self.got += end - offset
        self.frontier = max(self.frontier, end)

    @property
    def window(self) -> int:
        """How many bytes beyond the frontier are to be on their way."""
        return min(GROWTH * self.got, WINDOW_BYTES)

    def next_part(self, size: int) -> tuple[int, int] | None:
        """The next (offset, size) to ask for of an object of `size` bytes, or None when enough is under way.

        Requests are a quarter of the window, so that there are always several, and whole blocks.
        """
        window = self.window
        part = min(window // 4, PART_BYTES) // BLOCK_BYTES * BLOCK_BYTES
        self.ahead = max(self.ahead, -(-self.frontier // BLOCK_BYTES) * BLOCK_BYTES)
        if not part or self.ahead >= size or self.ahead + part > self.frontier + window:
            return None
        return self.ahead, min(part, size - self.ahead)


class Reader(Protocol):
    """A holder of parts in memory that were read ahead."""

    def drop_ahead(self) -> None:
        """Drop the parts that were read ahead; they may be fetched again."""


class Allowance:
    """The bytes that are held for reads to come. Thread-safe.

    When there is no room the request is refused. The refused reader then has the one with the oldest request drop its
    parts, with no lock held.
    """

    def __init__(self, limit: int = ALLOWANCE_BYTES) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._held: dict[Reader, int] = {}  # in the order of the latest request
        self._total = 0

    @property
    def total(self) -> int:
        return self._total

    def take(self, reader: Reader, size: int) -> bool:
        """Whether `reader` may hold `size` bytes more."""
        with self._lock:
            if self._total + size > self._limit:
                return False
            self._total += size
            self._held[reader] = self._held.pop(reader, 0) + size
            return True

    def give_back(self, reader: Reader, size: int) -> None:
        with self._lock:
            self._total -= size
            left = self._held[reader] - size
            assert left >= 0 and self._total >= 0, "more was given back than was taken"
            if left:
                self._held[reader] = left
            else:
                del self._held[reader]

    def idlest(self, other_than: Reader) -> Reader | None:
        """The reader with the oldest latest request."""
        with self._lock:
            return next((reader for reader in self._held if reader is not other_than), None)
