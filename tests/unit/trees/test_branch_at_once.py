"""Calls into a branch over a live route, tried where nothing may wait: most are made, long copies are not begun."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from nodes import node_at
from profiles import examples
from test_branch_volume import DirectoryBranchMachine

from fusebackend.backends.directory.volume import DirectoryVolume
from fusebackend.base.waiting import WouldWait, at_once
from fusebackend.protocol import ROOT_NODE, AttrChanges, Caller, Volume
from fusebackend.testing.branches import Branched
from fusebackend.testing.posix.case import refused
from fusebackend.trees import branch_volume
from fusebackend.trees.branch_volume import BranchVolume
from fusebackend.vfs.calls.executor import RouteExecutor
from fusebackend.vfs.handles import FileHandle

ME = Caller(os.geteuid(), os.getegid())


@pytest.fixture
def lower(tmp_path: Path) -> Iterator[DirectoryVolume]:
    root = tmp_path / "files"
    (root / "deep/er/most").mkdir(parents=True)
    (root / "small").write_text("small")
    (root / "deep/er/most/file").write_text("file")
    (root / "deep/er/most/other").write_text("other")
    yield (made := DirectoryVolume(root))
    made.close()


@pytest.fixture
def make(lower: DirectoryVolume, tmp_path: Path) -> Iterator[Callable[[], BranchVolume]]:
    (tmp_path / "branches").mkdir()
    made: list[Branched] = []

    def branch() -> BranchVolume:
        made.append(Branched(str(tmp_path / "branches"), {"/": lower}))
        return made[-1].branch

    yield branch
    for each in made:
        each.close()


def test_what_copies_little_is_done_at_once(make: Callable[[], BranchVolume]) -> None:
    branch = make()

    def work() -> None:
        small = node_at(branch, "small")
        branch.open(small, os.O_RDWR)
        branch.write(small, 5, b"er")
        assert branch.read(small, 0, 100) == b"smaller"
        branch.release(small, os.O_RDWR)
        branch.setattr(node_at(branch, "deep/er/most/file"), AttrChanges(mode=0o600))
        branch.mkdir(ROOT_NODE, b"new", 0o755, ME)
        branch.rename(node_at(branch, "deep/er"), b"most", ROOT_NODE, b"moved")
        branch.unlink(node_at(branch, "moved"), b"other")
        assert [name for name, _ in branch.readdir(node_at(branch, "moved"), b"", 10)] == [b"file"]

    at_once(work)


def test_a_large_file_is_not_copied_at_once(make: Callable[[], BranchVolume], tmp_path: Path) -> None:
    large = os.urandom(branch_volume.COPY_BYTES + 1)
    (tmp_path / "files/large").write_bytes(large)
    branch = make()
    file = node_at(branch, "large")
    branch.open(file, os.O_RDWR)
    before = branch.changed_names()
    for change in (
        partial(branch.write, file, 5, b"xyz"),
        partial(branch.append, file, b"xyz"),
        partial(branch.setattr, file, AttrChanges(size=3)),
    ):
        with pytest.raises(WouldWait):
            at_once(change)
        assert branch.changed_names() == before == 0 and not branch.origin_of(file).base
    at_once(lambda: branch.read(file, 0, 10))
    branch.write(file, 5, b"xyz")
    at_once(lambda: branch.write(file, 8, b"xyz"))
    assert branch.read(file, 0, len(large)) == large[:5] + b"xyzxyz" + large[11:]
    branch.release(file, os.O_RDWR)


CHANGES_OF_NAMES: dict[str, Callable[[BranchVolume, int, int], Any]] = {
    "create": lambda branch, many, _: branch.create(many, b"new", 0o644, os.O_RDWR, ME),
    "mkdir": lambda branch, many, _: branch.mkdir(many, b"new", 0o755, ME),
    "symlink": lambda branch, many, _: branch.symlink(many, b"new", b"target", ME),
    "link": lambda branch, many, few: branch.link(node_at(branch, "few/file"), many, b"new"),
    "link out": lambda branch, many, few: branch.link(node_at(branch, "many/0"), few, b"new"),
    "unlink": lambda branch, many, _: branch.unlink(many, b"0"),
    "rmdir": lambda branch, many, _: branch.rmdir(many, b"empty"),
    "rename out": lambda branch, many, few: branch.rename(many, b"0", few, b"new"),
    "rename in": lambda branch, many, few: branch.rename(few, b"file", many, b"0"),
    "exchange": lambda branch, many, few: branch.rename(few, b"file", many, b"0", 2),
    "chmod": lambda branch, many, _: branch.setattr(node_at(branch, "many/0"), AttrChanges(mode=0o600)),
    "setxattr": lambda branch, many, _: branch.setxattr(node_at(branch, "many/0"), b"user.a", b"b"),
}


@pytest.mark.parametrize("change", CHANGES_OF_NAMES)
def test_many_names_are_not_copied_at_once(
    make: Callable[[], BranchVolume], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr(branch_volume, "COPY_NAMES", 20)
    (tmp_path / "files/many/empty").mkdir(parents=True)
    (tmp_path / "files/few").mkdir()
    (tmp_path / "files/few/file").write_text("file")
    for number in range(30):
        (tmp_path / f"files/many/{number}").write_text("one of many")
    branch = make()
    many, few = node_at(branch, "many"), node_at(branch, "few")
    act = partial(CHANGES_OF_NAMES[change], branch, many, few)
    with pytest.raises(WouldWait):
        at_once(act)
    assert branch.changed_names() == 0 and not branch.has_own_names(many)
    act()
    assert branch.changed_names() > 0
    at_once(lambda: branch.mkdir(many, b"more", 0o755, ME))


def test_a_file_whose_path_has_another_one_now_is_found(make: Callable[[], BranchVolume], tmp_path: Path) -> None:
    branch = make()
    most = node_at(branch, "deep/er/most")
    branch.mkdir(most, b"new", 0o755, ME)
    file = branch.lookup(most, b"file").node
    (tmp_path / "new").write_text("another")
    os.replace(tmp_path / "new", tmp_path / "files/deep/er/most/file")
    found = branch.lookup(most, b"file")
    assert (found.node, found.size) == (file, 7), "the number belongs to the path"
    os.rename(tmp_path / "files/deep/er/most", tmp_path / "files/deep/er/elsewhere")
    (tmp_path / "files/deep/er/elsewhere/file").unlink()
    refused(errno.ENOENT, branch.lookup, most, b"file")


def test_while_another_thread_copies_a_call_is_made_in_a_thread(make: Callable[[], BranchVolume]) -> None:
    branch = make()
    held, ends = threading.Event(), threading.Event()

    def hold() -> None:
        with branch.lock:
            held.set()
            ends.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(30)
    try:
        with pytest.raises(WouldWait):
            at_once(lambda: branch.getattr(ROOT_NODE))
    finally:
        ends.set()
        thread.join(30)
    at_once(lambda: branch.getattr(ROOT_NODE))


def test_an_open_that_is_given_up_leaves_the_file_closed(make: Callable[[], BranchVolume], tmp_path: Path) -> None:
    (tmp_path / "files/large").write_bytes(bytes(branch_volume.COPY_BYTES + 1))
    branch = make()
    file = node_at(branch, "large")

    class Route:
        volume = door = branch
        executor = RouteExecutor(True, branch)

    handle = FileHandle(1, Route(), file, os.O_WRONLY)  # type: ignore[arg-type]
    with pytest.raises(WouldWait):
        at_once(lambda: handle.open(True))
    handle.open(True)
    branch.release(file, os.O_WRONLY)
    with pytest.raises(AssertionError, match="released more often"):
        branch.release(file, os.O_WRONLY)


class _Hurried:
    """A volume each method of which is tried at once first, as the mount calls it."""

    def __init__(self, volume: BranchVolume) -> None:
        self._volume = volume

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._volume, name)
        if not callable(found):
            return found

        def tried(*args: Any, **kwargs: Any) -> Any:
            try:
                return at_once(partial(found, *args, **kwargs))
            except WouldWait:
                return found(*args, **kwargs)

        return tried


class HurriedBranchMachine(DirectoryBranchMachine):
    """Over `dir:`, with bounds so small that many calls are made a second time."""

    def make_volume(self) -> Volume:
        made = super().make_volume()
        self.bounds.setattr(branch_volume, "COPY_BYTES", 10)
        self.bounds.setattr(branch_volume, "COPY_NAMES", 2)
        return made

    def _opened(self) -> Any:
        return _Hurried(super()._opened())


TestHurriedBranchMachine = HurriedBranchMachine.TestCase
TestHurriedBranchMachine.settings = hypothesis.settings(
    max_examples=examples(25), stateful_step_count=60, deadline=None, database=None
)
del DirectoryBranchMachine
