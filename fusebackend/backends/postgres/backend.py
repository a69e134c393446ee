"""`PostgresBackend`: files in a PostgreSQL database, on both faces, for any number of hosts at once."""

from __future__ import annotations

import functools
from typing import ClassVar, Literal

from fusebackend.backends.postgres.host_session import Worker
from fusebackend.backends.postgres.schema import NAME_MAX_CHARACTERS, volume_names
from fusebackend.backends.postgres.search import LEFT, ReadAhead, SearchIndexer, SearchQueries, TreeWalk, make_index
from fusebackend.backends.postgres.volume import CONNECTIONS, PostgresVolume
from fusebackend.base.extras import needed_by
from fusebackend.base.globs import Matcher
from fusebackend.databases.postgres import LIBPQ_WORDS, connect, conninfo_of, translate_errors
from fusebackend.protocol import OnExists, checked_on_exists
from fusebackend.protocol.scheme import (
    LIMITS,
    ON_EXISTS,
    Parameter,
    Scheme,
    Url,
    UrlError,
    mask,
    one_of,
    positive,
    require_modules,
    url_errors,
)
from fusebackend.volumes.agent_face import VolumeBackend
from fusebackend.volumes.quota import Limits
from fusebackend.volumes.search import FileSearch, Search

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


class PostgresBackend(VolumeBackend):
    """Files in PostgreSQL. The tables are made when they are missing (`schema.py` documents them).

    Args:
        dsn: libpq's words (`host=db dbname=agents`) or a URI (`postgresql://user@db/agents`).
        volume: one of the volumes in that database; made when there is none of that name.
        conflict: whether a rewrite of a file that another host has changed since it was opened here fails with ESTALE
            (`"error"`) or wins (`"last-writer"`).
        on_exists: `write` over an existing file is an `"error"` (the seeds) or a `"replace"` (deepagents 0.7).
        connections: how many operations may run at once.
        limit_bytes, limit_files: how much this host lets the volume hold; more is EDQUOT (`SharedQuota`). None for
            no limit.

    Raises:
        OSError: the server can't be reached or refuses, in one line; `VolumeDatabaseError` when the tables
            are of another version; or the `dsn` leads to a transaction pooler.
        ValueError: an argument can't be used.
        ModuleNotFoundError: psycopg is not installed.
    """

    schemes: ClassVar = {
        "postgres": Scheme(
            "postgres:DSN?volume=NAME",
            "a volume in PostgreSQL that many hosts mount at once",
            lambda url: open_postgres(url),
            parameters={**OPTIONS, "volume": Parameter(str, "which volume of the database; several can be in one")},
            passed_on=LIBPQ_WORDS,
            features=PostgresVolume.features,
            snapshots=True,
        )
    }

    def __init__(
        self,
        dsn: str,
        volume: str = "default",
        *,
        conflict: Literal["error", "last-writer"] = "error",
        on_exists: OnExists = "error",
        connections: int = CONNECTIONS,
        limit_bytes: int | None = None,
        limit_files: int | None = None,
    ) -> None:
        if conflict not in ("error", "last-writer"):
            raise ValueError(f"conflict must be 'error' or 'last-writer', not {conflict!r}")
        checked_on_exists(on_exists)
        if not volume or len(volume) > NAME_MAX_CHARACTERS or not volume.isprintable():
            raise ValueError(f"volume must be a name of 1 to {NAME_MAX_CHARACTERS} characters, not {volume!r}")
        with needed_by("PostgresBackend"):
            kept = PostgresVolume(
                dsn,
                volume,
                conflict=conflict,
                connections=connections,
                limits=Limits.of(limit_bytes, limit_files),
            )
        super().__init__(kept, on_exists=on_exists)
        try:
            indexed = kept.connections.run(make_index)
            self.queries = SearchQueries(kept.connections, kept.id, indexed=indexed)
            if indexed:
                work = SearchIndexer(kept.id).work
                kept.add_worker(Worker("the search index can't be brought up to date", LEFT, work))
        except BaseException:
            kept.close()
            raise

    volume: PostgresVolume

    def _where(self) -> str:
        return f"{mask(self.volume.conninfo)!r}, volume {self.volume.name!r}"

    def _search(self, path: str, matcher: Matcher | None, pattern: str | None = None) -> Search:
        self.volume.settle()
        if pattern is not None:
            return ReadAhead(self.queries, pattern, self.volume, path, matcher, self.max_search_bytes)
        return FileSearch(self.volume, path, matcher, self.max_search_bytes, functools.partial(TreeWalk, self.queries))


def open_postgres(url: Url) -> PostgresBackend:
    """The backend of `postgres:DSN?volume=NAME`. UrlError when it can't be opened, in one line."""
    require_modules(url, "postgres", "psycopg")
    conninfo = conninfo_of(url)
    with url_errors(url):
        options = {name: url.parameters[name] for name in OPTIONS if name in url.parameters}
        volume = url.parameters.get("volume")
        if volume:
            return PostgresBackend(conninfo, volume, **options)
        with translate_errors(), connect(conninfo) as connection:
            names = volume_names(connection)
        holds = f"; this database holds {', '.join(names)}" if names else ""
        raise UrlError(f"'{url.masked}' names no volume; add ?volume=NAME, such as ?volume=work{holds}")
