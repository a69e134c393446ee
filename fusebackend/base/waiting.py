"""Calls into a volume that may wait for a network, made on a thread that must not: `at_once`, `will_wait`, `Lock`.

Most calls into such a volume find what they need in memory, and a hop to a thread and back costs more than they do. So
the mount tries them on its own thread first: before it waits, the volume calls `will_wait()`, which ends the attempt,
and the call is made again in a thread. Before `will_wait()` a call must have no side effects, or only ones that are
safe to repeat.
"""

from __future__ import annotations

import threading
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
