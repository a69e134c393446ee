"""`SearchQueries`: the queries of searches, on the volume's own connections, each ended when its budget is.

A search may take seconds, so only a few have a connection at a time, and the rest of the volume keeps the others. While
the server works on a query, a thread asks the budget, and has the server cancel what nobody waits for any more.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fusebackend.base import budget
from fusebackend.base.budget import Budget

if TYPE_CHECKING:
    from psycopg import Connection

    from fusebackend.backends.postgres.connections import Connections

log = logging.getLogger(__name__)

QUERIES_AT_ONCE = 4
"""Of the connections of a volume, searches have so many at most."""

POLL_S = 0.05
"""How long a cancelled search goes on."""

CANCEL_S = 2.0
"""How long the server may take to hear of it."""

STALL_S = 4.0
"""How long it may take to do so: a connection that still says nothing is cut."""

IDLE_S = 1.0
"""How long the watching thread stays when there is nothing to watch."""


class Watch:
    """Ends what connections are doing when nobody has a budget for it any more. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[Connection[Any], Budget] = {}
        self._spent: dict[Connection[Any], float] = {}  # since when
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def over(self, connection: Connection[Any], left: Budget) -> Iterator[None]:
        """Around a query. At the end of it no cancelling is on its way to the server."""
        with self._lock:
            self._running[connection] = left
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="fusebackend-search", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                del self._running[connection]
                self._spent.pop(connection, None)

    def _run(self) -> None:
        idle_since = time.monotonic()
        while True:
            time.sleep(POLL_S)
            with self._lock:
                if self._running:
                    idle_since = time.monotonic()
                elif time.monotonic() - idle_since > IDLE_S:
                    self._thread = None
                    return
                for connection, left in self._running.items():
                    if left.spent:
                        self._end(connection)

    def _end(self, connection: Connection[Any]) -> None:
        """A cancelling may come before the query does, and do nothing: it is done again as long as the query runs."""
        import psycopg

        now = time.monotonic()
        try:
            if now - self._spent.setdefault(connection, now) < STALL_S:
                connection.cancel_safe(timeout=CANCEL_S)
            else:
                # Who waits for it is woken by that, and finds the server gone.
                with socket.socket(fileno=os.dup(connection.fileno())) as same:
                    same.shutdown(socket.SHUT_RDWR)
        except (psycopg.Error, OSError) as error:
            log.info("a search that is over can't be ended yet: %s", error)


class SearchQueries:
    """See the module's docstring. Any thread may call any method.

    Args:
        volume: the volume's id in its tables.
        indexed: the index can be used (`index_schema.make_index`).
    """

    def __init__(self, connections: Connections, volume: int, *, indexed: bool) -> None:
        self._connections = connections
        self._volume = volume
        self.indexed = indexed
        self._places = threading.BoundedSemaphore(QUERIES_AT_ONCE)
        self._watch = Watch()

    def rows(self, query: str, **parameters: object) -> list[tuple[Any, ...]]:
        """The rows of one statement, which is one moment of the volume; `%(volume)s` is the volume's id.

        Raises:
            Spent: the budget of the search that is going on here ended before the server had them all.
            OSError: as `Connections.run`.
        """
        left = budget.current()
        while not self._places.acquire(timeout=POLL_S):
            left.require()
        try:
            left.require()
            given = {"volume": self._volume, **parameters}
            return self._connections.run(lambda connection: self._rows(connection, left, query, given))
        finally:
            self._places.release()

    def _rows(
        self, connection: Connection[Any], left: Budget, query: str, parameters: Mapping[str, object]
    ) -> list[tuple[Any, ...]]:
        from psycopg import OperationalError

        try:
            with self._watch.over(connection, left):
                # Planned each time, for what is sought: a pattern of one letter has another plan than a long one.
                return connection.execute(query, parameters, prepare=False, binary=True).fetchall()
        except OperationalError:  # cancelled, or cut
            left.require()
            raise
