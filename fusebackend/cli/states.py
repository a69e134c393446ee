"""`States`: the present and the earlier states of a mount as trees, for `diff` and `restore`.

A snapshot holds some routes of the mount; in its tree the others are empty directories. What lies in those is left out
of every comparison: it would seem to have been created since, and a restore would remove it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from fusebackend.base.paths import TREES_NAME
from fusebackend.cli import target
from fusebackend.cli.show import Failed, one_line
from fusebackend.cli.target import Target
from fusebackend.cli.verb_tree import VerbTree
from fusebackend.trees.refs import Ref, RefError, Refs, Taken
from fusebackend.trees.tree import ReadTree, Tree, is_below, split

if TYPE_CHECKING:
    from fusebackend.control.client.client import Client


def trees_path(files: Client) -> str:
    """Return the agent's path of the directory of trees."""
    return files.status().get("trees") or f"/{TREES_NAME}"


def snapshots_directory(files: Client) -> str:
    """Return the directory of the snapshots of a mount."""
    return target.outside(files, f"{trees_path(files)}/snapshots")


@contextlib.contextmanager
def in_a_line() -> Iterator[None]:
    """Show an error of the server, or of a REF, as those of the system are."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        raise Failed(str(error)) from None


class Scope(NamedTuple):
    """The part of the mount that some states have.

    Attributes:
        paths: those below which there is something to compare.
        left_out: those of which one state holds nothing.
        ways: directories on the way to routes.
        missing: prefixes of routes below the paths of which one state holds nothing.
    """

    paths: list[bytes]
    left_out: set[bytes]
    ways: set[bytes]
    missing: list[str]


class States:
    """The states of the mount of `files`. Raises `Failed` where the server can't be asked."""

    def __init__(self, files: Client) -> None:
        self.files = files
        with in_a_line():
            status, found = files.status(), files.snapshots()
            branches = [each for each in files.branches() if each.error is None]
        self._trees = _relative(trees_path(files))
        self._routes = {_relative(str(route["prefix"])) for route in status.get("routes", [])} | {b""}
        self._ways = {way for route in self._routes for way in _above(route)}
        self._kept = {each.name: {_relative(prefix) for prefix in each.routes} for each in found}
        self._kept.update((each.name, self._routes) for each in branches)  # as main and the state before a call
        self.refs = Refs(
            [Taken(each.name, each.time_ns) for each in found],
            [Taken(each.name, each.time_ns) for each in branches],
            began_ns=self._began_ns,
        )

    def _began_ns(self, call: str) -> int:
        try:
            return self.files.log([call])[0].began_ns
        except (OSError, RuntimeError) as error:
            raise RefError(one_line(error)) from None

    def is_snapshot(self, name: str) -> bool:
        """Return True for the name of a snapshot that is there."""
        return name in self._kept

    def ref(self, text: str) -> Ref:
        """Return the state that a REF names. Raises `Failed`."""
        with in_a_line():
            return self.refs.one(text)

    def root(self, ref: Ref) -> str:
        """Return the directory of a state, which is a path of agents where nothing is mounted."""
        if ref.is_main:
            return target.outside(self.files, "") or "/"
        kind = "branches" if ref.is_branch else "snapshots"
        return target.outside(self.files, f"/{os.fsdecode(self._trees)}/{kind}/{ref.name}")

    def tree(self, ref: Ref) -> ReadTree:
        """Return the tree of a state: a directory of the mount; what is not mounted is read by verbs. A branch has what
        was changed in its directory."""
        if ref.is_branch:
            with in_a_line():
                self.files.take_in_branch(ref.name)
        return Tree(self.root(ref)) if self.files.is_mounted else VerbTree(self.files, self.root(ref))

    def relative(self, place: Target) -> bytes:
        """Return the path of a target in the tree of each state. Raises `Failed` for one in another tree."""
        path = _relative(place.path)
        target.require_mount(place, self.files)
        if path == self._trees or is_below(path, self._trees):
            raise Failed(f"'{place.given}' lies in the trees directory; give its path in the main tree")
        return path

    def scope(self, paths: Sequence[bytes], *refs: Ref) -> Scope:
        """Choose the routes that all of some states have.

        Raises:
            Failed: nothing of a path is in all of the states.
        """
        kept = set(self._routes)
        for ref in refs:
            kept &= self._kept.get(ref.name, self._routes)
        left_out = self._routes - kept
        found: list[bytes] = []
        for path in paths:
            owner = max((each for each in self._routes if each == path or is_below(path, each)), key=len)
            inner = [each for each in kept if is_below(each, path) and self._owner_above(each) in left_out]
            if owner in kept:
                inner.insert(0, path)
            if not inner:
                names = ", ".join(
                    f"'{ref.name}'" for ref in refs if owner not in self._kept.get(ref.name, self._routes)
                )
                raise Failed(
                    f"'/{os.fsdecode(path)}' lies in a route of which {names} holds nothing: '{_prefix(owner)}'"
                )
            found += inner
        outer = [path for path in set(found) if not any(_covers(each, path, left_out) for each in found)]
        missing = [_prefix(route) for route in sorted(left_out) if any(is_below(route, path) for path in paths)]
        return Scope(sorted(outer), left_out | {self._trees}, self._ways, missing)

    def _owner_above(self, route: bytes) -> bytes:
        """Return the route that the directory above a route's prefix belongs to."""
        return max((each for each in self._routes if each != route and is_below(route, each)), key=len, default=b"")

    def older_ns(self, *refs: Ref) -> int:
        """Return the time of the oldest of some states, of which one is a snapshot at least."""
        return min(ref.time_ns for ref in refs if ref.time_ns is not None)


def states_of(paths: Sequence[str], mount: str | None) -> tuple[States, list[bytes]]:
    """Return the states of the mount that paths of the command line lie in, and the paths there.

    Without paths it is the mount of the current directory, or the only one there is, and the whole of it. Paths need
    not exist now. Raises `Failed`.
    """
    places = [target.locate(given, mount, follow=False) for given in paths]
    states = States(places[0].files if places else target.here(mount).files)
    return states, [states.relative(place) for place in places] or [b""]


def _covers(path: bytes, inner: bytes, left_out: set[bytes]) -> bool:
    """Return True if a walk of one path comes to the inner one: there is no route between that is left out."""
    if not is_below(inner, path) or inner == path:
        return False
    return not any((route == path or is_below(route, path)) and is_below(inner, route) for route in left_out)


def _relative(path: str) -> bytes:
    return os.fsencode(path).strip(b"/")


def _above(path: bytes) -> Iterator[bytes]:
    """The directories above a path, without the root."""
    while path := split(path)[0]:
        yield path


def _prefix(route: bytes) -> str:
    return f"/{os.fsdecode(route)}/" if route else "/"
