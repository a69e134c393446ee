"""`ThreadsBackend`: the threads of a LangGraph checkpoint database, on both faces."""

from __future__ import annotations

from typing import Self

from fusebackend.backends.threads.rows import Database
from fusebackend.backends.threads.volume import ThreadsVolume
from fusebackend.backends.volume import VolumeBackend


class ThreadsBackend(VolumeBackend):
    """Every thread of a checkpoint database, its files now and at each checkpoint. See the package's docstring.

    Args:
        database: the way to it; the backend owns it from now on. `from_sqlite` and `from_postgres` make one.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(ThreadsVolume(database))

    @classmethod
    def from_sqlite(cls, path: str) -> Self:
        """The database of a SqliteSaver.

        Raises:
            OSError: there is no such file, or it is something else.
            ModuleNotFoundError: ormsgpack is missing (`fusebackend[langgraph]`).
        """
        from fusebackend.backends.threads.sqlite import SqliteDatabase

        return cls(SqliteDatabase(path))

    @classmethod
    def from_postgres(cls, dsn: str) -> Self:
        """The database of a PostgresSaver; `dsn` is libpq's words or a URI.

        Raises:
            OSError: the server can't be reached, or has not the tables.
            ModuleNotFoundError: psycopg or ormsgpack is missing (`fusebackend[langgraph,postgres]`).
        """
        from fusebackend.backends.threads.postgres import PostgresDatabase

        return cls(PostgresDatabase(dsn))
