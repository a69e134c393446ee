"""`Listener`: a thread and a connection that receive PostgreSQL's notifications (LISTEN and NOTIFY).

While the connection is lost no notification arrives, and after it anything may have changed; the receiver is called at
both moments. The listener connects again at once, and then after longer and longer random pauses, so that a thousand
hosts do not come back to a server at the same moment. A silent connection is probed every `PING_S`; without an answer
it counts as lost.
"""

from __future__ import annotations

import contextlib
import logging
import random
import select
import socket
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from fusebackend.databases.postgres import connect

if TYPE_CHECKING:
    from psycopg import Connection

log = logging.getLogger(__name__)

PING_S = 5.0
"""How often a silent connection is probed, and how long the server has for the answer."""

RETRY_S = (0.0, 0.25, 0.5, 1.0, 2.0, 5.0)
"""Pauses before the attempts to connect again; the last one repeats. Each is shortened at random, by half at most."""


class Receiver(Protocol):
    """The callbacks of a listener, all called in its thread."""

    def prepare(self, connection: Connection[Any]) -> None:
        """A new connection is about to listen, and may be queried first. An error closes it."""

    def heard(self, payload: str) -> None:
        """A notification has arrived."""

    def lost(self, error: BaseException) -> None:
        """The connection is lost: no notification arrives until `back`. Called once for each loss."""

    def back(self) -> None:
        """There is a connection again, and it listens."""


class Listener:
    """See the module's docstring.

    Attributes:
        live: no notification since it became true is missing.

    Raises:
        psycopg.Error: the constructor connects, and that failed.
    """

    def __init__(self, conninfo: str, channel: str, receiver: Receiver, *, name: str) -> None:
        self._conninfo = conninfo
        self._channel = channel
        self._receiver = receiver
        self._name = name
        self._ended = False
        self._early: deque[str] = deque()  # arrived together with the answer to LISTEN
        connection = self._connect()
        self.live = True
        self._wake, self._waking = socket.socketpair()
        self._thread = threading.Thread(target=self._run, args=[connection], name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening. Twice is once."""
        if self._ended:
            return
        self._waking.send(b"x")  # first: the thread closes this socket when it ends
        self._ended = True
        if self._thread is not threading.current_thread():  # the garbage collector may run this in it
            self._thread.join()

    def _connect(self) -> Connection[Any]:
        return connect(self._conninfo, self._set_up, application_name=self._name)

    def _set_up(self, connection: Connection[Any]) -> None:
        self._receiver.prepare(connection)
        self._early.clear()
        connection.add_notify_handler(lambda notice: self._early.append(notice.payload))
        connection.execute(f"LISTEN {self._channel}")

    def _run(self, connection: Connection[Any] | None) -> None:
        import psycopg

        attempts = 0
        while not self._ended:
            try:
                if connection is None:
                    connection = self._connect()
                    attempts = 0
                    self.live = True
                    self._receiver.back()
                self._listen(connection)
            except (psycopg.Error, OSError) as error:
                _close(connection)
                connection = None
                if self.live:
                    self.live = False
                    self._receiver.lost(error)
                self._pause(attempts)
                attempts += 1
        _close(connection)
        self._wake.close()
        self._waking.close()

    def _pause(self, attempts: int) -> None:
        seconds = RETRY_S[min(attempts, len(RETRY_S) - 1)]
        select.select([self._wake], [], [], random.uniform(seconds / 2, seconds))

    def _listen(self, connection: Connection[Any]) -> None:
        """Receive until `close` or an error. Calls libpq directly: psycopg would wait for a silent server."""
        pg = connection.pgconn
        asked_at: float | None = None
        heard_at = time.monotonic()
        encoding = connection.info.encoding
        while not self._ended:
            while self._early:
                self._receiver.heard(self._early.popleft())
            for notice in iter(pg.notifies, None):
                self._receiver.heard(notice.extra.decode(encoding, "replace"))
            silent_s = time.monotonic() - (heard_at if asked_at is None else asked_at)
            if silent_s >= PING_S:
                if asked_at is not None:
                    raise TimeoutError(f"the server has not answered for {PING_S:g} s")
                pg.send_query(b"SELECT 1")
                pg.flush()
                asked_at, silent_s = time.monotonic(), 0.0
            readable: list[Any] = [self._wake, pg.socket]
            if pg.socket not in select.select(readable, [], [], PING_S - silent_s)[0]:
                continue
            pg.consume_input()
            heard_at = time.monotonic()
            while asked_at is not None and not pg.is_busy():
                if pg.get_result() is None:
                    asked_at = None


def _close(connection: Connection[Any] | None) -> None:
    if connection is not None:
        with contextlib.suppress(Exception):  # it is lost anyway
            connection.close()
