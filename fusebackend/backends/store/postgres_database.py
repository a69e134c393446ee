"""`PostgresStoreDatabase`: the database of LangGraph's `PostgresStore`.

The order of keys is that of the primary key where the database compares text by its bytes (C, POSIX, C.UTF-8).
Elsewhere an index of our own has that order:

    CREATE INDEX CONCURRENTLY fusebackend_store_keys ON store (prefix, key COLLATE "C")

Where it can't be made (`feed=False`, or no privilege), the server reads all keys of the namespace for a listing and
sends the listed ones. Versions are of a value as JSONB prints it. A trigger on the table notifies of the changes of
others (`StoreFeed`).

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
from collections.abc import Callable, Iterator
from typing import Any

from psycopg import Connection, Cursor
from psycopg.rows import tuple_row

from fusebackend.backends.store.items import require_columns
from fusebackend.backends.store.sql_items import Ask, Order, StoreDatabase, StoreDialect
from fusebackend.databases.langgraph import dsn_of
from fusebackend.databases.listener import PING_S, Listener
from fusebackend.databases.postgres import Connections, is_pooled, ping, translate_errors
from fusebackend.protocol.volume import listening

log = logging.getLogger(__name__)

INDEX = "fusebackend_store_keys"
BYTEWISE = ("C", "POSIX", "C.UTF-8", "C.utf8")
"""Locales whose order is that of the bytes."""

CONNECTIONS = 4
"""Connections of one database at most."""

PREPARED_AFTER = 5
"""Uses of a statement by a connection."""


def _next_key(prefix: str) -> str:
    slash = f"strpos(substr(walk.key, {len(prefix) + 1}), '/')"
    directory = f"left(walk.key, {len(prefix) - 1} + {slash})"
    return f"CASE WHEN {slash} > 0 THEN {directory} || '0' ELSE walk.key || chr(1) END"  # no text holds a NUL


DIALECT = StoreDialect(
    row="key, store.xmin::text, store.ctid::text, pg_column_size(value)",
    value="value::text",
    version="sha256(convert_to(value::text, 'UTF8'))",
    new_value="convert_from(?, 'UTF8')::jsonb",
    now="CURRENT_TIMESTAMP",
    later="now() + ({} || ' minutes')::interval",
    takes_nul=False,
    alive=" AND (expires_at IS NULL OR expires_at > now())",
    among=lambda keys: ("= ANY(?)", [list(keys)]),
    at_a_time=50_000,  # of 65,535 parameters
    next_key=_next_key,
)


class PostgresStoreDatabase(StoreDatabase):
    """The connections to the database of a store, and the schema that is found or made there.

    Args:
        conninfo: for connections of our own; None to share the store's connection or pool.
        shared: the store's connection or pool, and the lock for its use.

    Raises:
        OSError: no connection can be made.
    """

    dialect = DIALECT

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

    def close(self) -> None:
        if self._feed is not None:
            self._feed.close()
        if self._connections is not None:
            self._connections.close()

    # -- connections -------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def using(self) -> Iterator[Cursor[Any]]:
        """A cursor whose statements are committed one by one."""
        with translate_errors(), contextlib.ExitStack() as stack:
            if self._connections is not None:
                connection = stack.enter_context(self._connections.leased(ping))
            else:
                assert self._shared is not None
                connection, lock = self._shared
                if hasattr(connection, "getconn"):  # a pool
                    connection = stack.enter_context(connection.connection())
                else:
                    stack.enter_context(lock)
            yield stack.enter_context(connection.cursor(row_factory=tuple_row))

    @contextlib.contextmanager
    def asking(self) -> Iterator[Ask]:
        with self.using() as cursor:
            yield _ask(cursor)

    @contextlib.contextmanager
    def writing(self, origin: str) -> Iterator[Ask]:
        """One transaction, marked with our origin and that of the mount."""
        with self.using() as cursor, cursor.connection.transaction():
            cursor.execute("SELECT set_config('fusebackend.origin', %s, true)", [f"{self.origin}:{origin}"])
            yield _ask(cursor)

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

    def order(self, *, may_install: bool) -> Order:
        """The order of keys; determined once."""
        with self._settling:
            if self._order is None:
                with self.using() as cursor:
                    if _is_bytewise(cursor):
                        self._order = Order()
                    elif _index_is_there(cursor) or (may_install and _make_index(cursor)):
                        self._order = Order('key COLLATE "C"')
                    else:
                        self._order = Order('key COLLATE "C"', indexed=False)
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


def _ask(cursor: Cursor[Any]) -> Ask:
    return lambda statement, parameters: cursor.execute(statement.replace("?", "%s"), parameters)


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


# -- changes of others -------------------------------------------------------------------------------------------
#
# `StoreFeed`: changes of LangGraph's table `store`, by notifications of PostgreSQL.
#
# A trigger on the table sends a notification for each row that any program makes, changes or deletes; it stores nothing
# and takes some microseconds. It is installed once for a database and stays; to remove it:
#
#     DROP TRIGGER fusebackend_store_changed ON store;  DROP TRIGGER fusebackend_store_truncated ON store;
#     DROP FUNCTION fusebackend_store_notify();
#
# A `Listener` has a connection of its own. While that is lost (`live` is False) no notification arrives, and afterwards
# anything may have changed. Changes by this process's own backends carry their origin: those of agents are passed over,
# for `Hub` has announced them already, and those of a mount go to all subscribers but that mount.

CHANNEL = "fusebackend_store"
TRIGGERS = ("fusebackend_store_changed", "fusebackend_store_truncated")
LOCK_S = 3
"""How long making the trigger waits for other users of the table."""

_FUNCTION = """
CREATE OR REPLACE FUNCTION fusebackend_store_notify() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    origin text := current_setting('fusebackend.origin', true);
    place jsonb := jsonb_build_object('t', TG_RELID::bigint, 'o', origin);
    note jsonb;
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        PERFORM pg_notify('fusebackend_store', place::text);
        RETURN NULL;
    END IF;
    IF TG_OP <> 'INSERT' THEN
        note := place || jsonb_build_object('p', OLD.prefix, 'k', OLD.key);
        IF octet_length(note::text) > 7900 THEN note := place; END IF;
        PERFORM pg_notify('fusebackend_store', note::text);
    END IF;
    IF TG_OP = 'INSERT' OR (TG_OP = 'UPDATE' AND (OLD.prefix, OLD.key) IS DISTINCT FROM (NEW.prefix, NEW.key)) THEN
        note := place || jsonb_build_object('p', NEW.prefix, 'k', NEW.key);
        IF octet_length(note::text) > 7900 THEN note := place; END IF;
        PERFORM pg_notify('fusebackend_store', note::text);
    END IF;
    RETURN NULL;
END $$
"""

_CHANGED = """
CREATE TRIGGER fusebackend_store_changed AFTER INSERT OR DELETE OR UPDATE OF prefix, key, value ON store
FOR EACH ROW EXECUTE FUNCTION fusebackend_store_notify()
"""

_TRUNCATED = """
CREATE TRIGGER fusebackend_store_truncated AFTER TRUNCATE ON store
FOR EACH STATEMENT EXECUTE FUNCTION fusebackend_store_notify()
"""


def install(cursor: Cursor[Any]) -> None:
    """Make the triggers where they are missing; psycopg's error when that is not allowed."""
    if _is_installed(cursor):
        return
    with cursor.connection.transaction():
        cursor.execute("SELECT pg_advisory_xact_lock(hashtext('fusebackend_store'))")  # one at a time
        if _is_installed(cursor):
            return
        cursor.execute(f"SET LOCAL lock_timeout = '{LOCK_S}s'")
        cursor.execute(_FUNCTION)
        for trigger in TRIGGERS:
            cursor.execute(f"DROP TRIGGER IF EXISTS {trigger} ON store")
        cursor.execute(_CHANGED)
        cursor.execute(_TRUNCATED)


def _is_installed(cursor: Cursor[Any]) -> bool:
    row = cursor.execute(
        "SELECT count(*) FROM pg_trigger"
        " WHERE tgrelid = to_regclass('store') AND tgenabled <> 'D' AND tgname = ANY(%s)",
        [list(TRIGGERS)],
    ).fetchone()
    return row is not None and row[0] == len(TRIGGERS)


class StoreFeed:
    """See the comment above.

    Attributes:
        changes: grows with each.
    """

    def __init__(self, conninfo: str, origin: str) -> None:
        """Connects and listens before it returns. psycopg's error when that fails."""
        self._origin = origin
        self._subscribers: list[tuple[str, Callable[[str | None], None], str]] = []
        self.changes = 0
        self._table = 0
        self._listener = Listener(conninfo, CHANNEL, self, name="fusebackend-store-feed")

    @property
    def live(self) -> bool:
        """No notification since it became true is missing."""
        return self._listener.live

    def subscribe(self, namespace: str, changed: Callable[[str | None], None], origin: str) -> Callable[[], None]:
        """Call `changed` with the key of each change in a namespace by another origin, None for any key.

        Returns:
            a function that ends it.
        """
        return listening(self._subscribers, (namespace, changed, origin))

    def close(self) -> None:
        """Stop listening. Twice is once."""
        self._listener.close()

    # -- `Receiver` --------------------------------------------------------------------------------------------

    def prepare(self, connection: Connection[Any]) -> None:
        row = connection.execute("SELECT to_regclass('store')::oid::bigint").fetchone()
        self._table = row[0] if row is not None else 0

    def lost(self, error: BaseException) -> None:
        log.warning("changes of the store are not told until its connection is back: %s", error)
        self._tell(None, None)

    def back(self) -> None:
        self._tell(None, None)

    def turn(self, ask: object) -> float:
        """Nothing is due: each notification is a change."""
        return PING_S

    def heard(self, payload: str) -> None:
        try:
            note = json.loads(payload)
        except ValueError:
            note = {}  # not from our trigger: it may mean anything
        if not isinstance(note, dict) or note.get("t", self._table) != self._table:
            return
        process, _, origin = str(note.get("o") or "").partition(":")
        if process != self._origin:
            self._tell(note.get("p"), note.get("k"))
        elif origin:
            self._tell(note.get("p"), note.get("k"), origin)

    def _tell(self, namespace: str | None, key: str | None, origin: str = "-") -> None:
        self.changes += origin == "-"  # the hub counts those of our own mounts
        for wanted, changed, own in tuple(self._subscribers):
            if namespace in (None, wanted) and own != origin:
                try:
                    changed(key)
                except Exception:  # later changes must still be announced
                    log.exception("a subscriber failed on %r", key)
