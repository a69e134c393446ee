"""One PostgreSQL volume on two hosts, which here are two `PostgresVolume`s: what becomes of what both do."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Any

import psycopg
import pytest
import skewed
from eventually import eventually
from postgres_hosts import ME, Host, sql
from together import together

from fusebackend.backends.postgres import host_session as session
from fusebackend.backends.postgres import schema, statements, transaction
from fusebackend.databases import listener
from fusebackend.protocol import ROOT_NODE, AttrChanges, Change
from fusebackend.testing.posix.case import refused


def rows_of(volume: Host, node: int) -> list[int]:
    """How many rows the tables have of a node."""
    count = "SELECT count(*) FROM fusebackend.{} WHERE volume = %s AND node = %s"
    tables = ("inode", "chunk", "nameless")
    return [sql(volume.conninfo, count.format(table), volume.id, node)[0][0] for table in tables]


# -- names ---------------------------------------------------------------------------------------------------------


def test_two_moves_never_make_a_ring(one: Host, two: Host) -> None:
    """a/ into b/ on one host and b/ into a/ on the other: one of them has to fail, each time."""
    for number in range(15):
        first = one.mkdir(ROOT_NODE, b"a%d" % number, 0o755, ME).node
        second = one.mkdir(ROOT_NODE, b"b%d" % number, 0o755, ME).node
        outcomes: list[int | None] = []

        def move(volume: Host, name: bytes, into: int, outcomes: list[int | None] = outcomes) -> None:
            try:
                volume.rename(ROOT_NODE, name, into, b"moved")
                outcomes.append(None)
            except OSError as error:
                outcomes.append(error.errno)

        together(
            lambda first=first, second=second, number=number: move(one, b"a%d" % number, second),
            lambda first=first, second=second, number=number: move(two, b"b%d" % number, first),
        )
        assert sorted(outcomes, key=str) == [errno.EINVAL, None]
    assert one._read_inode(ROOT_NODE).nlink == two._read_inode(ROOT_NODE).nlink == 2 + 15
    eventually(lambda: one.getattr(ROOT_NODE).nlink == two.getattr(ROOT_NODE).nlink == 2 + 15)  # when it is told


# -- data ----------------------------------------------------------------------------------------------------------


def test_ranges_of_two_writers_merge(one: Host, two: Host) -> None:
    """Also within one chunk, which is one row."""
    node = one.make(b"file", bytes(150_000))
    for volume in (one, two):
        volume.open(node, os.O_RDWR)

    def write(volume: Host, first: int, byte: bytes) -> None:
        for offset in range(first, 150_000, 2000):
            volume.write(node, offset, byte * 1000)

    together(lambda: write(one, 0, b"a"), lambda: write(two, 1000, b"b"))
    assert two.content(node) == (b"a" * 1000 + b"b" * 1000) * 75
    for volume in (one, two):
        volume.release(node, os.O_RDWR)


def test_a_rewrite_of_what_another_host_has_changed_is_stale(one: Host, two: Host) -> None:
    node = one.make(b"file", b"first")
    one.open(node, os.O_RDWR)
    two.open(node, os.O_RDWR)
    two.write(node, 0, b"other")
    refused(errno.ESTALE, one.setattr, node, AttrChanges(size=0))
    assert one.content(node) == b"other"
    one.write(node, 5, b" and mine")  # a range is no rewrite
    assert two.content(node) == b"other and mine"
    refused(errno.ESTALE, one.setattr, node, AttrChanges(size=0))  # still
    one.open(node, os.O_WRONLY)  # who opens it now knows what is there
    one.setattr(node, AttrChanges(size=0))
    one.write(node, 0, b"mine")
    assert two.content(node) == b"mine"


def test_of_two_rewrites_the_later_one_wins_and_the_other_is_told(one: Host, two: Host) -> None:
    node = one.make(b"file", b"first")
    for volume in (one, two):
        volume.open(node, os.O_WRONLY)
        volume.setattr(node, AttrChanges(size=0))
    refused(errno.ESTALE, one.write, node, 0, b"from one")
    two.write(node, 0, b"from two")
    two.write(node, 8, b"!")
    assert one.content(node) == b"from two!"


def test_a_change_of_attributes_alone_is_no_conflict(one: Host, two: Host) -> None:
    node = one.make(b"file", b"first")
    one.open(node, os.O_WRONLY)
    two.setattr(node, AttrChanges(mode=0o600))
    two.setxattr(node, b"user.x", b"1")
    one.setattr(node, AttrChanges(size=0))
    assert two.lookup(ROOT_NODE, b"file").size == two.getattr(node).size == 0
    assert one.lookup(ROOT_NODE, b"file").mode & 0o777 == one.getattr(node).mode & 0o777 == 0o600


def test_times_never_go_back_though_the_clock_of_a_host_does(
    one: Host, two: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = one.make(b"file", b"x")
    with monkeypatch.context() as ahead:
        skewed.skew(ahead, 3600)
        one.write(node, 0, b"y")
    before = one.getattr(node)
    two.write(node, 0, b"z")
    after = two.getattr(node)
    assert after.mtime_ns >= before.mtime_ns
    assert after.ctime_ns > before.ctime_ns
    two.setattr(node, AttrChanges(mtime_ns=5))  # utimes(2) says what it is to be
    eventually(lambda: one.getattr(node).mtime_ns == 5)  # as fresh as the feed


# -- nodes without a name ------------------------------------------------------------------------------------------


def test_what_a_dead_host_had_open_is_freed(shared_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "PERIOD_S", 0.2)
    monkeypatch.setattr(session, "GRACE_S", 1.0)
    dead = Host(shared_dsn, "dead")
    node = dead.make(b"file", b"hello" * 50_000)
    dead.open(node, os.O_RDWR)
    dead.unlink(ROOT_NODE, b"file")
    assert rows_of(dead, node) == [1, 4, 1]
    dead._session._stop.set()  # as when its process was killed: the connection ends, nothing is said
    dead._session.wake()
    dead._session._thread.join()
    dead._session._host.close()
    with contextlib.closing(Host(shared_dsn, "dead")) as other:
        other._session._free()
        assert rows_of(other, node) == [1, 4, 1]  # not at once: the connection may have been all that it lost
        eventually(lambda: rows_of(other, node) == [0, 0, 0])
    dead.connections.close()


def test_what_is_open_where_a_connection_was_lost_stays(
    one: Host, two: Host, shared_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lock is free until it connects again, and so looks dead to the other host."""
    monkeypatch.setattr(session, "PERIOD_S", 3600.0)
    monkeypatch.setattr(listener, "RETRY_S", (60.0,))  # it connects when it has something to ask
    node = one.make(b"file", b"kept")
    one.open(node, os.O_RDWR)
    one.unlink(ROOT_NODE, b"file")
    with psycopg.connect(shared_dsn, autocommit=True) as connection:
        own = [schema.SESSION_LOCK, one._session.id]
        cut = (
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE classid = %s AND objid = %s"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        connection.execute(cut, own)
        lock = "SELECT pg_try_advisory_xact_lock(%s::int, %s::int)"
        eventually(lambda: connection.execute(lock, own).fetchone() == (True,))
    two._session._free()
    assert one.content(node) == b"kept"
    monkeypatch.setattr(session, "GRACE_S", 0.0)
    one._session._free()
    one._session.run(one._session._note)
    two._session._free()
    assert one.content(node) == b"kept"
    one.release(node, os.O_RDWR)


def test_closing_frees_what_was_left_open(shared_dsn: str) -> None:
    volume = Host(shared_dsn, "closing")
    node = volume.make(b"file", b"hello")
    volume.open(node, os.O_RDWR)
    volume.unlink(ROOT_NODE, b"file")
    assert volume.content(node) == b"hello"
    volume.close()
    assert rows_of(volume, node) == [0, 0, 0]


def test_closing_frees_it_though_the_server_rolls_that_back_at_first(
    one: Host, two: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = one.make(b"file", b"hello")
    one.open(node, os.O_RDWR)
    one.unlink(ROOT_NODE, b"file")
    two.close()
    locks, failures = statements.lock_changes, iter([psycopg.errors.DeadlockDetected("rolled back")])

    def overtaken(*arguments: Any, **options: Any) -> Any:
        for failure in failures:
            raise failure
        return locks(*arguments, **options)

    monkeypatch.setattr(statements, "lock_changes", overtaken)
    one.close()
    assert list(failures) == []
    assert rows_of(one, node) == [0, 0, 0]


# -- what is told --------------------------------------------------------------------------------------------------


def test_the_other_host_hears_of_every_change(one: Host, two: Host) -> None:
    heard: list[Change] = []
    own: list[Change] = []
    two.subscribe(heard.append)
    one.subscribe(own.append)
    directory = one.mkdir(ROOT_NODE, b"d", 0o755, ME).node
    node = one.make(b"file", b"hello", directory)
    one.rename(directory, b"file", ROOT_NODE, b"moved")
    one.setxattr(node, b"user.x", b"1")
    one.unlink(ROOT_NODE, b"moved")
    wanted = {
        Change(directory, ROOT_NODE, b"d"),
        Change(node, directory, b"file"),
        Change(None, directory, b"file"),
        Change(node, ROOT_NODE, b"moved"),
        Change(None, ROOT_NODE, b"moved"),
        Change(node=node),
        Change(node=directory),
        Change(node=ROOT_NODE),
    }
    eventually(lambda: wanted <= set(heard))
    assert own == []


def test_a_change_of_several_operations_is_all_or_nothing(one: Host, two: Host) -> None:
    node = one.make(b"file", b"hello")
    told: list[Change] = []
    one.subscribe(told.append)
    with one.changing() as changes:
        changes.append(Change(node=node))
        one.write(node, 0, b"HELLO")
        one.mkdir(ROOT_NODE, b"d", 0o755, ME)
        assert one.content(node) == b"HELLO"
        assert two.content(node) == b"hello"
        assert [name for name, _ in two.readdir(ROOT_NODE, b"", 10)] == [b"file"]
        assert told == []
    assert two.content(node) == b"HELLO"
    assert told == [Change(node=node)]
    with pytest.raises(KeyError), one.changing():
        one.write(node, 0, b"undone")
        one.rmdir(ROOT_NODE, b"d")
        raise KeyError
    assert two.content(node) == b"HELLO"
    assert [name for name, _ in two.readdir(ROOT_NODE, b"", 10)] == [b"d", b"file"]


def test_a_change_of_several_operations_sees_what_it_has_done(one: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether that is gathered here still, or has been written to the tables already."""
    for limit in (8 << 20, 0):
        monkeypatch.setattr(transaction, "MAX_PENDING_BYTES", limit)
        with one.changing():
            directory = one.mkdir(ROOT_NODE, b"d", 0o755, ME).node
            node = one.make(b"file", b"hello" * 30_000, directory)
            one.setxattr(node, b"user.x", b"1")
            refused(errno.ENOTEMPTY, one.rmdir, ROOT_NODE, b"d")
            refused(errno.EEXIST, one.mkdir, directory, b"file", 0o755, ME)
            assert [name for name, _ in one.readdir(directory, b"", 10)] == [b"file"]
            one.setattr(node, AttrChanges(size=70_000))
            one.write(node, 80_000, b"end")
            assert one.content(node) == b"hello" * 14_000 + bytes(10_000) + b"end"
            assert one.getxattr(node, b"user.x") == b"1"
            one.removexattr(node, b"user.x")
            assert one.listxattr(node) == []
            link = one.symlink(directory, b"link", b"file", ME).node
            assert one.readlink(link) == b"file"
            one.rename(directory, b"file", ROOT_NODE, b"moved")
            one.unlink(directory, b"link")
            one.rmdir(ROOT_NODE, b"d")
            assert [name for name, _ in one.readdir(ROOT_NODE, b"", 10)] == [b"moved"]
            refused(errno.ENOENT, one.lookup, ROOT_NODE, b"d")
        assert one.content(node) == b"hello" * 14_000 + bytes(10_000) + b"end"
        one.unlink(ROOT_NODE, b"moved")
        assert one.getattr(ROOT_NODE).nlink == 2


def test_many_files_are_changed_together_of_which_one_has_attributes(one: Host, two: Host) -> None:
    with one.changing():
        nodes = [one.mknod(ROOT_NODE, b"%d" % number, 0o100644, 0, ME).node for number in range(6)]
        one.setxattr(nodes[0], b"user.x", b"1")
    for mode in (0o600, 0o640):
        with one.changing():
            for node in nodes:
                one.setattr(node, AttrChanges(mode=mode))
            if mode == 0o640:
                one.removexattr(nodes[0], b"user.x")
        expected = [b"user.x"] if mode == 0o600 else []
        found = [two.lookup(ROOT_NODE, b"%d" % number).mode & 0o777 for number in range(6)]
        assert (found, two.listxattr(nodes[0]), two.listxattr(nodes[1])) == ([mode] * 6, expected, [])


def test_a_view_is_of_one_state(one: Host, two: Host) -> None:
    node = one.make(b"file", b"before")
    with one.viewing():
        assert one.getattr(node).size == 6
        two.write(node, 0, b"afterwards")
        assert one.content(node) == b"before"
        assert one.getattr(node).size == 6
    assert one.content(node) == b"afterwards"
