"""The PostgreSQL of the tests starts, keeps databases apart, and leaves nothing behind."""

from __future__ import annotations

import os
import time

import pytest

from services import postgres as service
from services import slow_fsync

pytestmark = pytest.mark.services


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
