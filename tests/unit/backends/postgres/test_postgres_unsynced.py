"""What a crash of PostgreSQL takes from a volume whose commits do not wait for the disk, and what `fsync` says then."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import psycopg
import pytest
from eventually import eventually
from postgres_hosts import ME
from profiles import amount
from services.postgres import Server, running
from test_postgres_log import History
from together import over_and_over

from fusebackend.backends import PostgresBackend
from fusebackend.backends.postgres import unsynced
from fusebackend.backends.postgres.volume import PostgresVolume
from fusebackend.protocol import ROOT_NODE
from fusebackend.testing.posix.case import fails, refused

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One whose write-ahead log stays in memory until a commit waits for it: what is not synced is lost for certain."""
    settings = ("wal_writer_delay=10s", "wal_writer_flush_after=1GB", "wal_buffers=16MB")
    with running(*settings, durable=True) as server:
        hold_back(server)
        yield server


def hold_back(server: Server) -> None:
    """Have the log's writer flush now, after its start. When a page of the log is full it does so the first time, and
    then once in `wal_writer_delay` (XLogBackgroundFlush in xlog.c): so it does not within the next 10 s."""
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off")
        (position,) = connection.execute("SELECT pg_current_wal_insert_lsn()").fetchone() or ("",)
        connection.execute("SELECT pg_logical_emit_message(true, 'test', repeat('x', 100000))")
        flushed = "SELECT pg_current_wal_flush_lsn() - %s::pg_lsn > 90000"
        eventually(lambda: connection.execute(flushed, [position]).fetchone() == (True,))


@pytest.fixture
def volume(server: Server, request: pytest.FixtureRequest) -> Iterator[PostgresVolume]:
    made = PostgresVolume(server.dsn(), request.node.name)
    yield made
    with contextlib.suppress(OSError):  # of the loss that a test has brought about
        made.close()


def crash(server: Server, volume: PostgresVolume) -> None:
    server.crash()
    server.start()
    hold_back(server)
    eventually(lambda: works(volume.getattr, ROOT_NODE), what="the volume does not work again")


def works(call: Callable[..., object], *arguments: object) -> bool:
    with contextlib.suppress(OSError):
        call(*arguments)
        return True
    return False


def lost(call: Callable[..., object], *arguments: object) -> None:
    with fails(errno.EIO, match="has crashed, and lost changes"):
        call(*arguments)


def make(volume: PostgresVolume, name: bytes, data: bytes = b"") -> int:
    """An open file, and no draft."""
    node = volume.create(ROOT_NODE, name, 0o644, os.O_RDWR, ME).node
    volume.write(node, 0, data)
    volume.flush(node)
    return node


def test_an_fsync_of_what_a_crash_has_taken_is_an_error_and_of_the_rest_is_none(
    server: Server, volume: PostgresVolume
) -> None:
    kept, changed = make(volume, b"kept", b"first"), make(volume, b"changed", b"first")
    volume.fsync(kept)
    volume.write(changed, 0, b"again")
    made = make(volume, b"made", b"x")
    crash(server, volume)
    assert volume.read(changed, 0, 10) == b"first"
    volume.fsync(kept)
    for _ in range(2):  # as long as it is open: another handle's process has not heard of it
        lost(volume.fsync, changed)
        lost(volume.fsync, made)
    lost(volume.fsync, ROOT_NODE)  # the name
    volume.fsync(ROOT_NODE)
    volume.release(changed, os.O_RDWR)
    volume.open(changed, os.O_RDWR)
    volume.write(changed, 0, b"anew")
    volume.fsync(changed)
    lost(volume.sync)
    volume.sync()


def test_a_write_that_follows_the_crash_does_not_hide_the_loss(server: Server, volume: PostgresVolume) -> None:
    node = make(volume, b"file", b"first")
    volume.fsync(node)
    volume.write(node, 0, b"lost")
    crash(server, volume)
    volume.write(node, 5, b" and more")
    lost(volume.fsync, node)
    assert volume.read(node, 0, 100) == b"first and more"


def test_a_history_is_told_once_which_of_its_rows_a_crash_has_taken(server: Server, volume: PostgresVolume) -> None:
    history = History()
    volume.keep_log(history.log)

    def make_directories(*names: bytes) -> None:
        for name in names:
            with history.noting():
                volume.mkdir(ROOT_NODE, name, 0o755, ME)

    make_directories(b"1")
    volume._each_period()  # no row goes yet
    hold_back(server)
    make_directories(b"2", b"3")
    history.in_doubt = [3]
    crash(server, volume)
    make_directories(b"4")
    for history.in_doubt, lost in (([3], [2]), ([], [2, 3]), ([], [2, 3])):
        volume._each_period()
        assert history.lost == lost
    make_directories(b"5")
    history.needed = 6
    volume._each_period()  # the rows go, with their changes on the disk
    crash(server, volume)
    volume._each_period()
    assert history.lost == [2, 3]
    assert [name for name, _ in volume.readdir(ROOT_NODE, b"", 9)] == [b"1", b"4", b"5"]


def test_a_write_that_was_recovered_is_no_loss(server: Server, volume: PostgresVolume) -> None:
    """Another host's `fsync` has brought it to the disk."""
    with contextlib.closing(PostgresVolume(server.dsn(), volume.name)) as other:
        node = make(volume, b"file", b"first")
        volume.write(node, 0, b"again")
        other.sync()
        crash(server, volume)
        volume.fsync(node)
        assert volume.read(node, 0, 10) == b"again"
        volume.write(node, 0, b"third")
        volume.fsync(node)
        volume.sync()


def test_a_clean_restart_takes_nothing(server: Server, volume: PostgresVolume) -> None:
    node = make(volume, b"file", b"first")
    server.stop()
    server.start()
    volume.write(node, 5, b" and more")
    volume.fsync(node)
    volume.sync()
    assert volume.read(node, 0, 100) == b"first and more"


def test_a_file_that_was_removed_is_no_loss(server: Server, volume: PostgresVolume) -> None:
    node = make(volume, b"file", b"x")
    volume.release(node, os.O_RDWR)
    volume.unlink(ROOT_NODE, b"file")
    volume._session._free()
    volume.sync()
    crash(server, volume)
    volume.sync()


def test_an_agents_verb_is_on_the_disk_when_it_returns(server: Server, request: pytest.FixtureRequest) -> None:
    with PostgresBackend(server.dsn(), request.node.name) as backend:
        for result in (
            backend.write("/d/file", "first"),
            backend.write("/d/other", "x"),
            backend.edit("/d/file", "first", "second"),
            backend.move("/d/file", "/moved"),
            backend.delete("/d/other"),
        ):
            assert result.error is None
        crash(server, backend.volume)
        assert backend.download("/moved").content == b"second"
        assert backend.ls("/d").entries == []


def test_a_snapshot_that_a_crash_has_taken_is_not_read_as_the_next_one(server: Server, volume: PostgresVolume) -> None:
    """The next one has its number."""
    other = PostgresVolume(server.dsn(), volume.name)
    node = make(volume, b"file", b"first")
    volume.fsync(node)
    volume.write(node, 0, b"lost!")
    lost = volume.take_snapshot("lost")
    view = volume.snapshot("lost")
    assert view.read(node, 0, 10) == b"lost!"
    crash(server, volume)
    volume.write(node, 0, b"newer")
    taken = other.take_snapshot("taken")
    assert taken.number == lost.number
    assert list(volume.snapshots()) == [taken]
    assert volume.snapshot("taken").read(node, 0, 10) == b"newer"
    refused(errno.ENOENT, volume.snapshot, "lost")
    with pytest.raises(OSError, match="tale"):
        view.read(node, 0, 10)
    other.close()


def test_many_unsynced_nodes_are_synced_before_the_next_and_few_in_time(
    server: Server, volume: PostgresVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unsynced, "MAX_NODES", 5)
    for number in range(12):
        volume.mknod(ROOT_NODE, b"%d" % number, 0o100644, 0, ME)
        assert len(volume._unsynced._nodes) <= 6
    monkeypatch.undo()
    volume.mknod(ROOT_NODE, b"a", 0o100644, 0, ME)
    volume._each_period()
    volume.mknod(ROOT_NODE, b"b", 0o100644, 0, ME)
    assert len(volume._unsynced._nodes) == 2  # the directory, and the last one
    crash(server, volume)
    names = {name for name, _ in volume.readdir(ROOT_NODE, b"", 100)}
    assert names - {b"b"} == {
        b"a",
        *(b"%d" % number for number in range(12)),
    }  # the server may have written b by itself


def test_changes_are_synced_in_time_though_access_times_can_not_be_stored(
    volume: PostgresVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(times: Mapping[int, int]) -> None:
        raise OSError(errno.EROFS, "read-only")

    node = make(volume, b"file", b"data")
    volume._accesses.note(node, 1)
    assert volume._unsynced.is_pending
    monkeypatch.setattr(volume._accesses, "stored", refuse)
    refused(errno.EROFS, volume._each_period)
    assert not volume._unsynced.is_pending
    monkeypatch.undo()


def test_nothing_that_was_fsynced_is_lost_and_every_loss_is_told(
    server: Server, request: pytest.FixtureRequest
) -> None:
    """Writers count in files of their own; the server crashes in the middle of it, time and again."""
    hosts = [PostgresVolume(server.dsn(), request.node.name) for _ in range(2)]
    nodes = [make(hosts[number % 2], b"%d" % number, b"%08d" % 0) for number in range(4)]
    for node, host in zip(nodes, hosts * 2, strict=True):
        host.fsync(node)
    values, synced, losses = [0] * 4, [0] * 4, [0] * 4

    def count(number: int) -> None:
        host, node = hosts[number % 2], nodes[number]
        values[number] += 1
        value = values[number]
        try:
            host.write(node, 0, b"%08d" % value)
            if value % 7 == 0:
                host.fsync(node)
                synced[number] = value
                assert int(host.read(node, 0, 8)) == value, "an fsync has confirmed what is not there"
        except OSError as error:
            assert error.errno in (errno.EIO, errno.ETIMEDOUT), error
            losses[number] += 1
            works(host.release, node, os.O_RDWR)  # opened anew, it has not been told of anything
            eventually(lambda: works(host.open, node, os.O_RDWR))

    def has(node: int, least: int) -> None:
        assert int(hosts[0].read(node, 0, 8)) >= least

    with contextlib.ExitStack() as counting:
        for number in range(4):
            counting.enter_context(over_and_over(partial(count, number)))
        for _ in range(amount("CRASHES", day=3, night=100)):
            time.sleep(0.3)
            server.crash()
            confirmed = list(synced)
            server.start()
            for node, least in zip(nodes, confirmed, strict=True):
                eventually(partial(works, has, node, least))
    assert sum(losses) > 0
    for host in hosts:
        with contextlib.suppress(OSError):
            host.close()
