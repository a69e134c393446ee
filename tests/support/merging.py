"""Three trees in memory for merges: a base, a branch and main, changed by the same kinds of steps, and compared."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from backend_kinds import opened_backend

from fusebackend.backends import volume_of
from fusebackend.backends.memory import InMemoryBackend
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.protocol import ROOT_NODE, SnapshotVolume, Volume
from fusebackend.testing import branches
from fusebackend.testing.by_path import (
    OWNER,
    File,
    Shown,
    at,
    chmod,
    content,
    link,
    links,
    mkdir,
    place,
    remove,
    rename,
    replace,
    shown,
    symlink,
    walk,
    write,
)
from fusebackend.trees.branch_volume import BranchVolume
from fusebackend.trees.composed import Places
from fusebackend.trees.lower_tree import LowerTree
from fusebackend.trees.merge.merges import trees_of
from fusebackend.trees.merge.plan import MergePlan, Side, plan
from fusebackend.trees.merge.run import Merge, Outcome, keep_sources
from fusebackend.trees.merge.tree import Item, MergeTree
from fusebackend.volumes import placing

__all__ = [
    "OWNER",
    "Branched",
    "File",
    "Shown",
    "Step",
    "Three",
    "a_branch",
    "at",
    "branch_over",
    "chmod",
    "content",
    "link",
    "links",
    "make",
    "mkdir",
    "place",
    "remove",
    "rename",
    "replace",
    "shown",
    "symlink",
    "walk",
    "write",
]


Step = tuple[Any, ...]
"""A function of this module, its arguments but for the volume, and perhaps a dictionary of those with names."""


def make(volume: Volume, steps: Iterable[Step]) -> None:
    for step, *words in steps:
        options = words.pop() if words and isinstance(words[-1], dict) else {}
        step(volume, *words, **options)


def memory() -> SnapshotVolume:
    volume = InMemoryBackend().volume
    assert isinstance(volume, SnapshotVolume)
    return volume


def copy(source: Volume, target: Volume) -> dict[int, int]:
    """Copy all files of a volume into an empty one; returns the nodes of the source by those of the copy."""
    nodes = {ROOT_NODE: ROOT_NODE}
    twins: dict[int, int] = {}
    for path, attr in walk(source):
        node = attr.node
        parent, name = place(target, path)
        if node in twins and not attr.is_dir:
            target.link(twins[node], parent, name)
            continue
        twins[node] = placing.make(target, parent, name, placing.NodeSource(source, node), [], "").attr.node
        nodes[twins[node]] = node
    return nodes


class Three:
    """A base, a branch and main. Main is the volume that the base is a snapshot of, and the branch a copy of the base.

    Args:
        make: fills the base.
        knows_nodes: the trees share keys, so that renames are seen.
    """

    def __init__(self, make: Callable[[Volume], Any], *, knows_nodes: bool = True) -> None:
        self.main = memory()
        make(self.main)
        self.main.take_snapshot("base")
        self.base = self.main.snapshot("base")
        self.branch = memory()
        self._nodes = copy(self.base, self.branch)
        self._knows_nodes = knows_nodes

    def trees(self) -> tuple[MergeTree, MergeTree, MergeTree]:
        """Return base, branch and main, to be read anew."""

        def key(prefix: AgentPath, node: int) -> object:
            return node if self._knows_nodes else None

        def branch_key(prefix: AgentPath, node: int) -> object:
            return self._nodes.get(node, ("new", node)) if self._knows_nodes else None

        return (
            MergeTree({ROOT: self.base}, key_of=key),
            MergeTree({ROOT: self.branch}, key_of=branch_key),
            MergeTree({ROOT: self.main}, key_of=key),
        )


def everything(item: Item) -> bool:
    return True


SNAPSHOT = "below"


def branch_over(path: str | os.PathLike[str], volumes: Mapping[AgentPath, Volume]) -> BranchVolume:
    """Open a branch over volumes at prefixes, or make it. Those with snapshots are taken as in the snapshot `below`."""
    places = Places(volumes)
    views: dict[int, Volume] = {}
    frozen = set()
    for route, prefix in enumerate(places.prefixes):
        volume = views[route] = volumes[prefix]
        if isinstance(volume, SnapshotVolume):
            if all(taken.name != SNAPSHOT for taken in volume.snapshots()):
                volume.take_snapshot(SNAPSHOT)
            views[route] = volume.snapshot(SNAPSHOT)
            frozen.add(route)
    return BranchVolume(path, LowerTree(places, views, frozen, time_ns=0))


class Branched(branches.Branched):
    """With the plan of a merge."""

    def plan(self, keep: Side | None = None, lines: bool = False, *, whole: bool = False) -> MergePlan:
        """Plan a merge; `whole` compares all files, not only those that the branch says to have changed."""
        base, branch, main, may_differ = trees_of(self.branch, self.volumes)
        return plan(base, branch, main, keep=keep, lines=lines, may_differ=everything if whole else may_differ)

    def merge(self, keep: Side | None = None, lines: bool = False) -> Outcome:
        journal = f"{self.directory}/b.merge"
        hooks: dict[str, Any] = {"follow": self.branch.follow, "before": partial(keep_sources, self.branch)}
        return Merge("b", self.volumes, lambda: self.plan(keep, lines), journal, **hooks).run()


@contextlib.contextmanager
def a_branch(kind: str, directory: Path, fill: Callable[[Volume], object]) -> Iterator[Branched]:
    """Give a new volume of a kind files, and make a branch of it."""
    with opened_backend(kind, directory) as backend:
        volume = volume_of(backend)
        fill(volume)
        with contextlib.closing(Branched(str(directory / "branches"), {ROOT: volume})) as trees:
            yield trees
