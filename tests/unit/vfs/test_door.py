"""`Door`: what listeners get, and that one which fails is named and fails no change."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest

from fusebackend.backends import InMemoryBackend
from fusebackend.base.paths import ROOT
from fusebackend.protocol import ROOT_NODE, AttrChanges, Caller
from fusebackend.testing.posix.case import refused
from fusebackend.vfs.door import ChangeListener, DoorChange, DoorKind
from fusebackend.vfs.junctions import Route
from fusebackend.vfs.mounted_tree import FileSystem

ME = Caller(0, 0)


class Noting(ChangeListener):
    name = "noting"

    def __init__(self, failing: str = "", followed: set[DoorKind] | None = None) -> None:
        self.noted: list[tuple[Any, ...]] = []
        self._failing = failing
        self._followed = followed

    def follows(self, kind: DoorKind, node: int) -> bool:
        if self._failing == "follows":
            raise RuntimeError("on purpose")
        return self._followed is None or kind in self._followed

    def _note(self, moment: str, change: DoorChange) -> None:
        self.noted.append((moment, change.kind, change.path))
        if moment == self._failing:
            raise RuntimeError("on purpose")

    def before(self, change: DoorChange) -> None:
        self._note("before", change)

    def ordered(self, change: DoorChange) -> None:
        self._note("ordered", change)

    def refused(self, change: DoorChange, error: BaseException) -> None:
        self._note("refused", change)

    def after(self, change: DoorChange) -> None:
        self._note("after", change)


@pytest.fixture
def filesystem() -> FileSystem:
    return FileSystem({ROOT: InMemoryBackend().volume})


@pytest.fixture
def route(filesystem: FileSystem) -> Route:
    return filesystem.tree.routes[0]


def test_a_listener_gets_each_moment_of_a_change(filesystem: FileSystem, route: Route) -> None:
    noting = Noting()
    route.listen("noting", noting, filesystem.names)
    route.door.mkdir(ROOT_NODE, b"d", 0o755, ME)
    refused(errno.EEXIST, route.door.mkdir, ROOT_NODE, b"d", 0o755, ME)
    moments = [("before", "ordered", "after"), ("before", "refused", "after")]
    assert noting.noted == [(moment, "create", b"/d") for each in moments for moment in each]
    route.listen("noting", None, filesystem.names)
    assert route.door is route.volume


def test_what_no_listener_follows_is_the_volumes_alone(filesystem: FileSystem, route: Route) -> None:
    noting, other = Noting(followed={"content"}), Noting(followed={"stored"})
    route.listen("noting", noting, filesystem.names)
    route.listen("other", other, filesystem.names)
    node = route.door.create(ROOT_NODE, b"f", 0o644, os.O_RDWR, ME).node
    noting.noted.clear()
    other.noted.clear()
    assert route.door.setattr(node, AttrChanges(mode=0o600)).mode & 0o777 == 0o600
    route.door.setxattr(node, b"user.x", b"1")
    assert noting.noted == other.noted == []
    assert route.door.write(node, 0, b"ab") == 2
    route.door.fsync(node)
    kinds = ["content"] * 3 + ["stored"] * 3
    assert [kind for _, kind, _ in noting.noted] == [kind for _, kind, _ in other.noted] == kinds
    assert route.volume.read(node, 0, 9) == b"ab"
    refused(errno.ENODATA, route.door.removexattr, node, b"user.none")


def test_what_a_change_is_of_is_found_once(
    filesystem: FileSystem, route: Route, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names move while it waits for its route: every listener gets the paths of the first question."""
    for directory in (b"d", b"e"):
        route.volume.mkdir(ROOT_NODE, directory, 0o755, ME)
    below = route.volume.lookup(ROOT_NODE, b"d").node, route.volume.lookup(ROOT_NODE, b"e").node
    route.volume.mknod(below[0], b"f", 0o100644, 0, ME)
    paths = {below[0]: b"/d", below[1]: b"/e"}
    monkeypatch.setattr(filesystem.names, "path", lambda route, node, name: paths[node] + b"/" + name)
    route.listen("noting", Noting(), filesystem.names)
    change = route.door.renaming(below[0], b"f", below[1], b"g", 0)
    first = change.path, change.to_path, change.attr, change.replaced
    assert first[:2] == (b"/d/f", b"/e/g")
    paths.update({below[0]: b"/moved", below[1]: b"/moved"})
    route.volume.rename(below[0], b"f", below[1], b"g", 0)
    assert (change.path, change.to_path, change.attr, change.replaced) == first


@pytest.mark.parametrize("moment", ["follows", "before", "ordered", "refused", "after"])
def test_one_that_fails_is_named_and_fails_no_change(
    filesystem: FileSystem, route: Route, caplog: pytest.LogCaptureFixture, moment: str
) -> None:
    other = Noting()
    route.listen("failing", Noting(moment), filesystem.names)
    route.listen("other", other, filesystem.names)
    for name in (b"d", b"e"):
        route.door.mkdir(ROOT_NODE, name, 0o755, ME)
    refused(errno.EEXIST, route.door.mkdir, ROOT_NODE, b"d", 0o755, ME)
    assert len(other.noted) == 9
    assert route.door.setattr(ROOT_NODE, AttrChanges(mode=0o700)).mode & 0o777 == 0o700
    (described,) = filesystem.describe_routes({})
    assert described["listeners_failed"] == ["failing: RuntimeError: on purpose"]
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    caplog.clear()
