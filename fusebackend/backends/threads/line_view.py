"""`Line`: what is shown of one line of checkpoints, `head`, `history`, `messages.jsonl` and `state.json`.

A line is made when somebody looks into its directory. It is *stale* when the database has news of it, and made fresh
before anything of it is shown again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from fusebackend.backends.threads.database.checkpoint_names import time_ns_of
from fusebackend.backends.threads.difference import UNTOLD, Difference
from fusebackend.backends.threads.folders import Checkpoint, Entries, FilesDirectory, Head
from fusebackend.backends.threads.lineage import Lineage
from fusebackend.backends.threads.nodes import FILE_MODE, DirectoryNode, FileNode, Node, Nodes
from fusebackend.backends.threads.transcript import messages_jsonl, state_json

if TYPE_CHECKING:
    from fusebackend.backends.threads.tree import Subgraphs

HEAD: Final = b"head"
HISTORY: Final = b"history"
MESSAGES: Final = b"messages.jsonl"
STATE: Final = b"state.json"

RECENT_CHECKPOINTS: Final = 64
"""Checkpoints of a line whose folders are remembered though nobody holds any of them."""


class Line:
    """See the module's docstring. `found` is where it tells what a refresh has found."""

    def __init__(self, nodes: Nodes, directory: DirectoryNode, lineage: Lineage, found: Difference) -> None:
        self.lineage = lineage
        self.found = found
        self.stale = False
        self.version = 0
        """Grows with each refresh that has found something."""
        self._recent: OrderedDict[int, FilesDirectory] = OrderedDict()
        self.subgraphs: Subgraphs | None = None
        """Of a thread's own line, when somebody has looked for it."""
        self.head = Head(nodes, self, directory, HEAD, 0)
        self.history = History(nodes, self, directory, HISTORY)
        self.messages = Document(nodes, self, messages_jsonl)
        self.state = Document(nodes, self, state_json)
        self._directory = directory
        self._date()

    def entries(self) -> dict[bytes, Node]:
        return {HEAD: self.head, HISTORY: self.history, MESSAGES: self.messages, STATE: self.state}

    def fresh(self) -> None:
        """Look at the database again if it has news."""
        if not self.stale:
            return
        changed = self.lineage.verify()
        try:
            if changed is None or changed:
                self._refresh(changed)
        except BaseException:
            self.lineage.forget()  # what was half done is done again
            raise
        self.stale = False

    def _refresh(self, changed: frozenset[str] | None) -> None:
        self.version += 1
        self._date()
        self.head.refresh(self.found)
        self.history.refresh(self.found, changed)
        for name, document in ((MESSAGES, self.messages), (STATE, self.state)):
            document.expire()
            self.found.modified(self._directory, name, document)
        for directory in (self._directory, self.head, self.history):
            self.found.attributes(directory)

    def looked_into(self, directory: FilesDirectory) -> None:
        if isinstance(directory, Checkpoint):
            self._recent[directory.node] = directory
            self._recent.move_to_end(directory.node)
            if len(self._recent) > RECENT_CHECKPOINTS:
                self._recent.popitem(last=False)[1].let_go()

    def let_go(self) -> None:
        """What is in here need not be remembered, unless somebody holds it. It may be a megabyte or more."""
        self.lineage.let_go()
        while self._recent:
            self._recent.popitem()[1].let_go()
        for document in (self.messages, self.state):
            document.let_go()

    def _date(self) -> None:
        """Directories bear the time of the newest checkpoint."""
        newest = self.lineage.newest_id()
        self.time_ns = (time_ns_of(newest) if newest is not None else None) or 0
        for directory in (self._directory, self.head, self.history):
            directory.date(self.time_ns)


class History(DirectoryNode):
    """A directory for each checkpoint."""

    __slots__ = ("_entries", "_nodes", "line")

    def __init__(self, nodes: Nodes, line: Line, parent: DirectoryNode, name: bytes) -> None:
        super().__init__(nodes, parent, name)
        self._nodes = nodes
        self.line = line
        self._entries: Entries | None = None

    def entries(self) -> Entries:
        self.line.fresh()
        if self._entries is None:
            self._entries = Entries()
            self._list(UNTOLD)
        return self._entries

    def refresh(self, difference: Difference, changed: frozenset[str] | None) -> None:
        if self._entries is None:
            return
        self._list(difference)
        for node in self._entries.values():
            assert isinstance(node, Checkpoint)
            if changed is None or node.listed.id in changed:
                node.refresh(difference)

    def _list(self, difference: Difference) -> None:
        assert self._entries is not None
        names = self.line.lineage.names()
        for name in [name for name in self._entries if name not in names]:
            node = self._entries.pop(name)
            node.nlink = 0
            difference.deleted(self, name, node)
            self.renamed()
        for name, listed in names.items():
            if name not in self._entries:
                node = self._entries[name] = Checkpoint(self._nodes, self.line, self, name, listed)
                difference.created(self, name, node)
                self.renamed()


class Document(FileNode):
    """A file that is made of a line's state, when somebody wants to know its size or its bytes."""

    __slots__ = ("_data", "_is_open", "_line", "_make")

    def __init__(self, nodes: Nodes, line: Line, make: Callable[[Lineage], bytes]) -> None:
        super().__init__(nodes, FILE_MODE)
        self._line = line
        self._make = make
        self._data: bytes | None = None
        self._is_open = False

    def load(self) -> None:
        self._is_open = True

    def unload(self) -> None:
        self._is_open = False

    def let_go(self) -> None:
        """The bytes can be made again, but not for each piece that is read."""
        if not self._is_open:
            self._data = None

    def expire(self) -> None:
        self._data = None

    def settle(self) -> Document:
        self.data()
        return self

    def data(self) -> bytes:
        self._line.fresh()
        if self._data is None:
            self._data = self._make(self._line.lineage)
            self.resize(len(self._data))
            self.date(self._line.time_ns)
        return self._data
