"""`MergeTree`: a tree of routes that is compared for a merge, read as far as it is asked for.

An `Item` is a file or directory in it. A directory lists its names when they are first asked for. A merge moves, adds
and removes items of the main tree in memory while it plans, so that a path always is the one at that step.

`Item.key` names one file in several trees: a snapshot's nodes are those of the volume that it was taken of. None where
nothing is known but the path. A tree belongs to one thread; its calls wait for the volumes.
"""

from __future__ import annotations

import copy
import errno
import os
import stat
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TypeAlias

from fusebackend.base.errors import unless
from fusebackend.base.paths import ROOT, AgentPath, split, to_text
from fusebackend.protocol import ROOT_NODE, Attr, Volume
from fusebackend.trees.composed import WAY, Place, Places
from fusebackend.volumes.contents import filled, same_pieces
from fusebackend.volumes.placing import NodeSource, State, state_of
from fusebackend.volumes.walk import entries, known

KeyOf: TypeAlias = Callable[[AgentPath, int], Hashable]
"""The key of a node of the volume under a prefix."""

RACY_NS = 2 * 10**9
"""A file that changed so shortly before a snapshot may have the same ctime as after it (`is_untouched`). Above a tick
of the clock, and above the difference between the clocks of two hosts of a volume."""


def by_node(prefix: AgentPath, node: int) -> Hashable:
    """The key of a file in trees of the mount's own volumes, and of their snapshots."""
    return prefix, node


def shown(path: bytes) -> AgentPath:
    """Return a path of a tree for people."""
    return AgentPath("/" + to_text(path))


class Item(Attr):
    """A file or directory of a tree, with the attributes that it was found with.

    Attributes:
        prefix: of its volume.
        node: in its volume; 0 for a directory that only leads to a route, and for one that a merge will make.
        is_fixed: the root of a route, or a directory on the way to one: it is neither moved nor removed.
        parent, name: where it is now; a merge moves items.
    """

    __slots__ = ("_names", "_place", "_state", "is_fixed", "key", "name", "parent", "prefix", "tree")

    def __init__(
        self, tree: MergeTree, prefix: AgentPath, attr: Attr, parent: Item | None, name: bytes, place: Place | None
    ) -> None:
        super().__init__(attr.node, attr.mode)
        self.take(attr)
        self.tree = tree
        self.prefix = prefix
        self.parent = parent
        self.name = name
        self.key = tree.key_of(prefix, attr.node) if attr.node else None
        self.is_fixed = place is not None
        self._place = place
        self._names: dict[bytes, Item] | None = None
        self._state: State | None = None

    @classmethod
    def future(cls, tree: MergeTree, prefix: AgentPath, like: Item) -> Item:
        """Return what a merge will make of an item of another tree. It is in no directory yet, and has no node."""
        attr = Attr(0, like.mode, nlink=1, rdev=like.rdev, size=like.size, mtime_ns=like.mtime_ns)
        made = cls(tree, prefix, attr, None, b"", None)
        made._names = {}
        return made

    def apart(self, parent: Item | None, name: bytes, *, with_names: bool = True, is_way: bool = False) -> Item:
        """Return a copy at another place of a tree that is put together from parts.

        Args:
            with_names: with all that is in it; an empty directory otherwise.
            is_way: only lead to what is put into it.
        """
        made = copy.copy(self)
        made.parent, made.name, made._names = None, b"", None if with_names else {}
        if is_way:
            made.node, made.is_fixed = 0, True
        if parent is not None:
            made.attach(parent, name)
        return made

    @property
    def volume(self) -> Volume:
        return self.tree.volumes[self.prefix]

    @property
    def now(self) -> Attr:
        """Its present attributes, see `walk.known`."""
        return known(self.volume, self.node, self.inner)

    @property
    def present(self) -> int:
        """Its node, or its present one where the volume has forgotten that. The attributes of a branch's file may have
        the number of another one, that is in its place in the mount."""
        is_known = unless((errno.ESTALE,), self.volume.getattr, self.node) is not None
        return self.node if is_known else self.now.node

    @property
    def directory(self) -> Item:
        """The directory that it is in. Only of what is in one, and so is no root."""
        assert self.parent is not None, "a root has no directory"
        return self.parent

    @property
    def type(self) -> int:
        return stat.S_IFMT(self.mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)

    @property
    def is_way(self) -> bool:
        """True for a directory that no volume has, because it only leads to a route."""
        return self.is_fixed and not self.node

    @property
    def is_on_way(self) -> bool:
        """True for a directory that leads to a route."""
        return self._place is not None and bool(self._place.children)

    @property
    def path(self) -> bytes:
        """Its path in the tree, without a slash at the begin; empty for the root."""
        names = []
        item: Item | None = self
        while item is not None and item.parent is not None:
            names.append(item.name)
            item = item.parent
        return b"/".join(reversed(names))

    @property
    def inner(self) -> str:
        """Its path in its volume."""
        return "/" + to_text(b"/".join(self.path.split(b"/")[len(split(self.prefix)) :]))

    @property
    def shown(self) -> AgentPath:
        """Its path for people."""
        return shown(self.path)

    @property
    def state(self) -> State:
        """Its attributes, read once."""
        if self._state is None:
            if self.node:
                self._state = state_of(self.volume, self.now)
            else:
                self._state = State(self.mode, os.geteuid(), os.getegid(), 0, 0, 2, 0, 0, {}, b"")
        return self._state

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        """Read a regular file: each piece with its offset, holes left out."""
        return self.source().pieces()

    def source(self, state: State | None = None) -> NodeSource:
        """Its bytes, with its own attributes or others."""
        return NodeSource(self.volume, self.present, self.state if state is None else state)

    def read(self) -> bytes:
        """Return the bytes of a regular file."""
        return b"".join(filled(self.pieces()))

    def names(self) -> dict[bytes, Item]:
        """Return the items in a directory; nothing for a file. The dict is the directory's own."""
        if self._names is None:
            self._names = {} if not self.is_dir else self.tree.listed(self, self._place)
        return self._names

    def child(self, name: bytes) -> Item | None:
        return self.names().get(name)

    def walk(self) -> Iterator[Item]:
        """The item and all below it, a directory before what is in it."""
        left = [self]
        while left:
            item = left.pop()
            yield item
            if item.is_dir:
                left += item.names().values()

    def is_below(self, other: Item) -> bool:
        """Return True for the other item itself, and all below it."""
        item: Item | None = self
        while item is not None and item is not other:
            item = item.parent
        return item is other

    def detach(self) -> None:
        """Take it out of its directory, in memory."""
        names = self.directory.names()
        if names.get(self.name) is self:
            del names[self.name]

    def attach(self, parent: Item, name: bytes) -> None:
        """Put it into a directory, in memory."""
        self.parent, self.name = parent, name
        parent.names()[name] = self


_WAY = Attr(0, stat.S_IFDIR | 0o755)


class MergeTree:
    """See the module's docstring.

    Args:
        volumes: prefix → volume. A tree in one volume has only the default one. A route that has none is a directory
            that leads to those below it.
        prefixes: those of all routes of the mount.
        key_of: gives keys; None where nodes of the volumes mean nothing in other trees.
        time_ns: when the tree was frozen, or what a branch is above; 0 for a tree that changes.
        is_unknown: says of a node that its bytes are not those that the tree had, which nobody has kept.
        is_live: says of a node that others change it: no time tells whether they have (a program may set all of them).
        has_own_names: says of a directory's node that its names may be other ones than in the tree it is compared with.
        has_lost: says of a directory's node and a name that it was not removed there, though nothing is found by it.
    """

    def __init__(
        self,
        volumes: Mapping[AgentPath, Volume],
        prefixes: Mapping[AgentPath, object] | None = None,
        key_of: KeyOf | None = None,
        time_ns: int = 0,
        is_unknown: Callable[[int], bool] = lambda node: False,
        is_live: Callable[[int], bool] = lambda node: False,
        has_own_names: Callable[[int], bool] = lambda node: True,
        has_lost: Callable[[int, bytes], bool] = lambda node, name: False,
    ) -> None:
        self.is_unknown = is_unknown
        self.is_live = is_live
        self.has_own_names = has_own_names
        self.has_lost = has_lost
        self.volumes = volumes
        self.key_of: KeyOf = key_of or (lambda prefix, node: None)
        self.time_ns = time_ns
        self.prefixes = frozenset(volumes if prefixes is None else prefixes)
        self._places = Places(self.prefixes)
        root = volumes[ROOT].getattr(ROOT_NODE) if ROOT in volumes else _WAY
        self.root = Item(self, ROOT, root, None, b"", self._places.roots[0])
        self._by_key: dict[Hashable, list[Item]] | None = None

    def listed(self, item: Item, place: Place | None) -> dict[bytes, Item]:
        """List a directory, with the routes in it."""
        found: dict[bytes, Item] = {}
        if item.node:
            for name, attr in entries(item.volume, item.present):
                below = place.children.get(name) if place is not None else None
                if below is None or (self._shown_at(below) is None and attr.is_dir):
                    found[name] = Item(self, item.prefix, attr, item, name, below)
        for name, below in place.children.items() if place is not None else ():
            prefix = self._shown_at(below)
            if prefix is not None:
                found[name] = Item(self, prefix, self.volumes[prefix].getattr(ROOT_NODE), item, name, below)
            elif name not in found:
                found[name] = Item(self, item.prefix, _WAY, item, name, below)
        return found

    def _shown_at(self, place: Place) -> AgentPath | None:
        """Return the prefix of the route whose root is at a place, if the tree has its volume."""
        prefix = None if place.route == WAY else self._places.prefixes[place.route]
        return prefix if prefix in self.volumes else None

    def find(self, path: bytes) -> Item | None:
        """Return the item at a path."""
        item: Item | None = self.root
        for name in path.split(b"/") if path else ():
            item = item.child(name) if item is not None else None
        return item

    def find_key(self, key: Hashable) -> Sequence[Item]:
        """Return the items with a key: a file has one for each of its names. The first call reads the names of the
        whole tree."""
        if self._by_key is None:
            self._by_key = {}
            for item in self.root.walk():
                if item.key is not None:
                    self._by_key.setdefault(item.key, []).append(item)
        return self._by_key.get(key, ())

    def owner(self, path: bytes) -> AgentPath:
        """Return the prefix of the route that has a path."""
        return self._places.prefixes[self._places.route_of(path)[0]]


def same_contents(one: Item, other: Item) -> bool:
    """Compare the bytes of two files of the same type, the targets of links, the numbers of devices."""
    if is_untouched(one, other):
        return True
    if stat.S_ISLNK(one.mode):
        return one.state.target == other.state.target
    if stat.S_ISCHR(one.mode) or stat.S_ISBLK(one.mode):
        return one.rdev == other.rdev
    return not one.is_file or _same_bytes(one, other)


def _same_bytes(one: Item, other: Item) -> bool:
    if one.size != other.size or one.tree.is_unknown(one.node) or other.tree.is_unknown(other.node):
        return False
    if one.size == 0 or (one.volume is other.volume and one.node == other.node):
        return True
    return same_pieces(one.pieces(), other.pieces())


def is_untouched(one: Item, other: Item) -> bool:
    """Return True if it is known without a read that two trees have the same file, with the same bytes and extended
    attributes: every change of a file moves its ctime, and its version, where trees have one.

    That holds for a ctime which is `RACY_NS` older than the older one of the trees: a file written both before and
    after a snapshot in one tick of the clock (1 to 10 ms) has one ctime in both, as git's index knows it ("racily
    clean")."""
    older_ns = min(filter(None, (one.tree.time_ns, other.tree.time_ns)), default=0)
    is_same = one.key == other.key is not None and one.fingerprint[:3] == other.fingerprint[:3]
    if not is_same or not 0 < one.ctime_ns < older_ns - RACY_NS:
        return False
    has_versions = one.version and other.version  # a snapshot has none where the file of a volume keeps none
    if has_versions and one.version != other.version:
        return False
    return not one.tree.is_live(one.node) and not other.tree.is_live(other.node)
