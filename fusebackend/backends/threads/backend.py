"""`ThreadsBackend`: the threads of a LangGraph checkpoint database, on both faces."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Sequence
from typing import Any, Literal, Self

from fusebackend.backends.threads.database.activity import QUIET_S
from fusebackend.backends.threads.database.rows import Database
from fusebackend.backends.threads.line_view import HEAD
from fusebackend.backends.threads.search import ThreadsSearch
from fusebackend.backends.threads.volume import ThreadsVolume
from fusebackend.backends.threads.writable import WritableThreadsVolume
from fusebackend.base import errors
from fusebackend.base.globs import compile_glob
from fusebackend.base.paths import AgentPath, PathError
from fusebackend.protocol import DeleteResult, FileUploadResponse, GlobResult, GrepResult
from fusebackend.volumes.agent_face import VolumeBackend
from fusebackend.volumes.search import FileSearch, glob_files, grep_found
from fusebackend.volumes.walk import names_of


class ThreadsBackend(VolumeBackend):
    """Every thread of a checkpoint database, its files now and at each checkpoint. See the package's docstring.

    Args:
        database: the way to it; the backend owns it from now on. `from_sqlite`, `from_postgres` and `from_saver`
            make one.
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
        if not isinstance(database, Database):
            raise TypeError(
                f"ThreadsBackend takes the way to a database, not {type(database).__name__}: make it by "
                "ThreadsBackend.from_sqlite(PATH), .from_postgres(DSN) or .from_saver(SAVER)"
            )
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
        from fusebackend.backends.threads.database.sqlite_database import SqliteDatabase

        return cls(SqliteDatabase(path), **options)

    @classmethod
    def from_postgres(cls, dsn: str, **options: Any) -> Self:
        """The database of a PostgresSaver; `dsn` is libpq's words or a URI. Options as for the constructor.

        Raises:
            OSError: the server can't be reached, or has not the tables.
            ModuleNotFoundError: psycopg or ormsgpack is missing (`fusebackend[langgraph,postgres]`).
        """
        from fusebackend.backends.threads.database.postgres_database import PostgresDatabase

        return cls(PostgresDatabase(dsn), **options)

    @classmethod
    def from_saver(cls, saver: Any, **options: Any) -> Self:
        """The checkpoints of a checkpointer object, such as the one a graph was compiled with. Options as for the
        constructor.

        The database of a SqliteSaver or PostgresSaver is opened once more and read directly. Any other saver, an
        `InMemorySaver` among them, is asked itself: listed for news at most twice a second, and for a twentieth of the
        time; it can't be written to. The saver stays the caller's.

        Raises:
            TypeError: it is no saver, or an async one, which answers in its event loop only.
            ValueError: `write="head"` for a saver that is asked itself.
            OSError: its database can't be opened.
            ModuleNotFoundError: ormsgpack is missing (`fusebackend[langgraph]`).
        """
        from fusebackend.backends.threads.database.saver_database import SaverDatabase, database_of_saver

        database = database_of_saver(saver)
        if options.get("write") is not None and isinstance(database, SaverDatabase):
            raise ValueError(f"write='head' needs the database of a SqliteSaver or PostgresSaver, not a "
                             f"{type(saver).__name__}")  # fmt: skip
        return cls(database, **options)

    def _grep_files(
        self, pattern: str, path: str, glob: str | None, max_count: int | None, max_bytes: int
    ) -> GrepResult:
        """`history/` only where the path or the glob names it; see `search.py`."""
        search = ThreadsSearch(glob)
        files = FileSearch(self.volume, path, compile_glob(glob) if glob else None, search.walk)
        result = grep_found(self.volume, pattern, files, max_count, max_bytes, search.read)
        result.truncated |= files.unreadable
        result.missing = search.missing
        return result

    def _glob_files(self, pattern: str, path: str) -> GlobResult:
        search = ThreadsSearch(pattern)
        result = glob_files(self.volume, pattern, path, search.walk)
        result.missing = search.missing
        return result

    def delete(self, file_path: str) -> DeleteResult:
        """What is below a head. Nothing of a thread is deleted because something else of it can't be."""
        with contextlib.suppress(OSError, PathError):
            if not _is_below_head(names_of(file_path)):
                why = os.strerror(errno.EROFS)
                return DeleteResult(error=f"Error deleting '{file_path}': {why}")
        return super().delete(file_path)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Those for the head of one thread become one pending write, which is quicker, and all or nothing."""
        responses: dict[int, FileUploadResponse] = {}
        if isinstance(self.volume, WritableThreadsVolume) and len(files) > 1:
            for thread, group in _by_head(files).items():
                items = [(path, bytes(files[index][1])) for index, path in group.items()]
                try:
                    found = self.volume.store(thread, items)
                except OSError as error:
                    found = [errors.code_of(error)] * len(items)
                responses |= {
                    index: FileUploadResponse(path=files[index][0], error=error)
                    for index, error in zip(group, found, strict=True)
                }
        rest = [index for index in range(len(files)) if index not in responses]
        responses |= zip(rest, super().upload_files([files[index] for index in rest]), strict=True)
        return [responses[index] for index in range(len(files))]


def _by_head(files: list[tuple[str, bytes]]) -> dict[bytes, dict[int, AgentPath]]:
    """Thread → the uploads that are for its head, by their place in the list, with their paths there.

    Without those that are wrong in themselves: who stores them one by one has the words for it.
    """
    found: dict[bytes, dict[int, AgentPath]] = {}
    for index, (path, content) in enumerate(files):
        try:
            names = names_of(path)
            below = AgentPath("/" + b"/".join(names[2:]).decode("utf-8"))
        except (OSError, ValueError):
            continue
        if _is_below_head(names) and isinstance(content, (bytes, bytearray, memoryview)):
            found.setdefault(names[0], {})[index] = below
    return found


def _is_below_head(names: Sequence[bytes]) -> bool:
    return len(names) > 2 and names[1] == HEAD
