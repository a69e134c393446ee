"""`SearchQueries`: the queries of searches, on the volume's own connections, each ended when its budget is.

A search may take seconds, so only a few have a connection at a time, and the rest of the volume keeps the others. While
the server works on a query, a thread asks the budget, and has the server cancel what nobody waits for any more.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fusebackend import budget
from fusebackend.budget import Budget

if TYPE_CHECKING:
    from psycopg import Connection

    from fusebackend.backends.postgres.connections import Connections

QUERIES_AT_ONCE = 4
"""Of the connections of a volume, searches have so many at most."""

POLL_S = 0.05
"""How long a cancelled search goes on."""

CANCEL_S = 5.0
"""How long the server may take to hear of it."""


class SearchQueries:
    """See the module's docstring. Any thread may call any method.

    Args:
        volume: the volume's id in its tables.
        indexed: the index can be used (`searchschema.make_index`).
    """

    def __init__(self, connections: Connections, volume: int, *, indexed: bool) -> None:
        self._connections = connections
        self._volume = volume
        self.indexed = indexed
        self._places = threading.BoundedSemaphore(QUERIES_AT_ONCE)

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
            return self._connections.run(lambda connection: _ended_with(left, connection, query, given))
        finally:
            self._places.release()


def _ended_with(
    left: Budget, connection: Connection[Any], query: str, parameters: Mapping[str, object]
) -> list[tuple[Any, ...]]:
    from psycopg.errors import QueryCanceled

    try:
        with _cancelling(left, connection):
            # Planned each time, for what is sought: a pattern of one letter has another plan than a long one.
            return connection.execute(query, parameters, prepare=False, binary=True).fetchall()
    except QueryCanceled:
        left.require()
        raise


@contextlib.contextmanager
def _cancelling(left: Budget, connection: Connection[Any]) -> Iterator[None]:
    """Cancel what the connection does once the budget is spent. At the end nothing is on its way to the server."""
    done = threading.Event()
    watch = threading.Thread(target=_watch, args=(left, connection, done), name="fusebackend-search", daemon=True)
    watch.start()
    try:
        yield
    finally:
        done.set()
        watch.join()


def _watch(left: Budget, connection: Connection[Any], done: threading.Event) -> None:
    import psycopg

    while not done.wait(POLL_S):
        if left.spent:
            # One that comes before the query does nothing, so it is asked again.
            with contextlib.suppress(psycopg.Error):
                connection.cancel_safe(timeout=CANCEL_S)
