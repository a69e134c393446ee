"""`SqliteStoreDatabase`: the database of LangGraph's `SqliteStore`.

`token` is cheap: SQLite counts the commits of other connections (`PRAGMA data_version`), and on a shared connection the
rows that others changed.

The database is opened once more, beside the store's own connection, so that neither waits for the other's locks; only a
database in memory is shared, under the store's own lock. Nothing is added to its schema. Where a URL has named it, the
file that takes its place is opened; until then it is read on, and nothing is written that would be lost.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Any

from fusebackend.backends.store.items import require_columns, version_of
from fusebackend.backends.store.sql_items import Ask, Order, StoreDatabase, StoreDialect
from fusebackend.databases.langgraph import sqlite_path
from fusebackend.databases.sqlite import DatabaseFile, data_version, open_file, transaction, translate_errors


def _next_key(prefix: str) -> str:
    size, key = len(prefix.encode("utf-8")), "CAST(walk.key AS BLOB)"  # a text may hold anything
    slash = f"instr(substr({key}, {size + 1}), x'2f')"
    directory = f"CAST(substr({key}, 1, {size - 1} + {slash}) AS TEXT)"
    return f"CASE WHEN {slash} > 0 THEN {directory} || '0' ELSE walk.key || char(0) END"


DIALECT = StoreDialect(
    row="key, store.rowid, updated_at, length(value)",
    value="value",
    version="fusebackend_version(value)",
    new_value="?",
    now="strftime('%Y-%m-%d %H:%M:%f', 'now')",
    later="DATETIME(CURRENT_TIMESTAMP, '+' || {} || ' minutes')",
    takes_nul=True,
    alive="",
    among=lambda keys: (f"IN ({', '.join('?' * len(keys))})", list(keys)),
    at_a_time=500,  # of 999 parameters, in old versions of SQLite
    next_key=_next_key,
)

ORDER = Order(open_end=" AND key < x''")  # a BLOB comes after all text, and is no key


class SqliteStoreDatabase(StoreDatabase):
    """A connection to the database of a store, and the lock for its use."""

    dialect = DIALECT

    def __init__(self, lock: Any, shared: sqlite3.Connection | None = None) -> None:
        if shared is not None:
            _define(shared)
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
        _define(connection)
        self.own_changes = connection.total_changes
        return connection

    @property
    def owned(self) -> bool:  # type: ignore[override]
        """It is a file, with a connection of its own."""
        return self._file is not None

    @property
    def openings(self) -> int:  # type: ignore[override]
        return self._file.openings if self._file is not None else 0

    @property
    def trouble(self) -> tuple[float, str] | None:
        return self._file.trouble if self._file is not None else None

    def _connection(self) -> sqlite3.Connection:
        connection = self._file.get() if self._file is not None else self._shared
        assert connection is not None, "neither a file nor a connection"
        return connection

    @contextlib.contextmanager
    def asking(self) -> Iterator[Ask]:
        with translate_errors(), self._lock:
            yield self._connection().execute

    @contextlib.contextmanager
    def writing(self, origin: str) -> Iterator[Ask]:
        """One transaction, or nothing. EIO where the file is not at its path any more."""
        with translate_errors(), self._lock:
            connection = self._connection()
            before = connection.total_changes
            self._require_file()
            with transaction(connection):
                yield connection.execute
                self._require_file()
            self.own_changes += connection.total_changes - before
            if self._file is not None:
                self._file.wrote()

    def _require_file(self) -> None:
        if self._file is not None:
            self._file.at.require()

    def order(self, *, may_install: bool) -> Order:
        return ORDER

    def token(self) -> tuple[tuple[int, int], int]:
        with translate_errors(), self._lock:
            connection = self._connection()
            looked = self._file.look() if self._file is not None else (0, data_version(connection))
            return looked, connection.total_changes

    def token_of_others(self, feed: object) -> Hashable:
        version, changes = self.token()
        return version, changes - self.own_changes

    def close(self) -> None:
        if self._file is not None:
            with self._lock:
                self._file.close()


def _define(connection: sqlite3.Connection) -> None:
    connection.create_function("fusebackend_version", 1, _version, deterministic=True)


def _version(value: Any) -> bytes:
    return version_of(value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape"))


def _columns(connection: sqlite3.Connection) -> set[str]:
    return {row[1] for row in connection.execute("PRAGMA table_info(store)")}
