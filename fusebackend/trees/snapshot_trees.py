"""`SnapshotTrees`: the kernel face of `/.fusebackend/snapshots`, with the mounted tree of each snapshot below its name.

A snapshot's tree is that of all routes as they are attached now (`composed.py`): each route has its snapshot of that
name, and is an empty directory where there is none of it. Nothing can be changed (EROFS).

A node is the snapshot's slot, the route and the route's own node in the bits of one number, so that most nodes need no
record. Where these don't fit (the 4,096th snapshot that is looked at in a session, the 32nd route, a node from 2³¹ on)
a node is numbered when it is first seen. A number stays as long as the snapshot, and is never used for another file.
The slot is the number of the first route's snapshot where it can be: nodes are then the same after a remount.

Any thread. `lock` guards the tables here, and is taken before those of the volumes. After a snapshot was deleted, its
nodes are ESTALE.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import stat
import time
from collections.abc import Iterable, Mapping, Sequence

from fusebackend.base.errors import VANISHED, oserror, unless
from fusebackend.base.paths import AgentPath, to_name, to_text
from fusebackend.protocol import (
    BLOCK_BYTES,
    MAX_NODE,
    NAME_MAX_BYTES,
    ROOT_NODE,
    Attr,
    Change,
    Features,
    StatFs,
    Volume,
)
from fusebackend.trees.composed import WAY, ComposedTree, Places, Spot, Under
from fusebackend.trees.snapshots import Parts, Snapshots
from fusebackend.vfs.pseudo_files import own_attr
from fusebackend.volumes.native import NativeVolume

NODE_BITS, ROUTE_BITS = 31, 5
SLOT_SHIFT = NODE_BITS + ROUTE_BITS
SLOTS = (MAX_NODE + 1) >> SLOT_SHIFT
"""Slots of snapshots; slot 0 is for the root and for nodes that were numbered one by one."""

WAYS = (1 << ROUTE_BITS) - 1
"""In place of a route, in the nodes of directories that lead to a prefix."""

FIRST_FAR, REGION_BITS = 1 << (NODE_BITS - 1), 24
REGIONS = FIRST_FAR >> REGION_BITS
"""Nodes from `FIRST_FAR` on lie in few regions: a `postgres:` volume goes on elsewhere after each start of its server
(`backends/postgres/schema.py`). Each region that is met gets a number of few bits, as long as there are any."""

MAX_NUMBERED = 1 << 20
"""Nodes that were numbered one by one. Beyond that, those that the kernel forgets get another number the next time.
Each takes 250 bytes."""

PERMISSIONS = 0o555
"""Of directories that no route has."""


class _Tree(ComposedTree):
    """One snapshot."""

    def __init__(
        self, trees: SnapshotTrees, parts: Parts, views: Mapping[int, Volume], numbers: tuple[int, ...], slot: int
    ) -> None:
        super().__init__(trees.places, views, parts.info.time_ns, PERMISSIONS)
        self.name = to_name(parts.name)
        self.numbers = numbers  # of the routes' snapshots; 0 for none
        self.slot = slot  # 0: all of its nodes are numbered one by one
        self.numbered: dict[Under, int] = {}
        self._trees = trees

    def number(self, route: int, node: int) -> int:
        return self._trees.number(self, route, node)


class SnapshotTrees(NativeVolume):
    """See the module's docstring.

    Args:
        snapshots: of the mount.
        prefixes: of all routes of the mount, with snapshots or without.
    """

    def __init__(self, snapshots: Snapshots, prefixes: Iterable[AgentPath]) -> None:
        super().__init__()
        volumes = snapshots.volumes
        self.features = Features(
            acls=True, read_only=True, blocking=any(each.features.blocking for each in volumes.values())
        )
        self._snapshots = snapshots
        self.places = Places(prefixes)
        self._trees: dict[bytes, _Tree] = {}
        self._by_slot: dict[int, _Tree | None] = {0: None}  # None: not used again
        self._regions: list[int] = []
        self._numbers = itertools.count(ROOT_NODE + 1)
        self._numbered: dict[int, tuple[_Tree, Under]] = {}
        self._changed_ns = time.time_ns()
        snapshots.listen(self._changed)

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
        if tree.slot:
            self._by_slot[tree.slot] = None
        for number in tree.numbered.values():
            del self._numbered[number]

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
            fresh = _Tree(self, parts, views, numbers, self._free_slot(numbers))
            if tree is not None:  # another snapshot of that name, which was taken and deleted behind `Snapshots`
                self._end(tree)
            tree = self._trees[name] = fresh
            if tree.slot:
                self._by_slot[tree.slot] = tree
            return tree

    def _free_slot(self, numbers: Sequence[int]) -> int:
        """Return a slot that was never used in this session; 0 if there is none."""
        best = next(number for number in numbers if number)
        if best < SLOTS and best not in self._by_slot:
            return best
        return next((slot for slot in range(SLOTS - 1, 0, -1) if slot not in self._by_slot), 0)

    def _listed(self, after: bytes, limit: int) -> list[tuple[bytes, Attr]]:
        found: list[tuple[bytes, Attr]] = []
        named = {to_name(parts.name): parts for parts in self._snapshots.all()}
        for name in sorted(name for name in named if name > after and _is_name(name)):
            with contextlib.suppress(FileNotFoundError):  # it was deleted just now
                found.append((name, self._top(named[name])))
            if len(found) == limit:
                break
        return found

    # -- nodes -------------------------------------------------------------------------------------------------

    def number(self, tree: _Tree, route: int, node: int) -> int:
        """Return the number of a node of a route's snapshot, or of a way (`ComposedTree.number`)."""
        near = node if node < FIRST_FAR else self._nearer(node)
        if tree.slot and route < WAYS and near is not None:
            return tree.slot << SLOT_SHIFT | (route & WAYS) << NODE_BITS | near
        with self.lock:
            number = tree.numbered.get((route, node))
            if number is None:
                number = tree.numbered[route, node] = next(self._numbers)
                self._numbered[number] = tree, (route, node)
            return number

    def _nearer(self, node: int) -> int | None:
        """Return a number of `NODE_BITS` for a node from `FIRST_FAR` on; None if there are none left."""
        region, low = node >> REGION_BITS, node & (1 << REGION_BITS) - 1
        with self.lock:
            if region not in self._regions:
                if len(self._regions) == REGIONS:
                    return None
                self._regions.append(region)
            return FIRST_FAR | self._regions.index(region) << REGION_BITS | low

    def _farther(self, near: int) -> int:
        """Return the node of a number by `_nearer`."""
        region = self._regions[(near - FIRST_FAR) >> REGION_BITS]
        return region << REGION_BITS | near & (1 << REGION_BITS) - 1

    def _decoded(self, number: int) -> tuple[_Tree, int, int]:
        """Return the tree, route and node of a number."""
        slot = number >> SLOT_SHIFT
        if not slot:
            found = self._numbered.get(number)
            if found is None:
                raise oserror(errno.ESTALE)
            return found[0], *found[1]
        tree = self._by_slot.get(slot)
        if tree is None:
            raise oserror(errno.ESTALE)
        route = number >> NODE_BITS & WAYS
        node = number & (1 << NODE_BITS) - 1
        return tree, WAY if route == WAYS else route, node if node < FIRST_FAR else self._farther(node)

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
        if node == ROOT_NODE:
            return None
        tree, at = self._at(node)
        return None if at.under is None else tree.view(at)

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
            try:
                tree, route, inner = self._decoded(node)
            except OSError:
                continue  # deleted meanwhile, or the root
            if route in tree.views:
                tree.views[route].forget([inner])
            with self.lock:
                if len(self._numbered) > MAX_NUMBERED and node in self._numbered:
                    del self._numbered[node], tree.numbered[route, inner]

    def statfs(self) -> StatFs:
        return StatFs(BLOCK_BYTES, 0, 0, 0, 0)


def _is_name(name: bytes) -> bool:
    """Return False for a name that no directory can have: a volume may have taken a snapshot of any name."""
    return 0 < len(name) <= NAME_MAX_BYTES and name not in (b".", b"..") and not {0, 0x2F} & set(name)
