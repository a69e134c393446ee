"""Calls into volumes: inline where they don't block, in threads under a deadline where they may.

A thread hop costs about as much as a whole FUSE request, so memory, SQLite and local directories are called on the
loop's own thread. A blocking volume has a limiter and a deadline of its own: when it hangs, its callers get ETIMEDOUT
and nobody else notices.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import trio

from fusebackend.errors import oserror

INLINE_SYNC_S = 1e-3
"""A sync that takes less than this on average is not worth a thread."""

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_DEADLINE_S = 30.0
"""How long one call into a blocking volume may take."""

THREADS_PER_ROUTE = 16
"""How many calls into one blocking volume run at once; more wait, under the same deadline."""


class Offload:
    """The way into one volume."""

    def __init__(self, blocking: bool, deadline_s: float = DEFAULT_DEADLINE_S) -> None:
        self.blocking = blocking
        self.deadline_s = deadline_s
        self.timeouts = 0
        self._sync_s = INLINE_SYNC_S  # a moving average of how long a sync takes
        self._limiter = trio.CapacityLimiter(THREADS_PER_ROUTE) if blocking else None

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The function's result, or ETIMEDOUT when the deadline passes; its thread is then left to end alone."""
        if not self.blocking:
            return function(*args, **kwargs)
        return await self.wait(lambda: function(*args, **kwargs))

    async def sync(self, function: Callable[[], T]) -> T:
        """Run an `fsync`, which waits for the disk in any volume: in a thread, so that other requests go on.

        Unless the disk has lately been so fast that the hop would cost more than it lets others do.
        """
        if not self.blocking and self._sync_s < INLINE_SYNC_S:
            return self._timed(function)
        return await self.wait(lambda: self._timed(function))

    def _timed(self, function: Callable[[], T]) -> T:
        start = time.perf_counter()
        try:
            return function()
        finally:
            self._sync_s += (time.perf_counter() - start - self._sync_s) / 8

    async def wait(self, function: Callable[[], T]) -> T:
        """Run in a thread, under the deadline if the volume may block."""
        deadline_s = self.deadline_s if self.blocking else float("inf")
        with trio.move_on_after(deadline_s):
            return await trio.to_thread.run_sync(function, limiter=self._limiter, abandon_on_cancel=self.blocking)
        self.timeouts += 1
        raise oserror(errno.ETIMEDOUT)

    def finish(self, function: Callable[[], None]) -> None:
        """Run in a thread that is not the loop's, or when there is no loop any more. ETIMEDOUT as in `call`."""
        if not self.blocking:
            function()
            return
        outcome: list[BaseException | None] = []

        def run() -> None:
            try:
                function()
            except BaseException as error:
                outcome.append(error)
            else:
                outcome.append(None)

        thread = threading.Thread(target=run, name="fusebackend-finish", daemon=True)
        thread.start()
        thread.join(self.deadline_s)
        if not outcome:
            self.timeouts += 1
            raise oserror(errno.ETIMEDOUT)
        if outcome[0] is not None:
            raise outcome[0]
