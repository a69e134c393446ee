"""`store+sqlite:` and `store+postgres:` URLs: the database of a store, opened without the program that fills it.

LangGraph's own class makes its tables where they are missing, and is asked for nothing else; so the extra is needed.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

from fusebackend.backends.store.backend import StoreBackend
from fusebackend.backends.store.items import Items
from fusebackend.backends.store.namespaces import NamespaceTree, Spaces
from fusebackend.databases.libpq import LIBPQ_WORDS
from fusebackend.protocol.scheme import Url, UrlError


def open_sqlite(url: Url) -> StoreBackend | NamespaceTree:
    """The backend of `store+sqlite:PATH?ns=NAME`. The file is made if its directory is there."""
    _require(url, "langgraph.store.sqlite", "sqlite3")
    from fusebackend.backends.store.sqlite_items import SqliteDatabase, namespaces

    parent = os.path.dirname(url.rest)
    if not os.path.isdir(parent):
        raise UrlError(f"'{url.masked}': there is no directory '{parent}'")
    if os.path.exists(url.rest) and not os.path.isfile(url.rest):
        raise UrlError(f"'{url.masked}': '{url.rest}' is not a file")
    try:
        database = SqliteDatabase.of_file(url.rest, setup=_sqlite_tables)
    except OSError as error:
        raise UrlError(f"'{url.masked}': {error.strerror}") from error
    return _backend(url, database, lambda: namespaces(database))


def _sqlite_tables(connection: Any) -> None:
    from langgraph.store.sqlite import SqliteStore

    SqliteStore(connection).setup()


def open_postgres(url: Url) -> StoreBackend | NamespaceTree:
    """The backend of `store+postgres:DSN?ns=NAME`."""
    _require(url, "langgraph.store.postgres", "psycopg", "psycopg_pool")
    from psycopg import ProgrammingError
    from psycopg.conninfo import make_conninfo

    from fusebackend.backends.store.postgres_database import PostgresDatabase
    from fusebackend.databases.postgres_errors import told

    words = {name: value for name, value in url.parameters.items() if name in LIBPQ_WORDS}
    try:
        conninfo = make_conninfo(url.rest, **words)
    except ProgrammingError as error:
        raise UrlError(f"'{url.masked}': {' '.join(str(error).split())}") from None
    try:
        database = PostgresDatabase.of_url(conninfo)
    except OSError as error:
        raise UrlError(f"'{url.masked}': {error.strerror}") from error
    try:
        if not database.is_set_up():
            from langgraph.store.postgres import PostgresStore

            with told():
                PostgresStore(database.pool).setup()
    except OSError as error:
        database.close()
        raise UrlError(f"'{url.masked}': {error.strerror}") from error
    return _backend(url, database, database.namespaces)


def _backend(url: Url, database: Any, known: Any) -> StoreBackend | NamespaceTree:
    """A backend over a namespace of a database, both of which it closes."""
    on_exists = url.parameters.get("on_exists", "error")
    namespace = url.parameters.get("ns")
    if url.parameters.get("tree"):
        if namespace is not None:
            database.close()
            raise UrlError(f"'{url.masked}': tree=1 shows all namespaces; leave ns out")
        return NamespaceTree(Spaces.of_database(database), on_exists=on_exists, ttl_s=url.parameters.get("ttl"))
    if namespace is None:
        there = known()
        database.close()
        holds = f"; this store holds {', '.join(there)}" if there else ""
        how = "add ?ns=NAME, such as ?ns=memories, or ?tree=1 for all"
        raise UrlError(f"'{url.masked}' names no namespace; {how}{holds}")
    items: Items = database.items(namespace, feed=url.parameters.get("feed", True))
    return StoreBackend.over(items, ttl_s=url.parameters.get("ttl"), on_exists=on_exists)


def _require(url: Url, *modules: str) -> None:
    """Say which extra is missing."""
    for module in modules:
        try:
            found = find_spec(module) is not None
        except ModuleNotFoundError:  # a package above it
            found = False
        if not found:
            raise UrlError(
                f"'{url.masked}' needs {module}, which is not installed: pip install 'fusebackend[langgraph]'"
            )
