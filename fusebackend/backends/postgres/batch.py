"""Several statements in one round trip, and in no more time than a volume's operation may take.

This is libpq's pipeline mode, with all of a batch sent at once and awaited once; psycopg's own wakes up for each
statement, and takes twice as much processor time to create a file. A server, or a network, that says nothing for
`STALL_S` ends the connection; nothing is waited for without a bound.

A statement is SQL with `%s` for each parameter, and these; it is prepared when a connection meets it first. Numbers
are sent as 8 bytes, whatever they are, so the type of every other column is written into the SQL.
"""

from __future__ import annotations

import errno
import functools
import itertools
import select
import time
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from fusebackend.databases.postgres_errors import is_lost

if TYPE_CHECKING:
    from psycopg import Connection

Statement: TypeAlias = tuple[str, Sequence[object]]
Rows: TypeAlias = list[tuple[Any, ...]]

STALL_S = 20.0
"""More than a change waits for another one (`connections.LOCK_S`); less than the deadline of a mount's request."""

MAX_PREPARED = 300
"""Statements that a connection keeps; there are some 60, some of them with several types of parameters."""

_prepared: weakref.WeakKeyDictionary[Connection[Any], dict[tuple[bytes, tuple[int, ...]], bytes]]
_prepared = weakref.WeakKeyDictionary()


def send(connection: Connection[Any], statements: Sequence[Statement]) -> list[Rows]:
    """The rows of each statement. The connection is this thread's alone.

    Raises:
        psycopg.Error: of the first statement that failed; those after it have not been run. A connection that was lost,
            or that has said nothing for too long, is closed.
    """
    from psycopg import OperationalError
    from psycopg.adapt import Transformer

    if connection.closed:
        raise OperationalError("the connection is closed")
    transformer = Transformer(connection)
    try:
        return _exchange(connection, transformer, statements)
    except OSError as error:  # of the socket
        connection.close()
        raise OperationalError(f"the connection was lost: {error}") from error
    except OperationalError as error:
        if is_lost(connection, error):
            connection.close()
        raise


def rollback(connection: Connection[Any]) -> None:
    """End a transaction with nothing done, if there is one. A connection that is lost has done the same."""
    from psycopg import Error
    from psycopg.pq import TransactionStatus

    if connection.pgconn.transaction_status not in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
        return
    try:
        send(connection, [("ROLLBACK", ())])
    except Error:
        connection.close()  # which ends it as well


def _exchange(connection: Connection[Any], transformer: Any, statements: Sequence[Statement]) -> list[Rows]:
    from psycopg.errors import error_from_result
    from psycopg.pq import ExecStatus

    pgconn = connection.pgconn
    pgconn.enter_pipeline_mode()
    wanted = [_start(connection, transformer, statement) for statement in statements]
    pgconn.pipeline_sync()
    answers: list[Rows] = []
    failure = None
    pending = iter(itertools.chain.from_iterable(wanted))
    for result in _results(connection):
        status = result.status
        if status == ExecStatus.PIPELINE_SYNC:
            break
        gives_rows = next(pending, False)  # a server that hangs up says so beyond what it was asked
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
        _prepared.pop(connection, None)  # what was to be prepared after it was not
        raise failure
    return answers


def _start(connection: Connection[Any], transformer: Any, statement: Statement) -> tuple[bool, ...]:
    """Queue a statement; for each answer that will come, whether it is that of the statement itself."""
    from psycopg.adapt import PyFormat

    query, parameters = statement
    pgconn = connection.pgconn
    values = transformer.dump_sequence(parameters, [PyFormat.BINARY] * len(parameters))
    known = _prepared.setdefault(connection, {})
    key = (_numbered(query), transformer.types or ())
    name = known.get(key)
    if name is not None:
        pgconn.send_query_prepared(name, values, transformer.formats, result_format=1)
        return (True,)
    if len(known) >= MAX_PREPARED:
        pgconn.send_query_params(key[0], values, key[1], transformer.formats, result_format=1)
        return (True,)
    name = known[key] = b"fusebackend_%d" % next(_numbers)
    pgconn.send_prepare(name, key[0], key[1])
    pgconn.send_query_prepared(name, values, transformer.formats, result_format=1)
    return False, True


_numbers = itertools.count(1)


@functools.lru_cache(maxsize=MAX_PREPARED)
def _numbered(query: str) -> bytes:
    """libpq's numbers for parameters."""
    parts = query.split("%s")
    return "".join(
        part + (f"${number}" if number < len(parts) else "") for number, part in enumerate(parts, 1)
    ).encode()


def _results(connection: Connection[Any]) -> Any:
    """Every result there is, as they come."""
    from psycopg import OperationalError
    from psycopg.pq import ConnStatus

    pgconn = connection.pgconn
    poll = select.poll()
    deadline = time.monotonic() + STALL_S
    while True:
        unsent = pgconn.flush()
        poll.register(pgconn.socket, select.POLLIN | (select.POLLOUT if unsent else 0))
        ready = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        if not ready:
            raise TimeoutError(errno.ETIMEDOUT, f"no answer within {STALL_S:.0f} s")
        if any(event & ~select.POLLOUT for _, event in ready):
            pgconn.consume_input()
            deadline = time.monotonic() + STALL_S
        while not pgconn.is_busy():
            result = pgconn.get_result()
            if result is not None:
                yield result
            elif pgconn.status == ConnStatus.BAD:  # which is never busy again
                raise OperationalError("the connection was lost")
