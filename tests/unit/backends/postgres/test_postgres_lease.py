"""A host that alone has a volume open asks nothing; from the moment another one begins it asks again."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
import uuid

import psycopg
import pytest
from eventually import eventually
from nodes import ME, names, put, whole
from postgres_hosts import Host, cut_feed, sql
from raising import raising
from round_trips import Trips
from together import together

from fusebackend.backends.postgres import feed, host_session, lease
from fusebackend.backends.postgres.volume import PostgresVolume
from fusebackend.databases import pipeline
from fusebackend.protocol import ROOT_NODE, AttrChanges, Link
from fusebackend.testing.posix.case import refused


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "SETTLED_S", 0.01)
    monkeypatch.setattr(feed, "SURVEY_S", 0.1)
    monkeypatch.setattr(feed, "IDLE_S", 0.1)


def joined(one: Host) -> contextlib.closing[Host]:
    """Another host with its volume."""
    return contextlib.closing(Host(one.conninfo, one.name))


def is_held(volume: PostgresVolume) -> bool:
    return volume.all_at_once


def has_lease(volume: PostgresVolume) -> None:
    eventually(lambda: is_held(volume))


def rewrite(volume: PostgresVolume, node: int, content: bytes) -> None:
    volume.open(node, os.O_WRONLY)
    volume.setattr(node, AttrChanges(size=0))
    volume.write(node, 0, content)
    volume.flush(node)
    volume.release(node, os.O_WRONLY)


def is_absent(volume: PostgresVolume, name: bytes, directory: int = ROOT_NODE) -> bool:
    try:
        volume.lookup(directory, name)
    except OSError as error:
        assert error.errno == errno.ENOENT
        return True
    return False


def test_a_host_alone_asks_for_small_files_together_and_then_nothing(one: Host, trips: Trips) -> None:
    nodes = {b"%02d" % number: put(one, b"%02d" % number, b"content %d" % number) for number in range(20)}
    has_lease(one)
    assert names(one) == sorted(nodes)

    def read_all() -> None:
        for number, (name, node) in enumerate(nodes.items()):
            attr = one.lookup(ROOT_NODE, name)
            assert (attr.node, one.getattr(node).size) == (node, attr.size)
            assert one.through([Link(ROOT_NODE, name, node)], lambda: whole(one, node)) == b"content %d" % number  # noqa: B023

    assert trips(read_all) == 1
    assert trips(read_all) == 0
    assert trips(lambda: is_absent(one, b"absent")) == 0
    assert trips(lambda: put(one, b"new", b"a")) == 2, "create and close"
    assert trips(lambda: one.unlink(ROOT_NODE, b"01")) == 1
    assert trips(lambda: is_absent(one, b"01")) == 0
    assert trips(lambda: one.lookup(ROOT_NODE, b"02") and is_absent(one, b"moved")) == 0, "as the kernel does first"
    assert trips(lambda: one.rename(ROOT_NODE, b"02", ROOT_NODE, b"moved")) == 1
    assert is_absent(one, b"02") and one.lookup(ROOT_NODE, b"moved").node == nodes[b"02"]
    assert names(one) == sorted({*nodes, b"new", b"moved"} - {b"01", b"02"})


def test_many_newcomers_at_once(shared_dsn: str, one: Host) -> None:
    node = put(one, b"file", b"0")
    has_lease(one)

    def come() -> None:
        with joined(one) as volume:
            assert not is_held(one)
            assert whole(volume, node) == b"0"
            assert not is_held(volume)

    together(*[come] * 6)
    has_lease(one)


def test_it_ends_with_its_connection(one: Host, shared_dsn: str) -> None:
    node = put(one, b"file", b"0")
    has_lease(one)
    cut_feed(one)
    eventually(lambda: not one._lease._has_lock or one._lease._since == lease.NEVER)
    assert whole(one, node) == b"0"
    has_lease(one)  # of the next connection


def test_it_ends_by_itself_where_the_server_is_silent(one: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    has_lease(one)
    monkeypatch.setattr(one._feed, "turn", lambda ask: 1000.0)  # nothing is asked any more
    eventually(lambda: not is_held(one))


STOPPED = """
import os, signal, sys, time
from fusebackend.backends.postgres.volume import PostgresVolume
volume = PostgresVolume(*sys.argv[1:3])
node = int(sys.argv[3])
def whole():
    volume.open(node, os.O_RDONLY)
    try:
        return volume.read(node, 0, 100).decode()
    finally:
        volume.release(node, os.O_RDONLY)
whole()
while not volume.all_at_once:
    time.sleep(0.01)
print(whole(), flush=True)
while sys.stdin.readline():
    print(whole(), flush=True)
"""


def test_a_host_that_does_not_answer_is_cut_off(
    shared_dsn: str, one: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node = put(one, b"file", b"before")
    one.close()
    monkeypatch.setattr(host_session, "LOCK_S", lease.LEASE_S + 1)
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED, shared_dsn, one.name, str(node)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as host:
        assert host.stdin is not None and host.stdout is not None
        try:
            assert host.stdout.readline() == "before\n"
            host.send_signal(signal.SIGSTOP)
            with joined(one) as two:
                assert "does not answer" in caplog.text
                rewrite(two, node, b"after")
                host.send_signal(signal.SIGCONT)
                print(file=host.stdin, flush=True)
                assert host.stdout.readline() == "after\n"
        finally:
            host.kill()


def test_a_session_that_was_taken_for_dead_comes_back_before_it_changes_anything(
    shared_dsn: str, one: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection is lost, and its row: another host has the lease, and loses it by the change."""
    monkeypatch.setattr(host_session, "REJOIN_S", 0.0)
    node = put(one, b"file", b"0")
    connect = one._session._host._connect
    monkeypatch.setattr(one._session._host, "_connect", raising(psycopg.OperationalError("refused by the test")))
    cut_feed(one)
    eventually(lambda: not one._feed.live)
    with joined(one) as two:
        assert whole(two, node) == b"0"
        sql(shared_dsn, "DELETE FROM fusebackend.session WHERE id = %s", one._session.id)
        has_lease(two)
        rewrite(one, node, b"1")
        assert not is_held(two)
        assert whole(two, node) == b"1"
        monkeypatch.setattr(one._session._host, "_connect", connect)
        eventually(lambda: one._feed.live)


def test_a_session_that_does_not_know_that_it_was_taken_for_dead_comes_back(
    shared_dsn: str, one: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A computer has slept: its feed still seems to be live when the first change is made."""
    monkeypatch.setattr(host_session, "REJOIN_S", 0.3)
    node = put(one, b"file", b"0")
    monkeypatch.setattr(one._feed, "turn", lambda ask: 1000.0)
    with joined(one) as two:
        assert whole(two, node) == b"0"
        sql(shared_dsn, "DELETE FROM fusebackend.session WHERE id = %s", one._session.id)
        has_lease(two)
        assert one._feed.live
        rewrite(one, node, b"1")
        assert not is_held(two)
        assert whole(two, node) == b"1"


def test_a_view_says_nothing_of_what_came_later(one: Host) -> None:
    """A thread that sees an earlier state looks a name up: others are not answered with that."""
    put(one, b"old", b"0")
    has_lease(one)
    names(one)
    with one.viewing():
        assert one.lookup(ROOT_NODE, b"old").nlink == 1  # the view begins
        together(lambda: one.rename(ROOT_NODE, b"old", ROOT_NODE, b"new"))
        assert is_absent(one, b"new")
        assert one.lookup(ROOT_NODE, b"old").nlink == 1
    assert is_held(one)
    assert is_absent(one, b"old")
    assert one.lookup(ROOT_NODE, b"new").nlink == 1


def test_it_ends_when_another_session_is_counted_before_it_says_hello(one: Host, shared_dsn: str) -> None:
    has_lease(one)
    with psycopg.connect(shared_dsn, autocommit=True) as connection:
        add = "INSERT INTO fusebackend.session (volume, host, pid) VALUES (%s, 'h', 1)"
        connection.execute(add, [one.id])
        wait = "SELECT pg_advisory_lock_shared(%s::int, %s::int)"
        connection.execute("SET lock_timeout = '5s'")
        connection.execute(wait, [lease.LEASE_LOCK, one.id])  # … which is given back
        assert not is_held(one)


def test_a_sibling_that_is_damaged_or_gone_keeps_no_file_from_being_opened(one: Host, shared_dsn: str) -> None:
    sound, damaged, gone = (put(one, name, b"content") for name in (b"1", b"2", b"3"))
    has_lease(one)
    names(one)
    sql(shared_dsn, "UPDATE fusebackend.inode SET uid = -5 WHERE volume = %s AND node = %s", one.id, damaged)
    sql(shared_dsn, "UPDATE fusebackend.inode SET nlink = 0 WHERE volume = %s AND node = %s", one.id, gone)
    assert whole(one, sound) == b"content"


def test_a_name_that_leads_to_a_directory_elsewhere_is_refused(one: Host, shared_dsn: str) -> None:
    directory = one.mkdir(ROOT_NODE, b"d", 0o755, ME).node
    inner = one.mkdir(directory, b"inner", 0o755, ME).node
    lead = "INSERT INTO fusebackend.dentry (volume, parent, name, node) VALUES (%s, %s, %s, %s)"
    sql(shared_dsn, lead, one.id, inner, b"again", directory)
    for leased in (False, True):
        if leased:
            has_lease(one)
            assert names(one) == [b"d"]
            names(one, inner)
        refused(errno.EIO, one.lookup, inner, b"again")


@pytest.mark.parametrize("setting", ["statement_timeout = '300ms'", "lock_timeout = 0"])
def test_a_newcomer_waits_as_long_as_the_lease_may_hold(
    shared_dsn: str, one: Host, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    """Whatever its role is set to, and behind a pooler, whose connections have no settings of ours."""
    one.close()
    monkeypatch.setattr(host_session, "LOCK_S", 1)
    with psycopg.connect(shared_dsn, autocommit=True) as silent:
        silent.execute("SELECT pg_advisory_lock(%s::int, %s::int)", [lease.LEASE_LOCK, one.id])
        with psycopg.connect(shared_dsn, autocommit=True) as connection:
            connection.execute(f"SET {setting}")
            began = time.monotonic()
            one._session._wait_for_lease(connection)
            assert time.monotonic() - began >= 1


def test_a_newcomer_that_may_not_cut_another_host_off_begins_all_the_same(
    shared_dsn: str, one: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(host_session, "LOCK_S", 1)
    role = f"newcomer_{uuid.uuid4().hex[:8]}"
    node = put(one, b"file", b"content")
    one.close()
    with psycopg.connect(shared_dsn, autocommit=True) as silent:
        silent.execute(f"CREATE ROLE {role} LOGIN")
        try:
            silent.execute(f"GRANT ALL ON SCHEMA fusebackend TO {role}")
            for kind in ("TABLES", "SEQUENCES"):
                silent.execute(f"GRANT ALL ON ALL {kind} IN SCHEMA fusebackend TO {role}")
            silent.execute("SELECT pg_advisory_lock(%s::int, %s::int)", [lease.LEASE_LOCK, one.id])
            with contextlib.closing(Host(shared_dsn.replace("user=postgres", f"user={role}"), one.name)) as two:
                assert whole(two, node) == b"content"
                assert not is_held(two)
            assert "pg_signal_backend" in caplog.text
        finally:
            silent.execute(f"DROP OWNED BY {role}")
            silent.execute(f"DROP ROLE {role}")


def test_it_is_taken_anew_when_it_has_lapsed(one: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that comes late says nothing of hosts that have come meanwhile, as to a computer that slept."""
    has_lease(one)
    begun = one._lease._since
    slept = time.clock_gettime
    monkeypatch.setattr(time, "clock_gettime", lambda clock: slept(clock) + lease.LEASE_S + 1)
    assert not is_held(one)
    has_lease(one)
    assert one._lease._since > begun + lease.LEASE_S + 1


def test_a_change_that_comes_about_after_its_connection_is_lost(
    one: Host, shared_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server goes on with what it has been sent: a host does not believe what it has read until then."""
    node = put(one, b"file", b"0")
    has_lease(one)
    names(one)
    with psycopg.connect(shared_dsn) as connection:
        connection.execute("LOCK TABLE fusebackend.dentry IN SHARE MODE")
        with monkeypatch.context() as impatient, pytest.raises(OSError):
            impatient.setattr(pipeline, "STALL_S", 0.5)
            one.rename(ROOT_NODE, b"file", ROOT_NODE, b"moved")
        assert not is_held(one)
        assert one.lookup(ROOT_NODE, b"file").node == node
        assert names(one) == [b"file"]
    eventually(lambda: sql(shared_dsn, "SELECT 1 FROM fusebackend.dentry WHERE volume = %s AND name = 'moved'", one.id))
    has_lease(one)
    assert is_absent(one, b"file")
    assert one.lookup(ROOT_NODE, b"moved").node == node
