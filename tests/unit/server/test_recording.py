"""`Recording`: the history of a mount, from its begin to its end, and what is deleted."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from functools import partial

import pytest
from nodes import ME

from fusebackend.backends import InMemoryBackend
from fusebackend.base.paths import ROOT
from fusebackend.config import MountPlan
from fusebackend.history.history_file import HistoryFile, HistoryLocked
from fusebackend.history.records import Image, Kept, State
from fusebackend.protocol import Actor, Caller
from fusebackend.server import assemble
from fusebackend.server.recording import KEPT_S, Recording
from fusebackend.trees.automatic import AutomaticSnapshots, name_at
from fusebackend.trees.snapshots import Snapshots
from fusebackend.vfs.mounted_tree import FileSystem

DAY_NS = KEPT_S * 10**9

BEFORE = State(0o100644, 1, 2, 0, 5, 1, 10, -20, {}, b"")


@pytest.fixture
def backend():
    with InMemoryBackend() as backend:
        yield backend


@pytest.fixture
def filesystem(backend):
    return FileSystem({ROOT: backend.volume})


@pytest.fixture
def automatic(backend):
    return AutomaticSnapshots(Snapshots({ROOT: backend.volume}))


@pytest.fixture
def recording(filesystem, automatic, tmp_path):
    recording = Recording(str(tmp_path / "history"), "/mnt/nowhere", filesystem, automatic)
    yield recording
    recording.close()


def test_without_a_history_a_route_is_its_volume(filesystem, backend):
    (route,) = filesystem.tree.routes
    assert route.door is backend.volume
    assert not route.is_recorded
    assert route.undo == "none"


def test_with_one_the_kernels_changes_are_recorded_in_every_tree(recording, filesystem, backend):
    (route,) = filesystem.tree.routes
    assert route.undo == "instant"
    filesystem.add_tree("sandbox")
    (twin,) = route.twins
    watch = filesystem.feed.watch("/")
    for number, each in enumerate((route, twin)):
        assert [listener.name for listener in each.door.listeners] == ["history", "watchers"]
        each.door.mkdir(1, b"d%d" % number, 0o755, Caller(0, 0))
    watch.close()
    assert [listener.name for listener in route.door.listeners] == ["history"]
    recording.calls.close()
    (call,) = recording.history.calls()
    assert [record.path for record in recording.history.records(call.number)] == [b"/d0", b"/d1"]


def test_a_volumes_commit_comes_after_the_records(recording, backend):
    recording.history.add(recording.calls.number(recording.calls.current()), ROOT, "create", b"/file")
    backend.volume.before_commit()
    with contextlib.closing(sqlite3.connect(recording.history.path)) as other:
        assert other.execute("SELECT count(*) FROM events WHERE event = 'change'").fetchone() == (1,)
    recording.close()
    assert backend.volume.before_commit is None
    assert not recording.is_open


@pytest.mark.parametrize("by", ["verb", "kernel"])
def test_a_change_that_outlives_the_mount_is_a_gap(recording, filesystem, backend, monkeypatch, by):
    """It hangs in a thread, and may be made when nobody records it any more."""
    monkeypatch.setattr("fusebackend.server.recording.RUNNING_S", 0.05)
    begun, ended = threading.Event(), threading.Event()
    real = backend.volume.mkdir

    def hanging(*arguments):
        begun.set()
        assert ended.wait(60)
        return real(*arguments)

    monkeypatch.setattr(backend.volume, "mkdir", hanging)
    if by == "verb":
        work = partial(
            recording.steps.verb, "make_directory", "put", ["/d"], partial(hanging, 1, b"d", 0o755, ME), bool
        )
    else:
        (route,) = filesystem.tree.routes
        work = partial(route.door.mkdir, 1, b"d", 0o755, ME)
    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert begun.wait(60)
        recording.close()
        with contextlib.closing(HistoryFile(recording.history.path)) as history:
            assert history.gaps([1]) == {1: "it still ran when the mount ended"}
    finally:
        ended.set()
        thread.join()


def test_it_ends_also_while_the_last_quiet_call_ends(recording, monkeypatch):
    calls, real, began = recording.calls, recording.calls.end_quiet, threading.Event()

    def end_quiet():
        calls.opened.clear()
        began.set()
        assert calls.opened.wait(60), "by `close`"
        return real()

    monkeypatch.setattr(calls, "end_quiet", end_quiet)
    calls.opened.set()
    assert began.wait(60)
    ending = threading.Thread(target=recording.close, daemon=True)
    ending.start()
    ending.join(10)
    assert not ending.is_alive()


def changed(recording, image=None):
    """Record a change by a call that has ended."""
    number = recording.history.open_call("verb", "write", Actor())
    recording.history.add(number, ROOT, "content", b"/file", image and Kept(0, BEFORE, image))
    recording.history.end_call(number)
    return number


def test_calls_and_copies_go_after_a_day(recording, backend, monkeypatch):
    monkeypatch.setattr("fusebackend.history.images.RECORD_BYTES", 0)
    backend.write("/file", "old")
    attr = backend.volume.lookup(1, b"file")
    image = recording.images.keep(backend.volume, attr)
    assert image.place == "file"
    call = changed(recording, image)
    recording.clean(time.time_ns() + DAY_NS - 10**10)
    assert os.path.exists(recording.images.path(image))
    recording.clean(time.time_ns() + DAY_NS + 10**10)
    assert recording.history.call(call) is None
    assert not os.path.exists(recording.images.path(image))


def test_the_oldest_calls_go_when_the_copies_are_too_many(recording, backend, monkeypatch):
    monkeypatch.setattr("fusebackend.history.images.RECORD_BYTES", 0)
    backend.write("/file", "old")
    images = [recording.images.keep(backend.volume, backend.volume.lookup(1, b"file")) for _ in range(3)]
    calls = [changed(recording, image) for image in images]
    monkeypatch.setattr("fusebackend.server.recording.GONE_AT_ONCE", 2)
    monkeypatch.setattr("fusebackend.history.images.MAX_BYTES", 1)
    recording.clean()
    assert [recording.history.call(call) is not None for call in calls] == [False, False, True]
    assert [os.path.exists(recording.images.path(image)) for image in images] == [False, False, True]


def test_a_snapshot_that_a_record_needs_is_kept(recording, automatic, backend):
    now = time.time_ns()
    names = [name_at(now - 30 * 3600 * 10**9 + number * 10**9) for number in range(3)]
    for name in names:
        backend.volume.take_snapshot(name)
    changed(recording, Image("snapshot", names[1], 2))
    automatic.clean()
    assert [each.name for each in backend.volume.snapshots()] == names[:2]  # the first of a day, and the needed one
    recording.close()


def test_one_server_at_a_time(recording, filesystem, tmp_path):
    with pytest.raises(HistoryLocked, match="another server keeps its history in"):
        Recording(str(tmp_path / "history"), "/mnt/nowhere", filesystem, None)


def test_not_inside_the_mount(filesystem, tmp_path):
    told: list[str] = []
    plan = MountPlan(mountpoint=str(tmp_path / "mnt"), history=str(tmp_path / "mnt/history"))
    assert assemble._recording(plan, filesystem, None, None, told, {}) is None
    assert "nothing can be undone: it would be inside the mount" in told[0]


def test_copies_that_no_record_has_go_at_the_start(filesystem, tmp_path):
    recording = Recording(str(tmp_path / "history"), "/mnt/nowhere", filesystem, None)
    with open(os.path.join(recording.images.directory, "7"), "wb") as file:
        file.write(b"of a call that was killed")
    recording.close()
    again = Recording(str(tmp_path / "history"), "/mnt/nowhere", filesystem, None)
    assert os.listdir(again.images.directory) == []
    assert filesystem.tree.routes[0].undo == "copies"  # without automatic snapshots
    again.close()


def test_what_an_interrupted_call_has_left_is_stamped(filesystem, backend, tmp_path, monkeypatch):
    monkeypatch.setattr("fusebackend.server.recording._identity", lambda route, urls: "the same")
    recording = Recording(str(tmp_path / "history"), "/mnt/nowhere", filesystem, None)
    backend.write("/file", "left")
    number = recording.history.open_call("session", "killed", Actor())
    recording.history.add(number, ROOT, "create", b"/file")
    recording.history._open.clear()  # as a kill leaves it
    recording.close()
    again = Recording(str(tmp_path / "history"), "/mnt/nowhere", filesystem, None)
    (record,) = again.history.records(number)
    assert record.after is not None and record.after.size == 4
    assert again.history.call(number).ended_ns is not None
    again.close()
