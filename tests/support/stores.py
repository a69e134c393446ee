"""The three stores of LangGraph that tests run a `StoreBackend` over, each opened by its real class."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fusebackend.backends import StoreBackend
from fusebackend.backends.store.source import database_of, items_of

_numbers = itertools.count()

NS = ("memories",)
SQL_KINDS = ["sqlite", pytest.param("postgres", marks=pytest.mark.services)]
KINDS = ["memory", *SQL_KINDS]
"""Parameters of a fixture or test."""


def fresh_namespace() -> tuple[str, ...]:
    """Return a namespace that no test has used."""
    return ("test", f"n{next(_numbers)}")


@contextlib.contextmanager
def opened(kind: str, tmp_path: Path, postgres_dsn: str | None) -> Iterator[Any]:
    """Open a store and make its tables."""
    if kind == "memory":
        from langgraph.store.memory import InMemoryStore

        yield InMemoryStore()
    elif kind == "sqlite":
        from langgraph.store.sqlite import SqliteStore

        with SqliteStore.from_conn_string(str(tmp_path / "store.db")) as store:
            store.setup()
            yield store
    else:
        from langgraph.store.postgres import PostgresStore

        assert postgres_dsn is not None
        with PostgresStore.from_conn_string(postgres_dsn) as store:
            store.setup()
            yield store


@contextlib.contextmanager
def other_program(store: Any, namespace: tuple[str, ...], **options: Any) -> Iterator[StoreBackend]:
    """Open a backend over a store as another process would: it shares nothing with the backends here."""
    with StoreBackend.over(items_of(store, database_of(store), namespace), **options) as backend:
        yield backend


@contextlib.contextmanager
def before_its_change(backend: StoreBackend, other: Callable[[], Any]) -> Iterator[None]:
    """Have another program write between a backend's look at the store and its change."""
    items = type(backend.items.moment())
    swap, meanwhile = items.swap, threading.Event()

    def slow(items: Any, changes: Any) -> None:
        if not meanwhile.is_set():
            meanwhile.set()
            assert other().error is None
        swap(items, changes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(items, "swap", slow)
        yield


@contextlib.contextmanager
def of_request(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> Iterator[Any]:
    """Open an empty store for a test, in the database of its module where the kind is `postgres`."""
    with opened(kind, tmp_path, request.getfixturevalue("shared_dsn") if kind == "postgres" else None) as store:
        if kind == "postgres":
            store.conn.execute("TRUNCATE store")
        yield store
