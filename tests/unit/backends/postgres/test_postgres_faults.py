"""A PostgreSQL server that crashes, is restarted, says nothing, refuses, has no room or cuts its connections."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psycopg
import pytest
from ears import Ear
from eventually import eventually
from postgres_check import check
from postgres_hosts import ME, sql
from profiles import amount
from round_trips import refuse_commits
from services.postgres import PORT, Server, running
from services.stall import Stall
from together import beside, over_and_over, together

from fusebackend.backends import PostgresBackend
from fusebackend.backends.postgres import host_session, schema
from fusebackend.backends.postgres import host_session as session
from fusebackend.backends.postgres.volume import PostgresVolume
from fusebackend.databases import pipeline, postgres
from fusebackend.protocol import ROOT_NODE, AttrChanges, Change
from fusebackend.testing.posix.case import fails

pytestmark = pytest.mark.services

LIMIT_S = 60.0
"""How long is waited for a server or a connection to be there again."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One that may be ended, and keeps what it has promised to."""
    with running(durable=True) as server:
        yield server


@pytest.fixture
def volume(server: Server, request: pytest.FixtureRequest) -> Iterator[PostgresVolume]:
    made = PostgresVolume(server.dsn(), request.node.name)
    yield made
    try:
        made.close()
    except OSError as error:  # a test that ends the server has lost what it did not sync
        assert "has crashed, and lost changes" in str(error), error


def works_again(call: Callable[[], object]) -> None:
    """Call until the volume works again."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            call()
            return
        except OSError as error:
            assert error.errno in (errno.EIO, errno.ETIMEDOUT), error
            assert time.monotonic() < deadline, f"it does not work again: {error}"


def test_a_server_that_is_away_is_an_error_within_a_bound(
    server: Server, volume: PostgresVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "PATIENCE_S", 0.5)
    node = volume.create(ROOT_NODE, b"file", 0o644, os.O_RDWR, ME).node
    volume.fsync(node)
    server.stop()
    try:
        for call in (
            lambda: volume.getattr(ROOT_NODE),
            lambda: volume.write(node, 0, b"x"),
            lambda: volume.mkdir(ROOT_NODE, b"d", 0o755, ME),
            lambda: volume.fsync(node),
        ):
            before = time.monotonic()
            with fails(errno.ETIMEDOUT, match="PostgreSQL"):
                call()
            assert time.monotonic() - before < 30
    finally:
        server.start()
    monkeypatch.undo()
    works_again(lambda: volume.write(node, 0, b"here again"))
    assert volume.read(node, 0, 100) == b"here again"
    volume.release(node, os.O_RDWR)


def test_a_restart_between_two_operations_is_not_noticed(server: Server, volume: PostgresVolume) -> None:
    """All connections are dead, and nothing has been begun on them: another one will do."""
    node = volume.create(ROOT_NODE, b"file", 0o644, os.O_RDWR, ME).node
    together(*(partial(volume.getattr, ROOT_NODE) for _ in range(4)))
    server.stop()
    server.start()
    volume.write(node, 0, b"one")
    with volume.changing():
        volume.mkdir(ROOT_NODE, b"d", 0o755, ME)
    with volume.viewing():
        assert volume.read(node, 0, 10) == b"one"
    volume.release(node, os.O_RDWR)


@pytest.mark.parametrize("end", ["stop", "crash"])
def test_after_a_restart_everything_is_looked_up_again(
    server: Server, request: pytest.FixtureRequest, end: str
) -> None:
    here, there = (PostgresVolume(server.dsn(), request.node.name) for _ in range(2))
    ear: Ear[Change] = Ear()
    here.subscribe(ear)
    here.mkdir(ROOT_NODE, b"before", 0o755, ME)
    getattr(server, end)()
    server.start()
    ear.until(Change(), LIMIT_S)  # lost
    eventually(lambda: here.features.change_feed and there.features.change_feed, LIMIT_S)
    ear.until(Change(), LIMIT_S)
    node = there.mkdir(ROOT_NODE, b"after", 0o755, ME).node
    ear.until(Change(node, ROOT_NODE, b"after"), LIMIT_S)
    for host in (here, there):
        with contextlib.suppress(OSError) if end == "crash" else contextlib.nullcontext():
            host.close()  # which fails if the crash has taken something


def test_a_commit_that_is_not_answered_is_an_error(volume: PostgresVolume, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows whether it has happened, so it is not done once more."""
    volume.mkdir(ROOT_NODE, b"before", 0o755, ME)  # the first change of a connection asks for the newest snapshot
    sends: list[list[str]] = []
    whole = pipeline.send

    def cut_off(connection: psycopg.Connection[object], statements: list[pipeline.Statement]) -> list[pipeline.Rows]:
        sends.append([query for query, _ in statements])
        answers = whole(connection, statements)
        if sends[-1][-1] == "COMMIT":
            connection.close()
            raise psycopg.OperationalError("the connection was cut off")
        return answers

    monkeypatch.setattr("fusebackend.backends.postgres.transaction.send", cut_off)
    with fails(errno.EIO, match="while a change was being committed"):
        volume.mkdir(ROOT_NODE, b"d", 0o755, ME)
    assert len(sends) == 1
    monkeypatch.undo()
    assert volume.lookup(ROOT_NODE, b"d").is_dir  # this time it has


def test_a_write_that_failed_is_no_conflict(volume: PostgresVolume, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a full disk: what is open here may be emptied then, for no other host has changed it."""
    node = volume.create(ROOT_NODE, b"log", 0o644, os.O_RDWR, ME).node
    volume.setattr(node, AttrChanges(size=0))
    volume.write(node, 0, b"first")
    refuse_commits(monkeypatch)
    for change in (lambda: volume.write(node, 5, b"second"), lambda: volume.setattr(node, AttrChanges(size=0))):
        with pytest.raises(OSError, match="division by zero"):
            change()
    monkeypatch.undo()
    volume.write(node, 5, b", third")
    volume.setattr(node, AttrChanges(size=0))
    volume.write(node, 0, b"anew")
    assert volume.read(node, 0, 100) == b"anew"
    volume.release(node, os.O_RDWR)


def test_an_agent_is_told_of_a_failed_commit(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    with PostgresBackend(server.dsn(), "agent") as backend:
        backend.volume.subscribe(told.append)
        refuse_commits(monkeypatch)
        error = backend.write("/file.txt", "x").error
        assert error is not None
        assert "division by zero" in error
        assert "\n" not in error
        assert told, "whoever keeps caches looks again"
        monkeypatch.undo()
        assert backend.ls("/").entries == []
        assert backend.write("/file.txt", "x").error is None


def test_a_server_that_says_nothing_is_not_waited_for_without_end(
    server: Server, volume: PostgresVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "STALL_S", 0.5)
    monkeypatch.setattr(postgres, "PATIENCE_S", 0.5)
    with psycopg.connect(server.dsn(), autocommit=True) as other, other.transaction():
        other.execute("LOCK TABLE fusebackend.inode IN ACCESS EXCLUSIVE MODE")
        before = time.monotonic()
        for call in (lambda: volume.getattr(ROOT_NODE), lambda: volume.setattr(ROOT_NODE, AttrChanges(mode=0o700))):
            with fails(errno.ETIMEDOUT, match="no answer within"):
                call()
        assert time.monotonic() - before < 30
    monkeypatch.undo()
    works_again(lambda: volume.getattr(ROOT_NODE))


def test_a_change_waits_for_another_one_for_a_while(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that stops in the middle of a change holds the others up for so long, and then they say so."""
    assert host_session.LOCK_S < pipeline.STALL_S
    monkeypatch.setitem(host_session.SETTINGS, "lock_timeout", "300ms")
    with contextlib.closing(PostgresVolume(server.dsn(), "waiting")) as volume:
        with psycopg.connect(server.dsn(), autocommit=True) as other, other.transaction():
            other.execute("SELECT FROM fusebackend.inode WHERE volume = %s AND node = 1 FOR UPDATE", [volume.id])
            with fails(errno.EBUSY, match="lock timeout"):
                volume.mkdir(ROOT_NODE, b"d", 0o755, ME)
        volume.mkdir(ROOT_NODE, b"d", 0o755, ME)


# -- a network that says nothing -----------------------------------------------------------------------------------


@pytest.fixture
def network(server: Server) -> Iterator[Stall]:
    directory = tempfile.mkdtemp(prefix="fusebackend-net-")  # the path of a socket may have 107 bytes
    name = f".s.PGSQL.{PORT}"
    try:
        with Stall(f"{server.directory}/{name}", listen=f"{directory}/{name}") as network:
            yield network
    finally:
        shutil.rmtree(directory)


def behind(network: Stall) -> str:
    return f"host={os.path.dirname(str(network.address))} port={PORT} user=postgres dbname=postgres"


def take_all_numbers(volume: PostgresVolume) -> None:
    """The next file needs a block of new ones."""
    while volume._session.new_node() % schema.NODES_AT_ONCE != schema.NODES_AT_ONCE - 1:
        pass


def test_new_numbers_are_not_waited_for_without_end(network: Stall, monkeypatch: pytest.MonkeyPatch) -> None:
    """They come by the session's own connection."""
    with contextlib.closing(PostgresVolume(behind(network), "numbers")) as volume:
        take_all_numbers(volume)
        monkeypatch.setattr(pipeline, "STALL_S", 0.5)
        monkeypatch.setattr(postgres, "CONNECT_S", 2)
        network.stall()
        with fails(errno.EIO, errno.ETIMEDOUT), beside(volume._session.new_node, limit_s=LIMIT_S):
            pass
        network.resume()
        monkeypatch.undo()
        works_again(lambda: volume.mkdir(ROOT_NODE, b"d", 0o755, ME))


def test_a_pool_does_not_wait_without_end_to_count_the_connections_of_its_server(
    network: Stall, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "COUNT_S", 0.0)
    with contextlib.closing(postgres.Connections(behind(network), 1)) as pool:
        monkeypatch.setattr(postgres, "STALL_S", 0.5)
        with beside(partial(pool.run, lambda connection: network.stall()), limit_s=LIMIT_S):
            pass
        network.resume()
        assert pool.query("SELECT 1", ()) == [(1,)]


def test_a_connection_that_the_server_still_believes_in_keeps_nobody_out(server: Server, network: Stall) -> None:
    """It holds the lock by which others know that this session lives, and may hold it for hours."""
    with contextlib.closing(PostgresVolume(behind(network), "believed")) as volume:
        node = volume.create(ROOT_NODE, b"file", 0o644, os.O_RDWR, ME).node
        take_all_numbers(volume)
        network.stall()
        volume._session._host._conninfo = server.dsn()
        volume._session.run(lambda connection: connection.close())  # of which the server hears nothing
        volume._session.new_node()
        network.resume()
        works_again(lambda: volume.unlink(ROOT_NODE, b"file"))
        assert volume.getattr(node).nlink == 0
        volume.release(node, os.O_RDWR)


# -- a full disk -------------------------------------------------------------------------------------------------------


PIECE = 1 << 20


@pytest.fixture
def disk() -> Iterator[Path]:
    """A small one, for the user `postgres`."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a small tmpfs")
    path = Path(tempfile.mkdtemp(prefix="fusebackend-pg-"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "none", path], check=True)
    try:
        (path / "space").mkdir(mode=0o700)
        shutil.chown(path / "space", "postgres", "postgres")
        path.chmod(0o755)
        yield path
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)
        path.rmdir()


@pytest.fixture
def small_database(server: Server, disk: Path) -> Iterator[str]:
    """Its tables are on the small disk, and the server's log is not: without room for that, no server runs. The server
    is this module's: while a server can't write its pages of one database, it can make and drop no other either."""
    server.execute(f"CREATE TABLESPACE small LOCATION '{disk}/space'")
    try:
        server.execute("CREATE DATABASE small TABLESPACE small")
        try:
            yield server.dsn("small")
        finally:
            enlarge(disk)
            server.execute("DROP DATABASE small WITH (FORCE)")
    finally:
        server.execute("DROP TABLESPACE small")


def enlarge(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=96m", disk], check=True)


def test_a_full_disk_loses_nothing(small_database: str, disk: Path) -> None:
    volume = PostgresVolume(small_database, "full")
    node = volume.create(ROOT_NODE, b"file", 0o644, os.O_RDWR, ME).node
    content = bytearray()
    with fails(errno.ENOSPC, match="No space left"):
        while True:
            piece = os.urandom(PIECE)
            volume.write(node, len(content), piece)
            content += piece
    assert volume.getattr(node).size == len(content)

    enlarge(disk)  # also for the check, whose reads may have to write other blocks out
    assert check(small_database, volume.id) == []
    volume.write(node, len(content), b"more")
    volume.fsync(node)
    assert volume.read(node, 0, len(content) + 10) == content + b"more"
    volume.setattr(node, AttrChanges(size=0))
    volume.write(node, 0, b"anew")
    volume.release(node, os.O_RDWR)
    volume.close()


# -- connections that are cut at any moment ----------------------------------------------------------------------------


STEPS = amount("FUSEBACKEND_CUT_STEPS", day=25, night=200)
"""Of each worker."""

CUTS_LIMIT_S = 120.0
CALL_LIMIT_S = 40.0
TROUBLE = (errno.EIO, errno.ETIMEDOUT, errno.EBUSY)
NAMES = (b"a", b"b", b"c")
CONTENTS = (b"", b"one", b"two" * 30_000, b"three" * 100)

Content = bytes | None
"""What is in a file, None where there is none."""


class Worker:
    """Changes files in a directory of its own, and knows of each what may be in it."""

    def __init__(self, volume: PostgresVolume, seed: int) -> None:
        self.volume = volume
        self.random = random.Random(seed)
        self.name_of_directory = b"w%d" % seed
        self.directory = volume.mkdir(ROOT_NODE, self.name_of_directory, 0o755, ME).node
        self.files: dict[bytes, Content] = dict.fromkeys(NAMES)
        self.cut = 0
        self.slowest_s = 0.0

    def run(self) -> None:
        for _ in range(STEPS):
            self.step()

    def step(self) -> None:
        name, other = self.random.sample(NAMES, 2)
        after = dict(self.files)
        change = self.random.choice([self.write, self.rename, self.remove])
        call = change(name, other, after)
        start = time.monotonic()
        try:
            call()
        except OSError as error:
            # Nobody knows whether a change was made whose answer was cut off.
            assert error.errno in (*TROUBLE, errno.ENOENT), error
            assert error.errno != errno.ENOENT or self.files[name] is None, error
            if error.errno != errno.ENOENT:
                self.cut += 1
            found = self.found(self.volume)
            assert found in (self.files, after), (change.__name__, found.keys())
            self.files = found
        else:
            self.files = after
        self.slowest_s = max(self.slowest_s, time.monotonic() - start)

    def write(self, name: bytes, _: bytes, after: dict[bytes, Content]) -> Callable[[], object]:
        """All of it in one transaction, as an agent does."""
        content = self.random.choice(CONTENTS)
        after[name] = content

        def write() -> None:
            with self.volume.changing():
                if self.files[name] is None:
                    node = self.volume.mknod(self.directory, name, 0o100644, 0, ME).node
                else:
                    node = self.volume.lookup(self.directory, name).node
                    self.volume.setattr(node, AttrChanges(size=0))
                self.volume.write(node, 0, content)

        return write

    def rename(self, name: bytes, other: bytes, after: dict[bytes, Content]) -> Callable[[], object]:
        if after[name] is not None:
            after[other], after[name] = after[name], None
        return lambda: self.volume.rename(self.directory, name, self.directory, other)

    def remove(self, name: bytes, _: bytes, after: dict[bytes, Content]) -> Callable[[], object]:
        after[name] = None
        return lambda: self.volume.unlink(self.directory, name)

    def found(self, volume: PostgresVolume) -> dict[bytes, Content]:
        """What there is, asked as often as it takes. A change that was cut off has ended when it is known to have."""
        while True:
            try:
                with volume.changing():  # after whatever this host had begun
                    found: dict[bytes, Content] = dict.fromkeys(NAMES)
                    for name, attr in volume.readdir(self.directory, b"", 10):
                        found[name] = volume.read(attr.node, 0, 1 << 20)
                return found
            except OSError as error:
                assert error.errno in TROUBLE, error


CUT = """
SELECT pg_terminate_backend(pid) FROM (
    SELECT pid FROM pg_stat_activity
    WHERE pid <> pg_backend_pid() AND datname = current_database() AND backend_type = 'client backend'
    ORDER BY random() LIMIT 1
) AS one
"""
"""Any connection, but this one: those of changes, of reads, of sessions, and of feeds."""


def test_connections_may_be_cut_at_any_moment(shared_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    volumes = [PostgresVolume(shared_dsn, "cut") for _ in range(2)]
    held = volumes[0].create(ROOT_NODE, b"held", 0o644, os.O_RDWR, ME).node
    volumes[0].write(held, 0, b"kept" * 50_000)
    workers = [Worker(volumes[number % 2], number) for number in range(4)]
    volumes[1].unlink(ROOT_NODE, b"held")
    with (
        psycopg.connect(shared_dsn, autocommit=True) as connection,
        over_and_over(lambda: connection.execute(CUT), pause_s=0.025),
    ):
        together(*(worker.run for worker in workers), limit_s=CUTS_LIMIT_S)
    assert all(worker.slowest_s < CALL_LIMIT_S for worker in workers)
    assert check(shared_dsn, volumes[0].id) == []
    for worker in workers:
        for volume in volumes:
            assert worker.found(volume) == worker.files
    assert volumes[0].read(held, 0, 1 << 20) == b"kept" * 50_000
    volumes[0].release(held, os.O_RDWR)
    monkeypatch.setattr(session, "GRACE_S", 0.0)
    for volume in volumes:
        volume.close()
    PostgresVolume(shared_dsn, "cut").close()  # frees what nobody uses, now that it is alone
    assert sql(shared_dsn, "SELECT node FROM fusebackend.inode WHERE nlink = 0") == []
    assert sql(shared_dsn, "SELECT id FROM fusebackend.session") == []
