"""`postgres:` URLs: the volume that a URL names, and its backend."""

from __future__ import annotations

from typing import Any

from fusebackend.databases.dsn import LIBPQ_WORDS, conninfo_of
from fusebackend.protocol import Features
from fusebackend.protocol.scheme import (
    LIMITS,
    ON_EXISTS,
    Parameter,
    Scheme,
    Url,
    UrlError,
    one_of,
    positive,
    require_modules,
    url_errors,
)

FEATURES = Features(acls=True, stores_at_close=True, blocking=True, shared=True)

OPTIONS = {
    "conflict": Parameter(
        one_of("error", "last-writer"),
        "replacing a file that another host has changed since it was opened: error (default) or last-writer",
    ),
    "connections": Parameter(positive, "how many connections to the server, and so operations at once"),
    **LIMITS,
    **ON_EXISTS,
}
"""Parameters of a URL that are arguments of `PostgresBackend`."""


def open_postgres(url: Url) -> Any:
    """The backend of `postgres:DSN?volume=NAME`. UrlError when it can't be opened, in one line."""
    require_modules(url, "postgres", "psycopg")
    from fusebackend.backends.postgres.backend import PostgresBackend
    from fusebackend.backends.postgres.schema import volume_names

    conninfo = conninfo_of(url)
    with url_errors(url):
        options = {name: url.parameters[name] for name in OPTIONS if name in url.parameters}
        volume = url.parameters.get("volume")
        if volume:
            return PostgresBackend(conninfo, volume, **options)
        names = volume_names(conninfo)
        holds = f"; this database holds {', '.join(names)}" if names else ""
        raise UrlError(f"'{url.masked}' names no volume; add ?volume=NAME, such as ?volume=work{holds}")


SCHEMES = {
    "postgres": Scheme(
        "postgres:DSN?volume=NAME",
        "a volume in PostgreSQL that many hosts mount at once",
        open_postgres,
        parameters={**OPTIONS, "volume": Parameter(str, "which volume of the database; several can be in one")},
        passed_on=LIBPQ_WORDS,
        features=FEATURES,
        snapshots=True,
    )
}
"""Here, and not in `backend.py`, which needs psycopg: they are known without it."""
