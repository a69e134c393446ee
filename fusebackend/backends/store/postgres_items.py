"""`PostgresItems`: a namespace of LangGraph's `PostgresStore`, asked from its table directly.

As in `sqlite_items.py`, a directory is a range of keys, by the primary key `(prefix, key)` where the database compares
text by its bytes (C, POSIX, C.UTF-8), and else by an index of our own (`postgres_database.py`). Where that can't be
made (`feed=False`, or no right to), the server reads all keys of the namespace for a listing and sends what is listed.

A change compares the value as JSONB prints it. A trigger on the table tells of what others change (`feed.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

from fusebackend.backends.store.items import ANYTHING, Change, Conflict, Items, Record, Row
from fusebackend.backends.store.names import after, bounds
from fusebackend.backends.store.postgres_database import Order, PostgresDatabase
from fusebackend.backends.store.searched_items import PutOneByOne

if TYPE_CHECKING:
    from psycopg import Cursor

FIRST_BATCH, LAST_BATCH = 256, 16_384
"""Rows of a directory asked for at a time; it grows while they are files."""

_ROW = "s.key, s.xmin::text, s.ctid::text, pg_column_size(s.value)"

_DIGEST = "sha256(convert_to(s.value::text, 'UTF8'))"
"""`items.version_of`, by the server."""


class PostgresItems(Items):
    """See the module's docstring.

    Args:
        embedding: a store that makes an embedding of each value for its search; writes go through it then, compared
            and put one after the other under a lock of this process.
        ttl_minutes: how long new items live, as the store is configured; None for ever.
        refreshes: does reading a value make its life begin anew?
        omit_expired: is what has expired, and is not swept yet, as good as gone?
        feed: may a trigger and an index be made, and what they tell be listened to?
    """

    takes_nul = False

    def __init__(
        self,
        database: PostgresDatabase,
        namespace: tuple[str, ...],
        *,
        embedding: Any = None,
        ttl_minutes: float | None = None,
        refreshes: bool = False,
        omit_expired: bool = False,
        feed: bool = True,
    ) -> None:
        super().__init__()
        self._database = database
        self._namespace = ".".join(namespace)
        self._by_store = PutOneByOne(embedding, namespace) if embedding is not None else None
        self._ttl_minutes = ttl_minutes
        self._refreshes = refreshes
        self._alive = " AND (s.expires_at IS NULL OR s.expires_at > now())" if omit_expired else ""
        self._may_install = feed

    # -- reading -----------------------------------------------------------------------------------------------

    @property
    def _order(self) -> Order:
        return self._database.order(may_install=self._may_install)

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
        """Rows of a level: read straight on where there are files, and hop where there are subdirectories."""
        found: list[Row] = []
        limit, hop = FIRST_BATCH, False
        while True:
            batch = (self._hop if hop else self._scan)(cursor, prefix, start, end, limit)
            before, position = len(found), start
            for row in batch:
                if found and row.key < position:
                    continue  # in a subdirectory that is listed already; keys are in the order of code points
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
            if self._refreshes and mortal:
                cursor.execute(
                    "UPDATE store SET expires_at = now() + (ttl_minutes || ' minutes')::interval"
                    " WHERE prefix = %s AND key = ANY(%s)",
                    [self._namespace, mortal],
                )
        return {
            key: Record(json.loads(value), value.encode("utf-8"), updated_at, ttl)
            for key, value, updated_at, ttl in rows
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
        """Make a change; False when it did not find what it expected."""
        place: dict[str, Any] = {"namespace": self._namespace, "key": change.key}
        same = ""
        if isinstance(change.expected, bytes):
            same, place = f" AND {_DIGEST} = %(expected)s", {**place, "expected": change.expected}
        if change.value is None:
            cursor.execute(f"DELETE FROM store s WHERE s.prefix = %(namespace)s AND s.key = %(key)s{same}", place)
            return cursor.rowcount > 0 or not same
        ttl = self._ttl_minutes if self._ttl_minutes is not None else change.ttl_minutes
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
        return self._may_install and self._database.feed() is not None

    def token(self) -> Hashable:
        feed = self._database.feed() if self._may_install else None
        if feed is None or not feed.live:
            return None
        return feed.changes

    def watch(self, changed: Callable[[str | None], None]) -> Callable[[], None]:
        feed = self._database.feed() if self._may_install else None
        return feed.subscribe(self._namespace, changed, self.origin) if feed is not None else (lambda: None)

    def close(self) -> None:
        self._database.close()


def _after(key: str, prefix: str) -> str:
    """`names.after`; a text of PostgreSQL holds no NUL, so U+0001 comes first."""
    behind = after(key, prefix)
    return behind.replace("\0", "\1")


def _rows(cursor: Cursor[Any]) -> list[Row]:
    return [Row(key, (xmin, ctid), size) for key, xmin, ctid, size in cursor.fetchall()]
