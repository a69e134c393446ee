"""A host of a PostgreSQL volume that is stopped, loses its connection meanwhile, and goes on."""

from __future__ import annotations

import os
import signal
import time

import psycopg
import pytest
from mounts import Serve
from profiles import amount

from fusebackend.backends import PostgresBackend

pytestmark = [pytest.mark.mounted, pytest.mark.services]

ROUNDS = amount("FUSEBACKEND_STOPPED_ROUNDS", day=5, night=20)
LEASED_S = 1.5
"""Until a host that is alone and busy has its lease, see `lease.py`."""

CUT = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
    " AND datname = current_database()"
)


def test_a_host_that_was_stopped_with_its_lease_opens_what_another_closed(postgres_dsn: str, serve: Serve) -> None:
    """Its lease has not ended by itself yet, and the server has given the lock to another host."""
    host = serve(f"postgres:{postgres_dsn}?volume=v")
    host.expected_log = "PostgreSQL|postgres|connection"
    file = host.path / "file"
    file.write_text("none")
    for number in range(ROUNDS):
        until = time.monotonic() + LEASED_S
        while time.monotonic() < until:
            assert file.read_text() == (f"{number - 1}" if number else "none")
        os.kill(host.pid, signal.SIGSTOP)
        try:
            with psycopg.connect(postgres_dsn, autocommit=True) as connection:
                connection.execute(CUT)
            with PostgresBackend(postgres_dsn, "v", on_exists="replace") as other:
                assert other.write("/file", f"{number}").error is None
        finally:
            os.kill(host.pid, signal.SIGCONT)
        assert file.read_text() == f"{number}"
