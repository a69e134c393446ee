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

from fusebackend.backends.objectstore.entry import Entry
from fusebackend.backends.objectstore.fetchers import Fetchers

log = logging.getLogger(__name__)

MOST_BYTES = 128 << 20
MOST_FILES = 16_384
"""May wait at a time. Whoever closes what is beyond that waits until it is put."""

PUTS_AT_ONCE = 8

RETRY_S = 5.0
"""After a put that failed, the file waits so long for the next attempt."""


class _Due(NamedTuple):
    at: float  # by the monotonic clock
    number: int  # of two for one moment the first is the first
    entry: Entry
    version: int  # of its content when it was closed


class WriteBack:
    """Thread-safe; nothing is called with its lock held.

    Args:
        after_s: how long a file waits.
        put: stores a file, if it is the version that was closed or nobody has it open; raises OSError.
    """

    def __init__(self, after_s: float, put: Callable[[Entry, int], None]) -> None:
        self._after_s = after_s
        self._put = put
        self._changed = threading.Condition()
        self._numbers = itertools.count()
        self._due: dict[Entry, _Due] = {}  # what waits
        self._queue: list[_Due] = []  # a heap: the same, and what does not count any more
        self._bytes: dict[Entry, int] = {}  # of what waits and what is being put
        self._total_bytes = 0
        self._failed: set[Entry] = set()
        self._stopped = False
        self._putting = Fetchers(PUTS_AT_ONCE)
        self._timer: threading.Thread | None = None

    def __len__(self) -> int:
        """How many files are still to be put. Some of those that wait were synced or deleted meanwhile."""
        with self._changed:
            return sum(entry.dirty for entry in self._bytes)

    def take(self, entry: Entry) -> bool:
        """Put a file when it has waited, anew from now on. False: it is too much, and whoever asks must put it."""
        with self._changed:
            files = len(self._bytes) + (entry not in self._bytes)
            total = self._total_bytes - self._bytes.get(entry, 0) + entry.size
            if total > MOST_BYTES or files > MOST_FILES or self._stopped:
                return False
            self._bytes[entry], self._total_bytes = entry.size, total
            self._wait(entry, entry.version, self._after_s)
        return True

    def stop(self) -> None:
        """Put nothing any more. What waits is left to the caller; puts that are under way end as they would."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._putting.close()

    def _wait(self, entry: Entry, version: int, seconds: float) -> None:
        due = self._due[entry] = _Due(time.monotonic() + seconds, next(self._numbers), entry, version)
        heapq.heappush(self._queue, due)
        if self._timer is None:
            self._timer = threading.Thread(target=self._run, name="fusebackend-write-back", daemon=True)
            self._timer.start()
        elif self._queue[0] is due:
            self._changed.notify_all()

    def _run(self) -> None:
        while (due := self._next()) is not None:
            self._putting.submit(partial(self._put_one, due))

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
                    self._changed.wait(left_s)
                else:
                    heapq.heappop(self._queue)
                    return self._due.pop(due.entry)
            return None

    def _put_one(self, due: _Due) -> None:
        entry, failed = due.entry, False
        try:
            self._put(entry, due.version)
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
                self._failed.add(entry)
                self._wait(entry, due.version, RETRY_S)
            else:
                self._failed.discard(entry)
                self._total_bytes -= self._bytes.pop(entry, 0)
