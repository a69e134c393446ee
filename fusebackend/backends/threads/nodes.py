"""`Node`: a file or directory of the tree of threads, and `Nodes`, which finds one by its number.

A node lives while something needs it: the kernel holds it, it is open, the directory it is in is remembered, or
somebody has its attributes in hand. One that has gone and is wanted again gets another number, so what must not get
one is held by what it belongs to.
"""

from __future__ import annotations

import bisect
import errno
import itertools
import os
import stat
import threading
import weakref
from collections.abc import Iterable, Mapping

from fusebackend.base import heap, paths
from fusebackend.base.errors import oserror
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.protocol import BLOCK_BYTES, ROOT_NODE, Attr

DIRECTORY_BYTES = 4096

KEPT_ORDER = 256
"""The order of the names of a smaller directory is made anew each time."""

FILE_MODE = stat.S_IFREG | 0o444
DIRECTORY_MODE = stat.S_IFDIR | 0o555


class Nodes:
    """Numbers, and which node has which."""

    def __init__(self) -> None:
        self._numbers = itertools.count(ROOT_NODE)
        self._nodes: weakref.WeakValueDictionary[int, Node] = weakref.WeakValueDictionary()
        self._held: dict[int, Node] = {}
        self._peak = 0  # the most that was held since the tables last shrank
        self._opened: dict[int, tuple[FileNode, int]] = {}
        self._gate = threading.Lock()  # `hold` and `forget` come without the volume's lock

    def __len__(self) -> int:
        return len(self._nodes)

    def number(self, node: Node) -> int:
        number = next(self._numbers)
        self._nodes[number] = node
        return number

    def get(self, number: int) -> Node:
        """ESTALE for a node that is gone."""
        node = self._nodes.get(number)
        if node is None:
            raise oserror(errno.ESTALE)
        return node

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

    def hold(self, number: int) -> None:
        node = self._nodes.get(number)
        if node is not None:
            with self._gate:
                self._held[number] = node

    def forget(self, numbers: Iterable[int]) -> None:
        with self._gate:
            self._peak = max(self._peak, len(self._held))
            for number in numbers:
                self._held.pop(number, None)

    @property
    def is_mostly_forgotten(self) -> bool:
        return heap.is_mostly_empty(len(self._held), self._peak)

    def shrink(self) -> None:
        """Most of what the kernel knew is forgotten: give the tables' memory back. With the volume's lock held."""
        with self._gate:
            self._held = dict(self._held)
            self._peak = len(self._held)
        self._nodes = weakref.WeakValueDictionary(self._nodes)

    def open(self, node: FileNode) -> None:
        _, opens = self._opened.get(node.node, (node, 0))
        if not opens:
            node.load()
        self._opened[node.node] = node, opens + 1

    def release(self, number: int) -> None:
        node, opens = self._opened.pop(number, (None, 0))
        assert node is not None, f"node {number} released more often than opened"
        if opens > 1:
            self._opened[number] = node, opens - 1
        else:
            node.unload()


class Node(Attr):
    """A file or directory. Attributes are kept up to date by whoever shows it, see `settle`."""

    __slots__ = ("__weakref__",)

    def __init__(self, nodes: Nodes, mode: int, mtime_ns: int = 0) -> None:
        super().__init__(nodes.number(self), mode, uid=os.geteuid(), gid=os.getegid())
        self.date(mtime_ns)

    def date(self, mtime_ns: int) -> None:
        if mtime_ns == self.mtime_ns == self.ctime_ns:
            return  # an integer of its own is an object that stays
        self.atime_ns = self.mtime_ns = self.ctime_ns = mtime_ns

    def resize(self, size: int) -> None:
        self.size = size
        self.blocks = -(-size // BLOCK_BYTES)

    def settle(self) -> Node:
        """This node, with true attributes."""
        return self

    def xattrs(self) -> dict[bytes, bytes]:
        return {}


class FileNode(Node):
    """A file. `data` may make the bytes anew each time; between `load` and `unload` they are at hand."""

    __slots__ = ()

    def data(self) -> bytes:
        """The bytes. EIO where there are none because something is damaged."""
        raise NotImplementedError

    def load(self) -> None: ...

    def unload(self) -> None: ...


class TextFile(FileNode):
    """A file that says something of its own, such as what is wrong."""

    __slots__ = ("_data",)

    def __init__(self, nodes: Nodes, data: bytes, mtime_ns: int = 0) -> None:
        super().__init__(nodes, FILE_MODE, mtime_ns)
        self._data = data
        self.resize(len(data))

    def data(self) -> bytes:
        return self._data


class DirectoryNode(Node):
    """A directory below `parent`, under `name`. A subclass says what is in it."""

    __slots__ = ("_order", "name", "parent")

    def __init__(self, nodes: Nodes, parent: DirectoryNode | None, name: bytes, mtime_ns: int = 0) -> None:
        super().__init__(nodes, DIRECTORY_MODE, mtime_ns)  # a link count of 1 says that it counts no directories
        self.parent = parent
        self.name = name
        self._order: list[bytes] | None = None
        self.resize(DIRECTORY_BYTES)

    def entries(self) -> Mapping[bytes, Node]:
        """What is in it now."""
        raise NotImplementedError

    def renamed(self) -> None:
        """To be called when names have come or gone."""
        self._order = None

    def find(self, name: bytes) -> Node | None:
        return self.entries().get(name)

    def page(self, after: bytes, limit: int) -> list[tuple[bytes, Node]]:
        """Up to `limit` entries whose names are greater than `after`, in the order of names."""
        entries = self.entries()
        order = self._order if self._order is not None else sorted(entries)
        if len(order) >= KEPT_ORDER:
            self._order = order
        start = bisect.bisect_right(order, after) if after else 0
        return [(name, entries[name]) for name in order[start : start + limit]]

    def path(self) -> AgentPath:
        if self.parent is None:
            return ROOT
        return paths.join(self.parent.path(), paths.to_text(self.name))
