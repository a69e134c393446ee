"""Several statements in one round trip to PostgreSQL, within the time that an operation of a volume may take.

This is libpq's pipeline mode: a batch is sent at once and awaited once. psycopg's own pipeline wakes up for each
statement, and takes twice as much processor time to create a file. A connection on which the server is silent for
`STALL_S` is closed, so no wait is without a bound.

A statement is SQL with `%s` for each parameter, and the parameters; it is prepared at its first use on a connection.
All integers are sent as 8 bytes, so the SQL casts those that another type is needed for.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import select
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from psycopg import Connection, Error, OperationalError
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn

from fusebackend.base.deadline import is_readable

Statement: TypeAlias = tuple[str, Sequence[object]]
Rows: TypeAlias = list[tuple[Any, ...]]

BEGIN: Statement = ("BEGIN", ())
COMMIT: Statement = ("COMMIT", ())

STALL_S = 20.0
"""More than a change waits for a lock (`host_session.LOCK_S`); less than the deadline of a mount's request."""

TICK_S = 0.05
"""How often a statement that is watched calls its watch: for so long a cancelled search goes on."""

MAX_PREPARED = 300
"""Statements that a connection keeps; there are some 60, some of them with several types of parameters."""

_prepared: weakref.WeakKeyDictionary[Connection[Any], dict[tuple[bytes, tuple[int, ...]], bytes]]
_prepared = weakref.WeakKeyDictionary()


def is_lost(connection: Connection[Any], error: BaseException) -> bool:
    """Whether a connection is of no use any more. A server that shuts down sends an error before it hangs up."""
    return connection.closed or (getattr(error, "sqlstate", None) or "").startswith("57P")


def send(
    connection: Connection[Any],
    statements: Sequence[Statement],
    *,
    stall_s: float | None = None,
    watch: Callable[[], object] | None = None,
) -> list[Rows]:
    """The rows of each statement. The connection is this thread's alone.

    Args:
        stall_s: for how long the server may be silent, in place of `STALL_S`.
        watch: is called every `TICK_S` meanwhile, and raises OSError to give the connection up. In place of `STALL_S`,
            and of a plan that is kept: each statement is planned for its parameters.

    Raises:
        psycopg.Error: of the first statement that failed; those after it have not been run. A connection that was lost
            or silent for too long is closed.
    """
    if connection.closed:
        raise OperationalError("the connection is closed")
    transformer = Transformer(connection)
    try:
        return _exchange(connection, transformer, statements, STALL_S if stall_s is None else stall_s, watch)
    except OSError as error:  # of the socket
        connection.close()
        raise OperationalError(f"the connection was lost: {error}") from error
    except OperationalError as error:
        if is_lost(connection, error):
            connection.close()
        raise


def rows_of(connection: Connection[Any], query: str, parameters: Sequence[object] = ()) -> Rows:
    """The rows of one statement."""
    return send(connection, [(query, parameters)])[0]


@contextlib.contextmanager
def transaction(connection: Connection[Any], *begins: Statement) -> Iterator[None]:
    """Commit the statements of a block together, or roll them back when it fails.

    Args:
        begins: are sent with its BEGIN.
    """
    try:
        send(connection, [BEGIN, *begins])
        yield
        send(connection, [COMMIT])
    except BaseException:
        rollback(connection)
        raise


def require_quiet(connection: Connection[Any]) -> None:
    """Raise the error of a lost connection where the server has said something unasked, as when it hangs up.

    For a batch that can't be repeated once it has been sent.
    """
    if not connection.closed:
        if not is_readable(connection.pgconn.socket, 0):
            return
        connection.close()
    raise OperationalError("the connection was lost")


def rollback(connection: Connection[Any]) -> None:
    """End a transaction with nothing done, if there is one. The loss of a connection does the same."""
    if connection.pgconn.transaction_status not in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
        return
    try:
        send(connection, [("ROLLBACK", ())])
    except Error:
        connection.close()  # which ends it as well


def _exchange(
    connection: Connection[Any],
    transformer: Any,
    statements: Sequence[Statement],
    stall_s: float,
    watch: Callable[[], object] | None,
) -> list[Rows]:
    pgconn = connection.pgconn
    pgconn.enter_pipeline_mode()
    known = _prepared.setdefault(connection, {})
    wanted = [_start(pgconn, known, transformer, statement, prepares=watch is None) for statement in statements]
    pgconn.pipeline_sync()
    answers: list[Rows] = []
    failure = None
    pending = iter(itertools.chain.from_iterable(wanted))
    for result in _results(connection, stall_s, watch):
        status = result.status
        if status == ExecStatus.PIPELINE_SYNC:
            break
        gives_rows = next(pending, False)  # a server that hangs up sends one result more
        if status == ExecStatus.TUPLES_OK:
            transformer.set_pgresult(result)
            answers.append(transformer.load_rows(0, result.ntuples, tuple))
        elif status == ExecStatus.COMMAND_OK:
            if gives_rows:
                answers.append([])
        elif failure is None and status != ExecStatus.PIPELINE_ABORTED:
            failure = error_from_result(result, encoding="utf-8")
    pgconn.exit_pipeline_mode()
    if failure is not None:
        known.clear()  # statements after the failed one were not prepared
        raise failure
    return answers


def _start(
    pgconn: PGconn,
    known: dict[tuple[bytes, tuple[int, ...]], bytes],
    transformer: Any,
    statement: Statement,
    prepares: bool,
) -> tuple[bool, ...]:
    """Queue a statement. Returns for each result that will come whether it is that of the statement itself."""
    query, parameters = statement
    values: Sequence[Any] = ()
    types: tuple[int, ...] = ()
    formats: Sequence[Any] = ()
    if parameters:
        values = transformer.dump_sequence(parameters, _binary(len(parameters)))
        types, formats = transformer.types or (), transformer.formats
    key = (_numbered(query), types)
    name = known.get(key)
    if name is not None:
        pgconn.send_query_prepared(name, values, formats, result_format=1)
        return (True,)
    if not prepares or len(known) >= MAX_PREPARED:
        pgconn.send_query_params(key[0], values, types, formats, result_format=1)
        return (True,)
    name = known[key] = b"fusebackend_%d" % next(_numbers)
    pgconn.send_prepare(name, key[0], types)
    pgconn.send_query_prepared(name, values, formats, result_format=1)
    return False, True


@functools.cache
def _binary(count: int) -> Sequence[Any]:
    """The formats of so many parameters."""
    return [PyFormat.BINARY] * count


_numbers = itertools.count(1)


@functools.lru_cache(maxsize=MAX_PREPARED)
def _numbered(query: str) -> bytes:
    """SQL with libpq's numbered parameters."""
    parts = query.split("%s")
    return "".join(
        part + (f"${number}" if number < len(parts) else "") for number, part in enumerate(parts, 1)
    ).encode()


def _results(connection: Connection[Any], stall_s: float, watch: Callable[[], object] | None) -> Any:
    """Each result as it arrives."""
    pgconn = connection.pgconn
    poll = select.poll()
    deadline = time.monotonic() + stall_s
    while True:
        unsent = pgconn.flush()
        poll.register(pgconn.socket, select.POLLIN | (select.POLLOUT if unsent else 0))
        if watch is not None:
            watch()
        left_s = max(0.0, deadline - time.monotonic()) if watch is None else TICK_S
        ready = poll.poll(left_s * 1000)
        if not ready and watch is None:
            raise TimeoutError(errno.ETIMEDOUT, f"no answer within {stall_s:g} s")
        if any(event & ~select.POLLOUT for _, event in ready):
            pgconn.consume_input()
            deadline = time.monotonic() + stall_s
        while not pgconn.is_busy():
            result = pgconn.get_result()
            if result is not None:
                yield result
            elif pgconn.status == ConnStatus.BAD:  # which is never busy again
                raise OperationalError("the connection was lost")
