"""A disk that fails in the middle of an operation has changed nothing, in memory and in the file. And the power goes.

`test_volume_model.py` and `test_branch_volume.py` have the same with random operations.
"""

from __future__ import annotations

import errno
import hashlib
import os
import random
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from counting import acl_of
from failing import Failing
from nodes import ME, node_at, put
from power.disk import Disk, records
from power.work import Tree, steps
from profiles import amount

from fusebackend.backends.sqlite import backend, flusher
from fusebackend.backends.sqlite.backend import SqliteVolume
from fusebackend.backends.sqlite.check import check
from fusebackend.protocol import RENAME_EXCHANGE, ROOT_NODE, Attr, AttrChanges, Volume
from fusebackend.testing.each import each
from fusebackend.volumes.quota import Limits

ACCESS, DEFAULT = b"system.posix_acl_access", b"system.posix_acl_default"
LIMITS = Limits(limit_bytes=1 << 30)
"""With limits an operation has more to read."""


FIELDS = set(Attr.__slots__) - {"atime_ns", "version"}


class Nodes(NamedTuple):
    one: int
    two: int
    below: int
    large: int
    sparse: int
    linked: int


def fill(volume: SqliteVolume) -> Nodes:
    """Make files of all kinds, with everything that an operation may have to read."""
    one, two = (volume.mkdir(ROOT_NODE, name, 0o755, ME).node for name in (b"one", b"two"))
    volume.setxattr(one, DEFAULT, acl_of(1, 2))
    below = volume.mkdir(one, b"below", 0o755, ME).node
    volume.mkdir(two, b"empty", 0o755, ME)
    for parent, name, size in ((one, b"large", 1_000), (two, b"target", 1), (two, b"lost", 1)):
        file = put(volume, name, bytes(range(256)) * size, parent)  # no text, or the index would take most of the time
        volume.setxattr(file, b"user.name", b"value")
        volume.setxattr(file, ACCESS, acl_of(1, 2))
    sparse = put(volume, b"sparse", b"begin", two)
    volume.write(sparse, 200_000, b"end")
    linked = put(volume, b"linked", b"x", two)
    volume.link(linked, one, b"linked")
    return Nodes(one, two, below, node_at(volume, "one/large"), sparse, linked)


NEW = AttrChanges(mode=0o600, uid=1, gid=1, size=70_000, atime_ns=1, mtime_ns=1)

OPERATIONS: dict[str, Callable[[SqliteVolume, Nodes], object]] = {
    "create": lambda v, n: v.create(n.one, b"new", 0o644, os.O_RDWR, ME),
    "mkdir": lambda v, n: v.mkdir(n.one, b"new", 0o755, ME),
    "symlink": lambda v, n: v.symlink(n.one, b"new", b"target", ME),
    "link": lambda v, n: v.link(n.large, n.two, b"new"),
    "unlink": lambda v, n: v.unlink(n.one, b"large"),
    "unlink one of two names": lambda v, n: v.unlink(n.one, b"linked"),
    "rmdir": lambda v, n: v.rmdir(n.two, b"empty"),
    "rename": lambda v, n: v.rename(n.one, b"large", n.two, b"new"),
    "rename over a file": lambda v, n: v.rename(n.one, b"large", n.two, b"target"),
    "rename a directory": lambda v, n: v.rename(n.one, b"below", n.two, b"new"),
    "rename over a directory": lambda v, n: v.rename(n.one, b"below", n.two, b"empty"),
    "exchange": lambda v, n: v.rename(n.one, b"below", n.two, b"target", RENAME_EXCHANGE),
    "truncate": lambda v, n: v.setattr(n.large, AttrChanges(size=70_000)),
    "empty": lambda v, n: v.setattr(n.large, AttrChanges(size=0)),
    "truncate and chmod": lambda v, n: v.setattr(n.large, AttrChanges(size=70_000, mode=0o600)),
    "extend": lambda v, n: v.setattr(n.sparse, AttrChanges(size=300_000)),
    "chmod": lambda v, n: v.setattr(n.large, AttrChanges(mode=0o600)),
    "write over two chunks": lambda v, n: v.write(n.large, 65_530, bytes(100)),
    "write over all": lambda v, n: v.write(n.large, 1, bytes(300_000)),
    "write little": lambda v, n: v.write(n.large, 100, b"little"),
    "write into a hole": lambda v, n: v.write(n.sparse, 60_000, bytes(140_000)),
    "write beyond the end": lambda v, n: v.write(n.sparse, 199_000, bytes(100_000)),
    "append": lambda v, n: v.append(n.large, b"more"),
    "setxattr": lambda v, n: v.setxattr(n.large, b"user.name", b"longer"),
    "set an ACL": lambda v, n: v.setxattr(n.large, ACCESS, acl_of(1, 2, 3)),
    "removexattr": lambda v, n: v.removexattr(n.large, b"user.name"),
    "place": lambda v, n: v.place(n.one, b"new", NEW, {b"user.p": b"p"}, [(0, bytes(70_000))]),
    "take a snapshot": lambda v, n: v.take_snapshot("new"),
    "delete a snapshot": lambda v, n: v.delete_snapshot("taken"),
    "sync": lambda v, n: v.sync(),
}


def change(volume: SqliteVolume, nodes: Nodes) -> None:
    """Change something of everything, so that the dirty buffer has it."""
    volume.write(nodes.large, 65_000, b"changed" * 100)
    volume.write(nodes.sparse, 199_999, b"changed")
    volume.setattr(nodes.linked, AttrChanges(size=70_000))
    volume.unlink(nodes.two, b"lost")
    put(volume, b"another", bytes(100_000), nodes.two)
    volume.setxattr(nodes.one, b"user.name", b"value")


def drop_caches(volume: SqliteVolume) -> None:
    """Have all that can be read from the file read again."""
    volume._names.clear()
    volume._chunks.clear()
    for node in volume._inodes.keys() - volume._dirty.inodes.keys() - volume._dirty.xattrs.keys():
        del volume._inodes[node]


def state(volume: SqliteVolume) -> dict[str, Any]:
    """Return all that can be seen of a volume, but access times."""
    found: dict[str, Any] = {"usage": volume.usage, "snapshots": [each.name for each in volume.snapshots()]}
    waiting = [("", ROOT_NODE)]
    while waiting:
        above, node = waiting.pop()
        for name, attr in volume.readdir(node, b"", 1000):
            path = f"{above}/{name.decode()}"
            fields = [getattr(attr, field) for field in FIELDS]
            xattrs = {key: volume.getxattr(attr.node, key) for key in volume.listxattr(attr.node)}
            found[path] = fields, xattrs, None if attr.is_dir else volume.read(attr.node, 0, 1 << 20)
            if attr.is_dir:
                waiting.append((path, attr.node))
    return found


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Failing:
    monkeypatch.setattr(flusher, "FLUSH_AFTER_S", 3600)
    monkeypatch.setattr(backend, "FULL_RETRY_S", 0)
    return Failing(monkeypatch)


@pytest.fixture
def filled(failing: Failing, tmp_path: Path) -> Iterator[tuple[Path, Nodes]]:
    path = tmp_path / "filled.db"
    volume = SqliteVolume(path)
    nodes = fill(volume)
    volume.take_snapshot("taken")
    volume.close()
    yield path, nodes


@pytest.mark.parametrize("is_buffered", [False, True])
def test_an_operation_that_fails_has_changed_nothing(
    failing: Failing, filled: tuple[Path, Nodes], is_buffered: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """At each statement that it sends to the file, on a volume that was just opened, and on one with changes."""
    path, nodes = filled
    for case in each(OPERATIONS):
        with case as operation:
            copy = path.with_name("volume.db")
            shutil.copy(path, copy)
            volume, succeeded, calls = SqliteVolume(copy, LIMITS), False, -1
            try:
                if is_buffered:
                    change(volume, nodes)
                before = state(volume)  # which moves access times
                if not is_buffered:
                    volume.sync()
                while not succeeded:
                    calls += 1
                    drop_caches(volume)
                    with failing.after(calls):
                        try:
                            operation(volume, nodes)
                            succeeded = True
                        except OSError as error:
                            assert failing.hit and error.errno == errno.EIO, error
                    assert succeeded or state(volume) == before, f"after {calls} statements"
                assert calls > 0 or is_buffered or operation is OPERATIONS["sync"]
            finally:
                volume.close()
            assert check(copy) == []
    caplog.clear()


# -- the power goes ----------------------------------------------------------------------------------------------------


HOME = Path(__file__).parents[3] / "support"
STEPS = 150
POINTS = amount("FUSEBACKEND_CRASH_POINTS", day=40, night=400)
POINTS_PER_RUN = 100


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        reason = "no C compiler here (Debian: gcc)"
        pytest.skip(reason)
    library = tmp_path_factory.mktemp("recorder") / "recorder.so"
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([compiler, *flags, "-o", library, HOME / "power" / "recorder.c", "-ldl", "-lpthread"], check=True)
    return library


@pytest.mark.parametrize("run", range(-(-POINTS // POINTS_PER_RUN)))
def test_the_power_goes(recorder: Path, tmp_path: Path, run: int) -> None:
    seed = random.Random(run).randrange(1 << 32) if run else 20
    print(f"seed {seed}")
    log = _record(recorder, tmp_path, seed)
    everything = list(records(log))
    assert {record.kind for record in everything} == set("CUWTBESP"), "the recorder has missed some kind of call"
    states = [_digest({}, {}), *(_digest(step.tree, step.snapshots) for step in steps(seed, STEPS))]
    chance = random.Random(seed)
    points = sorted(chance.sample(range(len(everything)), min(POINTS - run * POINTS_PER_RUN, POINTS_PER_RUN)))
    disk, promised, begun = Disk(), 0, 0
    path = tmp_path / "after" / "volume.db"
    path.parent.mkdir()
    for number, record in enumerate(everything):
        if record.kind == "P":
            promised = record.offset
        elif record.kind == "S":
            begun = record.offset
        else:
            disk.take(record)
        while points and points[0] == number:
            points.pop(0)
            disk.lose_power(path, chance)
            where = f"seed {seed}, record {number} of {len(everything)}, steps {promised} to {begun}"
            _judge(path, states[promised : begun + 1], promised == 0, where)
    assert not points


def _record(recorder: Path, tmp_path: Path, seed: int) -> Path:
    """Do the work; gives the records of what was done to the disk for it."""
    home = tmp_path / "before"
    home.mkdir()
    log = tmp_path / "log"
    file = home / "volume.db"
    environment = {
        **os.environ,
        "PYTHONPATH": str(HOME.parents[1]),
        "LD_PRELOAD": str(recorder),
        "RECORDER_FILE": str(file),
        "RECORDER_LOG": str(log),
    }
    command = [sys.executable, str(HOME / "power" / "work.py"), str(file), str(log), str(seed), str(STEPS)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert check(file) == []
    return log


def _judge(path: Path, allowed: list[bytes], new: bool, where: str) -> None:
    """Opening comes first where nothing was promised yet: the power may have gone while the volume was being made."""
    if not new:
        assert check(path) == [], where
    volume = SqliteVolume(path)
    try:
        kept = {taken.name: _tree(volume.snapshot(taken.name)) for taken in volume.snapshots()}
        found = _digest(_tree(volume), kept)
    finally:
        volume.close()
    assert found in allowed, f"{where}: what is there is none of what was there"
    assert check(path) == [], where


def _tree(volume: Volume) -> Tree:
    tree: Tree = {}
    for name, attr in list(volume.readdir(ROOT_NODE, b"", 1 << 20)):
        if stat.S_ISDIR(attr.mode):
            tree[name.decode() + "/"] = b""
            continue
        volume.open(attr.node, os.O_RDONLY)
        tree[name.decode()] = volume.read(attr.node, 0, attr.size)
        volume.release(attr.node, os.O_RDONLY)
    return tree


def _digest(tree: Tree, snapshots: dict[str, Tree]) -> bytes:
    digest = hashlib.sha256()
    for of, files in [("", tree), *sorted(snapshots.items())]:
        digest.update(f"{of}: {len(files)}\n".encode())
        for name in sorted(files):
            digest.update(f"{name} {len(files[name])}\n".encode())
            digest.update(files[name])
    return digest.digest()
