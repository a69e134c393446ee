"""Calls that may never return, made so that their caller does: each in a thread of its own, given up when time is up.

A thread can't be ended from outside. A call that was given up runs until its backend answers, and holds its place among
`BoundedCalls.most` until then, so a backend that hangs for ever costs a bounded number of threads.
"""

from __future__ import annotations

import contextvars
import errno
import select
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

T = TypeVar("T")


def is_readable(fd: int, timeout_s: float | None) -> bool:
    """Wait until a descriptor can be read, or its other side has hung up. Return False if neither came in time; None
    waits for ever.

    By poll(2): select(2) takes no descriptor above 1,023, and a server with many open files has larger ones.
    """
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else max(timeout_s, 0) * 1000))


POLL_S = 0.1
"""Interval at which a waiting caller checks the time left: a search may be cancelled meanwhile."""


class GivenUp(TimeoutError):
    """A call took too long, and its thread was left to end alone. `str` of it names the failure."""

    def __init__(self, message: str) -> None:
        super().__init__(errno.ETIMEDOUT, message)

    def __str__(self) -> str:
        return str(self.strerror)


class RouteDown(OSError):
    """A call that was not made, for those before it were not answered. It has their errno."""


class Pending(Future[T]):
    """One call under way, in a daemon thread of its own."""

    def __init__(self, function: Callable[[], T]) -> None:
        super().__init__()
        self.given_up = False
        # Budgets and the like travel in context variables.
        run = contextvars.copy_context().run
        threading.Thread(target=run, args=(self._run, function), name="fusebackend-call", daemon=True).start()

    def _run(self, function: Callable[[], T]) -> None:
        try:
            self.set_result(function())
        except BaseException as error:
            self.set_exception(error)

    def outcome(self, left_s: Callable[[], float]) -> T:
        """Return or raise the outcome of the call, when it has ended.

        Args:
            left_s: asked now and then: seconds that there are left, 0 when the call is to be given up.

        Raises:
            GivenUp: it had not ended by then.
        """
        while not wait((self,), min(left_s(), POLL_S)).done:
            if left_s() <= 0:
                self.given_up = True
                raise GivenUp("no answer in time")
        return self.result()


def within(seconds: float, function: Callable[[], T]) -> T:
    """Return or raise the outcome of a call, made in a thread of its own. `GivenUp` if it takes longer."""
    return Pending(function).outcome(countdown(seconds))


def countdown(seconds: float) -> Callable[[], float]:
    """Return what tells the seconds that are left of these, 0 at their end."""
    end = time.monotonic() + seconds
    return lambda: max(0.0, end - time.monotonic())


class BoundedCalls:
    """All calls into one backend; any thread may make one.

    Args:
        most: how many may be under way at once, those included that were given up and have not ended.
        late: called for each call that was given up, when it ends; None if it ended well, else its error.
    """

    def __init__(self, most: int, late: Callable[[BaseException | None], Any] = lambda error: None) -> None:
        self.most = most
        self._places = threading.BoundedSemaphore(most)
        self._late = late

    def run(self, function: Callable[[], T], left_s: Callable[[], float]) -> T:
        """`Pending.outcome` of a call, which is begun when there is a place for it.

        Raises:
            GivenUp: there was no place, or no answer, as long as there was time.
        """
        while not self._places.acquire(timeout=min(left_s(), POLL_S)):
            if left_s() <= 0:
                raise GivenUp(f"not even begun: {self.most} earlier calls have not ended")
        call = Pending(function)
        call.add_done_callback(self._ended)
        return call.outcome(left_s)

    def _ended(self, call: Any) -> None:
        self._places.release()
        if call.given_up:
            self._late(call.exception())
