"""`Items`: one namespace of a LangGraph store, as keys with values; and ranges of keys.

There are two kinds: `SearchedItems` (any `BaseStore`) and `SqlItems` (the tables of a `SqliteStore` or `PostgresStore`,
queried directly). `values.py` has what a value is as a file. Keys are in the order of their code points. Child
namespaces are other namespaces: `(ns, "sub")` is no part of `(ns,)`, though a store's `search` finds both.

`swap` changes values: each change has the version that it expects, from `fetch`. In SQL all changes of a call are made
in one transaction, or none; `searched_items.py` describes other stores. Errors of a store are `OSError`s with a fitting
errno, or EIO.
"""

from __future__ import annotations

import abc
import copy
import errno
import hashlib
import uuid
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple, Self

from fusebackend.backends.store.values import About, about
from fusebackend.base.batches import by_size
from fusebackend.base.json_text import pretty
from fusebackend.protocol.volume import listening

BATCH_BYTES = 8 << 20
BATCH_ITEMS = 1000
"""Bounds of one fetch."""

MAX_KNOWN = 200_000
"""Keys with a cached size and time, some 300 bytes each. With more, all are dropped and queried again."""


class Row(NamedTuple):
    """A key, and the cheap properties of its value."""

    key: str
    stamp: Hashable = None
    """Differs for different values, and may differ for equal ones; None when unknown."""
    weight: int = 0
    """The approximate size of the value in bytes."""


class Record(NamedTuple):
    """The item of a key."""

    value: Any
    """Decoded."""
    raw: bytes | None
    """The value as stored, None where that is unknown."""
    moment: Any
    """When it was put: a time, its text, or None."""
    ttl_minutes: float | None = None
    """Its time to live after a put, None for ever."""

    @property
    def version(self) -> bytes:
        """A digest: equal for equal values."""
        return version_of(pretty(self.value).encode("utf-8") if self.raw is None else self.raw)

    @property
    def updated_at(self) -> str:
        """ISO 8601, or empty."""
        moment = self.moment
        return moment if isinstance(moment, str) else "" if moment is None else str(moment.isoformat())


def version_of(raw: bytes) -> bytes:
    """`Record.version` of a value that is stored as these bytes."""
    return hashlib.sha256(raw).digest()


class Anything:
    """The expectation of a change that replaces any version."""


ANYTHING: Final = Anything()


class Change(NamedTuple):
    """`value` None deletes. `expected` is a version, None for a key that must not be there, or ANYTHING."""

    key: str
    value: dict[str, Any] | None
    expected: bytes | Anything | None = ANYTHING
    ttl_minutes: float | None = None


class Conflict(OSError):
    """A key has not the version that a change expected."""

    def __init__(self, key: str) -> None:
        super().__init__(errno.ESTALE, "It was changed by somebody else meanwhile; read it again", key)


# -- a namespace -----------------------------------------------------------------------------------------------------


class Hub:
    """Notifies the backends of this process over the same items of each other's changes.

    Callbacks run in the thread that made a change, with no lock held. A mount changes items under its volume's lock, so
    its changes are only counted, and detected by `count`.
    """

    def __init__(self) -> None:
        self._changes: Counter[str] = Counter()
        self._watchers: list[tuple[str, Callable[[Sequence[str]], None]]] = []

    def watch(self, origin: str, changed: Callable[[Sequence[str]], None]) -> Callable[[], None]:
        """Call `changed` with the paths of each change of another origin. Returns a function that ends it."""
        return listening(self._watchers, (origin, changed))

    def notify(self, origin: str, paths: Sequence[str]) -> None:
        """A change was made. The empty origin is an agent's, any other one a mount's."""
        self._changes[origin] += 1
        if origin:
            return
        for watching, changed in tuple(self._watchers):
            if watching != origin:
                changed(paths)

    def count(self, origin: str) -> int:
        """The number of changes of other origins."""
        return self._changes.total() - self._changes[origin]


class Items(abc.ABC):
    """See the module's docstring. Methods may be called from any thread.

    Attributes:
        origin: the mount that makes the changes, empty for an agent; see `Hub`.
    """

    origin = ""

    blocking = True
    durable = True
    text_only = True
    """Keys must be UTF-8."""
    takes_nul = True
    """Texts may hold NUL characters."""
    feed = False
    """Watchers are notified of every change of others."""

    def __init__(self) -> None:
        self.hub = Hub()
        self._shared: Items | None = None  # the owner of the hub, which lives as long as its views
        self._known: dict[str, tuple[Hashable, About]] = {}

    @abc.abstractmethod
    def level(self, prefix: str) -> list[Row]:
        """The keys that start with a prefix and have no `/` after it, and at least one of each subdirectory."""

    @abc.abstractmethod
    def below(self, prefix: str) -> list[Row]:
        """All keys that start with a prefix (`keyed.bounds`)."""

    @abc.abstractmethod
    def look(self, keys: Sequence[str], prefixes: Sequence[str]) -> tuple[list[Row], list[str]]:
        """The existing ones among `keys`, and those among `prefixes` that keys start with."""

    @abc.abstractmethod
    def fetch(self, keys: Sequence[str]) -> dict[str, Record]:
        """The values of the existing ones among `keys`."""

    @abc.abstractmethod
    def swap(self, changes: Sequence[Change]) -> None:
        """Make changes. `Conflict` when a key has not the expected version."""

    def token(self) -> Hashable:
        """Equal tokens mean that nothing was changed in between except through these items; None when unknown."""
        return None

    @property
    def trouble(self) -> tuple[float, str] | None:
        """As `Volume.trouble`."""
        return None

    def watch(self, changed: Callable[[str | None], None]) -> Callable[[], None]:
        """Call `changed` with each key that other programs and mounts change, None for any. Only with `feed`.

        Returns:
            a function that ends it.
        """
        return lambda: None

    def moment(self) -> Items:
        """The same items for one verb, which may cache everything that it has read."""
        return self

    def for_mount(self, ttl_s: float) -> Self:
        """The same items for a mount: with an origin of their own, and cached for `ttl_s` where a query is dear."""
        view = copy.copy(self)
        view._shared = self
        view.origin = uuid.uuid4().hex
        return view

    def close(self) -> None:
        """Close the database, if this object has opened it."""

    def records(self, rows: Iterable[Row]) -> Iterator[tuple[Row, Record]]:
        """Values in the order of the rows, in batches of `BATCH_BYTES`."""
        for batch in by_size(rows, attrgetter("weight"), BATCH_ITEMS, BATCH_BYTES):
            found = self.fetch([row.key for row in batch])
            yield from ((row, found[row.key]) for row in batch if row.key in found)

    def describe(self, rows: Iterable[Row]) -> dict[str, About]:
        """Size, time and kind of values, without those that are gone meanwhile."""
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


# -- databases -----------------------------------------------------------------------------------------------------

COLUMNS: Final = frozenset({"prefix", "key", "value", "created_at", "updated_at", "expires_at", "ttl_minutes"})
"""Of LangGraph's table `store`."""

NAMESPACES: Final = """
WITH RECURSIVE found(ns) AS (
    SELECT min(prefix) FROM store
    UNION ALL
    SELECT (SELECT min(prefix) FROM store WHERE prefix > found.ns) FROM found WHERE found.ns IS NOT NULL
)
SELECT ns FROM found WHERE ns IS NOT NULL
"""
"""`SELECT DISTINCT prefix`, with one step of the primary key's index for each namespace."""


class Settings(NamedTuple):
    """How a store was configured."""

    embedding: Any = None
    """A store that embeds each value for its search. Then writes go through it, compared and put one by one under a
    lock of this process."""
    ttl_minutes: float | None = None
    """The time to live of new items; None for ever."""
    refreshes: bool = False
    """Reading a value begins its time to live anew."""
    omit_expired: bool = False
    """In PostgreSQL: hide expired items that are not swept yet. A `SqliteStore` shows them."""
    feed: bool = True
    """In PostgreSQL: allow to make a trigger and an index, and listen to the trigger."""


def require_columns(found: set[str]) -> None:
    """EINVAL for a table `store` with these columns that is not LangGraph's."""
    if missing := COLUMNS - found:
        raise OSError(errno.EINVAL, f"The table 'store' is not LangGraph's: it has no column {min(missing)!r}")
