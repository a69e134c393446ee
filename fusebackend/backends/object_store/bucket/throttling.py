"""`patiently`: sends a request again, later and later, while the service answers that it gets too many.

S3 answers 503 `SlowDown` while it divides a prefix that many hosts use, which takes minutes; other services answer 429.
Such a request has not been carried out. obstore repeats it three times within a second. Without longer waits, a busy
bucket would be ETIMEDOUT for its users, and after three of these the circuit breaker would close the route. Each wait
is a random part of a limit that doubles from `FIRST_S` to `MOST_S`, so that hosts which were refused together do not
come back together. After `PATIENCE_S` the answer is an error, within a route's deadline (30 s).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from fusebackend.backends.object_store.bucket.errors import is_throttled
from fusebackend.base import jitter

T = TypeVar("T")

FIRST_S = 0.5
MOST_S = 4.0

PATIENCE_S = 15.0
"""How long after its first refusal a request may be sent again: half of a route's deadline, for the caller may need
more than one."""


def patiently(
    request: Callable[[], T],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Return the answer of a request. Every error leaves as it is; one of a throttled service after the waits.

    Args:
        request: sends it; called again after each refusal.
        clock: seconds that only grow.
        sleep: waits for so many seconds.
    """
    limit_s, give_up_at = FIRST_S, None
    while True:
        try:
            return request()
        except Exception as error:
            if not is_throttled(error):
                raise
            now, wait_s = clock(), jitter.between(0.5, 1) * limit_s
            give_up_at = now + PATIENCE_S if give_up_at is None else give_up_at
            if now + wait_s > give_up_at:
                raise
        sleep(wait_s)
        limit_s = min(2 * limit_s, MOST_S)
