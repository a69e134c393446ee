"""A volume file: files that are none, its lock, what other programs may do to it meanwhile, and what it can hold."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from for_each import for_each

from fusebackend.backends.sqlite import schema
from fusebackend.backends.sqlite.backend import SqliteBackend, SqliteVolume
from fusebackend.backends.sqlite.check import check
from fusebackend.backends.sqlite.schema import VolumeFileError
from fusebackend.backends.sqlite.stored_tree import DirtyBuffer
from fusebackend.protocol import ROOT_NODE, AttrChanges, Caller

ME = Caller(0, 0)

FILES = 500
"""Enough to fill several pages of a table."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A closed volume with the directory /kept, and files."""
    path = tmp_path / "volume.db"
    with contextlib.closing(SqliteVolume(path)) as volume:
        volume.mkdir(ROOT_NODE, b"kept", 0o755, ME)
        for number in range(FILES):
            volume.mknod(ROOT_NODE, b"%04d" % number, 0o100644, 0, ME)
    return path


@pytest.fixture
def volume(path: Path) -> Iterator[SqliteVolume]:
    volume = SqliteVolume(path)
    yield volume
    volume.close()


def elsewhere(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own; `sys.argv[1:]` are the arguments."""
    command = [sys.executable, "-c", f"import sqlite3, sys\n{code}", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_a_peek_moves_no_access_time(volume: SqliteVolume) -> None:
    node = volume.mknod(ROOT_NODE, b"new", 0o100644, 0, ME).node
    volume.open(node, os.O_RDWR)
    volume.write(node, 0, b"some words")
    volume.release(node, os.O_RDWR)
    before = volume.getattr(node).atime_ns
    assert volume.access_due(volume.getattr(node))
    assert (volume.peek(node, 4), volume.peek(node, 100)) == (b"some", b"some words")
    assert volume.getattr(node).atime_ns == before
    volume.read(node, 0, 1)
    assert volume.getattr(node).atime_ns > before


def test_there_is_never_more_room_than_blocks(volume: SqliteVolume) -> None:
    """Also while pages that were freed are in the WAL alone, and the file itself is still small."""
    node = volume.create(ROOT_NODE, b"large", 0o644, os.O_RDWR, ME).node
    volume.write(node, 0, os.urandom(8 << 20))
    volume.write_back()
    volume.release(node, os.O_RDWR)
    large = volume.statfs()
    volume.unlink(ROOT_NODE, b"large")
    volume.forget([node])
    volume.write_back()
    for room in (large, volume.statfs()):
        assert 0 < room.blocks_free <= room.blocks and 0 < room.files_free <= room.files
    used_bytes = (large.blocks - large.blocks_free) * large.block_bytes
    assert 8 << 20 <= used_bytes < 12 << 20


def refused(path: Path) -> str:
    """The one line with which a file is refused. It is refused again, so the first time left no claim behind."""
    said = set()
    for _ in range(2):
        with pytest.raises(VolumeFileError) as caught:
            SqliteVolume(path)
        assert caught.value.errno
        said.add(caught.value.strerror)
    assert len(said) == 1
    (line,) = said
    assert str(path) in line and "\n" not in line
    return line


# -- what is no volume ---------------------------------------------------------------------------------------------


def write(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def script(text: str) -> Callable[[Path], None]:
    def run(path: Path) -> None:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.executescript(text)

    return run


NO_VOLUME: dict[str, tuple[Callable[[Path], object], str]] = {
    "a text": (write(b"Dear diary,\n" * 1000), "is not an SQLite file"),
    "a few bytes": (write(b"x"), "is not an SQLite file"),
    "only the magic": (write(b"SQLite format 3\0"), "can't be opened as a volume"),
    "another database": (script("CREATE TABLE t (a); INSERT INTO t VALUES (1)"), "an SQLite file of something else"),
    "somebody else's application": (script("PRAGMA application_id = 5; CREATE TABLE t (a)"), "something else"),
    "a newer volume": (
        script(f"CREATE TABLE t (a); PRAGMA application_id = {schema.APPLICATION_ID}; PRAGMA user_version = 99"),
        "has tables of another version (99, and this fusebackend knows 1 alone); open it with the fusebackend that",
    ),
    "an older volume": (
        script(f"CREATE TABLE t (a); PRAGMA application_id = {schema.APPLICATION_ID}; PRAGMA user_version = 1"),
        "has tables of another version (1, and this fusebackend knows 1 alone); open it with the fusebackend that",
    ),
    "a directory": (Path.mkdir, "is not a regular file"),
    "a pipe": (os.mkfifo, "is not a regular file"),
    "a link that leads nowhere": (lambda path: path.symlink_to(path.parent / "no" / "where"), "No such file"),
}


@for_each("kind", NO_VOLUME)
def test_what_is_no_volume_is_refused_in_one_line(tmp_path: Path, kind: str) -> None:
    make, why = NO_VOLUME[kind]
    path = tmp_path / "file"
    make(path)
    if kind == "a link that leads nowhere":
        with pytest.raises(VolumeFileError, match=why):
            SqliteVolume(path)
    else:
        assert why in refused(path)


def test_what_is_refused_is_left_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "file"
    SqliteVolume(path).close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 2")
    for content in (b"x", b"Dear diary,\n" * 1000, path.read_bytes()):
        path.write_bytes(content)
        refused(path)
        assert path.read_bytes() == content
    assert os.listdir(tmp_path) == ["file"]


def test_a_missing_directory_is_not_made(tmp_path: Path) -> None:
    assert refused(tmp_path / "missing" / "volume.db").endswith("No such file or directory")
    assert os.listdir(tmp_path) == []


def test_an_empty_file_becomes_a_volume(tmp_path: Path) -> None:
    path = tmp_path / "volume.db"
    path.touch()
    SqliteVolume(path).close()
    assert check(path) == []


# -- a damaged one -------------------------------------------------------------------------------------------------


def test_a_volume_cut_short_or_overwritten_is_refused_or_fails_with_an_errno(path: Path) -> None:
    """Whatever page is lost: a `VolumeFileError` at opening, or an `OSError` later, if it is needed at all."""
    page_bytes, whole = schema.PAGE_BYTES, path.read_bytes()
    outcomes = set()
    for start in range(0, len(whole), page_bytes):
        for content in (whole[:start], whole[:start] + b"\xa5" * page_bytes + whole[start + page_bytes :]):
            if content:
                path.write_bytes(content)
                outcomes.add(outcome(path))
    assert outcomes >= {"refused", "an error later"}


def outcome(path: Path) -> str:
    try:
        volume = SqliteVolume(path)
    except VolumeFileError as error:
        assert "\n" not in error.strerror
        return "refused"
    try:
        after = b""
        while page := volume.readdir(ROOT_NODE, after, 100):
            after = page[-1][0]
        for number in range(FILES):
            volume.lookup(ROOT_NODE, b"%04d" % number)
        volume.mkdir(ROOT_NODE, b"new", 0o755, ME)
        volume.sync()
    except OSError as error:
        assert error.errno in (errno.EIO, errno.ENOENT, errno.ESTALE), error
        return "an error later"
    finally:
        try:
            volume.close()
        except OSError as error:
            assert error.errno == errno.EIO, error
    assert check(path), "a page that is lost was missed by nobody"
    return "not needed"


def test_a_volume_that_lost_its_counter_overwrites_nothing(path: Path) -> None:
    script("DELETE FROM meta")(path)
    with contextlib.closing(SqliteVolume(path)) as volume:
        node = volume.mkdir(ROOT_NODE, b"new", 0o755, ME).node
        assert node == FILES + 3
    script("INSERT OR IGNORE INTO meta VALUES ('next_node', 2)")(path)
    with contextlib.closing(SqliteVolume(path)) as volume:
        assert volume.mkdir(ROOT_NODE, b"newer", 0o755, ME).node == FILES + 4
    assert check(path) == []


def test_a_failure_while_opening_lets_go_of_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script("INSERT INTO inode SELECT 9999, mode, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 FROM inode WHERE node = 3")(path)

    def full(self: DirtyBuffer, *arguments: object) -> None:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(DirtyBuffer, "write", full)
        assert refused(path).endswith("can't be opened as a volume: database or disk is full")
    SqliteVolume(path).close()


# -- its lock ------------------------------------------------------------------------------------------------------


def test_a_second_one_in_this_process_is_told_so_and_the_first_goes_on(volume: SqliteVolume, path: Path) -> None:
    """The refused one must not drop the locks that SQLite holds on the file: the last lines would lose the WAL."""
    volume.mkdir(ROOT_NODE, b"before", 0o755, ME)
    assert "is in use by another route, or another backend of this program: it can have one" in refused(path)
    os.link(path, path.with_name("hard link"))
    assert "is in use" in refused(path.with_name("hard link"))
    path.with_name("link").symlink_to(path)
    with pytest.raises(VolumeFileError, match="is in use"):
        SqliteVolume(path.with_name("link"))
    volume.sync()
    outsider = elsewhere("print(*sqlite3.connect(sys.argv[1]).execute('SELECT count(*) FROM dentry').fetchone())", path)
    assert outsider.stdout == f"{FILES + 2}\n", outsider.stderr
    assert path.with_name("volume.db-wal").exists(), "a program that only looked took itself for the last one"
    volume.mkdir(ROOT_NODE, b"after", 0o755, ME)
    volume.sync()
    assert check(path) == []
    volume.close()
    with contextlib.closing(SqliteVolume(path)) as reopened:
        assert reopened.lookup(ROOT_NODE, b"before") and reopened.lookup(ROOT_NODE, b"after")


def test_a_killed_process_has_no_claim_any_more(path: Path) -> None:
    code = """
from fusebackend.backends.sqlite.backend import SqliteVolume
from fusebackend.protocol import ROOT_NODE, Caller
volume = SqliteVolume(sys.argv[1])
volume.mkdir(ROOT_NODE, b"synced", 0o755, Caller(0, 0))
volume.sync()
volume.mkdir(ROOT_NODE, b"not synced", 0o755, Caller(0, 0))
print("open", flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", f"import sys\n{code}", str(path)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdin is not None and holder.stdout is not None
    with holder.stdin, holder.stdout:
        assert holder.stdout.readline() == b"open\n"
        assert "is in use" in refused(path)
        holder.kill()
        holder.wait(60)
    with contextlib.closing(SqliteVolume(path)) as volume:
        assert volume.lookup(ROOT_NODE, b"synced")
    assert check(path) == []


# -- other programs ------------------------------------------------------------------------------------------------


def test_sqlite3_lists_a_volume_that_is_in_use(volume: SqliteVolume, path: Path) -> None:
    volume.symlink(ROOT_NODE, b"link", b"kept", ME)
    volume.sync()
    code = "print(*sqlite3.connect(sys.argv[1]).execute(\"SELECT path, type FROM tree WHERE path NOT GLOB '/[0-9]*'\"))"
    rows = elsewhere(code, path)
    assert rows.stdout == "('/', 'directory') ('/kept', 'directory') ('/link', 'link')\n", rows.stderr


def test_a_reader_in_the_way_stops_no_writer(volume: SqliteVolume, path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        before = reader.execute("SELECT count(*) FROM dentry").fetchone()
        for number in range(20):
            volume.mkdir(ROOT_NODE, b"d%d" % number, 0o755, ME)
            volume.sync()
        assert reader.execute("SELECT count(*) FROM dentry").fetchone() == before
        reader.execute("COMMIT")
        assert reader.execute("SELECT count(*) FROM dentry").fetchone() == (before[0] + 20,)


def test_a_writer_from_outside_is_waited_for_and_then_an_error(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(schema, "BUSY_TIMEOUT_MS", 20)
    with contextlib.closing(SqliteVolume(path)) as volume:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as writer:
            writer.execute("BEGIN IMMEDIATE")
            volume.mkdir(ROOT_NODE, b"waits", 0o755, ME)
            with pytest.raises(OSError) as caught:
                volume.sync()
            assert caught.value.errno == errno.EIO and "database is locked" in caplog.text
            assert volume.lookup(ROOT_NODE, b"waits")
            writer.execute("ROLLBACK")
        volume.sync()
    assert check(path) == []
    with contextlib.closing(SqliteVolume(path)) as reopened:
        assert reopened.lookup(ROOT_NODE, b"waits")


# -- what a file can hold ----------------------------------------------------------------------------------------------


YEAR_2300_NS = 10_413_792_000 * 10**9


@pytest.mark.parametrize("beyond_ns", [YEAR_2300_NS, -YEAR_2300_NS])
def test_a_time_that_no_integer_of_sqlite_holds_is_the_nearest_that_one_does(tmp_path, beyond_ns):
    path = tmp_path / "volume.db"
    with SqliteBackend(path) as backend:
        changes = AttrChanges(atime_ns=beyond_ns, mtime_ns=beyond_ns, ctime_ns=beyond_ns)
        backend.volume.setattr(ROOT_NODE, changes)
    with SqliteBackend(path) as backend:
        attr = backend.volume.getattr(ROOT_NODE)
        nearest_ns = (1 << 63) - 1 if beyond_ns > 0 else -(1 << 63)
        assert (attr.atime_ns, attr.mtime_ns, attr.ctime_ns) == (nearest_ns,) * 3


def test_what_is_appended_in_small_pieces_counts_in_full(tmp_path):
    """Else a disk that is nearly full is promised more than it can take."""
    with SqliteBackend(tmp_path / "volume.db") as backend, backend.volume.lock:
        node = backend.volume.create(ROOT_NODE, b"log", stat.S_IFREG | 0o644, os.O_WRONLY, Caller(0, 0)).node
        for offset in range(0, 60_000, 100):
            backend.volume.write(node, offset, bytes(100))
        assert backend.volume._dirty.bytes == 60_000
        backend.volume.release(node, os.O_WRONLY)
