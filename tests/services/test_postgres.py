"""The PostgreSQL of the tests starts, keeps databases apart, and leaves nothing behind."""

from __future__ import annotations

import time

import pytest

from services import postgres as service
from services import slow_fsync

pytestmark = pytest.mark.services


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
