"""`SqlItems`: a namespace of LangGraph's `SqliteStore` or `PostgresStore`, queried from its table directly.

A directory is a range of the table's primary key `(prefix, key)`, and subdirectories are skipped, so the cost of a
listing depends on its length, not on the number of keys. Only sizes are cached, under a row's stamp. A change compares
the value as it is stored.

Statements have `?` for parameters. `StoreDialect` has what differs between the two databases; `sqlite_database.py` and
`postgres_database.py` have the connections.
"""

from __future__ import annotations

import abc
import contextlib
import datetime
import logging
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from fusebackend.backends.store.items import (
    ANYTHING,
    NAMESPACES,
    Change,
    Conflict,
    Items,
    Record,
    Row,
    Settings,
)
from fusebackend.backends.store.searched_items import swap_one_by_one
from fusebackend.backends.store.values import UnreadableValue
from fusebackend.remote.keyed import after, bounds
from fusebackend.text import is_utf8

if TYPE_CHECKING:
    from fusebackend.backends.store.postgres_database import StoreFeed

log = logging.getLogger(__name__)

Ask: TypeAlias = Callable[[str, Sequence[Any]], Any]
"""Executes a statement with its parameters, and returns a cursor."""

_ANY_TEXT = "CAST(? AS text)"
"""A parameter from `_raw_text`."""

FIRST_BATCH, LAST_BATCH = 256, 16_384
"""Rows of a directory in one query; more while they are files."""


class StoreDialect(NamedTuple):
    """What differs in the statements."""

    row: str
    """Two columns that differ for different values, and a value's size in bytes."""
    value: str
    version: str
    """`items.version_of` of a value."""
    new_value: str
    """A value of JSON in UTF-8."""
    now: str
    later: str
    """The time in `{}` minutes."""
    takes_nul: bool
    """Texts may hold NUL characters."""
    alive: str
    """A further condition for items whose time to live has not ended."""
    among: Callable[[Sequence[str]], tuple[str, list[Any]]]
    """The condition for one of some texts, with its parameters."""
    at_a_time: int
    """Parameters in one statement."""
    next_key: Callable[[str], str]
    """`keyed.after` of `walk.key` and a prefix."""


class Order(NamedTuple):
    """The order of keys by their bytes."""

    key: str = "key"
    indexed: bool = True
    open_end: str = ""
    """A further condition where a range has no end."""

    def until(self, end: str | None) -> tuple[str, list[str]]:
        """The condition for keys before another, and its parameters."""
        return (self.open_end, []) if end is None else (f" AND {self.key} < ?", [end])

    def within(self, prefix: str) -> tuple[str, list[str]]:
        """The condition for keys that start with a prefix, as in `keyed.bounds`, and its parameters."""
        parts: list[str] = []
        parameters: list[str] = []
        for start, end in bounds(prefix):
            until, more = self.until(end)
            parts.append(f"({self.key} >= ?{until})")
            parameters += [start, *more]
        return f"({' OR '.join(parts)})", parameters


class StoreDatabase(abc.ABC):
    """The table of a `SqliteStore` or `PostgresStore`."""

    dialect: StoreDialect
    owned = True
    """Its connections are its own."""
    openings = 0
    """Grows when another database has taken its place."""

    @property
    def trouble(self) -> tuple[float, str] | None:
        """As `Volume.trouble`."""
        return None

    @abc.abstractmethod
    def asking(self) -> contextlib.AbstractContextManager[Ask]:
        """Statements that are committed one by one."""

    @abc.abstractmethod
    def writing(self, origin: str) -> contextlib.AbstractContextManager[Ask]:
        """One transaction, of this mount."""

    @abc.abstractmethod
    def order(self, *, may_install: bool) -> Order:
        """The order of keys."""

    def feed(self) -> StoreFeed | None:
        """The feed of the table's changes, begun by the first call; None where there can be none."""
        return None

    def namespaces(self) -> list[tuple[str, ...]]:
        """The namespaces that hold items."""
        with self.asking() as ask:
            return [tuple(prefix.split(".")) for (prefix,) in ask(NAMESPACES, []).fetchall() if isinstance(prefix, str)]

    def token(self) -> Hashable:
        """Equal tokens mean that nothing was changed in between; None when unknown."""
        return None

    def token_of_others(self, feed: StoreFeed | None) -> Hashable:
        """The same, but for changes that were made here."""
        return None if feed is None or not feed.live else feed.changes

    @abc.abstractmethod
    def close(self) -> None:
        """Close the connections that were opened here."""


class SqlItems(Items):
    """See the module's docstring."""

    def __init__(self, database: StoreDatabase, namespace: tuple[str, ...], settings: Settings) -> None:
        super().__init__()
        self._database = database
        self._sql = database.dialect
        self.durable = self.blocking = database.owned
        self.takes_nul = self._sql.takes_nul
        self._namespace = ".".join(namespace)
        self._settings = settings
        self._alive = self._sql.alive if settings.omit_expired else ""

    # -- reading -----------------------------------------------------------------------------------------------

    @property
    def _order(self) -> Order:
        return self._database.order(may_install=self._settings.feed)

    def level(self, prefix: str) -> list[Row]:
        order = self._order  # which may ask, and a shared connection is locked
        with self._database.asking() as ask:
            if not order.indexed:
                return self._grouped(ask, prefix)
            return [row for start, end in bounds(prefix) for row in _texts(self._walked(ask, prefix, start, end))]

    def _walked(self, ask: Ask, prefix: str, start: str, end: str | None) -> list[Row]:
        """Rows of a level: scan where there are files, and hop where there are subdirectories."""
        found: list[Row] = []
        listed: tuple[str, ...] = ()  # the subdirectory that is there already
        limit, hop = FIRST_BATCH, False
        while True:
            batch = (self._hop if hop else self._scan)(ask, prefix, start, end, limit)
            before = len(found)
            for row in batch:
                if row.key.startswith(listed):
                    continue
                found.append(row)
                segment, slash, _ = row.key[len(prefix) :].partition("/")
                listed = (f"{prefix}{segment}/",) if slash else ()
            if len(batch) < limit:
                return found
            start = after(batch[-1].key, prefix)
            if not self.takes_nul:
                start = start.replace("\0", "\1")
            hop = (len(found) - before) * 4 < len(batch) or hop
            limit = min(limit * 4, LAST_BATCH)

    def _scan(self, ask: Ask, prefix: str, start: str, end: str | None, limit: int) -> list[Row]:
        key, (until, more) = self._order.key, self._order.until(end)
        return self._rows(
            ask, f"WHERE prefix = ? AND {key} >= {_ANY_TEXT}{until}{self._alive} ORDER BY {key} LIMIT ?",
            [self._namespace, _raw_text(start), *more, limit],
        )  # fmt: skip

    def _hop(self, ask: Ask, prefix: str, start: str, end: str | None, limit: int) -> list[Row]:
        """One row of each subdirectory: a recursion over the index, which no database hops along by itself."""
        key, (until, more) = self._order.key, self._order.until(end)
        first = f"SELECT key FROM store WHERE prefix = ?{until}{self._alive} AND {key} >= "
        found = (
            f"WITH RECURSIVE walk(key) AS (SELECT ({first} {_ANY_TEXT} ORDER BY {key} LIMIT 1) UNION ALL"
            f" SELECT ({first} {self._sql.next_key(prefix)} ORDER BY {key} LIMIT 1) FROM walk"
            " WHERE walk.key IS NOT NULL) SELECT key AS found FROM walk WHERE key IS NOT NULL LIMIT ?"
        )
        return self._rows(
            ask, f"JOIN ({found}) AS hops ON prefix = ? AND key = hops.found ORDER BY {key}",
            [self._namespace, *more, _raw_text(start), self._namespace, *more, limit, self._namespace],
        )  # fmt: skip

    def _grouped(self, ask: Ask, prefix: str) -> list[Row]:
        """A level where no index has the order of keys, in PostgreSQL: the server reads all, and sends the level."""
        where, parameters = self._order.within(prefix)
        key, first, second, size = self._sql.row.split(", ")
        found = ask(
            f"SELECT min({self._order.key}), min(first), min(second), min(size) FROM (SELECT {key}, {first} AS first,"
            f" {second} AS second, {size} AS size, substr(key, CAST(? AS int)) AS rest FROM store"
            f" WHERE prefix = ? AND {where}{self._alive}) AS below"
            " GROUP BY CASE WHEN strpos(rest, '/') > 0 THEN left(rest, strpos(rest, '/')) ELSE rest END ORDER BY 1",
            [len(prefix) + 1, self._namespace, *parameters],
        )
        return _rows(found, self._database.openings)

    def below(self, prefix: str) -> list[Row]:
        where, parameters = self._order.within(prefix)
        with self._database.asking() as ask:
            found = self._rows(ask, f"WHERE prefix = ? AND {where}{self._alive}", [self._namespace, *parameters])
        return sorted(_texts(found))

    def _rows(self, ask: Ask, where: str, parameters: list[Any]) -> list[Row]:
        return _rows(ask(f"SELECT {self._sql.row} FROM store {where}", parameters), self._database.openings)

    def look(self, keys: Sequence[str], prefixes: Sequence[str]) -> tuple[list[Row], list[str]]:
        size, order, found = self._sql.at_a_time // 5, self._order, []  # one for a key, up to four for a prefix
        with self._database.asking() as ask:
            for begin in range(0, max(len(keys), len(prefixes)), size):
                among, parameters = self._sql.among(keys[begin : begin + size])
                statement = f"SELECT {self._sql.row} FROM store WHERE prefix = ? AND key {among}{self._alive}"
                parameters.insert(0, self._namespace)
                for number, prefix in enumerate(prefixes[begin : begin + size], begin):
                    where, more = order.within(prefix)
                    statement += (
                        f" UNION ALL SELECT '', '', '', {-1 - number} WHERE EXISTS"
                        f" (SELECT 1 FROM store WHERE prefix = ? AND {where}{self._alive})"
                    )
                    parameters += [self._namespace, *more]
                found += _rows(ask(statement, parameters), self._database.openings)
        there = [prefixes[-1 - row.weight] for row in found if row.weight < 0]
        return [row for row in found if row.weight >= 0], there

    def fetch(self, keys: Sequence[str]) -> dict[str, Record]:
        found: dict[str, Record] = {}
        with self._database.asking() as ask:
            for where, parameters in self._among(keys):
                columns = f"key, {self._sql.value}, updated_at, ttl_minutes"
                rows = ask(f"SELECT {columns} FROM store {where}{self._alive}", parameters)
                for key, value, updated_at, ttl in rows.fetchall():
                    raw = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")
                    found[key] = Record(_decoded(raw), raw, _iso(updated_at), ttl)
            mortal = [key for key, record in found.items() if record.ttl_minutes is not None]
            if self._settings.refreshes and mortal:
                for where, parameters in self._among(mortal):
                    ask(f"UPDATE store SET expires_at = {self._sql.later.format('ttl_minutes')} {where}", parameters)
        return found

    def _among(self, keys: Sequence[str]) -> Iterator[tuple[str, list[Any]]]:
        """The conditions for these keys, with the parameters of each."""
        for begin in range(0, len(keys), self._sql.at_a_time):
            among, parameters = self._sql.among(keys[begin : begin + self._sql.at_a_time])
            yield f"WHERE prefix = ? AND key {among}", [self._namespace, *parameters]

    # -- writing -----------------------------------------------------------------------------------------------

    def swap(self, changes: Sequence[Change]) -> None:
        if self._settings.embedding is not None:
            namespace = tuple(self._namespace.split("."))
            swap_one_by_one(self._settings.embedding, namespace, changes, self.fetch)
        else:
            gone = {change.key for change in changes if change.value is None and change.expected is ANYTHING}
            with self._database.writing(self.origin) as ask:
                for where, parameters in self._among(list(gone)):  # a tree in few statements
                    ask(f"DELETE FROM store {where}", parameters)
                for change in changes:
                    if change.key not in gone and not self._change(ask, change):
                        raise Conflict(change.key)
        for change in changes:
            self._known.pop(change.key, None)

    def _change(self, ask: Ask, change: Change) -> bool:
        """Make a change; False when the key has not the expected version."""
        place, where = [self._namespace, change.key], "WHERE prefix = ? AND key = ?"
        same = [change.expected] if isinstance(change.expected, bytes) else []
        if same:
            where += f" AND {self._sql.version} = ?"
        if change.value is None:
            return ask(f"DELETE FROM store {where}", [*place, *same]).rowcount > 0 or not same
        ttl = change.ttl_minutes if self._settings.ttl_minutes is None else self._settings.ttl_minutes
        minutes = "CAST(? AS float8)"
        new = {"value": self._sql.new_value, "updated_at": self._sql.now, "ttl_minutes": minutes,
               "expires_at": self._sql.later.format(minutes)}  # fmt: skip
        values = [_encoded(change.value), ttl, ttl]
        if same:
            assign = ", ".join(f"{column} = {expression}" for column, expression in new.items())
            return bool(ask(f"UPDATE store SET {assign} {where}", [*values, *place, *same]).rowcount)
        otherwise = f"DO UPDATE SET {', '.join(f'{column} = excluded.{column}' for column in new)}"
        if change.expected is None:
            otherwise = f"{otherwise} WHERE store.expires_at <= now()" if self._alive else "DO NOTHING"
        done = ask(
            f"INSERT INTO store (prefix, key, created_at, {', '.join(new)})"
            f" VALUES (?, ?, CURRENT_TIMESTAMP, {', '.join(new.values())}) ON CONFLICT (prefix, key) {otherwise}",
            [*place, *values],
        )
        return bool(done.rowcount)

    # -- changes of others -------------------------------------------------------------------------------------

    def _feed(self) -> StoreFeed | None:
        return self._database.feed() if self._settings.feed else None

    @property
    def feed(self) -> bool:  # type: ignore[override]
        return self._feed() is not None

    def token(self) -> Hashable:
        return self._database.token_of_others(self._feed())

    def watch(self, changed: Callable[[str | None], None]) -> Callable[[], None]:
        feed = self._feed()
        return feed.subscribe(self._namespace, changed, self.origin) if feed is not None else (lambda: None)

    @property
    def trouble(self) -> tuple[float, str] | None:
        return self._database.trouble

    def close(self) -> None:
        self._database.close()


def _rows(cursor: Any, opening: int) -> list[Row]:
    """The rows of a query. Those of another file, in an `opening` of its own, have other stamps."""
    return [Row(key, (opening, first, second, size), size or 0) for key, first, second, size in cursor.fetchall()]


def _texts(rows: Iterable[Row]) -> Iterator[Row]:
    """The rows whose keys are UTF-8: SQLite takes other texts as well."""
    for row in rows:
        if is_utf8(row.key):
            yield row
        else:
            log.error("a row of the table 'store' has a key that is no UTF-8, and is not shown: %r", row.key)


def _raw_text(key: str) -> str | bytes:
    return key if is_utf8(key) else key.encode("utf-8", "surrogateescape")


def _encoded(value: Any) -> bytes:
    import msgspec

    return msgspec.json.encode(value)


def _decoded(raw: bytes) -> Any:
    import msgspec

    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return UnreadableValue(raw)


def _iso(moment: Any) -> str:
    """A time, or SQLite's CURRENT_TIMESTAMP, which is UTC without an offset, as ISO 8601."""
    if isinstance(moment, datetime.datetime):
        return moment.replace(tzinfo=moment.tzinfo or datetime.UTC).isoformat()
    return f"{str(moment).replace(' ', 'T')}+00:00" if moment else ""
