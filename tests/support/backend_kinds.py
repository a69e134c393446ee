"""Backends by the names of their kinds, for tests that run on several."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from seed_backends import DuckBackend

from fusebackend.backends import CompositeBackend, FilesystemBackend, InMemoryBackend, SqliteBackend, StoreBackend


def _directory(path: Path) -> FilesystemBackend:
    path.mkdir(parents=True)
    return FilesystemBackend(path, virtual_mode=True)


def _store() -> StoreBackend:
    memory = pytest.importorskip("langgraph.store.memory")
    return StoreBackend(memory.InMemoryStore(), namespace=("files",))


MAKE: dict[str, Callable[[Path], Any]] = {
    "memory": lambda directory: InMemoryBackend(),
    "sqlite": lambda directory: SqliteBackend(directory / "files.db"),
    "dir": lambda directory: _directory(directory / "files"),
    "store": lambda directory: _store(),
    "composite": lambda directory: CompositeBackend(InMemoryBackend(), {"/work/": InMemoryBackend()}),
    "foreign": lambda directory: DuckBackend(),
}


def backend_of(kind: str, directory: Path) -> Any:
    """Make a backend of a kind, with its files in a directory if it has any there."""
    directory.mkdir(parents=True, exist_ok=True)
    return MAKE[kind](directory)


@contextmanager
def opened_backend(kind: str, directory: Path) -> Iterator[Any]:
    """`backend_of`, closed at the end of the block."""
    made = backend_of(kind, directory)
    yield made
    getattr(made, "close", lambda: None)()
