"""`Limiter` and `HeldMemory`: the places of all calls of a control socket, and the bytes that they hold.

There are so many places of each `Kind` for all connections together, and for one. For three kinds a call waits:
messages are understood one at a time (`BRIEF`), two calls work at once (`WORK`), and 24 long messages arrive at once
(`ARRIVING`). The next place goes to the connection that has used the least processor time; among unused ones, to the
newest. So a new client is served at once. `LONG` calls, `COMMANDS` and `SUBSCRIPTIONS` are refused when all places are
taken.

A thread that computes keeps Python's lock for a switch interval at a time, and a mount's request needs it several
times: beside 256 searches a `stat` took seconds. Therefore so few work at once. A search gives its place up for a while
when others wait (`rest`). A call that only waits (a route that hangs) uses no processor time, and is not counted any
more; nor are up to `LONG_AT_ONCE` calls that can't be interrupted and take long.

`HeldMemory` counts messages that arrive, calls, the results they make, and answers that have not been read yet. Without
it, four connections that asked for a file of 39 MB 32 times each and read nothing cost 5 GB, and one `ping` of 60 MiB
of `[],[],…` 1.7 GB. With all of it spent, a server grows by less than 256 MiB. A connection may hold as much as is left
when it has taken it (dynamic thresholds, as in the buffers of a switch): one half of all, two a third each, and there
is always something for the next. A call waits at its beginning for the memory of its message; a search that runs out of
it ends with the matches so far, `truncated`; any other call is an error, `BUSY`.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fusebackend.control.limits import (
    FREE_BYTES,
    MAX_ARRIVING,
    MAX_BYTES,
    MAX_CALLS,
    MAX_COMMANDS,
    MAX_COMMANDS_IN_ALL,
    MAX_SHARED_CALLS,
    MAX_SHARED_SUBSCRIPTIONS,
    PATIENCE_S,
    NoRoom,
)

LONG_AT_ONCE = 2

SLICE_S = 0.05
"""How long a call works before it makes way for those that wait."""

LONG_S = 0.25
"""After so long, a call that does not rest is one of the long ones."""

CALL_S = 1e-4
"""The least work that a call counts for."""

LOOK_S = 0.05
"""How often those that have a place are looked at while others wait."""


@dataclass(eq=False)
class Kind:
    """Of places.

    Attributes:
        what: the word for those that have one, in errors.
        in_all: how many there are.
        of_one: how many one connection may have.
        first_is_free: the first one of each connection is always given, and not counted.
        patience_s: how long a call waits for one; None is for ever.
        works: the processor time of the thread is counted.
    """

    what: str
    in_all: float
    of_one: float = math.inf
    first_is_free: bool = False
    patience_s: float | None = 0.0
    works: bool = False


BRIEF = Kind("messages", 1, patience_s=None, works=True)
"""To understand a message, and to carry out what is done in no time without leaving it: having worked, a new client
would be behind all others that have not, and a `ping` beside 1,024 searches took up to 4 s."""

WORK = Kind("calls at work", 2, patience_s=None, works=True)

ASLEEP = Kind("calls that only wait", math.inf)

ARRIVING = Kind("long messages", MAX_ARRIVING, patience_s=PATIENCE_S)

LONG = Kind("calls", MAX_SHARED_CALLS, 2 * MAX_CALLS, first_is_free=True)
"""Of one connection as many again as may be under way may have ended, and wait for their answers to be read."""

COMMANDS = Kind("commands", MAX_COMMANDS_IN_ALL, MAX_COMMANDS)

SUBSCRIPTIONS = Kind("subscriptions", MAX_SHARED_SUBSCRIPTIONS, MAX_CALLS, first_is_free=True)

KINDS = (BRIEF, WORK, ASLEEP, ARRIVING, LONG, COMMANDS, SUBSCRIPTIONS)


class LimitedClient:
    """One connection, as `Limiter` and `HeldMemory` know it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.worked_s = 0.0
        self.has = dict.fromkeys(KINDS, 0)
        self.held_bytes = 0


class Place:
    """A place, which a call has until the end of `Limiter.at_work`, or from `take` to `leave`; and the memory that the
    call, or the message that arrives, holds. The first `FREE_BYTES` are free, and `hold` is for one thread.

    Attributes:
        held: so many bytes. Whatever threads of the call have held at once, `hold(-held)` gives it back.

    Args:
        stands_still: called while others wait. It returns True when this has ended, to make room.
    """

    def __init__(
        self, limiter: Limiter, client: LimitedClient, kind: Kind, stands_still: Callable[[], bool] = lambda: False
    ) -> None:
        self.client = client
        self.kind = kind
        self.stands_still = stands_still
        self.held = 0
        self._shared = 0  # so much of that, beyond what is free
        self.given: threading.Event | None = None
        self.counted = False
        self.long = False
        self.began_s = 0.0
        self._limiter = limiter
        self.thread = 0
        self._worked_s = 0.0

    def rest(self) -> None:
        """Let others go first, if any wait and this has worked for a while. No lock may be held.

        A part of the call in another thread goes on: the call is waiting for it."""
        waited_for = self._limiter.queues[self.kind]
        if waited_for and threading.get_ident() == self.thread and time.monotonic() - self.began_s > SLICE_S:
            self._limiter.leave(self)
            self._limiter.take(self)

    def hold(self, size: int, patience_s: float = 0.0) -> None:
        """So much more, less if negative. Raises `NoRoom`, and then nothing has changed."""
        more = max(0, self.held + size - FREE_BYTES) - self._shared
        if more:
            self._limiter.memory.take(self.client, more, patience_s)
        self._shared += more
        self.held += size

    def worked_s(self) -> float:
        """Processor time of the call's thread since this was last asked."""
        before_s = self._worked_s
        if self.thread == threading.get_ident():
            self._worked_s = time.thread_time()  # the same clock, in half the time
        else:
            self._worked_s = time.clock_gettime(time.pthread_getcpuclockid(self.thread))
        return self._worked_s - before_s


class Limiter:
    """See the module's docstring.

    Attributes:
        memory: that all calls hold.
        left: places that are free, by kind.
        queues: those that wait, by kind.
        taken: those that are given, by kind, in this order.
    """

    def __init__(self) -> None:
        self.memory = HeldMemory()
        self.left = {kind: kind.in_all for kind in KINDS}
        self.queues: dict[Kind, list[Place]] = {kind: [] for kind in KINDS}
        self.taken: dict[Kind, dict[Place, None]] = {kind: {} for kind in KINDS}
        self._guard = threading.RLock()
        self._looking = False

    def take(self, place: Place) -> None:
        """Raises `NoRoom` when there is none in time."""
        kind, has = place.kind, place.client.has[place.kind]
        if place.thread != threading.get_ident():  # else it goes on from where it left another place
            place.thread = threading.get_ident()
            place.worked_s()
        with self._guard:
            if has >= kind.of_one:
                raise NoRoom(f"{kind.of_one} {kind.what} of this connection are under way")
            if self.left[kind] > 0 or (kind.first_is_free and not has):
                self._give(place)
                return
            if kind.patience_s == 0.0:
                raise NoRoom(f"{kind.in_all} {kind.what} of all connections are under way; try again")
            place.given = threading.Event()
            self.queues[kind].append(place)
            if not self._looking:
                with contextlib.suppress(RuntimeError):  # no threads are left: the next call that waits tries
                    threading.Thread(target=self._look, name="fusebackend-limiter", daemon=True).start()
                    self._looking = True
        if place.given.wait(kind.patience_s):
            return
        with self._guard:
            if place not in self.taken[kind]:
                self.queues[kind].remove(place)
                raise NoRoom(f"too many {kind.what} are under way; try again")

    @contextlib.contextmanager
    def at_work(self, place: Place, kind: Kind) -> Iterator[None]:
        """Have a call go on in a place of this kind, for the length of a block; where it has to wait for that, it
        leaves the one it has."""
        if place not in self.taken[kind]:
            self.leave(place)
            place.kind = kind
            self.take(place)
        try:
            yield
        finally:
            self.leave(place)

    def leave(self, place: Place) -> None:
        """More than once does no harm."""
        with self._guard:
            kind, client = place.kind, place.client
            if place in self.taken[kind]:
                if kind.works:
                    client.worked_s += place.worked_s() + CALL_S
                del self.taken[kind][place]
                client.has[kind] -= 1
                self.left[kind] += place.counted and not (kind.first_is_free and not client.has[kind])
                if self.queues[kind]:
                    self._next(kind)

    def _give(self, place: Place) -> None:
        kind, client = place.kind, place.client
        self.left[kind] -= not (kind.first_is_free and not client.has[kind])
        client.has[kind] += 1
        self.taken[kind][place] = None
        place.counted, place.long = True, False
        place.began_s = time.monotonic()
        if place.given is not None:
            place.given.set()

    def _next(self, kind: Kind) -> None:
        queue = self.queues[kind]
        while queue and self.left[kind] > 0:
            chosen = min(queue, key=lambda place: (place.client.worked_s, -place.client.number))
            queue.remove(chosen)
            self._give(chosen)

    def _look(self) -> None:
        """While calls wait, find those that have a place and only wait themselves, stand still, or take long."""
        while True:
            time.sleep(LOOK_S)
            with self._guard:
                waited_for = [kind for kind in KINDS if self.queues[kind]]
                if not waited_for:
                    self._looking = False
                    return
                for kind in waited_for:
                    for place in list(self.taken[kind]):
                        if kind.works:
                            self._look_at(place)
                        elif self.queues[kind] and place.stands_still():
                            self.leave(place)
                    self._next(kind)

    def _look_at(self, place: Place) -> None:
        age_s = time.monotonic() - place.began_s
        worked_s = place.worked_s()
        place.client.worked_s += worked_s
        if age_s > LONG_S and worked_s and not place.long:
            place.long = sum(other.long for other in self.taken[place.kind]) < LONG_AT_ONCE
        counted = not place.long and (age_s < LOOK_S or worked_s > LOOK_S / 20)
        self.left[place.kind] += place.counted - counted
        place.counted = counted


class HeldMemory:
    """See the module's docstring. For any thread."""

    def __init__(self) -> None:
        self.size = MAX_BYTES
        self.used = 0
        self._changed = threading.Condition(threading.Lock())

    def take(self, client: LimitedClient, more: int, patience_s: float = 0.0) -> None:
        """`more` for a connection, less if negative. Raises `NoRoom`."""
        with self._changed:
            if client.held_bytes + more > self.size // 2:
                patience_s = 0.0
            if more > 0 and not self._changed.wait_for(
                lambda: client.held_bytes + more <= self.size - self.used - more, patience_s
            ):
                raise NoRoom(
                    f"the call, with its answer, takes more memory than the {self.size >> 20} MiB for all clients "
                    "leave: send or ask for less, with stream, or again later"
                )
            client.held_bytes += more
            self.used += more
            if more < 0:
                self._changed.notify_all()
