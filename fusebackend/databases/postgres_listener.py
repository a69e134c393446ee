"""`Listener`: a thread and a connection on which PostgreSQL tells of what others have done (LISTEN and NOTIFY).

While the connection is lost nothing is told, and when it is back anything may have happened; who listens is told of
both. It is made again at once, and then with longer and longer pauses, no two of them alike, so that a thousand hosts
do not all come back to a server at the same moment. A connection on which nothing is heard is asked from time to time
whether it lives; one that does not answer is as good as lost.
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

if TYPE_CHECKING:
    from psycopg import Connection

log = logging.getLogger(__name__)

PING_S = 5.0
"""How often a silent connection is asked whether it is alive, and how long it has for the answer."""

CONNECT_S = 10
RETRY_S = (0.0, 0.25, 0.5, 1.0, 2.0, 5.0)
"""How long to wait before each attempt to connect again; the last one goes on. Half of it is left to chance."""


class Hearer(Protocol):
    """Who listens. All is called in the listener's thread."""

    def prepare(self, connection: Connection[Any]) -> None:
        """A new connection is about to listen; it may be asked something first. Errors end it."""

    def heard(self, payload: str) -> None:
        """A notice has come."""

    def lost(self, error: BaseException) -> None:
        """The connection is: nothing is told until `back`. Called once for each loss."""

    def back(self) -> None:
        """There is a connection again, and it listens: what happens from now on is told."""


class Listener:
    """See the module's docstring.

    Attributes:
        live: every notice since it became so has been, or will at once be told.

    Raises:
        psycopg.Error: there is no connection; it is made before the constructor returns.
    """

    def __init__(self, conninfo: str, channel: str, hearer: Hearer, *, name: str) -> None:
        self._conninfo = conninfo
        self._channel = channel
        self._hearer = hearer
        self._name = name
        self._ended = False
        self._early: deque[str] = deque()  # heard together with the answer to LISTEN
        connection = self._connect()
        self.live = True
        self._wake, self._waking = socket.socketpair()
        self._thread = threading.Thread(target=self._run, args=[connection], name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening. Twice is once."""
        if self._ended:
            return
        self._waking.send(b"x")  # before the thread can know, for it closes this at its end
        self._ended = True
        if self._thread is not threading.current_thread():  # as when it collects the garbage that this has become
            self._thread.join()

    def _connect(self) -> Connection[Any]:
        import psycopg

        options: dict[str, Any] = {"application_name": self._name, "connect_timeout": CONNECT_S}
        connection = psycopg.connect(self._conninfo, autocommit=True, **options)
        try:
            self._hearer.prepare(connection)
            self._early.clear()
            connection.add_notify_handler(lambda notice: self._early.append(notice.payload))
            connection.execute(f"LISTEN {self._channel}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _run(self, connection: Connection[Any] | None) -> None:
        import psycopg

        attempts = 0
        while not self._ended:
            try:
                if connection is None:
                    connection = self._connect()
                    attempts = 0
                    self.live = True
                    self._hearer.back()
                self._listen(connection)
            except (psycopg.Error, OSError) as error:
                _close(connection)
                connection = None
                if self.live:
                    self.live = False
                    self._hearer.lost(error)
                self._pause(attempts)
                attempts += 1
        _close(connection)
        self._wake.close()
        self._waking.close()

    def _pause(self, attempts: int) -> None:
        seconds = RETRY_S[min(attempts, len(RETRY_S) - 1)]
        select.select([self._wake], [], [], random.uniform(seconds / 2, seconds))

    def _listen(self, connection: Connection[Any]) -> None:
        """Until the end, or the connection's.

        In libpq's own words, for it must not wait for the answer of a server that does not answer any more.
        """
        pg = connection.pgconn
        asked_at: float | None = None
        heard_at = time.monotonic()
        encoding = connection.info.encoding
        while not self._ended:
            while self._early:
                self._hearer.heard(self._early.popleft())
            for notice in iter(pg.notifies, None):
                self._hearer.heard(notice.extra.decode(encoding, "replace"))
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
