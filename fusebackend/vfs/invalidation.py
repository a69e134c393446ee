"""Telling the kernel what the other face, or another host, has changed.

A volume publishes each change in the thread that made it, with no lock held; the kernel is told in that thread too,
so that whoever wrote through the API finds the mount up to date when the call returns.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol

from fusebackend.protocol import Change, Link
from fusebackend.vfs.absent import AbsentNames
from fusebackend.vfs.dentries import Dentries, Name, links_of
from fusebackend.vfs.inodes import InodeTable, inode_number, route_index
from fusebackend.vfs.mounttree import MountTree, Route
from fusebackend.vfs.settling import Settling

log = logging.getLogger(__name__)


class KernelCache(Protocol):
    """The kernel's caches, seen from here. Callable from any thread; a name the kernel doesn't know is no error."""

    def invalidate_inode(self, inode: int, *, attributes_only: bool = False) -> None: ...

    def invalidate_entry(self, parent: int, name: bytes) -> None: ...

    def store(self, inode: int, content: bytes) -> None:
        """Give the kernel the pages of a file from its beginning. On the loop's thread; see `filling.py` for when."""


class Invalidation:
    """Subscribed to every route while the kernel listens."""

    def __init__(self, tree: MountTree, inodes: InodeTable, dentries: Dentries, settling: Settling) -> None:
        self.changes = 0  # how many were heard of
        self._tree = tree
        self._inodes = inodes
        self._dentries = dentries
        self._settling = settling
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
        if self.kernel is None or route.shared:
            return
        for inode, known in self._inodes.records():
            absent.discard((known.parent, known.name))  # it was made since
            if not known.is_dir and route_index(inode) == route.index:
                self.drop(*self._inodes.others.get(inode, ()), (known.parent, known.name))
        self.drop(*absent)

    def drop(self, *names: Name) -> None:
        """Let the kernel look these names up again."""
        if self.kernel is not None:
            for parent, name in names:
                self.kernel.invalidate_entry(parent, name)

    def _changed(self, route: Route, change: Change) -> None:
        self.changes += 1
        anything = change.node is None and change.parent is None
        if anything and route.shared:
            route.follow_feed()
        kernel = self.kernel
        if kernel is None:
            return
        if anything:
            for inode, _ in self._inodes.items():
                if route_index(inode) == route.index:
                    self._invalidate(route, kernel, inode)
            if route.shared:
                self._drop_names(route, kernel)
            return
        if change.node is not None:
            for inode in self._numbers(route, change.node):
                self._invalidate(route, kernel, inode)
        if change.parent is not None and change.name is not None:
            for inode in self._numbers(route, change.parent):
                if not self._tree.stands_in(inode, change.name):
                    self._drop_name(kernel, (inode, change.name))
                # A directory's pages are what the kernel has kept of its listing. They go even though its time has
                # moved, for somebody may set that back.
                kernel.invalidate_inode(inode, attributes_only=not route.keeps_listings)

    def _invalidate(self, route: Route, kernel: KernelCache, inode: int) -> None:
        self._unfill(inode)
        if route.shared:
            self._settling.tell(inode, partial(kernel.invalidate_inode, inode))
        else:
            kernel.invalidate_inode(inode)

    def _drop_name(self, kernel: KernelCache, name: Name) -> None:
        dentry = self._dentries.get(name)
        kernel.invalidate_entry(*name)
        if dentry is not None:
            self._dentries.dropped(name, dentry)

    def _drop_names(self, route: Route, kernel: KernelCache) -> None:
        """Of a shared route: of files all, of directories those that are wrong, if there is somebody to ask."""
        directories: dict[Link, Name] = {}
        for inode, known in self._inodes.records():
            if route_index(inode) != route.index:
                continue
            if known.is_dir:
                directories.update(links_of(self._tree, self._dentries, route, inode))
            else:
                for name in self._dentries.of(inode):
                    self._drop_name(kernel, name)
        if not route.volume.features.change_feed:
            return  # the volume's server may be away: opens look at the names, and they expire soon
        try:
            for link in route.volume.wrong_links(list(directories)):
                self._drop_name(kernel, directories[link])
        except OSError as error:
            log.info("route %s: directories are looked at when they are opened: %s", route.prefix, error)

    def _unfill(self, inode: int) -> None:
        known = self._inodes.get(inode)
        if known is not None:
            known.filled = False

    def _numbers(self, route: Route, node: int) -> list[int]:
        """The numbers under which the kernel knows a node: its own, and a junction's that stands for it."""
        numbers = [inode_number(route.index, node)]
        numbers += [junction.inode for junction in self._tree.synthetic() if junction.underlying == (route, node)]
        return [number for number in numbers if self._inodes.get(number) is not None]
