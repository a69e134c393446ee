"""A clock that a test sets, and the resolution of this kernel's time stamps."""

from __future__ import annotations

import os

MULTIGRAIN = tuple(map(int, os.uname().release.split("-")[0].split(".")[:2])) >= (6, 13)
"""With stat(2) since its last change, a file gets a time finer than the tick (Linux 6.13, fs/inode.c)."""


class Clock:
    """Stands for `time.monotonic`: it goes on when the test sets `now`."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
