"""Limits of the clients of a control socket, in bytes, threads and places: every limit, and `Room`.

`Room` is one budget for all connections together. It counts requests under way, the results they make, and answers that
have not been read yet. Without it, four connections that asked for a file of 39 MB 32 times each and read nothing cost
5 GB, and one `ping` of 60 MiB of `[],[],…` 1.7 GB. With all of it spent, and 256 connections with a message and an
answer half way, a server grows by less than 256 MiB.

A call may hold as much as is left when it has taken it (dynamic thresholds, as in the buffers of a switch): one call
half of all, two a third each, and there is always something for the next. A call waits at its beginning for the memory
of its message; a search that runs out of it ends with the matches so far, `truncated`; any other call is an error,
`BUSY`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Protocol

from fusebackend.base.budget import Spent

MAX_CONNECTIONS = 256

NEWCOMERS = 16
"""Places beyond those, for short calls only, so that a server full of clients that are at work answers a new one."""

NEWCOMER_S = 0.25
"""How long a newcomer has such a place for itself. Then it makes room for the next one, even if it is at work:
subscriptions and half messages over 272 connections shut everybody else out for as long as they lasted."""

MAX_CALLS = 16
"""Long calls and subscriptions of one connection at once, each."""

MAX_SHARED_CALLS = 256
"""Long calls of all connections, not counting the first one of each connection: a call of another one is always taken.
Each is a thread."""

MAX_COMMANDS = 256
"""Commands of one connection at once, also while their answers wait to be read. They run for as long as they like, so
they take no place of other long calls."""

MAX_COMMANDS_IN_ALL = 1024
"""Of all connections together: each has a thread, and two pipes."""

MAX_SHARED_SUBSCRIPTIONS = 64
"""And subscriptions, likewise: every change wakes the thread of each."""

MAX_MESSAGE_BYTES = 1 << 20
"""The longest line the server takes. It is decoded in one go with Python's lock held: at most 15 ms for 87,000 files in
an `upload_files`. Longer contents are staged, or arrive in pieces."""

MAX_VALUES = 20_000
"""How many commas and opening brackets a message may have where every value becomes an object of its own: the payload
of a `ping`, and a message with an escaped byte of a file name, which msgspec can't read. 340,000 empty lists, which fit
into a message, kept Python's lock for 0.5 s, most of it for the garbage collector."""

MAX_ANSWER_BYTES = 16 << 20
"""The longest line the server answers: a text of short lines that fits is encoded in 20 ms, with Python's lock held.
Longer contents are downloaded as a stream, which `Client.read` does by itself."""

MAX_ITEMS = 10_000
"""Files in one `upload_files` or `download_files`."""

MAX_BYTES = 128 << 20
"""Memory of all connections together (`Room`)."""

FREE_BYTES = 64 << 10
"""Memory of a call, and of a message that is arriving, that is not counted."""

MAX_ARRIVING = 24
"""Messages longer than `FREE_BYTES` that arrive at once. The others are not read from their sockets until it is their
turn. A stalled one makes room."""

STANDSTILL_S = 1.0
"""How long a message may stand still half way while others wait to arrive."""

WORK_FACTOR = 16
"""Memory of a call for each byte of its message until it is understood, at worst (short paths)."""

TYPED_FACTOR = 6
"""And once its parameters are known, that have types: a text takes up to four bytes for each of the message."""

PATIENCE_S = 10.0
"""How long a call waits for room to begin."""


class NoRoom(Spent):
    """A call would hold more than its share; its text says so. Where that is not known, a search is spent."""


class Room:
    """See the module's docstring. For any thread."""

    def __init__(self, size: int = MAX_BYTES) -> None:
        self._size = size
        self._used = 0
        self._changed = threading.Condition(threading.Lock())
        self._waiting = 0

    @property
    def used(self) -> int:
        return self._used

    @contextlib.contextmanager
    def share(self) -> Iterator[Share]:
        """The memory that one call holds; let go of at the end."""
        share = Share(self)
        try:
            yield share
        finally:
            share.close()

    def take(self, held: int, size: int, patience_s: float) -> None:
        """`size` more for a call that holds `held`. Raises `NoRoom`."""
        with self._changed:
            if not self._fits(held, size) and patience_s and held + size <= self._size // 2:
                self._waiting += 1
                self._changed.wait_for(lambda: self._fits(held, size), patience_s)
                self._waiting -= 1
            if not self._fits(held, size):
                raise NoRoom(
                    f"the answer, or what it is made of, takes more memory than the {self._size >> 20} MiB for all "
                    "clients leave: ask for less, with stream, or again later"
                )
            self._used += size

    def give_back(self, size: int) -> None:
        with self._changed:
            self._used -= size
            if self._waiting:
                self._changed.notify_all()

    def _fits(self, held: int, size: int) -> bool:
        return held + size <= self._size - self._used - size


class Share:
    """The memory of a `Room` that one call holds. The first `FREE_BYTES` are free. For the thread of the call."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._held = 0
        self._counted = 0

    def hold(self, size: int, patience_s: float = 0.0) -> None:
        """So much more, less if negative. Raises `NoRoom`, and then nothing has changed."""
        held = self._held + size
        more = max(0, held - FREE_BYTES) - self._counted
        if more > 0:
            self._room.take(self._counted, more, patience_s)
        elif more < 0:
            self._room.give_back(-more)
        self._counted += more
        self._held = held

    @property
    def held(self) -> int:
        return self._held

    def close(self) -> None:
        self._room.give_back(self._counted)
        self._held = self._counted = 0


class Arrivals:
    """Which connections may hold a long message that is still arriving, or not yet understood. First come, first
    served, so each that has begun can be completed."""

    def __init__(self, places: int = MAX_ARRIVING) -> None:
        self._places = places
        self._guard = threading.Lock()
        self._inside: dict[Arriving, None] = {}
        self._queue: dict[Arriving, threading.Event] = {}  # each has its own: a place that is free wakes one thread

    def enter(self, arriving: Arriving) -> bool:
        """Wait for a place; False when there was none in time. `leave` gives it back."""
        deadline = time.monotonic() + PATIENCE_S
        with self._guard:
            turn = self._queue[arriving] = threading.Event()
            self._admit()
        wait_s = STANDSTILL_S / 4
        while not turn.wait(wait_s):
            with self._guard:
                is_next = next(iter(self._queue), None) is arriving
                if is_next:
                    self._make_room()
                if not turn.is_set() and time.monotonic() > deadline:
                    del self._queue[arriving]
                    return False
                wait_s = STANDSTILL_S / 4 if is_next else STANDSTILL_S  # one looks, the others sleep
        return True

    def leave(self, arriving: Arriving) -> None:
        with self._guard:
            self._inside.pop(arriving, None)
            self._admit()

    def _admit(self) -> None:
        while self._queue and len(self._inside) < self._places:
            first = next(iter(self._queue))
            self._inside[first] = None
            self._queue.pop(first).set()

    def _make_room(self) -> None:
        standing = [one for one in self._inside if one.stands_still(STANDSTILL_S)]
        for one in standing:
            del self._inside[one]
            one.give_up()
            self._admit()
            if not self._queue:
                return


class Arriving(Protocol):
    """A connection, as `Arrivals` knows it."""

    def stands_still(self, seconds: float) -> bool:
        """Return True if half a message is there, and nothing more came for so long."""

    def give_up(self) -> None:
        """Forget the message, and end."""


class Places:
    """How many of something there are in all: the first of each connection is always let in, the others share."""

    def __init__(self, shared: int = MAX_SHARED_CALLS) -> None:
        self._left = shared
        self.taken = 0
        self._guard = threading.Lock()

    def enter(self, has_one: bool) -> bool:
        """Take a place; False if there is none. `leave` gives it back, with the same argument."""
        with self._guard:
            if has_one and self._left == 0:
                return False
            self._left -= has_one
            self.taken += 1
        return True

    def leave(self, had_one: bool) -> None:
        with self._guard:
            self._left += had_one
            self.taken -= 1
