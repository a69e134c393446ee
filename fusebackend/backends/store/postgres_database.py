"""`PostgresDatabase`: connections to the database of a LangGraph store, and what is found or made there.

Where the database sorts text by language, an index of our own puts keys in the order of their bytes:

    CREATE INDEX CONCURRENTLY fusebackend_store_keys ON store (prefix, key COLLATE "C")

The database is connected to once more, beside the connection of the store that was given, so that neither waits for the
other; only where that fails the store's own is shared, and nothing is listened to.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from fusebackend.backends.store.feed import StoreFeed, install
from fusebackend.backends.store.names import bounds
from fusebackend.databases.postgres_errors import told

if TYPE_CHECKING:
    from psycopg import Cursor

    from fusebackend.backends.store.postgres_items import PostgresItems

log = logging.getLogger(__name__)

INDEX = "fusebackend_store_keys"
BYTEWISE = ("C", "POSIX", "C.UTF-8", "C.utf8")
"""Locales whose order is that of the bytes."""

CONNECTIONS = 4
CONNECT_S = 10
POOL_S = 5.0
"""How many connections one backend opens by itself, and how long it waits for a server to answer, and for a free one
or a server that is back."""

COLUMNS = {"prefix", "key", "value", "created_at", "updated_at", "expires_at", "ttl_minutes"}
"""Of LangGraph's table `store`."""


class PostgresDatabase:
    """The connections to the database of a store: a pool of our own, or the store's where we can't connect."""

    def __init__(self, pool: Any, conninfo: str, *, lock: Any = None) -> None:
        """`pool` may be the one connection of a store, to be used under its `lock`."""
        self.pool = pool
        self._lock = lock
        self.conninfo = conninfo
        self._settling = threading.Lock()
        self._order: Order | None = None
        self._feed: StoreFeed | None = None
        self._feed_tried = False
        self.origin = uuid.uuid4().hex
        """What changes made here are marked with: the feed tells nobody who has heard of them."""

    @classmethod
    def of_store(cls, store: Any) -> PostgresDatabase:
        """That of a `PostgresStore`. Its tables are made if they are not there.

        Raises:
            OSError: they can't be made.
        """
        try:
            database = cls.of_url(_conninfo(store.conn))
        except OSError as error:
            log.info("the store's own connection is shared, for another one can't be made: %s", error)
            database = cls(store.conn, "", lock=store.lock)
        if not database.is_set_up():
            with told():
                store.setup()
        return database

    @classmethod
    def of_url(cls, conninfo: str) -> PostgresDatabase:
        """Connect, with a pool. OSError when that fails."""
        import psycopg
        from psycopg_pool import ConnectionPool

        with told():
            psycopg.connect(conninfo, connect_timeout=CONNECT_S).close()  # a pool would not say why
            pool: Any = ConnectionPool(
                conninfo,
                min_size=1,
                max_size=CONNECTIONS,
                timeout=POOL_S,
                reconnect_timeout=POOL_S,  # then it is tried anew when somebody asks: its own pauses double
                kwargs={"autocommit": True},
                check=ConnectionPool.check_connection,  # a server that was away has left dead ones
                open=True,
            )
        return cls(pool, conninfo)

    def items(self, namespace: tuple[str, ...], **options: Any) -> PostgresItems:
        """The items of a namespace; options as for `PostgresItems`."""
        from fusebackend.backends.store.postgres_items import PostgresItems

        return PostgresItems(self, namespace, **options)

    def close(self) -> None:
        if self._feed is not None:
            self._feed.close()
        if self._lock is None:
            self.pool.close()

    # -- connections -------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def using(self) -> Iterator[Cursor[Any]]:
        """A cursor whose statements are committed one by one."""
        from psycopg.rows import tuple_row

        with told(), contextlib.ExitStack() as stack:
            if hasattr(self.pool, "getconn"):
                connection = stack.enter_context(self.pool.connection())
            else:
                stack.enter_context(self._lock)
                connection = self.pool
            yield stack.enter_context(connection.cursor(row_factory=tuple_row))

    @contextlib.contextmanager
    def writing(self, origin: str) -> Iterator[Cursor[Any]]:
        """One transaction, marked as ours and with who it is of us."""
        with self.using() as cursor, cursor.connection.transaction():
            cursor.execute("SELECT set_config('fusebackend.origin', %s, true)", [f"{self.origin}:{origin}"])
            yield cursor

    # -- what there is in the database -------------------------------------------------------------------------

    def is_set_up(self) -> bool:
        """Is there a table of items? OSError when a table of that name is something else."""
        with self.using() as cursor:
            found = cursor.execute(
                "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass('store') AND attnum > 0"
            ).fetchall()
        missing = COLUMNS - {name for (name,) in found}
        if found and missing:
            raise OSError(errno.EINVAL, f"The table 'store' is not LangGraph's: it has no column {min(missing)!r}")
        return bool(found)

    def namespaces(self) -> list[str]:
        """The namespaces there are, as they are written in URLs."""
        with self.using() as cursor:
            found = cursor.execute("SELECT DISTINCT prefix FROM store ORDER BY prefix LIMIT 100").fetchall()
        return [name for (name,) in found]

    def order(self, *, may_install: bool) -> Order:
        """How keys are put in order; found out once."""
        with self._settling:
            if self._order is None:
                with self.using() as cursor:
                    if _is_bytewise(cursor):
                        self._order = Order("s.key")
                    elif _index_is_there(cursor) or (may_install and _make_index(cursor)):
                        self._order = Order('s.key COLLATE "C"')
                    else:
                        self._order = Order('s.key COLLATE "C"', indexed=False)
            return self._order

    def feed(self) -> StoreFeed | None:
        """What tells of the table's changes, begun when it is first asked for; None where there can be none."""
        with self._settling:
            if not self._feed_tried and self.conninfo:
                self._feed_tried = True
                try:
                    with self.using() as cursor:
                        install(cursor)
                    with told():
                        self._feed = StoreFeed(self.conninfo, self.origin)
                except OSError as error:
                    log.info("changes of the store are not told, but looked for: %s", error)
            return self._feed


class Order(NamedTuple):
    """How a range of keys is written in SQL."""

    key: str
    indexed: bool = True

    def within(self, prefix: str) -> tuple[str, list[str]]:
        """The condition for keys that start with a prefix, as `names.bounds` has it, and its parameters."""
        if not self.indexed:
            return ("starts_with(s.key, %s)", [prefix]) if prefix else ("NOT starts_with(s.key, '/')", [])
        parts: list[str] = []
        parameters: list[str] = []
        for start, end in bounds(prefix):
            parts.append(f"{self.key} >= %s" + (f" AND {self.key} < %s" if end is not None else ""))
            parameters += [start] if end is None else [start, end]
        return "(" + " OR ".join(f"({part})" for part in parts) + ")", parameters


def _is_bytewise(cursor: Cursor[Any]) -> bool:
    """Does the database put text in the order of its bytes?"""
    row = cursor.execute(
        "SELECT datcollate, to_jsonb(d) ->> 'datlocprovider', to_jsonb(d) ->> 'datlocale' FROM pg_database d"
        " WHERE datname = current_database()"
    ).fetchone()
    assert row is not None, "a session has a database"
    collation, provider, locale = row
    if provider == "b":  # PostgreSQL's own, from version 17 on
        return locale in BYTEWISE
    return provider != "i" and collation in BYTEWISE  # "i" is ICU, which sorts by language whatever the collation says


def _index_is_there(cursor: Cursor[Any]) -> bool:
    return bool(
        cursor.execute(
            "SELECT 1 FROM pg_index WHERE indexrelid = to_regclass(%s) AND indisvalid"
            " AND indrelid = to_regclass('store')",
            [INDEX],
        ).fetchone()
    )


def _make_index(cursor: Cursor[Any]) -> bool:
    log.info("an index %s is made, for this database sorts by language", INDEX)
    try:
        with told():
            cursor.execute(f"DROP INDEX IF EXISTS {INDEX}")  # one that was begun and never finished
            cursor.execute(f'CREATE INDEX CONCURRENTLY {INDEX} ON store (prefix, key COLLATE "C")')
    except OSError as error:
        log.info("no index could be made, so listings read all keys: %s", error)
        return False
    return True


def _conninfo(connection: Any) -> str:
    """How a store's connection, or its pool, was made."""
    from psycopg.conninfo import make_conninfo

    if hasattr(connection, "getconn"):
        options = {
            name: value
            for name, value in dict(connection.kwargs or {}).items()
            if name not in ("autocommit", "prepare_threshold", "row_factory", "cursor_factory", "context")
        }
        return make_conninfo(connection.conninfo, **options)
    info = connection.info
    return make_conninfo(**{**info.get_parameters(), "password": info.password or None})
