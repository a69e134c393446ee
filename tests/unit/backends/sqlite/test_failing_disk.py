"""A disk that fails in the middle of an operation: the operation has changed nothing, in memory and in the file.

`test_branch_volume.py` has the same with random operations.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from counting import acl_of
from failing import Failing, drop_caches
from nodes import ME, node_at, put

from fusebackend.backends.sqlite import backend, flusher
from fusebackend.backends.sqlite.backend import SqliteVolume
from fusebackend.backends.sqlite.check import check
from fusebackend.protocol import RENAME_EXCHANGE, ROOT_NODE, AttrChanges, NewFile, State
from fusebackend.testing.each import each
from fusebackend.testing.snapshots import but_atimes
from fusebackend.volumes.quota import Limits

ACCESS, DEFAULT = b"system.posix_acl_access", b"system.posix_acl_default"
LIMITS = Limits(limit_bytes=1 << 30)
"""With limits an operation has more to read."""


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
    "place": lambda v, n: v.place(
        NewFile(n.one, b"new", State(0o600, 1, 1, 0, 70_000, 1, 1, 1, {b"user.p": b"p"}, b""), [(0, bytes(70_000))])
    ),
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


def state(volume: SqliteVolume) -> object:
    """Return all that can be seen of a volume, but access times."""
    return volume.usage, [taken.name for taken in volume.snapshots()], but_atimes(volume)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Failing:
    monkeypatch.setattr(flusher, "FLUSH_AFTER_S", 3600)
    monkeypatch.setattr(backend, "FULL_RETRY_S", 0)
    return Failing(monkeypatch)


@pytest.fixture
def filled(failing: Failing, tmp_path: Path) -> Iterator[tuple[Path, Nodes]]:
    path = tmp_path / "filled.db"
    with contextlib.closing(SqliteVolume(path)) as volume:
        nodes = fill(volume)
        volume.take_snapshot("taken")
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
