"""Opening the SQLite file of somebody else's program: for reading, for writing, and where SQLite would rather not."""

from __future__ import annotations

import errno
import functools
import os
import sqlite3
from typing import Any, Final, NamedTuple
from urllib.parse import quote

BUSY_TIMEOUT_S: Final = 5.0
"""How long a statement waits for somebody else's lock."""


class Frozen(NamedTuple):
    """What differs when a file was written to."""

    inode: int
    mtime_ns: int
    size: int
    has_wal: bool


def frozen(path: str) -> Frozen:
    found = os.stat(path)
    return Frozen(found.st_ino, found.st_mtime_ns, found.st_size, os.path.exists(path + "-wal"))


def connect(path: str) -> tuple[sqlite3.Connection, Frozen | None]:
    """A connection that can read; and how the file is, where it had to be opened as one that does not change."""
    if not os.path.exists(path):
        raise OSError(errno.ENOENT, f"there is no file '{path}'")
    if not os.path.isfile(path):
        raise OSError(errno.EINVAL, f"'{path}' is not a regular file")
    if os.path.getsize(path) == 0:
        raise OSError(errno.EINVAL, f"'{path}' is an empty file, no checkpoint database of LangGraph")
    before = frozen(path)
    try:
        try:
            return _tried(open_file(path, "mode=ro")), None
        except sqlite3.OperationalError as error:
            if primary(error) not in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN) or before.has_wal:
                raise
        return _tried(open_file(path, "immutable=1")), before
    except sqlite3.Error as error:
        if primary(error) == sqlite3.SQLITE_NOTADB:
            raise OSError(errno.EINVAL, f"'{path}' is no SQLite database") from None
        raise OSError(errno.EIO, f"'{path}' can't be opened: {error}") from None


def _tried(connection: sqlite3.Connection) -> sqlite3.Connection:
    """SQLite opens a file when it is first asked for something."""
    try:
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def open_file(path: str, how: str) -> sqlite3.Connection:
    uri = f"file:{quote(os.fsencode(os.path.abspath(path)))}?{how}"
    connection = sqlite3.connect(
        uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False, cached_statements=64
    )
    connection.text_factory = functools.partial(str, encoding="utf-8", errors="surrogateescape")
    return connection


def bound(value: Any) -> Any:
    """A value for a statement: text that is no UTF-8 as its bytes, which SQLite takes and Python's module does not."""
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            return value.encode("utf-8", "surrogateescape")
    return value


def primary(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
