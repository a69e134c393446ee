"""`States`: the tree of a REF (`refs.py`) over the volumes of a mount, and the differences of two.

A restore takes files from such a tree, and a diff of which one side is the state before a call compares two: that state
is in no directory of the mount. `cli/diff.py` compares all other states as the kernel shows them.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

from fusebackend.backends.memory import InMemoryVolume
from fusebackend.base.paths import ROOT, AgentPath, to_name, to_text
from fusebackend.protocol import SnapshotVolume, Volume
from fusebackend.trees.branches import Branches
from fusebackend.trees.diff import RACY_NS, Differences, differences
from fusebackend.trees.earlier import EarlierVolume
from fusebackend.trees.merge.tree import Item, MergeTree
from fusebackend.trees.recorded import copied, stat_of
from fusebackend.trees.refs import Ref
from fusebackend.trees.snapshots import Snapshots
from fusebackend.trees.tree import is_below, join, split

_ALWAYS_NS = 1 << 62
"""Of two trees in which a file that is the same is the same node: its times need no comparison with the present."""


class State(NamedTuple):
    """A state of a mount.

    Attributes:
        tree: its files.
        kept: prefixes of the routes of which it holds something.
        earlier: the routes before a call, by prefix; none for other states.
    """

    tree: MergeTree
    kept: Collection[AgentPath]
    earlier: Mapping[AgentPath, EarlierVolume]

    def touched(self, prefixes: Collection[AgentPath]) -> list[bytes]:
        """Return the paths of main that it may differ at, in some routes, as few as have all of them."""
        return _tops(set(_touched(self.earlier, prefixes)))

    def is_touched_again(self, prefixes: Collection[AgentPath]) -> bool:
        """True if main has changed meanwhile at one of these paths."""
        return any(self.earlier[prefix].is_touched_again for prefix in prefixes)

    @property
    def is_overtaken(self) -> bool:
        """True if main has changed meanwhile, in a state that is made from it."""
        return any(volume.is_overtaken for volume in self.earlier.values())

    def require(self, item: Item) -> None:
        """Raise ENODATA, with a text for people, for an item whose bytes are not known."""
        if isinstance(item.volume, EarlierVolume):
            item.volume.require(item.node)


class States:
    """See the module's docstring.

    Args:
        volumes, branches, snapshots: of the mount; None if it keeps none.
        before: returns the routes as they were before a call or at a time, by prefix, for some paths of the mount;
            see `MountHistory.before`.
        branch_of: returns the branch whose state the one before a call is; None for that of the mount.
    """

    def __init__(
        self,
        volumes: Mapping[AgentPath, Volume],
        branches: Branches | None = None,
        snapshots: Snapshots | None = None,
        before: Callable[[Ref, Sequence[bytes]], Mapping[AgentPath, EarlierVolume]] = lambda ref, paths: {},
        branch_of: Callable[[str], str | None] = lambda call: None,
    ) -> None:
        self._volumes = dict(volumes)
        self._branches = branches
        self._snapshots = snapshots
        self._before = before
        self._branch_of = branch_of

    def branch_of(self, ref: Ref) -> str | None:
        """Return the branch whose state this is: the present one, or that before a call. None for one of the mount."""
        return ref.name if ref.is_branch else self._branch_of(ref.name) if ref.is_call else None

    def _key(self, prefix: AgentPath, node: int) -> Hashable:
        return prefix, node

    def at(self, ref: Ref, paths: Sequence[bytes] = (b"",)) -> State:
        """Return the tree of a state.

        Args:
            paths: of a state before a call: only these, and what is below them, are as they were.

        Raises:
            OSError: ENOENT, it is gone; ENODATA, the history lacks changes since the call; from a volume.
        """
        if ref.is_main:
            return State(MergeTree(self._volumes, self._volumes, self._key), self._volumes, {})
        if ref.is_call or ref.is_recorded:
            earlier = self._before(ref, paths)
            if self.branch_of(ref) is not None:  # its nodes are none of the mount
                return State(MergeTree(earlier, self._volumes), self._volumes, earlier)
            return State(MergeTree(earlier, self._volumes, self._key, _ALWAYS_NS), self._volumes, earlier)
        if ref.is_branch and self._branches is not None:
            return State(MergeTree({ROOT: self._branches.volume(ref.name)}, self._volumes), self._volumes, {})
        parts = None if self._snapshots is None else self._snapshots.find(ref.name)
        if parts is None:
            raise OSError(errno.ENOENT, f"there is no snapshot '{ref.name}'")
        views: dict[AgentPath, Volume] = {}
        for prefix in parts.parts:
            volume = self._volumes[prefix]
            assert isinstance(volume, SnapshotVolume), "it has a snapshot"
            views[prefix] = volume.snapshot(ref.name)
        views.setdefault(ROOT, InMemoryVolume())  # the way to those that have one
        time_ns = min(part.time_ns for part in parts.parts.values())
        return State(MergeTree(views, self._volumes, self._key, time_ns), parts.parts, {})

    def differences(self, before: Ref, after: Ref, paths: Sequence[bytes] = (b"",)) -> Differences:
        """Compare two states, of which one is that before a call.

        Raises:
            OSError: ENOENT, a path is in neither; as `at`.
        """
        one, other = self.at(before, paths), self.at(after, paths)
        both = set(one.kept) & set(other.kept)
        left_out = {_inner(prefix) for prefix in self._volumes if prefix not in both}
        trees = ItemTree(one.tree), ItemTree(other.tree)
        for path in paths:
            if all(tree.entry(path) is None for tree in trees):
                text = f"'/{to_text(path)}' is neither in '{before.name}' nor in '{after.name}'"
                raise OSError(errno.ENOENT, text)
        times = [ref.time_ns for ref in (before, after) if ref.time_ns is not None]
        older_ns: int | None = min(times)
        chosen: Sequence[bytes] = paths
        branches = {self.branch_of(before), self.branch_of(after)}
        if len(branches) == 1 and all(ref.is_main or ref.is_call or ref.is_branch for ref in (before, after)):
            older_ns = _ALWAYS_NS + RACY_NS if None in branches else None
            touched = [*_touched(one.earlier), *_touched(other.earlier)]
            chosen = [path for path in _chosen(touched, paths) if any(tree.entry(path) is not None for tree in trees)]
        elif branches != {None}:
            older_ns = None  # a branch gives files numbers and times of its own
        ways = {above for prefix in self._volumes for above in _above(_inner(prefix))}
        result = differences(*trees, chosen, left_out=left_out, ways=ways, older_ns=older_ns)
        result.skipped += [(path, "not both states hold this route") for path in sorted(left_out)]
        return result


def _inner(prefix: AgentPath) -> bytes:
    return to_name(prefix).strip(b"/")


def _above(path: bytes) -> Iterator[bytes]:
    while path := split(path)[0]:
        yield path


def _touched(
    earlier: Mapping[AgentPath, EarlierVolume], prefixes: Collection[AgentPath] | None = None
) -> Iterator[bytes]:
    """The paths of main that a state before a call may differ at, in all routes or in some."""
    for prefix, volume in earlier.items():
        if prefixes is not None and prefix not in prefixes:
            continue
        yield from (join(_inner(prefix), path.strip(b"/")) if path else _inner(prefix) for path in volume.touched)


def _chosen(touched: Sequence[bytes], paths: Sequence[bytes]) -> list[bytes]:
    """Return what is both touched and asked for, without what lies in another one."""
    found = {path for path in touched if any(path == each or is_below(path, each) for each in paths)}
    found |= {path for path in paths if any(is_below(path, each) for each in touched)}
    return _tops(found)


def _tops(paths: Collection[bytes]) -> list[bytes]:
    """Return the paths that lie in no other one."""
    return sorted(path for path in paths if path == b"" or not any(above in paths for above in (b"", *_above(path))))


class ItemTree:
    """A `MergeTree` as a `ReadTree`, see `tree.py`."""

    device = 0

    def __init__(self, tree: MergeTree) -> None:
        self._tree = tree

    def _item(self, path: bytes) -> Item:
        item = self._tree.find(path)
        if item is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), to_text(path))
        return item

    def entry(self, path: bytes) -> os.stat_result | None:
        item = self._tree.find(path)
        return None if item is None else _stat(item)

    def entries(self, path: bytes) -> dict[bytes, os.stat_result]:
        return {name: _stat(item) for name, item in self._item(path).names().items()}

    @contextlib.contextmanager
    def reading(self, path: bytes) -> Iterator[int]:
        with copied(self._item(path).source()) as copy:
            yield copy

    def is_followed(self, path: bytes) -> bool:
        return True

    def target(self, path: bytes) -> bytes:
        return self._item(path).state.target

    def xattrs(self, path: bytes) -> dict[str, bytes]:
        return {os.fsdecode(name): value for name, value in self._item(path).state.xattrs.items()}


def _stat(item: Item) -> os.stat_result:
    return stat_of(item.state, item.ctime_ns)
