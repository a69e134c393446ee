"""Snapshots of a mount: their names, and that they are of all routes or of none."""

from __future__ import annotations

import errno
import logging
import threading
from functools import partial
from typing import Any

import pytest
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st
from together import together

from fusebackend.backends import memory
from fusebackend.backends.directory.volume import DirectoryVolume
from fusebackend.backends.memory import InMemoryVolume
from fusebackend.base.paths import ROOT, AgentPath, to_name
from fusebackend.protocol import ROOT_NODE, Caller, Snapshot
from fusebackend.trees import snapshots as module
from fusebackend.trees.snapshots import Snapshots, check_name

ME = Caller(0, 0)
NOTES, MEMORIES = AgentPath("/notes"), AgentPath("/memories")


def names(snapshots: Snapshots) -> list[str]:
    return [each.name for each in snapshots.all()]


class Failing(InMemoryVolume):
    """Takes no snapshot, or deletes none, while `error` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.error: BaseException | None = None

    def take_snapshot(self, name: str) -> Snapshot:
        if self.error is not None:
            raise self.error
        return super().take_snapshot(name)

    def delete_snapshot(self, name: str) -> None:
        if self.error is not None:
            raise self.error
        super().delete_snapshot(name)


# -- names -----------------------------------------------------------------------------------------------------------


@for_each(
    "name",
    [
        *(
            "a",
            "before upgrade",
            ".hidden",
            "a.b",
            "x" * 255,
            "é",
            "\udcff",
            "c",
            "c42x",
            "cx42",
            "main2",
            "10",
            "10min",
        ),
        *("v1.2:3", "20261123T061530Z", "20261123T061530Z-2", "line\nbreak", "\x1b[31m", "a-", "2026", "yesterday2"),
    ],
)
def test_good_names(name: str) -> None:
    snapshots = Snapshots({ROOT: InMemoryVolume()})
    assert snapshots.create(name).name == name
    assert names(snapshots) == [name]


@for_each(
    ("name", "why"),
    [
        ("", "is no name of a directory"),
        (".", "is no name of a directory"),
        ("..", "is no name of a directory"),
        ("a/b", "holds a slash"),
        ("a\0b", "holds a NUL"),
        ("x" * 256, "has 256 bytes, and at most 255 fit"),
        ("é" * 128, "has 256 bytes, and at most 255 fit"),
        ("\ud800", "is no text"),
        ("-x", "begins with '-', as an option does"),
        ("a..b", "holds '..', as a range does"),
        ("main", "means the present state"),
        ("now", "means the present state"),
        ("@x", "begins with '@', as those that the mount takes by itself do"),
        ("c42", "means a call"),
        *(
            (time, "means a time")
            for time in (
                *("10m", "2h", "3d", "30s", "1w", "14:05", "9:30", "14:05:10", "yesterday", "Yesterday", "14:05:59"),
                *("2026-11-23", "2026-11-23T06:15", "2026-11-23 06:15:30", "2026-11-23T06:15Z", "Today", "1 w"),
            )
        ),
    ],
)
def test_bad_names_are_refused_in_a_line(name: str, why: str) -> None:
    volume = InMemoryVolume()
    with pytest.raises(ValueError) as refused:
        Snapshots({ROOT: volume}).create(name)
    assert str(refused.value) == f"snapshot name {name!r} {why}; give another one, such as 'before-upgrade'"
    assert list(volume.snapshots()) == []


@given(st.text(max_size=300))
def test_any_name_is_refused_or_can_be_a_directory(name: str) -> None:
    try:
        check_name(name)
    except ValueError as error:
        assert len(str(error).splitlines()) == 1
        return
    directory = to_name(name)
    assert 0 < len(directory) < 256 and not set(b"/\0") & set(directory) and directory not in (b".", b"..")


def test_the_given_name_is_the_time_and_never_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.time, "time", lambda: 1_795_414_530.9)
    volume = InMemoryVolume()
    snapshots = Snapshots({ROOT: volume})
    taken = [snapshots.create().name for _ in range(3)]
    assert taken == ["20261123T061530Z", "20261123T061530Z-2", "20261123T061530Z-3"]
    assert names(snapshots) == taken
    for name in taken:
        check_name(name)


# -- all routes or none ----------------------------------------------------------------------------------------------


def test_a_snapshot_is_of_every_route_that_can(tmp_path: Any) -> None:
    volumes = {ROOT: InMemoryVolume(), NOTES: InMemoryVolume(), MEMORIES: DirectoryVolume(tmp_path)}
    told: list[str] = []
    snapshots = Snapshots(volumes)
    snapshots.on_change = told.append
    taken = snapshots.create("one")
    assert (taken.name, taken.routes) == ("one", ["/", "/notes/"])
    assert [volume.snapshots()[0].name for volume in (volumes[ROOT], volumes[NOTES])] == ["one", "one"]
    assert taken.time_ns == volumes[ROOT].snapshots()[0].time_ns
    snapshots.delete(["one"])
    assert told == ["one", "one"] and names(snapshots) == []


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("a defect")])
def test_a_failure_takes_all_back(error: Exception) -> None:
    good, bad = InMemoryVolume(), Failing()
    told: list[str] = []
    snapshots = Snapshots({ROOT: good, NOTES: bad})
    snapshots.on_change = told.append
    bad.error = error
    with pytest.raises(type(error)) as failure:
        snapshots.create("one")
    if isinstance(error, OSError):
        assert failure.value.errno == errno.ENOSPC  # type: ignore[attr-defined]
        assert failure.value.strerror == "route '/notes/' took no snapshot: No space left on device"  # type: ignore[attr-defined]
    assert not good.snapshots() and not bad.snapshots() and told == []
    bad.error = None
    assert snapshots.create("one").routes == ["/", "/notes/"]


def test_one_that_is_not_durable_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = InMemoryVolume(), InMemoryVolume()
    snapshots = Snapshots({ROOT: good, NOTES: bad})
    unlocked = []

    def look() -> None:
        if good.lock.acquire(timeout=10):
            unlocked.append(True)
            good.lock.release()

    def fail() -> None:
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(bad, "sync", fail)
    with pytest.raises(OSError, match="the snapshot can't be made durable: Input/output error"):
        snapshots.create("one")
    assert unlocked == [True], "others go on while it waits for the disk"
    assert not good.snapshots() and not bad.snapshots()


def test_what_can_not_be_taken_back_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    first, second = Failing(), Failing()
    snapshots = Snapshots({ROOT: first, NOTES: second})
    second.error = OSError(errno.EIO, "Input/output error")
    first.delete_snapshot = second.take_snapshot  # type: ignore[method-assign]
    with caplog.at_level(logging.ERROR), pytest.raises(OSError, match="took no snapshot"):
        snapshots.create("one")
    assert "a part of snapshot 'one'" in caplog.text
    assert [each.routes for each in snapshots.all()] == [["/"]], "it is listed, and can be deleted"


def test_a_name_that_one_route_has_is_taken() -> None:
    default, other = InMemoryVolume(), InMemoryVolume()
    other.take_snapshot("old")
    snapshots = Snapshots({ROOT: default, NOTES: other})
    assert [each.routes for each in snapshots.all()] == [["/notes/"]]
    with pytest.raises(FileExistsError) as refused:
        snapshots.create("old")
    assert refused.value.strerror == "there is a snapshot 'old' already; choose another name, or delete that one"
    assert not default.snapshots()
    snapshots.delete(["old"])
    assert not other.snapshots()


def test_deleting_is_of_all_names_or_of_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "now_ns", lambda exact=False: 10**18)  # as where the clock is set back
    snapshots = Snapshots({ROOT: InMemoryVolume()})
    for name in ("one", "two", "three"):
        snapshots.create(name)
    with pytest.raises(FileNotFoundError) as refused:
        snapshots.delete(["one", "four"])
    assert refused.value.strerror == (
        "there is no snapshot 'four', and nothing was deleted; there are: one, two, three"
    )
    assert names(snapshots) == ["one", "two", "three"]
    snapshots.delete(["one", "three", "one"])
    assert names(snapshots) == ["two"]


def test_a_route_that_does_not_delete_says_so() -> None:
    good, bad = InMemoryVolume(), Failing()
    told: list[str] = []
    snapshots = Snapshots({ROOT: good, NOTES: bad})
    snapshots.create("one")
    snapshots.on_change = told.append
    bad.error = OSError(errno.EIO, "Input/output error")
    with pytest.raises(OSError, match="route '/notes/' still has 'one': Input/output error"):
        snapshots.delete(["one"])
    assert told == ["one"], "listeners look what is left"
    assert [each.routes for each in snapshots.all()] == [["/notes/"]]
    bad.error = None
    snapshots.delete(["one"])
    assert not bad.snapshots()


def test_routes_are_taken_at_one_moment() -> None:
    """A writer changes the first route before the second: no snapshot has the second change without the first."""
    volumes = [InMemoryVolume(), InMemoryVolume()]
    nodes = [volume.create(ROOT_NODE, b"f", 0o600, 0, ME).node for volume in volumes]
    snapshots = Snapshots({ROOT: volumes[0], NOTES: volumes[1]})
    ended = threading.Event()

    def write() -> None:
        number = 0
        while not ended.is_set():
            number += 1
            for volume, node in zip(volumes, nodes, strict=True):
                volume.write(node, 0, b"%08d" % number)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(100):
            snapshots.create(f"s{number}")
    finally:
        ended.set()
        writer.join()
    for number in range(100):
        first, second = (
            int(volume.snapshot(f"s{number}").read(node, 0, 8) or b"0")
            for volume, node in zip(volumes, nodes, strict=True)
        )
        assert first - second in (0, 1), f"snapshot {number} has {first} and {second}"


def test_any_number_of_threads() -> None:
    snapshots = Snapshots({ROOT: InMemoryVolume(), NOTES: InMemoryVolume()})
    taken: list[str] = []
    refused: list[int | None] = []

    def work(thread: int) -> None:
        for number in range(20):
            taken.append(snapshots.create().name)
            try:
                snapshots.create(f"shared{number}")
            except FileExistsError as error:
                refused.append(error.errno)
            snapshots.create(f"own-{thread}-{number}")
            snapshots.delete([f"own-{thread}-{number}"])

    together(*(partial(work, number) for number in range(4)))
    assert len(set(taken)) == 80 and len(refused) == 60
    assert sorted(names(snapshots)) == sorted([*taken, *(f"shared{number}" for number in range(20))])
