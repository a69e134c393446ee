"""Read a bucket in tests: its keys and objects, and the names that a volume shows."""

from __future__ import annotations

from typing import Any

from fusebackend.backends.object_store.volume import ObjectStoreVolume
from fusebackend.protocol import ROOT_NODE


def content(store: Any, key: str) -> bytes:
    return bytes(store.get(key).bytes())


def keys(store: Any) -> list[str]:
    return sorted(meta["path"] for meta in store.list().collect())


def names(volume: ObjectStoreVolume, node: int = ROOT_NODE) -> list[bytes]:
    return [name for name, _ in volume.readdir(node, b"", 1000)]
