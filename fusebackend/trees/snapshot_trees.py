"""`SnapshotTrees`: the kernel face of `/.fusebackend/snapshots`, with the mounted tree of each snapshot below its name.

A snapshot's tree is that of all routes as they are attached now (`composite/route_table.py` has the rules): each route
has its snapshot of that name, hides what it covers in the one above, and is an empty directory where there is none of
it, so that nothing live shows through. Directories on the way to a prefix that the route above does not have are
synthesised. Nothing can be changed (EROFS).

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
import os
import stat
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fusebackend.base.errors import oserror
from fusebackend.base.paths import ROOT, AgentPath, split, to_name, to_text
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
from fusebackend.trees.snapshots import Parts, Snapshots
from fusebackend.volumes.native import NativeVolume

NODE_BITS, ROUTE_BITS = 31, 5
SLOT_SHIFT = NODE_BITS + ROUTE_BITS
SLOTS = (MAX_NODE + 1) >> SLOT_SHIFT
"""Slots of snapshots; slot 0 is for the root and for nodes that were numbered one by one."""

WAYS = (1 << ROUTE_BITS) - 1
"""In place of a route, in the nodes of directories that lead to a prefix."""

MAX_NUMBERED = 1 << 20
"""Nodes that were numbered one by one. Beyond that, those that the kernel forgets get another number the next time.
Each takes 250 bytes."""

DIRECTORY_MODE = stat.S_IFDIR | 0o555

_WAY = -1

_Under = tuple[int, int]
"""A route, and the node of a directory in its snapshot."""


class _Place:
    """A directory that is the root of a route or leads to one, in every snapshot."""

    def __init__(self, route: int, node: int, parent: _Place | None, name: bytes) -> None:
        self.route = route  # `_WAY` if it is none's root
        self.node = node  # a number of its own, for a way
        self.parent = parent
        self.name = name
        self.children: dict[bytes, _Place] = {}


class _Tree:
    """One snapshot."""

    def __init__(self, name: bytes, numbers: tuple[int, ...], slot: int, time_ns: int) -> None:
        self.name = name
        self.numbers = numbers  # of the routes' snapshots; 0 for none
        self.slot = slot  # 0: all of its nodes are numbered one by one
        self.time_ns = time_ns
        self.views: dict[int, Volume] = {}  # by route
        self.ways: dict[_Place, _Under | None] = {}  # the directories that routes have there
        self.numbered: dict[_Under, int] = {}


class _At(NamedTuple):
    """The meaning of a node."""

    tree: _Tree
    place: _Place | None
    under: _Under | None
    """None for a directory that no route has."""


class SnapshotTrees(NativeVolume):
    """See the module's docstring.

    Args:
        snapshots: of the mount.
        prefixes: of all routes of the mount, with snapshots or without.
    """

    def __init__(self, snapshots: Snapshots, prefixes: Iterable[AgentPath]) -> None:
        super().__init__()
        volumes = snapshots.volumes
        self.features = Features(read_only=True, blocking=any(each.features.blocking for each in volumes.values()))
        self._snapshots = snapshots
        self._prefixes = [ROOT, *sorted(prefix for prefix in prefixes if prefix != ROOT)]
        self._ways: list[_Place] = []
        self._roots = self._places()
        self._trees: dict[bytes, _Tree] = {}
        self._by_slot: dict[int, _Tree | None] = {0: None}  # None: not used again
        self._numbers = itertools.count(ROOT_NODE + 1)
        self._numbered: dict[int, tuple[_Tree, _Under]] = {}
        self._changed_ns = time.time_ns()
        snapshots.listen(self._changed)

    def _places(self) -> list[_Place]:
        """Return the roots of the routes, by their index."""
        roots = {ROOT: _Place(0, ROOT_NODE, None, b"")}
        for prefix in sorted(self._prefixes[1:], key=lambda prefix: prefix.count("/")):
            *way, last = split(prefix)
            above = roots[ROOT]
            for name in way:
                if name not in above.children:
                    above.children[name] = _Place(_WAY, len(self._ways), above, name)
                    self._ways.append(above.children[name])
                above = above.children[name]
            roots[prefix] = above.children[last] = _Place(self._prefixes.index(prefix), ROOT_NODE, above, last)
        return [roots[prefix] for prefix in self._prefixes]

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
                    changes.append(Change(node=self._number(tree, 0, ROOT_NODE)))
                    self._end(tree)
        self.tell(changes)

    def _end(self, tree: _Tree) -> None:
        del self._trees[tree.name]
        if tree.slot:
            self._by_slot[tree.slot] = None
        for number in tree.numbered.values():
            del self._numbered[number]

    def _numbers_of(self, parts: Parts) -> tuple[int, ...]:
        return tuple(parts.parts[prefix].number if prefix in parts.parts else 0 for prefix in self._prefixes)

    def _tree(self, parts: Parts) -> _Tree:
        """Return the tree of a snapshot. ENOENT if it was deleted meanwhile."""
        name, numbers = to_name(parts.name), self._numbers_of(parts)
        with self.lock:
            tree = self._trees.get(name)
            if tree is not None and tree.numbers == numbers:
                return tree
            views = {
                route: self._snapshots.volumes[prefix].snapshot(parts.name)
                for route, prefix in enumerate(self._prefixes)
                if prefix in parts.parts
            }
            if tree is not None:  # another snapshot of that name, which was taken and deleted behind `Snapshots`
                self._end(tree)
            tree = self._trees[name] = _Tree(name, numbers, self._free_slot(numbers), parts.info.time_ns)
            tree.views = views
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

    def _number(self, tree: _Tree, route: int, node: int) -> int:
        if tree.slot and route < WAYS and not node >> NODE_BITS:
            return tree.slot << SLOT_SHIFT | (route & WAYS) << NODE_BITS | node
        with self.lock:
            number = tree.numbered.get((route, node))
            if number is None:
                number = tree.numbered[route, node] = next(self._numbers)
                self._numbered[number] = tree, (route, node)
            return number

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
        return tree, _WAY if route == WAYS else route, number & (1 << NODE_BITS) - 1

    def _at(self, number: int) -> _At:
        tree, route, node = self._decoded(number)
        if route == _WAY:
            place = self._ways[node]
        elif node == ROOT_NODE:
            place = self._roots[route]
        else:
            return _At(tree, None, (route, node))
        return _At(tree, place, self._under(tree, place))

    def _under(self, tree: _Tree, place: _Place) -> _Under | None:
        """Return the directory that a route has in this place, in a snapshot."""
        if place.route != _WAY:
            return (place.route, ROOT_NODE) if place.route in tree.views else None
        if place not in tree.ways:
            assert place.parent is not None, "a way is below a route"
            above, found = self._under(tree, place.parent), None
            if above is not None:
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    attr = tree.views[above[0]].lookup(above[1], place.name)
                    found = (above[0], attr.node) if attr.is_dir else None
            tree.ways[place] = found
        return tree.ways[place]

    def _view(self, number: int) -> tuple[Volume, int]:
        """Return the route's snapshot that has a node, and the node in it. ENOENT if none has."""
        under = (at := self._at(number)).under
        if under is None:
            raise oserror(errno.ENOENT)
        return at.tree.views[under[0]], under[1]

    def _top(self, parts: Parts) -> Attr:
        """Return the attributes of a snapshot's root. ENOENT if it was deleted meanwhile."""
        tree = self._tree(parts)
        return self._attr(_At(tree, self._roots[0], self._under(tree, self._roots[0])))

    def _attr(self, at: _At) -> Attr:
        number = None if at.place is None else self._number(at.tree, at.place.route, at.place.node)
        if at.under is not None:
            route, node = at.under
            return self._shown(at.tree, route, at.tree.views[route].getattr(node), number)
        assert number is not None, "every node but that of a place is a route's"
        return _directory(number, at.tree.time_ns)

    def _shown(self, tree: _Tree, route: int, attr: Attr, number: int | None = None) -> Attr:
        """Return attributes of a route's snapshot, with the node that they have here."""
        return Attr(
            self._number(tree, route, attr.node) if number is None else number,
            attr.mode,
            nlink=attr.nlink,
            uid=attr.uid,
            gid=attr.gid,
            rdev=attr.rdev,
            size=attr.size,
            blocks=attr.blocks,
            atime_ns=attr.atime_ns,
            mtime_ns=attr.mtime_ns,
            ctime_ns=attr.ctime_ns,
            version=attr.version,
        )

    def _child(self, at: _At, name: bytes) -> _At | None:
        """Return the place that a name leads to, if it does."""
        place = at.place.children.get(name) if at.place is not None else None
        return None if place is None else _At(at.tree, place, self._under(at.tree, place))

    # -- the kernel face ---------------------------------------------------------------------------------------

    def lookup(self, parent: int, name: bytes) -> Attr:
        if parent == ROOT_NODE:
            parts = self._snapshots.find(to_text(name))
            if parts is None:
                raise oserror(errno.ENOENT, name)
            return self._top(parts)
        at = self._at(parent)
        child = self._child(at, name)
        if child is not None:
            return self._attr(child)
        if at.under is None:
            raise oserror(errno.ENOENT, name)
        route, node = at.under
        return self._shown(at.tree, route, at.tree.views[route].lookup(node, name))

    def readdir(self, node: int, after: bytes, limit: int) -> Sequence[tuple[bytes, Attr]]:
        if node == ROOT_NODE:
            return self._listed(after, limit)
        at = self._at(node)
        found = self._page(at, after, limit)
        # A page that is not full ends a listing that the kernel keeps (`vfs/coherence/cached_readdir.py`).
        while at.place is not None and 0 < len(found) < limit:
            more = self._page(at, found[-1][0], limit - len(found))
            if not more:
                break
            found += more
        return found

    def _page(self, at: _At, after: bytes, limit: int) -> list[tuple[bytes, Attr]]:
        """Return some entries after a name: those of the route, and the ways to other routes among them."""
        places = at.place.children if at.place is not None else {}
        found: list[tuple[bytes, Attr]] = []
        last = None
        if at.under is not None:
            route, inner = at.under
            page = at.tree.views[route].readdir(inner, after, limit)
            found = [(name, self._shown(at.tree, route, attr)) for name, attr in page if name not in places]
            last = page[-1][0] if page else None  # the route may have more names behind it
        for name in places:
            if name > after and (last is None or name <= last):
                child = self._child(at, name)
                assert child is not None
                found.append((name, self._attr(child)))
        return sorted(found, key=lambda entry: entry[0])[:limit]

    def getattr(self, node: int) -> Attr:
        return _directory(node, self._changed_ns) if node == ROOT_NODE else self._attr(self._at(node))

    def readlink(self, node: int) -> bytes:
        view, inner = self._view(node)
        return view.readlink(inner)

    def getxattr(self, node: int, name: bytes) -> bytes:
        if node == ROOT_NODE or (at := self._at(node)).under is None:
            raise oserror(errno.ENODATA, name)
        return at.tree.views[at.under[0]].getxattr(at.under[1], name)

    def listxattr(self, node: int) -> Sequence[bytes]:
        if node == ROOT_NODE or (at := self._at(node)).under is None:
            return ()
        return at.tree.views[at.under[0]].listxattr(at.under[1])

    def open(self, node: int, flags: int) -> Attr | None:
        tree, route, inner = self._decoded(node)
        if route not in tree.views:
            raise oserror(errno.EISDIR)
        attr = tree.views[route].open(inner, flags)
        return None if attr is None else self._shown(tree, route, attr)

    def read(self, node: int, offset: int, size: int) -> bytes:
        view, inner = self._view(node)
        return view.read(inner, offset, size)

    def next_data(self, node: int, offset: int) -> int | None:
        view, inner = self._view(node)
        return view.next_data(inner, offset)

    def release(self, node: int, flags: int) -> None:
        try:
            view, inner = self._view(node)
            view.release(inner, flags)
        except OSError as error:
            if error.errno != errno.ESTALE:  # else the snapshot was deleted meanwhile
                raise

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


def _directory(node: int, time_ns: int) -> Attr:
    """Return the attributes of a directory that no route has."""
    times = {"atime_ns": time_ns, "mtime_ns": time_ns, "ctime_ns": time_ns}
    return Attr(node, DIRECTORY_MODE, nlink=2, uid=os.geteuid(), gid=os.getegid(), **times)
