"""What a `ForeignVolume` tells the caches above it when its backend was changed by somebody else.

A change at a path touches every directory on the way: it may be new, or gone. When nobody knows what has changed, all
that was ever shown has to be looked at again, and also the names of which it was said that they are not there: the
kernel remembers those as well.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from fusebackend.base import paths
from fusebackend.base.paths import AgentPath
from fusebackend.protocol import Change
from fusebackend.remote.tree import ForeignTree

MAX_ABSENT = 10_000
"""Names that are remembered as absent. One beyond that is told as changed, so that the kernel forgets it too."""


class AbsentNames:
    """Names that were asked for and are not there, by the directory's node."""

    def __init__(self) -> None:
        self._names: OrderedDict[tuple[int, bytes], None] = OrderedDict()

    def add(self, parent: int, name: bytes) -> Change | None:
        """Remember a name; returns what is to be told of one that is remembered no longer."""
        self._names[parent, name] = None
        self._names.move_to_end((parent, name))
        if len(self._names) <= MAX_ABSENT:
            return None
        (directory, forgotten), _ = self._names.popitem(last=False)
        return Change(parent=directory, name=forgotten)

    def take(self) -> Iterator[Change]:
        """All of them, once."""
        while self._names:
            (parent, name), _ = self._names.popitem()
            yield Change(parent=parent, name=name)


def changes_at(tree: ForeignTree, path: AgentPath) -> list[Change]:
    """A file or directory at a path was changed, made or removed. Its buffer goes, if nothing is lost with it."""
    changes: list[Change] = []
    entry = tree.root
    for name in paths.split(path):
        child = entry.children.get(name)
        changes.append(Change(node=entry.node))
        changes.append(Change(node=child.node if child is not None else None, parent=entry.node, name=name))
        if child is None:
            return changes
        entry = child
    if not entry.dirty:
        entry.drop_buffer()  # handles read what is there now
    return changes


def changes_everywhere(tree: ForeignTree) -> list[Change]:
    """Anything may have changed."""
    changes: list[Change] = []
    for entry in tree.entries():
        parent = entry.parent
        changes.append(Change(entry.node, parent.node if parent is not None else None, entry.name))
        if not entry.dirty:
            entry.drop_buffer()
    return changes
