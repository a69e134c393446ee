"""The index of an SQLite volume: its answers are those of a plain scan, whatever was done before."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from agentface import node_at, put
from eventually import eventually
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import rule
from profiles import examples
from search_machine import SearchMachine, scan
from together import beside

from fusebackend.backends.sqlite import flusher, index, schema
from fusebackend.backends.sqlite.backend import SqliteBackend
from fusebackend.backends.sqlite.check import check
from fusebackend.backends.sqlite.index import Indexer
from fusebackend.base import budget
from fusebackend.volumes import trigram
from fusebackend.volumes.search import FileSearch


def index_all(backend: SqliteBackend) -> None:
    """Index what there is, at once."""
    backend.volume.write_back()
    with contextlib.closing(connected(backend)) as db:
        worker = Indexer(backend.volume.path)
        while worker.work(db, quiet_s=0) is not None:
            pass


def connected(backend: SqliteBackend) -> sqlite3.Connection:
    return sqlite3.connect(backend.volume.path, isolation_level=None, timeout=10)


def unindexed(backend: SqliteBackend) -> set[int]:
    with contextlib.closing(connected(backend)) as db:
        return {node for (node,) in db.execute("SELECT node FROM unindexed")}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(flusher, "FLUSH_AFTER_S", 3600)  # nothing is flushed or indexed but where a test says so
    return tmp_path / "volume.db"


@pytest.fixture
def backend(path: Path) -> Iterator[SqliteBackend]:
    with SqliteBackend(path) as backend:
        yield backend


@pytest.fixture
def read_nodes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The nodes whose contents a search has read."""
    nodes: list[int] = []
    lines = FileSearch.lines

    def noted(self, *arguments):  # type: ignore[no-untyped-def]
        read = self._read

        def reading(volume, attr, *more):  # type: ignore[no-untyped-def]
            nodes.append(attr.node)
            return read(volume, attr, *more)

        self._read = reading
        return lines(self, *arguments)

    monkeypatch.setattr(FileSearch, "lines", noted)
    return nodes


# -- any history ---------------------------------------------------------------------------------------------------


class SqliteSearchMachine(SearchMachine):
    """In any portions."""

    def __init__(self) -> None:
        super().__init__()
        self.bounds = pytest.MonkeyPatch()
        self.bounds.setattr(flusher, "FLUSH_AFTER_S", 3600)
        self.bounds.setattr(index, "PORTION_S", 0)  # a slice is a portion
        self.bounds.setattr(index, "REBUILD_ENTRIES", 8)
        self.bounds.setattr(trigram, "SLICE_BYTES", 6)
        self.directory = tempfile.mkdtemp()
        self.path = f"{self.directory}/volume.db"
        self.open()

    def open(self) -> None:
        self.backend = SqliteBackend(self.path)
        self.db = connected(self.backend)
        self.worker = Indexer(self.path)

    def close(self) -> None:
        self.db.close()
        self.backend.close()

    def index_portion(self) -> bool:
        self.volume.write_back()
        return self.worker.work(self.db, quiet_s=0) is not None

    # the server

    @rule()
    def check_index(self) -> None:
        self.index(10_000)
        assert unindexed(self.backend) == set() and check(self.path) == []

    @rule()
    def crash(self) -> None:
        """What was flushed is there, with its index; the rest is lost."""
        copy = f"{self.directory}/copy.db"
        with self.volume.lock:
            shutil.copy(self.path, copy)
            shutil.copy(f"{self.path}-wal", f"{copy}-wal")
        self.close()
        for suffix in ("", "-wal", "-shm"):
            if os.path.exists(self.path + suffix):
                os.unlink(self.path + suffix)
        os.rename(copy, self.path)
        os.rename(f"{copy}-wal", f"{self.path}-wal")
        assert check(self.path) == []
        self.open()

    @rule()
    def reopen(self) -> None:
        self.close()
        self.open()

    def teardown(self) -> None:
        try:
            self.close()
            assert check(self.path) == []
        finally:
            self.bounds.undo()
            shutil.rmtree(self.directory)


TestSearchMachine = SqliteSearchMachine.TestCase
TestSearchMachine.settings = hypothesis.settings(
    max_examples=examples(10), stateful_step_count=30, deadline=None, database=None
)


# -- what the index spares -----------------------------------------------------------------------------------------


def test_only_what_may_match_is_read(backend: SqliteBackend, read_nodes: list[int]) -> None:
    nodes = [put(backend, f"/{number}.txt", b"some words and number%d\n" % number) for number in range(50)]
    index_all(backend)
    assert unindexed(backend) == set()
    assert [match["path"] for match in backend.grep("number17").matches or []] == ["/17.txt"]
    assert read_nodes == [nodes[17]]
    assert backend.grep("nowhere").matches == [] and read_nodes == [nodes[17]]


@for_each("pattern", ["so", "(x", "x) ", ") (", "a b"])
def test_what_the_index_does_not_know_is_looked_for_everywhere(
    backend: SqliteBackend, pattern: str, read_nodes: list[int]
) -> None:
    node = put(backend, "/dir/match.txt", b"some(x) (y) a b\n")
    other = put(backend, "/dir/other.txt", b"another word\n")
    index_all(backend)
    for path, read in (("/", {node}), ("/dir", {node, other})):
        read_nodes.clear()
        assert [match["path"] for match in backend.grep(pattern, path).matches or []] == ["/dir/match.txt"]
        assert set(read_nodes) == read, "SQLite looks first where the whole volume is searched"


@pytest.mark.parametrize("size", [schema.INDEXED_BYTES - 1, schema.INDEXED_BYTES, schema.INDEXED_BYTES + 1])
def test_large_files_are_found_without_the_index(backend: SqliteBackend, size: int) -> None:
    data = (b"line of text %d\n" * 10 % tuple(range(10))) * (size // 140)
    put(backend, "/large.txt", data.ljust(size - 8, b"x") + b"\nneedle\n")
    put(backend, "/small.txt", b"needle\n")
    index_all(backend)
    assert check(backend.volume.path) == []
    answer = backend.grep("needle")
    assert [match["path"] for match in answer.matches or []] == ["/large.txt", "/small.txt"]
    assert answer == scan(backend, "needle")


@pytest.mark.parametrize("pattern", ["needle", "ne", "absent"])
def test_files_too_large_to_search_are_told_as_in_a_scan(backend: SqliteBackend, pattern: str) -> None:
    backend.max_search_bytes = 3 << 20
    for name, size in (("small", 100), ("middle", 2 << 20), ("large", 4 << 20)):
        put(backend, f"/{name}/{name}.txt", b"needle\n".ljust(size, b"."))
    index_all(backend)
    for path in ("/", "/small", "/middle", "/large"):
        for glob in (None, "small.txt", "large*"):
            for max_count in (None, 0, 1, 2):
                answer = backend.grep(pattern, path, glob, max_count=max_count)
                assert answer == scan(backend, pattern, path, glob, max_count), (path, glob, max_count)


def test_old_entries_go_when_they_are_too_many(backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "REBUILD_ENTRIES", 20)
    for number in range(100):
        put(backend, "/log.txt", b"entry%d\n" % number)
        index_all(backend)
    with contextlib.closing(connected(backend)) as db:
        assert db.execute("SELECT value FROM meta WHERE key = 'indexed'").fetchone()[0] <= 22
        db.execute("CREATE VIRTUAL TABLE temp.pairs USING fts5vocab(main, trigram, instance)")
        assert db.execute("SELECT count(*) FROM temp.pairs").fetchone()[0] < 60
    assert len(backend.grep("entry99").matches or []) == 1
    assert check(backend.volume.path) == []


# -- in the background ---------------------------------------------------------------------------------------------


def test_the_thread_in_the_background_indexes_what_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_nodes: list[int]
) -> None:
    monkeypatch.setattr(flusher, "FLUSH_AFTER_S", 0.01)
    monkeypatch.setattr(flusher, "WORK_AFTER_S", 0.05)
    monkeypatch.setattr(index, "QUIET_S", 0.05)
    monkeypatch.setattr(Indexer.work, "__defaults__", (0.05,))
    with SqliteBackend(tmp_path / "volume.db") as backend:
        for number in range(20):
            put(backend, f"/{number}.txt", b"number%d\n" % number)
        eventually(lambda: not backend.volume._dirty.items and not unindexed(backend))
        assert len(backend.grep("number7").matches or []) == 1 and len(read_nodes) == 1
        put(backend, "/7.txt", b"changed\n")
        eventually(lambda: not backend.volume._dirty.items and not unindexed(backend))
        assert len(backend.grep("changed").matches or []) == 1


def test_an_index_without_common_words_is_made_anew(path: Path) -> None:
    """Of a file that was made before the index had all words."""
    with SqliteBackend(path) as backend:
        put(backend, "/file", b"a word that is everywhere")
        index_all(backend)
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("INSERT INTO trigram (trigram) VALUES ('delete-all')")
        db.execute("CREATE TABLE common_word (word BLOB PRIMARY KEY) WITHOUT ROWID")
    with SqliteBackend(path) as backend:
        assert [match["path"] for match in backend.grep("everywhere").matches] == ["/file"]
        index_all(backend)
        assert (unindexed(backend), check(path)) == (set(), [])
        assert [match["path"] for match in backend.grep("everywhere").matches] == ["/file"]


def test_what_is_changed_all_the_time_waits(backend: SqliteBackend) -> None:
    node = put(backend, "/log.txt", b"line\n")
    backend.volume.write_back()
    db, worker = connected(backend), Indexer(backend.volume.path)
    assert worker.work(db, quiet_s=60) == 60
    assert unindexed(backend) == {node}
    db.execute("UPDATE unindexed SET changed_ns = changed_ns + 3600000000000")  # the clock has been set back
    assert worker.work(db, quiet_s=60) is None
    db.close()
    assert unindexed(backend) == set()


def test_a_change_between_two_portions_of_a_file_is_not_lost(
    backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "PORTION_S", 0)
    monkeypatch.setattr(trigram, "SLICE_BYTES", 50)
    node = put(backend, "/file.txt", b" ".join(b"word%d" % number for number in range(50)))
    backend.volume.write_back()
    db, worker = connected(backend), Indexer(backend.volume.path)
    assert worker.work(db, quiet_s=0) is not None, "there are more slices"
    put(backend, "/file.txt", b"changed")
    backend.volume.write_back()
    while worker.work(db, quiet_s=0) is not None and unindexed(backend) != set():
        pass
    db.close()
    assert check(backend.volume.path) == []
    assert backend.grep("changed") == scan(backend, "changed") and node_at(backend, "/file.txt") == node


def test_it_waits_for_nobody_and_holds_no_lock(backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a portion is written, the volume can be read and changed; only a flush has to wait."""
    put(backend, "/file.txt", b"needle\n")
    backend.volume.write_back()
    inside, go_on = threading.Event(), threading.Event()
    text_of = index.text_of

    def slow(*arguments):  # type: ignore[no-untyped-def]
        inside.set()
        assert go_on.wait(20)
        return text_of(*arguments)

    monkeypatch.setattr(index, "text_of", slow)
    with beside(lambda: index_all(backend)):
        assert inside.wait(20)
        put(backend, "/other.txt", b"needle\n")
        assert len(scan(backend, "needle").matches or []) == 2
        impatient = sqlite3.connect(backend.volume.path, isolation_level=None, timeout=0)
        with contextlib.closing(impatient) as db, pytest.raises(sqlite3.OperationalError, match="locked"):
            Indexer(backend.volume.path).work(db, quiet_s=0)
        go_on.set()
    assert len(backend.grep("needle").matches or []) == 2


# -- failures ------------------------------------------------------------------------------------------------------


def test_a_nearly_full_disk_is_left_to_the_files(backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    node = put(backend, "/file.txt", b"needle\n")
    backend.volume.write_back()
    monkeypatch.setattr(index, "ROOM_BYTES", 1 << 62)
    with contextlib.closing(connected(backend)) as db:
        assert Indexer(backend.volume.path).work(db, quiet_s=0) == index.RETRY_S
    assert unindexed(backend) == {node}
    assert len(backend.grep("needle").matches or []) == 1


def test_an_index_that_can_not_be_written_changes_nothing(backend: SqliteBackend) -> None:
    for number in range(10):
        put(backend, f"/{number}.txt", os.urandom(20_000).hex().encode())
    backend.volume.write_back()
    waiting = unindexed(backend)
    db, worker = connected(backend), Indexer(backend.volume.path)
    pages = db.execute("PRAGMA page_count").fetchone()[0]
    db.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(sqlite3.OperationalError, match="full"):
        while worker.work(db, quiet_s=0) is not None:
            waiting = unindexed(backend)
    assert unindexed(backend) == waiting, "what has failed is not taken for done"
    assert check(backend.volume.path) == []
    db.execute("PRAGMA max_page_count = 1000000")
    while worker.work(db, quiet_s=0) is not None:
        pass
    db.close()
    assert unindexed(backend) == set() and check(backend.volume.path) == []


def test_a_search_on_a_full_disk_scans(backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    put(backend, "/file.txt", b"needle\n")
    index_all(backend)

    def full() -> None:
        raise OSError(28, "No space left on device")

    put(backend, "/new.txt", b"needle\n")
    with monkeypatch.context() as patch:
        patch.setattr(backend.volume, "write_back", full)
        assert len(backend.grep("needle").matches or []) == 2


def test_a_damaged_index_is_told_and_not_used(backend: SqliteBackend, caplog: pytest.LogCaptureFixture) -> None:
    put(backend, "/file.txt", b"needle\n")
    index_all(backend)
    with contextlib.closing(connected(backend)) as db:
        db.execute("DELETE FROM trigram_data WHERE id = 10")  # FTS5's own table of contents
    assert len(backend.grep("needle").matches or []) == 1
    assert "the trigram index" in caplog.text and "is not used" in caplog.text


def test_the_budget_ends_a_search_in_the_database(backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(300):
        put(backend, f"/{number}.txt", b"needle\n")
    monkeypatch.setattr(index, "POLL_STEPS", 100)
    asked = []

    class Later:
        def is_set(self) -> bool:
            asked.append(1)
            return len(asked) > 4

    with budget.limited(60, Later()):  # type: ignore[arg-type]
        answer = backend.grep("ne")
    assert (answer.matches, answer.truncated) == ([], True)
    assert len(asked) < 20


def test_a_search_is_a_walk_like_any_other(backend: SqliteBackend) -> None:
    """What is gone when it is to be read is passed over."""
    for number in range(5):
        put(backend, f"/{number}.txt", b"needle\n")
    index_all(backend)
    found = FileSearch(backend.volume, "/", None, 0, lambda *a, **o: index.IndexWalk("needle", *a, **o))
    seen = []
    for path, _ in found:
        seen.append(path)
        backend.delete("/2.txt")
    assert seen == ["/0.txt", "/1.txt", "/3.txt", "/4.txt"] and not found.unreadable


# -- what the index knows of a text ------------------------------------------------------------------------------------


LETTERS = st.sampled_from([b"a", b"b", b"c", b"_", b"7", b" ", b"(", b"\n", b"\t", "é".encode(), "文".encode(), b"."])
TEXTS = st.lists(LETTERS, max_size=40).map(b"".join)


def asked(query: str) -> set[bytes]:
    return {trigram.hidden(term.strip('"')) for term in query.split()}


def known(data: bytes) -> set[bytes]:
    texts = [trigram.hidden(entry) for entry in trigram.entries(data)]
    return {text[at : at + 3] for text in texts for at in range(len(text) - 2)}


@given(TEXTS, TEXTS, TEXTS)
def test_every_text_that_holds_a_pattern_is_found(before: bytes, needle: bytes, after: bytes) -> None:
    assert asked(trigram.query(needle)) <= known(before + needle + after)


@given(st.binary())
def test_every_byte_is_a_character_and_back(data: bytes) -> None:
    shown = trigram.shown(data)
    assert len(shown) == len(data) and trigram.hidden(shown) == data
    assert not {'"', "\0", " "} & set(shown)


def test_a_long_pattern_is_asked_for_in_part() -> None:
    needle = b" ".join(b"word%d" % number * 20 for number in range(100))
    assert len(trigram.fragments(needle)) == trigram.ASKED_FRAGMENTS
    assert 0 < len(asked(trigram.query(needle))) <= trigram.ASKED_TRIGRAMS
    assert trigram.query(b"") == ""
