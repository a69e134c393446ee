"""Snapshots of an SQLite file: what is kept of it, and how it is freed."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import pytest
from eventually import eventually
from hypothesis.stateful import rule
from nodes import ME, put
from profiles import examples
from sqlite_machine import SqliteMachine

from fusebackend.backends.sqlite import backend as sqlite
from fusebackend.backends.sqlite import old_rows
from fusebackend.backends.sqlite.backend import SqliteVolume
from fusebackend.backends.sqlite.check import check
from fusebackend.base.stamps import coarse_ns, now_ns
from fusebackend.protocol import ROOT_NODE, AttrChanges, Volume
from fusebackend.testing.snapshots import SnapshotCases, SnapshotMachine
from fusebackend.volumes.storage import CHUNK_BYTES


def prune(path: Path) -> None:
    """Free at once what the flusher's thread frees sooner or later."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as db:
        pruner = old_rows.SqlitePruner()
        while pruner.work(db) is not None:
            pass


DISK_BYTES = 40_000_000


def rows(path: Path) -> dict[str, int]:
    with contextlib.closing(sqlite3.connect(path)) as db:
        tables = ("chunk", "place", "old_inode", "old_dentry", "old_place", "old_xattr", "pruning")
        return {table: db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "volume.db"


@pytest.fixture
def volume(path: Path) -> Iterator[SqliteVolume]:
    made = SqliteVolume(path)
    yield made
    made.close()


def test_a_chunk_is_written_once(volume: SqliteVolume, path: Path) -> None:
    """Its bytes keep their row; new ones get another, and are changed in place from then on."""
    node = put(volume, b"file", b"x" * CHUNK_BYTES * 2)
    volume.write_back()
    with contextlib.closing(sqlite3.connect(path)) as db:
        before = db.execute("SELECT chunk FROM place ORDER BY idx").fetchall()
        volume.take_snapshot("s")
        assert rows(path)["chunk"] == 2
        volume.open(node, os.O_RDWR)
        for byte in b"yz":
            volume.write(node, 5, bytes([byte]))
            volume.write_back()
        volume.release(node, os.O_RDWR)
        after = db.execute("SELECT chunk FROM place ORDER BY idx").fetchall()
        assert after[1] == before[1] and after[0] != before[0]
        assert db.execute("SELECT idx, chunk FROM old_place").fetchall() == [(0, before[0][0])]
        assert rows(path)["chunk"] == 3
    kept = volume.snapshot("s")
    assert kept.read(node, 0, 10) == b"x" * 10 and volume.read(node, 0, 10) == b"xxxxxzxxxx"


def test_what_is_newer_than_the_snapshot_is_not_kept(volume: SqliteVolume, path: Path) -> None:
    volume.take_snapshot("s")
    directory = volume.mkdir(ROOT_NODE, b"new", 0o755, ME).node
    for name in (b"a", b"b"):
        put(volume, name, b"x" * 100_000, directory)
    volume.write_back()
    volume.unlink(directory, b"a")
    volume.setxattr(directory, b"user.x", b"1")
    volume.write_back()
    counts = rows(path)
    assert counts["chunk"] == 2 and counts["old_place"] == counts["old_xattr"] == 0
    assert counts["old_inode"] == counts["old_dentry"] == 1, "the root, and that it had no name 'new'"


def test_a_flush_that_failed_loses_no_old_chunk(
    volume: SqliteVolume, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chunk has its new number then, but the file still has the old one in its place."""
    node = put(volume, b"file", b"x" * CHUNK_BYTES)
    volume.take_snapshot("s")
    volume.open(node, os.O_RDWR)
    volume.write(node, 5, b"y")
    with monkeypatch.context() as patch:
        patch.setattr(SqliteVolume, "write_back", _fail_after(SqliteVolume.write_back))
        with pytest.raises(OSError):
            volume.write_back()
    volume.write_back()
    volume.release(node, os.O_RDWR)
    assert volume.snapshot("s").read(node, 0, 10) == b"x" * 10
    assert check(path) == []


def _fail_after(write: Any) -> Any:
    def failing(volume: SqliteVolume) -> None:
        connection = volume._db
        with volume.lock:  # the flusher's thread writes as well
            connection.execute(
                "CREATE TEMP TRIGGER failing BEFORE INSERT ON main.place BEGIN SELECT RAISE(ABORT, 'no'); END"
            )
            try:
                write(volume)
            finally:
                connection.execute("DROP TRIGGER failing")

    return failing


@pytest.mark.parametrize("may_go", [True, False])
def test_snapshots_that_may_go_do_so_before_a_disk_is_full(
    volume: SqliteVolume, monkeypatch: pytest.MonkeyPatch, may_go: bool
) -> None:
    """A disk of 40 MB: whatever the file takes, its WAL included, is missing."""

    def disk(_: int) -> Disk:
        files = [volume.path, f"{volume.path}-wal"]
        taken = sum(os.path.getsize(file) for file in files)
        return Disk(f_bavail=max(0, DISK_BYTES - taken), f_frsize=1)

    monkeypatch.setattr(sqlite.os, "fstatvfs", disk)
    monkeypatch.setattr(sqlite, "FULL_RETRY_S", 0)
    if may_go:
        volume.may_go = lambda name: name.startswith("@")
    node = put(volume, b"file", b"")
    volume.open(node, os.O_RDWR)
    volume.take_snapshot("mine")
    written = 0
    with contextlib.suppress(OSError):
        for number in range(20):
            volume.write(node, 0, bytes([number]) * 2_000_000)
            volume.sync()
            written += 1
            volume.take_snapshot(f"@{number}")
    volume.release(node, os.O_RDWR)
    names = [taken.name for taken in volume.snapshots()]
    if may_go:
        left = names[1:]
        assert written == 20 and names[0] == "mine"
        assert 1 < len(left) < 20 and left == [f"@{number}" for number in range(20 - len(left), 20)], "the oldest went"
    else:
        assert written < 20 and len(names) == written + 1
    monkeypatch.undo()
    assert check(volume.path) == []


class Disk(NamedTuple):
    """What is read of `os.statvfs_result`."""

    f_bavail: int
    f_frsize: int


def _is_past(time_ns: int) -> bool:
    return coarse_ns() > time_ns


def test_reading_is_no_change(volume: SqliteVolume) -> None:
    node = put(volume, b"file", b"one")
    for change in (
        lambda: volume.setattr(node, AttrChanges(mode=0o600)),
        lambda: volume.rename(ROOT_NODE, b"file", ROOT_NODE, b"other"),
        lambda: volume.setxattr(node, b"user.a", b"1"),
        lambda: put(volume, b"third", b""),
        lambda: volume.unlink(ROOT_NODE, b"third"),
    ):
        eventually(partial(_is_past, now_ns()), 10)  # before Linux 6.13 a tick has one time
        volume.take_snapshot("s")
        assert not volume.is_changed
        volume.open(node, os.O_RDONLY)
        volume.read(node, 0, 9)
        volume.release(node, os.O_RDONLY)
        assert not volume.is_changed
        volume.write_back()
        assert not volume.is_changed
        change()
        assert volume.is_changed
        volume.write_back()
        assert volume.is_changed
        volume.delete_snapshot("s")


def test_bytes_that_only_snapshots_have(volume: SqliteVolume, path: Path) -> None:
    node = put(volume, b"file", b"x" * 100_000)
    volume.take_snapshot("s")
    assert volume.snapshot_bytes() == 0
    volume.open(node, os.O_RDWR)
    volume.write(node, 0, b"y")
    volume.release(node, os.O_RDWR)
    volume.write_back()
    assert volume.snapshot_bytes() == CHUNK_BYTES
    volume.unlink(ROOT_NODE, b"file")
    volume.write_back()
    assert volume.snapshot_bytes() == 100_000
    volume.delete_snapshot("s")
    eventually(lambda: volume.snapshot_bytes() == 0, 30)


# -- any steps -----------------------------------------------------------------------------------------------------


class SqliteSnapshotMachine(SnapshotMachine, SqliteMachine):
    """With flushes, restarts and freeing in the middle of everything."""

    @rule()
    def free(self) -> None:
        prune(Path(self.path))

    def teardown(self) -> None:
        if hasattr(self, "opened"):
            for name in self.copies:
                self.opened.delete_snapshot(name)
            self.opened.write_back()
            prune(Path(self.path))
            counts = rows(Path(self.path))
            assert counts.pop("chunk") == counts.pop("place"), "bytes of deleted snapshots are left"
            assert not any(counts.values()), counts
        super().teardown()


TestAnySteps = SqliteSnapshotMachine.TestCase
TestAnySteps.settings = hypothesis.settings(
    max_examples=examples(15), stateful_step_count=60, deadline=None, database=None
)


class TestSqlite(SnapshotCases):
    @pytest.fixture
    def volume(self, path: Path) -> Iterator[SqliteVolume]:
        made = SqliteVolume(path)
        yield made
        made.close()
        assert check(path) == []


def test_nodes_read_ahead_are_as_when_read_one_by_one(volume: SqliteVolume, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two snapshots, over files that were left, changed, deleted, emptied, and made in between."""
    nodes = [put(volume, b"%d" % number, b"first %d" % number) for number in range(5)]
    volume.take_snapshot("one")
    volume.write(nodes[1], 0, b"second")
    nodes.append(put(volume, b"later", b"later"))
    volume.take_snapshot("two")
    volume.write(nodes[2], 0, b"third")
    volume.unlink(ROOT_NODE, b"3")
    volume.setattr(nodes[4], AttrChanges(size=0, mode=0o600))
    volume.write_back()

    def seen(view: Volume, node: int) -> Any:
        attr = view.getattr(node)
        return attr.mode, attr.size, attr.mtime_ns, view.read(node, 0, 100)

    for name, there in (("one", nodes[:5]), ("two", nodes)):
        alone = [seen(volume.snapshot(name), node) for node in there]
        volume._snapshots._views.clear()
        view: Any = volume.snapshot(name)
        view.ahead([*nodes, 999_999], contents=True)
        with monkeypatch.context() as patched:
            patched.setattr(view._snapshots, "ask", None)
            assert [seen(view, node) for node in there] == alone


# -- what is to be forgotten ---------------------------------------------------------------------------------------


def test_nothing_is_left_in_the_files_of_what_was_forgotten(path: Path, volume: SqliteVolume) -> None:
    """Not in rows, free pages, parts of pages, the index, the WAL and the sync log."""
    secret = b"hunter2hunter2"
    for number in range(300):  # so that small rows share pages with it
        put(volume, b"%d" % number, b"%d" % number * 20)
    node = put(volume, b"file", secret)
    volume.setxattr(node, b"user.secret", secret)
    for _ in range(3):  # the syncs after the first write to the log
        volume.fsync(node)
        volume.open(node, os.O_RDWR)
        volume.write(node, 0, secret + b" more")
        volume.release(node, os.O_RDWR)
    volume.fsync(node)
    volume.take_snapshot("first")
    other = put(volume, b"other", secret * 5000)
    volume.take_snapshot("second")
    volume.setattr(node, AttrChanges(size=0))
    volume.removexattr(node, b"user.secret")
    volume.unlink(ROOT_NODE, b"other")
    volume.write_back()
    volume._checkpoint("PASSIVE")
    files = [path.with_name(path.name + end) for end in ("", "-wal", "-log")]
    assert [secret in file.read_bytes() for file in files] == [True] * 3
    eventually(lambda: not rows(path)["pruning"], 30)

    assert volume.forget_versions([node, other]) == []
    assert [secret[:4] in file.read_bytes() for file in files] == [False] * 3
    assert sorted(name for name, _ in volume.snapshot("second").readdir(ROOT_NODE, b"", 999))[-1] == b"99"
    assert volume.lookup(ROOT_NODE, b"file").size == 0
    assert check(path) == []
    put(volume, b"new", b"new")
    volume.fsync(volume.lookup(ROOT_NODE, b"new").node)
    with contextlib.closing(sqlite3.connect(path)) as reader:
        eventually(lambda: not reader.execute("SELECT count(*) FROM unindexed").fetchone()[0], 30)
