"""`Appetite`: do those who look at files read them as well?

`ls -l` wants the attributes of files and `rg` their contents too. Both begin with a listing. Small files of a directory
are fetched whole, with their attributes and in one request each, while most of those looked at before were read.
"""

from __future__ import annotations

ENOUGH = 16
"""So many looks say something."""

REMEMBERED = 256
"""After so many, what was before counts half."""


class Appetite:
    """Counts. Not exact in threads, and need not be."""

    def __init__(self) -> None:
        self._looks = 0.0
        self._reads = 0.0

    def looked(self, count: int) -> None:
        """So many small files were looked at."""
        self._looks += count
        if self._looks > REMEMBERED:
            self._looks /= 2
            self._reads /= 2

    def read(self) -> None:
        """One of them was opened to be read."""
        self._reads += 1

    @property
    def is_there(self) -> bool:
        return self._looks >= ENOUGH and self._reads >= self._looks / 2
