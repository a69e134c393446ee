"""`Items`: one namespace of a LangGraph store, as keys with values. What a `StoreBackend` stands on.

Three kinds: `SearchedItems` (any `BaseStore`), `SqliteItems` and `PostgresItems` (the tables of those two stores,
asked directly). Keys come in the order of their code points. Child namespaces are other namespaces: `(ns, "sub")` is
no part of `(ns,)`, though a store's `search` finds both.

Values are changed by `swap`: each change says what it expects to be there, by the version that `fetch` gave. In SQL all
changes of a call are made in one transaction, or none; of other stores `searched_items.py` says what holds.

Errors of a store are `OSError`s with an errno that fits, or EIO.
"""

from __future__ import annotations

import abc
import copy
import errno
import hashlib
import json
import uuid
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from fusebackend.backends.store.values import About, about

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


class Hub:
    """Where the backends of this process that are over the same items hear of each other.

    `told` is called in the thread that made a change, with no lock held; but for changes that a mount makes, under its
    volume's lock: those only count, and show when somebody looks.
    """

    def __init__(self) -> None:
        self._changes: Counter[str] = Counter()
        self._watchers: list[tuple[str, Callable[[Sequence[str]], None]]] = []

    def watch(self, origin: str, told: Callable[[Sequence[str]], None]) -> Callable[[], None]:
        """Call `told` with the paths of each change that has another origin; returns what ends that."""
        watcher = (origin, told)
        self._watchers.append(watcher)

        def end() -> None:
            if watcher in self._watchers:
                self._watchers.remove(watcher)

        return end

    def tell(self, origin: str, changed: Sequence[str]) -> None:
        """A change was made. The empty origin is an agent's, any other one a mount's."""
        self._changes[origin] += 1
        if origin:
            return
        for watching, told in tuple(self._watchers):
            if watching != origin:
                told(changed)

    def count(self, origin: str) -> int:
        """How many changes of other origins there were."""
        return self._changes.total() - self._changes[origin]


class Items(abc.ABC):
    """See the module's docstring. Methods may be called from any thread.

    Attributes:
        origin: who makes the changes, empty for an agent; see `Hub`.
    """

    origin = ""

    blocking = True
    durable = True
    text_only = True
    """Keys must be UTF-8."""
    takes_nul = True
    """Texts may hold NUL characters."""
    feed = False
    """Every change of others is told to watchers."""

    def __init__(self) -> None:
        self.hub = Hub()
        self._shared: Items | None = None  # whose hub this is: it is kept while a view of it is
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
        """Tell `changed` each key that other programs and mounts change, None for any; returns what ends that. Only
        with `feed`."""
        return lambda: None

    def moment(self) -> Items:
        """The same items for the length of one verb, where that saves work: what was seen once is not asked again."""
        return self

    def for_mount(self, ttl_s: float) -> Items:
        """The same items for a mount: with an origin of their own, and as old as `ttl_s`, where that saves work."""
        view = copy.copy(self)
        view._shared = self
        view.origin = uuid.uuid4().hex
        return view

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
