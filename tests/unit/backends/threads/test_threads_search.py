"""`grep` and `glob` over threads: heads first, histories where they are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bigthreads
import graphs
import pytest
import threadcases
from for_each import for_each
from graphs import delete, edit, say, thread, use, user, write
from threadcases import record

from fusebackend.backends import ThreadsBackend
from fusebackend.backends.memory import InMemoryBackend
from fusebackend.composite.backend import CompositeBackend
from fusebackend.protocol import GlobResult, GrepResult

LEFT_OUT = "history/, messages/, changes/ and the pages of threads are searched only where path or pattern name one"


@pytest.fixture
def threads(tmp_path: Path) -> Iterator[ThreadsBackend]:
    path = tmp_path / "threads.db"
    with graphs.sqlite_saver(path) as saver:
        for name in ("one", "two"):
            script = [use(write("/a.md", "old needle")), use(edit("/a.md", "old", "new")), use(write("/b.md", name))]
            graphs.deep_agent(saver, [*script, use(delete("/b.md")), say("done")]).invoke(user("go"), thread(name))
    with ThreadsBackend.from_sqlite(str(path)) as backend:
        yield backend


@pytest.fixture
def composite(threads: ThreadsBackend) -> CompositeBackend:
    notes = InMemoryBackend()
    notes.upload_files([("/n.md", b"a needle in notes")])
    return CompositeBackend(default=notes, routes={"/threads/": threads})


def found(result: GrepResult | GlobResult) -> set[str]:
    assert result.error is None
    assert not result.truncated
    return {match["path"] for match in result.matches or ()}


def test_a_search_of_all_looks_at_heads_and_says_what_it_leaves_out(threads: ThreadsBackend) -> None:
    result = threads.glob("**/*.md")
    assert found(result) == {"/one/head/a.md", "/two/head/a.md"}
    assert result.missing == LEFT_OUT
    result = threads.grep("needle", glob="*.md")
    assert found(result) == {"/one/head/a.md", "/two/head/a.md"}
    assert result.missing == LEFT_OUT
    assert {"/one/messages.jsonl", "/one/head/a.md"} <= found(threads.grep("needle", "/one"))


@pytest.mark.parametrize("path", ["/one/history", "/one/history/"])
def test_a_path_that_names_the_history_is_searched(threads: ThreadsBackend, path: str) -> None:
    result = threads.grep("old needle", path)
    assert result.missing is None
    assert any(path.startswith("/one/history/") for path in found(result))
    assert any(path.endswith("/b.md") for path in found(threads.glob("*.md", path)))
    checkpoint = next(path for path in sorted(found(result)) if path.endswith("/a.md"))
    assert found(threads.glob("a.md", checkpoint.removesuffix("/a.md"))) == {checkpoint}


@for_each("pattern", ["one/history/*/b.md", "*/history/*/b.md", "**/history/**/b.md", "one/{head,history}/**/b.md"])
def test_a_pattern_that_names_the_history_finds_what_is_in_it(threads: ThreadsBackend, pattern: str) -> None:
    result = threads.glob(pattern)
    assert any(path.startswith("/one/history/") for path in found(result))
    assert result.missing is None
    assert found(threads.grep("one", glob=pattern)) == {path for path in found(result) if path.startswith("/one/")}


def test_so_it_is_in_a_composite(composite: CompositeBackend) -> None:
    result = composite.grep("needle", glob="**/*.md")
    assert found(result) == {"/n.md", "/threads/one/head/a.md", "/threads/two/head/a.md"}
    assert result.missing == LEFT_OUT
    assert found(composite.glob("**/b.md")) == set()
    result = composite.glob("**/history/**/b.md")
    assert any(path.startswith("/threads/two/history/") for path in found(result))
    assert result.missing is None
    assert any("/history/" in path for path in found(composite.grep("one", glob="threads/one/history/*/b.md")))
    assert any("/history/" in path for path in found(composite.grep("old", "/threads/one/history")))
    assert composite.grep("needle", "/threads").missing == LEFT_OUT


def test_a_composite_goes_straight_to_what_a_pattern_names(
    composite: CompositeBackend, threads: ThreadsBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[int] = []
    readdir = threads.volume.readdir
    monkeypatch.setattr(threads.volume, "readdir", lambda node, *rest: listed.append(node) or readdir(node, *rest))
    without = threads.volume.readdir_without  # type: ignore[attr-defined]
    monkeypatch.setattr(
        threads.volume, "readdir_without", lambda node, *rest: listed.append(node) or without(node, *rest)
    )
    assert any("/history/" in path for path in found(composite.glob("threads/one/history/**/b.md")))
    assert threads.volume.lookup(1, b"two").node not in listed
    assert 1 not in listed


def test_a_directory_of_an_agent_that_is_called_history_is_searched(tmp_path: Path) -> None:
    path = tmp_path / "threads.db"
    with graphs.sqlite_saver(path) as saver:
        script = [use(write("/history/mine.md", "needle")), say("done")]
        graphs.deep_agent(saver, script).invoke(user("go"), thread("t"))
    with ThreadsBackend.from_sqlite(str(path)) as backend:
        assert found(backend.glob("**/*.md")) == {"/t/head/history/mine.md"}


def test_histories_of_subagents_are_left_out_as_well(tmp_path: Path) -> None:
    path = tmp_path / "threads.db"
    with graphs.sqlite_saver(path) as saver:
        threadcases.a_subagent(saver)
    with ThreadsBackend.from_sqlite(str(path)) as backend:
        places = found(backend.glob("*.txt"))
        assert not any("/history/" in path for path in places)
        assert found(backend.glob("**/history/**/*.txt")) != set()


def test_a_file_that_is_damaged_harms_no_other(tmp_path: Path) -> None:
    path = tmp_path / "threads.db"
    with graphs.sqlite_saver(path) as saver:
        agent = graphs.old_agent(saver)
        agent.invoke(user("go", updates=[{"/bad.md": {"no": "content"}, "/good.md": record("needle")}]), thread("t"))
    with ThreadsBackend.from_sqlite(str(path)) as backend:
        result = backend.grep("needle", "/t/head")
        assert [match["path"] for match in result.matches or ()] == ["/t/head/good.md"]
        assert result.truncated


def test_a_search_of_many_threads_reads_no_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "threads.db"
    bigthreads.make(path, threads=60, checkpoints=20, files=20)
    with ThreadsBackend.from_sqlite(str(path)) as backend:
        asked: list[Any] = []
        newest: list[Any] = []
        database = backend.volume._database  # type: ignore[attr-defined]
        saved = database.saved
        monkeypatch.setattr(database, "saved", lambda *arguments: newest.append(arguments) or saved(*arguments))
        monkeypatch.setattr(database, "links", lambda *arguments: asked.append(arguments))
        assert len(found(backend.grep("version", glob="*.md"))) == 60 * 20
        assert asked == []
        assert len(newest) <= 60
