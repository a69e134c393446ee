"""The round trips to PostgreSQL that a call of this thread makes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from fusebackend.databases import pipeline

Trips: TypeAlias = Callable[[Callable[[], object]], int]


def counted(monkeypatch: pytest.MonkeyPatch) -> Trips:
    """A function that makes a call, and returns how many round trips it has made."""
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
