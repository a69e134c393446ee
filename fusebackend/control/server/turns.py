"""`Turns`: the number of calls of control clients that work at the same time, and their order.

A thread that computes keeps Python's lock for a switch interval at a time, and a mount's request needs it several
times: beside 256 searches a `stat` took seconds. So `PLACES` calls work at once and the others wait. A search gives its
turn up for a while when others wait (`rest`). A call that only waits (a route that hangs) is seen by the processor time
of its thread, and no longer counted; nor are up to `LONG` that can't be interrupted and take long.

The next turn goes to the connection that has used the least time; among unused ones, to the newest. So a new client is
served at once.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

PLACES = 2
LONG = 2

SLICE_S = 0.05
"""How long a call works before it makes way for those that wait."""

LONG_S = 0.25
"""After so long, a call that does not rest is one of the long ones."""

CALL_S = 1e-4
"""The least work that a call counts for."""

LOOK_S = 0.05
"""How often those at work are looked at while others wait."""


class Turn:
    """A call's place in the queue, and then at work."""

    def __init__(self, turns: Turns, client: Client) -> None:
        self.client = client
        self.given = threading.Event()
        self.counted = False
        self.long = False
        self.began_s = 0.0
        self._turns = turns
        self._thread = threading.get_ident()
        self._clock = time.pthread_getcpuclockid(self._thread)
        self._worked_s = 0.0

    def rest(self) -> None:
        """Let others go first, if any wait and this has worked for a while. No lock may be held.

        A part of the call in another thread goes on: the call is waiting for it."""
        if self._turns.waiting and threading.get_ident() == self._thread and time.monotonic() - self.began_s > SLICE_S:
            self._turns.leave(self)
            self._turns.enter(self)

    def worked_s(self) -> float:
        """Processor time of the call's thread since this was last asked."""
        before, self._worked_s = self._worked_s, time.clock_gettime(self._clock)
        return self._worked_s - before


class Client:
    """One connection, as `Turns` knows it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.worked_s = 0.0


class Turns:
    """See the module's docstring."""

    def __init__(self, places: int = PLACES) -> None:
        self._places = places
        self._guard = threading.Lock()
        self._working: set[Turn] = set()
        self._queue: list[Turn] = []
        self._looking = False

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @contextlib.contextmanager
    def turn(self, client: Client) -> Iterator[Turn]:
        """Wait for a turn, and have it for the length of a block."""
        turn = Turn(self, client)
        self.enter(turn)
        try:
            yield turn
        finally:
            self.leave(turn)

    def enter(self, turn: Turn) -> None:
        with self._guard:
            if not self._queue and self._free():
                self._begin(turn)
                return
            turn.given.clear()
            self._queue.append(turn)
            if not self._looking:
                threading.Thread(target=self._look, name="fusebackend-turns", daemon=True).start()
                self._looking = True
        turn.given.wait()

    def leave(self, turn: Turn) -> None:
        with self._guard:
            turn.client.worked_s += turn.worked_s() + CALL_S
            self._working.discard(turn)
            if self._queue:
                self._next()

    def _free(self) -> bool:
        return sum(turn.counted for turn in self._working) < self._places

    def _begin(self, turn: Turn) -> None:
        turn.counted, turn.long = True, False
        turn.began_s = time.monotonic()
        turn.worked_s()
        self._working.add(turn)
        turn.given.set()

    def _next(self) -> None:
        while self._queue and self._free():
            chosen = min(self._queue, key=lambda turn: (turn.client.worked_s, -turn.client.number))
            self._queue.remove(chosen)
            self._begin(chosen)

    def _look(self) -> None:
        """While calls wait, find working calls that only wait themselves, and those that take long."""
        while True:
            time.sleep(LOOK_S)
            with self._guard:
                if not self._queue:
                    self._looking = False
                    return
                for turn in self._working:
                    age_s = time.monotonic() - turn.began_s
                    worked_s = turn.worked_s()
                    turn.client.worked_s += worked_s
                    if age_s > LONG_S and worked_s and not turn.long:
                        turn.long = sum(other.long for other in self._working) < LONG
                    turn.counted = not turn.long and (age_s < LOOK_S or worked_s > LOOK_S / 20)
                self._next()
