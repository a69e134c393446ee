"""`Door`: what listeners get, and that one which fails is named and fails no change."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from fusebackend.backends import InMemoryBackend
from fusebackend.base.paths import ROOT
from fusebackend.protocol import ROOT_NODE, Caller
from fusebackend.testing.posix.case import refused
from fusebackend.vfs.door import ChangeListener, DoorChange
from fusebackend.vfs.junctions import Route
from fusebackend.vfs.mounted_tree import FileSystem

ME = Caller(0, 0)


class Noting(ChangeListener):
    name = "noting"

    def __init__(self, failing: str = "") -> None:
        self.noted: list[tuple[Any, ...]] = []
        self._failing = failing

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


@pytest.mark.parametrize("moment", ["before", "ordered", "refused", "after"])
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
    (described,) = filesystem.describe_routes({})
    assert described["listeners_failed"] == ["failing: RuntimeError: on purpose"]
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    caplog.clear()
