"""`VolumeRecords`: which call has changed a file last, and how, against two dictionaries for each call."""

from __future__ import annotations

import random
import stat
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from clocks import MULTIGRAIN
from recorded import recorded_of
from together import together

from fusebackend.backends import InMemoryBackend
from fusebackend.backends.sqlite.backend import SqliteVolume
from fusebackend.base.paths import ROOT
from fusebackend.history.calls import OpenCall
from fusebackend.history.images import Images
from fusebackend.history.recorder import ATTRIBUTES, CONTENT, MADE, HistoryListener, VolumeRecords
from fusebackend.protocol import ROOT_NODE, Actor, Caller
from fusebackend.vfs.door import Door


@pytest.fixture
def records(tmp_path: Path) -> VolumeRecords:
    return VolumeRecords(InMemoryBackend().volume, Images(str(tmp_path)))


def opened() -> OpenCall:
    return OpenCall("verb", "a call", Actor())


def test_calls_in_turn_as_in_a_model(records: VolumeRecords) -> None:
    rng = random.Random(1)
    calls = [opened() for _ in range(4)]
    last: dict[int, OpenCall] = {}
    how: dict[OpenCall, dict[int, int]] = {call: {} for call in calls}
    for _ in range(5000):
        call, node = rng.choice(calls), rng.randrange(12)
        match rng.randrange(12):
            case 0:
                records.disown(call, node)
                if last.get(node) is call:
                    del last[node]
                how[call].pop(node, None)
            case 1:
                records.end(call)
                last = {each: owner for each, owner in last.items() if owner is not call}
                how[call] = {}
            case _:
                change = rng.choice([0, ATTRIBUTES, CONTENT, MADE])
                records.own(call, node, change)
                last[node] = call
                how[call][node] = how[call].get(node, 0) | change
        for each in range(12):
            assert [records.how(one, each) for one in calls] == [how[one].get(each, 0) for one in calls]
            assert records.last.get(each) is last.get(each)


def test_nothing_is_kept_of_calls_that_have_ended(records: VolumeRecords) -> None:
    large = opened()
    for node in range(100):
        records.own(large, node, MADE)
    for node in range(1000, 3000):
        call = opened()
        records.own(call, node, CONTENT)
        records.end(call)
        assert len(records.last) == 100
    records.end(large)
    assert records.last == {} and large.files == {}


def test_calls_that_end_at_once(records: VolumeRecords) -> None:
    """As those of a `postgres:` volume, which locks no calls out. Each raised a KeyError for what another one took."""

    def work(first: int) -> None:
        for turn in range(300):
            call = opened()
            for node in range(first, first + 60):
                records.own(call, node + turn % 7, CONTENT)
            records.end(call)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        together(*(partial(work, 40 * number) for number in range(4)))
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.skipif(not MULTIGRAIN, reason="this kernel has no multigrain timestamps (Linux 6.13)")
def test_what_is_kept_is_told_from_what_is_made_in_the_same_tick(tmp_path: Path) -> None:
    """An undo compares the times of what it brings back with those of what has the name."""
    with closing(SqliteVolume(tmp_path / "volume.db")) as volume:
        records, me, equal = VolumeRecords(volume, Images(str(tmp_path))), Caller(0, 0), 0
        for number in range(200):
            old, new = b"old%d" % number, b"new%d" % number
            volume.write(volume.mknod(ROOT_NODE, old, stat.S_IFREG | 0o644, 0, me).node, 0, b"x")
            before = volume.find(ROOT_NODE, old)
            assert before is not None
            kept = records.keep(opened(), before)
            made = volume.mknod(ROOT_NODE, new, stat.S_IFREG | 0o644, 0, me)
            equal += made.mtime_ns <= kept.before.mtime_ns
        assert equal < 20  # where a thread is stopped between two ticks, it gets no finer time


@pytest.mark.parametrize(
    ("step", "record"),
    [
        (("write", "/d/file", b"two"), ("content", b"/d/file", b"")),
        (("change", "/d/file", {"mode": 0o600}), ("attributes", b"/d/file", b"")),
        (("create", "/d/new", b""), ("create", b"/d/new", b"")),
        (("link", "/d/file", "/d/new"), ("create", b"/d/new", b"")),
        (("remove", "/d/file"), ("remove", b"/d/file", b"")),
        (("rename", "/d/file", "/d/new"), ("rename", b"/d/file", b"/d/new")),
        (("rename", "/d/file", "/e/new"), ("rename", b"/d/file", b"/e/new")),
    ],
)
def test_what_the_kernel_forgets_while_a_change_waits_for_its_route(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: tuple[Any, ...], record: tuple[str, bytes, bytes]
) -> None:
    """A crash of PostgreSQL drops what the kernel knows, and a program that waits for its return may be killed."""
    with recorded_of("memory", tmp_path) as recorded:
        files, recorder = recorded.files, recorded.recorder
        files.make(("mkdir", "/d"), ("mkdir", "/e"), ("create", "/d/file", b"one"))
        recorder.logged = [ROOT]
        listener = HistoryListener(recorder, files.door.route)
        files.door = Door(files.door.route, files.door.names, [listener])

        def forgotten(look: Callable[..., Any], *words: Any) -> Any:
            recorded.names[ROOT].forget()
            return look(*words)

        for name in ("_pending", "_first"):
            monkeypatch.setattr(listener, name, partial(forgotten, getattr(listener, name)))
        with recorded.call("a writer"):
            files.make(step)
        assert next((each.kind, each.path, each.to_path) for each in recorded.records()) == record
        assert recorder.incomplete is None


def test_a_path_that_may_lead_elsewhere_by_now_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory above was renamed while the change waited: a gap, and no record of another path."""
    with recorded_of("memory", tmp_path) as recorded:
        files, recorder = recorded.files, recorded.recorder
        files.make(("mkdir", "/d"), ("create", "/d/file", b"one"))
        recorder.logged = [ROOT]
        listener = HistoryListener(recorder, files.door.route)
        files.door = Door(files.door.route, files.door.names, [listener])
        look = listener._pending

        def moved(*words: Any) -> Any:
            files.door.names.moves += 1
            recorded.names[ROOT].forget()
            return look(*words)

        monkeypatch.setattr(listener, "_pending", moved)
        with recorded.call("a writer"):
            files.make(("create", "/d/new", b""))
        assert b"/d/new" not in [each.path for each in recorded.records()]
        assert recorder.incomplete is not None
