"""`OtherThreads`: how busy the rest of the process is, for a thread whose work can wait."""

from __future__ import annotations

import time


class OtherThreads:
    """Made and asked by one thread. The others need not count what they do: the kernel knows their processor time."""

    def __init__(self) -> None:
        self._looked_s = time.monotonic()
        self._spent_s = _spent_s()

    def share(self) -> float:
        """How many processors they have kept busy since this was last asked: 0 for none, 1 for one all the time."""
        now_s, spent_s = time.monotonic(), _spent_s()
        share = (spent_s - self._spent_s) / max(now_s - self._looked_s, 1e-6)
        self._looked_s, self._spent_s = now_s, spent_s
        return share


def _spent_s() -> float:
    return time.process_time() - time.thread_time()
