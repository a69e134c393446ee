"""Sizes are exact whatever the server's cache of them has been through, and the database is not written to."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import conversations
import pytest
from agentface import names
from graphs import say, thread, use, user, write
from test_threads_model import deltas
from threadview import View

from fusebackend.backends.threads import ThreadsBackend, index
from fusebackend.backends.threads.database.rows import Place, Saved
from fusebackend.backends.threads.database.sql import SaverTables
from fusebackend.testing.each import each


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "threads.db"
    with conversations.opened("sqlite", str(path)) as saver:
        conversations.coder(saver, "t")
    return path


@pytest.fixture
def database(made: Path, tmp_path: Path) -> str:
    return str(shutil.copy(made, tmp_path))


def files(database: str) -> dict[str, bytes]:
    """All files that a new server shows, whose sizes `View.tree` has compared."""
    with ThreadsBackend.from_sqlite(database) as backend:
        tops = [f"/{name}" for name in names(backend)]
        tops += [entry["path"].rstrip("/") for top in tops for entry in backend.ls(f"{top}/subgraphs").entries or []]
        return {f"{top}/{name}": data for top in tops for name, data in View(backend, top).tree().items()}


@contextlib.contextmanager
def changing(path: str | Path) -> Iterator[sqlite3.Connection]:
    """A connection whose changes are committed."""
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        yield connection


def cached(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.is_file()]


def test_a_second_server_shows_the_same(database: str, cache: Path) -> None:
    with conversations.opened("sqlite", database) as saver:
        conversations.nested_graphs(saver, "nested")
    before = files(database)
    assert cached(cache)
    assert all(path.stat().st_mode & 0o077 == 0 for path in cached(cache))
    assert files(database) == before


def test_a_transcript_is_measured_when_it_is_looked_at(database: str) -> None:
    """A search through `messages/` indexes these alone; what it leaves out is in no cache either."""
    with ThreadsBackend.from_sqlite(database) as backend:
        assert backend.ls("/t/messages").entries
    for _ in range(2):  # the second finds it in the cache
        with ThreadsBackend.from_sqlite(database) as backend:
            view = View(backend, "/t")
            assert view.attr("transcript.md").size == len(view.tree()["transcript.md"])


def test_what_has_grown_meanwhile_is_seen(database: str) -> None:
    before = files(database)
    with conversations.opened("sqlite", database) as saver:
        agent = conversations.coder(saver, "other")
        agent.model.script = [use(write("/new.txt", "new\n")), say("more")]
        agent.invoke(user("more of it"), thread("t"))
    after = files(database)
    assert after["/t/transcript.md"].startswith(before["/t/transcript.md"])
    assert len(after) > len(before)


def delete(which: str) -> Callable[[str], None]:
    def delete_three(database: str) -> None:
        with changing(database) as connection:
            connection.execute(
                "DELETE FROM checkpoints WHERE thread_id = 't' AND checkpoint_id IN (SELECT checkpoint_id FROM"
                f" checkpoints WHERE thread_id = 't' ORDER BY checkpoint_id {which} LIMIT 3)"
            )

    return delete_three


def replace(database: str) -> None:
    """Another database under the same path, with the same thread in other words and of other sizes."""
    os.unlink(database)
    with conversations.opened("sqlite", database) as saver:
        conversations.artist(saver, "t")


def change_a_message(database: str) -> None:
    """By hand: no id and no count of rows changes, only bytes."""
    with changing(database) as connection:
        connection.create_function(
            "shouted", 1, lambda value: value.replace(b"The redirect is wrong.", b"THE REDIRECT IS WRONG.")
        )
        connection.execute("UPDATE writes SET value = shouted(value) WHERE thread_id = 't' AND channel = 'messages'")


@pytest.mark.parametrize("change", [delete("DESC"), delete("ASC"), replace, change_a_message])
def test_what_others_do_to_the_database_is_seen(database: str, cache: Path, change: Callable[[str], None]) -> None:
    before = files(database)
    change(database)
    with_cache = files(database)
    for path in cached(cache):
        path.unlink()
    assert with_cache == files(database)
    assert with_cache != before


def overwritten(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(change(path.read_bytes()))


DAMAGES = {
    "no index": overwritten(lambda data: b"no index" * 1000),
    "nothing": overwritten(lambda data: b""),
    "its middle": overwritten(lambda data: data[: len(data) // 2] + b"\xff" * 50 + data[len(data) // 2 + 50 :]),
    "its end": overwritten(lambda data: data[:-50]),
    "another record": overwritten(lambda data: zlib.compress(b"[[], [], 0, [], []]")),
}


def test_a_damaged_cache_costs_time_only_and_is_made_anew(
    database: str, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each later server read every checkpoint again."""
    before = files(database)
    for case in each(DAMAGES):
        with case as damage:
            (path,) = cached(cache)
            whole = path.read_bytes()
            damage(path)
            assert files(database) == before
            assert path.read_bytes() == whole
            assert not caplog.records


def test_a_cache_that_cannot_be_made_is_not_needed(database: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = files(database)
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/self/nothing")
    assert files(database) == before
    place = cache.with_name("a-file")
    place.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(place))
    assert files(database) == before


def test_the_database_is_not_written_to(database: str) -> None:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    before = Path(database).read_bytes()
    files(database)
    is_same = Path(database).read_bytes() == before  # a comparison that can be shown
    assert is_same
    wal = Path(database + "-wal")
    assert not wal.exists() or wal.stat().st_size == 0


def test_two_servers_share_a_cache(database: str) -> None:
    with ThreadsBackend.from_sqlite(database) as one, ThreadsBackend.from_sqlite(database) as two:
        first = View(one, "/t").tree()
        assert View(two, "/t").tree() == first
        with conversations.opened("sqlite", database) as saver:
            agent = conversations.forks(saver, "other")
            agent.model.script = [say("more")]
            agent.invoke(user("more of it"), thread("t"))
        assert View(two, "/other").tree() == View(one, "/other").tree()
    files(database)


class Reads:
    """Counts the checkpoints that are read as a whole."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        whole = SaverTables.saved

        def saved(database: SaverTables, place: Place, checkpoint: str) -> Saved:
            self.count += 1
            return whole(database, place, checkpoint)

        monkeypatch.setattr(SaverTables, "saved", saved)


def test_the_head_of_a_long_thread_is_listed_without_its_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = str(tmp_path / "threads.db")
    with conversations.opened("sqlite", database) as saver:
        deltas(saver, "t", steps=60)
    reads = Reads(monkeypatch)
    with ThreadsBackend.from_sqlite(database) as backend:
        assert len(names(backend, "/t/head")) == 60
        assert reads.count <= 2


def test_a_cache_that_another_server_removes_is_made_again(
    database: str, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No index was written any more until the server started again."""
    with ThreadsBackend.from_sqlite(database) as backend:
        View(backend, "/t").tree()
        shutil.rmtree(cache)
        with conversations.opened("sqlite", database) as saver:
            conversations.artist(saver, "other")
        View(backend, "/other").tree()
    assert cached(cache)
    assert not caplog.records


def test_a_cache_that_goes_while_it_is_written_to_is_no_error(
    database: str, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = os.makedirs
    with ThreadsBackend.from_sqlite(database) as backend, monkeypatch.context() as patched:
        patched.setattr(index.os, "makedirs", lambda path, **options: (made(path, **options), os.rmdir(path)))
        View(backend, "/t").tree()
        assert not cached(cache)
        patched.undo()
        with conversations.opened("sqlite", database) as saver:
            agent = conversations.coder(saver, "other")
            agent.model.script = [say("more")]
            agent.invoke(user("more of it"), thread("t"))
        View(backend, "/t").tree()
    assert cached(cache)
    assert not caplog.records


@pytest.mark.parametrize("story", ["artist", "chat", "clearing", "forks", "old_files"])
def test_messages_are_the_same_whatever_is_read_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, story: str
) -> None:
    database = str(tmp_path / "threads.db")
    with conversations.opened("sqlite", database) as saver:
        conversations.STORIES[story](saver, "t")
    reads = Reads(monkeypatch)
    with ThreadsBackend.from_sqlite(database, cache=False) as backend:
        steps = View(backend, "/t").tree()
        checkpoints = len(View(backend, "/t").rows())
        assert reads.count >= checkpoints
    with ThreadsBackend.from_sqlite(database) as backend:
        reads.count = 0
        alone = View(backend, "/t/messages").tree()
        assert reads.count <= 2 < checkpoints, "the newest one, for what is pending"
        assert {f"messages/{name}": data for name, data in alone.items()} == {
            path: data for path, data in steps.items() if path.startswith("messages/")
        }
        assert View(backend, "/t").tree() == steps
    with ThreadsBackend.from_sqlite(database) as backend:  # which finds both parts in the cache
        assert View(backend, "/t").tree() == steps


def test_a_state_has_its_size_when_the_newest_checkpoints_are_deleted_and_messages_read_first(database: str) -> None:
    with ThreadsBackend.from_sqlite(database) as backend:
        View(backend, "/t").tree()
        delete("DESC")(database)
        backend.volume.follow()
        View(backend, "/t/messages").tree()
        assert View(backend, "/t").tree()["state.json"]
