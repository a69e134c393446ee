"""`threads+sqlite:` and `threads+postgres:` URLs: a checkpoint database, opened without the program that fills it."""

from __future__ import annotations

from typing import Any

from fusebackend.backends.threads.backend import ThreadsBackend
from fusebackend.databases.libpq import LIBPQ_WORDS
from fusebackend.protocol.scheme import Url, UrlError

OPTIONS = ("on_exists", "quiet_s", "write")


def open_sqlite(url: Url) -> ThreadsBackend:
    """The backend of `threads+sqlite:PATH`."""
    try:
        return ThreadsBackend.from_sqlite(url.rest, **_options(url))
    except ModuleNotFoundError as error:
        raise UrlError(f"'{url.masked}': {error.msg}") from None
    except OSError as error:
        raise UrlError(f"'{url.masked}': {error.strerror}") from error


def open_postgres(url: Url) -> ThreadsBackend:
    """The backend of `threads+postgres:DSN`."""
    try:
        return ThreadsBackend.from_postgres(_dsn(url), **_options(url))
    except ModuleNotFoundError as error:
        raise UrlError(f"'{url.masked}': {error.msg}") from None
    except OSError as error:
        raise UrlError(f"'{url.masked}': {error.strerror}") from error


def _options(url: Url) -> dict[str, Any]:
    return {name: value for name, value in url.parameters.items() if name in OPTIONS}


def _dsn(url: Url) -> str:
    """What follows the colon, with libpq's words that came as parameters."""
    words = {name: value for name, value in url.parameters.items() if name in LIBPQ_WORDS}
    if not words:
        return url.rest
    try:
        from psycopg import ProgrammingError
        from psycopg.conninfo import make_conninfo
    except ImportError:
        return url.rest  # opening it will say what is missing
    try:
        return str(make_conninfo(url.rest, **words))
    except ProgrammingError as error:
        raise UrlError(f"'{url.masked}': {' '.join(str(error).split())}") from None
