"""`PostgresItems`: a namespace of LangGraph's `PostgresStore`, queried from its table; and `PostgresStoreDatabase`.

As in `sqlite_items.py`, a directory is a range of keys, by the primary key `(prefix, key)` where the database compares
text by its bytes (C, POSIX, C.UTF-8). Elsewhere an index of our own has that order:

    CREATE INDEX CONCURRENTLY fusebackend_store_keys ON store (prefix, key COLLATE "C")

Where it can't be made (`feed=False`, or no privilege), the server reads all keys of the namespace for a listing and
sends the listed ones. A change compares the value as JSONB prints it. A trigger on the table notifies of the changes of
others (`feed.py`).

The database is connected to once more, beside the store's own connection, so that neither waits for the other. Only
where that fails the store's connection is shared, without a feed. Behind a transaction pooler, whose connections have
no process of the server to themselves, nothing is prepared and there is no feed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import threading
import uuid
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fusebackend.backends.store.feed import StoreFeed, install
from fusebackend.backends.store.items import (
    ANYTHING,
    NAMESPACES,
    Change,
    Conflict,
    Items,
    Record,
    Row,
    Settings,
    after,
    bounds,
    require_columns,
)
from fusebackend.backends.store.searched_items import PutOneByOne
from fusebackend.backends.store.values import UnreadableValue
from fusebackend.databases.langgraph import dsn_of
from fusebackend.databases.postgres import Connections, is_pooled, translate_errors

if TYPE_CHECKING:
    from psycopg import Connection, Cursor

log = logging.getLogger(__name__)

INDEX = "fusebackend_store_keys"
BYTEWISE = ("C", "POSIX", "C.UTF-8", "C.utf8")
"""Locales whose order is that of the bytes."""

CONNECTIONS = 4
"""Connections of one database at most."""

PREPARED_AFTER = 5
"""Uses of a statement by a connection."""


class PostgresStoreDatabase:
    """The connections to the database of a store, and the schema that is found or made there.

    Args:
        conninfo: for connections of our own; None to share the store's connection or pool.
        shared: the store's connection or pool, and the lock for its use.

    Raises:
        OSError: no connection can be made.
    """

    trouble: tuple[float, str] | None = None
    """The pool makes lost connections anew."""

    def __init__(self, conninfo: str | None, shared: tuple[Any, Any] | None = None) -> None:
        self._is_pooled = conninfo is not None and is_pooled(conninfo)
        threshold = None if self._is_pooled else PREPARED_AFTER
        self._connections = Connections(conninfo, CONNECTIONS, prepare_threshold=threshold) if conninfo else None
        self._shared = shared
        self._settling = threading.Lock()
        self._order: Order | None = None
        self._feed: StoreFeed | None = None
        self._feed_tried = False
        self.origin = uuid.uuid4().hex
        """The mark of changes that are made here: the feed does not repeat them to their makers."""

    @classmethod
    def of_store(cls, store: Any) -> PostgresStoreDatabase:
        """The database of a `PostgresStore`. Makes its tables if they are missing.

        Raises:
            OSError: they can't be made.
        """
        try:
            database = cls(dsn_of(store.conn))
        except OSError as error:
            log.info("the store's own connection is shared, for another one can't be made: %s", error)
            database = cls(None, (store.conn, store.lock))
        if not database._is_set_up():
            with translate_errors():
                store.setup()
        return database

    @classmethod
    def of_url(cls, conninfo: str, setup: Callable[[Connection[Any]], None]) -> PostgresStoreDatabase:
        """Connect; `setup` makes the tables if they are missing. OSError when that fails."""
        database = cls(conninfo)
        try:
            if not database._is_set_up():
                with database.using() as cursor:
                    setup(cursor.connection)
        except BaseException:
            database.close()
            raise
        return database

    def items(self, namespace: tuple[str, ...], settings: Settings) -> PostgresItems:
        return PostgresItems(self, namespace, settings)

    def close(self) -> None:
        if self._feed is not None:
            self._feed.close()
        if self._connections is not None:
            self._connections.close()

    # -- connections -------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def using(self) -> Iterator[Cursor[Any]]:
        """A cursor whose statements are committed one by one."""
        from psycopg.rows import tuple_row

        with translate_errors(), contextlib.ExitStack() as stack:
            if self._connections is not None:
                connection = stack.enter_context(self._connections.leased(_ping))
            else:
                assert self._shared is not None
                connection, lock = self._shared
                if hasattr(connection, "getconn"):  # a pool
                    connection = stack.enter_context(connection.connection())
                else:
                    stack.enter_context(lock)
            yield stack.enter_context(connection.cursor(row_factory=tuple_row))

    @contextlib.contextmanager
    def writing(self, origin: str) -> Iterator[Cursor[Any]]:
        """One transaction, marked with our origin and that of the mount."""
        with self.using() as cursor, cursor.connection.transaction():
            cursor.execute("SELECT set_config('fusebackend.origin', %s, true)", [f"{self.origin}:{origin}"])
            yield cursor

    # -- the schema --------------------------------------------------------------------------------------------

    def _is_set_up(self) -> bool:
        """Whether there is a table of items. EINVAL when a table of that name is another program's."""
        with self.using() as cursor:
            found = cursor.execute(
                "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass('store') AND attnum > 0"
            ).fetchall()
        if found:
            require_columns({name for (name,) in found})
        return bool(found)

    def namespaces(self) -> list[str]:
        with self.using() as cursor:
            return [name for (name,) in cursor.execute(NAMESPACES).fetchall()]

    def token(self) -> None:
        """Unknown: the feed notifies of changes in single namespaces only."""

    def order(self, *, may_install: bool) -> Order:
        """The order of keys; determined once."""
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
        """The feed of the table's changes, begun by the first call; None where there can be none."""
        with self._settling:
            if not self._feed_tried and self._connections is not None:
                self._feed_tried = True
                try:
                    if self._is_pooled:
                        raise OSError(errno.ENOTSUP, "notifications do not pass a transaction pooler")
                    with self.using() as cursor:
                        install(cursor)
                    with translate_errors():
                        self._feed = StoreFeed(self._connections.conninfo, self.origin)
                except OSError as error:
                    log.info("changes of the store are not told, but looked for: %s", error)
            return self._feed


class Order(NamedTuple):
    """A range of keys in SQL."""

    key: str
    indexed: bool = True

    def within(self, prefix: str) -> tuple[str, list[str]]:
        """The condition for keys that start with a prefix, as in `items.bounds`, and its parameters."""
        if not self.indexed:
            return ("starts_with(s.key, %s)", [prefix]) if prefix else ("NOT starts_with(s.key, '/')", [])
        parts: list[str] = []
        parameters: list[str] = []
        for start, end in bounds(prefix):
            parts.append(f"{self.key} >= %s" + (f" AND {self.key} < %s" if end is not None else ""))
            parameters += [start] if end is None else [start, end]
        return "(" + " OR ".join(f"({part})" for part in parts) + ")", parameters


def _is_bytewise(cursor: Cursor[Any]) -> bool:
    """Whether the database compares text by its bytes."""
    row = cursor.execute(
        "SELECT datcollate, to_jsonb(d) ->> 'datlocprovider', to_jsonb(d) ->> 'datlocale' FROM pg_database d"
        " WHERE datname = current_database()"
    ).fetchone()
    assert row is not None, "a session has a database"
    collation, provider, locale = row
    if provider == "b":  # PostgreSQL's own, from version 17 on
        return locale in BYTEWISE
    return provider != "i" and collation in BYTEWISE  # "i" is ICU, which sorts by language with any collation


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
        with translate_errors():
            cursor.execute(f"DROP INDEX IF EXISTS {INDEX}")  # its creation may have been cut short
            cursor.execute(f'CREATE INDEX CONCURRENTLY {INDEX} ON store (prefix, key COLLATE "C")')
    except OSError as error:
        log.info("no index could be made, so listings read all keys: %s", error)
        return False
    return True


def _ping(connection: Connection[Any]) -> None:
    """Detects a connection that was lost while the server was away."""
    connection.execute("")


FIRST_BATCH, LAST_BATCH = 256, 16_384
"""Rows of a directory in one query; more while they are files."""

_ROW = "s.key, s.xmin::text, s.ctid::text, pg_column_size(s.value)"

_DIGEST = "sha256(convert_to(s.value::text, 'UTF8'))"
"""`items.version_of`, by the server."""


class PostgresItems(Items):
    """See the module's docstring."""

    takes_nul = False

    def __init__(self, database: PostgresStoreDatabase, namespace: tuple[str, ...], settings: Settings) -> None:
        super().__init__()
        self._database = database
        self._namespace = ".".join(namespace)
        self._settings = settings
        self._by_store = PutOneByOne(settings.embedding, namespace) if settings.embedding is not None else None
        self._alive = " AND (s.expires_at IS NULL OR s.expires_at > now())" if settings.omit_expired else ""

    # -- reading -----------------------------------------------------------------------------------------------

    @property
    def _order(self) -> Order:
        return self._database.order(may_install=self._settings.feed)

    def level(self, prefix: str) -> list[Row]:
        order = self._order
        with self._database.using() as cursor:
            if not order.indexed:
                return self._grouped(cursor, prefix)
            found: list[Row] = []
            for start, end in bounds(prefix):
                found += self._walked(cursor, prefix, start, end)
            return found

    def _walked(self, cursor: Cursor[Any], prefix: str, start: str, end: str | None) -> list[Row]:
        """Rows of a level: scan where there are files, and hop where there are subdirectories."""
        found: list[Row] = []
        limit, hop = FIRST_BATCH, False
        while True:
            batch = (self._hop if hop else self._scan)(cursor, prefix, start, end, limit)
            before, position = len(found), start
            for row in batch:
                if found and row.key < position:
                    continue  # in a subdirectory that is listed already
                found.append(row)
                position = _after(row.key, prefix)
            if len(batch) < limit:
                return found
            start = position
            hop = (len(found) - before) * 4 < len(batch) or hop
            limit = min(limit * 4, LAST_BATCH)

    def _scan(self, cursor: Cursor[Any], prefix: str, start: str, end: str | None, limit: int) -> list[Row]:
        key = self._order.key
        upto = f" AND {key} < %(end)s" if end is not None else ""
        return _rows(
            cursor.execute(
                f"SELECT {_ROW} FROM store s WHERE s.prefix = %(namespace)s AND {key} >= %(start)s{upto}{self._alive}"
                f" ORDER BY {key} LIMIT %(limit)s",
                {"namespace": self._namespace, "start": start, "end": end, "limit": limit},
            )
        )

    def _hop(self, cursor: Cursor[Any], prefix: str, start: str, end: str | None, limit: int) -> list[Row]:
        """One row of each subdirectory: a recursion over the index, which PostgreSQL does not hop along by itself."""
        key = self._order.key
        upto = f" AND {key} < %(end)s" if end is not None else ""
        first = f"SELECT s.key FROM store s WHERE s.prefix = %(namespace)s{upto}{self._alive} AND {key} >= "
        slash = "strpos(substr(walk.key, %(size)s + 1), '/')"
        behind = f"CASE WHEN {slash} > 0 THEN left(walk.key, %(size)s + {slash} - 1) || '0' ELSE walk.key || chr(1) END"
        return _rows(
            cursor.execute(
                f"WITH RECURSIVE walk(key) AS (({first} %(start)s ORDER BY {key} LIMIT 1) UNION ALL"
                f" SELECT ({first} {behind} ORDER BY {key} LIMIT 1) FROM walk WHERE walk.key IS NOT NULL)"
                f" SELECT {_ROW} FROM (SELECT key FROM walk WHERE key IS NOT NULL LIMIT %(limit)s) AS found"
                f" JOIN store s ON s.prefix = %(namespace)s AND s.key = found.key ORDER BY {key}",
                {"namespace": self._namespace, "start": start, "end": end, "limit": limit, "size": len(prefix)},
            )
        )

    def _grouped(self, cursor: Cursor[Any], prefix: str) -> list[Row]:
        where, parameters = self._order.within(prefix)
        return _rows(
            cursor.execute(
                'SELECT min(key COLLATE "C"), min(xmin), min(ctid), min(size) FROM (SELECT s.key, s.xmin::text,'
                " s.ctid::text, pg_column_size(s.value) AS size, substr(s.key, %s) AS rest FROM store s"
                f" WHERE s.prefix = %s AND {where}{self._alive}) AS below"
                " GROUP BY CASE WHEN strpos(rest, '/') > 0 THEN left(rest, strpos(rest, '/')) ELSE rest END"
                " ORDER BY 1",
                [len(prefix) + 1, self._namespace, *parameters],
            )
        )

    def below(self, prefix: str) -> list[Row]:
        where, parameters = self._order.within(prefix)
        with self._database.using() as cursor:
            found = _rows(
                cursor.execute(
                    f"SELECT {_ROW} FROM store s WHERE s.prefix = %s AND {where}{self._alive}",
                    [self._namespace, *parameters],
                )
            )
        return sorted(found)

    def look(self, keys: Sequence[str], prefixes: Sequence[str]) -> tuple[list[Row], list[str]]:
        statement = f"SELECT {_ROW} FROM store s WHERE s.prefix = %s AND s.key = ANY(%s){self._alive}"
        parameters: list[Any] = [self._namespace, list(keys)]
        for number, prefix in enumerate(prefixes):
            where, more = self._order.within(prefix)
            statement += (
                f" UNION ALL SELECT '', '', '', {-1 - number} WHERE EXISTS"
                f" (SELECT 1 FROM store s WHERE s.prefix = %s AND {where}{self._alive})"
            )
            parameters += [self._namespace, *more]
        with self._database.using() as cursor:
            found = _rows(cursor.execute(statement, parameters))
        there = [prefixes[-1 - row.weight] for row in found if row.weight < 0]
        return [row for row in found if row.weight >= 0], there

    def twins(self) -> list[str]:
        where, parameters = self._order.within("")
        with self._database.using() as cursor:
            found = cursor.execute(
                f"SELECT s.key FROM store s WHERE s.prefix = %s AND {where}{self._alive}"
                " AND EXISTS (SELECT 1 FROM store t WHERE t.prefix = %s AND t.key = '/' || s.key)",
                [self._namespace, *parameters, self._namespace],
            ).fetchall()
        return [key for (key,) in found]

    def fetch(self, keys: Sequence[str]) -> dict[str, Record]:
        with self._database.using() as cursor:
            rows = cursor.execute(
                "SELECT s.key, s.value::text, s.updated_at, s.ttl_minutes FROM store s"
                f" WHERE s.prefix = %s AND s.key = ANY(%s){self._alive}",
                [self._namespace, list(keys)],
            ).fetchall()
            mortal = [key for key, *_, ttl in rows if ttl is not None]
            if self._settings.refreshes and mortal:
                cursor.execute(
                    "UPDATE store SET expires_at = now() + (ttl_minutes || ' minutes')::interval"
                    " WHERE prefix = %s AND key = ANY(%s)",
                    [self._namespace, mortal],
                )
        return {
            key: Record(_loaded(value), value.encode("utf-8"), updated_at, ttl) for key, value, updated_at, ttl in rows
        }

    # -- writing -----------------------------------------------------------------------------------------------

    def swap(self, changes: Sequence[Change]) -> None:
        if self._by_store is not None:
            self._by_store.swap(changes, self.fetch)
        else:
            gone = {change.key for change in changes if change.value is None and change.expected is ANYTHING}
            with self._database.writing(self.origin) as cursor:
                if gone:  # a tree in one statement
                    cursor.execute(
                        "DELETE FROM store WHERE prefix = %s AND key = ANY(%s)", [self._namespace, list(gone)]
                    )
                for change in changes:
                    if change.key not in gone and not self._change(cursor, change):
                        raise Conflict(change.key)

    def _change(self, cursor: Cursor[Any], change: Change) -> bool:
        """Make a change; False when the key has not the expected version."""
        place: dict[str, Any] = {"namespace": self._namespace, "key": change.key}
        same = ""
        if isinstance(change.expected, bytes):
            same, place = f" AND {_DIGEST} = %(expected)s", {**place, "expected": change.expected}
        if change.value is None:
            cursor.execute(f"DELETE FROM store s WHERE s.prefix = %(namespace)s AND s.key = %(key)s{same}", place)
            return cursor.rowcount > 0 or not same
        ttl = change.ttl_minutes if self._settings.ttl_minutes is None else self._settings.ttl_minutes
        values = {**place, "value": json.dumps(change.value, ensure_ascii=False), "ttl": ttl}
        new = {"value": "%(value)s::jsonb", "updated_at": "CURRENT_TIMESTAMP", "ttl_minutes": "%(ttl)s::float8",
               "expires_at": "now() + (%(ttl)s::float8 || ' minutes')::interval"}  # fmt: skip
        assign = ", ".join(f"{column} = {expression}" for column, expression in new.items())
        if same:
            where = f"s.prefix = %(namespace)s AND s.key = %(key)s{same}"
            cursor.execute(f"UPDATE store s SET {assign} WHERE {where}", values)
            return cursor.rowcount > 0
        otherwise = f"DO UPDATE SET {assign}"
        if change.expected is None:
            otherwise += " WHERE store.expires_at <= now()" if self._alive else ""
            otherwise = otherwise if self._alive else "DO NOTHING"
        columns, expressions = ", ".join(new), ", ".join(new.values())
        cursor.execute(
            f"INSERT INTO store (prefix, key, {columns}) VALUES (%(namespace)s, %(key)s, {expressions})"
            f" ON CONFLICT (prefix, key) {otherwise}",
            values,
        )
        return cursor.rowcount > 0

    # -- changes of others -------------------------------------------------------------------------------------

    @property
    def feed(self) -> bool:  # type: ignore[override]
        return self._settings.feed and self._database.feed() is not None

    def token(self) -> Hashable:
        feed = self._database.feed() if self._settings.feed else None
        if feed is None or not feed.live:
            return None
        return feed.changes

    def watch(self, changed: Callable[[str | None], None]) -> Callable[[], None]:
        feed = self._database.feed() if self._settings.feed else None
        return feed.subscribe(self._namespace, changed, self.origin) if feed is not None else (lambda: None)

    def close(self) -> None:
        self._database.close()


def _loaded(value: str) -> Any:
    try:
        return json.loads(value)
    except RecursionError:
        return UnreadableValue(value.encode("utf-8"))


def _after(key: str, prefix: str) -> str:
    """`items.after`; a text of PostgreSQL holds no NUL, so U+0001 comes first."""
    behind = after(key, prefix)
    return behind.replace("\0", "\1")


def _rows(cursor: Cursor[Any]) -> list[Row]:
    return [Row(key, (xmin, ctid), size) for key, xmin, ctid, size in cursor.fetchall()]
