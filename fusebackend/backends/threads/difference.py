"""`Difference`: what has become another in the tree because somebody else has written to the database."""

from __future__ import annotations

from typing import Final

from fusebackend.backends.threads.nodes import DirectoryNode, Node
from fusebackend.base import paths
from fusebackend.protocol import Change, EventKind, Report


class Difference:
    """Changes for those who keep caches, reports for those who watch."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.reports: list[Report] = []

    def __bool__(self) -> bool:
        return bool(self.changes or self.reports)

    def created(self, parent: DirectoryNode, name: bytes, node: Node) -> None:
        self._entry("created", parent, name, node)

    def deleted(self, parent: DirectoryNode, name: bytes, node: Node) -> None:
        self._entry("deleted", parent, name, node)

    def replaced(self, parent: DirectoryNode, name: bytes, node: Node) -> None:
        """A name leads to another node with other contents."""
        self._entry("modified", parent, name, node)

    def modified(self, parent: DirectoryNode, name: bytes, node: Node) -> None:
        """The bytes of a file are other ones."""
        self.attributes(node)
        self._report("modified", parent, name, node)

    def unknown(self, directory: DirectoryNode) -> None:
        """Anything below it may be another: nobody has looked into it."""
        self.reports.append(Report("unknown", directory.path() + "/", node=directory.node, source="elsewhere"))

    def forgotten(self, parent: DirectoryNode, name: bytes) -> None:
        """Nobody remembers whether there is such a name: caches have to ask again."""
        self.changes.append(Change(parent=parent.node, name=name))

    def attributes(self, node: Node) -> None:
        """Attributes that follow from something else, or pages."""
        self.changes.append(Change(node=node.node))

    def _entry(self, kind: EventKind, parent: DirectoryNode, name: bytes, node: Node) -> None:
        self.changes.append(Change(node=node.node, parent=parent.node, name=name))
        self.changes.append(Change(node=parent.node))
        self._report(kind, parent, name, node)

    def _report(self, kind: EventKind, parent: DirectoryNode, name: bytes, node: Node) -> None:
        path = paths.join(parent.path(), paths.to_text(name))
        self.reports.append(Report(kind, path + "/" if node.is_dir else path, node=node.node, source="elsewhere"))


class Untold(Difference):
    """For what is shown for the first time: nobody knows anything that could have become another. Building the records
    all the same took a sixth of a search through all heads."""

    def _entry(self, kind: EventKind, parent: DirectoryNode, name: bytes, node: Node) -> None: ...


UNTOLD: Final = Untold()
