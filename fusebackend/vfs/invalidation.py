"""Telling the kernel what the other face, or another host, has changed.

A volume publishes each change in the thread that made it, with no lock held; the kernel is told in that thread too,
so that whoever wrote through the API finds the mount up to date when the call returns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from fusebackend.protocol import Change
from fusebackend.vfs.absent import AbsentNames
from fusebackend.vfs.inodes import InodeTable, inode_number, route_index
from fusebackend.vfs.mounttree import MountTree, Route


class KernelCache(Protocol):
    """The kernel's caches, seen from here. Callable from any thread; a name the kernel doesn't know is no error."""

    def invalidate_inode(self, inode: int, *, attributes_only: bool = False) -> None: ...

    def invalidate_entry(self, parent: int, name: bytes) -> None: ...

    def store(self, inode: int, content: bytes) -> None:
        """Give the kernel the pages of a file from its beginning. On the loop's thread; see `filling.py` for when."""


class Invalidation:
    """Subscribed to every route while the kernel listens."""

    def __init__(self, tree: MountTree, inodes: InodeTable) -> None:
        self.changes = 0  # how many were heard of
        self._tree = tree
        self._inodes = inodes
        self.kernel: KernelCache | None = None
        self.absent = AbsentNames()
        self._unsubscribe: list[Callable[[], None]] = []

    def start(self, kernel: KernelCache) -> None:
        self.kernel = kernel
        self._unsubscribe = [route.volume.subscribe(partial(self._changed, route)) for route in self._tree.routes]

    def stop(self) -> None:
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        self._unsubscribe = []
        self.kernel = None

    def expire(self, route: Route) -> None:
        """Others may have changed anything in this route unseen: let the kernel believe nothing it knows of it.

        It keeps the names of directories: had it to drop them, whoever works in one would lose it, and with it what is
        mounted there. But it has to ask for their attributes, and for what is not where it was the volume answers
        ESTALE, which makes the kernel look the name up again.
        """
        route.volume.expire()
        absent = set(self.absent.take(route))
        self._changed(route, Change())
        kernel = self.kernel
        if kernel is None:
            return
        for inode, known in self._inodes.records():
            absent.discard((known.parent, known.name))  # it was made since
            if not known.is_dir and route_index(inode) == route.index:
                for parent, name in (*self._inodes.others.get(inode, ()), (known.parent, known.name)):
                    kernel.invalidate_entry(parent, name)
        for parent, name in absent:
            kernel.invalidate_entry(parent, name)

    def _changed(self, route: Route, change: Change) -> None:
        self.changes += 1
        kernel = self.kernel
        if kernel is None:
            return
        if change.node is None and change.parent is None:
            for inode, _ in self._inodes.items():
                if route_index(inode) == route.index:
                    self._unfill(inode)
                    kernel.invalidate_inode(inode)
            return
        if change.node is not None:
            for inode in self._numbers(route, change.node):
                self._unfill(inode)
                kernel.invalidate_inode(inode)
        if change.parent is not None and change.name is not None:
            for inode in self._numbers(route, change.parent):
                if not self._tree.stands_in(inode, change.name):
                    kernel.invalidate_entry(inode, change.name)
                kernel.invalidate_inode(inode, attributes_only=True)

    def _unfill(self, inode: int) -> None:
        known = self._inodes.get(inode)
        if known is not None:
            known.filled = False

    def _numbers(self, route: Route, node: int) -> list[int]:
        """The numbers under which the kernel knows a node: its own, and a junction's that stands for it."""
        numbers = [inode_number(route.index, node)]
        numbers += [junction.inode for junction in self._tree.synthetic() if junction.underlying == (route, node)]
        return [number for number in numbers if self._inodes.get(number) is not None]
