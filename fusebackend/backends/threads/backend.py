"""`ThreadsBackend`: the threads of a LangGraph checkpoint database, on both faces."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Literal, Self, TypeVar

from fusebackend.backends.threads.database.activity import QUIET_S
from fusebackend.backends.threads.database.rows import Database
from fusebackend.backends.threads.database.sql import SaverTables
from fusebackend.backends.threads.line import REPEATING
from fusebackend.backends.threads.nodes import FileNode
from fusebackend.backends.threads.volume import ThreadsVolume, is_below_head
from fusebackend.base import asked, errors
from fusebackend.base.errors import oserror
from fusebackend.base.extras import needed_by
from fusebackend.base.globs import Matcher, compile_glob
from fusebackend.base.paths import AgentPath, normalise
from fusebackend.databases.dsn import LIBPQ_WORDS, conninfo_of
from fusebackend.protocol import Attr, FileUploadResponse, OnExists, Volume
from fusebackend.protocol.scheme import (
    ON_EXISTS,
    Parameter,
    Scheme,
    Url,
    auto_or_off,
    one_of,
    require_modules,
    seconds,
    url_errors,
)
from fusebackend.volumes.agent_face import VolumeBackend
from fusebackend.volumes.contents import PIECE_BYTES, read_with
from fusebackend.volumes.search import FileSearch, Search
from fusebackend.volumes.walk import PAGE_ENTRIES, FileWalk, names_of

PARAMETERS = {
    "blobs": Parameter(
        str,
        "where the agents' deepagents keeps media, the target of the link THREAD/blobs: below the mount, "
        "such as ../../files/blobs, or absolute",
    ),
    "cache": Parameter(
        auto_or_off,
        "auto (default): sizes of computed files are kept in the server's cache directory; off: they are not",
    ),
    **ON_EXISTS,
    "prune": Parameter(
        one_of("allow"), "allow: rmdir deletes a thread, or a checkpoint in its history; nothing is deleted by default"
    ),
    "quiet_s": Parameter(seconds, "a run counts as ended after so many seconds without a new checkpoint"),
    "write": Parameter(
        one_of("head"), "head: changes of files become pending writes of the thread; read-only by default"
    ),
}
"""Of a URL: arguments of `ThreadsBackend`."""


class ThreadsBackend(VolumeBackend):
    """Every thread of a checkpoint database, its files now and at each checkpoint. See the package's docstring.

    Args:
        database: closed with the backend. `from_sqlite`, `from_postgres` and `from_saver` make one.
        write: `"head"`: a write below `/<thread>/head/` becomes a pending write of the thread, see `head.py`. None:
            nothing can be written.
        blobs: the target of the link `blobs` in each thread, to which media in messages refer; None: there is no link.
        prune: `"allow"`: rmdir of a thread, or of a checkpoint in its history, deletes it, see `prune.py`.
        quiet_s: seconds without a sign of life after which a run counts as ended, and its head as writable.
        cache: keep the sizes of computed files in cache files of the server, see `index.py`.
        on_exists: `write` over an existing file is an `"error"` (the seeds) or a `"replace"` (deepagents 0.7).
    """

    schemes: ClassVar = {
        "threads+sqlite": Scheme(
            "threads+sqlite:PATH",
            "a LangGraph checkpoint database: every thread, its files now and at each checkpoint",
            lambda url: open_threads(url),
            takes="path",
            parameters=PARAMETERS,
        ),
        "threads+postgres": Scheme(
            "threads+postgres:DSN",
            "the same in PostgreSQL",
            lambda url: open_threads(url),
            parameters=PARAMETERS,
            passed_on=LIBPQ_WORDS,
        ),
    }

    volume: ThreadsVolume

    def __init__(
        self,
        database: Database,
        *,
        write: Literal["head"] | None = None,
        blobs: str | None = None,
        prune: Literal["allow"] | None = None,
        quiet_s: float = QUIET_S,
        on_exists: OnExists = "error",
        cache: bool = True,
    ) -> None:
        if not isinstance(database, Database):
            raise TypeError(
                f"ThreadsBackend takes the way to a database, not {type(database).__name__}: make it by "
                "ThreadsBackend.from_sqlite(PATH), .from_postgres(DSN) or .from_saver(SAVER)"
            )
        if write not in (None, "head"):
            raise ValueError(f"write must be 'head' or None, not {write!r}")
        if prune not in (None, "allow"):
            raise ValueError(f"prune must be 'allow' or None, not {prune!r}")
        volume = ThreadsVolume(
            database,
            cache=cache,
            blobs=None if blobs is None else os.fsencode(blobs),
            may_prune=prune == "allow",
            may_write=write == "head",
            quiet_s=quiet_s,
        )
        super().__init__(volume, on_exists=on_exists)

    @classmethod
    def from_sqlite(cls, path: str, **options: Any) -> Self:
        """The database of a SqliteSaver. Options as for the constructor.

        Raises:
            OSError: there is no such file, or it is something else.
            ModuleNotFoundError: ormsgpack is missing (`fusebackend[langgraph]`).
        """
        from fusebackend.backends.threads.database.sqlite import SqliteDatabase

        return cls(SqliteDatabase(path), **options)

    @classmethod
    def from_postgres(cls, dsn: str, **options: Any) -> Self:
        """The database of a PostgresSaver; `dsn` is libpq's words or a URI. Options as for the constructor.

        Raises:
            OSError: the server can't be reached, or has not the tables.
            ModuleNotFoundError: psycopg or ormsgpack is missing (`fusebackend[langgraph,postgres]`).
        """
        with needed_by("threads+postgres:"):
            from fusebackend.backends.threads.database.postgres import PostgresDatabase

        return cls(PostgresDatabase(dsn), **options)

    @classmethod
    def from_saver(cls, saver: Any, **options: Any) -> Self:
        """The checkpoints of a checkpointer object, such as the one a graph was compiled with. Options as for the
        constructor.

        The database of a SqliteSaver or PostgresSaver is opened once more and read directly. Any other saver, such as
        an `InMemorySaver`, is called itself: listed for news at most twice a second, and for a twentieth of the time;
        it can't be written to. The saver stays the caller's.

        Raises:
            TypeError: it is no saver, or an async one, which answers in its event loop only.
            ValueError: `write="head"` for a saver that is called itself.
            OSError: its database can't be opened.
            ModuleNotFoundError: ormsgpack is missing (`fusebackend[langgraph]`).
        """
        from fusebackend.backends.threads.database.saver import SaverDatabase, database_of_saver

        database = database_of_saver(saver)
        if options.get("write") is not None and isinstance(database, SaverDatabase):
            raise ValueError(f"write='head' needs the database of a SqliteSaver or PostgresSaver, not a "
                             f"{type(saver).__name__}")  # fmt: skip
        return cls(database, **options)

    def _search(self, path: str, matcher: Matcher | None, pattern: str | None = None) -> Search:
        return ThreadsSearch(self.volume, path, matcher, self.max_search_bytes)

    def upload_files(
        self,
        files: list[tuple[str, bytes]],
        *,
        if_version: Sequence[str | None] | None = None,
        if_absent: Sequence[bool] | None = None,
    ) -> list[FileUploadResponse]:
        """The uploads for the head of one thread become one pending write, which is quicker, and all or nothing."""
        if if_version or if_absent:
            return super().upload_files(files, if_version=if_version, if_absent=if_absent)
        responses: dict[int, FileUploadResponse] = {}
        if not self.volume.features.read_only and len(files) > 1:
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
    """Thread → the uploads for its head, by their place in the list, with their paths there.

    Without invalid ones, whose errors come from the single upload.
    """
    found: dict[bytes, dict[int, AgentPath]] = {}
    for index, (path, content) in enumerate(files):
        try:
            names = names_of(normalise(path))
            below = AgentPath("/" + b"/".join(names[2:]).decode("utf-8"))
        except (OSError, ValueError):
            continue
        if is_below_head(names) and isinstance(content, (bytes, bytearray, memoryview)):
            found.setdefault(names[0], {})[index] = below
    return found


# -- searching -------------------------------------------------------------------------------------------------------

LEFT_OUT = "history/, messages/, changes/ and the pages of threads are searched only where path or pattern name one"
"""`missing` of an answer that is without it."""

T = TypeVar("T")


class ThreadsSearch(FileSearch):
    """One search of threads. What repeats other files is left out unless the search names it.

    A history has each file once for every checkpoint. In 1,000 threads of 30 checkpoints that is thirty times the files
    of the heads: a search of all spent its 15 s on the history of the first 300 threads and never saw the other heads.
    """

    def __init__(self, volume: Volume, path: str, matcher: Matcher | None, max_bytes: int) -> None:
        wanted = asked.current()
        given = [matcher, compile_glob(wanted.pattern) if wanted is not None else None]
        named = {os.fsencode(name) for pattern in given if pattern is not None for name in pattern.names}
        self._left_out = frozenset() if named & REPEATING else REPEATING
        self._narrower = compile_glob(wanted.here) if wanted is not None and wanted.here is not None else None
        self._damaged: str | None = None  # the error of the first file that was skipped
        super().__init__(volume, path, matcher, max_bytes, self.walk, self.read)

    def walk(self, volume: Volume, directory: int, *, below: Sequence[str] = (), depth: int | None = None) -> FileWalk:
        """A `MakeWalk`. Of a search over several backends it goes no further than the whole glob does."""
        if self._narrower is not None and len(self._narrower.prefix) > len(below):
            below, depth = self._narrower.prefix, self._narrower.depth
        walk = ThreadsWalk(volume, directory, below=below, depth=depth)
        walk.left_out = self._left_out
        return walk

    def read(self, volume: Volume, attr: Attr, max_bytes: int, take: Callable[[Iterable[bytes]], T]) -> T:
        """As `contents.read_with`, without opening the node: that took half of the time of a `grep`.

        A damaged file is skipped and reported, as one without read permission: the others are still searched.
        """
        if not isinstance(attr, FileNode):
            return read_with(volume, attr, max_bytes, take)  # of a head that can be written to
        with volume.viewing():
            try:
                attr.settle()
                data = attr.data()
            except OSError as error:
                if error.errno == errno.EIO:
                    raise self._passed_over(str(error.strerror)) from None
                raise
        if len(data) > max_bytes:
            raise oserror(errno.EFBIG)
        return take(data[start : start + PIECE_BYTES] for start in range(0, len(data), PIECE_BYTES))

    def _passed_over(self, why: str) -> OSError:
        self._damaged = self._damaged or why
        return OSError(errno.EACCES, why)

    @property
    def missing(self) -> str | None:  # type: ignore[override]
        left_out = LEFT_OUT if isinstance(self._walk, ThreadsWalk) and self._walk.has_left_out else None
        return "; ".join(filter(None, (self._damaged, left_out))) or None


class ThreadsWalk(FileWalk):
    """Leaves out what repeats other files, except where the walk begins in it: then the path has named it."""

    left_out: frozenset[bytes] = frozenset()
    """The names to leave out."""

    has_left_out = False

    def _entries(self, directory: int) -> Iterator[tuple[bytes, Attr]]:
        """Attributes of pages are not looked at: their sizes follow from all checkpoints of a thread."""
        assert isinstance(self._volume, ThreadsVolume)
        after = b""
        while page := self._volume.readdir_without(directory, after, PAGE_ENTRIES, self.left_out):
            for name, attr in page:
                if attr is not None:
                    yield name, attr
                else:
                    self.has_left_out = True
            after = page[-1][0]


# -- URLs ------------------------------------------------------------------------------------------------------------


def open_threads(url: Url) -> ThreadsBackend:
    """The backend of a URL."""
    with url_errors(url):
        options = {name: value for name, value in url.parameters.items() if name in PARAMETERS}
        return ThreadsBackend(database_of(url), **options)


def database_of(url: Url) -> SaverTables:
    """The database of `threads+sqlite:PATH` or `threads+postgres:DSN`. UrlError; OSError; ModuleNotFoundError."""
    if url.scheme == "threads+sqlite":
        from fusebackend.backends.threads.database.sqlite import SqliteDatabase

        return SqliteDatabase(url.rest)
    require_modules(url, "langgraph", "ormsgpack")
    require_modules(url, "postgres", "psycopg")
    from fusebackend.backends.threads.database.postgres import PostgresDatabase

    return PostgresDatabase(conninfo_of(url))
