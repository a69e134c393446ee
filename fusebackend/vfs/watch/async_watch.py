"""`AsyncWatch`: the changes below a path as an async iterator, under asyncio and trio, of a mount here or elsewhere.

    async with files.awatch("/memories") as changes:
        async for change in changes:
            ...

One task iterates, any task of the same loop may close. A step that is cancelled ends the watch, so nothing is left
behind by a task that was.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol, Self

from fusebackend.protocol import FileEvent

if TYPE_CHECKING:
    from fusebackend.vfs.watch.feed import Watch


class ChangeSource(Protocol):
    """Where the changes come from: `RemoteWatch`, and `ThreadedWatch` in the server's own process."""

    async def aget(self) -> FileEvent | None:
        """The next change; None at the end."""

    def end(self) -> None:
        """Have an `aget` that waits return None."""

    def close(self) -> None:
        """Release it, when no `aget` waits."""


class AsyncWatch:
    """See the module's docstring.

    Args:
        source: where the changes come from; or a function that gives it, called when the block begins or with the first
            step.
    """

    def __init__(self, source: ChangeSource | Callable[[], Awaitable[ChangeSource]]) -> None:
        self._begin = source if callable(source) else None
        self._source: ChangeSource | None = None if callable(source) else source
        self._stepping = False
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
        self._stepping = True
        try:
            event = await source.aget()
        except BaseException:
            self._closed = True
            raise
        finally:
            self._stepping = False
            if self._closed:
                source.close()
        if event is None or self._closed:
            self.close()
            raise StopAsyncIteration
        return event

    def close(self) -> None:
        """End it; a step under way ends. Twice is once."""
        self._closed = True
        if self._source is not None:
            if self._stepping:
                self._source.end()
            else:
                self._source.close()

    async def aclose(self) -> None:
        """`close`, as `contextlib.aclosing` calls it."""
        self.close()

    def __del__(self) -> None:
        self.close()

    async def _begun(self) -> ChangeSource:
        if self._source is None:
            assert self._begin is not None
            self._source = await self._begin()
        return self._source


class ThreadedWatch:
    """A `Watch` of this process; a thread waits for each of its changes."""

    def __init__(self, owner: object, watch: Watch) -> None:
        self._owner = owner
        self._watch = watch

    async def aget(self) -> FileEvent | None:
        from fusebackend.base.awaiting import aside

        return await aside(self._owner, "watch", partial(_next, self._watch))

    def end(self) -> None:
        self._watch.close()

    def close(self) -> None:
        self._watch.close()


def _next(watch: Watch) -> FileEvent | None:
    from fusebackend.base import budget

    with budget.current().waking(watch.close):
        return watch.get()
