"""Stores and checkpointers of LangGraph: their classes, their databases, their errors. LangGraph is not imported."""

from __future__ import annotations

import contextlib
import errno
import sys
from collections.abc import Iterator
from typing import Any

from fusebackend.databases.urls import LIBPQ_WORDS


def loaded_class(module: str, name: str) -> Any:
    """A class, None where nothing has imported its module: no object can be of it then."""
    return getattr(sys.modules.get(module), name, None)


def sqlite_path(connection: Any) -> str:
    """The file of an SQLite connection; empty for a database in memory."""
    return next((row[2] or "" for row in connection.execute("PRAGMA database_list") if row[1] == "main"), "")


def dsn_of(connection: Any) -> str:
    """The DSN that a connection of psycopg, or a pool, was made with."""
    from psycopg.conninfo import make_conninfo

    if hasattr(connection, "getconn"):  # a pool
        words = {
            name: value
            for name, value in dict(connection.kwargs or {}).items()
            if name in ("host", "hostaddr", "dbname", *LIBPQ_WORDS)
        }
        return str(make_conninfo(connection.conninfo, **words))
    info = connection.info
    return str(make_conninfo(**{**info.get_parameters(), "password": info.password or None}))


@contextlib.contextmanager
def translate_errors(noun: str) -> Iterator[None]:
    """Raise any error of an object that `noun` names, which may be of any library, as an `OSError` with its message."""
    try:
        yield
    except (OSError, MemoryError):
        raise
    except NotImplementedError as error:
        raise OSError(errno.ENOTSUP, f"{noun} can't do this: {error}") from error
    except Exception as error:
        raise OSError(errno.EIO, f"{noun} failed: {type(error).__name__}: {error}") from error
