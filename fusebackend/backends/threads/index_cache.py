"""`IndexCache`: the indexes of a database's lines in a file of the server, so that a first `ls -l` reads no checkpoint.

The file is `$XDG_CACHE_HOME/fusebackend/threads/<digest of the database>.db`, readable by its owner only: it has titles
and names. An index is used for checkpoints whose marks are those that it was made with, so a file that is lost, old or
of another database costs time and nothing else. Any error of it is logged once, and the cache not used any more.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import sqlite3
import zlib
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from fusebackend.backends.threads.database.rows import Place
from fusebackend.base import xdg
from fusebackend.databases.sqlite import bound, open_file, primary

FORMAT: Final = 12
"""Of an index. Any other number, and any change in how documents look, is a reason to read the line again."""

MAX_BYTES: Final = 256 << 20
"""Of the file. A larger one is removed when it is opened."""

BUSY_S: Final = 0.2
"""How long to wait for another server's lock. Reading the checkpoints takes as long."""

log = logging.getLogger(__name__)

T = TypeVar("T", bound=tuple[Any, ...])

_TABLE: Final = """
CREATE TABLE IF NOT EXISTS indexes (
    thread TEXT NOT NULL, namespace TEXT NOT NULL, format INTEGER NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (thread, namespace)
) WITHOUT ROWID
"""


class IndexCache:
    """See the module's docstring. Not thread-safe: the volume's lock is held around each call.

    Args:
        database: what tells the database from others, without secrets.
    """

    def __init__(self, database: str) -> None:
        digest = hashlib.blake2b(os.fsencode(database), digest_size=16).hexdigest()
        self.path = xdg.path("XDG_CACHE_HOME", ".cache", "threads", f"{digest}.db")
        self._connection: sqlite3.Connection | None = None
        try:
            self._connection = _opened(self.path)
        except (OSError, sqlite3.Error) as error:
            self._fail(error)

    @property
    def is_open(self) -> bool:
        """False after an error."""
        return self._connection is not None

    def get(self, place: Place, kind: type[T]) -> T | None:
        """A line's index; None where there is none, or another version of it, or something else."""
        if self._connection is None:
            return None
        try:
            row = self._connection.execute(
                "SELECT data FROM indexes WHERE thread = ? AND namespace = ? AND format = ?", _key(place)
            ).fetchone()
        except sqlite3.Error as error:
            self._fail(error)
            return None
        return _decoded(row[0], kind) if row is not None and isinstance(row[0], bytes) else None

    def put(self, place: Place, record: NamedTuple) -> None:
        if self._connection is None:
            return
        try:
            data = zlib.compress(msgspec.json.encode(record), 1)
            self._connection.execute("INSERT OR REPLACE INTO indexes VALUES (?, ?, ?, ?)", (*_key(place), data))
        except UnicodeEncodeError:  # half of a surrogate pair in a name: the line is read again
            return
        except sqlite3.Error as error:
            if primary(error) != sqlite3.SQLITE_BUSY:  # another process writes: the line is read again
                self._fail(error)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _fail(self, error: Exception) -> None:
        log.warning("the cache '%s' can't be used, so first looks read each checkpoint: %s", self.path, error)
        with contextlib.suppress(sqlite3.Error):
            self.close()
        if isinstance(error, sqlite3.Error) and primary(error) == sqlite3.SQLITE_CORRUPT:
            with contextlib.suppress(OSError):
                os.unlink(self.path)  # the next server makes a new one


def _key(place: Place) -> tuple[object, object, int]:
    return bound(place.thread), bound(place.namespace), FORMAT


def _decoded(data: bytes, kind: type[T]) -> T | None:
    """msgspec makes the records in C and checks their types: a third of the time of `json`, in a search through all."""
    try:
        found: T = msgspec.json.decode(zlib.decompress(data), type=kind)
    except (ValueError, RecursionError, zlib.error, msgspec.MsgspecError):
        return None  # the line is read again
    return found


def _opened(path: str) -> sqlite3.Connection:
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        if os.path.getsize(path) > MAX_BYTES:
            os.unlink(path)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # for its mode
    try:
        return _prepared(path)
    except sqlite3.Error as error:
        if primary(error) not in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            raise
        os.unlink(path)
        return _prepared(path)


def _prepared(path: str) -> sqlite3.Connection:
    connection = open_file(path, "mode=rwc", busy_s=BUSY_S)
    try:
        # What is lost with the machine is read again.
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute(_TABLE)
    except BaseException:
        connection.close()
        raise
    return connection
