"""`Items`: one namespace of a LangGraph store, as keys with values. What a `StoreBackend` stands on.

Three kinds: `SearchedItems` (any `BaseStore`, here), `SqliteItems` and `PostgresItems` (the tables of those two stores,
asked directly). Keys come in the order of their code points. Child namespaces are other namespaces: `(ns, "sub")` is
no part of `(ns,)`, though a store's `search` finds both.

Values are changed by `swap`: each change says what it expects to be there, by the version that `fetch` gave. In SQL all
changes of a call are made in one transaction, or none. For any other store a lock makes compare and put one step among
the backends of this process; between the two, another program can still come.

Errors of a store are `OSError`s with an errno that fits, or EIO.
"""

from __future__ import annotations

import abc
import contextlib
import copy
import errno
import hashlib
import json
import math
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from fusebackend.backends.store.names import KeyList
from fusebackend.backends.store.values import About, about
from fusebackend.errors import oserror

BATCH_BYTES = 8 << 20
BATCH_ITEMS = 1000
"""Bounds of what is fetched at a time."""

MAX_KNOWN = 200_000
"""Keys whose size and time are remembered, some 300 bytes each. Beyond, all are forgotten and asked for again."""


class Row(NamedTuple):
    """A key, and as much of its value as can be had cheaply."""

    key: str
    stamp: Hashable = None
    """Differs when the value does, and may differ when it does not; None when that can't be told."""
    weight: int = 0
    """About how many bytes the value has."""


class Record:
    """What is kept under a key.

    Attributes:
        value: decoded.
        ttl_minutes: how long it lives when it is put, None for ever.
    """

    __slots__ = ("_raw", "_updated_at", "ttl_minutes", "value")

    def __init__(self, value: Any, raw: bytes | None, updated_at: Any, ttl_minutes: float | None = None) -> None:
        """`raw` is the value as the store keeps it, None where that is not known; `updated_at` a time or its text."""
        self.value = value
        self._raw = raw
        self._updated_at = updated_at
        self.ttl_minutes = ttl_minutes

    @property
    def version(self) -> bytes:
        """A digest: equal for equal values."""
        if self._raw is not None:
            return version_of(self._raw)
        return version_of(json.dumps(self.value, sort_keys=True, default=repr).encode("ascii"))

    @property
    def updated_at(self) -> str:
        """ISO 8601, or empty."""
        moment = self._updated_at
        return moment if isinstance(moment, str) else "" if moment is None else str(moment.isoformat())


def version_of(raw: bytes) -> bytes:
    """What `Record.version` is for a value that is kept as these bytes."""
    return hashlib.sha256(raw).digest()


class Anything:
    """What a change expects that does not care."""


ANYTHING: Final = Anything()


class Change(NamedTuple):
    """`value` None deletes. `expected` is a version, None for a key that must not be there, or ANYTHING."""

    key: str
    value: dict[str, Any] | None
    expected: bytes | Anything | None = ANYTHING
    ttl_minutes: float | None = None


class Conflict(OSError):
    """A key is not what a change expected."""

    def __init__(self, key: str) -> None:
        super().__init__(errno.ESTALE, "It was changed by somebody else meanwhile; read it again", key)


class Items(abc.ABC):
    """See the module's docstring. Methods may be called from any thread."""

    blocking = True
    durable = True
    text_only = True
    """Keys must be UTF-8."""
    takes_nul = True
    """Texts may hold NUL characters."""
    feed = False
    """Every change of others is told to watchers."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Hashable, About]] = {}

    @abc.abstractmethod
    def level(self, prefix: str) -> list[Row]:
        """The keys that start with a prefix and have no `/` after it, and at least one of each subdirectory."""

    @abc.abstractmethod
    def below(self, prefix: str) -> list[Row]:
        """All keys that start with a prefix (`names.bounds`)."""

    @abc.abstractmethod
    def look(self, keys: Sequence[str], prefixes: Sequence[str]) -> tuple[list[Row], list[str]]:
        """Those of some keys that there are, and those of some prefixes that keys start with."""

    @abc.abstractmethod
    def twins(self) -> list[str]:
        """Keys without a leading slash for which there is one with it as well."""

    @abc.abstractmethod
    def fetch(self, keys: Sequence[str]) -> dict[str, Record]:
        """The values of those keys that there are."""

    @abc.abstractmethod
    def swap(self, changes: Sequence[Change]) -> None:
        """Make changes. `Conflict` when one did not find what it expected."""

    def token(self) -> Hashable:
        """Two equal ones mean that nobody has changed anything in between, but these items themselves; None when that
        can't be told."""
        return None

    def watch(self, changed: Callable[[str | None], None]) -> Callable[[], None]:
        """Tell `changed` each key that others change, None for any; returns what ends that. Only with `feed`."""
        return lambda: None

    def moment(self) -> Items:
        """The same items for the length of one verb, where that saves work: what was seen once is not asked again."""
        return self

    def aged(self, seconds: float) -> Items:
        """The same items, as they may have been so long ago, where that saves work."""
        return self

    def close(self) -> None:
        """Let go of what this object has opened itself."""

    def records(self, rows: Iterable[Row]) -> Iterator[tuple[Row, Record]]:
        """Values in the order of the rows, so many at a time as fit `BATCH_BYTES`."""
        batch: list[Row] = []
        weight = 0
        for row in rows:
            if batch and (len(batch) >= BATCH_ITEMS or weight + row.weight > BATCH_BYTES):
                yield from self._batch(batch)
                batch, weight = [], 0
            batch.append(row)
            weight += row.weight
        if batch:
            yield from self._batch(batch)

    def _batch(self, rows: list[Row]) -> Iterator[tuple[Row, Record]]:
        found = self.fetch([row.key for row in rows])
        for row in rows:
            record = found.get(row.key)
            if record is not None:
                yield row, record

    def describe(self, rows: Iterable[Row]) -> dict[str, About]:
        """Size, time and kind of values. What is gone meanwhile is left out."""
        described: dict[str, About] = {}
        unknown: list[Row] = []
        for row in rows:
            stamp, known = self._known.get(row.key, (None, None))
            if known is not None and row.stamp is not None and stamp == row.stamp:
                described[row.key] = known
            else:
                unknown.append(row)
        if len(self._known) + len(unknown) > MAX_KNOWN:
            self._known.clear()
        for row, record in self.records(unknown):
            described[row.key] = found = about(record.value, record.updated_at)
            if row.stamp is not None:
                self._known[row.key] = (row.stamp, found)
        return described


# --------------------------------------------------------------------------------------------------------------
# Any store
# --------------------------------------------------------------------------------------------------------------

FIRST_PAGE, LAST_PAGE = 500, 16_000
"""Items asked for at a time: pages grow, for a store counts its offset anew each time."""

WHOLE_PAGE = 1 << 30
"""For a store in this process, which hands out what it has anyway."""

PASSES = 3
"""How often a search that was disturbed by others is made again before what it found is taken."""

_comparing: weakref.WeakKeyDictionary[Any, threading.RLock] = weakref.WeakKeyDictionary()
_comparing_others = threading.RLock()


def comparing_lock(store: Any) -> threading.RLock:
    """The lock under which backends of this process compare and put."""
    with contextlib.suppress(TypeError):  # it can't be hashed, or not be referred to weakly
        return _comparing.setdefault(store, threading.RLock())
    return _comparing_others


class PutOneByOne:
    """Changes through a store's own `put` and `delete`."""

    def __init__(self, store: Any, namespace: tuple[str, ...]) -> None:
        self._store = store
        self._namespace = namespace
        self._lock = comparing_lock(store)

    def swap(self, changes: Sequence[Change], fetch: Callable[[Sequence[str]], dict[str, Record]]) -> None:
        """`Items.swap`; what is there now is asked by `fetch`. Nothing is put when anything is not as expected."""
        with self._lock:
            there = fetch([change.key for change in changes if not isinstance(change.expected, Anything)])
            for change in changes:
                found = there.get(change.key)
                version = None if found is None else found.version
                if not isinstance(change.expected, Anything) and change.expected != version:
                    raise Conflict(change.key)
            for change in changes:
                with _told():
                    self._change(change)

    def _change(self, change: Change) -> None:
        if change.value is None:
            self._store.delete(self._namespace, change.key)
        elif change.ttl_minutes is not None:
            self._store.put(self._namespace, change.key, change.value, ttl=change.ttl_minutes)
        else:
            self._store.put(self._namespace, change.key, change.value)


class _Pass:
    """What one search through a namespace found, and what was changed here since."""

    def __init__(self, records: dict[str, Record], made_at: float) -> None:
        self.records = records
        self.keys = KeyList(records)
        self.made_at = made_at

    def apply(self, key: str, record: Record | None) -> None:
        if record is None:
            self.records.pop(key, None)
            self.keys.discard(key)
        else:
            self.records[key] = record
            self.keys.add(key)


class _Last:
    """Where the last search is kept, among views that share it."""

    found: _Pass | None = None


class SearchedItems(Items):
    """Any `BaseStore`, through `get`, `put`, `delete` and `search`.

    What is in a directory only a search through the whole namespace tells: one for each verb (`moment`), or one for all
    that is asked within some time (`aged`).
    """

    text_only = False

    def __init__(self, store: Any, namespace: tuple[str, ...], *, blocking: bool = True, durable: bool = False) -> None:
        super().__init__()
        self._store = store
        self._namespace = namespace
        self.blocking = blocking
        self.durable = durable
        self._max_age_s = 0.0
        self._last: _Last = _Last()
        self._lasts = [self._last]  # what is to hear of changes made here
        self._lock = comparing_lock(store)
        self._puts = PutOneByOne(store, namespace)

    def moment(self) -> Items:
        if self._max_age_s:
            return self
        view = copy.copy(self)
        view._max_age_s, view._last = math.inf, _Last()
        view._lasts = [*self._lasts, view._last]
        return view

    def aged(self, seconds: float) -> Items:
        view = copy.copy(self)
        view._max_age_s = seconds
        return view

    def token(self) -> Hashable:
        """The search that all answers come from, for as long as it is good."""
        return self._pass().made_at if self._max_age_s else None

    def level(self, prefix: str) -> list[Row]:
        return [Row(key) for key in self._pass().keys.level(prefix)]

    def below(self, prefix: str) -> list[Row]:
        return [Row(key) for key in self._pass().keys.below(prefix)]

    def look(self, keys: Sequence[str], prefixes: Sequence[str]) -> tuple[list[Row], list[str]]:
        found = self._pass()
        there = [Row(key) for key in keys if key in found.records]
        return there, [prefix for prefix in prefixes if found.keys.any_below(prefix)]

    def twins(self) -> list[str]:
        found = self._pass()
        return [key for key in found.keys.below("") if "/" + key in found.records]

    def describe(self, rows: Iterable[Row]) -> dict[str, About]:
        found = self._last.found
        known = found.records if found is not None else {}
        described = {}
        for row in rows:
            record = known.get(row.key)
            if record is not None:
                described[row.key] = about(record.value, record.updated_at)
        return described

    def fetch(self, keys: Sequence[str]) -> dict[str, Record]:
        with _told():
            items = {key: self._store.get(self._namespace, key) for key in keys}
        return {key: _record(item) for key, item in items.items() if item is not None}

    def swap(self, changes: Sequence[Change]) -> None:
        try:
            self._puts.swap(changes, self.fetch)
        finally:
            lasts = [last.found for last in self._lasts if last.found is not None]
            if lasts:
                there = self.fetch([change.key for change in changes])
                for change in changes:
                    for found in lasts:
                        found.apply(change.key, there.get(change.key))

    # -- searching ---------------------------------------------------------------------------------------------

    def _pass(self) -> _Pass:
        with self._lock:
            found = self._last.found
            if found is None or time.monotonic() - found.made_at > self._max_age_s:
                began = time.monotonic()
                found = self._last.found = _Pass(self._search(), began)
            return found

    def _search(self) -> dict[str, Record]:
        """All. Others may come and go meanwhile, which moves the rest: a search that has noticed is made again."""
        found: dict[str, Record] = {}
        for _ in range(PASSES):
            if self._search_once(found):
                break
        return found

    def _search_once(self, found: dict[str, Record]) -> bool:
        """Add all items; was nothing moved? Each page begins with the last item of the one before."""
        offset, page, last = 0, FIRST_PAGE if self.blocking else WHOLE_PAGE, None
        while True:
            with _told():
                items = self._store.search(self._namespace, limit=page, offset=offset)
            if last is not None and (not items or _place(items[0]) != last):
                return False
            for item in items:
                if tuple(item.namespace) == self._namespace:
                    found[item.key] = _record(item)
            if len(items) < page:
                return True
            offset, last = offset + len(items) - 1, _place(items[-1])
            page = min(page * 2, LAST_PAGE)


def _place(item: Any) -> tuple[tuple[str, ...], str]:
    return tuple(item.namespace), item.key


def _record(item: Any) -> Record:
    return Record(item.value, None, item.updated_at)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Whatever a store raises, as an `OSError` that says it in its own words."""
    try:
        yield
    except (OSError, MemoryError):
        raise
    except NotImplementedError as error:
        raise OSError(errno.ENOTSUP, f"The store can't do this: {error}") from error
    except TimeoutError as error:
        raise oserror(errno.ETIMEDOUT) from error
    except Exception as error:  # a store is somebody else's code, over any library
        raise OSError(errno.EIO, f"The store failed: {type(error).__name__}: {error}") from error
