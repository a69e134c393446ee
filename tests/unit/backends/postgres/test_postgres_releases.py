"""Hosts of an earlier release and of this one on one volume: each is told of the other's changes.

No older one can join, and no snapshot is taken before the last of them has ended.

The other release is the real one, from the history of the repository, in a process of its own.
"""

from __future__ import annotations

import errno
import io
import json
import os
import queue
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from eventually import eventually

from fusebackend.backends.postgres import feed
from fusebackend.backends.postgres.schema import VERSION
from fusebackend.backends.postgres.volume import PostgresVolume
from fusebackend.protocol import ROOT_NODE, AttrChanges, Caller

pytestmark = pytest.mark.services

BEFORE = "871645c"
"""The last commit of the release before."""

REPOSITORY = Path(__file__).parents[4]
ME = Caller(0, 0)
LIMIT_S = 30.0

PROGRAM = """
import json, sys, threading
from fusebackend.backends.postgres.volume import PostgresVolume
from fusebackend.protocol import ROOT_NODE, AttrChanges, Caller

guard = threading.Lock()

def say(*words):
    with guard:
        print(json.dumps(words), flush=True)

volume = PostgresVolume(sys.argv[1], "v")
volume.subscribe(lambda change: say("told", change.node, change.parent, (change.name or b"").decode()))
say("open", int(volume.session))
for line in sys.stdin:
    command, *words = json.loads(line)
    if command == "make":
        say("made", volume.mknod(ROOT_NODE, words[0].encode(), 0o100644, 0, Caller(0, 0)).node)
    elif command == "chmod":
        volume.setattr(words[0], AttrChanges(mode=words[1]))
        say("done")
    elif command == "mode":
        say("mode", volume.getattr(words[0]).mode & 0o7777)
    elif command == "close":
        volume.close()
        say("closed")
        break
"""


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of the release before."""
    archive = subprocess.run(["git", "archive", BEFORE, "fusebackend"], cwd=REPOSITORY, capture_output=True)
    if archive.returncode != 0:
        pytest.skip(f"the repository has no history with {BEFORE}")
    directory = tmp_path_factory.mktemp("before")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(directory, filter="data")
    return directory


class Older:
    """A host of the release before."""

    def __init__(self, package: Path, dsn: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, dsn], cwd=package, env={**os.environ, "PYTHONPATH": str(package)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.told: list[list[Any]] = []
        self._answers: queue.Queue[list[Any]] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        _, self.session = self._answers.get(timeout=LIMIT_S)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            words = json.loads(line)
            if words[0] == "told":
                self.told.append(words[1:])
            else:
                self._answers.put(words)

    def do(self, *words: object) -> list[Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        return self._answers.get(timeout=LIMIT_S)

    def kill(self) -> None:
        self._process.kill()
        self._end()

    def close(self) -> None:
        if self._process.poll() is None:
            self.do("close")
        self._end()

    def _end(self) -> None:
        self._process.wait(LIMIT_S)
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


class Newer(PostgresVolume):
    def __init__(self, dsn: str) -> None:
        super().__init__(dsn, "v")
        self.told: list[list[Any]] = []
        self.subscribe(lambda change: self.told.append([change.node, change.parent, (change.name or b"").decode()]))


@pytest.fixture
def older(before: Path, postgres_dsn: str) -> Iterator[Older]:
    host = Older(before, postgres_dsn)
    yield host
    host.close()


@pytest.fixture
def newer(postgres_dsn: str) -> Iterator[Newer]:
    host = Newer(postgres_dsn)
    yield host
    host.close()


def both_ways(older: Older, newer: Newer) -> None:
    """Each makes a name and changes it, and the other one is told, once."""
    for number in range(3):
        name = f"{older.session}-{newer.session}-{number}"
        _, node = older.do("make", name)
        eventually(lambda node=node, name=name: [node, ROOT_NODE, name] in newer.told, LIMIT_S)
        newer.setattr(node, AttrChanges(mode=0o600))
        eventually(lambda node=node: [node, None, ""] in older.told, LIMIT_S)
        assert older.do("mode", node) == ["mode", 0o600]
        node = newer.mknod(ROOT_NODE, f"new-{name}".encode(), 0o100644, 0, ME).node
        eventually(lambda node=node, name=name: [node, ROOT_NODE, f"new-{name}"] in older.told, LIMIT_S)
        older.do("chmod", node, 0o640)
        eventually(lambda node=node: [node, None, ""] in newer.told, LIMIT_S)
        assert newer.getattr(node).mode & 0o7777 == 0o640
        assert newer.told.count([node, None, ""]) == 1
    assert [None, None, ""] not in newer.told + older.told, "nothing was invalidated as a whole"


def test_the_older_one_comes_first(older: Older, newer: Newer) -> None:
    both_ways(older, newer)


def test_an_older_one_that_comes_later_is_refused(newer: Newer, before: Path, postgres_dsn: str) -> None:
    """It would keep nothing for snapshots."""
    program = [sys.executable, "-c", PROGRAM, postgres_dsn]
    done = subprocess.run(program, cwd=before, env={**os.environ, "PYTHONPATH": str(before)}, capture_output=True,
                          text=True, stdin=subprocess.DEVNULL, timeout=LIMIT_S)  # fmt: skip
    assert done.returncode != 0
    assert f"its tables have version {VERSION}, this fusebackend knows up to 3; upgrade it" in done.stderr


def test_snapshots_begin_when_the_last_older_one_has_ended(older: Older, newer: Newer) -> None:
    """What it changes until then is not kept, and in no snapshot otherwise."""
    _, node = older.do("make", "file")
    with pytest.raises(OSError, match="has the volume open with an older fusebackend") as refused:
        newer.take_snapshot("s")
    assert refused.value.errno == errno.EBUSY
    older.do("chmod", node, 0o600)
    older.close()
    newer.take_snapshot("s")
    newer.setattr(node, AttrChanges(mode=0o640))
    assert newer.snapshot("s").getattr(node).mode & 0o7777 == 0o600


def test_newer_ones_tell_each_other_by_rows_beside_an_older_one(older: Older, newer: Newer, postgres_dsn: str) -> None:
    third = Newer(postgres_dsn)
    node = third.mknod(ROOT_NODE, b"by row", 0o100644, 0, ME).node
    for host in (older, newer):
        eventually(lambda host=host: [node, ROOT_NODE, "by row"] in host.told, LIMIT_S)
    time.sleep(feed.LOOK_S)
    assert newer.told.count([node, ROOT_NODE, "by row"]) == older.told.count([node, ROOT_NODE, "by row"]) == 1
    third.close()


def test_a_feed_that_was_away_beside_an_older_host_invalidates_everything(
    older: Older, newer: Newer, postgres_dsn: str
) -> None:
    """The payloads of older hosts are kept nowhere."""
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        cut = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = %s"  # other tests share the server
        )
        connection.execute(cut, [f"fusebackend-feed-{newer.session}"])
    eventually(lambda: newer.told.count([None, None, ""]) == 2, LIMIT_S)
    assert newer.features.change_feed


def test_a_newer_host_that_dies_before_its_wake_up_is_told_of_by_another(
    older: Older, newer: Newer, postgres_dsn: str
) -> None:
    node = newer.mknod(ROOT_NODE, b"f", 0o100644, 0, ME).node
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        row = "INSERT INTO fusebackend.change (volume, session, payload) VALUES (%s, 999999, %s)"
        connection.execute(row, [newer.id, f"+999999 {node}/{ROOT_NODE}/g"])
    eventually(lambda: [node, ROOT_NODE, "g"] in older.told, LIMIT_S)
