"""`Budget`: how long a search may still go on, and whether it was called off.

It travels in a context variable, so it reaches every backend of a composite, through foreign code and into the worker
threads of `anyio.to_thread`, without being an argument of anything:

    with budget.limited(2.0, cancelled=event):
        backend.grep("needle")

`grep` and `glob` ask it for every directory, file and megabyte. When it is spent they stop with the matches so far and
say `truncated` (`GlobResult.truncation_reason` is `budget`). A search without a limit has `SEARCH_S`. A foreign backend
can't be stopped from outside, so the call waits for it; a composite then asks no other.

A server of many callers adds a budget of memory, and turns (`Host`): a search counts the memory that it keeps (`hold`),
and lets others go first (`rest`).

A `Cancellation` is the event to give it. A command asks nothing while it runs, so it has itself woken (`waking`) and is
killed at once; a verb that has not begun to change a backend is not begun any more (`dialects/agent_face.py`).
"""

from __future__ import annotations

import contextlib
import contextvars
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from fusebackend.base.context import during

SEARCH_S = 15.0
"""Seconds for one `grep` or `glob` without a limit (as deepagents 0.7)."""

COUNTED_BYTES = 32 << 10
"""Memory is counted in steps of so much."""

ENTRY_BYTES = 600
"""Memory of a record of a file, with its strings, besides its path."""

T = TypeVar("T")


class Spent(Exception):
    """The budget is spent. Raised inside of a search and caught by the verb that began it."""


class Host(Protocol):
    """Gives memory and processor time to a call among many others (`control/server/limiter.py`)."""

    def hold(self, size: int) -> None:
        """The call keeps so many bytes more; less if negative. Raises `Spent` when it can't have them."""

    def rest(self) -> None:
        """Let other calls go first for a while, if need be."""


class Cancellation(threading.Event):
    """Set when the caller no longer waits. Unlike an `Event`, it also wakes threads that sleep in `select` or `recv`: a
    command would outlive its caller by as long as it is silent."""

    def __init__(self) -> None:
        super().__init__()
        self._guard = threading.Lock()
        self._wakers: list[Callable[[], object]] = []

    def set(self) -> None:
        with self._guard:
            super().set()
            for wake in self._wakers:
                wake()

    @contextlib.contextmanager
    def waking(self, wake: Callable[[], object]) -> Iterator[None]:
        """For the length of a block, have `wake` called when this is set, or now if it is. It must not wait."""
        with self._guard:
            self._wakers.append(wake)
            if self.is_set():
                wake()
        try:
            yield
        finally:
            with self._guard:
                self._wakers.remove(wake)


class Budget:
    """A moment in time, and the events that call the search off earlier. Never changes; may be asked by any thread.

    Attributes:
        timed: the limit was set by a caller, even if it is infinite.
    """

    __slots__ = ("_cancelled", "_deadline_s", "_host", "timed")

    def __init__(
        self,
        deadline_s: float | None = None,
        cancelled: tuple[threading.Event, ...] = (),
        host: Host | None = None,
    ) -> None:
        self.timed = deadline_s is not None
        self._deadline_s = math.inf if deadline_s is None else deadline_s  # of `time.monotonic`
        self._cancelled = cancelled
        self._host = host

    @property
    def cancelled(self) -> bool:
        """Return True if it was cancelled."""
        return any(event.is_set() for event in self._cancelled)

    @contextlib.contextmanager
    def waking(self, wake: Callable[[], object]) -> Iterator[None]:
        """`Cancellation.waking` of the caller's cancellation."""
        with contextlib.ExitStack() as stack:
            for event in self._cancelled:
                if isinstance(event, Cancellation):
                    stack.enter_context(event.waking(wake))
            yield

    @property
    def left_s(self) -> float:
        """Seconds until it is spent, 0 when it is, infinite without a limit."""
        if self.cancelled:
            return 0.0
        return max(0.0, self._deadline_s - time.monotonic())

    @property
    def spent(self) -> bool:
        return self.left_s == 0.0

    def require(self) -> None:
        """Raise `Spent` when it is."""
        if self.spent:
            raise Spent

    def metered(self, pieces: Iterable[T]) -> Iterator[T]:
        """The pieces, as long as there is budget for them."""
        for piece in pieces:
            self.require()
            yield piece

    def hold(self, size: int) -> None:
        """So many bytes more are kept for the answer, or less if negative; raises `Spent` when that is too much."""
        if self._host is not None:
            self._host.hold(size)

    def rest(self) -> None:
        """Let others go first for a while, if need be. Called where no lock is held."""
        if self._host is not None:
            self._host.rest()

    def kept(self, pieces: Iterable[T], size: Callable[[T], int]) -> Iterator[T]:
        """The pieces, each of which is kept and has a size; they are counted a few at a time."""
        if self._host is None:
            yield from pieces
            return
        waiting = 0
        for piece in pieces:
            waiting += size(piece)
            if waiting >= COUNTED_BYTES:
                self.hold(waiting)
                waiting = 0
            yield piece
        self.hold(waiting)

    def within(
        self, seconds: float | None, cancelled: threading.Event | None = None, host: Host | None = None
    ) -> Budget:
        """The tighter of this and another one."""
        events = self._cancelled if cancelled is None else (*self._cancelled, cancelled)
        host = host or self._host
        if seconds is None:
            return Budget(self._deadline_s if self.timed else None, events, host)
        return Budget(min(self._deadline_s, time.monotonic() + seconds), events, host)


_current: contextvars.ContextVar[Budget] = contextvars.ContextVar("fusebackend_budget", default=Budget())  # noqa: B039


def current() -> Budget:
    """The budget of the search that is going on here."""
    return _current.get()


def limited(
    seconds: float | None, cancelled: threading.Event | None = None, host: Host | None = None
) -> contextlib.AbstractContextManager[Budget]:
    """Give what is done inside at most so many seconds, and less if `cancelled` is set meanwhile.

    Inside of another budget the tighter one holds. None says nothing about time, so that `SEARCH_S` is left in force;
    `math.inf` says that there is no limit.
    """
    return during(_current, _current.get().within(seconds, cancelled, host))


def ending_with(other: Budget) -> contextlib.AbstractContextManager[Budget]:
    """Have what is done inside end when another call is cancelled. Its memory and time are not that call's."""
    return during(_current, Budget(cancelled=other._cancelled))


def granted(seconds: float = SEARCH_S) -> contextlib.AbstractContextManager[Budget]:
    """The budget of the caller; so many seconds where it says nothing about time."""
    return limited(None if _current.get().timed else seconds)
