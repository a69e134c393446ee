"""`StoreBackend`: the files of an agent's long-term memory, in a namespace of a LangGraph `BaseStore`.

    StoreBackend(store, namespace=("memories",))        any store: InMemoryStore, SqliteStore, PostgresStore, …
    StoreBackend(runtime)                               its `store`; also as a factory, `lambda rt: StoreBackend(rt)`
    StoreBackend(namespace=lambda rt: (rt.context.user_id,))    the store and the runtime of the graph that runs
    store+sqlite:PATH?ns=memories  store+postgres:DSN?ns=memories
    StoreBackend.tree(store)  store+sqlite:PATH?tree=1          all of them, each a directory (`namespaces.py`)

A file is an item: its path is the key, and the value has deepagents' format (`values.py`). Values in the seeds' format
are read, and rewritten in today's when the file is changed. Other keys and values are shown by the rule of `StoreTree`:
nothing is hidden. A child namespace is another tree: give it a route of its own.

- No change of another program is overwritten unseen. `edit` and the mount replace only the version that they have read;
  after another program's change `edit` fails, and the mount answers as SEMANTICS.md says. In SQLite and PostgreSQL that
  holds between all programs, in one transaction; in other stores within this process, where another program can come
  between the comparison and the put. A store that makes embeddings (`index=…`) counts as another store for writing.
- `created_at` stays, `modified_at` is the time of the change, and an item's time to live begins anew, as the store is
  configured or else as the item had it.
- Directories are parts of keys: there are no empty ones, and a directory goes with its last file.
- Every verb sees the changes of others: it queries an SQL store, and searches through any other store once.
  `kernel_side` describes mounts.

A store that only answers inside of its event loop (`AsyncSqliteStore`, `AsyncPostgresStore`) is refused, and the
error names the alternatives.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Hashable
from dataclasses import replace
from types import TracebackType
from typing import Any, ClassVar, Self

from fusebackend.backends.store.files import FileFormat, StoreFiles
from fusebackend.backends.store.items import Items, Settings
from fusebackend.backends.store.namespaces import Spaces, require_place_at_root
from fusebackend.backends.store.source import Namespace, StoreSource, checked_namespace
from fusebackend.backends.store.sql_items import SqlItems, StoreDatabase
from fusebackend.backends.store.values import Form
from fusebackend.base import paths
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.databases.urls import LIBPQ_WORDS, conninfo_of, require_modules, url_errors
from fusebackend.protocol import (
    WHOLE_FILES,
    OnExists,
)
from fusebackend.protocol.scheme import ON_EXISTS, TTL, Parameter, Scheme, Url, UrlError, auto_or_off

LISTED = 100
"""Namespaces that an error names."""


def _namespace(value: str) -> tuple[str, ...]:
    try:
        return checked_namespace(value)
    except ValueError as error:
        raise ValueError(f"must be a namespace such as 'a.b' ({error})") from None


def _yes(value: str) -> bool:
    if value != "1":
        raise ValueError("must be 1")
    return True


PARAMETERS = {
    "ns": Parameter(_namespace, "the namespace, its parts with dots between"),
    "tree": Parameter(_yes, "1: all namespaces of the store, each a directory"),
}


class StoreBackend(StoreFiles):
    """See the module's docstring.

    Args:
        store_or_runtime: a store, or an object with a `store`. None, without `store` either: that of the graph in which
            a verb is called.
        namespace: a tuple of labels, a string (`"a.b"`), or a function that returns one for the runtime (None outside
            of a graph). It is called for every verb.
        store: the store; `store_or_runtime` is then only the argument of `namespace`.
        file_format: how files are written, `"v2"` (text or base64) or `"v1"` (the seeds' list of lines).
        on_exists: `write` over an existing file is an `"error"` (the seeds) or a `"replace"` (deepagents 0.7).
        feed: allow to make a trigger in PostgreSQL, and an index where the database sorts by language.
        ttl_s: how long a mount caches without a change feed; None for its own default.

    Raises:
        TypeError, ValueError: a store that can't be used, a namespace that can't be one.
    """

    schemes: ClassVar = {
        "store+sqlite": Scheme(
            "store+sqlite:PATH?ns=NAMESPACE",
            "an agent's long-term memory: a namespace of a LangGraph store in SQLite",
            lambda url: open_sqlite(url),
            takes="path",
            parameters={**PARAMETERS, **TTL, **ON_EXISTS},
            features=replace(WHOLE_FILES, blocking=True),
        ),
        "store+postgres": Scheme(
            "store+postgres:DSN?ns=NAMESPACE",
            "the same in PostgreSQL, with what other programs change shown at once",
            lambda url: open_postgres(url),
            parameters={
                "feed": Parameter(
                    auto_or_off,
                    "auto (default): a trigger tells of changes at once, where it may be made; off: they are seen "
                    "after ttl",
                ),
                **PARAMETERS,
                **TTL,
                **ON_EXISTS,
            },
            passed_on=LIBPQ_WORDS,
        ),
    }

    def __init__(
        self,
        store_or_runtime: Any = None,
        *,
        namespace: Namespace = ("filesystem",),
        store: Any = None,
        file_format: FileFormat = "v2",
        on_exists: OnExists = "error",
        feed: bool = True,
        ttl_s: float | None = None,
    ) -> None:
        super().__init__(file_format=file_format, on_exists=on_exists)
        self.ttl_s = ttl_s
        self._source = StoreSource(store_or_runtime, store, namespace, feed=feed)
        self._spaces: Spaces | None = None  # fixed on a mount, and for a URL

    @classmethod
    def over(cls, found: Items | Spaces, **options: Any) -> StoreBackend:
        """A backend of open items, or of the namespaces of a store, which it closes."""
        backend = cls(namespace=("-",), **options)
        backend._spaces = found if isinstance(found, Spaces) else Spaces.of_one(found)
        return backend

    def _where(self) -> str:
        return self._source.where()

    @classmethod
    def tree(cls, store: Any, **options: Any) -> StoreBackend:
        """The whole store, each namespace a directory, as `namespaces.py` describes.

        Options: `file_format`, `on_exists` and `ttl_s`, as for the constructor.
        """
        return cls.over(Spaces.of_store(store), **options)

    @property
    def spaces(self) -> Spaces:
        """The current namespace, or all of them."""
        return self._spaces if self._spaces is not None else Spaces.of_one(self._source.items())

    @property
    def items(self) -> Items:
        """The items of the current namespace."""
        return self.spaces.items(self.spaces.root)

    def close(self) -> None:
        """Close the connections that were opened here. The store itself belongs to the caller."""
        if self._spaces is not None:
            self._spaces.close()
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # -- for a mount -------------------------------------------------------------------------------------------

    def kernel_side(self, ttl_s: float) -> StoreBackend:
        """This backend for a mount: the namespace is fixed, and a search through the store is valid for `ttl_s`.

        PostgreSQL notifies of every change (`items.feed`). For SQLite `token` is a cheap test for changes, so only the
        kernel's entry and attribute timeouts delay them. Other stores are searched once in that time.

        Raises:
            OSError, TypeError, ValueError: there is no store or no namespace outside of a graph.
        """
        side = copy.copy(self)
        side._spaces = self.spaces.for_mount(ttl_s)
        return side

    @property
    def blocking(self) -> bool:
        return self.items.blocking

    @property
    def durable(self) -> bool:
        return self.items.durable

    @property
    def change_feed(self) -> bool:
        return self.items.feed

    def token(self) -> Hashable:
        """Equal tokens mean that nothing was changed in between except through this object; None when unknown."""
        try:
            spaces = self.spaces
            token = spaces.token()
        except OSError:  # the next access will raise it
            return None
        return None if token is None else (token, spaces.hub.count(spaces.origin))

    @property
    def trouble(self) -> tuple[float, str] | None:
        """As `Volume.trouble`."""
        return self.spaces.trouble

    def follow(self, changed: Callable[..., None]) -> Callable[[], None]:
        """Call `changed(*paths, elsewhere=…)` after each change that is not made through this object.

        No paths stand for any. Changes of this process's agents, through any backend over the same items, arrive at
        once, in the thread that made them; those of others (`elsewhere`) only where there is a feed.

        Returns:
            a function that ends it.
        """
        spaces = self.spaces

        def elsewhere(key: str | None) -> None:
            changed(*(_places_of(key) if key is not None else ()), elsewhere=True)

        ends = (
            spaces.hub.watch(spaces.origin, lambda paths: changed(*paths, elsewhere=False)),
            spaces.items(spaces.root).watch(elsewhere),
        )

        def end() -> None:
            for stop in ends:
                stop()

        return end

    def admits(self, path: AgentPath, *, is_dir: bool) -> None:
        """Raise the error of any file or directory at this path, before it is written in vain. Queries nothing."""
        directory, name = paths.parent_and_name(path)
        if directory == ROOT and not self.spaces.root:
            require_place_at_root(name, is_dir)


def _places_of(key: str) -> tuple[AgentPath, ...]:
    """The paths that a change of a key may affect; none when that is unknown."""
    path = key if key.startswith("/") else f"/{key}"
    try:
        known = paths.normalise(path) == path and "%" not in path
    except paths.PathError:
        known = False
    return tuple(AgentPath(path + form.value) for form in Form) if known else ()


# -- URLs -------------------------------------------------------------------------------------------------------------


def open_sqlite(url: Url) -> StoreBackend:
    """The backend of `store+sqlite:PATH?ns=NAME`. LangGraph makes the tables, and the file if its directory exists."""
    require_modules(url, "langgraph", "langgraph.store.sqlite", "sqlite3")
    from fusebackend.backends.store.sqlite_database import SqliteStoreDatabase

    parent = os.path.dirname(url.rest)
    if not os.path.isdir(parent):
        raise UrlError(f"'{url.masked}': there is no directory '{parent}'")
    if os.path.exists(url.rest) and not os.path.isfile(url.rest):
        raise UrlError(f"'{url.masked}': '{url.rest}' is not a file")
    with url_errors(url):
        return _opened(url, SqliteStoreDatabase.of_file(url.rest, setup=_sqlite_tables))


def _sqlite_tables(connection: Any) -> None:
    from langgraph.store.sqlite import SqliteStore

    SqliteStore(connection).setup()


def open_postgres(url: Url) -> StoreBackend:
    """The backend of `store+postgres:DSN?ns=NAME`. LangGraph makes the tables where they are missing."""
    require_modules(url, "langgraph", "langgraph.store.postgres", "psycopg", "psycopg_pool")
    from fusebackend.backends.store.postgres_database import PostgresStoreDatabase

    conninfo = conninfo_of(url)
    with url_errors(url):
        return _opened(url, PostgresStoreDatabase.of_url(conninfo, setup=_postgres_tables))


def _postgres_tables(connection: Any) -> None:
    from langgraph.store.postgres import PostgresStore

    PostgresStore(connection).setup()


def _opened(url: Url, database: StoreDatabase) -> StoreBackend:
    """The backend over a namespace of a database, or over all. It closes the database."""
    on_exists = url.parameters.get("on_exists", "error")
    namespace = url.parameters.get("ns")
    if url.parameters.get("tree"):
        if namespace is not None:
            database.close()
            raise UrlError(f"'{url.masked}': tree=1 shows all namespaces; leave ns out")
        return StoreBackend.over(Spaces.of_database(database), on_exists=on_exists, ttl_s=url.parameters.get("ttl"))
    if namespace is None:
        there = database.namespaces()[:LISTED]
        database.close()
        holds = f"; this store holds {', '.join(there)}" if there else ""
        how = "add ?ns=NAME, such as ?ns=memories, or ?tree=1 for all"
        raise UrlError(f"'{url.masked}' names no namespace; {how}{holds}")
    items = SqlItems(database, namespace, Settings(feed=url.parameters.get("feed", True)))
    return StoreBackend.over(items, ttl_s=url.parameters.get("ttl"), on_exists=on_exists)
