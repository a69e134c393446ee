"""Snapshots of a PostgreSQL volume: what the tables keep for them, from any number of hosts, and how it is freed."""

from __future__ import annotations

import errno
import os
import threading
import uuid
from collections.abc import Iterator
from typing import Any, ClassVar

import hypothesis
import psycopg
import pytest
from eventually import eventually
from hypothesis.stateful import rule
from nodes import ME, overwrite, put
from postgres_check import check
from postgres_hosts import sql
from profiles import examples
from together import beside

from fusebackend.backends.postgres import host_session, old_rows, transaction
from fusebackend.backends.postgres.statements import lock_changes
from fusebackend.backends.postgres.volume import PostgresVolume
from fusebackend.databases.postgres import connect
from fusebackend.protocol import ROOT_NODE, AttrChanges, Change, Volume
from fusebackend.testing.posix.case import all_refused, refused
from fusebackend.testing.snapshots import SnapshotCases, SnapshotMachine, copy_of, read_once
from fusebackend.volumes.storage import CHUNK_BYTES

OLD = ("old_inode", "old_dentry", "old_chunk", "pruning")


@pytest.fixture
def volume(shared_dsn: str) -> Iterator[PostgresVolume]:
    yield from opened(shared_dsn, uuid.uuid4().hex)


@pytest.fixture
def other(volume: PostgresVolume, shared_dsn: str) -> Iterator[PostgresVolume]:
    """The same volume on another host."""
    yield from opened(shared_dsn, volume.name)


def opened(dsn: str, name: str) -> Iterator[PostgresVolume]:
    made = PostgresVolume(dsn, name)
    yield made
    assert check(dsn, made.id) == []
    made.close()


def rows(volume: PostgresVolume, query: str, *parameters: object) -> list[tuple[Any, ...]]:
    return sql(volume.conninfo, query, volume.id, *parameters)


def counts(volume: PostgresVolume) -> dict[str, int]:
    tables = (*OLD, "chunk")
    count = "SELECT '{0}', count(*) FROM fusebackend.{0} WHERE volume = %s"
    return dict(sql(volume.conninfo, " UNION ALL ".join(map(count.format, tables)), *[volume.id] * len(tables)))


def prune(volume: PostgresVolume) -> None:
    """Free at once what the session's thread frees sooner or later."""
    with connect(volume.conninfo) as connection:
        pruner = old_rows.Pruner(volume.id)
        while pruner.work(connection) or rows(volume, "SELECT 1 FROM fusebackend.pruning WHERE volume = %s"):
            pass


# -- what is kept --------------------------------------------------------------------------------------------------


def test_the_bytes_of_a_chunk_are_never_copied(volume: PostgresVolume) -> None:
    """Their row gets another key, and refers to the same bytes outside of the table (`chunk_id` of its toast)."""
    node = put(volume, b"file", os.urandom(CHUNK_BYTES * 2))
    before = volume.read(node, 0, CHUNK_BYTES * 2)
    toast = rows(volume, "SELECT reltoastrelid::regclass::text FROM pg_class WHERE oid ="
                 " 'fusebackend.chunk'::regclass AND %s > 0")[0][0]  # fmt: skip
    stored = f"SELECT DISTINCT chunk_id FROM {toast} WHERE %s > 0"
    known = set(rows(volume, stored))
    volume.take_snapshot("s")
    assert set(rows(volume, stored)) == known, "taking a snapshot has written bytes"
    overwrite(volume, node, 5, b"x")
    assert known < set(rows(volume, stored)) and len(set(rows(volume, stored)) - known) == 1
    overwrite(volume, node, 6, b"y")
    assert counts(volume) == dict.fromkeys(OLD, 0) | {"old_inode": 1, "old_chunk": 1, "chunk": 3}
    assert volume.snapshot("s").read(node, 0, CHUNK_BYTES * 2) == before
    assert volume.snapshot_bytes() == CHUNK_BYTES


def test_no_row_has_what_was_forgotten(volume: PostgresVolume) -> None:
    secret = b"hunter2hunter2"
    node = put(volume, b"file", secret)
    volume.setxattr(node, b"user.secret", secret)
    other = put(volume, b"other", secret * 9000)
    volume.take_snapshot("first")
    rows(volume, "INSERT INTO fusebackend.entry VALUES (%s, %s, %s) RETURNING 1", node, secret.hex())
    volume.setattr(node, AttrChanges(size=0))
    volume.removexattr(node, b"user.secret")
    volume.setattr(other, AttrChanges(size=0))
    volume.unlink(ROOT_NODE, b"other")
    tables = ("chunk", "inode", "old_inode", "entry")
    found = "SELECT 1 FROM fusebackend.{} each WHERE volume = %s AND strpos(each::text, %s) > 0"
    held = [name for name in tables if rows(volume, found.format(name), secret.hex())]
    assert held == ["chunk", "old_inode", "entry"]
    (words,) = volume.forget_versions([node, other])
    assert "VACUUM FULL fusebackend.chunk" in words
    assert [name for name in tables if rows(volume, found.format(name), secret.hex())] == []
    assert [name for name, _ in volume.snapshot("first").readdir(ROOT_NODE, b"", 9)] == []


def test_what_is_newer_than_the_snapshot_is_not_kept(volume: PostgresVolume) -> None:
    volume.take_snapshot("s")
    directory = volume.mkdir(ROOT_NODE, b"new", 0o755, ME).node
    for name in (b"a", b"b"):
        overwrite(volume, put(volume, name, b"x" * 100_000, directory), 0, b"y")
    volume.unlink(directory, b"a")
    volume.setxattr(directory, b"user.x", b"1")
    found = counts(volume)
    assert found.pop("old_inode") == 1, "the root"
    assert not any(found[table] for table in OLD if table in found)


@pytest.mark.parametrize("pending_bytes", [1, transaction.MAX_PENDING_BYTES], ids=["written early", "at the commit"])
def test_a_change_of_several_operations_keeps_what_it_replaces(
    volume: PostgresVolume, monkeypatch: pytest.MonkeyPatch, pending_bytes: int
) -> None:
    monkeypatch.setattr(transaction, "MAX_PENDING_BYTES", pending_bytes)
    first, second = (put(volume, name, b"x" * 100_000) for name in (b"a", b"b"))
    before = copy_of(volume)
    volume.take_snapshot("s")
    with volume.changing():
        volume.write(first, 70_000, b"y")
        volume.write(first, 70_000, b"z")
        volume.setattr(second, AttrChanges(size=0))
        volume.write(second, 0, b"z" * 200_000)
        volume.rename(ROOT_NODE, b"b", ROOT_NODE, b"a")
        volume.mknod(ROOT_NODE, b"b", 0o100644, 0, ME)
    assert read_once(volume.snapshot("s")) == before


# -- several hosts -------------------------------------------------------------------------------------------------


def test_a_snapshot_of_one_host_is_one_of_all(volume: PostgresVolume, other: PostgresVolume) -> None:
    node = put(volume, b"file", b"before")
    before = copy_of(volume)
    taken = volume.take_snapshot("s")
    assert list(other.snapshots()) == [taken]
    overwrite(other, node, 0, b"after!")
    other.unlink(ROOT_NODE, b"file")
    assert read_once(other.snapshot("s")) == read_once(volume.snapshot("s")) == before
    refused(errno.EEXIST, other.take_snapshot, "s")
    view = volume.snapshot("s")
    other.delete_snapshot("s")
    assert list(volume.snapshots()) == []
    all_refused(
        (errno.ESTALE, view.getattr, ROOT_NODE),
        (errno.ESTALE, view.lookup, ROOT_NODE, b"file"),
        (errno.ESTALE, view.lookup, ROOT_NODE, b"absent"),
        (errno.ESTALE, view.readdir, ROOT_NODE, b"", 5),
    )
    again = volume.take_snapshot("s")
    assert again.number > taken.number and other.snapshot("s") is not view


def test_a_host_is_told_of_the_snapshots_of_others(volume: PostgresVolume, other: PostgresVolume) -> None:
    told: list[str] = []
    other.on_snapshot = told.append
    other.take_snapshot("own")
    volume.take_snapshot("s")
    eventually(lambda: "s" in told)
    assert not other.is_changed, "a snapshot changes nothing"
    told.clear()
    volume.delete_snapshot("s")
    eventually(lambda: told == ["s"])
    assert [each.name for each in other.snapshots()] == ["own"]
    volume.delete_snapshot("own")
    eventually(lambda: told == ["s", "own"])


def test_a_change_that_waits_for_the_snapshot_keeps_for_it(volume: PostgresVolume, other: PostgresVolume) -> None:
    """It began before the snapshot was committed, and its first statement returns the number all the same."""
    node = put(volume, b"file", b"before")
    with psycopg.connect(volume.conninfo) as taking, psycopg.connect(volume.conninfo) as changing:
        query, parameters = lock_changes(volume.id, exclusive=True)
        taking.execute(query.encode(), parameters)
        with beside(lambda: overwrite(other, node, 0, b"after!")):
            eventually(lambda: _waiting(changing))
            taking.execute("SELECT nextval('fusebackend.snapshot_changes')")
            taking.execute("UPDATE fusebackend.volume SET taken = 1, newest = 1 WHERE id = %s", [volume.id])
            taking.execute("INSERT INTO fusebackend.snapshot VALUES (%s, 1, 's', 1)", [volume.id])
            taking.commit()
    assert other.read(node, 0, 10) == b"after!"
    assert volume.snapshot("s").read(node, 0, 10) == b"before"


def test_a_snapshot_waits_for_a_change_that_has_begun(volume: PostgresVolume, other: PostgresVolume) -> None:
    """Which is in it as a whole, though it began before and is committed after the call."""
    node = put(volume, b"file", b"before")
    put(volume, b"second", b"")
    taker = threading.Thread(target=other.take_snapshot, args=("s",))

    def work(_: object) -> None:
        volume.write(node, 0, b"after!")
        taker.start()
        with psycopg.connect(volume.conninfo) as connection:
            eventually(lambda: _waiting(connection))
        volume.unlink(ROOT_NODE, b"second")

    volume.change_as_one(work, "/file")
    taker.join(30)
    seen = other.snapshot("s")
    assert seen.read(node, 0, 10) == b"after!"
    refused(errno.ENOENT, seen.lookup, ROOT_NODE, b"second")


def _waiting(connection: psycopg.Connection[Any]) -> bool:
    connection.rollback()
    query = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'"
    return bool(connection.execute(query).fetchall())


def test_a_read_moves_no_access_time_of_a_snapshot_from_any_host(volume: PostgresVolume, other: PostgresVolume) -> None:
    node = put(volume, b"file", b"content")
    volume.setattr(node, AttrChanges(atime_ns=1, mtime_ns=2))
    volume.take_snapshot("s")
    assert other.read(node, 0, 10) == b"content"
    assert other.getattr(node).atime_ns > 1
    other.settle()
    volume.changed_elsewhere([Change(node=node)])  # an access time alone is not told
    assert volume.getattr(node).atime_ns > 1
    assert volume.snapshot("s").getattr(node).atime_ns == 1


def test_is_changed(volume: PostgresVolume, other: PostgresVolume) -> None:
    assert volume.is_changed, "not known yet"
    node = put(volume, b"file", b"content")
    volume.setattr(node, AttrChanges(atime_ns=1, mtime_ns=2))
    volume.take_snapshot("s")
    assert not volume.is_changed
    volume.read(node, 0, 10)
    volume.readdir(ROOT_NODE, b"", 10)
    assert not volume.is_changed, "reading is no change"
    overwrite(other, node, 0, b"C")
    eventually(lambda: volume.is_changed)
    volume.take_snapshot("t")
    volume.mkdir(ROOT_NODE, b"d", 0o755, ME)
    assert volume.is_changed
    refused(errno.EEXIST, volume.take_snapshot, "t")
    assert volume.is_changed


def test_a_node_that_another_host_holds_stays_readable_and_in_the_snapshot(
    volume: PostgresVolume, other: PostgresVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_session, "GRACE_S", 0.0)
    node = put(volume, b"file", b"x" * 100_000)
    volume.setxattr(node, b"user.x", b"1")
    before = copy_of(volume)
    volume.take_snapshot("s")
    other.open(node, os.O_RDONLY)
    volume.unlink(ROOT_NODE, b"file")
    eventually(lambda: rows(volume, "SELECT 1 FROM fusebackend.nameless WHERE volume = %s AND session > 0"))
    assert other.read(node, 0, 5) == b"xxxxx"
    other.release(node, os.O_RDONLY)
    node_rows = "SELECT 1 FROM fusebackend.inode WHERE volume = %s AND node = %s"

    def freed() -> bool:
        volume._session._free()
        return not rows(volume, node_rows, node)

    eventually(freed)
    assert read_once(volume.snapshot("s")) == read_once(other.snapshot("s")) == before


# -- freeing -------------------------------------------------------------------------------------------------------


def test_what_a_deleted_snapshot_had_is_freed_in_the_background(volume: PostgresVolume) -> None:
    node = put(volume, b"file", b"x" * 100_000)
    volume.take_snapshot("s")
    volume.setattr(node, AttrChanges(size=0))
    assert volume.snapshot_bytes() == 100_000
    volume.delete_snapshot("s")
    eventually(lambda: not any(count for count in counts(volume).values()))
    assert volume.snapshot_bytes() == 0


def test_portions_end_and_go_on(volume: PostgresVolume, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(old_rows, "PORTION_ROWS", 3)
    volume._session.workers.clear()
    states = []
    for number in range(4):
        for name in range(10):
            node = put(volume, b"%d-%d" % (number, name), b"x" * 10)
            volume.setxattr(node, b"user.x", b"1")
        states.append(copy_of(volume))
        volume.take_snapshot(str(number))
        for name in range(10):
            if number:
                volume.unlink(ROOT_NODE, b"%d-%d" % (number - 1, name))
            overwrite(volume, volume.lookup(ROOT_NODE, b"%d-%d" % (number, name)).node, 0, b"y")
    for number in (1, 2):
        volume.delete_snapshot(str(number))
    begun = old_rows.Pruner(volume.id)
    with connect(volume.conninfo) as connection:
        for _ in range(5):
            assert begun.work(connection)
    prune(volume)  # another host takes over
    for number in (0, 3):
        assert read_once(volume.snapshot(str(number))) == states[number]
    for number in (0, 3):
        volume.delete_snapshot(str(number))
    prune(volume)
    assert not any(counts(volume)[table] for table in OLD)
    assert rows(volume, "SELECT 1 FROM fusebackend.chunk WHERE volume = %s AND node < 0") == []


# -- a search ------------------------------------------------------------------------------------------------------


def test_old_chunks_are_not_indexed(volume: PostgresVolume) -> None:
    node = put(volume, b"file", b"before")
    volume.take_snapshot("s")
    rows(volume, "DELETE FROM fusebackend.unindexed WHERE volume = %s RETURNING 1")
    overwrite(volume, node, 0, b"after!")
    assert rows(volume, "SELECT node FROM fusebackend.unindexed WHERE volume = %s") == [(node,)]
    rows(volume, "DELETE FROM fusebackend.unindexed WHERE volume = %s RETURNING 1")
    volume.take_snapshot("t")
    volume.setattr(node, AttrChanges(size=0))
    assert rows(volume, "SELECT node FROM fusebackend.unindexed WHERE volume = %s") == [(node,)]
    rows(volume, "DELETE FROM fusebackend.unindexed WHERE volume = %s RETURNING 1")
    for name in ("s", "t"):
        volume.delete_snapshot(name)
    prune(volume)
    assert rows(volume, "SELECT node FROM fusebackend.unindexed WHERE volume = %s") == []


# -- any steps -----------------------------------------------------------------------------------------------------


class PostgresMachine(SnapshotMachine):
    """Random operations against a dict, with snapshots, restarts and freeing in the middle of everything."""

    keeps_numbers = True
    dsn: ClassVar = ""

    def make_volume(self) -> Volume:
        self.name = uuid.uuid4().hex
        return self.reopen_volume()

    def reopen_volume(self) -> PostgresVolume:
        self.opened = PostgresVolume(self.dsn, self.name)
        return self.opened

    @rule()
    def check(self) -> None:
        assert check(self.dsn, self.opened.id) == []

    @rule()
    def free(self) -> None:
        prune(self.opened)

    def teardown(self) -> None:
        for name in self.copies:
            self.opened.delete_snapshot(name)
        prune(self.opened)
        found = counts(self.opened)
        left = rows(self.opened, "SELECT node FROM fusebackend.chunk WHERE volume = %s AND node < 0")
        assert not left and not any(found[table] for table in OLD), found
        super().teardown()
        assert check(self.dsn, self.opened.id) == []


@pytest.fixture(scope="module", autouse=True)
def machines_database(shared_dsn: str) -> None:
    PostgresMachine.dsn = shared_dsn


TestAnySteps = PostgresMachine.TestCase
TestAnySteps.settings = hypothesis.settings(
    max_examples=examples(7), stateful_step_count=40, deadline=None, database=None
)


class TestPostgres(SnapshotCases):
    @pytest.fixture
    def volume(self, shared_dsn: str) -> Iterator[PostgresVolume]:
        yield from opened(shared_dsn, uuid.uuid4().hex)
