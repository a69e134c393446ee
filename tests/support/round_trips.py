"""The round trips to PostgreSQL that a call makes: counted, looked at, and changed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeAlias

import psycopg
import pytest

from fusebackend.databases import pipeline

Trips: TypeAlias = Callable[[Callable[[], object]], int]
Statements: TypeAlias = list[pipeline.Statement]

TRANSACTIONS = "fusebackend.backends.postgres.transaction"
"""The module that sends those of a transaction."""


def counted(monkeypatch: pytest.MonkeyPatch) -> Trips:
    """A function that makes a call, and returns how many round trips it has made in this thread."""
    sent: list[object] = []
    exchange, me = pipeline._exchange, threading.current_thread()

    def noted(*args: Any) -> Any:
        if threading.current_thread() is me:
            sent.append(args)
        return exchange(*args)

    monkeypatch.setattr(pipeline, "_exchange", noted)

    def count(work: Callable[[], object]) -> int:
        sent.clear()
        work()
        return len(sent)

    return count


def meddle(
    patch: pytest.MonkeyPatch,
    change: Callable[[psycopg.Connection[Any], Statements], Statements],
    *modules: str,
) -> None:
    """Send what `change` makes of the statements of each round trip, which the modules send (else `TRANSACTIONS`)."""

    def send(connection: psycopg.Connection[Any], statements: Statements) -> list[pipeline.Rows]:
        return pipeline.send(connection, change(connection, statements))

    for module in modules or (TRANSACTIONS,):
        patch.setattr(f"{module}.send", send)


def sent(patch: pytest.MonkeyPatch, *modules: str) -> list[list[str]]:
    """Return a list that gets the statements of each round trip."""
    batches: list[list[str]] = []

    def note(_: object, statements: Statements) -> Statements:
        batches.append([query for query, _ in statements])
        return statements

    meddle(patch, note, *modules)
    return batches


def refuse_commits(patch: pytest.MonkeyPatch, instead: str = "SELECT 1 / 0") -> None:
    """Send another statement, which fails, in place of each commit."""
    meddle(patch, lambda _, sent: [(instead, ()) if query == "COMMIT" else (query, values) for query, values in sent])
