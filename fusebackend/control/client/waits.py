"""The two ways to wait for a socket: `BLOCKING`, this thread sleeps; `AWAITING`, this task does, under asyncio or trio.

A client's calls are written once, as coroutines that wait through one of these. With `BLOCKING` they never suspend, so
that `finished` can run them to their end in plain code.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Coroutine
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")


class _Blocking:
    """A timeout of None is for ever."""

    async def readable(self, stream: socket.socket, timeout_s: float | None) -> bool:
        """Return True if bytes, or the end, come within so many seconds."""
        return _is_ready(stream, select.POLLIN, timeout_s)

    async def writable(self, stream: socket.socket, timeout_s: float | None) -> bool:
        """Return True if bytes can be written within so many seconds."""
        return _is_ready(stream, select.POLLOUT, timeout_s)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class _Awaiting:
    async def readable(self, stream: socket.socket, timeout_s: float | None) -> bool:
        import anyio

        with anyio.move_on_after(timeout_s):
            await anyio.wait_readable(stream)
            return True
        return False

    async def writable(self, stream: socket.socket, timeout_s: float | None) -> bool:
        import anyio

        with anyio.move_on_after(timeout_s):
            await anyio.wait_writable(stream)
            return True
        return False

    async def sleep(self, seconds: float) -> None:
        import anyio

        await anyio.sleep(seconds)


Waits: TypeAlias = _Blocking | _Awaiting

BLOCKING, AWAITING = _Blocking(), _Awaiting()


def finished(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits through `BLOCKING` alone, and return or raise its outcome."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    work.close()
    raise AssertionError("a call that is to block has suspended")


def _is_ready(stream: socket.socket, event: int, timeout_s: float | None) -> bool:
    poll = select.poll()  # `select` knows no descriptor above 1023
    poll.register(stream, event)
    return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))
