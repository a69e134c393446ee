"""A walk through many threads is indexed ahead by another process, which ends with the server."""

from __future__ import annotations

import logging
import sqlite3
import sys
from pathlib import Path

import conversations
import pytest
from eventually import eventually

from fusebackend.backends.threads import ThreadsBackend, index_ahead
from fusebackend.backends.threads.database.rows import Place
from fusebackend.backends.threads.index_ahead import MANY, IndexAhead, Part, order
from fusebackend.backends.threads.index_cache import IndexCache
from fusebackend.backends.threads.lineage import Lineage

THREADS = [f"t{number:02}" for number in range(3 * MANY)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def database(tmp_path: Path) -> str:
    """Copies of one thread."""
    path = str(tmp_path / "threads.db")
    with conversations.opened("sqlite", path) as saver:
        conversations.coder(saver, THREADS[0])
    with sqlite3.connect(path) as connection:
        for table in ("checkpoints", "writes"):
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            rest = ", ".join(column for column in columns if column != "thread_id")
            for thread in THREADS[1:]:
                connection.execute(
                    f"INSERT INTO {table} (thread_id, {rest}) SELECT ?, {rest} FROM {table} WHERE thread_id = ?",
                    (thread, THREADS[0]),
                )
    connection.close()
    return path


def indexed(database: str, part: str) -> set[str]:
    """The threads that the cache file has."""
    file = Path(IndexCache(f"sqlite:{database}").path)
    with sqlite3.connect(file) as connection:
        found = {row[0] for row in connection.execute("SELECT thread FROM parts WHERE part = ?", (part,))}
    connection.close()
    return found


def test_threads_ahead_come_first() -> None:
    assert order(["c", "a", "d", "b"], "b", backwards=False) == ["c", "d", "a", "b"]
    assert order(["c", "a", "d", "b"], "c", backwards=True) == ["b", "a", "d", "c"]
    assert order(["a"], "gone", backwards=False) == ["a"]


@pytest.mark.parametrize(("part", "kept"), [("messages", {"messages"}), ("all", {"messages", "steps"})])
def test_the_cache_has_what_a_server_needs(
    database: str, monkeypatch: pytest.MonkeyPatch, part: Part, kept: set[str]
) -> None:
    with ThreadsBackend.from_sqlite(database, cache=False) as backend:
        expected = {entry["path"]: entry["size"] for entry in backend.ls("/t07/messages").entries or []}
    index_ahead.index(database, part, THREADS[MANY], backwards=True)
    assert {found for found in ("messages", "steps") if indexed(database, found) == set(THREADS)} == kept
    monkeypatch.setattr(Lineage, "conversations", None)  # a checkpoint that is read anew is a TypeError
    monkeypatch.setattr(Lineage, "moments", None)
    with ThreadsBackend.from_sqlite(database) as backend:
        assert {entry["path"]: entry["size"] for entry in backend.ls("/t07/messages").entries or []} == expected
        if part == "all":
            assert backend.ls("/t07/history").entries


def test_a_walk_starts_the_process_once(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    with ThreadsBackend.from_sqlite(database) as backend:
        end = backend.volume.subscribe(lambda _: None)
        for thread in THREADS[: MANY - 1]:
            assert backend.ls(f"/{thread}/messages").entries
        assert indexed(database, "messages") == set(THREADS[: MANY - 1])
        assert backend.ls(f"/{THREADS[MANY - 1]}/messages").entries
        eventually(lambda: indexed(database, "messages") == set(THREADS))
        end()


def test_without_a_cache_file_or_with_one_core_there_is_none(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(IndexAhead, "__init__", None)  # making one is a TypeError
    with ThreadsBackend.from_sqlite(database, cache=False) as backend:
        assert backend.ls("/t00/messages").entries
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    with ThreadsBackend.from_sqlite(database) as backend:
        assert backend.ls("/t00/messages").entries


def test_single_looks_start_none(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("fusebackend.backends.threads.index_ahead.time.monotonic", lambda: now)
    monkeypatch.setattr("subprocess.Popen", None)  # starting one is a TypeError
    ahead = IndexAhead(database)
    for number in range(3 * MANY):
        now = number * 2.0
        ahead.missed(Place(THREADS[number], ""), "messages")
        ahead.missed(Place(THREADS[0], f"tools:{number}"), "all")  # a sub-graph's line is no other thread
        ahead.tend()


@pytest.fixture
def sleeping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An interpreter that reads its orders and goes on until its input is closed, and the file it then makes."""
    program, ended = tmp_path / "python", tmp_path / "ended"
    program.write_text(f"#!/bin/sh\ncat > '{tmp_path}/asked'; touch '{ended}'\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    return ended


def walk(ahead: IndexAhead) -> None:
    for thread in reversed(THREADS[:MANY]):
        ahead.missed(Place(thread, ""), "messages")
    ahead.tend()


def test_the_process_ends_with_the_server(database: str, sleeping: Path) -> None:
    ahead = IndexAhead(database)
    walk(ahead)
    asked = sleeping.with_name("asked")
    eventually(lambda: asked.exists() and asked.read_text().endswith("\n"))
    assert '"backwards": true' in asked.read_text()
    assert not sleeping.exists()
    ahead.close()
    assert sleeping.exists()


def test_a_process_that_cannot_start_is_told_once(
    database: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    ahead = IndexAhead(database)
    with caplog.at_level(logging.WARNING):
        walk(ahead)
        walk(ahead)
    assert [record.message for record in caplog.records] == [
        "no process can be started to index threads ahead: No such file or directory"
    ]
    ahead.close()


def test_another_writer_of_the_cache_costs_one_index_only(database: str) -> None:
    with ThreadsBackend.from_sqlite(database) as backend:
        other = sqlite3.connect(IndexCache(f"sqlite:{database}").path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        assert backend.ls("/t00/messages").entries
        other.execute("ROLLBACK")
        other.close()
        assert backend.ls("/t01/messages").entries
    assert indexed(database, "messages") == {"t01"}
