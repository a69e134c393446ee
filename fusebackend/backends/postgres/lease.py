"""`Lease`: while this session alone has the volume open, what it knows of the tables needs no question.

Close-to-open among hosts costs a query for each `open`. Most volumes are an agent's own, and have no other host. There
a session takes a lease, which is NFS's delegation for a whole volume: no other session begins before it has ended. So
`open` and `lookup` are answered from `KnownInodes`, and names on the way are not compared.

- It is taken in the session's connection when something would have used it: `LEASE_LOCK` alone, if no other session
  has a row, and no change is under way (`CHANGE_LOCK`), of a thread of another host that was given up, say. It begins
  `SETTLED_S` after all changes that others have made until then were told of, as the mount may hold notices back.
- Another session adds its row, says hello on the channel of wake-ups, and then waits for `LEASE_LOCK`. This one hears
  it, ends the lease and gives the lock back: half a millisecond. So it does for whatever else it hears of others.
- A session whose connection is cut may not know it. So a lease holds only for `LEASE_S` after the feed last asked
  something that was answered, and a newcomer that has waited for longer (`host_session.LOCK_S`) has the server end that
  connection.
- The server gives the lock to another one at once when it ends the connection. This one hears it at once, too, unless
  it was stopped, and its feed's thread has not run yet when a question comes (`PAUSE_S`).
- It is taken anew where it has lapsed, and where the outcome of a change is not known (`doubt`): the server may make it
  when this host has read on, and no host is told of its own. What is known by then is dropped.
- A session that has lost its connection for so long that its row is removed as that of a dead one adds it again before
  it changes anything (`HostSession.rejoin`).

Cost: a comparison of times for each question, and 2 µs for one after a pause. Off: `LEASE_S = 0`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from fusebackend.backends.postgres.schema import CHANGE_LOCK, LEASE_LOCK
from fusebackend.databases.listener import Ask

LEASE_S = 7.0
"""How long a lease holds after a question that was answered: longer than until the feed asks again (`feed.IDLE_S`), and
less than a newcomer waits."""

SETTLED_S = 0.5
"""More than a mount holds back notices to the kernel (`vfs/coherence/page_cache.py`)."""

TRY_S: Final = 0.25
"""How often it is tried to take it."""

PAUSE_S: Final = 0.005
"""After a longer pause the first question looks whether the server has hung up: the process may have been stopped."""

NEVER: Final = float("inf")


def now_s() -> float:
    """The time in seconds. It goes on while this computer sleeps, as other hosts do."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


_TAKE: Final = f"SELECT pg_try_advisory_lock({LEASE_LOCK}, %s::int)"
_IS_ALONE: Final = f"""
SELECT pg_try_advisory_xact_lock({CHANGE_LOCK}, %s::int)
    AND NOT EXISTS (SELECT FROM fusebackend.session WHERE volume = %s::int AND id <> %s::int)
"""
"""A question of its own: it sees the rows of all sessions that have had the lock before."""
_GIVE_BACK: Final = f"SELECT pg_advisory_unlock({LEASE_LOCK}, %s::int)"


class Lease:
    """See the module's docstring. `held` is for any thread, all else for that of the session's connection.

    Args:
        wake: has that thread look whether the lease can be taken.
        is_quiet: whether that thread has read all that the connection has for it.

    Attributes:
        is_alone: there may be no other session.
        drops: what was known when it was taken is to be dropped (`doubt`).
    """

    def __init__(self, volume: int, wake: Callable[[], None], is_quiet: Callable[[], bool]) -> None:
        self.is_alone = self.drops = False
        self._wake = wake
        self._is_quiet = is_quiet
        self._asked_at = 0.0
        self._volume = volume
        self._since = NEVER  # it begins
        self._answered_at = now_s()  # the last question that was answered: so long after it, it has ended
        self._wished_at = 0.0
        self._tried_at = 0.0
        self._has_lock = False
        self._doubts = self._doubted = 0  # all, and those before it was taken
        self._guard = threading.Lock()  # it does not begin while it ends

    @property
    def held(self) -> bool:
        now = now_s()
        if self._since <= now < self._answered_at + LEASE_S:
            if now > self._asked_at + PAUSE_S and not self._is_quiet():
                return False
            self._asked_at = now
            return True
        if self.is_alone and now >= self._wished_at + TRY_S:
            self._wished_at = now
            self._wake()
        return False

    def answered(self, sent_at: float) -> None:
        """The server has answered a question that was sent at a time (`now_s`)."""
        if self._has_lock and sent_at >= self._answered_at + LEASE_S:
            self.doubt()
        self._answered_at = sent_at

    @property
    def silent_s(self) -> float:
        """How long ago the last question was asked that the server has answered: the connection was there then."""
        return now_s() - self._answered_at

    def doubt(self) -> None:
        """Have it taken anew. Any thread may call it."""
        with self._guard:
            self._since = NEVER
            self._doubts += 1
        self._wake()

    @property
    def is_over(self) -> bool:
        """Whether the lock is to be given back."""
        return not self.is_alone or self._doubts != self._doubted

    def take(self, session: int, ask: Ask) -> bool:
        """Take the lock, if it is due and this session is alone. What has been changed until now is to be told then."""
        now = now_s()
        if self._has_lock or not self.is_alone or now >= self._wished_at + 2 * TRY_S or now < self._tried_at + TRY_S:
            return False
        self._tried_at, doubts = now, self._doubts
        if ask((_TAKE, (self._volume,))) != [(True,)]:
            return False
        self._has_lock = True
        if ask((_IS_ALONE, (self._volume, self._volume, session))) != [(True,)]:
            self.give_back(ask)
            return False
        self.drops, self._doubted = doubts != self._doubted, doubts
        return True

    def beginning(self) -> Callable[[], None]:
        """What is to be called when all changes until the lock was taken have been told of; by any thread."""
        taken_at = self._tried_at

        def begin() -> None:
            with self._guard:
                if self._has_lock and not self.is_over and self._tried_at == taken_at:
                    self._since = now_s() + SETTLED_S

        return begin

    def end(self) -> None:
        """There is another session, or the connection is lost, and with it the lock."""
        with self._guard:
            self.is_alone = False
            self._since = NEVER

    def lost(self) -> None:
        self.end()
        self._has_lock = False

    def give_back(self, ask: Ask) -> None:
        """Let another session begin. After `end`, or before it has begun."""
        if self._has_lock:
            self._has_lock = False
            ask((_GIVE_BACK, (self._volume,)))
