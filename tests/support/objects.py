"""Read a bucket in tests: its keys and objects, and the names that a volume shows."""

from __future__ import annotations

from typing import Any


def content(store: Any, key: str) -> bytes:
    return bytes(store.get(key).bytes())


def keys(store: Any) -> list[str]:
    return sorted(meta["path"] for meta in store.list().collect())
