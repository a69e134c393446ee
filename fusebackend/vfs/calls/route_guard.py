"""`RouteGuard`: the agent face of a mounted route, under the same limits as its kernel face.

What an agent asks of a route goes through the route's `Offload`: it ends at the route's deadline, fails at once while
the route is down, and says as much about its health as what the kernel asks. A search has the time of its budget
(`base/budget.py`) and a moment more, so that one that ends by itself says what it has found.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from fusebackend.base import budget
from fusebackend.vfs.calls.executor import Offload

GRACE_S = 1.0
"""How long after its budget is spent a search is waited for."""

FILE_S = 0.5
"""How much more time a batch has for each file but the first."""

SEARCHES = ("grep", "grep_raw", "glob", "glob_info")

T = TypeVar("T")


class RouteGuard:
    """See the module's docstring, and `AgentFace.guard`."""

    def __init__(self, offload: Offload) -> None:
        self._offload = offload

    def run(self, verb: str, call: Callable[[], T], files: int = 1) -> T:
        """What the call returns or raises.

        Raises:
            GivenUp: it took too long; whether it is still carried out is not known.
            RouteDown: it was not made.
        """
        if verb in SEARCHES:
            return self._offload.run(verb, call, left_s=_time_for_search())
        return self._offload.run(verb, call, more_s=(files - 1) * FILE_S)


def _time_for_search() -> Callable[[], float]:
    left = budget.current()
    spent_at: float | None = None

    def left_s() -> float:
        nonlocal spent_at
        if not left.spent:
            return left.left_s + GRACE_S
        spent_at = time.monotonic() if spent_at is None else spent_at
        return max(0.0, spent_at + GRACE_S - time.monotonic())

    return left_s
