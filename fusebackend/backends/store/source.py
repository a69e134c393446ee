"""`StoreSource`: from the arguments of a `StoreBackend` to its store, its namespace and its `Items`.

Namespaces are LangGraph's: one or more labels, each a string that is not empty and holds no `.`; the first is not
`langgraph`, which LangGraph reserves. LangGraph is never imported here, except for the running graph's store, and only
if it is loaded already.
"""

from __future__ import annotations

import errno
import re
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from fusebackend.backends.store.items import Items, Settings
from fusebackend.backends.store.searched_items import SearchedItems
from fusebackend.backends.store.sql_items import SqlItems, StoreDatabase
from fusebackend.base.recent import Recent
from fusebackend.databases.langgraph import graph_runtime, loaded_class

NamespaceLike: TypeAlias = str | Sequence[str] | Callable[[Any], "str | Sequence[str]"]

NO_STORE = (
    "There is no store: no LangGraph graph with one is running here. Give StoreBackend a store or a runtime that has "
    "one, or mount its database as store+sqlite:PATH?ns=NAME or store+postgres:DSN?ns=NAME"
)

MAX_NAMESPACES = 1000
"""Unused items of one store that are kept: a namespace's function may name one for each user."""

_NO_LABEL = re.compile(r"[^A-Za-z0-9@+:~_-]")
"""Characters that deepagents refuses in a label: a user's name that a function puts there could be a pattern."""


def checked_namespace(given: Any, *, computed: bool = False) -> tuple[str, ...]:
    """A namespace as LangGraph takes it, from a tuple or from a string with dots.

    Args:
        given: the namespace.
        computed: a function returned it, so that deepagents' rule for labels holds. A literal one may have any labels.

    Raises:
        TypeError, ValueError: it can't be one; one line says why.
    """
    if isinstance(given, str):
        given = given.split(".")
    if not isinstance(given, (tuple, list)):
        raise TypeError(f"A namespace is a tuple of labels or a string such as 'a.b', not {type(given).__name__}")
    if not given:
        raise ValueError("The namespace is empty; give at least one label, such as ('memories',)")
    for label in given:
        if not isinstance(label, str):
            raise TypeError(f"The namespace {tuple(given)!r} holds {type(label).__name__}; labels must be strings")
        if not label:
            raise ValueError(f"The namespace {tuple(given)!r} has an empty label")
        if "." in label:
            raise ValueError(f"The label {label!r} holds a '.', which LangGraph forbids; replace it, by '_' perhaps")
        if "\0" in label:
            raise ValueError(f"The label {label!r} holds a NUL character")
        wrong = _NO_LABEL.search(label) if computed else None
        if wrong is not None:
            raise ValueError(
                f"The label {label!r} of a computed namespace holds {wrong[0]!r}, which may be meant as a pattern; it "
                "may have letters, digits and - _ @ + : ~"
            )
    if given[0] == "langgraph":
        raise ValueError("The first label of a namespace can't be 'langgraph': LangGraph keeps it for itself")
    return tuple(given)


def require_store(store: Any) -> Any:
    """Hand a store back if it can be used from here.

    Raises:
        TypeError: it is none, or one that answers in its event loop only.
    """
    name = type(store).__name__
    if any(cls.__name__ == "AsyncBatchedBaseStore" for cls in type(store).__mro__):
        raise TypeError(
            f"{name} only answers inside of its own event loop, and these files are asked for from anywhere; give "
            f"{name.removeprefix('Async')} over the same database, or its URL (store+sqlite:PATH, store+postgres:DSN)"
        )
    missing = [verb for verb in ("get", "put", "delete", "search") if not callable(getattr(store, verb, None))]
    if missing:
        raise TypeError(f"{name} is no LangGraph store: it has no {' and no '.join(missing)}")
    return store


class SharedStore:
    """The connections and items that all backends of this process over one store share.

    The seeds' factories make a backend for every call of a tool, so that must be cheap. It is closed with the store, or
    with the last of its users.
    """

    def __init__(self, store: Any) -> None:
        """OSError: the database can't be opened."""
        self.users: weakref.WeakSet[object] = weakref.WeakSet()
        self._store = weakref.ref(store)
        self.database = database_of(store)
        self._lock = threading.Lock()
        self._items: weakref.WeakValueDictionary[tuple[tuple[str, ...], bool], Items] = weakref.WeakValueDictionary()
        self._recent: Recent[tuple[tuple[str, ...], bool], Items] = Recent(MAX_NAMESPACES)

    @classmethod
    def of(cls, store: Any) -> SharedStore:
        """The one for a store."""
        with _sharing:
            shared = _shared.get(store)
            if shared is None:
                shared = _shared[store] = cls(store)
                if shared.database is not None:
                    weakref.finalize(store, shared.database.close)
            return shared

    def items(self, namespace: tuple[str, ...], *, feed: bool) -> Items:
        """The items of a namespace, shared by all backends over it."""
        key = (namespace, feed)
        with self._lock:
            items = self._items.get(key)
            if items is None:
                items = self._items[key] = items_of(self._store(), self.database, namespace, feed=feed)
            self._recent[key] = items
            return items

    def leave(self, user: object) -> None:
        with _sharing:
            self.users.discard(user)
            store = self._store()
            if self.users or store is None:
                return
            _shared.pop(store, None)
        if self.database is not None:
            self.database.close()


_sharing = threading.Lock()
_shared: weakref.WeakKeyDictionary[Any, SharedStore] = weakref.WeakKeyDictionary()


class StoreSource:
    """See the module's docstring. Arguments as for `StoreBackend`."""

    def __init__(self, store_or_runtime: Any, store: Any, namespace: NamespaceLike, *, feed: bool) -> None:
        is_store = store_or_runtime is not None and _looks_like_a_store(store_or_runtime)
        if store is not None and is_store:
            raise TypeError("Two stores are given; give one")
        self._runtime = None if is_store else store_or_runtime
        self._store = store if store is not None else store_or_runtime if is_store else None
        if self._store is not None:
            require_store(self._store)
        elif self._runtime is not None and not hasattr(self._runtime, "store"):
            raise TypeError(f"{type(self._runtime).__name__} is neither a LangGraph store nor has it a 'store'")
        self._namespace = namespace if callable(namespace) else checked_namespace(namespace)
        self._feed = feed
        self._used: weakref.WeakSet[SharedStore] = weakref.WeakSet()

    def where(self) -> str:
        """The store's class and the namespace, for `repr`."""
        store = "the running graph's store" if self._store is None else type(self._store).__name__
        namespace = "a namespace for each runtime" if callable(self._namespace) else ".".join(self._namespace)
        return f"{store}, {namespace}"

    def items(self) -> Items:
        """The items of the current store and namespace.

        Raises:
            OSError: there is no store, or the namespace's function failed or gave what is none.
        """
        store, namespace = self._found_store(), self._found_namespace()
        shared = SharedStore.of(store)
        if shared not in self._used:
            shared.users.add(self)
            self._used.add(shared)
        return shared.items(namespace, feed=self._feed)

    def close(self) -> None:
        """Close the connections to stores that no other backend of this process uses."""
        for shared in list(self._used):
            shared.leave(self)
        self._used.clear()

    def _found_store(self) -> Any:
        if self._store is not None:
            return self._store
        store = getattr(self._runtime_here(), "store", None)
        if store is None:
            raise OSError(errno.EIO, NO_STORE)
        try:
            return require_store(store)
        except TypeError as error:
            raise OSError(errno.EIO, str(error)) from None

    def _runtime_here(self) -> Any:
        return self._runtime if self._runtime is not None else graph_runtime()

    def _found_namespace(self) -> tuple[str, ...]:
        if not callable(self._namespace):
            return self._namespace
        runtime = self._runtime_here()
        try:
            return checked_namespace(self._namespace(runtime), computed=True)
        except (TypeError, ValueError) as error:
            raise OSError(errno.EIO, str(error)) from error
        except Exception as error:  # a user's function may raise anything
            outside = " No LangGraph graph is running here, so it was given None." if runtime is None else ""
            raise OSError(
                errno.EIO, f"The namespace's function failed: {type(error).__name__}: {error}.{outside}"
            ) from error


def _looks_like_a_store(given: Any) -> bool:
    return all(callable(getattr(given, verb, None)) for verb in ("get", "put", "search")) or any(
        cls.__name__ == "BaseStore" for cls in type(given).__mro__
    )


def database_of(store: Any) -> StoreDatabase | None:
    """The database of a store of LangGraph's own classes, to be queried directly; None for any other.

    Raises:
        OSError: the database can't be opened.
    """
    if _is_exactly(store, "langgraph.store.sqlite", "SqliteStore"):
        from fusebackend.backends.store.sqlite_database import SqliteStoreDatabase

        return SqliteStoreDatabase.of_store(store)
    if _is_exactly(store, "langgraph.store.postgres", "PostgresStore"):
        from fusebackend.backends.store.postgres_database import PostgresStoreDatabase

        return PostgresStoreDatabase.of_store(store)
    return None


def items_of(store: Any, database: StoreDatabase | None, namespace: tuple[str, ...], *, feed: bool = True) -> Items:
    """The items of a namespace. `database` is from `database_of`."""
    if database is None:
        in_memory = _is_exactly(store, "langgraph.store.memory", "InMemoryStore")
        return SearchedItems(store, namespace, in_memory=in_memory)
    config = getattr(store, "ttl_config", None) or {}
    settings = Settings(
        embedding=store if getattr(store, "index_config", None) else None,
        ttl_minutes=config.get("default_ttl"),
        refreshes=bool(config) and config.get("refresh_on_read", True),
        omit_expired=bool(config.get("omit_expired")),
        feed=feed,
    )
    return SqlItems(database, namespace, settings)


def _is_exactly(store: Any, module: str, name: str) -> bool:
    """Whether a store's items are stored as by that class: a subclass may override it."""
    found = loaded_class(module, name)
    if found is None or not isinstance(store, found):
        return False
    same = ("batch", "get", "put", "delete", "search")
    return all(getattr(type(store), verb) is getattr(found, verb) for verb in same) and not getattr(
        store, "_deserializer", None
    )
