"""`States`: the part of a mount that its states have in common. The commands are tested on mounts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fusebackend.cli.show import Failed
from fusebackend.cli.states import States
from fusebackend.protocol import SnapshotInfo
from fusebackend.trees.refs import MAIN_REF, Ref

ROUTES = ("/", "/a/", "/a/in/", "/a/in/most/", "/b/c/", "/bc/")


def states(**kept: tuple[str, ...]) -> States:
    """The states of a mount with some routes, and a snapshot of each name that holds some of them."""
    found = [SnapshotInfo(name, number, list(routes)) for number, (name, routes) in enumerate(kept.items())]
    files: Any = SimpleNamespace(
        mountpoint="/mnt/agent",
        is_mounted=True,
        status=lambda: {"trees": "/.hidden", "routes": [{"prefix": prefix} for prefix in ROUTES]},
        snapshots=lambda: found,
        branches=list,
    )
    return States(files)


def test_a_snapshot_of_all_routes() -> None:
    known = states(all=ROUTES)
    scope = known.scope([b"", b"a/x"], known.ref("all"), MAIN_REF)
    assert scope.paths == [b""]
    assert scope.left_out == {b".hidden"}
    assert scope.ways == {b"a", b"a/in", b"b"}
    assert scope.missing == []
    assert known.root(known.ref("all")) == "/mnt/agent/.hidden/snapshots/all"
    assert known.root(MAIN_REF) == "/mnt/agent"


def test_routes_that_one_state_does_not_hold() -> None:
    known = states(one=("/", "/a/", "/bc/"), two=("/", "/bc/", "/b/c/"))
    scope = known.scope([b""], known.ref("one"), known.ref("two"))
    assert scope.paths == [b""]
    assert scope.left_out == {b".hidden", b"a", b"a/in", b"a/in/most", b"b/c"}
    assert scope.missing == ["/a/", "/a/in/", "/a/in/most/", "/b/c/"]


def test_a_route_below_one_that_is_not_held_is_walked_by_itself() -> None:
    known = states(one=("/", "/a/in/most/", "/bc/"))
    one = known.ref("one")
    assert known.scope([b""], one).paths == [b"", b"a/in/most"]
    assert known.scope([b"a"], one).paths == [b"a/in/most"]
    assert known.scope([b"a/in/most/x", b"b"], one).paths == [b"a/in/most/x", b"b"]
    assert known.scope([b"a", b"a/in/most/x"], one).paths == [b"a/in/most"]


def test_without_the_root() -> None:
    known = states(one=("/a/", "/b/c/"))
    one = known.ref("one")
    scope = known.scope([b""], one)
    assert (scope.paths, scope.left_out) == ([b"a", b"b/c"], {b".hidden", b"", b"a/in", b"a/in/most", b"bc"})
    assert scope.missing == ["/", "/a/in/", "/a/in/most/", "/bc/"]
    with pytest.raises(Failed) as error:
        known.scope([b"file"], one)
    assert error.value.message == "'/file' lies in a route of which 'one' holds nothing: '/'"


def test_the_older_one_of_two_states() -> None:
    known = states(first=ROUTES, second=ROUTES)
    assert known.older_ns(Ref("second", 1), Ref("first", 0)) == 0
    assert known.older_ns(MAIN_REF, Ref("second", 1)) == 1
