"""`ThreadsBackend`: the threads of a LangGraph checkpoint database, on both faces."""

from __future__ import annotations

from typing import Any, Literal, Self

from fusebackend.backends.threads.activity import QUIET_S
from fusebackend.backends.threads.rows import Database
from fusebackend.backends.threads.volume import ThreadsVolume
from fusebackend.backends.threads.writable import WritableThreadsVolume
from fusebackend.backends.volume import VolumeBackend


class ThreadsBackend(VolumeBackend):
    """Every thread of a checkpoint database, its files now and at each checkpoint. See the package's docstring.

    Args:
        database: the way to it; the backend owns it from now on. `from_sqlite` and `from_postgres` make one.
        write: `"head"`: what is written below `/<thread>/head/` becomes a pending write of the thread, see `head.py`.
            None: nothing can be written.
        quiet_s: after how many seconds without a sign of life a run counts as ended, and its head as writable.
        on_exists: what `write` does to an existing file, `"error"` (the seeds) or `"replace"` (deepagents 0.7).
    """

    def __init__(
        self,
        database: Database,
        *,
        write: Literal["head"] | None = None,
        quiet_s: float = QUIET_S,
        on_exists: Literal["error", "replace"] = "error",
    ) -> None:
        if write not in (None, "head"):
            raise ValueError(f"write must be 'head' or None, not {write!r}")
        volume = ThreadsVolume(database) if write is None else WritableThreadsVolume(database, quiet_s)
        super().__init__(volume, on_exists=on_exists)

    @classmethod
    def from_sqlite(cls, path: str, **options: Any) -> Self:
        """The database of a SqliteSaver. Options as for the constructor.

        Raises:
            OSError: there is no such file, or it is something else.
            ModuleNotFoundError: ormsgpack is missing (`fusebackend[langgraph]`).
        """
        from fusebackend.backends.threads.sqlite import SqliteDatabase

        return cls(SqliteDatabase(path), **options)

    @classmethod
    def from_postgres(cls, dsn: str, **options: Any) -> Self:
        """The database of a PostgresSaver; `dsn` is libpq's words or a URI. Options as for the constructor.

        Raises:
            OSError: the server can't be reached, or has not the tables.
            ModuleNotFoundError: psycopg or ormsgpack is missing (`fusebackend[langgraph,postgres]`).
        """
        from fusebackend.backends.threads.postgres import PostgresDatabase

        return cls(PostgresDatabase(dsn), **options)
