"""`Pool`: a client's connections, one for each call while it lasts, kept for the next one.

A kept connection may be dead when it is used again: the server has ended, or has made room for others. A call that was
not sent is sent again over a new connection; so is a call that was sent, if it changes nothing. A call that may have
changed something is never repeated.

A call that is given up, by an exception or because its caller was cancelled, closes its connection, and so the server
cancels it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from fusebackend.base import budget, jitter
from fusebackend.control.client.client_connection import AnsweredError, Connection, NotSent, ServerLost, TurnedAway
from fusebackend.protocol import PLAIN, SERVED

MAX_IDLE = 16
"""Connections kept for the next call, or a few more."""

PATIENCE_S = 10.0
"""How long a server that has no room is asked again."""

Take = Callable[[Mapping[str, Any]], None]
T = TypeVar("T")


class Pool:
    """See the module's docstring. For any number of threads, and after a fork for both processes.

    Args:
        connect: makes a connection. Raises `ServerLost`.
    """

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        # Each step of a list is atomic. A lock that was held at a fork would never be released in the child.
        self._idle: list[Connection] = []

    def close(self) -> None:
        """Close the connections that are kept; for the next call there will be a new one."""
        while self._idle:
            with contextlib.suppress(IndexError):  # another thread has taken the last one
                self._idle.pop().close()

    @contextlib.contextmanager
    def begun(self, kind: type[T], verb: str, params: Mapping[str, Any]) -> Iterator[tuple[Connection, T]]:
        """`ask`, and its connection for further calls in the block."""
        connection, answer = self.ask(kind, verb, params)
        try:
            yield connection, answer
        except BaseException:
            connection.close()
            raise
        self.give_back(connection)

    def ask(
        self, kind: type[T], verb: str, params: Mapping[str, Any], take: Take | None = None
    ) -> tuple[Connection, T]:
        """Ask; returns the answer as `kind`, and the connection, which is the caller's until `give_back`.

        Raises:
            AnsweredError: the server answers with an error.
            ServerLost: it can't be reached, or is gone before it answered.
            NotImplementedError: the mounted backend can't do this.
        """
        deadline = time.monotonic() + PATIENCE_S
        while True:
            connection = self._borrow()
            try:
                return connection, connection.call(kind, verb, params, take)
            except (AnsweredError, NotImplementedError):
                self.give_back(connection)
                raise
            except TurnedAway:
                connection.close()
                if time.monotonic() > deadline or budget.current().cancelled:
                    raise
                time.sleep(jitter.between(0.0, 0.05))
            except BaseException as error:
                connection.close()
                if not _may_repeat(connection, verb, error):
                    raise
            self.close()  # the others that are kept are as old

    def _borrow(self) -> Connection:
        while self._idle:
            with contextlib.suppress(IndexError):  # another thread has taken the last one
                connection = self._idle.pop()
                if connection.process == os.getpid():
                    return connection
                connection.close()  # it is the parent's
        return self._connect()

    def give_back(self, connection: Connection) -> None:
        """Keep a connection whose call has ended, for the next one."""
        connection.used = True
        if len(self._idle) < MAX_IDLE:
            self._idle.append(connection)
        else:
            connection.close()


def _may_repeat(connection: Connection, verb: str, error: BaseException) -> bool:
    """Return True if a call that failed in this way may be made again. Only when it is the fault of a connection that
    had been kept."""
    if not connection.used or connection.hung or budget.current().cancelled or not isinstance(error, ServerLost):
        return False
    harmless = not (SERVED.get(verb, PLAIN).changes or verb == "execute" or connection.answering)
    return harmless or isinstance(error, NotSent)
