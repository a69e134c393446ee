"""`Line`: the contents of one line's directory: `head`, `history`, `messages.jsonl` and `state.json`.

A line is made when its directory is read. It is *stale* when the database has news of it, and refreshed before anything
of it is shown again.

`Head` has the files as of now, a `Checkpoint` of `History` those at that checkpoint. Both are filled from a dict of
records when they are read, and updated in place, so that a file or folder that stays keeps its node. The files of a
checkpoint are the records themselves; those of a head are nodes by path, whose contents change. A checkpoint's folders
may be dropped, and come back with other numbers unless the kernel holds one of them.

`messages.jsonl` has one message a line, an object with `type` (human, ai, tool, system …), `content`, `id` and the
message's other fields. `state.json` has the newest checkpoint, the next nodes, the pending interrupts, and the values
of all channels but `files`, `messages` and those that only steer the graph. In place of an unreadable value is an
object with the key `error`; a `warning` says that older checkpoints were deleted from the database, which LangGraph
ignores silently.
"""

from __future__ import annotations

import json
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, Union

from fusebackend.backends.threads.database.activity import INTERRUPT
from fusebackend.backends.threads.database.rows import Damaged, Listed, Raw, time_ns_of
from fusebackend.backends.threads.database.values import loads, readable
from fusebackend.backends.threads.lineage import Lineage, Newest
from fusebackend.backends.threads.nodes import (
    FILE_MODE,
    UNTOLD,
    Difference,
    DirectoryNode,
    FileNode,
    Node,
    Nodes,
    Record,
    TextFile,
)
from fusebackend.base.stamps import now_ns
from fusebackend.remote.keys import arrange

HEAD: Final = b"head"
HISTORY: Final = b"history"
MESSAGES: Final = b"messages.jsonl"
STATE: Final = b"state.json"

RECENT_CHECKPOINTS: Final = 64
"""Checkpoints of a line whose folders are cached though the kernel holds none of them."""


class Line:
    """See the module's docstring. The changes that a refresh finds go into `found`."""

    def __init__(self, nodes: Nodes, directory: DirectoryNode, lineage: Lineage, found: Difference) -> None:
        self.lineage = lineage
        self.found = found
        self.stale = False
        self.version = 0
        """Grows with each refresh that has found something."""
        self._recent: OrderedDict[int, FilesDirectory] = OrderedDict()
        self.subgraphs: DirectoryNode | None = None
        """Of a thread's own line, once it is known; it lives as long as the line."""
        self.head = Head(nodes, self, directory, HEAD, 0)
        self.history = History(nodes, self, directory, HISTORY)
        self.messages = Document(nodes, self, messages_jsonl)
        self.state = Document(nodes, self, state_json)
        self._directory = directory
        self._date()

    def entries(self) -> dict[bytes, Node]:
        return {HEAD: self.head, HISTORY: self.history, MESSAGES: self.messages, STATE: self.state}

    def fresh(self) -> None:
        """Refresh it from the database if it is stale."""
        if not self.stale:
            return
        changed = self.lineage.verify()
        try:
            if changed is None or changed:
                self._refresh(changed)
        except BaseException:
            self.lineage.forget()  # the next refresh starts over
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
        """Drop values that the kernel does not hold. They may have a megabyte or more."""
        self.lineage.let_go()
        while self._recent:
            self._recent.popitem()[1].let_go()
        for document in (self.messages, self.state):
            document.let_go()

    def _date(self) -> None:
        """Give directories the time of the newest checkpoint."""
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
    """A file made of a line's state when its size or bytes are needed."""

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
        """Drop the bytes, except of an open file: they are not made anew for each piece that is read."""
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


# -- directories of files --------------------------------------------------------------------------------------------

ERROR_NAME = b"ERROR.txt"

Wanted: TypeAlias = dict[bytes, Union["Wanted", Record, str]]
"""The wanted entries of a directory: directories, files, and the text of `ERROR.txt`."""


def wanted(files: Mapping[str, Record]) -> Wanted:
    """The tree that the keys of files make, as in `remote/keys.py`."""
    root: Wanted = {}
    for names, key in arrange(files).items():
        directory = root
        for name in names[:-1]:
            below = directory.setdefault(name, {})
            assert isinstance(below, dict), f"{key!r} is below a file"
            directory = below
        directory[names[-1]] = files[key]
    return root


class Entries(dict[bytes, Node]):
    """The entries of a directory, as an object that can be referred to weakly."""

    __slots__ = ("__weakref__",)


class Folder(DirectoryNode):
    """A directory below a `Head` or `Checkpoint`."""

    __slots__ = ("_entries", "_siblings")

    def __init__(self, nodes: Nodes, parent: DirectoryNode, name: bytes, siblings: Entries) -> None:
        super().__init__(nodes, parent, name, parent.mtime_ns)
        self._entries = Entries()
        self._siblings = siblings  # a held folder keeps the directories above it

    def entries(self) -> Entries:
        return self._entries


class FilesDirectory(DirectoryNode):
    """The base of `Head` and `Checkpoint`."""

    __slots__ = ("_entries", "_nodes", "_weakly", "line")

    def __init__(self, nodes: Nodes, line: Line, parent: DirectoryNode, name: bytes, mtime_ns: int) -> None:
        super().__init__(nodes, parent, name, mtime_ns)
        self._nodes = nodes
        self.line = line
        self._entries: Entries | None = None
        self._weakly: weakref.ref[Entries] | None = None

    def entries(self) -> Entries:
        self.line.fresh()
        entries = self._known()
        if entries is None:
            entries = Entries()
            self._update(self, entries, self._wanted(), UNTOLD)
            self._weakly = weakref.ref(entries)
        self._entries = entries
        self.line.looked_into(self)
        return entries

    def let_go(self) -> None:
        """Drop the entries, unless the kernel holds one of them."""
        self._entries = None

    def refresh(self, difference: Difference) -> None:
        """Update the entries, if they are cached."""
        entries = self._known()
        if entries is not None:
            self._update(self, entries, self._wanted(), difference)

    def _known(self) -> Entries | None:
        if self._entries is None and self._weakly is not None:
            return self._weakly()
        return self._entries

    def _files(self) -> Mapping[str, Record]:
        raise NotImplementedError

    def _wanted(self) -> Wanted:
        try:
            return wanted(self._files())
        except Damaged as error:
            return {ERROR_NAME: f"The files of this checkpoint can't be shown. {error}\n"}

    def _update(self, directory: DirectoryNode, entries: Entries, target: Wanted, difference: Difference) -> None:
        for name in [name for name, node in entries.items() if not _same_kind(node, target.get(name))]:
            gone = entries.pop(name)
            gone.nlink = 0
            directory.renamed()
            directory.date(self.mtime_ns)
            difference.deleted(directory, name, gone)
        for name, item in target.items():
            node = entries.get(name)
            if isinstance(item, dict):
                folder = node if isinstance(node, Folder) else Folder(self._nodes, directory, name, entries)
                if folder is not node:
                    self._added(directory, entries, name, folder, difference)
                self._update(folder, folder.entries(), item, difference)
            elif node is None:
                self._added(directory, entries, name, self._file(item), difference)
            else:
                self._changed(directory, entries, name, node, item, difference)

    def _added(
        self, directory: DirectoryNode, entries: Entries, name: bytes, node: Node, difference: Difference
    ) -> None:
        entries[name] = node
        directory.renamed()
        directory.date(self.mtime_ns)
        difference.created(directory, name, node)

    def _file(self, item: Record | str) -> FileNode:
        return TextFile(self._nodes, item.encode("utf-8", "replace"), self.mtime_ns) if isinstance(item, str) else item

    def _changed(
        self, directory: DirectoryNode, entries: Entries, name: bytes, node: Node, item: Record | str,
        difference: Difference,
    ) -> None:  # fmt: skip
        """A file takes the place of a file."""
        if isinstance(item, str):
            if isinstance(node, TextFile) and node.data() == item.encode("utf-8", "replace"):
                return
        elif node is item:
            return
        entries[name] = self._file(item)
        difference.replaced(directory, name, entries[name])


def _same_kind(node: Node, item: Wanted | Record | str | None) -> bool:
    return item is not None and isinstance(item, dict) == node.is_dir


class Checkpoint(FilesDirectory):
    """The files at one checkpoint."""

    __slots__ = ("listed",)

    def __init__(self, nodes: Nodes, line: Line, parent: DirectoryNode, name: bytes, listed: Listed) -> None:
        super().__init__(nodes, line, parent, name, time_ns_of(listed.id, listed.ts) or 0)
        self.listed = listed

    def _files(self) -> Mapping[str, Record]:
        return self.line.lineage.files_at(self.listed.id)

    def xattrs(self) -> dict[bytes, bytes]:
        return {b"user.fusebackend.checkpoint": self.listed.id.encode("utf-8", "surrogateescape")}


class HeadFile(FileNode):
    """A file as of now: its contents change."""

    __slots__ = ("_line", "record")

    def __init__(self, nodes: Nodes, line: Line, record: Record) -> None:
        super().__init__(nodes, FILE_MODE)
        self._line = line
        self.record = record
        self._show(record)

    def settle(self) -> HeadFile:
        self._line.fresh()
        return self

    def become(self, record: Record) -> None:
        self._show(record)
        self.ctime_ns = now_ns()  # its own times may be those of the version before
        self.record = record

    def _show(self, record: Record) -> None:
        self.date(record.mtime_ns)
        self.resize(record.size)

    def data(self) -> bytes:
        return self.record.data()

    def load(self) -> None:
        self.record.load()

    def unload(self) -> None:
        self.record.unload()

    def xattrs(self) -> dict[bytes, bytes]:
        return self.record.xattrs()


class Head(FilesDirectory):
    """The files as of now."""

    __slots__ = ()

    def _files(self) -> Mapping[str, Record]:
        return self.line.lineage.files_now()

    def _file(self, item: Record | str) -> FileNode:
        return HeadFile(self._nodes, self.line, item) if isinstance(item, Record) else super()._file(item)

    def _changed(
        self, directory: DirectoryNode, entries: Entries, name: bytes, node: Node, item: Record | str,
        difference: Difference,
    ) -> None:  # fmt: skip
        if isinstance(node, HeadFile) and isinstance(item, Record):
            if node.record is not item:
                node.become(item)
                difference.modified(directory, name, node)
            return
        super()._changed(directory, entries, name, node, item, difference)


# -- the two documents -----------------------------------------------------------------------------------------------

_SHOWN_ELSEWHERE: Final = ("files", "messages")
_STEERING: Final = ("branch:", "join:", "start:", "__")


def messages_jsonl(lineage: Lineage) -> bytes:
    """The current conversation."""
    try:
        lines = [_json_line(message) for message in lineage.messages_now()]
    except Damaged as error:
        lines = [_json_line({"error": str(error)})]
    return "".join(lines).encode("utf-8", "surrogateescape")


def state_json(lineage: Lineage) -> bytes:
    """The rest of the current state."""
    try:
        newest = lineage.newest()
        state = _state(lineage, newest) if newest is not None else {}
    except Damaged as error:
        state = {"thread_id": lineage.place.thread, "checkpoint_ns": lineage.place.namespace, "error": str(error)}
    return (json.dumps(state, ensure_ascii=False, indent=2) + "\n").encode("utf-8", "surrogateescape")


def _json_line(message: Mapping[str, Any]) -> str:
    shown = {key: value for key, value in message.items() if key == "content" or value not in (None, {}, [])}
    return json.dumps(readable(shown), ensure_ascii=False) + "\n"


def _state(lineage: Lineage, newest: Newest) -> dict[str, Any]:
    saved = newest.saved
    state: dict[str, Any] = {
        "thread_id": lineage.place.thread,
        "checkpoint_ns": lineage.place.namespace,
        "checkpoint_id": saved.id,
        "parent_checkpoint_id": saved.parent,
        "created_at": saved.ts,
        "metadata": readable(saved.metadata),
        "next": list(newest.standing.next),
        "interrupts": _interrupts(newest),
        "values": {channel: _shown(value) for channel, value in sorted(saved.values.items()) if _is_state(channel)},
        "pending": [
            {"task_id": write.task, "channel": write.channel, "value": _loaded(write.value)}
            for write in newest.writes
            if _is_state(write.channel)
        ],
    }
    keys = _escaped_keys(lineage)
    if keys:
        state["file_keys"] = keys
    if lineage.missing is not None:
        state["warning"] = f"Checkpoint {lineage.missing} is gone: what was written up to it may be missing from files"
    return state


def _interrupts(newest: Newest) -> list[Any]:
    found: list[Any] = []
    for write in newest.standing.interrupts:
        assert write.channel == INTERRUPT, f"{write.channel} is no interrupt"
        values = _loaded(write.value)
        found += values if isinstance(values, list) else [values]
    return found


def _is_state(channel: str) -> bool:
    return channel not in _SHOWN_ELSEWHERE and not channel.startswith(_STEERING)


def _loaded(raw: Raw) -> Any:
    try:
        return readable(loads(raw))
    except Damaged as error:
        return {"error": str(error)}


def _shown(value: Any) -> Any:
    try:
        return readable(value)
    except Damaged as error:
        return {"error": str(error)}


def _escaped_keys(lineage: Lineage) -> dict[str, str]:
    """Path → key of the files in `head` whose path is not their key."""
    try:
        places = arrange(lineage.files_now())
    except Damaged:
        return {}
    found = {}
    for names, key in places.items():
        path = "/" + b"/".join(names).decode("utf-8", "surrogateescape")
        if path != key:
            found[path] = key
    return found
