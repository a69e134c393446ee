"""Repeating a call whose connection was lost. The only place where the mount repeats a call.

Backends repeat what only they can tell to be harmless: a conditional write after a conflict, a statement on a new
connection of a pool.

Only questions are: asking again what a name or a page is does no harm, whether the first time was carried out or not.
A change is never repeated, since nobody knows whether it was made. A time-out is not repeated either: its thread is
still at it, and its caller has waited enough.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from fusebackend.vfs.calls.circuit_breaker import LOST

ATTEMPTS = 5

PAUSE_S = 0.1
"""Before the second attempt, at most; doubled for each further one. All of them take a second and a half: what a
restart of a server takes, or a pool needs to see that its connections are gone."""

T = TypeVar("T")


async def repeated(
    attempt: Callable[[], Awaitable[T]], *, vary: Callable[[float, float], float] = random.uniform
) -> T:
    """What `attempt` returns; it is tried again when it raises an error of a lost connection."""
    for number in range(ATTEMPTS - 1):
        try:
            return await attempt()
        except OSError as error:
            if error.errno not in LOST:
                raise
        most_s = PAUSE_S * 2**number
        await trio.sleep(vary(most_s / 2, most_s))
    return await attempt()
