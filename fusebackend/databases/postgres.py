"""Connections to PostgreSQL: how they are opened and made again, which work is retried, and which errno an error is.

A connection that turns out to be lost, as after a restart of the server, costs its user nothing: the work is repeated
on a new one, for `PATIENCE_S` at most, where nothing of it can have happened. A transaction that the server rolled back
in favour of another one is repeated as well. A commit without an answer is never repeated: its sender reports it
(`backends/postgres/transaction.py`).

A pool opens connections when they are needed, and closes them when they have been idle for as long as they were in use,
`IDLE_S` at most: a server takes 100 from all hosts together, unless it is configured otherwise. Where it takes no more,
operations wait for `BUSY_S` for a connection of their own pool, or for one of another host. Pools of a full server take
turns: each looks once a second whether it is, and then closes what it has had for `TURN_S`, busy or not.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final, TypeVar

import psycopg
from psycopg import Connection
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from fusebackend.base import jitter
from fusebackend.base.waiting import Turns, will_wait
from fusebackend.databases.pipeline import STALL_S, Rows, is_lost, rollback, rows_of, send

T = TypeVar("T")

CONNECT_S = 10
"""How long a server may take to accept a connection."""

PATIENCE_S = 5.0
"""How long a server may be away before an operation fails."""

BUSY_S = 25
"""How long an operation waits for a free connection; no operation keeps one longer (`pipeline.STALL_S`)."""

IDLE_S = 20.0
"""How long a connection stays open without use. To open one takes some 5 ms."""

BRIEF_S = 2.0
"""The same for a connection that was opened only just before its last use, as for a mount without users yet: 64 mounts
that began within a minute had 80 connections."""

TURN_S = 0.5
"""How long a connection to a full server is kept, as others wait for it."""

COUNT_S = 1.0
"""How often a pool counts the server's connections."""

SPARE = 2
"""A server with no more free ones than that is full."""

_IS_FULL = f"""
SELECT sum(numbackends) + {SPARE} >= current_setting('max_connections')::int
    - current_setting('superuser_reserved_connections')::int
    - coalesce(current_setting('reserved_connections', true), '0')::int
FROM pg_stat_database
"""

FULL_S = 60.0
"""How long a server that had no free connection is told of in `status`."""

FULL = ("53300", "too many clients", "too many connections", "remaining connection slots")
"""Words of a server that takes no more connections: libpq has no SQLSTATE of a connection that failed."""

FULL_RETRY_S = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Pauses between attempts to connect (`pause_s`)."""

ROUNDS: Final = 4
IN_A_ROW: Final = 4
"""Of the search for a transaction pooler, with 8 round trips each: 5 ms in all beside the server."""

ATTEMPTS = 20
"""How often a transaction is begun that the server rolls back in favour of others."""

# -- errors --------------------------------------------------------------------------------------------------------

ERRNO_OF_STATE = {
    "42501": errno.EACCES,  # insufficient_privilege
    "25006": errno.EROFS,  # read_only_sql_transaction
    "53100": errno.ENOSPC,  # disk_full
    "54000": errno.ENAMETOOLONG,  # program_limit_exceeded: a key too long for the index
    "57014": errno.ETIMEDOUT,  # query_canceled
    "55P03": errno.EBUSY,  # lock_not_available
    "40001": errno.ESTALE,  # serialization_failure
    "40P01": errno.EBUSY,  # deadlock_detected
    "22021": errno.EILSEQ,  # character_not_in_repertoire
}

REPEATABLE = frozenset({"40001", "40P01", "26000"})
"""SQLSTATEs after which the same work may succeed: rolled back in favour of another transaction, or (26000) psycopg has
dropped all prepared statements of a connection, which it does after a rollback of its own."""


def errno_of(error: psycopg.Error) -> int:
    """The errno of psycopg's error: by its SQLSTATE, else EIO.

    A server that is silent or unreachable is ETIMEDOUT, which the circuit breaker of a mount counts
    (`vfs/calls/executor.py`).
    """
    if isinstance(error.__cause__, TimeoutError):
        return errno.ETIMEDOUT
    return ERRNO_OF_STATE.get(error.sqlstate or "", errno.EIO)


@contextlib.contextmanager
def translate_errors(
    failed: str = "PostgreSQL", rule: Callable[[int], int] = int, *, passes: Collection[str] = ()
) -> Iterator[None]:
    """Raise psycopg's errors as `OSError`s, with `failed` and the server's message in one line.

    Args:
        rule: replaces the errno of the table.
        passes: SQLSTATEs of errors that pass as they are.
    """
    try:
        yield
    except psycopg.Error as error:
        if error.sqlstate in passes:
            raise
        raise OSError(rule(errno_of(error)), f"{failed}: {message_of(error)}") from error
    except UnicodeEncodeError as error:
        raise OSError(errno.EILSEQ, "Text in PostgreSQL must be UTF-8") from error


def message_of(error: psycopg.Error) -> str:
    """The server's message, else libpq's, in one line."""
    return error.diag.message_primary or " ".join(str(error).split()) or type(error).__name__


# -- connections ---------------------------------------------------------------------------------------------------

_OPTIONS: Final[dict[str, Any]] = {
    "autocommit": True,
    "connect_timeout": CONNECT_S,
    "prepare_threshold": None,
    "fallback_application_name": "fusebackend",
}
"""Statements are prepared by `pipeline.send` only: a plan that psycopg keeps knows nothing of later parameters."""


def connect(conninfo: str, set_up: Callable[[Connection[Any]], None] | None = None, **options: Any) -> Connection[Any]:
    """Open a connection that commits each statement by itself; psycopg's error when that fails.

    Args:
        set_up: is called with the new connection, which is closed when that fails.
        options: libpq's words and arguments of `psycopg.connect`, in place of ours.
    """
    connection: Connection[Any] = psycopg.connect(conninfo, **{**_OPTIONS, **options})
    try:
        if set_up is not None:
            set_up(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def at_primary(conninfo: str) -> str:
    """The same words, for no server but one that takes changes, unless they say which.

    Where several hosts are named, libpq goes on to a standby while the primary restarts, and stays there. It answers
    with a state of before, and refuses all changes.
    """
    word = "target_session_attrs"
    if word in conninfo_to_dict(conninfo) or "PGTARGETSESSIONATTRS" in os.environ:
        return conninfo
    return make_conninfo(conninfo, target_session_attrs="primary")


def ping(connection: Connection[Any]) -> Connection[Any]:
    """Detect a connection that was lost while the server was away. Returns it."""
    connection.execute("")
    return connection


def is_full(error: BaseException) -> bool:
    """Whether a server has refused a connection because it has as many as it may."""
    return any(words in str(error) for words in FULL)


def when_free(open: Callable[[], T]) -> T:
    """The result of `open`, which connects; called again for `BUSY_S` while the server takes no more connections."""
    deadline = time.monotonic() + BUSY_S
    attempts = 0
    while True:
        try:
            return open()
        except psycopg.OperationalError as error:
            if not is_full(error) or time.monotonic() > deadline:
                raise
        time.sleep(pause_s(FULL_RETRY_S, attempts))
        attempts += 1


def is_pooled(conninfo: str) -> bool:
    """Return True for a transaction pooler, such as PgBouncer with pool_mode = transaction: two transactions of one
    connection ran in two processes of the server, or those of two connections in one. OSError as of `Connections`.

    A pooler without other clients shows that in the first round: the second connection begins with the process that the
    first one has just used (PgBouncer's default), or transactions in a row get one process after the other
    (`server_round_robin`). Beside other clients processes are given by chance: of two processes, four rounds find that
    but for once in a million times.
    """
    with translate_errors():
        return when_free(lambda: _is_shared(conninfo))


def _is_shared(conninfo: str) -> bool:
    with connect(conninfo) as one, connect(conninfo) as other:
        own = _process(one)
        for _ in range(ROUNDS):
            with other.transaction():
                if _process(other) == own or _process(one) != own:
                    return True
            if any(_process(one) != own for _ in range(IN_A_ROW)):
                return True
    return False


def _process(connection: Connection[Any]) -> object:
    """The process of the server that runs a transaction. Prepares nothing: a pooler would leave that to others."""
    return connection.execute("SELECT pg_backend_pid(), pg_postmaster_start_time()").fetchone()


def pause_s(pauses: Sequence[float], attempts: int) -> float:
    """The pause after so many attempts, in seconds: the last one repeats, and each is shortened at random, by half at
    most."""
    seconds = pauses[min(attempts, len(pauses) - 1)]
    return jitter.between(seconds / 2, seconds)


class Connections:
    """A pool of connections. Any thread may call any method.

    Connects once before the constructor returns, to report at once that there is no server.

    Args:
        size: operations that run at once.
        set_up: is called with each new connection.
        options: as for `connect`.

    Raises:
        OSError: the server's message, in one line.
    """

    def __init__(
        self, conninfo: str, size: int, set_up: Callable[[Connection[Any]], None] | None = None, **options: Any
    ) -> None:
        self.conninfo = conninfo
        self._set_up = set_up
        self._options = options
        self._places = Turns(size)
        self._changed = threading.Condition()  # guards all below
        self._idle: list[tuple[float, Connection[Any]]] = []  # until when; the last used is the last
        self._opened: weakref.WeakKeyDictionary[Connection[Any], float] = weakref.WeakKeyDictionary()  # when
        self._closed = threading.Event()
        self._closing_idle = False  # there is a thread that does
        self._full: tuple[float, float, str] | None = None  # since when, until when at least, and its words
        self._counted_at = time.monotonic()
        self._crowded_until = 0.0
        with translate_errors():
            connection = when_free(self._open)
            self._idle.append((self._idle_until(connection), connection))
        self._close_later()

    @property
    def trouble(self) -> tuple[float, str] | None:
        """Since when the server takes no more connections, in seconds since the epoch, and its words; else None."""
        full = self._full
        return (full[0], full[2]) if full is not None and time.time() - full[1] < FULL_S else None

    def query(self, query: str, parameters: Sequence[object]) -> Rows:
        """The rows of one statement, which may run twice."""
        return self.run(lambda connection: rows_of(connection, query, parameters))

    def run(self, work: Callable[[Connection[Any]], T]) -> T:
        """The result of `work` with a connection. It is called again where nothing of it can have happened.

        Raises:
            OSError: the server's error, or ETIMEDOUT when it can't be reached.
        """
        with self.leased(work) as result:
            return result

    @contextlib.contextmanager
    def leased(self, begin: Callable[[Connection[Any]], T]) -> Iterator[T]:
        """The result of `begin`, whose connection is for its caller until the end of the block; errors as of `run`."""
        will_wait()
        if not self._places.take(BUSY_S):
            raise OSError(errno.ETIMEDOUT, f"PostgreSQL: all connections have been busy for {BUSY_S} s")
        try:
            connection, result = self._begin(begin)
            try:
                yield result
            finally:
                self._give_back(connection)
        finally:
            self._places.leave()

    def _begin(self, work: Callable[[Connection[Any]], T]) -> tuple[Connection[Any], T]:
        with translate_errors():
            deadline = time.monotonic() + PATIENCE_S
            attempts = 0
            while True:
                connection = self._take(deadline)
                try:
                    return connection, work(connection)
                except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                    self._give_back(connection)
                    attempts += 1
                    if getattr(error, "sqlstate", None) in REPEATABLE:
                        if attempts == ATTEMPTS:
                            raise
                        time.sleep(jitter.between(0, 0.002 * attempts))
                    elif not is_lost(connection, error) or time.monotonic() > deadline:
                        raise
                except BaseException:
                    self._give_back(connection)
                    raise

    def _take(self, deadline: float) -> Connection[Any]:
        """The idle connection that was used last, or a new one.

        Raises:
            OSError: ETIMEDOUT if there is none by the deadline. A server that takes no more has `BUSY_S` instead.
        """
        full_until = time.monotonic() + BUSY_S
        attempts = 0
        while True:
            with self._changed:
                if not self._idle and not attempts and self._is_crowded:
                    self._changed.wait(pause_s(FULL_RETRY_S, attempts))  # another host's turn
                if self._closed.is_set():
                    raise psycopg.OperationalError("the connections are closed")
                if self._idle:
                    return self._idle.pop()[1]
            try:
                left_s = max(2, math.ceil(deadline - time.monotonic()))  # libpq knows whole seconds, and no 1
                connection = self._open(connect_timeout=min(CONNECT_S, left_s))
                self._full = None
                return connection
            except psycopg.OperationalError as error:
                words = message_of(error)
                if is_full(error):
                    now, full = time.time(), self._full
                    self._full = (full[0] if full else now, now, f"PostgreSQL takes no more connections: {words}")
                    self._crowded_until = time.monotonic() + 2 * COUNT_S
                if time.monotonic() > (full_until if is_full(error) else deadline):
                    raise OSError(errno.ETIMEDOUT, f"PostgreSQL can't be reached: {words}") from error
            with self._changed:
                if not self._idle:
                    self._changed.wait(pause_s(FULL_RETRY_S, attempts))
            attempts += 1

    def _open(self, **options: Any) -> Connection[Any]:
        connection = connect(self.conninfo, self._set_up, **{**self._options, **options})
        self._opened[connection] = time.monotonic()
        return connection

    def _idle_until(self, connection: Connection[Any]) -> float:
        now = time.monotonic()
        return now + min(IDLE_S, max(BRIEF_S, now - self._opened[connection]))

    @property
    def _is_crowded(self) -> bool:
        return time.monotonic() < self._crowded_until

    def _has_had_its_turn(self, connection: Connection[Any]) -> bool:
        return self._is_crowded and time.monotonic() - self._opened[connection] > TURN_S

    def _count(self, connection: Connection[Any]) -> None:
        """Look whether the server is full, if that is due. A pool that has what it needs is never refused one."""
        now = time.monotonic()
        if now - self._counted_at < COUNT_S:
            return
        self._counted_at = now

        def watch() -> None:  # with one it is not prepared: a pooler would leave that to others
            if time.monotonic() > now + STALL_S:
                raise TimeoutError(errno.ETIMEDOUT, f"no answer within {STALL_S:g} s")

        with contextlib.suppress(psycopg.Error):  # the next user of the connection finds out
            ((is_full,),) = send(connection, [(_IS_FULL, ())], watch=watch)[0]
            if is_full:
                self._crowded_until = now + 2 * COUNT_S

    def _give_back(self, connection: Connection[Any]) -> None:
        rollback(connection)
        self._count(connection)
        with self._changed:
            if not connection.closed and not self._closed.is_set() and not self._has_had_its_turn(connection):
                self._idle.append((self._idle_until(connection), connection))
                self._changed.notify()
                if not self._closing_idle:
                    self._close_later()
                return
        connection.close()

    def _close_later(self) -> None:
        self._closing_idle = True
        threading.Thread(target=self._close_idle, name="fusebackend-idle", daemon=True).start()

    def _close_idle(self) -> None:
        """Close what has been idle for long enough, until nothing is."""
        while True:
            with self._changed:
                if not self._idle or self._closed.is_set():
                    self._closing_idle = False
                    return
                until, connection = first = min(self._idle, key=lambda idle: idle[0])
                left_s = until - time.monotonic()
                is_due = left_s <= 0 or self._has_had_its_turn(connection)
                if is_due:
                    self._idle.remove(first)
            if is_due:
                connection.close()
            else:
                self._closed.wait(min(left_s, COUNT_S))  # another may be due before it

    def close(self) -> None:
        """Close the idle connections, and those in use when they are given back."""
        with self._changed:
            self._closed.set()
            idle, self._idle = self._idle, []
            self._changed.notify_all()
        for _, connection in idle:
            connection.close()
