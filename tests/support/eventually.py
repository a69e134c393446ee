"""Waiting for what comes true by itself, and soon; and for the clock that files are stamped with."""

from __future__ import annotations

import time
from collections.abc import Callable

from fusebackend.base.stamps import now_ns


def eventually(condition: Callable[[], object], limit_s: float) -> None:
    """Return when the condition holds, which is asked again and again; a file that is missing is a no."""
    deadline = time.monotonic() + limit_s
    while not _holds(condition):
        assert time.monotonic() < deadline, f"it did not come true within {limit_s:.0f} s"
        time.sleep(0.01)


def tick() -> None:
    """Until what is stamped now has another time than what was stamped before."""
    before = now_ns()
    while now_ns() <= before:
        time.sleep(0.001)


def _holds(condition: Callable[[], object]) -> object:
    try:
        return condition()
    except FileNotFoundError:
        return False
