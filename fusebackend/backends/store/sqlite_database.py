"""`SqliteStoreDatabase`: the database of LangGraph's `SqliteStore`.

`token` is cheap: SQLite counts the commits of other connections (`PRAGMA data_version`), and the rows changed by this
one.

The database is opened once more, beside the store's own connection, so that neither waits for the other's locks. One in
memory can't be: such a store is searched like any other (`searched_items.py`). Nothing is added to its schema. Where a
URL has named it, the file that takes its place is opened; until then it is read on, and nothing is written that would
be lost.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from typing import Any

from fusebackend.backends.store.items import require_columns, version_of
from fusebackend.backends.store.sql_items import Ask, Order, StoreDatabase, StoreDialect
from fusebackend.databases.langgraph import sqlite_path
from fusebackend.databases.sqlite import DatabaseFile, open_file, transaction, translate_errors


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
    """A connection to the database of a store, and the lock for its use.

    Args:
        path: of its file.
        setup: makes the tables if they are missing.
        follows: as for `DatabaseFile`.

    Raises:
        OSError: it is no database, or one with another table of that name, or can't be opened.
    """

    dialect = DIALECT

    def __init__(
        self, path: str, setup: Callable[[sqlite3.Connection], None] | None = None, *, follows: bool = True
    ) -> None:
        self._lock = threading.RLock()
        self._setup = setup
        self._path = os.path.abspath(path)
        self._mode = "rwc"  # later nothing is made in the place of the file: it may be about to arrive
        self._file = DatabaseFile(self._path, self._open, follows=follows)

    @classmethod
    def of_store(cls, store: Any) -> SqliteStoreDatabase | None:
        """The database of a `SqliteStore`; None where that is in memory. The store goes on with the file that it has,
        and so does this.

        Raises:
            OSError: the store can't be set up.
        """
        with translate_errors():
            store.setup()
            path = sqlite_path(store.conn)
        return cls(path, follows=False) if path and os.path.exists(path) else None

    def _open(self) -> sqlite3.Connection:
        with translate_errors():
            connection = open_file(self._path, f"mode={self._mode}", any_text=True)
            try:
                if self._mode == "rwc" and self._setup is not None and not _columns(connection):
                    (application,) = connection.execute("PRAGMA application_id").fetchone()
                    if application:
                        raise OSError(errno.EINVAL, f"The database belongs to another program (id {application:#x})")
                    self._setup(connection)
                require_columns(_columns(connection))
            except BaseException:
                connection.close()
                raise
        connection.create_function("fusebackend_version", 1, _version, deterministic=True)
        self._mode = "rw"
        return connection

    @property
    def openings(self) -> int:  # type: ignore[override]
        return self._file.openings

    @property
    def trouble(self) -> tuple[float, str] | None:
        return self._file.trouble

    @contextlib.contextmanager
    def asking(self) -> Iterator[Ask]:
        with translate_errors(), self._lock:
            yield self._file.get().execute

    @contextlib.contextmanager
    def writing(self, origin: str) -> Iterator[Ask]:
        """One transaction, or nothing. EIO where the file is not at its path any more."""
        with translate_errors(), self._lock:
            connection = self._file.get()
            self._file.at.require()
            with transaction(connection):
                yield connection.execute
                self._file.at.require()
            self._file.wrote()

    def order(self, *, may_install: bool) -> Order:
        return ORDER

    def token(self) -> tuple[tuple[int, int], int]:
        with translate_errors(), self._lock:
            return self._file.look(), self._file.opened.total_changes

    def token_of_others(self, feed: object) -> tuple[int, int]:
        with translate_errors(), self._lock:
            return self._file.look()

    def close(self) -> None:
        with self._lock:
            self._file.close()


def _version(value: Any) -> bytes:
    return version_of(value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape"))


def _columns(connection: sqlite3.Connection) -> set[str]:
    return {row[1] for row in connection.execute("PRAGMA table_info(store)")}
