"""The PostgreSQL of the tests starts, keeps databases apart, and leaves nothing behind."""

from __future__ import annotations

import os
import time

import pytest

from services import postgres as service
from services import slow_fsync

pytestmark = pytest.mark.services


def test_a_database_is_empty_and_gone_afterwards(postgres):
    import psycopg

    with postgres.database() as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        assert connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() == (0,)
        connection.execute("CREATE TABLE left_behind ()")
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(dsn)


def test_both_forms_of_an_address_lead_to_it(postgres):
    import psycopg

    for address in (postgres.dsn(), postgres.uri()):
        with psycopg.connect(address) as connection:
            assert connection.execute("SHOW listen_addresses").fetchone() == ("",)


def test_what_was_committed_outlives_a_crash_and_the_server_leaves_nothing_behind():
    import psycopg

    with service.running(durable=True) as server:
        first = server.pid
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 1 AS one")
            server.crash()
        server.start()
        with psycopg.connect(server.dsn()) as connection:
            assert connection.execute("SELECT one FROM kept").fetchone() == (1,)
        last = server.pid
    assert first != last
    assert not server.directory.exists()
    for pid in (first, last):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_every_commit_waits_for_a_slow_fsync():
    import psycopg

    if (reason := slow_fsync.missing()) is not None:
        pytest.skip(reason)
    slow_fsync_s, commits = 0.02, 10
    with (
        service.running(durable=True, slow_fsync_s=slow_fsync_s) as server,
        psycopg.connect(server.dsn(), autocommit=True) as connection,
    ):
        connection.execute("CREATE TABLE written (one integer)")
        began = time.monotonic()
        for _ in range(commits):
            connection.execute("INSERT INTO written VALUES (1)")
        assert time.monotonic() - began >= commits * slow_fsync_s


def test_where_there_is_none_the_tests_are_skipped(monkeypatch):
    monkeypatch.setattr(service, "_programs", lambda: None)
    with pytest.raises(pytest.skip.Exception, match="not installed"):
        service.require()
