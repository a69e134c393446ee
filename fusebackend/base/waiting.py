"""Calls into a volume that may wait for a network, made on a thread that must not: `at_once`, `will_wait`, `Lock`; and
`Turns`, for what many threads wait for.

Most calls into such a volume find what they need in memory, and a hop to a thread and back costs more than they do. So
the mount tries them on its own thread first: before it waits, the volume calls `will_wait()`, which ends the attempt,
and the call is made again in a thread. Before `will_wait()` a call must have no side effects, or only ones that are
safe to repeat.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_here = threading.local()


class WouldWait(BaseException):
    """An attempt that was given up. No `Exception`: no handler of errors may catch it and go on."""


def at_once(function: Callable[[], T]) -> T:
    """Return the function's result, if it need not wait; `WouldWait` otherwise."""
    _here.hurried = True
    try:
        return function()
    finally:
        _here.hurried = False


def will_wait() -> None:
    """Said before waiting for anything but the disk of this machine or a lock that is held for moments."""
    if getattr(_here, "hurried", False):
        raise WouldWait


class Lock:
    """A re-entrant lock that others may hold while they wait."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            will_wait()
            self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


class Turns:
    """So many may have a place at once; those that wait for one get it first come, first served.

    A `threading.Semaphore` gives a free place to the next thread that asks. A waiting thread is woken, finds it taken,
    and waits again at the end of the queue: of 200 threads that count up in one file, some waited for 25 s.
    """

    def __init__(self, places: int) -> None:
        self._guard = threading.Lock()
        self._free = places
        self._waiting: deque[threading.Event] = deque()

    def take(self, timeout_s: float) -> bool:
        """Take a place; False if there was none for so long."""
        with self._guard:
            if self._free:
                self._free -= 1
                return True
            given = threading.Event()
            self._waiting.append(given)
        if given.wait(timeout_s):
            return True
        with self._guard:
            if given.is_set():  # just now
                return True
            self._waiting.remove(given)
            return False

    def leave(self) -> None:
        """Give the place to the thread with the longest wait."""
        with self._guard:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._free += 1
