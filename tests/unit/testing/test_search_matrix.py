"""Same pattern, same answer, on every backend: `grep` and `glob` against the reference backend."""

from __future__ import annotations

import functools
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from for_each import for_each
from search_corpus import GLOBS, MAX_COUNTS, NAME_GLOBS, ODD, ODD_PATTERNS, PATHS, PATTERNS, PLAIN
from seed_backends import DuckBackend, SeedInMemoryBackend
from services.postgres import Postgres

from fusebackend.backends import PostgresBackend, StoreBackend
from fusebackend.backends.composite import CompositeBackend
from fusebackend.backends.directory import search as directory_search
from fusebackend.backends.directory.backend import FilesystemBackend
from fusebackend.backends.memory import InMemoryBackend
from fusebackend.backends.postgres.search import SearchIndexer
from fusebackend.backends.sqlite.backend import SqliteBackend
from fusebackend.backends.sqlite.index import Indexer
from fusebackend.backends.state.backend import StateBackend

OURS = (
    "sqlite indexed", "sqlite half indexed", "dir", "dir without rg", "state", "store", "composite",
    "postgres half indexed", "postgres without index",
)  # fmt: skip
"""Each way to search. Where half is indexed, files of both halves are looked for."""
ELSEWHERE = ("seed", "duck", "composite of others")

Asked = tuple[str, str | None, str | None, int | None]


def questions(patterns: tuple[str, ...], globs: tuple[str | None, ...]) -> list[Asked]:
    """Pattern, path, glob, max_count: each pattern, and some of the first ones with each of the others."""
    crossed = patterns[:7:2]
    asked: list[Asked] = [(pattern, None, None, None) for pattern in patterns]
    asked += [(pattern, None, glob, None) for pattern in crossed for glob in globs]
    asked += [(pattern, path, None, None) for pattern in crossed for path in PATHS]
    asked += [(pattern, None, None, limit) for pattern in crossed for limit in MAX_COUNTS]
    return [
        *asked,
        ("needle", "/src", "*.py", 1),
        ("line", "/data", "*.txt", 7),
        ("needle", "/src/lib", "deep/*", None),
    ]


def filled(backend: Any, corpus: dict[str, bytes]) -> Any:
    for response in backend.upload_files(list(corpus.items())):
        assert response.error is None, (response.path, response.error)
    return backend


def indexed(backend: SqliteBackend) -> None:
    backend.volume.write_back()
    db = sqlite3.connect(backend.volume.path, isolation_level=None, timeout=10)
    worker = Indexer(backend.volume.path)
    while worker.work(db, quiet_s=0) is not None:
        pass
    assert db.execute("SELECT count(*) FROM unindexed").fetchone()[0] == 0
    db.close()


def indexed_postgres(backend: PostgresBackend) -> None:
    indexer = SearchIndexer(backend.volume.id)
    while backend.volume.connections.run(lambda connection: indexer.work(connection, quiet_s=0)):
        pass


def made_in_postgres(kind: str, server: Postgres, corpus: dict[str, bytes], opened: ExitStack) -> PostgresBackend:
    backend = opened.enter_context(PostgresBackend(opened.enter_context(server.database())))
    assert backend.queries.indexed, "the server of the tests has pg_trgm"
    backend.volume._session.workers.clear()  # nothing is indexed but where it is said
    if kind == "postgres half indexed":
        filled(backend, dict(list(corpus.items())[::2]))
        indexed_postgres(backend)
    filled(backend, corpus)
    backend.queries.indexed = kind != "postgres without index"
    return backend


def made(kind: str, directory: Path, corpus: dict[str, bytes], opened: ExitStack) -> Any:
    directory.mkdir()
    if kind.startswith("sqlite"):
        backend = opened.enter_context(SqliteBackend(directory.with_suffix(".db")))
        if kind == "sqlite half indexed":
            filled(backend, dict(list(corpus.items())[::2]))
            indexed(backend)
        filled(backend, corpus)
        if kind == "sqlite indexed":
            indexed(backend)
        return backend
    if kind.startswith("dir"):
        return filled(opened.enter_context(FilesystemBackend(directory)), corpus)
    if kind == "state":
        return filled(StateBackend(), corpus)
    if kind == "store":
        memory = pytest.importorskip("langgraph.store.memory")
        return filled(StoreBackend(memory.InMemoryStore(), namespace=("files",)), corpus)
    if kind == "composite":
        dir_route, state_route = FilesystemBackend(directory), StateBackend()
        routes = {"/src": dir_route, "/src/lib": state_route, "/data": InMemoryBackend(), "/a b": StateBackend()}
        for route in routes.values():
            opened.callback(getattr(route, "close", lambda: None))
        return filled(CompositeBackend(opened.enter_context(InMemoryBackend()), routes), corpus)
    if kind == "composite of others":
        routes = {"/src": SeedInMemoryBackend(), "/data": DuckBackend()}
        return filled(CompositeBackend(opened.enter_context(InMemoryBackend()), routes), corpus)
    return filled(CompositeBackend(SeedInMemoryBackend() if kind == "seed" else DuckBackend()), corpus)


def truth(corpus: dict[str, bytes], opened: ExitStack) -> Any:
    """Return the reference, which thinks about each question once."""
    backend: Any = filled(opened.enter_context(InMemoryBackend()), corpus)
    backend.grep, backend.glob = functools.cache(backend.grep), functools.cache(backend.glob)
    return backend


@pytest.fixture(scope="module")
def reference() -> Iterator[Any]:
    with ExitStack() as opened:
        yield truth(PLAIN | ODD, opened)


@pytest.fixture(scope="module", params=OURS)
def ours(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, reference: Any
) -> Iterator[tuple[Any, Any]]:
    """A backend, and the reference with the same files."""
    kind = request.param
    if kind in ("dir", "composite") and shutil.which("rg") is None:
        pytest.skip("ripgrep is not installed")
    corpus = PLAIN | ODD
    with pytest.MonkeyPatch.context() as patch, ExitStack() as opened:
        if kind == "dir without rg":
            patch.setattr(directory_search, "find_candidates", lambda *_: None)
        if kind.startswith("postgres"):
            backend = made_in_postgres(kind, request.getfixturevalue("postgres"), corpus, opened)
        else:
            backend = made(kind, tmp_path_factory.mktemp("matrix") / "root", corpus, opened)
        yield backend, reference


@pytest.fixture(scope="module", params=ELSEWHERE)
def elsewhere(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any]]:
    with ExitStack() as opened:
        directory = tmp_path_factory.mktemp("matrix")
        yield made(request.param, directory / "root", PLAIN, opened), truth(PLAIN, opened)


def compare(pair: tuple[Any, Any], asked: list[Asked]) -> None:
    backend, reference = pair
    hits = 0
    for pattern, path, glob, limit in asked:
        answer = backend.grep(pattern, path, glob, max_count=limit)
        expected = reference.grep(pattern, path, glob, max_count=limit)
        assert (answer.error, answer.truncated) == (expected.error, expected.truncated), (pattern, path, glob, limit)
        assert answer.matches == expected.matches, (pattern, path, glob, limit)
        hits += bool(expected.matches)
    assert hits > len(asked) / 5, "a test that asks for nothing"


def test_grep_on_every_backend(ours: tuple[Any, Any]) -> None:
    compare(ours, questions(PATTERNS, GLOBS))


def test_grep_of_odd_files_on_every_backend(ours: tuple[Any, Any]) -> None:
    compare(ours, questions(ODD_PATTERNS, (None, "*.txt", ".hidden/*", "new\nline.txt")))


def test_grep_on_backends_from_elsewhere(elsewhere: tuple[Any, Any]) -> None:
    """In the words that all dialects share: globs of names, and directories to search."""
    asked = questions(PATTERNS, NAME_GLOBS)
    shared = [question for question in asked if question[2] in NAME_GLOBS and not str(question[1]).endswith(".txt")]
    compare(elsewhere, shared)


@for_each("path", PATHS)
def test_glob_on_every_backend(ours: tuple[Any, Any], path: str | None) -> None:
    backend, reference = ours
    for pattern in (*filter(None, GLOBS), "*", "**", ".*", "**/.*", "?????.txt", "**/d*/*", "src/lib/**", "*.bin"):
        answer, expected = backend.glob(pattern, path), reference.glob(pattern, path)
        assert (answer.error, answer.truncated) == (expected.error, expected.truncated)
        found = [(info["path"], info["size"]) for info in answer.matches]
        assert found == [(info["path"], info["size"]) for info in expected.matches], pattern
