"""`drop_unmade`: a volume file as a kill leaves it, with a history that knows of more."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples
from recorded_place import ME, STEPS, Place, make
from replayed import Replay, shown, tree_of

from fusebackend.backends import SqliteBackend
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.history.undo import Undo
from fusebackend.history.unmade import drop_unmade
from fusebackend.protocol import Actor, AttrChanges


class Scene:
    """A place over a file, of which `keep` is the last state that is durable."""

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)
        self._file = self._directory / "volume.db"
        self._kept = self._directory / "kept"
        self._open()

    def _open(self) -> None:
        self.backend: Any = SqliteBackend(str(self._file))
        self.place = Place(self.backend.volume, str(self._directory))

    def keep(self) -> None:
        self.place.volume.sync()
        shutil.rmtree(self._kept, ignore_errors=True)
        self._kept.mkdir()
        for each in self._directory.glob("volume.db*"):
            shutil.copy(each, self._kept)

    def kill(self, logged: Collection[AgentPath] = ()) -> int:
        """Go on with the kept file, as the server that comes after a kill; returns what `drop_unmade` does."""
        self.close()
        for each in self._directory.glob("volume.db*"):
            each.unlink()
        for each in self._kept.iterdir():
            shutil.copy(each, self._directory)
        self._open()
        self.place.history.was_killed = True
        self.place.history.interrupted = [each.number for each in self.place.history.calls(2)]
        return drop_unmade(self.place.history, self.place.images, {ROOT: self.place.volume}, logged)

    def close(self) -> None:
        self.place.close()
        self.backend.close()

    def kinds(self) -> list[tuple[str, bytes]]:
        return [(each.kind, each.path) for each in sorted(self.place.records())]


@pytest.fixture
def scene(tmp_path: Path) -> Any:
    made = Scene(str(tmp_path))
    yield made
    made.close()


def test_changes_that_were_not_made_are_no_changes(scene: Scene) -> None:
    place = scene.place
    with place.by("one"):
        place.make(1, b"file", b"first")
        place.make(1, b"other", b"other")
    place.recorder.calls.close()
    scene.keep()
    with place.by("two"):
        place.write("/file", 0, b"second")
        place.door.mkdir(1, b"d", 0o755, ME)
        place.make(place.node("/d"), b"new", b"new")
        place.door.rename(1, b"other", place.node("/d"), b"moved")
    place.recorder.calls.close()
    with place.by("three"):
        place.write("/d/new", 0, b"more")
        place.write("/d/moved", 0, b"more")
        place.door.unlink(1, b"file")
    place.recorder.calls.close()
    assert scene.kill() == 7
    assert scene.kinds() == [("create", b"/file"), ("create", b"/other")]
    assert [call.title for call in scene.place.history.calls()] == ["one"]
    assert Undo(scene.place.recorder, {ROOT: scene.place.volume}).undo([1]).conflicts == []
    assert os.fsdecode(b"/file") not in tree_of(scene.place.volume)[0]
    assert scene.place.history.verify().problems == []


def test_what_was_made_stays(scene: Scene) -> None:
    place = scene.place
    with place.by("one"):
        place.make(1, b"file", b"first")
    place.recorder.calls.close()
    with place.by("two"):
        place.write("/file", 0, b"again")
        place.door.rename(1, b"file", 1, b"there")
        place.make(1, b"short", b"lived")
        place.door.unlink(1, b"short")
    scene.keep()
    assert scene.kill() == 0
    assert len(scene.kinds()) == 5


@pytest.mark.parametrize(
    "steps",
    [
        [("write", "/file", 0, b"second"), ("write", "/file", 0, b"the third")],
        [("write", "/file", 0, b"second"), ("chmod",), ("write", "/file", 0, b"the third"), ("chmod",)],
        [("rename", b"file", b"there"), ("rename", b"there", b"file")],
        [("rename", b"file", b"there"), ("write", "/there", 0, b"second"), ("rename", b"there", b"file")],
    ],
)
def test_changes_of_one_file_by_several_calls_that_were_not_made(scene: Scene, steps: list[tuple[Any, ...]]) -> None:
    """The state before the last one is not that of the tree: also the changes before it were not made."""
    place = scene.place
    place.make(1, b"file", b"first")
    place.recorder.calls.close()
    scene.keep()
    with place.by("one"):
        place.make(1, b"new")
    for number, (what, *arguments) in enumerate(steps):
        with place.by(f"call {number}"):
            if what == "write":
                place.write(*arguments)
            elif what == "rename":
                place.door.rename(1, arguments[0], 1, arguments[1])
            else:
                place.door.setattr(place.node("/file"), AttrChanges(mode=0o600 + number))
    place.recorder.calls.close()
    assert scene.kill() == 1 + len(steps)
    assert scene.kinds() == [("create", b"/file")]


def test_what_a_verb_was_about_to_do_is_no_change_though_a_later_one_was_made(scene: Scene) -> None:
    place = scene.place
    for name in (b"removed", b"stays", b"changed"):
        place.make(1, name, name)
    place.recorder.calls.close()
    history, recorder = place.history, place.recorder
    with recorder.calls.inside("verb", "delete /removed and 2 more", Actor(agent="one")) as call:
        for name, kind in ((b"removed", "remove"), (b"stays", "remove"), (b"changed", "content")):
            kept = recorder.keep(call, place.volume, place.volume.lookup(1, name))
            recorder.add(call, ROOT, kind, b"/" + name, kept)
        place.volume.unlink(1, b"removed")
        with place.by("two"):
            place.make(1, b"new")
    history.flush()
    scene.keep()
    assert scene.kill() == 2
    assert scene.kinds()[3:] == [("remove", b"/removed"), ("create", b"/new")]
    assert scene.place.history.verify().problems == []


def test_a_clean_end_is_not_looked_at(tmp_path: Path) -> None:
    scene = Scene(str(tmp_path))
    with scene.place.by("one"):
        scene.place.make(1, b"file", b"first")
    scene.close()
    scene._open()
    assert not scene.place.history.was_killed
    scene.place.door.unlink(1, b"file")
    scene.place.history.flush()
    scene.place.recorder.calls.close()
    scene.close()


@settings(max_examples=examples(20))
@given(before=STEPS, steps=STEPS, at=st.integers(0, 40))
def test_records_that_are_left_lead_back(before: Any, steps: Any, at: int) -> None:
    """Of a volume that has the first changes, the records that are left lead back to where it began."""
    with tempfile.TemporaryDirectory() as directory:
        scene = Scene(directory)
        try:
            make(scene.place, before)
            scene.place.recorder.calls.close()
            first = max((each.number for each in scene.place.records()), default=0)
            earlier = shown(tree_of(scene.place.volume)[0])
            made = list(steps)
            make(scene.place, made[:at])
            number = max((each.number for each in scene.place.records()), default=0)
            scene.keep()
            there = shown(tree_of(scene.place.volume)[0])
            make(scene.place, made[at:])
            scene.place.recorder.calls.close()
            known = {each.number for each in scene.place.records() if each.number <= number}
            changes = {each.number for each in scene.place.records() if each.kind in ("content", "attributes")}
            scene.kill()
            assert shown(tree_of(scene.place.volume)[0]) == there
            left = scene.place.records()
            assert known - {each.number for each in left} <= changes
            replay = Replay(scene.place.volume, scene.place.history, scene.place.images.path)
            replay.back(each for each in left if first < each.number <= number)
            assert shown(replay.tree) == earlier
        finally:
            scene.close()


@pytest.mark.parametrize("made", [0, 1, 2, 3])
@pytest.mark.parametrize("others", [False, True])
def test_files_that_were_to_change_places(scene: Scene, made: int, others: bool) -> None:
    """Each rename alone shows nothing: the name in between is free before and after, and the others are taken."""
    place = scene.place
    for name in (b"a", b"b", b"other"):
        place.make(1, name, name)
    place.recorder.calls.close()
    number = max(each.number for each in place.records())
    with place.by("two"):
        for count, (old, new) in enumerate(((b"a", b"t"), (b"b", b"a"), (b"t", b"b"))):
            if count == made:
                scene.keep()
            place.door.rename(1, old, 1, new)
        if made == 3:
            scene.keep()
    if others:
        place.door.unlink(1, b"other")
    place.recorder.calls.close()
    scene.kill()
    left = [each for each in scene.place.records() if each.number > number]
    assert len(left) == made
    calls = {each.call for each in left}
    undone = Undo(scene.place.recorder, {ROOT: scene.place.volume}).undo(sorted(calls)) if calls else None
    assert undone is None or not undone.conflicts
    tree = tree_of(scene.place.volume)[0]
    assert {path: tree[path].data for path in (b"/a", b"/b")} == {b"/a": b"a", b"/b": b"b"}
    assert b"/t" not in tree


@pytest.mark.parametrize("made", [0, 1, 2, 3])
def test_files_that_a_merge_was_to_change_places_of_a_logged_volume(scene: Scene, made: int) -> None:
    place = scene.place
    for name in (b"a", b"b"):
        place.make(1, name, name)
    place.recorder.calls.close()
    nodes = {name: place.node(f"/{name.decode()}") for name in (b"a", b"b")}
    history, call = place.history, place.history.open_call("merge", "merge branch 'b'", Actor(agent="one"))
    for count, (old, new, moved) in enumerate(((b"a", b"t", b"a"), (b"b", b"a", b"b"), (b"t", b"b", b"a"))):
        history.add(call, ROOT, "rename", b"/" + old, to_path=b"/" + new, node=nodes[moved])
        if count < made:
            place.volume.rename(1, old, 1, new)
    history.flush()
    scene.keep()
    assert scene.kill([ROOT]) == 3 - made
