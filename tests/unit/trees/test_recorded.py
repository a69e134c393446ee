"""`sides`: the trees before and after a call, from records that this file makes itself."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fusebackend.backends import InMemoryBackend
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.history.history_file import HistoryFile
from fusebackend.history.records import Image, Record
from fusebackend.protocol import RENAME_EXCHANGE, AttrChanges, Caller
from fusebackend.trees import diff_output
from fusebackend.trees.diff import differences
from fusebackend.trees.recorded import Past, sides
from fusebackend.volumes.placing import KeptSource, Source, state_of
from fusebackend.volumes.walk import resolve

ME = Caller(os.getuid(), os.getgid(), 1)


class Story:
    """A volume that calls change, with their records."""

    def __init__(self, directory: Path, prefix: str = ROOT) -> None:
        self.backend = InMemoryBackend()
        self.volume: Any = self.backend.volume
        self.history = HistoryFile(str(directory / "history.db"))
        self.prefix = AgentPath(prefix)
        self._images = directory
        self._call = 0

    def close(self) -> None:
        self.history.close()
        self.backend.close()

    def call(self, actor: str = "a") -> int:
        from fusebackend.protocol import Actor

        self._call = self.history.open_call("tool", "test", Actor(agent=actor))
        return self._call

    def _before(self, path: str, *, lost: bool = False) -> dict[str, Any]:
        attr = resolve(self.volume, path, follow=False).attr
        if attr is None:
            return {}
        state = state_of(self.volume, attr)
        if not stat.S_ISREG(state.mode):
            return {"before": state}
        if lost:
            return {"before": state, "image": Image("lost", "larger than 64 MiB")}
        name = str(len(list(self._images.iterdir())))
        content = self.backend.download_files([path])[0].content
        assert content is not None
        (self._images / name).write_bytes(content)
        return {"before": state, "image": Image("file", name)}

    def _add(self, kind: Any, path: str, **fields: Any) -> None:
        self.history.add(self._call, self.prefix, kind, os.fsencode(path), **fields)

    def write(self, path: str, text: str, *, lost: bool = False) -> None:
        """Create a file, or replace its bytes."""
        there = resolve(self.volume, path, follow=False).attr is not None
        if there:
            self._add("content", path, **self._before(path, lost=lost))
        else:
            self._add("create", path)
        assert self.backend.upload_files([(path, text.encode())])[0].error is None

    def remove(self, path: str) -> None:
        self._add("remove", path, **self._before(path))
        place = resolve(self.volume, path, follow=False)
        if place.found.is_dir:
            self.volume.rmdir(place.parent, place.name)
        else:
            self.volume.unlink(place.parent, place.name)

    def mkdir(self, path: str) -> None:
        self._add("create", path)
        place = resolve(self.volume, path)
        self.volume.mkdir(place.parent, place.name, 0o755, ME)

    def chmod(self, path: str, mode: int) -> None:
        self._add("attributes", path, before=self._before(path)["before"])
        self.volume.setattr(resolve(self.volume, path).found.node, AttrChanges(mode=mode))

    def rename(self, path: str, to: str, *, exchange: bool = False) -> None:
        before = {} if exchange else self._before(to)
        self._add("exchange" if exchange else "rename", path, to_path=os.fsencode(to), **before)
        one, other = resolve(self.volume, path), resolve(self.volume, to)
        flags = RENAME_EXCHANGE if exchange else 0
        self.volume.rename(one.parent, one.name, other.parent, other.name, flags)

    def _source(self, record: Record) -> Source:
        assert record.image is not None
        assert record.before is not None
        return KeptSource(record.before, str(self._images / record.image.name))

    def _later(self, number: int, prefix: AgentPath, path: bytes) -> list[Record]:
        return self.history.later(number, prefix, path, with_undone=True)

    def diff(self, call: int, form: str = "names") -> list[str]:
        past = Past({self.prefix: self.volume}, self._later, self._source)
        before, after = sides(self.history.records(call), past)
        result = differences(before, after, ways=before.ways & after.ways)
        result.emptied.clear()
        if form == "names":
            return list(diff_output.name_status(result))
        return b"".join(diff_output.patch(result)).decode().splitlines()


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    made = Story(tmp_path)
    yield made
    made.close()


def test_files_that_a_call_makes_changes_and_removes(story: Story) -> None:
    story.call()
    story.write("/changed", "one\ntwo\n")
    story.write("/removed", "gone\n")
    story.write("/other", "other")
    call = story.call()
    story.write("/changed", "one\n2\n")
    story.remove("/removed")
    story.write("/made", "new\n")
    assert story.diff(call) == ["M\tchanged", "A\tmade", "D\tremoved"]
    patch = story.diff(call, "patch")
    assert [line for line in patch if line[:1] in "+-" and line[:3] not in ("+++", "---")] == [
        "-two", "+2", "+new", "-gone",
    ]  # fmt: skip


def test_what_others_did_since_is_not_in_it(story: Story) -> None:
    story.call()
    story.write("/file", "1\n")
    call = story.call()
    story.write("/file", "2\n")
    story.write("/made", "made\n")
    story.call("b")
    story.write("/file", "3\n")
    story.remove("/made")
    story.write("/beside", "beside\n")
    assert story.diff(call) == ["M\tfile", "A\tmade"]
    patch = story.diff(call, "patch")
    assert "-1" in patch
    assert "+2" in patch
    assert "+made" in patch
    assert "+3" not in patch


def test_what_others_did_before_the_last_change_is_not_in_it(story: Story) -> None:
    first = story.call()
    story.write("/mine", "1")
    mine = story._call
    story.call("b")
    story.write("/theirs", "2")
    story._call = mine
    story.write("/more", "3")
    assert story.diff(first) == ["A\tmine", "A\tmore"]


def test_a_file_that_was_renamed_since_is_found(story: Story) -> None:
    story.call()
    story.mkdir("/d")
    story.write("/d/file", "1\n")
    call = story.call()
    story.write("/d/file", "2\n")
    story.call("b")
    story.rename("/d/file", "/d/moved")
    story.call("c")
    story.rename("/d", "/e")
    story.call("d")
    story.write("/e/moved", "3\n")
    patch = story.diff(call, "patch")
    assert "--- a/d/file" in patch
    assert "-1" in patch
    assert "+2" in patch


def test_a_renamed_directory_is_renames_of_its_files(story: Story) -> None:
    story.call()
    story.mkdir("/d")
    story.mkdir("/d/deep")
    story.write("/d/a", "content of a\n")
    story.write("/d/deep/b", "content of b\n")
    call = story.call()
    story.rename("/d", "/e")
    story.write("/e/a", "changed\n")
    assert story.diff(call) == ["D\td/a", "A\te/a", "R100\td/deep/b\te/deep/b"]


def test_a_rename_over_a_file(story: Story) -> None:
    story.call()
    story.write("/one", "1\n")
    story.write("/two", "2\n")
    call = story.call()
    story.rename("/one", "/two")
    assert story.diff(call) == ["D\tone", "M\ttwo"]
    assert "+1" in story.diff(call, "patch")


def test_an_exchange(story: Story) -> None:
    story.call()
    story.write("/one", "1\n")
    story.write("/two", "2\n")
    call = story.call()
    story.rename("/one", "/two", exchange=True)
    assert story.diff(call) == ["M\tone", "M\ttwo"]


def test_a_mode(story: Story) -> None:
    story.call()
    story.write("/file", "x")
    story.chmod("/file", 0o644)
    call = story.call()
    story.chmod("/file", 0o755)
    assert story.diff(call, "patch") == ["diff --git a/file b/file", "old mode 100644", "new mode 100755"]


def test_a_file_that_was_made_and_removed_is_in_no_diff(story: Story) -> None:
    call = story.call()
    story.write("/temporary", "x")
    story.remove("/temporary")
    story.write("/kept", "y")
    story.rename("/kept", "/final")
    assert story.diff(call) == ["A\tfinal"]


def test_a_removed_tree(story: Story) -> None:
    story.call()
    story.mkdir("/repo")
    story.mkdir("/repo/src")
    story.write("/repo/src/a", "a\n")
    call = story.call()
    story.remove("/repo/src/a")
    story.remove("/repo/src")
    assert story.diff(call) == ["D\trepo/src/a"]


def test_an_undone_call_still_shows_what_it_did(story: Story) -> None:
    story.call()
    story.write("/file", "1\n")
    call = story.call()
    story.write("/file", "2\n")
    story.call()
    story.write("/file", "1\n")  # its undo
    story.history.mark_undone([call], story._call)
    assert story.diff(call) == ["M\tfile"]


def test_lost_bytes_are_named(story: Story) -> None:
    story.call()
    story.write("/large", "1\n")
    call = story.call()
    story.write("/large", "2\n", lost=True)
    (line,) = [line for line in story.diff(call, "patch") if "large" in line]
    assert line == "# large: not compared: its bytes are lost: larger than 64 MiB"


def test_paths_of_a_route_are_those_of_the_mount(tmp_path: Path) -> None:
    story = Story(tmp_path, "/notes")
    call = story.call()
    story.write("/a", "1")
    assert story.diff(call) == ["A\tnotes/a"]
    story.close()
