"""`PostgresBackend`: files in a PostgreSQL database, on both faces, for any number of hosts at once."""

from __future__ import annotations

import functools
from typing import ClassVar, Literal

from fusebackend.backends.postgres import opening
from fusebackend.backends.postgres.host_session import Worker
from fusebackend.backends.postgres.schema import NAME_MAX_CHARACTERS
from fusebackend.backends.postgres.search import LEFT, ReadAhead, SearchIndexer, SearchQueries, TreeWalk, make_index
from fusebackend.backends.postgres.volume import CONNECTIONS, PostgresVolume
from fusebackend.base.globs import Matcher
from fusebackend.protocol import OnExists, checked_on_exists
from fusebackend.protocol.scheme import mask
from fusebackend.volumes.agent_face import VolumeBackend
from fusebackend.volumes.quota import Limits
from fusebackend.volumes.search import FileSearch, Search


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
    """

    schemes: ClassVar = opening.SCHEMES

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
        limits = Limits.of(limit_bytes, limit_files)
        kept = PostgresVolume(dsn, volume, conflict=conflict, connections=connections, limits=limits)
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
