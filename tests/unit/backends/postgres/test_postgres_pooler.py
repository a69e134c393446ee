"""A volume behind PgBouncer in transaction mode, which gives each transaction another connection to the server."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from postgres_check import check
from services import pgbouncer
from services.pgbouncer import PgBouncer
from services.postgres import Postgres, Server, running

from fusebackend.backends import PostgresBackend
from fusebackend.databases import pipeline
from fusebackend.protocol import ROOT_NODE, Caller, Change, Changes
from fusebackend.protocol.scheme import UrlError
from fusebackend.urls import open_backend

pytestmark = pytest.mark.services

ME = Caller(1000, 1000)
LIMIT_S = 60.0


@pytest.fixture(scope="module")
def bouncer(postgres: Postgres) -> Iterator[PgBouncer]:
    with pgbouncer.running(postgres) as bouncer:
        yield bouncer


@pytest.fixture
def addresses(postgres: Postgres, bouncer: PgBouncer) -> Iterator[tuple[str, str]]:
    """The DSNs of a database: by way of the pooler, and of the server itself."""
    with postgres.database() as dsn:
        yield bouncer.dsn(dsn.rpartition("=")[2]), dsn


@pytest.fixture
def hosts(addresses: tuple[str, str]) -> Iterator[list[PostgresBackend]]:
    dsn, feed = addresses
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(PostgresBackend(dsn, "v", pooler="transaction", feed=feed)) for _ in range(2)]


def ok(*results: Any) -> None:
    for result in results:
        assert result.error is None, result.error


def test_many_threads_of_two_hosts_work_on_two_connections(
    hosts: list[PostgresBackend], addresses: tuple[str, str]
) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        backend = hosts[number % 2]
        volume = backend.volume
        try:
            for round_ in range(8):
                ok(backend.write(f"/d{number}/file{round_}", "hello\n" * 20))
                ok(backend.edit(f"/d{number}/file{round_}", "hello", "bye", replace_all=True))
                directory = volume.lookup(ROOT_NODE, b"d%d" % number).node
                node = volume.create(directory, b"kernel%d" % round_, 0o644, os.O_RDWR, ME).node
                volume.write(node, 0, b"x" * 200_000)
                volume.fsync(node)
                volume.rename(directory, b"kernel%d" % round_, ROOT_NODE, b"k%d-%d" % (number, round_))
                volume.release(node, os.O_RDWR)
                assert hosts[1 - number % 2].download(f"/d{number}/file{round_}").content == b"bye\n" * 20
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    assert failures == []
    assert len(hosts[0].grep("bye").matches or ()) == 6 * 8 * 20
    assert len(hosts[1].glob("**/file*").matches or ()) == 6 * 8
    assert check(addresses[1], hosts[0].volume.id) == []
    ok(hosts[0].delete("/d0"))


def test_each_transaction_has_its_settings_and_leaves_none(
    hosts: list[PostgresBackend], addresses: tuple[str, str]
) -> None:
    """Other clients of the pooler have left theirs on its connections."""
    dsn, _ = addresses
    asked = "SELECT current_setting('synchronous_commit'), current_setting('lock_timeout')"
    spoiled = "SET synchronous_commit = local; SET lock_timeout = 12345; SET default_transaction_read_only = on"
    with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as one:
        with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as two, one.transaction(), two.transaction():
            for client in (one, two):  # both connections to the server
                client.execute("SELECT 1")
            for client in (one, two):
                client.execute(spoiled)
        volume = hosts[0].volume
        found: list[tuple[Any, ...]] = []

        def work(_: Changes) -> None:
            volume.mknod(ROOT_NODE, b"verb", 0o100644, 0, ME)
            transaction = volume._scope.transaction
            assert transaction is not None
            found.extend(pipeline.send(transaction.connection, [(asked, ())])[0])

        volume.change_as_one(work)
        with volume.changing() as changes:
            work_again = volume._scope.transaction
            assert work_again is not None
            found.extend(pipeline.send(work_again.connection, [(asked, ())])[0])
            changes.append(Change())
        volume.mknod(ROOT_NODE, b"call", 0o100644, 0, ME)
        assert found == [("off", "10s")] * 2
        assert one.execute(asked).fetchone() == ("local", "12345ms")
        assert one.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (0,)


def test_the_other_host_hears_of_changes_at_once(hosts: list[PostgresBackend]) -> None:
    heard = threading.Event()
    hosts[1].volume.subscribe(lambda change: heard.set() if change.name == b"file" else None)
    ok(hosts[0].write("/file", "x"))
    assert heard.wait(LIMIT_S)


def test_an_fsync_of_what_a_crash_has_taken_is_an_error() -> None:
    """The client's connections to the pooler may outlive the crash, so each transaction asks for the incarnation."""
    with running(durable=True) as server:
        for setting in ("wal_writer_delay = '10s'", "wal_writer_flush_after = '1GB'", "wal_buffers = '16MB'"):
            server.execute(f"ALTER SYSTEM SET {setting}")
        server.stop()
        server.start()
        with pgbouncer.running(server) as bouncer:
            backend = PostgresBackend(bouncer.dsn("postgres"), "v", pooler="transaction", feed=server.dsn())
            try:
                check_a_loss_is_told(server, backend)
            finally:
                with contextlib.suppress(OSError):
                    backend.close()


def check_a_loss_is_told(server: Server, backend: PostgresBackend) -> None:
    volume = backend.volume
    kept, lost, hidden = (volume.create(ROOT_NODE, name, 0o644, os.O_RDWR, ME).node for name in (b"k", b"l", b"h"))
    for node in (kept, lost, hidden):
        volume.write(node, 0, b"first")
        volume.fsync(node)
    ok(backend.write("/verb", "x"))
    for node in (lost, hidden):
        volume.write(node, 0, b"again")
    server.crash()
    server.start()
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            volume.write(hidden, 5, b" and more")
            break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    volume.fsync(kept)
    assert backend.download("/verb").content == b"x"
    for node in (lost, hidden):
        with pytest.raises(OSError, match="has crashed") as caught:
            volume.fsync(node)
        assert caught.value.errno == errno.EIO
    assert volume.read(hidden, 0, 100) == b"first and more"


def test_a_url_names_the_pooler_and_the_server(addresses: tuple[str, str]) -> None:
    dsn, feed = addresses
    with contextlib.closing(open_backend(f"postgres:{dsn}?volume=v&pooler=transaction&feed={quote(feed)}")) as backend:
        ok(backend.write("/file", "x"))
    with pytest.raises(UrlError, match=r"pooler='transaction' needs feed="):
        open_backend(f"postgres:{dsn}?volume=v&pooler=transaction")
    with pytest.raises(UrlError, match=r"pooler must be 'transaction' or be left out, not 'session'"):
        open_backend(f"postgres:{dsn}?volume=v&pooler=session&feed={quote(feed)}")
