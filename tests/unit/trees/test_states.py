"""`scope_of`: the part of a mount that two of its states have in common. The commands are tested on mounts."""

from __future__ import annotations

import errno

from fusebackend.testing.posix.case import fails
from fusebackend.trees.states import Scope, scope_of

ROUTES = {b"", b"a", b"a/in", b"a/in/most", b"b/c", b"bc"}


def scope(*paths: bytes, **held: set[bytes]) -> Scope:
    return scope_of(paths, ROUTES, held)


def test_all_routes() -> None:
    assert scope(b"", b"a/x", all=ROUTES, main=ROUTES) == Scope([b""], set(), [])


def test_routes_that_one_state_does_not_hold() -> None:
    assert scope(b"", one={b"", b"a", b"bc"}, two={b"", b"bc", b"b/c"}) == Scope(
        [b""], {b"a", b"a/in", b"a/in/most", b"b/c"}, ["/a/", "/a/in/", "/a/in/most/", "/b/c/"]
    )


def test_a_route_below_one_that_is_not_held_is_walked_by_itself() -> None:
    one = {b"", b"a/in/most", b"bc"}
    assert scope(b"", one=one).paths == [b"", b"a/in/most"]
    assert scope(b"a", one=one).paths == [b"a/in/most"]
    assert scope(b"a/in/most/x", b"b", one=one).paths == [b"a/in/most/x", b"b"]
    assert scope(b"a", b"a/in/most/x", one=one).paths == [b"a/in/most"]


def test_without_the_root() -> None:
    one = {b"a", b"b/c"}
    assert scope(b"", one=one) == Scope(
        [b"a", b"b/c"], {b"", b"a/in", b"a/in/most", b"bc"}, ["/", "/a/in/", "/a/in/most/", "/bc/"]
    )
    with fails(errno.ENODATA, match="'/file' lies in a route of which 'one' holds nothing: '/'"):
        scope(b"file", one=one)
