"""`each`: one request for each of many items, several at a time; `attempted`, if one may fail. `Fetchers`: the threads
that read ahead.

They are daemons, and those of `each` live as long as the call: those of `concurrent.futures` are waited for when Python
ends, and a service that hangs must not keep a server from ending.
"""

from __future__ import annotations

import errno
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from typing import TypeVar

from fusebackend.base.errors import oserror
from fusebackend.base.waiting import will_wait

WIDTH = 16
"""Requests at a time: at 50 ms each, a page of 128 attributes takes 0.4 s."""

T = TypeVar("T")
R = TypeVar("R")


def attempted(function: Callable[[T], R], items: Sequence[T], width: int = WIDTH) -> list[R | OSError]:
    """The results for the items, or their errors. After the first one no further item is begun: ECANCELED."""
    failed = threading.Event()

    def attempt(item: T) -> R | OSError:
        if failed.is_set():
            return oserror(errno.ECANCELED)
        try:
            return function(item)
        except OSError as error:
            failed.set()
            return error

    return each(attempt, items, width)


def each(function: Callable[[T], R], items: Iterable[T], width: int = WIDTH) -> list[R]:
    """The results for the items, in their order. The first error is raised when those under way have ended, and no
    further one is begun."""
    will_wait()
    work = list(items)
    results: dict[int, R] = {}
    errors: list[BaseException] = []
    numbers = iter(range(len(work)))
    guard = threading.Lock()

    def run() -> None:
        while not errors:
            with guard:
                number = next(numbers, None)
            if number is None:
                return
            try:
                results[number] = function(work[number])
            except BaseException as error:
                errors.append(error)

    threads = [
        # Budgets and the like travel in context variables.
        threading.Thread(target=copy_context().run, args=(run,), name="fusebackend-objects", daemon=True)
        for _ in range(min(width, len(work)) - 1)
    ]
    for thread in threads:
        thread.start()
    run()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[number] for number in range(len(work))]


class Fetchers:
    """Runs what it is given, in order, in up to `limit` threads, which end when there is nothing left. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._queue: deque[Callable[[], None]] = deque()
        self._threads = 0

    def submit(self, work: Callable[[], None]) -> bool:
        """Run `work`, which must not raise, some time. False for never: `close` was called, or there is no thread."""
        with self._lock:
            if self._threads < self._limit:
                with suppress(RuntimeError):  # the process has as many as it may
                    threading.Thread(target=self._run, name="fusebackend-fetch", daemon=True).start()
                    self._threads += 1
            if not self._limit or not self._threads:
                return False
            self._queue.append(work)
            return True

    def close(self) -> None:
        """Forget what has not begun; threads end when they are done, and are not waited for."""
        with self._lock:
            self._limit = 0
            self._queue.clear()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    self._threads -= 1
                    return
                work = self._queue.popleft()
            work()


class Gate:
    """Many may pass at once, or one alone. Not re-entrant.

    Each change in the remote passes; the rename of a directory goes alone, for a file stored below its old name
    meanwhile would be left behind. Reading passes no gate. It is held over requests, so never take it under a lock that
    readers need.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._passing = 0
        self._alone = False
        self._waiting = 0

    @contextmanager
    def passing(self) -> Iterator[None]:
        with self._changed:
            if self._alone or self._waiting:
                will_wait()
            self._changed.wait_for(lambda: not self._alone and not self._waiting)
            self._passing += 1
        try:
            yield
        finally:
            with self._changed:
                self._passing -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: not self._alone and not self._passing)
                self._alone = True
            finally:
                self._waiting -= 1
        try:
            yield
        finally:
            with self._changed:
                self._alone = False
                self._changed.notify_all()
