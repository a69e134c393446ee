"""`Sharing`: the shared state of one client's awaited calls in one loop, as long as there are any.

Commands go over one connection, all of them: a program that runs two hundred at a time has no thread and takes one of
the server's places for connections. Whichever of the calls comes first to wait reads for all of them; when it has its
own answer, another one goes on. Everything else has a connection for each call (`pool.py`), for the server carries out
short verbs of one connection in turn, and a route that hangs would hold up the others. Of those there are `MAX_CALLS`
at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import Any, TypeVar

import anyio
import sniffio
import trio

from fusebackend.base import jitter
from fusebackend.base.awaiting import GRACE_S
from fusebackend.control import wire
from fusebackend.control.client.client_connection import Connection, ServerLost, TurnedAway
from fusebackend.control.client.pool import PATIENCE_S, Pool
from fusebackend.control.client.waits import AWAITING
from fusebackend.control.wire import Incoming

MAX_CALLS = 32
"""Verbs of one client that are awaited at once, commands apart. Others wait in order, and have not begun."""

MAX_COMMANDS = 256
"""Commands over one connection at once (`serving.MAX_COMMANDS`). Others wait in order."""

T = TypeVar("T")


def running_loop() -> object:
    """The loop that this runs in."""
    if sniffio.current_async_library() == "trio":
        return trio.lowlevel.current_trio_token()
    return asyncio.get_running_loop()


class Sharing:
    """See the module's docstring. Belongs to one loop.

    Attributes:
        users: how many calls there are now.
    """

    def __init__(self, pool: Pool) -> None:
        self.users = 0
        self.places = anyio.Semaphore(MAX_CALLS)
        self._commands = anyio.Semaphore(MAX_COMMANDS)
        self._pool = pool
        self._connecting = anyio.Lock()
        self._line: _SharedConnection | None = None

    async def command(self, kind: type[T], verb: str, params: Mapping[str, Any]) -> T:
        """`Pool.call` of a command. A cancelled one is killed; a call that waits for its turn is never sent."""
        deadline = time.monotonic() + PATIENCE_S
        async with self._commands:
            while True:
                line = await self._shared()
                try:
                    return await line.call(kind, verb, params)
                except TurnedAway:
                    if time.monotonic() > deadline:
                        raise
                await anyio.sleep(jitter.between(0.0, 0.05))

    def close(self) -> None:
        if self._line is not None:
            self._line.close()

    async def _shared(self) -> _SharedConnection:
        async with self._connecting:
            if self._line is None or self._line.failure is not None:
                self._line = _SharedConnection(await self._pool.connect(AWAITING))
            return self._line


class _Answer:
    """One call that waits."""

    def __init__(self) -> None:
        self.message: Incoming | None = None
        self.turn = anyio.Event()  # the message is there, or it is this call's turn to read


class _SharedConnection:
    """A connection with many calls under way.

    Attributes:
        failure: why there will be no more answers.
    """

    def __init__(self, connection: Connection) -> None:
        self.failure: ServerLost | None = None
        self._connection = connection
        self._answers: dict[wire.CallId, _Answer] = {}
        self._unsent = bytearray()  # whole messages, of which the server may have the beginning
        self._sending = anyio.Lock()
        self._reading = False

    def close(self) -> None:
        self._connection.close()

    async def call(self, kind: type[T], verb: str, params: Mapping[str, Any]) -> T:
        number, line = self._connection.numbered(verb, params)
        answer = self._answers[number] = _Answer()
        try:
            self._unsent += line
            await self._send()
            message = await self._receive(answer)
        except anyio.get_cancelled_exc_class():
            self._unsent += wire.encode({"jsonrpc": "2.0", "method": "cancel", "params": {"call": number}})
            del self._unsent[: self._connection.send_now(self._unsent)]
            with anyio.move_on_after(GRACE_S, shield=True), contextlib.suppress(ServerLost):
                await self._receive(answer)  # its command has ended then
            raise
        finally:
            del self._answers[number]
            self._pass_on()
        return self._connection.result(kind, message)

    async def _send(self) -> None:
        try:
            async with self._sending:
                while self._unsent:
                    del self._unsent[: await self._connection.send(AWAITING, self._unsent)]
        except ServerLost as error:
            self._fail(error)

    async def _receive(self, answer: _Answer) -> Incoming:
        while answer.message is None:
            if self.failure is not None:
                raise type(self.failure)(str(self.failure))
            if self._reading:
                answer.turn = anyio.Event()
                await answer.turn.wait()
                continue
            self._reading = True
            try:
                self._take(await self._connection.next(AWAITING))
            except ServerLost as error:
                self._fail(error)
            finally:
                self._reading = False
        return answer.message

    def _take(self, message: Incoming) -> None:
        if message.id is None and message.error is not None:
            self._fail(_refusal(self._connection, message))
        found = self._answers.get(message.id)  # None: it was cancelled
        if found is not None and message.method is None:
            found.message = message
            found.turn.set()

    def _fail(self, error: ServerLost) -> None:
        self.failure = self.failure or error
        for answer in self._answers.values():
            answer.turn.set()

    def _pass_on(self) -> None:
        """Make one of the waiting calls read, if none does."""
        waiting = (answer for answer in self._answers.values() if answer.message is None)
        following = None if self._reading else next(waiting, None)
        if following is not None:
            following.turn.set()


def _refusal(connection: Connection, message: Incoming) -> ServerLost:
    """Take a message about the whole connection."""
    try:
        connection.result(object, message)
    except ServerLost as error:
        return error
    except Exception as error:
        return ServerLost(f"the server of '{connection.mountpoint}' ended the connection: {error}")
    raise AssertionError("an error is no result")
