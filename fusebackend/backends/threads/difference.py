"""`Difference`: what has become another in the tree because somebody else has written to the database."""

from __future__ import annotations

from typing import Final

from fusebackend.backends.threads.nodes import DirectoryNode, Node
from fusebackend.base import paths
from fusebackend.protocol import Change, EventKind


class Difference:
    """Changes, for caches and watchers."""

    def __init__(self) -> None:
        self.changes: list[Change] = []

    def __bool__(self) -> bool:
        return bool(self.changes)

    def created(self, parent: DirectoryNode, name: bytes, node: Node) -> None:
        self._entry("created", parent, name, node)

    def deleted(self, parent: DirectoryNode, name: bytes, node: Node) -> None:
        self._entry("deleted", parent, name, node)

    def replaced(self, parent: DirectoryNode, name: bytes, node: Node) -> None:
        """A name leads to another node with other contents."""
        self._entry("modified", parent, name, node)

    def modified(self, parent: DirectoryNode, name: bytes, node: Node) -> None:
        """The bytes of a file are other ones."""
        path = _path(parent, name, node)
        self.changes.append(Change(node=node.node, kind="modified", path=path, source="elsewhere"))

    def unknown(self, directory: DirectoryNode) -> None:
        """Anything below it may be another: nobody has looked into it."""
        self.changes.append(Change(path=directory.path() + "/", source="elsewhere"))

    def forgotten(self, parent: DirectoryNode, name: bytes) -> None:
        """Nobody remembers whether there is such a name: caches have to ask again."""
        self.changes.append(Change(parent=parent.node, name=name))

    def attributes(self, node: Node) -> None:
        """Attributes that follow from something else, or pages."""
        self.changes.append(Change(node=node.node))

    def _entry(self, kind: EventKind, parent: DirectoryNode, name: bytes, node: Node) -> None:
        path = _path(parent, name, node)
        self.changes.append(Change(node.node, parent.node, name, kind, path, source="elsewhere"))
        self.changes.append(Change(node=parent.node))


def _path(parent: DirectoryNode, name: bytes, node: Node) -> str:
    path = paths.join(parent.path(), paths.to_text(name))
    return path + "/" if node.is_dir else path


class Untold(Difference):
    """For what is shown for the first time: nobody knows anything that could have become another. Building the records
    all the same took a sixth of a search through all heads."""

    def _entry(self, kind: EventKind, parent: DirectoryNode, name: bytes, node: Node) -> None: ...


UNTOLD: Final = Untold()
