"""`SqliteItems`: a namespace of LangGraph's `SqliteStore`, queried from its table directly.

A directory is a range of the table's primary key `(prefix, key)`, and subdirectories are skipped, so the cost of a
listing depends on its length, not on the number of keys. Only sizes are cached, under a row's stamp. `token` is cheap:
SQLite counts the commits of other connections (`PRAGMA data_version`), and on a shared connection the rows that others
changed.

The database is opened once more, beside the store's own connection, so that neither waits for the other's locks; only a
database in memory is shared, under the store's own lock. Nothing is added to its schema. Where a URL has named it, the
file that takes its place is opened; until then it is read on, and nothing is written that would be lost.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any

from fusebackend.backends.store.items import (
    NAMESPACES,
    Anything,
    Change,
    Conflict,
    Items,
    Record,
    Row,
    Settings,
    after,
    bounds,
    is_text,
    require_columns,
    version_of,
)
from fusebackend.backends.store.searched_items import PutOneByOne
from fusebackend.backends.store.values import About, UnreadableValue
from fusebackend.databases.langgraph import sqlite_path
from fusebackend.databases.sqlite import DatabaseFile, data_version, open_file, transaction, translate_errors

log = logging.getLogger(__name__)

KEYS_AT_A_TIME = 500
"""SQLite takes so many parameters in one statement, and more in newer versions only."""

_NO_TEXT = "x''"
"""Sorts after all text."""

_ROW = "key, rowid, updated_at, length(value)"


class SqliteStoreDatabase:
    """A connection to the database of a store, and the lock for its use."""

    def __init__(self, lock: Any, shared: sqlite3.Connection | None = None) -> None:
        self._lock = lock
        self._shared = shared
        self._file: DatabaseFile | None = None
        self.own_changes = 0
        """Rows that were changed here, among those that the connection has counted."""

    @classmethod
    def of_store(cls, store: Any) -> SqliteStoreDatabase:
        """The database of a `SqliteStore`: a connection of its own where it is a file. The store goes on with the file
        that it has, and so does this.

        Raises:
            OSError: the store can't be set up.
        """
        with translate_errors():
            store.setup()
            path = sqlite_path(store.conn)
        if path and os.path.exists(path):
            return cls.of_file(path, follows=False)
        return cls(store.lock, store.conn)

    @classmethod
    def of_file(
        cls, path: str, setup: Callable[[sqlite3.Connection], None] | None = None, *, follows: bool = True
    ) -> SqliteStoreDatabase:
        """Open a file; `setup` makes the tables if they are missing. `follows` is as for `DatabaseFile`.

        Raises:
            OSError: it is no database, or one with another table of that name, or can't be opened.
        """
        database, path = cls(threading.RLock()), os.path.abspath(path)
        database._file = DatabaseFile(path, lambda: database._opened(path, setup), follows=follows)
        return database

    def _opened(self, path: str, setup: Callable[[sqlite3.Connection], None] | None) -> sqlite3.Connection:
        """Nothing is made in the place of a file that was open: it may be about to arrive."""
        is_first = self._file is None
        with translate_errors():
            connection = open_file(path, "mode=rwc" if is_first else "mode=rw", any_text=True)
            try:
                if is_first and setup is not None and not _columns(connection):
                    (application,) = connection.execute("PRAGMA application_id").fetchone()
                    if application:
                        raise OSError(errno.EINVAL, f"The database belongs to another program (id {application:#x})")
                    setup(connection)
                require_columns(_columns(connection))
            except BaseException:
                connection.close()
                raise
        self.own_changes = connection.total_changes
        return connection

    @property
    def owned(self) -> bool:
        """It is a file, with a connection of its own."""
        return self._file is not None

    @property
    def openings(self) -> int:
        return self._file.openings if self._file is not None else 0

    @property
    def trouble(self) -> tuple[float, str] | None:
        return self._file.trouble if self._file is not None else None

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        with translate_errors(), self._lock:
            connection = self._file.get() if self._file is not None else self._shared
            assert connection is not None, "neither a file nor a connection"
            yield connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction, or nothing. EIO where the file is not at its path any more."""
        with self.reading() as connection:
            before = connection.total_changes
            self._require_file()
            with transaction(connection):
                yield connection
                self._require_file()
            self.own_changes += connection.total_changes - before
            if self._file is not None:
                self._file.wrote()

    def _require_file(self) -> None:
        if self._file is not None:
            self._file.at.require()

    def namespaces(self) -> list[str]:
        with self.reading() as connection:
            return [prefix for (prefix,) in connection.execute(NAMESPACES) if isinstance(prefix, str)]

    def token(self) -> tuple[tuple[int, int], int]:
        with self.reading() as connection:
            looked = self._file.look() if self._file is not None else (0, data_version(connection))
            return looked, connection.total_changes

    def items(self, namespace: tuple[str, ...], settings: Settings) -> SqliteItems:
        return SqliteItems(self, namespace, settings)

    def close(self) -> None:
        if self._file is not None:
            with self._lock:
                self._file.close()


class SqliteItems(Items):
    """See the module's docstring."""

    def __init__(self, database: SqliteStoreDatabase, namespace: tuple[str, ...], settings: Settings) -> None:
        super().__init__()
        self._database = database
        self.durable = self.blocking = database.owned
        self._namespace = ".".join(namespace)
        self._settings = settings
        self._described = database.openings
        self._by_store = PutOneByOne(settings.embedding, namespace) if settings.embedding is not None else None

    # -- reading -----------------------------------------------------------------------------------------------

    def level(self, prefix: str) -> list[Row]:
        found: list[Row] = []
        with self._database.reading() as connection:
            for start, end in bounds(prefix):
                from_key: str | None = start
                while from_key is not None:
                    from_key = self._until_subdirectory(connection, prefix, from_key, end, found)
        return found

    def _until_subdirectory(
        self, connection: sqlite3.Connection, prefix: str, start: str, end: str | None, found: list[Row]
    ) -> str | None:
        """Add rows up to the first in a subdirectory; returns the first key after that subdirectory."""
        for row in _range(connection, self._namespace, start, end):
            found.append(row)
            if "/" in row.key[len(prefix) :]:
                return after(row.key, prefix)
        return None

    def below(self, prefix: str) -> list[Row]:
        with self._database.reading() as connection:
            return [row for start, end in bounds(prefix) for row in _range(connection, self._namespace, start, end)]

    def look(self, keys: Sequence[str], prefixes: Sequence[str]) -> tuple[list[Row], list[str]]:
        with self._database.reading() as connection:
            rows = [
                Row(key, (rowid, updated_at, length), length or 0)
                for key, rowid, updated_at, length in _in(connection, _ROW, self._namespace, keys)
            ]
            return rows, [prefix for prefix in prefixes if self._any_below(connection, prefix)]

    def _any_below(self, connection: sqlite3.Connection, prefix: str) -> bool:
        ranges = bounds(prefix)
        return any(next(_range(connection, self._namespace, start, end), None) is not None for start, end in ranges)

    def twins(self) -> list[str]:
        with self._database.reading() as connection:
            found = connection.execute(
                "SELECT bare.key FROM store AS bare WHERE bare.prefix = ?1"
                f" AND (bare.key < '/' OR bare.key >= '0') AND bare.key >= '' AND bare.key < {_NO_TEXT}"
                " AND EXISTS (SELECT 1 FROM store WHERE prefix = ?1 AND key = '/' || bare.key)",
                (self._namespace,),
            )
            return [key for (key,) in found if is_text(key)]

    def fetch(self, keys: Sequence[str]) -> dict[str, Record]:
        with self._database.reading() as connection:
            found = {
                key: Record(_loaded(raw), _raw(raw), _iso(updated_at), ttl)
                for key, raw, updated_at, ttl in _in(
                    connection, "key, value, updated_at, ttl_minutes", self._namespace, keys
                )
            }
            mortal = [key for key, record in found.items() if record.ttl_minutes is not None]
            if self._settings.refreshes and mortal:
                connection.executemany(
                    "UPDATE store SET expires_at = DATETIME(CURRENT_TIMESTAMP, '+' || ttl_minutes || ' minutes')"
                    " WHERE prefix = ? AND key = ?",
                    [(self._namespace, key) for key in mortal],
                )
            return found

    def describe(self, rows: Iterable[Row]) -> dict[str, About]:
        if self._described != self._database.openings:
            self._known.clear()  # the rows of another file may have the same stamps
            self._described = self._database.openings
        return super().describe(rows)

    def token(self) -> Hashable:
        version, changes = self._database.token()
        return version, changes - self._database.own_changes

    @property
    def trouble(self) -> tuple[float, str] | None:
        return self._database.trouble

    # -- writing -----------------------------------------------------------------------------------------------

    def swap(self, changes: Sequence[Change]) -> None:
        if self._by_store is not None:
            self._by_store.swap(changes, self.fetch)
        else:
            with self._database.writing() as connection:
                for change in changes:
                    self._change(connection, change)
        for change in changes:
            self._known.pop(change.key, None)

    def _change(self, connection: sqlite3.Connection, change: Change) -> None:
        place = (self._namespace, change.key)
        if not isinstance(change.expected, Anything):
            row = connection.execute("SELECT value FROM store WHERE prefix = ? AND key = ?", place).fetchone()
            if change.expected != (None if row is None else version_of(_raw(row[0]))):
                raise Conflict(change.key)
        if change.value is None:
            connection.execute("DELETE FROM store WHERE prefix = ? AND key = ?", place)
            return
        ttl = change.ttl_minutes if self._settings.ttl_minutes is None else self._settings.ttl_minutes
        expires_at = None
        if ttl is not None:
            expires_at = str(datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=ttl))
        connection.execute(
            "INSERT INTO store (prefix, key, value, created_at, updated_at, expires_at, ttl_minutes)"
            " VALUES (?, ?, ?, CURRENT_TIMESTAMP, strftime('%Y-%m-%d %H:%M:%f', 'now'), ?, ?)"
            " ON CONFLICT (prefix, key) DO UPDATE SET value = excluded.value, updated_at = excluded.updated_at,"
            " expires_at = excluded.expires_at, ttl_minutes = excluded.ttl_minutes",
            (*place, _dumped(change.value), expires_at, ttl),
        )

    def close(self) -> None:
        self._database.close()


def _columns(connection: sqlite3.Connection) -> set[str]:
    return {row[1] for row in connection.execute("PRAGMA table_info(store)")}


def _range(connection: sqlite3.Connection, namespace: str, start: str, end: str | None) -> Iterator[Row]:
    """Rows from one key up to another, read as far as the iterator is followed."""
    # A BLOB comes after all text, and is no key.
    where = f"prefix = ? AND key >= ? AND key < {'?' if end is not None else _NO_TEXT}"
    parameters = [namespace, start] if end is None else [namespace, start, end]
    for key, rowid, updated_at, length in connection.execute(
        f"SELECT {_ROW} FROM store WHERE {where} ORDER BY key", parameters
    ):
        if is_text(key):
            yield Row(key, (rowid, updated_at, length), length or 0)
        else:
            log.error("row %d of the table 'store' has a key that is no UTF-8, and is not shown", rowid)


def _in(connection: sqlite3.Connection, columns: str, namespace: str, keys: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    for begin in range(0, len(keys), KEYS_AT_A_TIME):
        some = keys[begin : begin + KEYS_AT_A_TIME]
        marks = ", ".join("?" * len(some))
        yield from connection.execute(
            f"SELECT {columns} FROM store WHERE prefix = ? AND key IN ({marks})", [namespace, *some]
        )


def _raw(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")


def _loaded(value: Any) -> Any:
    import msgspec

    raw = _raw(value)
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return UnreadableValue(raw)


def _dumped(value: Any) -> bytes:
    """As the store writes it: UTF-8 in bytes."""
    import msgspec

    return msgspec.json.encode(value)


def _iso(moment: Any) -> str:
    """SQLite's CURRENT_TIMESTAMP, which is UTC without an offset, as ISO 8601."""
    if isinstance(moment, datetime.datetime):
        return moment.replace(tzinfo=moment.tzinfo or datetime.UTC).isoformat()
    return f"{str(moment).replace(' ', 'T')}+00:00" if moment else ""
