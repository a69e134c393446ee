"""Nodes whose names, sizes and times are known before their bytes are made: `Document`, `Link`, `ComputedDirectory`.

A directory's list of names comes from a function, and a node is made when somebody looks at its name. It lives as long
as the kernel or a caller holds it: a thousand conversations have some 100,000 names.
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from fusebackend.backends.threads.nodes import (
    FILE_MODE,
    ChangingFile,
    DirectoryNode,
    FileNode,
    Node,
    Nodes,
    TreeDifference,
    names_after,
)
from fusebackend.base.errors import oserror
from fusebackend.base.waiting import will_wait
from fusebackend.protocol import BLOCK_BYTES

QUICK_BYTES: Final = 32 << 10
"""Making a longer document takes over a millisecond, which other routes would wait for."""

LINK_MODE = stat.S_IFLNK | 0o777


class Document(ChangingFile):
    """A file whose bytes are made when they are needed, and kept while it is open.

    Args:
        fresh: refreshes what it is made of, which calls `expire` if there is news; gives the time of that.
        make: makes the bytes. OSError reaches the caller.
        size: gives the size, where that takes less than the bytes. Called once for each version.
        stored_bytes: gives the bytes in the database that it stands for.
        grows: by whole parts at its end alone: its handles share the page cache.
    """

    __slots__ = ("_fresh", "_grows", "_make", "_measured", "_size", "_stored_bytes")

    def __init__(
        self,
        nodes: Nodes,
        fresh: Callable[[], int],
        make: Callable[[], bytes],
        size: Callable[[], int] | None = None,
        *,
        stored_bytes: Callable[[], int] = lambda: 0,
        grows: bool = False,
    ) -> None:
        super().__init__(nodes)
        self._fresh, self._make, self._size, self._stored_bytes = fresh, make, size, stored_bytes
        self._grows = grows
        self._measured = -1  # the version with this size

    def settle(self) -> Document:
        mtime_ns = self._fresh()
        if self._measured != self.version:
            self.resize(len(self._make()) if self._size is None else self._size())
            if stored_bytes := self._stored_bytes():
                self.blocks = -(-stored_bytes // BLOCK_BYTES)
            self.date(mtime_ns)
            self._measured = self.version
        return self

    def _bytes(self) -> bytes:
        self._fresh()
        data = self._make()
        if self._nodes.is_open(self):
            self._data = data
        return data

    def opened(self) -> FileNode:
        if self.size > QUICK_BYTES:
            will_wait()
        return self if self._grows else super().opened()

    def expire(self) -> None:
        super().expire()
        self._data = None


Item: TypeAlias = Any
"""All that the node of a name is made of. Another item is another version of it."""

Names: TypeAlias = Mapping[bytes, Item]
"""A directory's names."""


class Fixed(FileNode):
    """A document whose bytes never change: news of it is another node under the same name.

    Bytes of another size mean that the database has changed and the kernel does not know it yet: the open is ESTALE, at
    which the kernel looks the name up again. The patch of a checkpoint that was just deleted was read as empty.

    Args:
        item: a tuple of all that the bytes are made of, and at its end their size and time. Shared with its directory:
            a walk through 1,000 conversations makes 100,000 of these.
        make: makes the bytes of an item. OSError reaches the caller.
    """

    __slots__ = ("_item", "_make")

    never_changes = True

    def __init__(self, nodes: Nodes, item: Item, make: Callable[[Item], bytes]) -> None:
        super().__init__(nodes, FILE_MODE, item[-1])
        self.resize(item[-2])
        self._item = item
        self._make = make

    def _bytes(self) -> bytes:
        return self._make(self._item)

    def load(self) -> None:
        if self.size > QUICK_BYTES:
            will_wait()
        super().load()
        if len(self.data()) != self.size:
            self.unload()
            raise oserror(errno.ESTALE)


class Link(Node):
    """A symbolic link."""

    __slots__ = ("target",)

    def __init__(self, nodes: Nodes, target: bytes, mtime_ns: int = 0) -> None:
        super().__init__(nodes, LINK_MODE, mtime_ns)
        self.target = target
        self.resize(len(target))


class ComputedDirectory(DirectoryNode):
    """A directory whose names and nodes are worked out.

    Args:
        fresh: updates the directory, by `refresh`, if there is news.
        names: gives the names.
        make: makes the node of a name and its item.
    """

    __slots__ = ("_fresh", "_made", "_make", "_names", "_nodes", "_shown")

    def __init__(
        self,
        nodes: Nodes,
        parent: DirectoryNode,
        name: bytes,
        fresh: Callable[[], None],
        names: Callable[[], Names],
        make: Callable[[bytes, Item], Node],
    ) -> None:
        super().__init__(nodes, parent, name)
        self._nodes = nodes
        self._fresh = fresh
        self._names = names
        self._make = make
        self._shown: Names | None = None  # once somebody has looked
        self._made: dict[bytes, int] = {}  # the number of the last node of a name, which may be gone

    def entries(self) -> Mapping[bytes, Node]:
        return {name: self._node(name, item) for name, item in self._current().items()}

    def find(self, name: bytes) -> Node | None:
        shown = self._current()
        return self._node(name, shown[name]) if name in shown else None

    def page(self, after: bytes, limit: int) -> list[tuple[bytes, Node]]:
        shown = self._current()
        return [(name, self._node(name, shown[name])) for name in names_after(shown, after, limit)]

    def refresh(self, difference: TreeDifference, *, everything: bool) -> None:
        """Update the names, if somebody has seen them. With `everything`, any node may have changed."""
        if self._shown is None:
            return
        before, self._shown = self._shown, self._names()
        if not everything and before == self._shown:
            return
        for name in before.keys() - self._shown.keys():
            self._removed(name, self._node(name, before[name]), difference)
        for name, item in self._shown.items():
            if name not in before:
                self._added(name, self._node(name, item), difference)
            elif item != before[name] or (everything and self._alive(name) is not None):
                self._changed(name, self._node(name, before[name]), item, difference)

    def let_go(self) -> None:
        """Drop the names, if the kernel can't have cached one, nor that one is missing."""
        if not self._nodes.holds(self.node) and not any(map(self._nodes.known, self._made.values())):
            self._shown = None
            self._made.clear()

    def _current(self) -> Names:
        self._fresh()
        if self._shown is None:
            self._shown = self._names()
        return self._shown

    def _node(self, name: bytes, item: Item) -> Node:
        node = self._alive(name)
        if node is None:
            node = self._make(name, item)
            self._made[name] = node.node
        return node

    def _alive(self, name: bytes) -> Node | None:
        """The node of a name, if it is alive."""
        number = self._made.get(name)
        return None if number is None else self._nodes.known(number)

    def _removed(self, name: bytes, node: Node, difference: TreeDifference) -> None:
        del self._made[name]
        node.nlink = 0
        difference.of_name("deleted", self, name, node)

    def _added(self, name: bytes, node: Node, difference: TreeDifference) -> None:
        difference.of_name("created", self, name, node)

    def _changed(self, name: bytes, node: Node, item: Item, difference: TreeDifference) -> None:
        """The item of a name is another one now."""
        del self._made[name]
        difference.of_name("modified", self, name, self._node(name, item))
