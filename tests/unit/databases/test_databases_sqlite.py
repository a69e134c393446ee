"""Opening SQLite files, transactions, and the errno of an error."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from fusebackend.databases.sqlite import FileState, bound, open_file, open_read_only, transaction, translate_errors


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "odd ?#% name.db")


@pytest.fixture
def db(path: str) -> Iterator[sqlite3.Connection]:
    connection = open_file(path, "mode=rwc", any_text=True)
    connection.execute("CREATE TABLE t (x)")
    yield connection
    connection.close()


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
    with transaction(db), pytest.raises(OSError, match="SQLite: database is locked") as caught, translate_errors():
        other.execute("INSERT INTO t VALUES (1)")
    assert caught.value.errno == errno.EBUSY
    other.close()


def test_a_read_only_connection_cant_write(db: sqlite3.Connection, path: str) -> None:
    connection, state = open_read_only(path)
    assert state is None
    with pytest.raises(OSError, match="failed: attempt to write") as caught, translate_errors("failed"):
        connection.execute("INSERT INTO t VALUES (1)")
    assert caught.value.errno == errno.EROFS
    with pytest.raises(OSError, match="failed") as caught, translate_errors("failed", lambda _: errno.EIO):
        connection.execute("INSERT INTO t VALUES (1)")
    assert caught.value.errno == errno.EIO
    connection.close()


def test_what_is_no_database_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database at all" * 100)
    for name, number in (("absent", errno.ENOENT), (".", errno.EINVAL), ("text", errno.EINVAL)):
        with pytest.raises(OSError, match=r".") as caught:
            open_read_only(str(tmp_path / name))
        assert caught.value.errno == number, name


def test_text_that_is_not_utf8_comes_back(db: sqlite3.Connection) -> None:
    text = "caf\udce9"
    db.execute("INSERT INTO t VALUES (CAST(? AS TEXT))", (bound(text),))
    assert db.execute("SELECT x FROM t").fetchone() == (text,)


def test_a_write_changes_the_state_of_a_file(db: sqlite3.Connection, path: str) -> None:
    before = FileState.of(path)
    assert FileState.of(path) == before
    db.execute("CREATE TABLE more (x)")
    assert FileState.of(path) != before
