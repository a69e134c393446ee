"""`StoreFeed`: changes of LangGraph's table `store`, by notifications of PostgreSQL.

A trigger on the table sends a notification for each row that any program makes, changes or deletes; it stores nothing
and takes some microseconds. It is installed once for a database and stays; to remove it:

    DROP TRIGGER fusebackend_store_changed ON store;  DROP TRIGGER fusebackend_store_truncated ON store;
    DROP FUNCTION fusebackend_store_notify();

A `Listener` has a connection of its own. While that is lost (`live` is False) no notification arrives, and afterwards
anything may have changed. Changes by this process's own backends carry their origin: those of agents are passed over,
for `Hub` has announced them already, and those of a mount go to all subscribers but that mount.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fusebackend.databases.listener import PING_S, Ask, Listener
from fusebackend.protocol.volume import listening

if TYPE_CHECKING:
    from psycopg import Connection, Cursor

log = logging.getLogger(__name__)

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
    """See the module's docstring.

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

    def turn(self, ask: Ask) -> float:
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
