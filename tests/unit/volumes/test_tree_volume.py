"""The rules of a native volume where they are narrow."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from clocks import MULTIGRAIN
from nodes import names, put
from raising import raising

from fusebackend.backends.memory import InMemoryVolume
from fusebackend.backends.postgres import volume as postgres_volume
from fusebackend.backends.postgres.volume import PostgresVolume
from fusebackend.backends.sqlite import stored_tree as storedtree
from fusebackend.backends.sqlite.backend import SqliteVolume
from fusebackend.base import stamps
from fusebackend.protocol import (
    RENAME_EXCHANGE,
    RENAME_NOREPLACE,
    ROOT_NODE,
    AttrChanges,
    Caller,
    Change,
)
from fusebackend.testing.each import each
from fusebackend.testing.posix.case import all_refused, refused
from fusebackend.volumes import posix as tree
from fusebackend.volumes.posix import TreeVolume
from fusebackend.volumes.storage import CHUNK_BYTES

ME = Caller(1000, 1000)


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.services)])
def volume(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TreeVolume]:
    made: TreeVolume
    if request.param == "memory":
        made = InMemoryVolume()
    elif request.param == "sqlite":
        made = SqliteVolume(tmp_path / "volume.db")
    else:
        made = PostgresVolume(request.getfixturevalue("shared_dsn"), request.node.name)
    yield made
    made.close()


# -- names ---------------------------------------------------------------------------------------------------------


def test_nothing_is_put_into_a_directory_that_is_gone_but_held(volume: TreeVolume) -> None:
    gone = volume.mkdir(ROOT_NODE, b"gone", 0o755, ME).node
    file = put(volume, b"file")
    volume.hold(gone)
    volume.rmdir(ROOT_NODE, b"gone")
    all_refused(
        (errno.ENOENT, volume.create, gone, b"x", 0o644, os.O_RDWR, ME),
        (errno.ENOENT, volume.mkdir, gone, b"x", 0o755, ME),
        (errno.ENOENT, volume.link, file, gone, b"x"),
    )
    for flags in (0, RENAME_NOREPLACE, RENAME_EXCHANGE):
        refused(errno.ENOENT, volume.rename, ROOT_NODE, b"file", gone, b"x", flags)
    assert volume.readdir(gone, b"", 10) == []
    assert volume.getattr(gone).nlink == 0
    volume.forget([gone])
    refused(errno.ESTALE, volume.getattr, gone)


def test_a_deep_tree_moves(volume: TreeVolume, monkeypatch: pytest.MonkeyPatch) -> None:
    """The walk up from the new parent passes more directories than the cache holds."""
    monkeypatch.setattr(storedtree, "CACHE_INODES", 8)
    node, moving = ROOT_NODE, volume.mkdir(ROOT_NODE, b"moving", 0o755, ME).node
    for _ in range(100):
        node = volume.mkdir(node, b"d", 0o755, ME).node
    volume.sync()
    volume.rename(ROOT_NODE, b"moving", node, b"here")
    volume.sync()
    assert (volume.getattr(node).nlink, volume.getattr(ROOT_NODE).nlink) == (3, 3)
    assert volume.lookup(node, b"here").node == moving
    refused(errno.EINVAL, volume.rename, ROOT_NODE, b"d", moving, b"x")


# -- life ----------------------------------------------------------------------------------------------------------


def test_forgetting_what_was_never_held_or_is_gone_is_harmless(volume: TreeVolume) -> None:
    node = put(volume, b"f")
    volume.unlink(ROOT_NODE, b"f")
    volume.forget([node, 12345, ROOT_NODE])
    assert names(volume) == []


# -- attributes ----------------------------------------------------------------------------------------------------


def test_a_rename_changes_the_change_time_and_a_second_read_no_access_time(
    volume: TreeVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which time each other operation changes is told by the POSIX suite."""
    moments = itertools.count(stamps.now_ns() + 10, 10)
    monkeypatch.setattr(tree, "now_ns", lambda finer=True: next(moments))
    file = put(volume, b"f", b"x")
    volume.open(file, os.O_RDONLY)
    volume.read(file, 0, 1)
    read, changed = volume.getattr(file).atime_ns, volume.getattr(file).ctime_ns
    assert read > changed
    volume.read(file, 0, 1)
    assert volume.getattr(file).atime_ns == read, "relatime: once after a change is enough"
    volume.rename(ROOT_NODE, b"f", ROOT_NODE, b"h")
    assert volume.getattr(file).ctime_ns > changed
    volume.release(file, os.O_RDONLY)


@pytest.mark.skipif(not MULTIGRAIN, reason="this kernel has no multigrain timestamps (Linux 6.13)")
def test_a_change_after_a_look_has_another_time(volume: TreeVolume) -> None:
    """`make` looks at a file, which is changed within the same tick of the clock: with the same time it is missed."""
    file, other = put(volume, b"f"), put(volume, b"g")
    for _ in range(50):
        before = volume.lookup(ROOT_NODE, b"f")
        seen = before.mtime_ns, before.ctime_ns
        volume.write(file, 0, b"x")
        attr = volume.getattr(file)
        assert attr.mtime_ns == attr.ctime_ns > max(seen)
        seen = attr.mtime_ns, attr.ctime_ns
        volume.write(other, 0, b"x")  # what is made of it, and so of no earlier time
        assert volume.getattr(other).mtime_ns >= max(seen)


def test_the_first_read_of_a_day_sets_atime(volume: TreeVolume, monkeypatch: pytest.MonkeyPatch) -> None:
    file = put(volume, b"f")
    volume.open(file, os.O_RDONLY)
    day_ns = 86_400 * 10**9

    def at(moment_ns: int) -> None:
        for module, clock in ((tree, "now_ns"), (tree, "coarse_ns"), (postgres_volume, "now_ns")):
            monkeypatch.setattr(module, clock, lambda: moment_ns)

    start = stamps.now_ns()
    volume.setattr(file, AttrChanges(atime_ns=start + 10**9, mtime_ns=0))
    at(start + day_ns)
    volume.read(file, 0, 1)
    assert volume.getattr(file).atime_ns == start + 10**9
    at(start + day_ns + 2 * 10**9)
    volume.read(file, 0, 1)
    assert volume.getattr(file).atime_ns == start + day_ns + 2 * 10**9
    volume.release(file, os.O_RDONLY)


def test_operations_on_the_wrong_kind(volume: TreeVolume) -> None:
    file, directory = put(volume, b"f"), volume.mkdir(ROOT_NODE, b"d", 0o755, ME).node
    for case in each(
        [
            (errno.ENOTDIR, "lookup", file, b"x"),
            (errno.ENOTDIR, "readdir", file, b"", 10),
            (errno.ENOTDIR, "mkdir", file, b"x", 0o755, ME),
            (errno.ENOTDIR, "unlink", file, b"x"),
            (errno.ENOTDIR, "rename", ROOT_NODE, b"f", file, b"x"),
            (errno.ENOTDIR, "rmdir", ROOT_NODE, b"f"),
            (errno.EISDIR, "unlink", ROOT_NODE, b"d"),
            (errno.EPERM, "link", directory, ROOT_NODE, b"x"),
            (errno.EINVAL, "readlink", file),
            (errno.EISDIR, "read", directory, 0, 1),
            (errno.EISDIR, "setattr", directory, AttrChanges(size=1)),
            (errno.ESTALE, "getattr", 999),
            (errno.ENOENT, "lookup", ROOT_NODE, b"x"),
            (errno.EINVAL, "rename", ROOT_NODE, b"d", ROOT_NODE, b"other", 4),
        ]
    ):
        with case as (number, verb, *arguments):
            refused(number, getattr(volume, verb), *arguments)


# -- data ----------------------------------------------------------------------------------------------------------


def test_a_file_as_long_as_an_offset_can_say(volume: TreeVolume) -> None:
    file = put(volume, b"f")
    volume.open(file, os.O_RDWR)
    volume.setattr(file, AttrChanges(size=1 << 50))
    volume.write(file, (1 << 50) - 3, b"end")
    assert volume.read(file, (1 << 50) - 5, 100) == b"\0\0end"
    assert volume.getattr(file).blocks == CHUNK_BYTES // 512
    volume.write(file, (1 << 63) - 2, b"x")
    refused(errno.EFBIG, volume.write, file, (1 << 63) - 1, b"x")
    refused(errno.EFBIG, volume.setattr, file, AttrChanges(size=1 << 63))
    volume.sync()
    volume.setattr(file, AttrChanges(size=0))
    assert (volume.getattr(file).blocks, volume.read(file, 0, 10)) == (0, b"")
    volume.release(file, os.O_RDWR)


def test_every_subscriber_hears_of_every_change_even_after_one_failed(
    volume: TreeVolume, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[Change] = []

    end = volume.subscribe(raising(RuntimeError("a listener's own defect")))
    volume.subscribe(heard.append)
    volume.publish(Change(node=2), Change(node=3))
    end()
    end()
    volume.publish(Change())
    assert heard == [Change(node=2), Change(node=3), Change()]
    assert caplog.text.count("a subscriber failed") == 2


def test_find_is_lookup_but_for_a_name_that_is_not_there(volume: TreeVolume) -> None:
    file = put(volume, b"file")
    gone = volume.mkdir(ROOT_NODE, b"gone", 0o755, ME).node
    volume.rmdir(ROOT_NODE, b"gone")
    found = volume.find(ROOT_NODE, b"file")
    assert found is not None
    assert found.node == file
    assert volume.find(ROOT_NODE, b"other") is None
    for parent in (file, gone):
        with pytest.raises(OSError) as expected:
            volume.lookup(parent, b"x")
        refused(expected.value.errno or 0, volume.find, parent, b"x")
