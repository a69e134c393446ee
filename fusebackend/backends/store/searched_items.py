"""`SearchedItems`: a namespace of any LangGraph store, through `get`, `put`, `delete` and `search` alone.

To list a directory takes a search through the whole namespace: one for each verb (`moment`), or one for all calls
within some time (`for_mount`). A lock makes compare and put one step among the backends of this process; another
program can still come between the two.
"""

from __future__ import annotations

import contextlib
import copy
import math
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Self

from fusebackend.backends.store.items import Anything, Change, Conflict, Items, Record, Row
from fusebackend.backends.store.values import About, about
from fusebackend.databases.langgraph import translate_errors
from fusebackend.remote.keyed import KeyList

FIRST_PAGE, LAST_PAGE = 500, 16_000
"""Items in a page of a search. Pages grow, for a store counts its offset anew for each."""

WHOLE_PAGE = 1 << 30
"""All at once, from a store in this process."""

PASSES = 3
"""How often a search is repeated that others disturbed by changes, before its result is taken."""

_comparing: weakref.WeakKeyDictionary[Any, threading.RLock] = weakref.WeakKeyDictionary()
_comparing_others = threading.RLock()


def comparing_lock(store: Any) -> threading.RLock:
    """The lock for compare and put among the backends of this process."""
    with contextlib.suppress(TypeError):  # it can't be hashed, or not be referred to weakly
        return _comparing.setdefault(store, threading.RLock())
    return _comparing_others


def swap_one_by_one(
    store: Any,
    namespace: tuple[str, ...],
    changes: Sequence[Change],
    fetch: Callable[[Sequence[str]], dict[str, Record]],
) -> None:
    """`Items.swap` through a store's own `put` and `delete`, with the present versions from `fetch`. Nothing is put if
    one is not as expected."""
    with comparing_lock(store):
        there = fetch([change.key for change in changes if not isinstance(change.expected, Anything)])
        for change in changes:
            found = there.get(change.key)
            version = None if found is None else found.version
            if not isinstance(change.expected, Anything) and change.expected != version:
                raise Conflict(change.key)
        if len(changes) > 1 and all(change.value is None for change in changes) and hasattr(store, "batch"):
            _delete_at_once(store, namespace, [change.key for change in changes])
            return
        for change in changes:
            with translate_errors("The store"):
                if change.value is None:
                    store.delete(namespace, change.key)
                elif change.ttl_minutes is not None:
                    store.put(namespace, change.key, change.value, ttl=change.ttl_minutes)
                else:
                    store.put(namespace, change.key, change.value)


def _delete_at_once(store: Any, namespace: tuple[str, ...], keys: list[str]) -> None:
    """Delete a directory with one call: a store that is a server would else be called once for each file."""
    from langgraph.store.base import PutOp

    with translate_errors("The store"):
        store.batch([PutOp(namespace, key, None) for key in keys])


class _Pass:
    """The result of one search through a namespace, with the changes that were made here since."""

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
    """The last search, shared by several views."""

    found: _Pass | None = None


class SearchedItems(Items):
    """See the module's docstring.

    Args:
        in_memory: it is an `InMemoryStore`.
    """

    text_only = False

    def __init__(self, store: Any, namespace: tuple[str, ...], *, in_memory: bool = False) -> None:
        super().__init__()
        self._store = store
        self._namespace = namespace
        self.blocking = self.durable = not in_memory
        self._max_age_s = 0.0
        self._last: _Last = _Last()
        self._lock = comparing_lock(store)

    def moment(self) -> Items:
        if self._max_age_s:
            return self
        view = copy.copy(self)
        view._max_age_s, view._last = math.inf, _Last()
        return view

    def for_mount(self, ttl_s: float) -> Self:
        view = super().for_mount(ttl_s)
        view._max_age_s = ttl_s
        return view

    def token(self) -> Hashable:
        """The search that all answers come from, while it is valid."""
        return self._pass().made_at if self._max_age_s else None

    def level(self, prefix: str) -> list[Row]:
        return [Row(key) for key in self._pass().keys.level(prefix)]

    def below(self, prefix: str) -> list[Row]:
        return [Row(key) for key in self._pass().keys.below(prefix)]

    def look(self, keys: Sequence[str], prefixes: Sequence[str]) -> tuple[list[Row], list[str]]:
        found = self._pass()
        there = [Row(key) for key in keys if key in found.records]
        return there, [prefix for prefix in prefixes if found.keys.any_below(prefix)]

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
        with translate_errors("The store"):
            items = {key: self._store.get(self._namespace, key) for key in keys}
        return {key: _record(item) for key, item in items.items() if item is not None}

    def swap(self, changes: Sequence[Change]) -> None:
        try:
            swap_one_by_one(self._store, self._namespace, changes, self.fetch)
        finally:
            found = self._last.found
            if found is not None:
                there = self.fetch([change.key for change in changes])
                for change in changes:
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
        """All items. Changes of others move items between pages: a search that detects one is repeated."""
        if not self.blocking:
            return {key: _record(item) for key, item in _items_in_memory(self._store, self._namespace)}
        found: dict[str, Record] = {}
        for _ in range(PASSES):
            if self._search_once(found):
                break
        return found

    def _search_once(self, found: dict[str, Record]) -> bool:
        """Add all items. False if one has moved: each page must begin with the last item of the page before."""
        offset, page, last = 0, FIRST_PAGE, None
        while True:
            with translate_errors("The store"):
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


def _items_in_memory(store: Any, namespace: tuple[str, ...]) -> list[tuple[str, Any]]:
    """All items of an `InMemoryStore`'s namespace, at one moment.

    Its own `search` runs through a dict that other threads change meanwhile, and fails when they do. The copy here is
    one step of the interpreter.
    """
    data = getattr(store, "_data", None)
    found = data.get(namespace) if isinstance(data, dict) else None
    if isinstance(found, dict):
        return list(found.items())
    with translate_errors("The store"):
        items = store.search(namespace, limit=WHOLE_PAGE)
    return [(item.key, item) for item in items if tuple(item.namespace) == namespace]


def _place(item: Any) -> tuple[tuple[str, ...], str]:
    return tuple(item.namespace), item.key


def _record(item: Any) -> Record:
    return Record(item.value, None, item.updated_at)
