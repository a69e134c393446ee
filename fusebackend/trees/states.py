"""`States`: the tree of a REF (`refs.py`) over the volumes of a mount, and the differences of two.

A restore takes files from such a tree, and a diff compares two. A snapshot holds some routes of the mount; what lies in
the others is left out of a comparison: it would seem to have been created since.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from fusebackend.base.paths import ROOT, AgentPath, to_name, to_text
from fusebackend.base.relative_paths import is_below, join, tops
from fusebackend.protocol import Volume
from fusebackend.trees.branches import Branches
from fusebackend.trees.diff import Differences, differences
from fusebackend.trees.earlier import EarlierVolume
from fusebackend.trees.merge.tree import Item, MergeTree, by_node
from fusebackend.trees.refs import Ref
from fusebackend.trees.snapshots import Snapshots

_ALWAYS_NS = 1 << 62
"""Of two trees in which a file that is the same is the same node: its times need no comparison with the present."""


class MountState(NamedTuple):
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
        return tops(set(_touched({prefix: self.earlier[prefix] for prefix in prefixes})))

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

    def lacking(self, paths: Sequence[bytes]) -> list[str]:
        """Return the prefixes of the routes at and below some paths of which it holds nothing, for people."""
        lacks = {prefix: _inner(prefix) for prefix in self.tree.prefixes if prefix not in self.kept}
        return sorted(_shown(prefix) for prefix, route in lacks.items()
                      if any(route == path or is_below(route, path) for path in paths))  # fmt: skip


class States:
    """See the module's docstring.

    Args:
        volumes, snapshots, branches: of the mount.
        before: returns the routes as they were before a call or at a time, by prefix, for some paths of the mount;
            see `MountHistory.before`.
        branch_of: returns the branch whose state the one before a call is; None for that of the mount.
    """

    def __init__(
        self,
        volumes: Mapping[AgentPath, Volume],
        snapshots: Snapshots,
        branches: Branches,
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

    def at(self, ref: Ref, paths: Sequence[bytes] = (b"",)) -> MountState:
        """Return the tree of a state.

        Args:
            paths: of a state before a call: only these, and what is below them, are as they were.

        Raises:
            OSError: ENOENT, it is gone; ENODATA, the history lacks changes since the call; from a volume.
        """
        if ref.is_main:
            return MountState(MergeTree(self._volumes, self._volumes, by_node), self._volumes, {})
        if ref.is_call or ref.is_recorded:
            earlier = self._before(ref, paths)
            if self.branch_of(ref) is not None:  # its nodes are none of the mount
                return MountState(MergeTree(earlier, self._volumes), self._volumes, earlier)
            return MountState(MergeTree(earlier, self._volumes, by_node, _ALWAYS_NS), self._volumes, earlier)
        if ref.is_branch:
            branch = self._branches.volume(ref.name)
            time_ns = min(route.time_ns for route in branch.routes)
            tree = MergeTree({ROOT: branch}, self._volumes, branch.key_of, time_ns)
            return MountState(tree, self._volumes, {})
        parts = self._snapshots.find(ref.name)
        if parts is None:
            raise OSError(errno.ENOENT, f"there is no snapshot '{ref.name}'")
        views = {prefix: self._snapshots.volumes[prefix].snapshot(ref.name) for prefix in parts.parts}
        return MountState(MergeTree(views, self._volumes, by_node, parts.time_ns), parts.parts, {})

    def differences(self, before: Ref, after: Ref, paths: Sequence[bytes] = (b"",)) -> Differences:
        """Compare two states, in the routes of which both hold something.

        Raises:
            OSError: ENOENT, a path is in neither; ENODATA, one of them holds nothing of it; as `at`.
        """
        one, other = self.at(before, paths), self.at(after, paths)
        kept = set(one.kept) & set(other.kept)
        for path in paths:
            owner = one.tree.owner(path)
            if owner not in kept and not any(is_below(_inner(prefix), path) for prefix in kept):
                names = ", ".join(
                    f"'{ref.name}'" for ref, state in ((before, one), (after, other)) if owner not in state.kept
                )
                text = f"'/{to_text(path)}' lies in a route of which {names} holds nothing: '{_shown(owner)}'"
                raise OSError(errno.ENODATA, text)
            if one.tree.find(path) is None and other.tree.find(path) is None:
                text = f"'/{to_text(path)}' is neither in '{before.name}' nor in '{after.name}'"
                raise OSError(errno.ENOENT, text)
        trees, chosen = (one.tree, other.tree), list(paths)
        branches = {self.branch_of(before), self.branch_of(after)}
        if len(branches) == 1 and all(ref.is_main or ref.is_call or ref.is_branch for ref in (before, after)):
            touched = [*_touched(one.earlier), *_touched(other.earlier)]
            chosen = [path for path in _chosen(touched, chosen) if any(tree.find(path) is not None for tree in trees)]
        result = differences(*trees, chosen)
        asked = {f"/{to_text(path)}/" for path in paths if path}  # of these the routes in them are compared
        result.missing = sorted({*one.lacking(paths), *other.lacking(paths)} - asked)
        return result


def _shown(prefix: AgentPath) -> str:
    return f"{prefix.rstrip('/')}/"


def _inner(prefix: AgentPath) -> bytes:
    return to_name(prefix).strip(b"/")


def _touched(earlier: Mapping[AgentPath, EarlierVolume]) -> Iterator[bytes]:
    """The paths of main that a state before a call may differ at, in its routes."""
    for prefix, volume in earlier.items():
        yield from (join(_inner(prefix), path.strip(b"/")) if path else _inner(prefix) for path in volume.touched)


def _chosen(touched: Sequence[bytes], paths: Sequence[bytes]) -> list[bytes]:
    """Return what is both touched and asked for, without what lies in another one."""
    found = {path for path in touched if any(path == each or is_below(path, each) for each in paths)}
    found |= {path for path in paths if any(is_below(path, each) for each in touched)}
    return tops(found)
