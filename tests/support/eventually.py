"""Wait for a condition that another process or thread makes true, or for the clock that stamps files."""

from __future__ import annotations

import time
from collections.abc import Callable

from fusebackend.base.stamps import now_ns


def eventually(condition: Callable[[], object], limit_s: float = 60.0, what: str = "it did not come true") -> None:
    """Poll the condition every 10 ms until it holds; FileNotFoundError counts as false. Fail after `limit_s`.

    A condition that takes longer, such as a question to a server, is polled for a quarter of the time: others need the
    processors, and often it is for them that it waits.
    """
    deadline = time.monotonic() + limit_s
    asked = time.monotonic()
    while not _holds(condition):
        now = time.monotonic()
        assert now < deadline, f"{what} within {limit_s:.0f} s"
        time.sleep(max(0.01, 3 * (now - asked)))
        asked = time.monotonic()


def tick() -> None:
    """Wait until a new stamp differs from all earlier ones."""
    before = now_ns()
    while now_ns() <= before:
        time.sleep(0.001)


def _holds(condition: Callable[[], object]) -> object:
    try:
        return condition()
    except FileNotFoundError:
        return False
