"""`Connections`: the connections of one volume to its database, and the one place where work is done once more.

A connection that turns out to be dead, as after a restart of the server, costs its user nothing where nothing can have
happened: the work is repeated on another one, for `PATIENCE_S` at the most. So is a transaction that the server gave up
for another's sake. Whoever sends a commit and hears nothing of it says so himself (`transaction.py`).
"""

from __future__ import annotations

import contextlib
import errno
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from fusebackend.backends.postgres.batch import Rows, rollback, send
from fusebackend.base.errors import oserror
from fusebackend.databases.postgres_errors import REPEATABLE, is_lost, told

if TYPE_CHECKING:
    from psycopg import Connection

CONNECTIONS = 16
"""Operations that run at once. A mount may ask for four times as many; a server takes 100 from all hosts together."""

CONNECT_S = 10
PATIENCE_S = 5.0
"""How long a server may be away before an operation fails."""

BUSY_S = 25
"""How long an operation waits for those that have the connections, of which none takes longer (`batch.STALL_S`)."""

LOCK_S = 10
"""How long a change waits for another one, of any host, before it fails with EBUSY."""

IDLE_S = 30
"""A host that says nothing for so long in the middle of a change has its locks taken away."""

ATTEMPTS = 20
"""So often a transaction is begun that the server gives up for another's sake."""

SETTINGS = {
    # Without it a server that crashes between a change and its `fsync` forgets the change, and confirms the `fsync`
    # after its restart (seen in tests/mounted/test_service_faults.py).
    "synchronous_commit": "on",
    "jit": "off",
    "lock_timeout": f"{LOCK_S}s",
    "idle_in_transaction_session_timeout": f"{IDLE_S}s",
    "client_encoding": "UTF8",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
}

T = TypeVar("T")


class Connections:
    """See the module's docstring. Any thread may call any method."""

    def __init__(self, conninfo: str, size: int = CONNECTIONS) -> None:
        """Connects once, to say at once if that can't be done.

        Raises:
            OSError: the server's words, in one line.
        """
        import psycopg
        from psycopg_pool import ConnectionPool

        self.conninfo = conninfo
        self._places = threading.BoundedSemaphore(size)
        self._broken: tuple[type[Exception], ...] = (psycopg.OperationalError, psycopg.InterfaceError)
        with told():
            psycopg.connect(conninfo, connect_timeout=CONNECT_S).close()  # a pool would not say why
            self._pool: Any = ConnectionPool(
                conninfo,
                min_size=1,
                max_size=size,
                timeout=PATIENCE_S,
                reconnect_timeout=PATIENCE_S,  # then it is tried anew when somebody asks: its own pauses double
                kwargs={"autocommit": True, "prepare_threshold": None, "connect_timeout": CONNECT_S},
                configure=configure,
                open=True,
            )

    def query(self, query: str, parameters: Sequence[object]) -> Rows:
        """The rows that one statement gives, which may be made twice."""
        return self.run(lambda connection: send(connection, [(query, parameters)])[0])

    def run(self, work: Callable[[Connection[Any]], T]) -> T:
        """What `work` makes with a connection. It is called again where nothing of what it did can have happened.

        Raises:
            OSError: what the server says, or EIO when it can't be reached.
        """
        with self._place():
            connection, result = self._begin(work)
            self._give_back(connection)
            return result

    @contextlib.contextmanager
    def leased(self, begin: Callable[[Connection[Any]], object]) -> Iterator[Connection[Any]]:
        """A connection for a transaction of several calls, which `begin` begins; errors as of `run`."""
        with self._place():
            connection, _ = self._begin(begin)
            try:
                yield connection
            finally:
                self._give_back(connection)

    @contextlib.contextmanager
    def _place(self) -> Iterator[None]:
        """Wait until a connection is not used: the pool can't tell that from a server that is away."""
        if not self._places.acquire(timeout=BUSY_S):
            raise OSError(errno.ETIMEDOUT, f"PostgreSQL: all connections have been busy for {BUSY_S} s")
        try:
            yield
        finally:
            self._places.release()

    def _begin(self, work: Callable[[Connection[Any]], T]) -> tuple[Connection[Any], T]:
        with told():
            deadline = time.monotonic() + PATIENCE_S
            attempts = 0
            while True:
                connection = self._pool.getconn(max(deadline - time.monotonic(), 0.1))
                try:
                    return connection, work(connection)
                except self._broken as error:
                    self._give_back(connection)
                    attempts += 1
                    if getattr(error, "sqlstate", None) in REPEATABLE:
                        if attempts == ATTEMPTS:
                            raise
                        time.sleep(random.uniform(0, 0.002 * attempts))
                    elif not is_lost(connection, error) or time.monotonic() > deadline:
                        raise
                except BaseException:
                    self._give_back(connection)
                    raise

    def _give_back(self, connection: Connection[Any]) -> None:
        """The pool would end a transaction as well, but wait without a bound for a server that says nothing."""
        rollback(connection)
        self._pool.putconn(connection)

    def close(self) -> None:
        self._pool.close()


def connect(conninfo: str) -> Connection[Any]:
    """A connection of its own, set up like the others."""
    import psycopg

    with told():
        connection = psycopg.connect(conninfo, autocommit=True, prepare_threshold=None, connect_timeout=CONNECT_S)
        try:
            configure(connection)
        except BaseException:
            connection.close()
            raise
        return connection


def configure(connection: Connection[Any]) -> None:
    from psycopg.types.numeric import Int8BinaryDumper, Int8Dumper

    # One type for all numbers: else every statement is prepared again for each size of them.
    for dumper in (Int8Dumper, Int8BinaryDumper):
        connection.adapters.register_dumper(int, dumper)
    settings = ", ".join(f"set_config('{name}', '{value}', false)" for name, value in SETTINGS.items())
    send(connection, [(f"SELECT {settings}", ())])


def gone() -> OSError:
    return oserror(errno.ESTALE)
