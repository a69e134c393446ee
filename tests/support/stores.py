"""The three stores of LangGraph that tests run a `StoreBackend` over, each opened by its real class."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from services.postgres import Postgres

from fusebackend.backends import StoreBackend
from fusebackend.backends.store.source import database_of, items_of

_numbers = itertools.count()


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
def module_store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Open the store for a fixture with module scope and a kind as its parameter; tests take a namespace each."""
    kind = request.param
    with contextlib.ExitStack() as stack:
        dsn = None
        if kind == "postgres":
            server: Postgres = request.getfixturevalue("postgres")
            dsn = stack.enter_context(server.database())
        yield stack.enter_context(opened(kind, tmp_path_factory.mktemp(kind), dsn))


@contextlib.contextmanager
def other_program(store: Any, namespace: tuple[str, ...], **options: Any) -> Iterator[StoreBackend]:
    """Open a backend over a store as another process would: it shares nothing with the backends here."""
    with StoreBackend.over(items_of(store, database_of(store), namespace), **options) as backend:
        yield backend
