"""`RemoteWatch`: the changes that a server tells a client of, one after the other."""

from __future__ import annotations

import threading
from typing import Any

import msgspec

from fusebackend.control import wire
from fusebackend.control.client.client_connection import Connection, ServerLost
from fusebackend.control.client.waits import AWAITING, BLOCKING, Waits, finished
from fusebackend.protocol import FileEvent


class RemoteWatch:
    """An iterator of `FileEvent`s like `vfs.feed.Watch`, over a connection that has subscribed to them, and is its own
    from now on."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._closed = threading.Event()

    def close(self) -> None:
        """End it, from any thread; an iteration under way ends."""
        self._closed.set()
        self._connection.close()

    def end(self) -> None:
        """Have a step that is awaited come to its end, which is followed by `close`. A loop would not notice that a
        descriptor which it watches is closed (epoll(7))."""
        self._closed.set()
        self._connection.hang_up()

    def __enter__(self) -> RemoteWatch:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __iter__(self) -> RemoteWatch:
        return self

    def __next__(self) -> FileEvent:
        event = self.get()
        if event is None:
            raise StopIteration
        return event

    def get(self, timeout_s: float | None = None) -> FileEvent | None:
        """The next change; None when none came in time, or the watch is closed.

        Raises:
            ServerLost: the server has ended.
        """
        return finished(self._next(BLOCKING, timeout_s))

    async def aget(self) -> FileEvent | None:
        """`get`, awaited."""
        return await self._next(AWAITING, None)

    async def _next(self, waits: Waits, timeout_s: float | None) -> FileEvent | None:
        while not self._closed.is_set():
            try:
                if not await self._connection.waiting(waits, timeout_s):
                    return None
                message = await self._connection.next(waits)
            except (OSError, ValueError) as error:  # closing from another thread shows as any of these
                if self._closed.is_set():
                    return None
                if not isinstance(error, ServerLost):
                    raise
                raise ServerLost(f"the server of '{self._connection.mountpoint}' has ended") from None
            if message.error is not None:
                raise ServerLost(
                    f"the server of '{self._connection.mountpoint}' tells of no more changes: {message.error.message}"
                )
            if message.method == "change" and message.params is not msgspec.UNSET:
                params: dict[str, Any] = wire.decode_any(message.params)
                return wire.convert(params["event"], FileEvent)
        return None
