"""Connections to PostgreSQL are cut at any moment, while two hosts change a volume: nothing is half done or lost."""

from __future__ import annotations

import errno
import os
import random
import threading
import time
from collections.abc import Callable

import psycopg
import pytest
from postgres_check import check
from postgres_hosts import ME

from fusebackend.backends.postgres import host_session as session
from fusebackend.backends.postgres.volume import PostgresVolume
from fusebackend.protocol import ROOT_NODE, AttrChanges

pytestmark = pytest.mark.services

STEPS = 120
"""Of each worker."""

LIMIT_S = 120.0
CALL_LIMIT_S = 40.0
TROUBLE = (errno.EIO, errno.ETIMEDOUT, errno.EBUSY)
NAMES = (b"a", b"b", b"c")
CONTENTS = (b"", b"one", b"two" * 30_000, b"three" * 100)

Content = bytes | None
"""What is in a file, None where there is none."""


class Worker(threading.Thread):
    """Changes files in a directory of its own, and knows of each what may be in it."""

    def __init__(self, volume: PostgresVolume, seed: int) -> None:
        super().__init__(daemon=True)
        self.volume = volume
        self.random = random.Random(seed)
        self.name_of_directory = b"w%d" % seed
        self.directory = volume.mkdir(ROOT_NODE, self.name_of_directory, 0o755, ME).node
        self.files: dict[bytes, Content] = dict.fromkeys(NAMES)
        self.cut = 0
        self.slowest_s = 0.0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            for _ in range(STEPS):
                self.step()
        except BaseException as error:
            self.failure = error

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


def cut_on_and_on(dsn: str, done: threading.Event) -> None:
    """Any connection, but this one: those of changes, of reads, of sessions, and of feeds."""
    chance = random.Random(7)
    with psycopg.connect(dsn, autocommit=True) as connection:
        while not done.wait(chance.uniform(0, 0.05)):
            query = (
                "SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
                " AND datname = current_database() AND backend_type = 'client backend' ORDER BY random() LIMIT 1) one"
            )
            connection.execute(query)


def test_connections_may_be_cut_at_any_moment(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    volumes = [PostgresVolume(database, "cut") for _ in range(2)]
    held = volumes[0].create(ROOT_NODE, b"held", 0o644, os.O_RDWR, ME).node
    volumes[0].write(held, 0, b"kept" * 50_000)
    workers = [Worker(volumes[number % 2], number) for number in range(4)]
    volumes[1].unlink(ROOT_NODE, b"held")
    done = threading.Event()
    cutter = threading.Thread(target=cut_on_and_on, args=[database, done])
    cutter.start()
    try:
        for worker in workers:
            worker.start()
        deadline = time.monotonic() + LIMIT_S
        for worker in workers:
            worker.join(max(0.0, deadline - time.monotonic()))
            assert not worker.is_alive(), "a call hangs"
    finally:
        done.set()
        cutter.join()
    for worker in workers:
        if worker.failure is not None:
            raise worker.failure
        assert worker.slowest_s < CALL_LIMIT_S
    assert check(database, volumes[0].id) == []
    for worker in workers:
        for volume in volumes:
            assert worker.found(volume) == worker.files
    assert volumes[0].read(held, 0, 1 << 20) == b"kept" * 50_000
    volumes[0].release(held, os.O_RDWR)
    monkeypatch.setattr(session, "GRACE_S", 0.0)
    for volume in volumes:
        volume.close()
    PostgresVolume(database, "cut").close()  # frees what nobody uses, now that it is alone
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT node FROM fusebackend.inode WHERE nlink = 0").fetchall() == []
        assert connection.execute("SELECT id FROM fusebackend.session").fetchall() == []
