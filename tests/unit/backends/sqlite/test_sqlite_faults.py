"""A full disk and a killed server: nothing that was synced is lost, and the file is always some moment of the past."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from eventually import eventually
from nodes import ME, put

from fusebackend.backends.sqlite import backend as sqlite
from fusebackend.backends.sqlite import flusher
from fusebackend.backends.sqlite.backend import SqliteVolume
from fusebackend.backends.sqlite.check import check
from fusebackend.backends.sqlite.schema import connect_again
from fusebackend.backends.sqlite.stored_tree import DirtyBuffer
from fusebackend.protocol import ROOT_NODE
from fusebackend.testing.by_path import Shown, shown
from fusebackend.testing.posix.case import refused


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(flusher, "FLUSH_AFTER_S", 3600)  # flushes come only where a test asks for them
    return tmp_path / "volume.db"


@pytest.fixture
def volume(path: Path) -> Iterator[SqliteVolume]:
    volume = SqliteVolume(path)
    yield volume
    volume.close()


def get(volume: SqliteVolume, name: bytes) -> bytes:
    return volume.read(volume.lookup(ROOT_NODE, name).node, 0, 1 << 24)


# -- a full disk ---------------------------------------------------------------------------------------------------


class FullDisk:
    """Writing the overlay fails while `full` is set, after part of it has been written."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.full = False
        self.attempts = 0
        write = DirtyBuffer.write

        def written(overlay: DirtyBuffer, db: sqlite3.Connection, *arguments: object) -> None:
            self.attempts += 1
            write(overlay, db, *arguments)
            if self.full:
                error = sqlite3.OperationalError("database or disk is full")
                error.sqlite_errorcode = sqlite3.SQLITE_FULL
                raise error

        patch.setattr(DirtyBuffer, "write", written)


def test_a_full_disk_is_enospc_and_nothing_is_lost(
    volume: SqliteVolume, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "FULL_RETRY_S", 3600)
    disk = FullDisk(monkeypatch)
    put(volume, b"before", b"b" * 100_000)
    volume.sync()
    kept = shown(volume)
    disk.full = True
    put(volume, b"waits", b"w" * 100_000)
    volume.unlink(ROOT_NODE, b"before")
    for _ in range(3):
        refused(errno.ENOSPC, volume.sync)
    assert get(volume, b"waits") == b"w" * 100_000, "what waits can be read"

    attempts = disk.attempts
    refused(errno.ENOSPC, put, volume, b"refused", b"r")
    assert disk.attempts == attempts, "a disk that was full a moment ago is not asked for every write"
    with pytest.raises(OSError):
        volume.lookup(ROOT_NODE, b"refused")
    volume.rename(ROOT_NODE, b"waits", ROOT_NODE, b"renamed")

    crashed = as_of_now(volume, path.with_name("crashed.db"))
    disk.full = False
    assert check(crashed) == [] and contents(crashed) == kept, "the file holds what was synced"
    volume.sync()
    put(volume, b"refused", b"r")
    volume.sync()
    assert check(path) == []
    assert set(shown(volume)) == {b"renamed", b"refused"}


def test_a_write_tries_again_after_a_while(volume: SqliteVolume, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "FULL_RETRY_S", 0)
    disk = FullDisk(monkeypatch)
    disk.full = True
    put(volume, b"a", b"1")
    with pytest.raises(OSError):
        volume.sync()
    refused(errno.ENOSPC, put, volume, b"b", b"2")
    assert disk.attempts == 2
    disk.full = False
    put(volume, b"b", b"2")
    assert disk.attempts == 3
    assert (get(volume, b"a"), get(volume, b"b")) == (b"1", b"2")


def test_what_failed_half_way_is_written_whole_the_next_time(volume: SqliteVolume, path: Path) -> None:
    """SQLite's own limit, so that rows fail in the middle of a statement; then more comes before there is room."""
    chance = random.Random(5)
    contents_of: dict[bytes, bytes] = {}
    volume.sync()
    for _ in range(6):
        pages = volume._scalar("PRAGMA page_count")
        volume._db.execute(f"PRAGMA max_page_count = {pages + chance.randrange(1, 8)}")
        failed = False
        while not failed:
            name = b"%d" % len(contents_of)
            contents_of[name] = chance.randbytes(chance.choice([100, 65536, 200_000]))
            put(volume, name, contents_of[name])
            try:
                volume.write_back()
            except OSError as error:
                assert error.errno == errno.ENOSPC
                failed = True
        volume._failed = None  # as after a while
        volume._db.execute("PRAGMA max_page_count = 1000000")
        name = b"after %d" % len(contents_of)
        contents_of[name] = b"n" * 70_000
        put(volume, name, contents_of[name])
        volume.sync()
        assert check(path) == []
    volume._inodes.clear()
    volume._chunks.clear()
    for name, content in contents_of.items():
        assert get(volume, name) == content, name


def test_the_thread_in_the_background_says_it_once_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(flusher, "FLUSH_AFTER_S", 0.001)
    disk = FullDisk(monkeypatch)
    volume = SqliteVolume(tmp_path / "volume.db")
    disk.full = True
    volume.mkdir(ROOT_NODE, b"waits", 0o755, ME)
    while disk.attempts < 10:
        os.sched_yield()
    assert caplog.text.count("changes wait in memory") == 1
    disk.full = False
    while volume._dirty.items:
        os.sched_yield()
    assert check(tmp_path / "volume.db") == []
    volume.close()


def test_what_is_changed_during_a_flush_is_flushed_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flusher, "FLUSH_AFTER_S", 0.001)
    write_back, left = SqliteVolume.write_back, list(range(20))

    def beside(volume: SqliteVolume) -> None:
        write_back(volume)
        if left:
            volume.mkdir(ROOT_NODE, b"%d" % left.pop(), 0o755, ME)

    with contextlib.closing(SqliteVolume(tmp_path / "volume.db")) as volume:
        monkeypatch.setattr(SqliteVolume, "write_back", beside)
        volume.mkdir(ROOT_NODE, b"first", 0o755, ME)
        eventually(lambda: not left and not volume._dirty.items)


def test_closing_a_full_volume_is_an_error_and_keeps_what_was_synced(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = SqliteVolume(path)
    put(volume, b"synced", b"s")
    volume.sync()
    put(volume, b"lost", b"l")
    with monkeypatch.context() as patch:
        FullDisk(patch).full = True
        refused(errno.ENOSPC, volume.close)
    assert check(path) == []
    assert set(contents(path)) == {b"synced"}


# -- a crash -------------------------------------------------------------------------------------------------------


def as_of_now(volume: SqliteVolume, copy: Path) -> Path:
    """What a server that is killed at this moment leaves behind."""
    with volume.lock:
        shutil.copy(volume.path, copy)
        shutil.copy(f"{volume.path}-wal", f"{copy}-wal")
    return copy


def contents(path: Path) -> Shown:
    with contextlib.closing(SqliteVolume(path)) as volume:
        return shown(volume)


# -- a file that is moved away ------------------------------------------------------------------------------------


def test_no_row_of_another_volume_is_read_or_freed_once_that_took_the_path(tmp_path: Path) -> None:
    """Connections are made when they are first needed: for snapshots, for the index, for the background."""
    path, other = tmp_path / "volume.db", tmp_path / "other.db"
    for name, file in ((b"theirs", other), (b"ours", path)):
        with contextlib.closing(SqliteVolume(file)) as made:
            made.mkdir(ROOT_NODE, name, 0o755, ME)
            made.take_snapshot("s")
    with contextlib.closing(SqliteVolume(path)) as volume:
        os.rename(path, tmp_path / "aside.db")
        os.rename(other, path)
        refused(errno.EIO, volume.snapshot("s").readdir, ROOT_NODE, b"", 10)
        refused(errno.EIO, connect_again, str(path))
        os.rename(path, other)
        os.rename(tmp_path / "aside.db", path)
        assert [name for name, _ in volume.snapshot("s").readdir(ROOT_NODE, b"", 10)] == [b"ours"]


@pytest.mark.parametrize("how", ["moved", "deleted", "replaced"])
def test_a_file_that_is_gone_is_an_error_at_the_next_sync(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    path, elsewhere = tmp_path / "volume.db", tmp_path / "elsewhere.db"
    volume = SqliteVolume(path)
    volume.mkdir(ROOT_NODE, b"before", 0o755, ME)
    volume.sync()
    assert volume.trouble is None
    os.rename(path, elsewhere)
    if how == "replaced":
        path.write_bytes(elsewhere.read_bytes())
    elif how == "deleted":
        elsewhere.unlink()
    volume.mkdir(ROOT_NODE, b"after", 0o755, ME)
    refused(errno.EIO, volume.sync)
    assert volume.trouble is not None and f"its file {path} was moved or deleted" in volume.trouble[1]
    refused(errno.EIO, volume.mkdir, ROOT_NODE, b"later", 0o755, ME)
    assert volume.statfs().blocks > 0
    assert caplog.text.count("was moved or deleted") == 1
    if how == "moved":
        os.rename(elsewhere, path)
        volume.sync()
        assert volume.trouble is None
        volume.mkdir(ROOT_NODE, b"later", 0o755, ME)
        volume.close()
        assert check(path) == []
        with contextlib.closing(SqliteVolume(path)) as volume:
            assert [name for name, _ in volume.readdir(ROOT_NODE, b"", 10)] == [b"after", b"before", b"later"]
    else:
        refused(errno.EIO, volume.close)
        assert path.exists() == (how == "replaced")
    if how == "replaced":
        assert check(elsewhere) == [], "what it held is in the file that was moved"
        assert set(contents(elsewhere)) == {b"after", b"before"}
