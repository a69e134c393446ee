"""`Node`: a file or directory of the tree of threads; `Nodes` finds one by its number; `TreeDifference` has changes.

A node lives while it is referenced: the kernel holds it, it is open, its directory is cached, or a caller has its
attributes. A node that is made again gets another number, so its owner holds it where that must not happen.

A `Record` is one version of a file in an agent's state, and `Records` makes equal ones the same object. So a file that
did not change is the same inode in every checkpoint: `diff -r` between two checkpoints reads only the differing files,
and a page that is cached for one is cached for all. Its link count is 1 all the same, for archivers would make hard
links of it.
"""

from __future__ import annotations

import bisect
import contextlib
import errno
import itertools
import os
import stat
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from fusebackend import text
from fusebackend.backends.threads.database.rows import LeftOut
from fusebackend.base import heap, paths
from fusebackend.base.errors import oserror
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.protocol import BLOCK_BYTES, ROOT_NODE, Attr, Change, EventKind
from fusebackend.remote.agent_remote import time_ns

DIRECTORY_BYTES = 4096

RECENT_NODES = 64
"""Nodes that live after a look-up though nobody holds them."""

FILE_MODE = stat.S_IFREG | 0o444
DIRECTORY_MODE = stat.S_IFDIR | 0o555


class Nodes:
    """Nodes by number: all by weak references, and those that the kernel holds in a dict as well."""

    def __init__(self) -> None:
        self.uid, self.gid = os.geteuid(), os.getegid()
        self.prunable = 0
        """Added to the mode of directories from which directories can be removed."""
        self._numbers = itertools.count(ROOT_NODE)
        self._alive: weakref.WeakValueDictionary[int, Node] = weakref.WeakValueDictionary()
        self._held: dict[int, Node] = {}
        self.forgotten = 0
        """By the kernel, since garbage was last collected."""
        self._peak = 0  # the most that was held since the tables last shrank
        self._opened: dict[int, tuple[FileNode, int]] = {}
        self._recent: deque[Node] = deque(maxlen=RECENT_NODES)
        self._gate = threading.Lock()  # `hold` and `forget` come without the volume's lock

    def __len__(self) -> int:
        return len(self._alive)

    def number(self, node: Node) -> int:
        number = next(self._numbers)
        self._alive[number] = node
        return number

    def get(self, number: int) -> Node:
        """ESTALE for a node that is gone."""
        node = self.known(number)
        if node is None:
            raise oserror(errno.ESTALE)
        return node

    def known(self, number: int) -> Node | None:
        """The node with this number, if it is alive."""
        return self._alive.get(number)

    def directory(self, number: int) -> DirectoryNode:
        node = self.get(number)
        if not isinstance(node, DirectoryNode):
            raise oserror(errno.ENOTDIR)
        return node

    def file(self, number: int) -> FileNode:
        node = self.get(number)
        if not isinstance(node, FileNode):
            raise oserror(errno.EISDIR)
        return node

    def looked_up(self, node: Node) -> None:
        """Keep a node for a while: a caller that goes down a path has only its number."""
        self._recent.append(node)

    def hold(self, number: int) -> None:
        with self._gate:
            node = self._alive.get(number)
            if node is not None:
                self._held[number] = node

    def holds(self, number: int) -> bool:
        """Whether the kernel holds a node."""
        return number in self._held

    def forget(self, numbers: Iterable[int]) -> None:
        with self._gate:
            self._peak = max(self._peak, len(self._held))
            for number in numbers:
                if self._held.pop(number, None) is not None:
                    self.forgotten += 1

    @property
    def is_mostly_forgotten(self) -> bool:
        return heap.is_mostly_empty(len(self._held), self._peak)

    def shrink(self) -> None:
        """Give back the tables' memory after many `forget`s. With the volume's lock held."""
        with self._gate:
            self._held = dict(self._held)
            self._peak = len(self._held)
            self._alive = weakref.WeakValueDictionary(self._alive)

    def open(self, node: FileNode) -> None:
        _, opens = self._opened.get(node.node, (node, 0))
        if not opens:
            node.load()
        self._opened[node.node] = node, opens + 1

    def is_open(self, node: FileNode) -> bool:
        return node.node in self._opened

    def release(self, number: int) -> None:
        node, opens = self._opened.pop(number, (None, 0))
        assert node is not None, f"node {number} released more often than opened"
        if opens > 1:
            self._opened[number] = node, opens - 1
        else:
            node.unload()


def blocks_of(size: int) -> int:
    """The blocks of a file that takes no space of its own: `space.tsv` has those of its thread.

    One says that it is no hole. GNU tar's `--sparse` stores nothing but zeros for a file of a block and more that has
    none, as in `/sys`.
    """
    return min(size // BLOCK_BYTES, 1)


class Node(Attr):
    """A file or directory. `settle` updates its attributes before they are shown."""

    __slots__ = ("__weakref__",)

    def __init__(self, nodes: Nodes, mode: int, mtime_ns: int = 0) -> None:
        number, uid, gid = nodes.number(self), nodes.uid, nodes.gid
        super().__init__(number, mode, uid=uid, gid=gid, atime_ns=mtime_ns, mtime_ns=mtime_ns, ctime_ns=mtime_ns)

    def date(self, mtime_ns: int) -> None:
        if mtime_ns == self.mtime_ns == self.ctime_ns:
            return  # the present integer is shared with other nodes
        self.atime_ns = self.mtime_ns = self.ctime_ns = mtime_ns

    def resize(self, size: int) -> None:
        self.size = size
        self.blocks = blocks_of(size)

    def settle(self) -> Node:
        """This node, with current attributes."""
        return self

    def xattrs(self) -> dict[bytes, bytes]:
        return {}


class FileNode(Node):
    """A file. `data` makes the bytes anew each time, by `_bytes`; between `load` and `unload` they are at hand."""

    __slots__ = ("_data",)

    never_changes = False
    """Other bytes are another node: nobody asks for news before the file is opened, a third of the time of a search."""

    def __init__(self, nodes: Nodes, mode: int, mtime_ns: int = 0) -> None:
        super().__init__(nodes, mode, mtime_ns)
        self._data: bytes | None = None

    def data(self) -> bytes:
        """The bytes. EIO where there are none because something is damaged."""
        return self._data if self._data is not None else self._bytes()

    def _bytes(self) -> bytes:
        raise NotImplementedError

    def opened(self) -> FileNode:
        """The node that a new handle reads. Another one than this is of that handle's moment (`Volume.open`)."""
        return self

    def load(self) -> None:
        """Called before the first open. EIO as for `data`."""
        self._data = self._bytes()

    def unload(self) -> None:
        """Called after the last one was closed."""
        self._data = None


class ChangingFile(FileNode):
    """A file whose bytes change. `expire` is called when they have."""

    __slots__ = ("_latest", "_nodes", "version")

    def __init__(self, nodes: Nodes) -> None:
        super().__init__(nodes, FILE_MODE)
        self._nodes = nodes
        self._latest: weakref.ref[FileVersion] | None = None
        self.version = 0

    def opened(self) -> FileNode:
        latest = self._latest() if self._latest is not None else None
        if latest is None:
            latest = FileVersion(self._nodes, self)
            self._latest = weakref.ref(latest)
        return latest

    def expire(self) -> None:
        self.version += 1
        self._latest = None


class FileVersion(FileNode):
    """A `ChangingFile` for the handles opened between two of its changes: one version, read past the page cache.

    A program reads until it gets nothing, so a file that was `8` at the first read(2) and `11` at the second read as
    `81`; and the kernel reads as far as the size that it knows, so a `state.json` that grew just before `open` ended
    inside a value: 3 of 500 opens beside a writer. A version that begins with all that this one has takes its place,
    for `tail -f`.
    """

    __slots__ = ("_file", "_seen", "_version")

    def __init__(self, nodes: Nodes, file: ChangingFile) -> None:
        """EIO as `FileNode.data`."""
        super().__init__(nodes, FILE_MODE)
        self._file = file
        self._version = file.version
        self._show(file.data())

    def settle(self) -> FileVersion:
        self.data()
        return self

    def data(self) -> bytes:
        if self._version != self._file.version:
            self._version = self._file.version
            with contextlib.suppress(OSError):
                latest = self._file.data()
                if latest.startswith(self._seen):
                    self._show(latest)
        return self._seen

    _bytes = data

    def _show(self, data: bytes) -> None:
        self._seen = data
        self.date(self._file.mtime_ns)
        self.resize(len(data))


class DirectoryNode(Node):
    """A directory below `parent`, under `name`. Subclasses have the entries."""

    __slots__ = ("name", "parent")

    def __init__(self, nodes: Nodes, parent: DirectoryNode | None, name: bytes, mtime_ns: int = 0) -> None:
        super().__init__(nodes, DIRECTORY_MODE, mtime_ns)  # a link count of 1: subdirectories are not counted
        self.parent = parent
        self.name = name
        self.size = DIRECTORY_BYTES

    def entries(self) -> Mapping[bytes, Node]:
        """The current entries."""
        raise NotImplementedError

    def find(self, name: bytes) -> Node | None:
        return self.entries().get(name)

    def page(self, after: bytes, limit: int) -> list[tuple[bytes, Node]]:
        """Up to `limit` entries whose names are greater than `after`, in the order of names."""
        entries = self.entries()
        return [(name, entries[name]) for name in names_after(entries, after, limit)]

    def path(self) -> AgentPath:
        if self.parent is None:
            return ROOT
        return paths.join(self.parent.path(), paths.to_text(self.name))


def names_after(names: Iterable[bytes], after: bytes, limit: int) -> list[bytes]:
    """Up to `limit` of a directory's names that are greater than `after`, in order. Most are in order already: 10,000
    take 70 µs a page."""
    order = sorted(names)
    start = bisect.bisect_right(order, after) if after else 0
    return order[start : start + limit]


# -- versions of files -----------------------------------------------------------------------------------------------


class Record(FileNode):
    """A file's content and times.

    Attributes:
        source: the record itself.
        file_format: `v2` (text and encoding), `v1` (a list of lines), or `v0`, the bare text of the first deepagents.
        error: the reason for having no content, or None.
    """

    __slots__ = ("error", "file_format", "source")

    never_changes = True

    def __init__(self, nodes: Nodes, source: Any) -> None:
        super().__init__(nodes, FILE_MODE)
        self.source = source
        self.error: str | None = None
        content = source.get("content") if isinstance(source, Mapping) else None
        self.file_format = "v0" if isinstance(source, str) else "v1" if isinstance(content, (list, tuple)) else "v2"
        self.date(_mtime_ns(source))
        if isinstance(source, LeftOut):
            self.error = source.reason
            return
        try:
            self.resize(len(self._decode()))
        except (TypeError, ValueError) as error:
            self.error = str(error)

    def _bytes(self) -> bytes:
        if self.error is not None:
            raise OSError(errno.EIO, f"this is no file data: {self.error}")
        return self._decode()

    def xattrs(self) -> dict[bytes, bytes]:
        return {} if self.error is None else {b"user.fusebackend.error": self.error.encode("utf-8", "replace")}

    def _decode(self) -> bytes:
        if isinstance(self.source, str):
            return self.source.encode("utf-8")
        return text.decode_file_data(self.source)

    @property
    def created_at(self) -> str | None:
        found = self.source.get("created_at") if isinstance(self.source, Mapping) else None
        return found if isinstance(found, str) else None


class Records:
    """The records in use; equal ones are one object."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._known: weakref.WeakValueDictionary[object, Record] = weakref.WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._known)

    def of(self, source: Any) -> Record:
        key = _key(source)
        if key is None:
            return Record(self._nodes, source)
        record = self._known.get(key)
        if record is None:
            record = self._known[key] = Record(self._nodes, source)
        return record

    def saying(self, words: str, mtime_ns: int) -> Record:
        """A file of ours that says something."""
        content = words.encode("utf-8", "replace").decode()
        return self.of({"content": content, "modified_at": text.iso_time(mtime_ns)})

    def shrink(self) -> None:
        """Give back the memory of a table that was once much larger."""
        self._known = weakref.WeakValueDictionary(self._known)


def _key(source: Any) -> object | None:
    """A key that is equal for equal records; None where that takes too long to tell."""
    if isinstance(source, (str, LeftOut)):
        return source
    if not isinstance(source, Mapping):
        return None
    content = source.get("content")
    if isinstance(content, (list, tuple)):
        content = tuple(content)
    rest = (source.get(name) for name in ("encoding", "created_at", "modified_at"))
    key = (content, *(sys.intern(value) if type(value) is str else value for value in rest))  # many records share these
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _mtime_ns(source: Any) -> int:
    """1970 for a record without a time: the same in every checkpoint."""
    if not isinstance(source, Mapping):
        return 0
    for name in ("modified_at", "created_at"):
        found = source.get(name)
        when = time_ns(found) if isinstance(found, str) else None
        if when is not None:
            return when
    return 0


# -- changes ---------------------------------------------------------------------------------------------------------


class TreeDifference(list[Change]):
    """The changes of the tree that follow from writes of others, for caches and watchers."""

    def of_name(self, kind: EventKind, parent: DirectoryNode, name: bytes, node: Node) -> None:
        """A name has come or gone, or, for `modified`, leads to another node with other contents."""
        path = _path(parent, name, node)
        self.append(Change(node.node, parent.node, name, kind, path, source="elsewhere"))
        self.append(Change(node=parent.node))

    def modified(self, parent: DirectoryNode, name: bytes, node: Node) -> None:
        """The bytes of a file have changed."""
        path = _path(parent, name, node)
        self.append(Change(node=node.node, kind="modified", path=path, source="elsewhere"))

    def unknown(self, directory: DirectoryNode) -> None:
        """Anything below may have changed: it is not cached."""
        self.append(Change(path=directory.path() + "/", source="elsewhere"))

    def forgotten(self, parent: DirectoryNode, name: bytes) -> None:
        """This name may have come or gone."""
        self.append(Change(parent=parent.node, name=name))

    def attributes(self, node: Node) -> None:
        """Attributes or pages have changed."""
        self.append(Change(node=node.node))


def _path(parent: DirectoryNode, name: bytes, node: Node) -> str:
    path = paths.join(parent.path(), paths.to_text(name))
    return path + "/" if node.is_dir else path
