"""`Gate`: many may pass at once, or one alone.

Each change in the remote passes; the rename of a directory goes alone, for a file stored below its old name meanwhile
would be left behind. Reading passes no gate. It is held over requests, so never take it under a lock that readers need.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from fusebackend.base.waiting import will_wait

_NOTHING = nullcontext()


class Gate:
    """Not re-entrant. Where the volume's lock is held anyway (`needed` is false) everything passes.

    Args:
        needed: calls may run at the same time.
    """

    def __init__(self, *, needed: bool = True) -> None:
        self._needed = needed
        self._changed = threading.Condition()
        self._passing = 0
        self._alone = False
        self._waiting = 0

    def passing(self) -> AbstractContextManager[None]:
        return self._passes() if self._needed else _NOTHING

    def alone(self) -> AbstractContextManager[None]:
        return self._goes_alone() if self._needed else _NOTHING

    @contextmanager
    def _passes(self) -> Iterator[None]:
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
    def _goes_alone(self) -> Iterator[None]:
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
