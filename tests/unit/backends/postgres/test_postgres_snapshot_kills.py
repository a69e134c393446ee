"""Snapshots while hosts work and are killed at any moment: each stays what it was, and deleted ones leave nothing.

The hosts are processes of their own. Two threads in each change files of a directory: in every round first `a`, then
`b`, gets the round's number. So a snapshot is of one moment only if `b` is of the same round in it or of the one
before.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator

import psycopg
from eventually import eventually
from postgres_check import check
from profiles import amount
from services.postgres import Postgres

from fusebackend.backends.postgres import old_rows
from fusebackend.backends.postgres.volume import PostgresVolume
from fusebackend.databases.postgres import connect
from fusebackend.protocol import ROOT_NODE, Caller, Volume
from fusebackend.testing.snapshots import Copied, read_once

ME = Caller(0, 0)
HOSTS = 2
KILLS = amount("FUSEBACKEND_SNAPSHOT_KILLS", day=5, night=200)
MOST = 6
"""Snapshots at a time."""

LIMIT_S = 60.0

PROGRAM = """
import os, random, sys, threading
from fusebackend.backends.postgres import host_session, old_rows
from fusebackend.backends.postgres.volume import PostgresVolume
from fusebackend.protocol import ROOT_NODE, AttrChanges, Caller

old_rows.PORTION_ROWS = 7
host_session.PERIOD_S = 0.3
volume = PostgresVolume(sys.argv[1], "v")
me = Caller(0, 0)

def content(number):
    return b"%08d" % number + b"x" * (number * 7919 % 150_000)

def work(which):
    chance = random.Random()
    directory = volume.lookup(ROOT_NODE, b"d%d" % which).node
    number = int(volume.read(volume.lookup(directory, b"b").node, 0, 8))
    while True:
        number += 1
        for name in (b"a", b"b"):
            data = content(number)
            if chance.random() < 0.3:
                node = made(directory, b"new")
                volume.setattr(node, AttrChanges(size=0))
                volume.write(node, 0, data)
                volume.setxattr(node, b"user.n", b"%d" % number)
                volume.rename(directory, b"new", directory, name)
            else:
                with volume.changing():
                    node = volume.lookup(directory, name).node
                    if chance.random() < 0.5:
                        volume.setattr(node, AttrChanges(size=0))
                    volume.write(node, 0, data)
                    volume.setattr(node, AttrChanges(size=len(data)))

def made(directory, name):
    try:
        return volume.lookup(directory, name).node  # of a host that was killed
    except FileNotFoundError:
        return volume.mknod(directory, name, 0o100644, 0, me).node

threads = [threading.Thread(target=work, args=[int(which)], daemon=True) for which in sys.argv[2:]]
for thread in threads:
    thread.start()
print("ready", flush=True)
for thread in threads:
    thread.join()
"""


def start(dsn: str, host: int) -> subprocess.Popen[str]:
    directories = [str(host * 2), str(host * 2 + 1)]
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, dsn, *directories], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def end(process: subprocess.Popen[str]) -> str:
    """Kill a host. Return what it has written to stderr."""
    process.kill()
    return process.communicate(timeout=LIMIT_S)[1]


@contextlib.contextmanager
def hosts(dsn: str) -> Iterator[list[subprocess.Popen[str]]]:
    running = [start(dsn, host) for host in range(HOSTS)]
    try:
        yield running
    finally:
        for process in running:
            end(process)


def round_of(snapshot: Volume, directory: int, name: bytes) -> int:
    attr = snapshot.lookup(directory, name)
    data = snapshot.read(attr.node, 0, 1 << 20)
    if attr.size == 0:
        return -1
    number = int(data[:8])
    assert data == b"%08d" % number + b"x" * (number * 7919 % 150_000), f"{name!r} is half of a change"
    return number


def of_one_moment(snapshot: Volume) -> None:
    for which in range(HOSTS * 2):
        directory = snapshot.lookup(ROOT_NODE, b"d%d" % which).node
        first, second = (round_of(snapshot, directory, name) for name in (b"a", b"b"))
        assert first - second in (0, 1), f"d{which} has round {first} in a and {second} in b"


def test_hosts_are_killed_while_snapshots_are_taken_and_deleted(postgres: Postgres) -> None:
    chance = random.Random(3)
    copies: dict[str, dict[bytes, Copied]] = {}
    with postgres.database() as dsn:
        volume, directories = PostgresVolume(dsn, "v"), []
        for which in range(HOSTS * 2):
            directory = volume.mkdir(ROOT_NODE, b"d%d" % which, 0o755, ME).node
            for name in (b"a", b"b"):
                node = volume.create(directory, name, 0o644, os.O_RDWR, ME).node
                volume.write(node, 0, b"%08d" % 0)
                volume.release(node, os.O_RDWR)
            directories.append(directory)
        with hosts(dsn) as running:
            begun = 8  # bytes of round 0; a later one has more
            eventually(lambda: all(volume.lookup(each, b"b").size > begun for each in directories), LIMIT_S)
            for kill in range(KILLS):
                for _ in range(2):
                    time.sleep(chance.uniform(0, 0.1))
                    name = f"s{kill}-{len(copies)}-{chance.random()}"
                    volume.take_snapshot(name)
                    view = volume.snapshot(name)
                    of_one_moment(view)
                    copies[name] = read_once(view)
                host = chance.randrange(HOSTS)
                errors = end(running[host])
                assert "Traceback" not in errors, errors
                running[host] = start(dsn, host)
                while len(copies) > MOST:
                    name = chance.choice(list(copies))
                    volume.delete_snapshot(name)
                    del copies[name]
                unread = PostgresVolume(dsn, "v")  # with nothing in its caches
                for name, copy in copies.items():
                    assert read_once(unread.snapshot(name)) == copy, f"{name} has changed"
                unread.close()
        assert check(dsn, volume.id) == []
        for name in copies:
            volume.delete_snapshot(name)
        with connect(dsn) as connection:
            pruner = old_rows.Pruner(volume.id)
            while pruner.work(connection) or left(connection, "pruning"):
                pass
            for table in ("old_inode", "old_dentry", "old_chunk"):
                assert left(connection, table) == 0, table
        assert check(dsn, volume.id) == []
        volume.close()


def left(connection: psycopg.Connection[object], table: str) -> int:
    row = connection.execute(f"SELECT count(*) FROM fusebackend.{table}".encode()).fetchone()
    assert isinstance(row, tuple)
    return int(row[0])
