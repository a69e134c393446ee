"""`WriteBack`: files that were closed and are put a while later, by threads of the volume, where a route asks for that.

Who unpacks an archive or commits does not wait for one request after the other then, and what is renamed or deleted
meanwhile was never sent at all. The price is in SEMANTICS.md: what was only closed goes with a server that is killed.

It decides when, and for how many; what putting a file is, `files.py` says.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from fusebackend.backends.object_store.entry import Entry
from fusebackend.backends.object_store.reading.fetchers import Fetchers

log = logging.getLogger(__name__)

MOST_BYTES = 128 << 20
MOST_FILES = 16_384
"""May wait at a time. Whoever closes what is beyond that waits until it is put."""

PUTS_AT_ONCE = 8

RETRY_S = 5.0
"""After a put that failed, the file waits so long for the next attempt."""

POSTPONED = 5
"""A file that is written and closed again and again waits at most so many times as long."""

_LONGEST_WAIT_S = 3600.0
_SPARE_ITEMS = 64


class _Waiting(NamedTuple):
    bytes: int
    since: float  # it was first closed, or a put of it has failed


class _Due(NamedTuple):
    at: float  # by the monotonic clock
    number: int  # of two for one moment the first is the first
    entry: Entry
    version: int  # of its content when it was closed


class WriteBack:
    """Thread-safe; nothing is called with its lock held.

    Args:
        after_s: how long a file waits.
        put: stores a file. False for one that is being written to, and is not the version given; raises OSError.
    """

    def __init__(self, after_s: float, put: Callable[[Entry, int], bool]) -> None:
        self._after_s = after_s
        self._put = put
        self._changed = threading.Condition()
        self._numbers = itertools.count()
        self._waiting: dict[Entry, _Waiting] = {}  # what waits and what is being put
        self._total_bytes = 0  # of these
        self._due: dict[Entry, _Due] = {}  # what waits
        self._queue: list[_Due] = []  # a heap: the same, and what does not count any more
        self._failed: set[Entry] = set()
        self._stopped = False
        self._putting = Fetchers(PUTS_AT_ONCE)
        self._timer: threading.Thread | None = None

    def __len__(self) -> int:
        """How many files are still to be put. Some of those that wait were synced or deleted meanwhile."""
        with self._changed:
            return sum(entry.dirty for entry in self._waiting)

    def take(self, entry: Entry) -> bool:
        """Put a file that was closed when it has waited, anew if it has changed since it was closed before.

        False: it would be too much, and whoever asks must put it.
        """
        with self._changed:
            due = self._due.get(entry)
            if due is not None and due.version == entry.version and entry not in self._failed:
                return not self._stopped
            if not self._has_room(entry):
                self._sweep()
            if self._stopped or not self._has_room(entry) or not self._has_begun():
                return False
            now, known = time.monotonic(), self._waiting.get(entry)
            since = known.since if known is not None else now
            self._count(entry, since)
            self._wait(entry, entry.version, min(now + self._after_s, since + POSTPONED * self._after_s))
        return True

    def retry(self, entry: Entry) -> None:
        """Put a file later that could not be put, however many wait."""
        with self._changed:
            if not self._stopped and self._has_begun():
                self._fail(entry, entry.version)

    def stop(self) -> None:
        """Put nothing any more. What waits is left to the caller; puts that are under way end as they would."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._putting.close()

    # -- the lock is held ----------------------------------------------------------------------------------------

    def _has_room(self, entry: Entry) -> bool:
        known = self._waiting.get(entry)
        files, size = (1, 0) if known is None else (0, known.bytes)
        return self._total_bytes - size + entry.size <= MOST_BYTES and len(self._waiting) + files <= MOST_FILES

    def _sweep(self) -> None:
        """Let go of what was synced or deleted while it waited."""
        for entry in [entry for entry in self._due if not entry.dirty]:
            del self._due[entry]
            self._forget(entry)

    def _has_begun(self) -> bool:
        """Is there somebody who looks what is due?"""
        if self._timer is None:
            timer = threading.Thread(target=self._run, name="fusebackend-write-back", daemon=True)
            try:
                timer.start()
            except RuntimeError:  # the process has as many threads as it may
                return False
            self._timer = timer
        return True

    def _count(self, entry: Entry, since: float) -> None:
        known = self._waiting.get(entry)
        self._total_bytes += entry.size - (known.bytes if known is not None else 0)
        self._waiting[entry] = _Waiting(entry.size, since)

    def _forget(self, entry: Entry) -> None:
        self._failed.discard(entry)
        known = self._waiting.pop(entry, None)
        self._total_bytes -= known.bytes if known is not None else 0

    def _wait(self, entry: Entry, version: int, at: float) -> None:
        due = self._due[entry] = _Due(at, next(self._numbers), entry, version)
        heapq.heappush(self._queue, due)
        if len(self._queue) > 2 * len(self._due) + _SPARE_ITEMS:
            self._queue = list(self._due.values())
            heapq.heapify(self._queue)
        if self._queue[0] is due:
            self._changed.notify_all()

    def _fail(self, entry: Entry, version: int) -> None:
        now = time.monotonic()
        self._failed.add(entry)
        self._count(entry, now)
        self._wait(entry, version, now + RETRY_S)

    # -- the timer's and the putting threads ---------------------------------------------------------------------

    def _run(self) -> None:
        while (due := self._next()) is not None:
            if not self._putting.submit(partial(self._put_one, due)):
                with self._changed:
                    self._fail(due.entry, due.version)

    def _next(self) -> _Due | None:
        """The next file that is due, when it is; None at the end."""
        with self._changed:
            while not self._stopped:
                due = self._queue[0] if self._queue else None
                if due is None:
                    self._changed.wait()
                elif self._due.get(due.entry) is not due:
                    heapq.heappop(self._queue)
                elif (left_s := due.at - time.monotonic()) > 0:
                    self._changed.wait(min(left_s, _LONGEST_WAIT_S))
                else:
                    heapq.heappop(self._queue)
                    return self._due.pop(due.entry)
            return None

    def _put_one(self, due: _Due) -> None:
        entry, failed, done = due.entry, False, True
        try:
            done = self._put(entry, due.version)
        except OSError as error:
            failed = entry.dirty  # not after a conflict: that is settled, and was logged
            if failed and entry not in self._failed:
                log.error("%s can't be stored: %s; it is tried again", entry.key, error)
        except Exception:  # the others are still to be put
            failed = entry.dirty
            log.exception("%s can't be stored; it is tried again", entry.key)
        with self._changed:
            if entry in self._due:
                return  # it was written to and closed meanwhile
            if failed:
                self._fail(entry, due.version)
            elif not done:
                self._wait(entry, due.version, time.monotonic() + self._after_s)
            else:
                self._forget(entry)
