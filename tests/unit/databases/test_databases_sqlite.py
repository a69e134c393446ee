"""Opening SQLite files, transactions, and the errno of an error."""

from __future__ import annotations

import contextlib
import errno
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from fusebackend.databases.sqlite import DatabaseFile, bound, open_file, open_read_only, transaction, translate_errors
from fusebackend.testing.posix.case import fails, refused


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "odd ?#% name.db")


@pytest.fixture
def db(path: str) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(open_file(path, "mode=rwc", any_text=True)) as connection:
        connection.execute("CREATE TABLE t (x)")
        yield connection


def test_a_transaction_is_committed_as_a_whole_or_not_at_all(db: sqlite3.Connection) -> None:
    with transaction(db):
        db.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(RuntimeError), transaction(db):
        db.execute("INSERT INTO t VALUES (2)")
        raise RuntimeError
    assert db.execute("SELECT x FROM t").fetchall() == [(1,)]
    assert not db.in_transaction


def test_a_lock_of_another_connection_is_ebusy(db: sqlite3.Connection, path: str) -> None:
    other = open_file(path, "mode=rw", busy_s=0.01)
    with transaction(db), fails(errno.EBUSY, match="SQLite: database is locked"), translate_errors():
        other.execute("INSERT INTO t VALUES (1)")
    other.close()


def test_a_read_only_connection_cant_write(db: sqlite3.Connection, path: str) -> None:
    connection, is_immutable = open_read_only(path)
    assert not is_immutable
    with fails(errno.EROFS, match="failed: attempt to write"), translate_errors("failed"):
        connection.execute("INSERT INTO t VALUES (1)")
    with fails(errno.EIO, match="failed"), translate_errors("failed", lambda _: errno.EIO):
        connection.execute("INSERT INTO t VALUES (1)")
    connection.close()


def test_what_is_no_database_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database at all" * 100)
    for name, number in (("absent", errno.ENOENT), (".", errno.EINVAL), ("text", errno.EINVAL)):
        refused(number, open_read_only, str(tmp_path / name))


def test_a_wal_that_can_not_be_read_here_is_the_reason(
    db: sqlite3.Connection, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a file system that is read-only, SQLite says no more than that the file can't be opened."""
    error = sqlite3.OperationalError("unable to open database file")
    error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN

    def tried(connection: sqlite3.Connection) -> sqlite3.Connection:
        connection.close()
        raise error

    monkeypatch.setattr("fusebackend.databases.sqlite._tried", tried)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("INSERT INTO t VALUES (1)")
    with fails(errno.EIO, match=r"newest changes are in '.*-wal', .* '.*-shm' can't be made; copy all"):
        open_read_only(path)


def test_text_that_is_not_utf8_comes_back(db: sqlite3.Connection) -> None:
    text = "caf\udce9"
    db.execute("INSERT INTO t VALUES (CAST(? AS TEXT))", (bound(text),))
    assert db.execute("SELECT x FROM t").fetchone() == (text,)


def test_a_number_that_no_row_can_have_is_the_nearest_one(db: sqlite3.Connection) -> None:
    for number in ((1 << 63) - 1, 1 << 63, 1 << 200):
        assert db.execute("SELECT ?", (bound(number),)).fetchone() == ((1 << 63) - 1,)
        assert db.execute("SELECT ?", (bound(-number - 1),)).fetchone() == (-1 << 63,)
    assert [bound(value) for value in (5, -5, True, None, b"x")] == [5, -5, True, None, b"x"]


def test_what_sqlite_has_seen_opens_nothing_anew_and_what_it_has_not_does(path: str, db: sqlite3.Connection) -> None:
    for mode in ("delete", "wal"):
        db.execute(f"PRAGMA journal_mode = {mode}")
        file = DatabaseFile(path, lambda: open_file(path, "mode=ro"))
        looked = file.look()
        assert file.look() == looked
        db.execute("INSERT INTO t VALUES (1)")
        assert (file.look() != looked, file.openings) == (True, 1), mode
        looked = file.look()
        db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        assert (file.look() != looked, file.openings) == (mode == "wal", 1 + (mode == "wal")), mode
        file.close()


def test_a_database_that_was_copied_onto_another_is_seen(tmp_path: Path) -> None:
    paths = tmp_path / "one.db", tmp_path / "two.db"
    for path, number in zip(paths, (1, 2), strict=True):  # the same size and, in its header, the same count of changes
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE t (x)")
            connection.execute("INSERT INTO t VALUES (?)", (number,))
            connection.commit()
    file = DatabaseFile(str(paths[0]), lambda: open_file(str(paths[0]), "mode=ro"))
    query = "SELECT x FROM t"
    assert file.get().execute(query).fetchall() == [(1,)]
    shutil.copyfile(paths[1], paths[0])
    assert file.get().execute(query).fetchall() == [(2,)]
    shutil.copyfile(__file__, paths[0])
    with pytest.raises(OSError, match=r"can't be used: .*not a database"):
        file.get()
    shutil.copyfile(paths[1], paths[0])
    assert file.get().execute(query).fetchall() == [(2,)]
    file.close()
