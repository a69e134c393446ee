"""A volume whose address names a primary and its standby, before and after the standby is promoted."""

from __future__ import annotations

import os
from collections.abc import Iterator

import psycopg
import pytest
from eventually import eventually
from nodes import put, whole
from services.postgres import PORT, Server, running

from fusebackend.backends.postgres.volume import PostgresVolume
from fusebackend.databases import postgres
from fusebackend.protocol import ROOT_NODE, Caller

pytestmark = [pytest.mark.services, pytest.mark.timeout(120)]

ME = Caller(1000, 1000)
LIMIT_S = 60.0


@pytest.fixture
def primary() -> Iterator[Server]:
    with running(durable=True) as server:
        yield server


@pytest.fixture
def standby(primary: Server) -> Iterator[Server]:
    """It applies what it gets three seconds later, as a standby does that is behind."""
    server = Server(durable=True)
    try:
        primary.base_backup(server.data)
        (server.data / "standby.signal").touch()
        with (server.data / "postgresql.auto.conf").open("a") as settings:
            settings.write(f"primary_conninfo = 'host={primary.directory} port={PORT} user=postgres'\n")
            settings.write("recovery_min_apply_delay = '3s'\n")
            settings.write("wal_retrieve_retry_interval = '100ms'\n")
        server.start()
        yield server
    finally:
        server.remove()


def scalar(server: Server, query: str) -> object:
    with psycopg.connect(server.dsn()) as connection:
        ((value,),) = connection.execute(query)  # type: ignore[call-overload]
        return value


def test_a_standby_answers_nothing_until_it_is_promoted(
    primary: Server, standby: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "PATIENCE_S", 0.5)
    alone = PostgresVolume(primary.dsn(), "v")
    either = PostgresVolume(
        f"host={primary.directory},{standby.directory} port={PORT} user=postgres dbname=postgres", "v"
    )
    file = put(alone, b"file", b"first")
    alone.fsync(file)
    assert whole(either, file) == b"first"
    primary.stop()
    with pytest.raises(OSError, match="can't be reached"):
        whole(either, file)
    primary.start()
    alone.fsync(put(alone, b"other", b"x"))
    alone.open(file, os.O_RDWR)
    alone.write(file, 0, b"later")
    alone.fsync(file)
    assert whole(either, file) == b"later"
    at = scalar(primary, "SELECT pg_current_wal_flush_lsn()")
    eventually(lambda: scalar(standby, f"SELECT pg_last_wal_receive_lsn() >= '{at}'") is True, LIMIT_S)
    primary.stop()
    standby.execute("SELECT pg_promote()")
    eventually(lambda: either._feed.live, LIMIT_S)
    assert whole(either, file) == b"later"
    assert put(either, b"new", b"new") != file
    assert whole(either, either.lookup(ROOT_NODE, b"new").node) == b"new"
    either.close()
    with pytest.raises(OSError, match=r"PostgreSQL"):
        alone.close()
