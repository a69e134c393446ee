"""Inode numbers, and how many references the kernel holds to each.

An inode number is its volume's node with the route's index in the bits above it, so both directions are arithmetic,
numbers are as stable across remounts as the volume's nodes are, and nothing has to be remembered to translate them.
Each inode that the kernel knows has one small record; it goes when the kernel forgets the inode.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec

from fusebackend.base import heap
from fusebackend.protocol import MAX_NODE, ROOT_NODE, Attr

NODE_BITS = MAX_NODE.bit_length()
ROOT_INODE = ROOT_NODE
"""The root of the mount is the root of route 0, which FUSE requires to be inode 1."""

SYNTHETIC_INDEX = (1 << (64 - NODE_BITS)) - 1
"""The route index of directories that exist only because a route's prefix runs through them."""


def inode_number(index: int, node: int) -> int:
    """The inode number of a node of the route with this index."""
    return index << NODE_BITS | node


def route_index(inode: int) -> int:
    return inode >> NODE_BITS


def node_of(inode: int) -> int:
    return inode & MAX_NODE


class Entry(NamedTuple):
    """The answer to a LOOKUP: inode (0 for an absent name), attributes, and their timeout."""

    inode: int
    attr: Attr | None
    timeout_s: float


Record = TypeVar("Record", set[int], dict[int, Any])

Emit: TypeAlias = Callable[[bytes, Entry, int], bool]
"""Of a listing: given a name, its entry and the position after it; False when there is no room for it."""


class KnownInode(msgspec.Struct, eq=False, gc=False):
    """An inode that the kernel knows. Features have records of their own (`InodeTable.by_inode`)."""

    is_dir: bool
    size: int = 0  # bytes, as the kernel has it: from an answer, or after its own write
    parent: int = 0  # the directory in which it was last found …
    name: bytes = b""  # … and by which name; see `watch/node_paths.py`
    lookups: int = 0
    opens: int = 0  # open handles


OTHER_NAMES = 8
"""Names of a file with several that are kept besides the last one, in case that one goes."""


class InodeTable:
    """Every inode the kernel holds references to. The root is always known.

    Args:
        routes: of the main tree, and that of the trees directory. Inodes of routes with a higher index are counted in
            `beside`.
    """

    def __init__(self, routes: int = SYNTHETIC_INDEX) -> None:
        self._first_beside = routes << NODE_BITS
        self.beside = 0
        """Directories that are known of other trees than the main one, or are no volume's."""
        self._known: dict[int, KnownInode] = {}
        self.get: Callable[[int], KnownInode | None] = self._known.get
        """Gives an inode's record: several times for each request. Not to be kept, for the table may be replaced."""
        self.others: dict[int, list[tuple[int, bytes]]] = {}  # earlier (directory, name)s of files with several links
        self.not_instantiated: set[int] = set()
        """Inodes that the kernel did not instantiate for long after the answer, see `fuse/notifier.py`."""
        self._sets: list[set[int]] = [self.not_instantiated]
        self._dicts: list[dict[int, Any]] = [self.others]
        self._peak = 0  # the most that was known since the table last shrank
        root = self._known[ROOT_INODE] = KnownInode(True, parent=ROOT_INODE)
        root.lookups = 1

    def count_beside_from(self, index: int) -> None:
        """Count in `beside` from this route on. Before the kernel knows any inode."""
        self._first_beside = index << NODE_BITS

    def by_inode(self, record: Record) -> Record:
        """Remove the entries of a feature's set or dict by inode, from now on, when the kernel forgets the inode."""
        if isinstance(record, set):
            self._sets.append(record)
        else:
            self._dicts.append(record)
        return record

    def __len__(self) -> int:
        return len(self._known)

    def records(self) -> list[tuple[int, KnownInode]]:
        """Every known inode with its record."""
        return list(self._known.items())

    def items(self) -> list[tuple[int, int]]:
        """Every known inode with its lookup count."""
        return [(inode, known.lookups) for inode, known in self.records()]

    def reference(self, inode: int, parent: int, name: bytes, attr: Attr) -> KnownInode:
        """The kernel is given one more reference, under a name in `parent`."""
        known = self._known.get(inode)
        if known is None:
            known = self._known[inode] = KnownInode(stat.S_ISDIR(attr.mode), attr.size, parent, name)
            self.beside += inode >= self._first_beside
        elif known.name != name or known.parent != parent:
            self.renamed(inode, parent, name, attr)
        if self.not_instantiated:
            self.not_instantiated.discard(inode)
        known.lookups += 1
        return known

    def renamed(self, inode: int, parent: int, name: bytes, attr: Attr) -> None:
        """An inode has another name, if the kernel knows it."""
        known = self._known.get(inode)
        if known is None:
            return
        if attr.nlink > 1 and not attr.is_dir:
            self._keep_name(inode, known)
        known.parent, known.name = parent, name

    def moved(self, inode: int, before: tuple[int, bytes], after: tuple[int, bytes]) -> None:
        """One (directory, name) of an inode has become another, if the kernel knows the inode."""
        known = self._known.get(inode)
        if known is None:
            return
        if (known.parent, known.name) != before and not known.is_dir:
            self._keep_name(inode, known, but=before)
        known.parent, known.name = after

    def _keep_name(self, inode: int, known: KnownInode, *, but: tuple[int, bytes] | None = None) -> None:
        name = (known.parent, known.name)
        others = [other for other in self.others.get(inode, ()) if other not in (name, but)]
        self.others[inode] = [*others, name][-OTHER_NAMES:]

    def forget(self, references: Iterable[tuple[int, int]]) -> list[int]:
        """The kernel gives back (inode, count) references; returns the inodes it knows no longer."""
        gone = []
        for inode, count in references:
            known = self._known.get(inode)
            if inode == ROOT_INODE or known is None:
                continue
            known.lookups -= count
            assert known.lookups >= 0, f"lookup count of inode {inode} fell below zero"
            if known.lookups == 0:
                del self._known[inode]
                self.beside -= inode >= self._first_beside
                gone.append(inode)
        for inodes in self._sets:
            if inodes:
                inodes.difference_update(gone)
        for table in self._dicts:
            if table:
                for inode in gone:
                    table.pop(inode, None)
        self._peak = max(self._peak, len(self._known) + len(gone))
        if heap.is_mostly_empty(len(self._known), self._peak):
            self._shrink()
        return gone

    def _shrink(self) -> None:
        """Give memory back after the kernel has forgotten most inodes."""
        self._known = dict(self._known)
        self.get = self._known.get
        # In place, for others have them too: a table that is emptied gives its memory back.
        for inodes in self._sets:
            members = tuple(inodes)
            inodes.clear()
            inodes.update(members)
        for table in self._dicts:
            items = tuple(table.items())
            table.clear()
            table.update(items)
        self._peak = len(self._known)
        heap.give_back()
