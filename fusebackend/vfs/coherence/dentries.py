"""`Dentries`: the kernel's dentries, on routes that other hosts change too.

The kernel does not say by which name it opens an inode. So every name that it was given, and no notice has dropped, is
kept here, both ways, for `revalidation.py` to compare with the volume. One name leads to one inode; an inode has all
names by which it was found. Only for shared routes, since it costs some hundred bytes for each name.

Added on the mount's loop, dropped there and by the threads that notify the kernel.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import TypeAlias

from fusebackend.protocol import RENAME_EXCHANGE, ROOT_NODE, Link
from fusebackend.vfs.inodes import SYNTHETIC_INDEX, node_of, route_index
from fusebackend.vfs.junctions import MountTree, Route

LINGER_S = 5.0
"""How long a dropped name is kept: longer than from a walk through the dentry to the request that follows."""

Name: TypeAlias = tuple[int, bytes]
"""A directory's inode number, and a name in it."""


class Dentry:
    """The inode of a name, from one lookup: the next lookup makes another one."""

    __slots__ = ("inode",)

    def __init__(self, inode: int) -> None:
        self.inode = inode


class Dentries:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._dentries: dict[Name, Dentry] = {}
        self._names: dict[int, tuple[Name, ...]] = {}
        self._lingering: deque[tuple[float, Name, Dentry]] = deque()
        self._guard = threading.Lock()

    def __len__(self) -> int:
        return len(self._dentries)

    def of(self, inode: int) -> tuple[Name, ...]:
        """The names of an inode."""
        return self._names.get(inode, ())

    def get(self, name: Name) -> Dentry | None:
        return self._dentries.get(name)

    def found(self, name: Name, inode: int) -> None:
        """Add the dentry that the kernel gets."""
        with self._guard:
            self._purge()
            before = self._dentries.get(name)
            self._dentries[name] = Dentry(inode)
            if before is None or before.inode != inode:
                if before is not None:
                    self._unname(before.inode, name)
                self._names[inode] = (*self._names.get(inode, ()), name)

    def removed(self, name: Name) -> None:
        """Remove a name that the kernel has removed itself."""
        with self._guard:
            self._remove(name, self._dentries.get(name))

    def dropped(self, name: Name, dentry: Dentry) -> None:
        """Let a name linger that a notice has dropped: a walk may have used it just before."""
        with self._guard:
            self._purge()
            self._lingering.append((time.monotonic() + LINGER_S, name, dentry))

    def _purge(self) -> None:
        now = time.monotonic()
        while self._lingering and self._lingering[0][0] < now:
            _, name, dentry = self._lingering.popleft()
            if self._dentries.get(name) is dentry:  # it was not found again
                self._remove(name, dentry)

    def _remove(self, name: Name, dentry: Dentry | None) -> None:
        if dentry is not None:
            del self._dentries[name]
            self._unname(dentry.inode, name)

    def renamed(self, name: Name, new_name: Name, flags: int) -> list[tuple[int, Name, Name]]:
        """Move the dentries of a rename by the kernel; returns the inodes, with the names before and after it."""
        one, other = self._dentries.get(name), self._dentries.get(new_name)
        self.removed(name)
        self.removed(new_name)
        places = [(one, name, new_name), (other if flags & RENAME_EXCHANGE else None, new_name, name)]
        moved = [(dentry.inode, before, after) for dentry, before, after in places if dentry is not None]
        for inode, _, after in moved:
            self.found(after, inode)
        return moved

    def forget(self, inodes: Iterable[int]) -> None:
        """Remove all names of inodes that the kernel has forgotten."""
        with self._guard:
            for inode in inodes:
                for name in self._names.pop(inode, ()):
                    del self._dentries[name]

    def _unname(self, inode: int, name: Name) -> None:
        left = tuple(other for other in self._names[inode] if other != name)
        if left:
            self._names[inode] = left
        else:
            del self._names[inode]


def links_of(tree: MountTree, dentries: Dentries, route: Route, inode: int) -> dict[Link, list[Name]]:
    """Return the names of an inode by their links in the volume: one name in each tree."""
    links: dict[Link, list[Name]] = {}
    for parent, name in dentries.of(inode):
        directory = _node(tree, route, parent)
        if directory is not None:
            links.setdefault(Link(directory, name, node_of(inode)), []).append((parent, name))
    return links


def _node(tree: MountTree, route: Route, directory: int) -> int | None:
    """Return the node of a directory, which may be a junction in the kernel's numbers."""
    if route_index(directory) in (route.index, *(twin.index for twin in route.twins)):
        return node_of(directory)
    if route_index(directory) != SYNTHETIC_INDEX:
        return ROOT_NODE
    junction = tree.junction(directory)
    return junction.underlying[1] if junction is not None and junction.underlying is not None else None
