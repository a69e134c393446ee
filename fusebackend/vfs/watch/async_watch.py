"""`AsyncWatch`: the changes below a path as an async iterator, under asyncio and trio, of a mount here or elsewhere.

    async with files.awatch("/memories") as changes:
        async for change in changes:
            ...

One task iterates, any task of the same loop may close. A step that is cancelled ends the watch, so nothing is left
behind by a task that was.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Self, TypeVar

from fusebackend.base import budget
from fusebackend.protocol import EventSequence, FileEvent

T = TypeVar("T")


class AsyncWatch:
    """See the module's docstring. A thread waits for each change.

    Args:
        source: where the changes come from; or a function that gives it, called when the block begins or with the first
            step.
    """

    def __init__(self, source: EventSequence | Callable[[], EventSequence]) -> None:
        self._begin = source if callable(source) else None
        self._source = None if callable(source) else source
        self._closed = False

    async def __aenter__(self) -> Self:
        await self._begun()
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> FileEvent:
        if self._closed:
            raise StopAsyncIteration
        source = await self._begun()
        event = await self._aside("step", partial(_next, source))
        if event is None or self._closed:
            self.close()
            raise StopAsyncIteration
        return event

    def close(self) -> None:
        """End it; a step under way ends. Twice is once."""
        self._closed = True
        if self._source is not None:
            self._source.close()

    async def aclose(self) -> None:
        """`close`, as `contextlib.aclosing` calls it."""
        self.close()

    def __del__(self) -> None:
        self.close()

    async def _begun(self) -> EventSequence:
        if self._source is None:
            self._source = await self._aside("begin", self._open)
        return self._source

    def _open(self) -> EventSequence:
        assert self._begin is not None
        source = self._begin()
        if budget.current().cancelled:  # nobody takes it any more
            source.close()
        return source

    async def _aside(self, step: str, call: Callable[[], T]) -> T:
        """Do a step in a thread. One that fails, or is cancelled, ends the watch."""
        from fusebackend.base.awaiting import aside

        try:
            return await aside(self, step, call)
        except BaseException:
            self.close()
            raise


def _next(source: EventSequence) -> FileEvent | None:
    with budget.current().waking(source.close):
        return source.get()
