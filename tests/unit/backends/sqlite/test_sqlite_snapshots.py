"""Snapshots of an SQLite file: what is kept of it, how it is freed, and files of earlier versions."""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from eventually import eventually
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from older_files import as_version_2
from profiles import examples

from fusebackend.backends.sqlite import old_rows
from fusebackend.backends.sqlite.backend import SqliteBackend, SqliteVolume
from fusebackend.backends.sqlite.check import check
from fusebackend.base.stamps import coarse_ns, now_ns
from fusebackend.protocol import RENAME_EXCHANGE, ROOT_NODE, AttrChanges, Caller, Volume
from fusebackend.volumes.chunks import CHUNK_BYTES

ME = Caller(os.geteuid(), os.getegid())

Frozen = dict[bytes, Any]


def frozen(volume: Volume) -> Frozen:
    """Everything that a reader finds: path → attributes, extended attributes, contents, data and holes."""
    found: Frozen = {}

    def visit(node: int, path: bytes) -> None:
        attr = volume.getattr(node)
        fields = [attr.node, attr.mode, attr.nlink, attr.uid, attr.gid, attr.rdev, attr.size, attr.blocks]
        times = [attr.mtime_ns, attr.ctime_ns]
        xattrs = {name: volume.getxattr(node, name) for name in volume.listxattr(node)}
        content: Any = None
        if stat.S_ISLNK(attr.mode):
            content = volume.readlink(node)
        elif stat.S_ISREG(attr.mode):
            volume.open(node, os.O_RDONLY | os.O_NOATIME)
            content = (
                volume.read(node, 0, attr.size + 1),
                volume.next_data(node, 0),
                volume.next_data(node, CHUNK_BYTES),
            )
            volume.release(node, os.O_RDONLY | os.O_NOATIME)
        found[path] = (fields, times, xattrs, content)
        if attr.is_dir:
            after = b""
            while page := volume.readdir(node, after, 3):
                for name, entry in page:
                    assert volume.lookup(node, name).node == entry.node
                    visit(entry.node, path + b"/" + name)
                after = page[-1][0]

    visit(ROOT_NODE, b"")
    return found


def prune(path: Path) -> None:
    """Free at once what the flusher's thread frees sooner or later."""
    db = sqlite3.connect(path, isolation_level=None, timeout=30)
    pruner = old_rows.Pruner()
    while pruner.work(db) is not None:
        pass
    db.close()


def rows(path: Path) -> dict[str, int]:
    db = sqlite3.connect(path)
    tables = ("chunk", "old_inode", "old_dentry", "old_place", "old_xattr", "pruning")
    counts = {table: db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables}
    db.close()
    return counts


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "volume.db"


@pytest.fixture
def volume(path: Path) -> Iterator[SqliteVolume]:
    made = SqliteVolume(path)
    yield made
    made.close()


def put(volume: Volume, name: bytes, data: bytes, parent: int = ROOT_NODE) -> int:
    node = volume.create(parent, name, 0o644, os.O_RDWR, ME).node
    volume.write(node, 0, data)
    volume.release(node, os.O_RDWR)
    return node


def test_a_chunk_is_written_once(volume: SqliteVolume, path: Path) -> None:
    """Its bytes keep their row; new ones get another, and are changed in place from then on."""
    node = put(volume, b"file", b"x" * CHUNK_BYTES * 2)
    volume.write_back()
    db = sqlite3.connect(path)
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
    db.close()
    kept = volume.snapshot("s")
    assert kept.read(node, 0, 10) == b"x" * 10 and volume.read(node, 0, 10) == b"xxxxxzxxxx"


def test_without_a_snapshot_nothing_is_kept(volume: SqliteVolume, path: Path) -> None:
    node = put(volume, b"file", b"one")
    volume.take_snapshot("s")
    volume.delete_snapshot("s")
    volume.open(node, os.O_RDWR)
    volume.write(node, 0, b"two")
    volume.unlink(ROOT_NODE, b"file")
    volume.release(node, os.O_RDWR)
    volume.write_back()
    eventually(lambda: rows(path) == dict.fromkeys(rows(path), 0), 30)


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
        patch.setattr(SqliteVolume, "_write_dirty", _fail_after(SqliteVolume._write_dirty))
        with pytest.raises(OSError):
            volume.write_back()
    volume.write_back()
    volume.release(node, os.O_RDWR)
    assert volume.snapshot("s").read(node, 0, 10) == b"x" * 10
    assert check(path) == []


def _fail_after(write: Any) -> Any:
    def failing(volume: SqliteVolume) -> None:
        connection = volume._db
        connection.execute(
            "CREATE TEMP TRIGGER failing BEFORE INSERT ON main.place BEGIN SELECT RAISE(ABORT, 'no'); END"
        )
        try:
            write(volume)
        finally:
            connection.execute("DROP TRIGGER failing")

    return failing


def test_names(volume: SqliteVolume) -> None:
    first = volume.take_snapshot("a")
    with pytest.raises(FileExistsError):
        volume.take_snapshot("a")
    second = volume.take_snapshot("b\udcff")
    assert list(volume.snapshots()) == [first, second] and second.number > first.number
    for missing in (volume.delete_snapshot, volume.snapshot):
        with pytest.raises(FileNotFoundError):
            missing("c")
    volume.delete_snapshot("b\udcff")
    assert volume.take_snapshot("b\udcff").number > second.number, "a number is never used again"


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


def test_a_deleted_snapshot_is_stale(volume: SqliteVolume) -> None:
    node = put(volume, b"file", b"one")
    volume.take_snapshot("s")
    kept = volume.snapshot("s")
    assert kept.read(node, 0, 9) == b"one"
    volume.delete_snapshot("s")
    for call in (
        lambda: kept.getattr(node),
        lambda: kept.lookup(ROOT_NODE, b"file"),
        lambda: kept.readdir(ROOT_NODE, b"", 10),
        lambda: kept.read(node, 0, 9),
        lambda: kept.statfs(),
    ):
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == errno.ESTALE


def test_a_snapshot_can_not_be_changed(volume: SqliteVolume) -> None:
    node = put(volume, b"file", b"one")
    volume.take_snapshot("s")
    kept, before = volume.snapshot("s"), frozen(volume)
    for call in (
        lambda: kept.mknod(ROOT_NODE, b"n", stat.S_IFREG | 0o600, 0, ME),
        lambda: kept.create(ROOT_NODE, b"n", 0o600, os.O_RDWR, ME),
        lambda: kept.mkdir(ROOT_NODE, b"n", 0o700, ME),
        lambda: kept.symlink(ROOT_NODE, b"n", b"t", ME),
        lambda: kept.link(node, ROOT_NODE, b"n"),
        lambda: kept.unlink(ROOT_NODE, b"file"),
        lambda: kept.rmdir(ROOT_NODE, b"file"),
        lambda: kept.rename(ROOT_NODE, b"file", ROOT_NODE, b"n"),
        lambda: kept.setattr(node, AttrChanges(mode=0)),
        lambda: kept.setxattr(node, b"user.a", b""),
        lambda: kept.removexattr(node, b"user.a"),
        lambda: kept.write(node, 0, b"two"),
        lambda: kept.append(node, b"two"),
    ):
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == errno.EROFS
    assert frozen(kept) == before


def test_a_file_of_version_2_gets_snapshots(path: Path) -> None:
    with SqliteBackend(path) as backend:
        node = put(backend.volume, b"file", b"x" * 100_000)
        backend.volume.symlink(ROOT_NODE, b"link", b"file", ME)
        before = frozen(backend.volume)
    as_version_2(path)
    assert any("open or mount the file once" in str(error) for error in [_checking(path)])
    with SqliteBackend(path) as backend:
        assert frozen(backend.volume) == before
        backend.volume.take_snapshot("s")
        backend.volume.open(node, os.O_RDWR)
        backend.volume.write(node, 70_000, b"y")
        backend.volume.release(node, os.O_RDWR)
        backend.volume.write_back()
        assert frozen(backend.volume.snapshot("s")) == before
    assert check(path) == []


def _checking(path: Path) -> OSError | None:
    try:
        check(path)
    except OSError as error:
        return error
    return None


# -- any steps -----------------------------------------------------------------------------------------------------

NAMES = st.sampled_from([b"a", b"b", b"c", b"\xff"])
SIZES = st.sampled_from([0, 1, 100, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES])
SNAPSHOTS = st.sampled_from(["one", "two", "three", "four"])


class Machine(RuleBasedStateMachine):
    """Random changes, flushes, restarts, snapshots taken and deleted; each equals what was copied when it was taken."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, Frozen] = {}

    @initialize(data=st.data())
    def open(self, data: Any) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "volume.db"
        self.volume = SqliteVolume(self.path)
        self.turn = 0

    def teardown(self) -> None:
        if hasattr(self, "volume"):
            self.compare()
            self.volume.close()
            assert check(self.path) == []
            for name in list(self.kept):
                db = SqliteVolume(self.path)
                db.delete_snapshot(name)
                db.close()
            prune(self.path)
            counts = rows(self.path)
            assert counts.pop("chunk") == self.places()
            assert not any(counts.values()), counts
            assert check(self.path) == []
            self.folder.cleanup()

    def places(self) -> int:
        db = sqlite3.connect(self.path)
        found: int = db.execute("SELECT count(*) FROM place").fetchone()[0]
        db.close()
        return found

    def directories(self) -> list[int]:
        found = [ROOT_NODE]
        for node in found:
            found += [attr.node for _, attr in self.volume.readdir(node, b"", 100) if attr.is_dir]
        return found

    def at(self, data: Any) -> tuple[int, bytes]:
        return data.draw(st.sampled_from(self.directories())), data.draw(NAMES)

    def node(self, data: Any) -> int | None:
        parent, name = self.at(data)
        try:
            return self.volume.lookup(parent, name).node
        except OSError:
            return None

    @rule(data=st.data(), kind=st.sampled_from(["file", "directory", "link", "fifo"]), size=SIZES)
    def make(self, data: Any, kind: str, size: int) -> None:
        parent, name = self.at(data)
        try:
            if kind == "file":
                self.turn += 1
                put(self.volume, name, bytes([self.turn % 256]) * size, parent)
            elif kind == "directory":
                self.volume.mkdir(parent, name, 0o755, ME)
            elif kind == "link":
                self.volume.symlink(parent, name, b"target", ME)
            else:
                self.volume.mknod(parent, name, stat.S_IFIFO | 0o600, 0, ME)
        except FileExistsError:
            pass

    @rule(data=st.data(), offset=SIZES, size=SIZES)
    def write(self, data: Any, offset: int, size: int) -> None:
        node = self.node(data)
        if node is not None and stat.S_ISREG(self.volume.getattr(node).mode):
            self.turn += 1
            self.volume.open(node, os.O_RDWR)
            self.volume.write(node, offset, bytes([self.turn % 256]) * size)
            self.volume.release(node, os.O_RDWR)

    @rule(data=st.data(), size=SIZES)
    def truncate(self, data: Any, size: int) -> None:
        node = self.node(data)
        if node is not None and stat.S_ISREG(self.volume.getattr(node).mode):
            self.volume.setattr(node, AttrChanges(size=size))

    @rule(data=st.data(), value=st.binary(max_size=3))
    def attribute(self, data: Any, value: bytes) -> None:
        node = self.node(data)
        if node is not None:
            self.volume.setattr(node, AttrChanges(mode=0o600 + len(value)))
            self.volume.setxattr(node, b"user.a", value)

    @rule(data=st.data())
    def no_attribute(self, data: Any) -> None:
        node = self.node(data)
        if node is not None and self.volume.listxattr(node):
            self.volume.removexattr(node, b"user.a")

    @rule(data=st.data())
    def remove(self, data: Any) -> None:
        parent, name = self.at(data)
        try:
            is_dir = self.volume.lookup(parent, name).is_dir
            (self.volume.rmdir if is_dir else self.volume.unlink)(parent, name)
        except OSError as error:
            assert error.errno in (errno.ENOENT, errno.ENOTEMPTY)

    @rule(data=st.data(), flags=st.sampled_from([0, 0, RENAME_EXCHANGE]))
    def rename(self, data: Any, flags: int) -> None:
        try:
            self.volume.rename(*self.at(data), *self.at(data), flags)
        except OSError as error:
            assert error.errno in (errno.ENOENT, errno.ENOTEMPTY, errno.EINVAL, errno.EISDIR, errno.ENOTDIR)

    @rule(data=st.data())
    def link(self, data: Any) -> None:
        node, (parent, name) = self.node(data), self.at(data)
        if node is not None:
            try:
                self.volume.link(node, parent, name)
            except OSError as error:
                assert error.errno in (errno.EPERM, errno.EEXIST)

    @rule()
    def flush(self) -> None:
        self.volume.write_back()

    @rule()
    def reopen(self) -> None:
        self.volume.close()
        self.volume = SqliteVolume(self.path)

    @rule(name=SNAPSHOTS)
    def take(self, name: str) -> None:
        if name in self.kept:
            self.volume.delete_snapshot(name)
            del self.kept[name]
        else:
            self.volume.take_snapshot(name)
            self.kept[name] = frozen(self.volume)

    @rule()
    def free(self) -> None:
        prune(self.path)

    @rule()
    def compare(self) -> None:
        for name, copy in self.kept.items():
            assert frozen(self.volume.snapshot(name)) == copy

    @invariant()
    def listed(self) -> None:
        if hasattr(self, "volume"):
            assert [snapshot.name for snapshot in self.volume.snapshots()] == list(self.kept)


TestAnySteps = Machine.TestCase
TestAnySteps.settings = settings(
    max_examples=examples(60), stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
