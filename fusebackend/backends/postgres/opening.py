"""`postgres:DSN?volume=NAME` URLs."""

from __future__ import annotations

import os
from importlib.util import find_spec

from fusebackend.backends.postgres.backend import PostgresBackend
from fusebackend.backends.postgres.schema import volume_names
from fusebackend.databases.libpq import LIBPQ_WORDS
from fusebackend.databases.postgres_errors import told
from fusebackend.protocol.scheme import Url, UrlError

OPTIONS = ("conflict", "connections", "on_exists")


def open_postgres(url: Url) -> PostgresBackend:
    """The backend of a URL. UrlError when it can't be opened, in one line."""
    for module in ("psycopg", "psycopg_pool"):
        if find_spec(module) is None:
            raise UrlError(
                f"'{url.masked}' needs {module}, which is not installed: pip install 'fusebackend[postgres]'"
            )
    from psycopg import ProgrammingError
    from psycopg.conninfo import make_conninfo

    words = {name: value for name, value in url.parameters.items() if name in LIBPQ_WORDS}
    try:
        conninfo = make_conninfo(url.rest, **words)
    except ProgrammingError as error:
        raise UrlError(f"'{url.masked}': {' '.join(str(error).split())}") from None
    try:
        volume = url.parameters.get("volume") or _not_named(url, conninfo)
        return PostgresBackend(
            conninfo, volume, **{name: url.parameters[name] for name in OPTIONS if name in url.parameters}
        )
    except OSError as error:
        raise UrlError(f"'{url.masked}': {error.strerror or os.strerror(error.errno or 0)}") from error
    except UrlError:
        raise
    except ValueError as error:
        raise UrlError(f"'{url.masked}': {error}") from None


def _not_named(url: Url, conninfo: str) -> str:
    """Say which volumes there are."""
    import psycopg

    with told(), psycopg.connect(conninfo, autocommit=True) as connection:
        names = volume_names(connection)
    holds = f"; this database holds {', '.join(names)}" if names else ""
    raise UrlError(f"'{url.masked}' names no volume; add ?volume=NAME, such as ?volume=work{holds}")
