"""A file-by-file merge in which changes of a directory are refused from some step on (EACCES)."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from for_each import for_each
from merging import a_branch, at, mkdir, remove, rename, shown, write

from fusebackend.protocol import ROOT_NODE, Volume

NAMES = {"mknod": 0, "mkdir": 0, "create": 0, "symlink": 0, "unlink": 0, "rmdir": 0, "rename": 0, "link": 1}
"""What changes a name, and which argument is the directory."""


class Refusing:
    """Has a volume refuse each change of a name in one directory, after so many of them."""

    def __init__(self, volume: Volume, directory: int, after: int, patch: pytest.MonkeyPatch) -> None:
        self.directory, self.left, self.is_on = directory, after, True
        for name, index in NAMES.items():
            patch.setattr(volume, name, self._refusing(getattr(volume, name), index))

    def _refusing(self, function: Callable[..., Any], index: int) -> Callable[..., Any]:
        def called(*args: Any) -> Any:
            if self.is_on and self.directory in (args[index], args[2] if function.__name__ == "rename" else 0):
                if self.left <= 0:
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
                self.left -= 1
            return function(*args)

        return called


def contents(volume: Volume) -> dict[bytes, object]:
    return {path: file.data for path, file in shown(volume).items()}


def test_files_that_have_changed_places_are_not_mixed_up(tmp_path: Path) -> None:
    """Each of them is read from a live route at the place of another, which an earlier step has replaced."""

    def fill(volume: Volume) -> None:
        for name in (b"a", b"b", b"c"):
            write(volume, name, name * 3)

    with a_branch("dir", tmp_path, fill) as trees:
        for old, new in ((b"a", b"t"), (b"b", b"a"), (b"c", b"b"), (b"t", b"c")):
            rename(trees.branch, old, new)
        assert not trees.merge().is_refused
        assert contents(trees.main) == {b"a": b"bbb", b"b": b"ccc", b"c": b"aaa"}


def fill(volume: Volume) -> None:
    for name in (b"d", b"e", b"d/f"):
        mkdir(volume, name)
    for name in (b"a", b"d/b", b"e/c", b"e/gone", b"d/f/in", b"e/g"):
        write(volume, name, name)


@for_each("place", ["", "d"])
@for_each("after", range(14))
def test_a_merge_that_is_refused_in_the_middle(
    tmp_path: Path, place: str, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The branch stays as it is, and the same command does the rest once it may. What a refused merge could not bring
    back is named by its error, and has its journal."""
    with a_branch("dir", tmp_path, fill) as trees:
        branch, volume = trees.branch, trees.main
        for old, new in (
            (b"a", b"t"),
            (b"d/b", b"a"),
            (b"e/c", b"d/b"),
            (b"t", b"e/c"),
        ):  # each to the place of another
            rename(branch, old, new)
        for old, new in ((b"d/f", b"t"), (b"e/g", b"d/f"), (b"t", b"e/g")):  # a file and a directory
            rename(branch, old, new)
        write(branch, b"a", b"changed")
        remove(branch, b"e/gone")
        mkdir(branch, b"d/new")
        write(branch, b"d/new/file", b"new")
        branch.sync()
        wanted = contents(branch)
        directory = at(volume, place.encode()).node if place else ROOT_NODE
        refusing = Refusing(volume, directory, after, monkeypatch)
        journal = tmp_path / "branches" / "b.merge"
        for _ in range(2):
            try:
                trees.merge()
            except PermissionError:
                names = [os.fsdecode(each) for each in shown(volume)]
                assert journal.exists() or not [each for each in names if ".fusebackend" in each]
            assert contents(branch) == wanted
        refusing.is_on = False
        outcome = trees.merge()
        assert not outcome.is_refused, outcome.plan.conflicts
        assert contents(volume) == wanted
        assert not journal.exists()
