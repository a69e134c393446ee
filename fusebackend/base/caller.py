"""`AwaitingTask`: the task that awaits this thread (`awaiting.aside`), for backends whose verbs are coroutines.

    if caller.library() == "asyncio":
        answer = caller.awaited(lambda: backend.aread(path))

It travels in a context variable, as a budget does. Such a verb then runs in its caller's own loop, where the backend's
connections live, and is cancelled when the task is.
"""

from __future__ import annotations

import contextvars
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class CallerGone(BaseException):
    """The task that awaited this call was cancelled. It passes through all that takes errors for answers."""


class AwaitingTask(Protocol):
    """See the module's docstring."""

    library: str

    def ask(self, call: Callable[[], Awaitable[T]]) -> T:
        """Have the task's loop await something. Raises `CallerGone`."""


current: contextvars.ContextVar[AwaitingTask | None] = contextvars.ContextVar("fusebackend_caller", default=None)


def library() -> str | None:
    """Return the library of the loop that waits for this thread, `asyncio` or `trio`; None when none does."""
    caller = current.get()
    return None if caller is None else caller.library


def awaited(call: Callable[[], Awaitable[T]]) -> T:
    """Have the task that waits for this thread await something.

    Raises:
        CallerGone: it was cancelled.
    """
    caller = current.get()
    assert caller is not None, "no task waits for this thread"
    return caller.ask(call)
