"""`SnapshotTrees`: the kernel face of `/.fusebackend/snapshots`, with the mounted tree of each snapshot below its name.

A snapshot's tree is that of all routes as they are attached now (`composed.py`): each route has its snapshot of that
name, and is an empty directory where there is none of it. Nothing can be changed (EROFS).

A node is a block and the low bits of the route's own node in one number, so that no node needs a record. A block is a
route of a snapshot, and the high bits that its nodes have in common: most volumes count theirs from 1, and have one
block. A number stays as long as the snapshot, and is never used for another file. The first block of a route follows
from the numbers of the snapshot and the route where it can: nodes are then the same after a remount.

Any thread. `lock` guards the tables here, and is taken before those of the volumes. After a snapshot was deleted, its
nodes are ESTALE.
"""

from __future__ import annotations

import contextlib
import errno
import stat
import time
from collections.abc import Iterable, Mapping, Sequence

from fusebackend.base.errors import VANISHED, oserror, unless
from fusebackend.base.paths import AgentPath, to_name, to_text
from fusebackend.protocol import (
    BLOCK_BYTES,
    MAX_NODE,
    ROOT_NODE,
    Attr,
    Change,
    Features,
    StatFs,
    Volume,
)
from fusebackend.trees.composed import ComposedTree, Places, Spot, Under
from fusebackend.trees.snapshots import Parts, Snapshots
from fusebackend.vfs.pseudo_files import own_attr
from fusebackend.volumes.damage import are_names

LOW_BITS = 24
"""Of a node, those that stay in its number. A `postgres:` volume goes on elsewhere after each start of its server
(`backends/postgres/schema.py`), so its nodes lie in a few blocks."""

BLOCKS = (MAX_NODE + 1) >> LOW_BITS
"""Of a session; block 0 is for the root. Each that was met takes 300 bytes."""

ROUTES = 32
"""So many routes, ways included, have first blocks that are the same after a remount."""

PERMISSIONS = 0o555
"""Of directories that no route has."""


class _Tree(ComposedTree):
    """One snapshot."""

    def __init__(
        self, trees: SnapshotTrees, parts: Parts, views: Mapping[int, Volume], numbers: tuple[int, ...]
    ) -> None:
        super().__init__(trees.places, views, parts.time_ns, PERMISSIONS)
        self.name = to_name(parts.name)
        self.numbers = numbers  # of the routes' snapshots; 0 for none
        self.blocks: dict[Under, int] = {}  # by route and high bits
        self._trees = trees

    def number(self, route: int, node: int) -> int:
        high = node >> LOW_BITS
        with self._trees.lock:
            block = self.blocks.get((route, high))
            if block is None:
                block = self.blocks[route, high] = self._trees.new_block(self, route, high)
        return block << LOW_BITS | node & (1 << LOW_BITS) - 1


class SnapshotTrees(Volume):
    """See the module's docstring.

    Args:
        snapshots: of the mount.
        prefixes: of all routes of the mount, with snapshots or without.
    """

    def __init__(self, snapshots: Snapshots, prefixes: Iterable[AgentPath]) -> None:
        volumes = snapshots.volumes
        self.features = Features(
            acls=True, read_only=True, blocking=any(each.features.blocking for each in volumes.values())
        )
        self._snapshots = snapshots
        self.places = Places(prefixes)
        self._trees: dict[bytes, _Tree] = {}
        self._blocks: dict[int, tuple[_Tree, Under] | None] = {0: None}  # None: not used again
        self._others = iter(range(BLOCKS - 1, 0, -1))
        self._changed_ns = time.time_ns()
        snapshots.on_change = self._changed

    # -- snapshots ---------------------------------------------------------------------------------------------

    def _changed(self, name: str) -> None:
        """A snapshot was taken or deleted."""
        at = to_name(name)
        changes = [Change(parent=ROOT_NODE, name=at)]
        with self.lock:
            self._changed_ns = max(self._changed_ns + 1, time.time_ns())
            tree = self._trees.get(at)
            if tree is not None:
                parts = self._snapshots.find(name)
                if parts is None or self._numbers_of(parts) != tree.numbers:
                    changes.append(Change(node=tree.number(0, ROOT_NODE)))
                    self._end(tree)
        self.tell(changes)

    def _end(self, tree: _Tree) -> None:
        del self._trees[tree.name]
        self._blocks |= dict.fromkeys(tree.blocks.values())

    def _numbers_of(self, parts: Parts) -> tuple[int, ...]:
        return tuple(parts.parts[prefix].number if prefix in parts.parts else 0 for prefix in self.places.prefixes)

    def _tree(self, parts: Parts) -> _Tree:
        """Return the tree of a snapshot. ENOENT if it was deleted meanwhile."""
        name, numbers = to_name(parts.name), self._numbers_of(parts)
        with self.lock:
            tree = self._trees.get(name)
            if tree is not None and tree.numbers == numbers:
                return tree
            views: dict[int, Volume] = {
                route: self._snapshots.volumes[prefix].snapshot(parts.name)
                for route, prefix in enumerate(self.places.prefixes)
                if prefix in parts.parts
            }
            fresh = _Tree(self, parts, views, numbers)
            if tree is not None:  # another snapshot of that name, which was taken and deleted behind `Snapshots`
                self._end(tree)
            self._trees[name] = fresh
            return fresh

    def _listed(self, after: bytes, limit: int) -> list[tuple[bytes, Attr]]:
        found: list[tuple[bytes, Attr]] = []
        named = {to_name(parts.name): parts for parts in self._snapshots.all()}
        # A volume may have taken a snapshot of any name.
        for name in sorted(name for name in named if name > after and are_names([name])):
            with contextlib.suppress(FileNotFoundError):  # it was deleted just now
                found.append((name, self._top(named[name])))
            if len(found) == limit:
                break
        return found

    # -- nodes -------------------------------------------------------------------------------------------------

    def new_block(self, tree: _Tree, route: int, high: int) -> int:
        """Give a tree a block that was never used in this session. ENFILE if none is left."""
        best = next(number for number in tree.numbers if number) * ROUTES + route + 1
        is_free = not high and route + 1 < ROUTES and best < BLOCKS and best not in self._blocks
        block = best if is_free else next((each for each in self._others if each not in self._blocks), None)
        if block is None:
            raise oserror(errno.ENFILE)
        self._blocks[block] = tree, (route, high)
        return block

    def _decoded(self, number: int) -> tuple[_Tree, int, int]:
        """Return the tree, route and node of a number."""
        found = self._blocks.get(number >> LOW_BITS)
        if found is None:
            raise oserror(errno.ESTALE)
        tree, (route, high) = found
        return tree, route, high << LOW_BITS | number & (1 << LOW_BITS) - 1

    def _at(self, number: int) -> tuple[_Tree, Spot]:
        tree, route, node = self._decoded(number)
        return tree, tree.at(route, node)

    def _view(self, number: int) -> tuple[Volume, int]:
        """Return the route's snapshot that has a node, and the node in it. ENOENT if none has."""
        tree, at = self._at(number)
        return tree.view(at)

    def _top(self, parts: Parts) -> Attr:
        """Return the attributes of a snapshot's root. ENOENT if it was deleted meanwhile."""
        try:
            tree = self._tree(parts)
            return tree.attr(tree.at(0, ROOT_NODE))
        except OSError as error:
            raise oserror(errno.ENOENT, to_name(parts.name)) if error.errno in VANISHED else error from None

    # -- the kernel face ---------------------------------------------------------------------------------------

    def lookup(self, parent: int, name: bytes) -> Attr:
        if parent == ROOT_NODE:
            parts = self._snapshots.find(to_text(name))
            if parts is None:
                raise oserror(errno.ENOENT, name)
            return self._top(parts)
        tree, at = self._at(parent)
        return tree.lookup(at, name)

    def readdir(self, node: int, after: bytes, limit: int) -> Sequence[tuple[bytes, Attr]]:
        if node == ROOT_NODE:
            return self._listed(after, limit)
        tree, at = self._at(node)
        return tree.readdir(at, after, limit)

    def getattr(self, node: int) -> Attr:
        if node == ROOT_NODE:
            return own_attr(node, stat.S_IFDIR | PERMISSIONS, self._changed_ns)
        tree, at = self._at(node)
        return tree.attr(at)

    def readlink(self, node: int) -> bytes:
        view, inner = self._view(node)
        return view.readlink(inner)

    def getxattr(self, node: int, name: bytes) -> bytes:
        view = self._xattr_view(node)
        if view is None:
            raise oserror(errno.ENODATA, name)
        return view[0].getxattr(view[1], name)

    def listxattr(self, node: int) -> Sequence[bytes]:
        view = self._xattr_view(node)
        return () if view is None else view[0].listxattr(view[1])

    def _xattr_view(self, node: int) -> tuple[Volume, int] | None:
        """Return the route's snapshot that has a node, and the node in it; None for a directory that none has."""
        return None if node == ROOT_NODE else unless((errno.ENOENT,), self._view, node)

    def open(self, node: int, flags: int) -> Attr | None:
        tree, route, inner = self._decoded(node)
        if route not in tree.views:
            raise oserror(errno.EISDIR)
        attr = tree.views[route].open(inner, flags)
        return None if attr is None else tree.shown(route, attr)

    def read(self, node: int, offset: int, size: int) -> bytes:
        view, inner = self._view(node)
        return view.read(inner, offset, size)

    def next_data(self, node: int, offset: int) -> int | None:
        view, inner = self._view(node)
        return view.next_data(inner, offset)

    def release(self, node: int, flags: int) -> None:
        view = unless((errno.ESTALE,), self._view, node)
        if view is not None:  # else the snapshot was deleted meanwhile
            view[0].release(view[1], flags)

    def hold(self, node: int) -> None:
        with contextlib.suppress(OSError):  # the root, or a snapshot that was deleted meanwhile
            tree, route, inner = self._decoded(node)
            if route in tree.views:
                tree.views[route].hold(inner)

    def forget(self, nodes: Iterable[int]) -> None:
        for node in nodes:
            with contextlib.suppress(OSError):  # the root, or a snapshot that was deleted meanwhile
                tree, route, inner = self._decoded(node)
                if route in tree.views:
                    tree.views[route].forget([inner])

    def statfs(self) -> StatFs:
        return StatFs(BLOCK_BYTES, 0, 0, 0, 0)
