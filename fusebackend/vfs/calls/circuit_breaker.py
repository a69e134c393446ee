"""`CircuitBreaker`: fails calls at once while a route is down, and gives the health that `status` shows.

A call that ends in time is an answer, also with an error: ENOENT says that the backend is there. A time-out or a lost
connection (`TROUBLE`) is a failure. After `FAILURES_TO_OPEN` of them in a row the route is *down*: calls fail at once
with the error of the last one, so that a walk through a tree does not wait for the same silence again and again. Then,
each time a pause has passed, the next call or `status` makes one probe; when it is answered, calls go through again.
Pauses double up to a limit, and vary, so that many mounts of one server don't ask in step.

Failures are counted for each kind of call by itself: a volume may answer `lookup` from its cache while every `read`
hangs, and such an answer proves nothing.

`CircuitBreaker` decides and never waits; any thread may call it. `executor.py` makes the probe.
"""

from __future__ import annotations

import collections
import errno
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from fusebackend.base import jitter
from fusebackend.base.deadline import RouteDown

log = logging.getLogger(__name__)

FAILURES_TO_OPEN = 3

PAUSE_S = 0.5
MAX_PAUSE_S = 5.0
"""How long a route that is down is left alone before it is asked again: the first time, and at most."""

JITTER = 0.25
"""By which part of itself a pause varies."""

REMEMBERED_S = 60.0
"""A route counts as degraded for this long after its last failure."""

LOST = frozenset({
    errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE, errno.ENOTCONN, errno.ESHUTDOWN,
    errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET, errno.EHOSTDOWN, errno.EHOSTUNREACH,
})  # fmt: skip
"""There is no connection to the backend."""

TROUBLE = LOST | {errno.ETIMEDOUT}


class CircuitBreaker:
    """See the module's docstring.

    Args:
        name: of the route, in the log.
        clock: seconds that only grow.
        vary: a random number between two.

    Attributes:
        timeouts: calls that were given up at their deadline, ever.
        refused: calls that failed at once because the route was down, ever.
        down: the route is down, and calls fail at once.
    """

    def __init__(
        self,
        name: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        vary: Callable[[float, float], float] = jitter.between,
    ) -> None:
        self.name = name
        self.timeouts = 0
        self.refused = 0
        self._clock = clock
        self._vary = vary
        self._lock = threading.Lock()
        self._failures: collections.Counter[str] = collections.Counter()  # in a row, by kind of call
        self._why: OSError | None = None
        self._failed_at = 0.0
        self._since = 0.0  # the first failure in a row, by the wall clock
        self.down = False
        self._pause_s = PAUSE_S
        self._probe_at = 0.0
        self._probing = False

    def refusal(self) -> RouteDown:
        """The error of a call that is not made. Counts it."""
        with self._lock:
            self.refused += 1
            number = errno.EIO if self._why is None or self._why.errno is None else self._why.errno
        return RouteDown(number, f"it is down, and is not asked until it answers: {os.strerror(number)}")

    def answered(self, kind: str) -> None:
        """A call was answered in time, be it with an error."""
        if not self._failures and not self.down:
            return  # as nearly always
        with self._lock:
            del self._failures[kind]
            if not self._failures and not self.down:
                self._since = 0.0

    def failed(self, kind: str, error: OSError) -> None:
        """A call was given up at its deadline (ETIMEDOUT), or there was no connection for it."""
        with self._lock:
            self.timeouts += error.errno == errno.ETIMEDOUT
            self._why = error
            self._failed_at = self._clock()
            self._since = self._since or time.time()
            self._failures[kind] += 1
            if self.down or self._failures[kind] < FAILURES_TO_OPEN:
                return
            self.down = True
            self._pause_s = PAUSE_S
            self._rest()
        log.warning("%s is down: %s; until it answers, calls fail at once", self.name, _words(error))

    def _rest(self) -> None:
        self._probe_at = self._clock() + self._pause_s * self._vary(1 - JITTER, 1 + JITTER)

    def begin_probe(self) -> bool:
        """True if the caller may make a probe now. It must then call `recovered` or `still_down`."""
        with self._lock:
            if not self.down or self._probing or self._clock() < self._probe_at:
                return False
            self._probing = True
            return True

    def recovered(self) -> None:
        """The probe was answered."""
        with self._lock:
            was_down, self.down, self._probing = self.down, False, False
            self._failures.clear()
            self._since = 0.0
        if was_down:
            log.warning("%s answers again", self.name)

    def still_down(self, error: OSError) -> None:
        """The probe has failed."""
        with self._lock:
            self._probing = False
            self._why = error
            self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)
            self._rest()

    def describe(self) -> dict[str, Any]:
        """For `status`: `healthy`; or `degraded` or `down`, since when and why."""
        with self._lock:
            has_failed_lately = self._failures and self._clock() - self._failed_at < REMEMBERED_S
            state = "down" if self.down else "degraded" if has_failed_lately else "healthy"
            counts = {"timeouts": self.timeouts, "refused": self.refused}
            if state == "healthy":
                return {"state": state, **counts}
            assert self._why is not None, "it has failed"
            return {"state": state, "since": self._since, "why": _words(self._why), **counts}


def _words(error: OSError) -> str:
    return error.strerror or str(error)
