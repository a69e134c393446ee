"""psycopg's errors as `OSError`s. The errno goes by the SQLSTATE; the words are the server's."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psycopg
    from psycopg import Connection

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
"""Rolled back for the sake of another transaction, or because psycopg has let go of all prepared statements of a
connection, which it does after a rollback of its own: the same once more may well succeed."""


def is_lost(connection: Connection[Any], error: BaseException) -> bool:
    """Is a connection good for nothing any more? A server that is being shut down says so before it hangs up."""
    return connection.closed or (getattr(error, "sqlstate", None) or "").startswith("57P")


def errno_of(error: psycopg.Error) -> int:
    """ETIMEDOUT for a server that says nothing or can't be reached: a mount counts these
    (`vfs/calls/circuit_breaker.py`)."""
    from psycopg_pool import PoolTimeout

    if isinstance(error, PoolTimeout) or isinstance(error.__cause__, TimeoutError):
        return errno.ETIMEDOUT
    return ERRNO_OF_STATE.get(error.sqlstate or "", errno.EIO)


@contextlib.contextmanager
def told() -> Iterator[None]:
    """psycopg's errors as `OSError`s in the server's words."""
    import psycopg
    from psycopg_pool import PoolClosed, PoolTimeout

    try:
        yield
    except (PoolTimeout, PoolClosed) as error:
        raise OSError(errno_of(error), f"PostgreSQL can't be reached: {error}") from error
    except psycopg.Error as error:
        words = error.diag.message_primary or " ".join(str(error).split())
        raise OSError(errno_of(error), f"PostgreSQL: {words}") from error
    except UnicodeEncodeError as error:
        raise OSError(errno.EILSEQ, "Text in PostgreSQL must be UTF-8") from error
