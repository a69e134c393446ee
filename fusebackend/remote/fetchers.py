"""`Fetchers`: the threads that read ahead.

They are daemons and not `concurrent.futures`, which Python waits for at its end: a hung service must not keep a server
from ending.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

IDLE_S = 10.0
"""A thread that has had nothing to do for so long ends."""


class Fetchers:
    """Runs what it is given, in order, in up to `limit` threads. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._changed = threading.Condition()
        self._queue: deque[Callable[[], None]] = deque()
        self._threads = 0
        self._idle = 0
        self._closed = False

    def submit(self, work: Callable[[], None]) -> bool:
        """Run `work`, which must not raise, some time. False for never: `close` was called, or there is no thread."""
        with self._changed:
            if self._closed:
                return False
            self._queue.append(work)
            if self._idle >= len(self._queue):
                self._changed.notify()
            elif self._threads < self._limit and not self._begin() and not self._threads:
                self._queue.pop()
                return False
            return True

    def _begin(self) -> bool:
        try:
            threading.Thread(target=self._run, name="fusebackend-fetch", daemon=True).start()
        except RuntimeError:  # the process has as many as it may
            return False
        self._threads += 1
        return True

    def close(self) -> None:
        """Forget what has not begun; threads end when they are done, and are not waited for."""
        with self._changed:
            self._closed = True
            self._queue.clear()
            self._changed.notify_all()

    def _run(self) -> None:
        while (work := self._next()) is not None:
            work()

    def _next(self) -> Callable[[], None] | None:
        """The next work; None ends this thread."""
        with self._changed:
            if not self._queue and not self._closed:
                self._idle += 1
                self._changed.wait_for(lambda: self._queue or self._closed, IDLE_S)
                self._idle -= 1
            if self._queue:
                return self._queue.popleft()
            self._threads -= 1
            return None
