"""The sync log of an SQLite volume: what a record has, which records count, and when the log is not used."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from for_each import for_each
from nodes import ME, put
from raising import raising

from fusebackend.backends.sqlite import flusher, sync_log
from fusebackend.backends.sqlite.backend import SqliteVolume
from fusebackend.backends.sqlite.check import check, repair
from fusebackend.backends.sqlite.schema import VolumeFileError
from fusebackend.backends.sqlite.sync_log import SyncLog, log_path, pending
from fusebackend.protocol import ROOT_NODE
from fusebackend.volumes.storage import CHUNK_BYTES


@pytest.fixture
def volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteVolume]:
    """A volume whose log is in use, and which is flushed by nothing but the test."""
    monkeypatch.setattr(flusher, "FLUSH_AFTER_S", 3600)
    volume = SqliteVolume(tmp_path / "volume.db")
    put(volume, b"first")
    volume.fsync(ROOT_NODE)
    assert volume._log.is_open
    yield volume
    volume.close()


def crashed(volume: SqliteVolume, to: Path) -> Path:
    """Copy the files of a volume, as a crash would leave them."""
    to.mkdir()
    for suffix in ("", "-wal", "-log"):
        if os.path.exists(volume.path + suffix):
            shutil.copyfile(volume.path + suffix, to / f"volume.db{suffix}")
    return to / "volume.db"


def files(path: Path) -> dict[bytes, bytes]:
    assert check(path) == []
    volume = SqliteVolume(path)
    try:
        listed = [(name, attr) for name, attr in volume.readdir(ROOT_NODE, b"", 100)]
        return {name: volume.read(attr.node, 0, attr.size) for name, attr in listed}
    finally:
        volume.close()
        assert check(path) == []
        assert not os.path.exists(log_path(str(path)))


def flushes(volume: SqliteVolume) -> int:
    return volume._commits


def test_a_small_sync_writes_nothing_to_the_tables_and_outlives_a_crash(volume: SqliteVolume, tmp_path: Path) -> None:
    before = flushes(volume)
    node = put(volume, b"second", b"some words")
    volume.setxattr(node, b"user.a", b"1" * 300)
    volume.fsync(node)
    volume.write(node, 5, b"bytes")
    volume.fsync(node)
    volume.link(node, ROOT_NODE, b"third")
    volume.unlink(ROOT_NODE, b"first")
    volume.fsync(node)
    assert flushes(volume) == before
    assert files(crashed(volume, tmp_path / "crash")) == {b"second": b"some bytes", b"third": b"some bytes"}


def test_what_came_and_went_between_two_flushes_is_gone_after_a_crash(volume: SqliteVolume, tmp_path: Path) -> None:
    """The tables never had it, so its end is in no flush; but a record had it."""
    directory = volume.mkdir(ROOT_NODE, b"d", 0o755, ME).node
    node = volume.create(directory, b"f", 0o644, os.O_RDWR, ME).node
    volume.write(node, 0, b"x" * 100_000)
    volume.fsync(node)
    volume.release(node, os.O_RDWR)
    volume.unlink(directory, b"f")
    volume.rmdir(ROOT_NODE, b"d")
    volume.fsync(ROOT_NODE)
    assert files(crashed(volume, tmp_path / "crash")) == {b"first": b""}


def test_bytes_inside_a_stored_chunk_are_written_without_reading_it(
    volume: SqliteVolume, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytearray(os.urandom(3 * CHUNK_BYTES))
    node = put(volume, b"second", bytes(data))
    volume.take_snapshot("s")
    volume._chunks.clear()
    volume.open(node, os.O_RDWR)
    with monkeypatch.context() as patch:
        patch.setattr(volume, "_chunk", None)
        for offset, piece in (
            (100, b"a" * 4096),
            (2000, b"b" * 4096),
            (CHUNK_BYTES, b"c"),
            (3 * CHUNK_BYTES - 9, b"d"),
        ):
            volume.write(node, offset, piece)
            data[offset : offset + len(piece)] = piece
            volume.fsync(node)
    crash = crashed(volume, tmp_path / "crash")
    volume.write_back()  # one chunk from its patch; the next, of which more is changed, as a whole
    volume.write(node, CHUNK_BYTES + 5, b"e" * 30_000)
    assert volume.read(node, 0, CHUNK_BYTES + 5) == data[: CHUNK_BYTES + 5]
    assert files(crash)[b"second"] == data
    data[CHUNK_BYTES + 5 : CHUNK_BYTES + 30_005] = b"e" * 30_000
    assert volume.read(node, 0, len(data)) == data
    volume.write(node, 7, b"f")
    data[7:8] = b"f"
    volume.release(node, os.O_RDWR)
    volume.close()
    assert files(Path(volume.path))[b"second"] == data


def test_a_flush_takes_over_from_the_log(volume: SqliteVolume, tmp_path: Path) -> None:
    put(volume, b"second", b"2")
    volume.fsync(ROOT_NODE)
    volume.write_back()
    assert not redone(crashed(volume, tmp_path / "flushed"))
    put(volume, b"third", b"3")
    volume.fsync(ROOT_NODE)  # the flush was not synced: a record could not rely on it
    assert not redone(crashed(volume, tmp_path / "synced"))
    put(volume, b"fourth", b"4")
    volume.fsync(ROOT_NODE)
    assert len(redone(path := crashed(volume, tmp_path / "logged"))) == 1
    assert files(path) == {b"first": b"", b"second": b"2", b"third": b"3", b"fourth": b"4"}


def redone(path: Path) -> list[tuple[int, bytes]]:
    """The records that an opening would apply."""
    db = sqlite3.connect(path)
    try:
        return list(pending(str(path), *sync_log.state(db)))
    finally:
        db.close()


def test_many_changes_and_a_full_log_are_flushed(volume: SqliteVolume, monkeypatch: pytest.MonkeyPatch) -> None:
    before = flushes(volume)
    node = put(volume, b"large", os.urandom(sync_log.RECORD_BYTES + 1))
    volume.fsync(node)
    assert flushes(volume) == before + 1
    monkeypatch.setattr(sync_log, "LOG_BYTES", 3000)
    for number in range(4):
        put(volume, b"%d" % number, b"x" * 1000)
        volume.fsync(ROOT_NODE)
    assert flushes(volume) == before + 2, "two records fit, the third sync flushes, and the log starts anew"


@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
def test_a_log_that_fails_is_used_no_more(
    volume: SqliteVolume, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    put(volume, b"second", b"2")
    volume.fsync(ROOT_NODE)
    real = getattr(os, call)

    def failing(descriptor: int, *rest: object) -> object:
        if descriptor == volume._log._fd:
            raise OSError(5, "Input/output error")
        return real(descriptor, *rest)

    put(volume, b"third", b"3")
    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing)
        volume.fsync(ROOT_NODE)
    before = flushes(volume)
    put(volume, b"fourth", b"4")
    volume.fsync(ROOT_NODE)
    assert flushes(volume) == before + 1
    path = crashed(volume, tmp_path / "crash")
    assert not redone(path)
    assert set(files(path)) == {b"first", b"second", b"third", b"fourth"}


def test_no_log_is_made_where_the_disk_is_nearly_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sync_log, "SPARE_BYTES", 1 << 60)
    with contextlib.closing(SqliteVolume(tmp_path / "volume.db")) as volume:
        for name in (b"a", b"b"):
            put(volume, name)
            volume.fsync(ROOT_NODE)
        assert not volume._log.is_open
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert set(files(crashed(volume, tmp_path / "crash"))) == {b"a", b"b"}


def test_a_log_that_can_not_be_made_is_told_with_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sync_log, "sync_directory", raising(OSError(errno.EIO, "torn")))
    with contextlib.closing(SqliteVolume(tmp_path / "volume.db")) as volume:
        put(volume, b"a")
        volume.fsync(ROOT_NODE)
        assert log_path(volume.path) in caplog.text and "torn" in caplog.text


def test_the_first_sync_makes_the_log_and_closing_removes_it(tmp_path: Path) -> None:
    volume = SqliteVolume(tmp_path / "volume.db")
    volume.fsync(ROOT_NODE)
    assert not os.path.exists(log_path(volume.path)), "nothing was changed"
    put(volume, b"a")
    volume.fsync(ROOT_NODE)
    assert os.path.exists(log_path(volume.path))
    volume.close()
    assert os.listdir(tmp_path) == ["volume.db"]


def log(path: Path, salt: int, number: int) -> SyncLog:
    """A log that is open, after a record or flush of that number."""
    log = SyncLog(str(path), number)
    log.salt = salt
    log.restart()
    return log


def test_only_records_of_one_lap_that_follow_the_tables_count(tmp_path: Path) -> None:
    path = tmp_path / "v"
    made = log(path, 7, 0)
    assert made.append(b"one") and made.append(b"two") and made.append(b"three")
    assert list(pending(str(path), 7, 0)) == [(1, b"one"), (2, b"two"), (3, b"three")]
    assert list(pending(str(path), 7, 2)) == [(3, b"three")]
    assert list(pending(str(path), 7, 3)) == []
    assert list(pending(str(path), 8, 0)) == [], "another volume's"
    made.number += 1
    made.restart()
    assert made.append(b"six")
    assert list(pending(str(path), 7, 4)) == [(5, b"six")], "what follows is of the lap before"
    assert list(pending(str(path), 7, 3)) == [], "the flush that it relies on is not there"
    made.remove()
    assert list(pending(str(path), 7, 4)) == []


@for_each("at", range(0, 60, 3))
def test_a_torn_record_ends_the_log(tmp_path: Path, at: int) -> None:
    path = tmp_path / "v"
    made = log(path, 7, 0)
    assert made.append(b"one")
    end = made.offset
    assert made.append(b"twenty-eight bytes of a record")
    made.close()
    with open(log_path(str(path)), "r+b") as file:
        file.seek(end + at)
        byte = file.read(1)
        file.seek(end + at)
        file.write(bytes([byte[0] ^ 1]))
    assert list(pending(str(path), 7, 0)) == [(1, b"one")]


def test_repair_applies_the_log_first(volume: SqliteVolume, tmp_path: Path) -> None:
    """A repair gives numbers to what it rescues, which would collide with those in the log."""
    put(volume, b"second", b"2")
    volume.fsync(ROOT_NODE)
    path = crashed(volume, tmp_path / "crash")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(
            "UPDATE inode SET nlink = 3 WHERE node = (SELECT node FROM dentry WHERE name = CAST('first' AS BLOB))"
        )
    assert repair(path).left == []
    assert not redone(path)
    assert files(path) == {b"first": b"", b"second": b"2"}


def test_a_log_that_cannot_be_applied_is_refused_and_set_aside_by_a_repair(
    volume: SqliteVolume, tmp_path: Path
) -> None:
    node = put(volume, b"second", b"x" * 100)
    volume.write_back()
    volume.fsync(ROOT_NODE)
    volume._chunks.clear()
    volume.open(node, os.O_RDWR)
    volume.write(node, 5, b"new")
    volume.fsync(node)
    volume.release(node, os.O_RDWR)
    path = crashed(volume, tmp_path / "crash")
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("UPDATE chunk SET data = 'a text' WHERE node = ?", (node,))
    db.close()
    with pytest.raises(VolumeFileError, match="can't be opened as a volume"):
        SqliteVolume(path)
    outcome = repair(path)
    assert outcome.left == []
    assert any("volume.db-log.unapplied" in line for line in outcome.found)
    assert os.path.exists(f"{path}-log.unapplied")
    assert set(files(path)) == {b"first", b"second"}
