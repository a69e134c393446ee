"""Merges that are taken back: main is as it was before, and with another undo as it was merged."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from for_each import for_each
from hypothesis import given, settings
from hypothesis import strategies as st
from merging import Branched, a_branch, mkdir, rename, symlink, write
from profiles import examples
from recorded import Recorded
from test_merge_branch import KINDS, killed_at, suppressed
from test_merge_random import RENAMES, perform
from test_merge_refused import Refusing, contents

from fusebackend.base.paths import ROOT
from fusebackend.protocol import ROOT_NODE, Volume
from fusebackend.testing.each import each
from fusebackend.trees.merge.merges import Merges
from fusebackend.trees.merge.run import MainTree


class Undone:
    """A recorded volume with a branch."""

    def __init__(self, recorded: Recorded, trees: Branched) -> None:
        self.volume, self.recorded, self.trees = trees.main, recorded, trees
        self.merges = Merges(MainTree(trees.branches, {ROOT: trees.main}, lambda: (), recorded.recorder))

    def check(self) -> None:
        """Merge, undo, and undo the undo."""
        before = self.recorded.files.dump()
        try:
            merged = self.merges.merge("b", keep="branch")
        except OSError as error:
            assert error.errno == errno.ESTALE  # bytes that main has deleted
            return
        after = self.recorded.files.dump()
        if merged.call is None:
            assert after == before
            return
        for number, wanted in ((int(merged.call[1:]), before), (0, after)):
            undone = self.recorded.undoing.undo([number or self.recorded.last()])
            assert undone.conflicts == []
            assert self.recorded.files.dump() == wanted


@contextmanager
def undone(kind: str, directory: Path, fill: Any) -> Iterator[Undone]:
    with (
        a_branch(kind, directory, fill) as trees,
        contextlib.closing(Recorded(directory, {ROOT: trees.main})) as recorded,
    ):
        yield Undone(recorded, trees)


def fill(volume: Volume) -> None:
    for name in (b"a", b"b", b"c"):
        write(volume, name, name)
    mkdir(volume, b"d")
    write(volume, b"d/in", b"in\n")
    symlink(volume, b"l", b"a")


def make_directory(path: Path) -> Path:
    path.mkdir()
    return path


PLACES: dict[str, list[tuple[Any, ...]]] = {
    "two": [(rename, b"a", b"t"), (rename, b"d", b"a"), (rename, b"t", b"d")],
    "three": [(rename, b"a", b"t"), (rename, b"d", b"a"), (rename, b"l", b"d"), (rename, b"t", b"l")],
    "a file goes into a directory at its place": [
        (rename, b"a", b"t"), (mkdir, b"a"), (rename, b"t", b"a/default"), (write, b"a/other", b"other"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
class TestPlaces:
    """Files of different types that have changed places: those of one type are compared by their paths."""

    def test_once(self, kind: str, tmp_path: Path) -> None:
        for case in each(PLACES):
            with case as steps, undone(kind, make_directory(tmp_path / case.name), fill) as made:
                for step, *words in steps:
                    step(made.trees.branch, *words)
                made.check()

    def test_twice(self, kind: str, tmp_path: Path) -> None:
        """Neither undo takes the other merge for a later change."""
        with undone(kind, tmp_path, fill) as made:
            before = made.recorded.files.dump()
            for pair in ((b"a", b"d"), (b"l", b"c")):
                for old, new in ((pair[0], b"t"), (pair[1], pair[0]), (b"t", pair[1])):
                    rename(made.trees.branch, old, new)
                merged = made.merges.merge("b")
                assert merged.conflicts == []
                if pair[0] == b"a":
                    first = merged.call
            assert first is not None
            assert made.recorded.undoing.undo([int(first[1:])]).conflicts == []
            made.recorded.undoing.undo([int(str(merged.call)[1:])])
            assert made.recorded.files.dump() == before


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(40))
@given(base=RENAMES, branch=RENAMES, main=RENAMES)
def test_a_merge_is_taken_back(
    kind: str, base: Any, branch: Any, main: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with undone(kind, tmp_path_factory.mktemp("merge"), lambda volume: perform(volume, base)) as made:
        perform(made.trees.branch, branch)
        perform(made.volume, main)
        made.check()


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_merge_has_decided_is_taken_back_with_it(kind: str, tmp_path: Path) -> None:
    with undone(kind, tmp_path, fill) as made:
        for volume, text in ((made.trees.branch, b"1"), (made.volume, b"22")):
            write(volume, b"a", text)
        write(made.trees.branch, b"z", b"new")
        made.merges.merge("b", keep="main")
        for conflicts in (0, 1, 0):  # then the undo, and its undo
            assert made.merges.compare("b")[0] == conflicts
            made.recorded.undoing.undo([made.recorded.last()])


@for_each("completed", [False, True])
@for_each("after", range(7))
def test_a_merge_that_was_refused_in_the_middle(
    tmp_path: Path, after: int, completed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was parked is brought back by a call of its own. All calls together are taken back."""
    with undone("dir", tmp_path, fill) as made:
        before = made.recorded.files.dump()
        for old, new in ((b"a", b"t"), (b"d", b"a"), (b"t", b"d")):
            rename(made.trees.branch, old, new)
        write(made.trees.branch, b"z", b"new")
        volume: Any = made.volume
        refusing = Refusing(volume, ROOT_NODE, after, monkeypatch)
        with contextlib.suppress(PermissionError):
            made.merges.merge("b")
        refusing.is_on = False
        made.merges.tidy()
        if completed:
            assert made.merges.merge("b").conflicts == []
            assert contents(volume) == contents(made.trees.branch)
        calls = [call.number for call in made.recorded.history.calls(10)]
        if calls:
            assert made.recorded.undoing.undo(calls).conflicts == []
        assert made.recorded.files.dump() == before


@settings(max_examples=examples(40))
@given(base=RENAMES, branch=RENAMES, main=RENAMES, at=st.integers(0, 12), before=st.booleans(), completed=st.booleans())
def test_a_killed_merge_is_taken_back(
    base: Any, branch: Any, main: Any, at: int, before: bool, completed: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What the killed server has made, what the next one brings back, and what the same merge completes."""
    with undone("dir", tmp_path_factory.mktemp("merge"), lambda volume: perform(volume, base)) as made:
        perform(made.trees.branch, branch)
        perform(made.volume, main)
        wanted = made.recorded.files.dump()
        with killed_at(at, before=before), suppressed(errno.ESTALE):
            made.merges.merge("b", keep="branch")
        made.merges.tidy()
        with suppressed(errno.ESTALE):  # bytes that main has deleted
            if completed:
                made.merges.merge("b", keep="branch")
        calls = [call.number for call in made.recorded.history.calls(10)]
        if calls:
            assert made.recorded.undoing.undo(calls).conflicts == []
        assert made.recorded.files.dump() == wanted
