"""`PostgresBackend`: files in a PostgreSQL database, on both faces, for any number of hosts at once."""

from __future__ import annotations

from typing import Literal

from fusebackend.backends.postgres.connections import CONNECTIONS
from fusebackend.backends.postgres.schema import NAME_MAX_CHARACTERS
from fusebackend.backends.postgres.search.search import Search
from fusebackend.backends.postgres.volume import PostgresVolume
from fusebackend.base.extras import needed_by
from fusebackend.protocol import GlobResult, GrepResult
from fusebackend.protocol.scheme import mask
from fusebackend.volumes.agent_face import VolumeBackend


class PostgresBackend(VolumeBackend):
    """Files in PostgreSQL. The tables are made when they are missing (`schema.py` documents them).

    Args:
        dsn: libpq's words (`host=db dbname=agents`) or a URI (`postgresql://user@db/agents`).
        volume: one of the volumes in that database; made when there is none of that name.
        conflict: what becomes of a rewrite of a file that another host has changed since it was opened here:
            `"error"` (it fails with ESTALE) or `"last-writer"` (it wins).
        on_exists: what `write` does to an existing file, `"error"` (the seeds) or `"replace"` (deepagents 0.7).
        connections: how many operations may run at once.

    Raises:
        OSError: the server can't be reached or refuses, in one line; `VolumeDatabaseError` when a newer fusebackend
            has changed the tables.
        ValueError: an argument can't be used.
        ModuleNotFoundError: psycopg is not installed.
    """

    def __init__(
        self,
        dsn: str,
        volume: str = "default",
        *,
        conflict: Literal["error", "last-writer"] = "error",
        on_exists: Literal["error", "replace"] = "error",
        connections: int = CONNECTIONS,
    ) -> None:
        if conflict not in ("error", "last-writer"):
            raise ValueError(f"conflict must be 'error' or 'last-writer', not {conflict!r}")
        if on_exists not in ("error", "replace"):
            raise ValueError(f"on_exists must be 'error' or 'replace', not {on_exists!r}")
        if not volume or len(volume) > NAME_MAX_CHARACTERS or not volume.isprintable():
            raise ValueError(f"volume must be a name of 1 to {NAME_MAX_CHARACTERS} characters, not {volume!r}")
        with needed_by("PostgresBackend"):
            kept = PostgresVolume(dsn, volume, conflict=conflict, connections=connections)
        super().__init__(kept, on_exists=on_exists)
        try:
            self.search = Search(kept, kept.connections, kept.id)
        except BaseException:
            kept.close()
            raise

    volume: PostgresVolume

    def _where(self) -> str:
        return f"{mask(self.volume.conninfo)!r}, volume {self.volume.name!r}"

    def close(self) -> None:
        self.search.close()
        super().close()

    def _grep_files(
        self, pattern: str, path: str, glob: str | None, max_count: int | None, max_bytes: int
    ) -> GrepResult:
        return self.search.grep_files(pattern, path, glob, max_count, max_bytes)

    def _glob_files(self, pattern: str, path: str) -> GlobResult:
        return self.search.glob_files(pattern, path)
