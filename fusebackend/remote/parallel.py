"""`each`: one request for each of many items, several at a time; `attempted`, if one may fail.

In daemon threads that live as long as the call: those of a pool are waited for when Python ends, and a service that
hangs must not keep a server from ending.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterable, Sequence
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

    return each(attempt, items, width) if width > 1 else [attempt(item) for item in items]


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
        threading.Thread(target=run, name="fusebackend-objects", daemon=True) for _ in range(min(width, len(work)) - 1)
    ]
    for thread in threads:
        thread.start()
    run()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[number] for number in range(len(work))]
