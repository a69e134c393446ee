"""`drop_unmade`: a volume file as a kill leaves it, with a history that knows of more."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from profiles import examples
from random_changes import STEPS, make
from recorded import Recorded
from replayed import Replay, shown, tree_of

from fusebackend.backends import SqliteBackend
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.history.recorder import drop_unmade
from fusebackend.protocol import Actor


class Scene:
    """A place over a file, of which `keep` is the last state that is durable."""

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)
        self._file = self._directory / "volume.db"
        self._kept = self._directory / "kept"
        self._open()

    def _open(self) -> None:
        self.backend: Any = SqliteBackend(str(self._file))
        self.volume = self.backend.volume
        self.place = Recorded(self._directory, {ROOT: self.volume})
        self.files = self.place.files
        self.volume.before_commit = self.place.history.before_commit

    def keep(self, file: bytes = b"") -> None:
        """Have all of the volume synced, or a file of its root: that may go to the log beside the tables."""
        self.volume.fsync(self.volume.lookup(1, file).node) if file else self.volume.sync()
        shutil.rmtree(self._kept, ignore_errors=True)
        self._kept.mkdir()
        for each in self._directory.glob("volume.db*"):
            shutil.copy(each, self._kept)

    def kill(self, logged: Collection[AgentPath] = ()) -> int:
        """Go on with the kept file, as the server that comes after a kill; returns what `drop_unmade` does."""
        closed = self.place.history.closed
        self.close()
        for each in self._directory.glob("volume.db*"):
            each.unlink()
        for each in self._kept.iterdir():
            shutil.copy(each, self._directory)
        self._open()
        self.place.history.was_killed, self.place.history.closed = True, closed
        self.place.history.interrupted = [each.number for each in self.place.history.calls(2)]
        return drop_unmade(self.place.history, self.place.images, {ROOT: self.volume}, logged)

    def close(self) -> None:
        self.place.close()
        self.backend.close()

    def reopen(self) -> None:
        self.close()
        self._open()

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
        scene.files.make(("write", "/file", b"first"), ("write", "/other", b"other"))
    place.recorder.calls.close()
    scene.keep()
    with place.by("two"):
        scene.files.make(
            ("write", "/file", b"second"), ("mkdir", "/d"), ("write", "/d/new", b"new"),
            ("rename", "/other", "/d/moved"),
        )  # fmt: skip
    place.recorder.calls.close()
    with place.by("three"):
        scene.files.make(("write", "/d/new", b"more"), ("write", "/d/moved", b"more"), ("remove", "/file"))
    place.recorder.calls.close()
    assert scene.kill() == 7
    assert scene.kinds() == [("create", b"/file"), ("create", b"/other")]
    assert [call.title for call in scene.place.history.calls()] == ["one"]
    assert scene.place.undoing.undo([1]).conflicts == []
    assert os.fsdecode(b"/file") not in tree_of(scene.volume)[0]
    assert scene.place.history.verify().problems == []


def test_what_was_made_stays(scene: Scene) -> None:
    place = scene.place
    with place.by("one"):
        scene.files.write("/file", b"first")
    place.recorder.calls.close()
    with place.by("two"):
        scene.files.make(
            ("write", "/file", b"again"), ("rename", "/file", "/there"), ("write", "/short", b"lived"),
            ("remove", "/short"),
        )  # fmt: skip
    scene.keep()
    assert scene.kill() == 0
    assert len(scene.kinds()) == 5


def test_what_a_verb_was_about_to_do_is_no_change_though_a_later_one_was_made(scene: Scene) -> None:
    place = scene.place
    scene.files.make(*(("write", f"/{name}", name.encode()) for name in ("removed", "stays", "changed")))
    place.recorder.calls.close()
    history, recorder = place.history, place.recorder
    with recorder.calls.inside("verb", "delete /removed and 2 more", Actor(agent="one")) as call:
        for name, kind in ((b"removed", "remove"), (b"stays", "remove"), (b"changed", "content")):
            kept = recorder.of(scene.volume).keep(call, scene.volume.lookup(1, name))
            history.add(recorder.calls.number(call), ROOT, kind, b"/" + name, kept, node=kept.node)
        scene.volume.unlink(1, b"removed")
        with place.by("two"):
            scene.files.write("/new", b"")
    history.flush()
    scene.keep()
    assert scene.kill() == 2
    assert scene.kinds()[3:] == [("remove", b"/removed"), ("create", b"/new")]
    assert scene.place.history.verify().problems == []


def test_what_a_verb_was_about_to_do_at_a_commit_is_no_change(scene: Scene) -> None:
    """It has done it since, and ended, and nothing of that was stored."""
    place = scene.place
    scene.files.make(("write", "/removed", b"removed"), ("write", "/other", b"other"))
    place.recorder.calls.close()
    with place.recorder.calls.inside("verb", "delete /removed") as call:
        kept = place.recorder.of(scene.volume).keep(call, scene.volume.lookup(1, b"removed"))
        number = place.recorder.calls.number(call)
        place.history.add(number, ROOT, "remove", b"/removed", kept, node=kept.node)
        with place.by("two"):
            scene.files.remove("/other")
        scene.keep()
        scene.volume.unlink(1, b"removed")
    for name in ("three", "four"):  # the kill has interrupted these
        with place.by(name):
            scene.files.write(f"/{name}", b"")
    place.recorder.calls.close()
    assert scene.kill() == 3
    assert scene.kinds()[2:] == [("remove", b"/other")]


def test_what_is_synced_beside_the_tables_was_made(scene: Scene) -> None:
    for name in (b"a", b"b", b"c", b"d"):
        scene.files.write(f"/{name.decode()}", name)
        scene.keep(name)
    scene.files.write("/later", b"later")
    scene.place.recorder.calls.close()
    assert scene.kill() == 1
    assert scene.kinds() == [("create", b"/" + name) for name in (b"a", b"b", b"c", b"d")]


def test_what_an_earlier_server_has_stored_at_its_end_was_made(scene: Scene) -> None:
    scene.files.write("/file", b"")
    scene.place.recorder.calls.close()
    scene.volume.before_commit = None  # as when a mount ends
    scene.reopen()
    scene.keep()
    scene.files.write("/other", b"")
    scene.place.recorder.calls.close()
    assert scene.kill() == 1
    assert scene.kinds() == [("create", b"/file")]


def test_a_clean_end_is_not_looked_at(tmp_path: Path) -> None:
    scene = Scene(str(tmp_path))
    with scene.place.by("one"):
        scene.files.write("/file", b"first")
    scene.reopen()
    assert not scene.place.history.was_killed
    scene.files.remove("/file")
    scene.place.history.flush()
    scene.place.recorder.calls.close()
    scene.close()


@settings(max_examples=examples(30))
@given(before=STEPS, steps=STEPS, at=st.integers(0, 40))
# Another file takes the place of one that has lost its second name in the call.
@example(
    before=[("create", "X", 0, 0, 0), ("link", "X", 0, 1, 0)],
    steps=[("write", "X", 0, 0, 1), ("unlink", "X", 0, 1, 0), ("create", "X", 0, 1, 0), ("rename", "X", 0, 1, 0)],
    at=40,
)
def test_records_that_are_left_lead_back(before: Any, steps: Any, at: int) -> None:
    """Of a volume that has the first changes, the records that are left lead back to where it began."""
    with tempfile.TemporaryDirectory() as directory:
        scene = Scene(directory)
        try:
            make(scene.place, before)
            scene.place.recorder.calls.close()
            first = max((each.number for each in scene.place.records()), default=0)
            earlier = shown(tree_of(scene.volume)[0])
            made = list(steps)
            make(scene.place, made[:at])
            number = max((each.number for each in scene.place.records()), default=0)
            scene.keep()
            there = shown(tree_of(scene.volume)[0])
            make(scene.place, made[at:])
            scene.place.recorder.calls.close()
            known = {each.number for each in scene.place.records() if each.number <= number}
            changes = {each.number for each in scene.place.records() if each.kind in ("content", "attributes")}
            scene.kill()
            assert shown(tree_of(scene.volume)[0]) == there
            left = scene.place.records()
            assert known - {each.number for each in left} <= changes
            replay = Replay(scene.volume, scene.place.history, scene.place.images.path)
            replay.back(each for each in left if first < each.number <= number)
            assert shown(replay.tree) == earlier
        finally:
            scene.close()


@pytest.mark.parametrize("made", [0, 1, 2, 3])
def test_files_that_a_merge_was_to_change_places_of_a_logged_volume(scene: Scene, made: int) -> None:
    place = scene.place
    scene.files.make(("write", "/a", b"a"), ("write", "/b", b"b"))
    place.recorder.calls.close()
    nodes = {name: scene.volume.lookup(1, name).node for name in (b"a", b"b")}
    history, call = place.history, place.history.open_call("merge", "merge branch 'b'", Actor(agent="one"))
    for count, (old, new, moved) in enumerate(((b"a", b"t", b"a"), (b"b", b"a", b"b"), (b"t", b"b", b"a"))):
        history.add(call, ROOT, "rename", b"/" + old, to_path=b"/" + new, node=nodes[moved])
        if count < made:
            scene.volume.rename(1, old, 1, new)
    history.flush()
    scene.keep()
    assert scene.kill([ROOT]) == 3 - made
