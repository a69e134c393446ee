"""SQLite files: how they are opened, transactions, and which errno an error is."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import sqlite3
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Final
from urllib.parse import quote

from fusebackend.base.at_path import Followed, state_at
from fusebackend.base.errors import oserror

BUSY_S: Final = 5.0
"""How long a statement waits for another connection's lock."""

ERRNO_OF_CODE: Final = {
    sqlite3.SQLITE_BUSY: errno.EBUSY,
    sqlite3.SQLITE_LOCKED: errno.EBUSY,
    sqlite3.SQLITE_READONLY: errno.EROFS,
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_CANTOPEN: errno.ENOENT,
    sqlite3.SQLITE_PERM: errno.EACCES,
    sqlite3.SQLITE_TOOBIG: errno.EFBIG,
}


def primary(error: sqlite3.Error) -> int:
    """SQLite's primary result code of an error, 0 where it has none."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def errno_of(error: sqlite3.Error) -> int:
    return ERRNO_OF_CODE.get(primary(error), errno.EIO)


class translate_errors(contextlib.AbstractContextManager[Any]):  # noqa: N801 - a context manager
    """Raise SQLite's errors as `OSError`s, with `failed` and SQLite's message. Text that is not UTF-8 is EILSEQ.

    It has no state, so one may serve many blocks, also one inside another: around a statement of 5 µs, a context
    manager of `contextlib` takes 2.

    Args:
        rule: replaces the errno of the table.
    """

    __slots__ = ("_failed", "_rule")

    def __init__(self, failed: str = "SQLite", rule: Callable[[int], int] = int) -> None:
        self._failed = failed
        self._rule = rule

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            return
        if isinstance(error, sqlite3.Error):
            raise OSError(self._rule(errno_of(error)), f"{self._failed}: {error}") from error
        if isinstance(error, UnicodeEncodeError):
            raise oserror(errno.EILSEQ) from error


def open_file(path: str, how: str, *, busy_s: float | None = None, any_text: bool = False) -> sqlite3.Connection:
    """Open a file, for use by any thread; each statement is its own transaction.

    Args:
        how: parameters of SQLite's URI, such as `mode=ro`.
        busy_s: how long a statement waits for another connection's lock, in place of `BUSY_S`.
        any_text: read text that is not UTF-8 with surrogateescape, in place of an error.
    """
    uri = f"file:{quote(os.fsencode(os.path.abspath(path)))}?{how}"
    connection = sqlite3.connect(
        uri,
        uri=True,
        timeout=BUSY_S if busy_s is None else busy_s,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=64,
    )
    if any_text:
        connection.text_factory = functools.partial(str, encoding="utf-8", errors="surrogateescape")
    return connection


def bound(value: Any) -> Any:
    """A value for a statement. Text that is not UTF-8 becomes bytes, which SQLite takes and Python's module refuses; a
    number of more than 64 bits becomes the nearest number that SQLite has."""
    if isinstance(value, int):
        return min(max(value, -1 << 63), (1 << 63) - 1)
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            return value.encode("utf-8", "surrogateescape")
    return value


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection, kind: str = "IMMEDIATE") -> Iterator[None]:
    """Commit the statements of a block together, or roll them back when it fails."""
    connection.execute(f"BEGIN {kind}")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk has ended it already
            connection.execute("ROLLBACK")
        raise


# -- files of other programs, read-only ----------------------------------------------------------------------------


class DatabaseFile(Followed[sqlite3.Connection]):
    """A connection to the database at a path, opened anew when that was replaced, or written to past SQLite.

    A file that was copied onto another one shows in its size or time, while SQLite has seen no commit and goes on with
    the pages that it has. A checkpoint by others looks the same: opening takes 0.3 ms.

    Args:
        open_it: opens and checks it.
        follows: as for `Followed`.
    """

    def __init__(self, path: str, open_it: Callable[[], sqlite3.Connection], *, follows: bool = True) -> None:
        self._connect = open_it
        super().__init__(path, self._connected, sqlite3.Connection.close, self._has_seen_commit, follows=follows)

    def look(self) -> tuple[int, int]:
        """Another answer after each commit of others, and when it was opened anew."""
        self._version = data_version(self.get())
        return self.openings, self._version

    def _connected(self) -> sqlite3.Connection:
        connection = self._connect()
        self._version = data_version(connection)
        return connection

    def _has_seen_commit(self, connection: sqlite3.Connection) -> bool:
        before = self._version
        try:
            self._version = data_version(connection)
        except sqlite3.OperationalError:  # another one holds its lock
            raise
        except sqlite3.DatabaseError:  # what was copied onto it is no database
            return False
        return self._version != before


def data_version(connection: sqlite3.Connection) -> int:
    """Another number after each commit by another connection."""
    return int(connection.execute("PRAGMA data_version").fetchone()[0])


def has_wal(path: str) -> bool:
    """Whether a file may have changes that are in its WAL alone."""
    wal = state_at(f"{path}-wal")
    return wal is not None and wal.size > 0


def open_read_only(path: str) -> tuple[sqlite3.Connection, bool]:
    """Open a file for reading.

    A file in WAL mode that no process has open needs a writable directory. Without one it is opened as immutable, and
    True is returned as well: no change shows until it is opened anew.

    Raises:
        OSError: ENOENT; EINVAL for what is no SQLite database; EIO.
    """
    if not os.path.exists(path):
        raise OSError(errno.ENOENT, f"there is no file '{path}'")
    if not os.path.isfile(path):
        raise OSError(errno.EINVAL, f"'{path}' is not a regular file")
    try:
        try:
            return _tried(open_file(path, "mode=ro", any_text=True)), False
        except sqlite3.OperationalError as error:
            if primary(error) not in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
                raise
            if has_wal(path):
                why = f"its newest changes are in '{path}-wal', and can't be read here: '{path}-shm' can't be made"
                how = "copy all of its files to a directory that can be written to"
                raise OSError(errno.EIO, f"'{path}' can't be opened: {why}; {how}") from error
        return _tried(open_file(path, "immutable=1", any_text=True)), True
    except sqlite3.Error as error:
        if primary(error) == sqlite3.SQLITE_NOTADB:
            raise OSError(errno.EINVAL, f"'{path}' is no SQLite database") from None
        raise OSError(errno.EIO, f"'{path}' can't be opened: {error}") from None


def _tried(connection: sqlite3.Connection) -> sqlite3.Connection:
    """SQLite opens a file at the first query."""
    try:
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection
