"""Inode numbers, and how many references the kernel holds to each.

An inode number is its volume's node with the route's index in the bits above it, so both directions are arithmetic,
numbers are as stable across remounts as the volume's nodes are, and nothing has to be remembered to translate them.
What must be remembered, for each inode the kernel knows, is one small record; it goes when the kernel forgets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from fusebackend.base import heap
from fusebackend.protocol import MAX_NODE, ROOT_NODE, Attr
from fusebackend.vfs.setid import SET_ID

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
    """What the kernel is told of a name: its inode (0 for a name that is not there), attributes, and for how long."""

    inode: int
    attr: Attr | None
    timeout_s: float


Emit: TypeAlias = Callable[[bytes, Entry, int], bool]
"""Of a listing: given a name, its entry and the position after it; False when there is no room for it."""


class KnownInode:
    """What the mount remembers of an inode the kernel knows."""

    __slots__ = (
        "capable", "earlier_sizes", "filled", "is_dir", "lookups", "mappers", "name", "opens", "parent", "sets_id",
        "size", "unheard", "version",
    )  # fmt: skip

    def __init__(self, is_dir: bool) -> None:
        self.is_dir = is_dir
        self.lookups = 0
        self.opens = 0  # open handles, and …
        self.mappers = 0  # … those through which pages can be mapped for writing
        self.filled = False  # the kernel has pages of the file, see `coherence/prefill.py`
        self.sets_id = False  # it may have set-user-ID or set-group-ID bits …
        self.capable = True  # … or capabilities, see `setid.py`
        self.size = 0  # bytes, as the kernel believes: what it was told, or has written itself
        self.earlier_sizes: tuple[int, ...] = ()  # what it believed before it was told another
        self.parent = 0  # the directory in which it was last found …
        self.name = b""  # … and by which name; see `watch/node_paths.py`
        self.unheard = False  # the kernel did not know it for long after it was given it, see `mount/notifier.py`
        self.version: object = None  # of the data in the kernel's page cache; see `coherence/timeouts.py`

    def told(self, attr: Attr) -> None:
        """The kernel is told these attributes."""
        if attr.size != self.size:
            if self.lookups:
                self._remember(self.size)
            self.size = attr.size
        self.sets_id = bool(attr.mode & SET_ID)

    def wrote(self, end: int, appending: bool) -> None:
        """The kernel has written up to here, and believes that the file goes as far, if no further.

        It throws away what it is told of a file while another notice arrives: `size` may be one of which it knows
        nothing, and the next append then comes to where this one has ended.
        """
        if end > self.size:
            self.size = end
        elif appending and end != self.size:
            self._remember(end)

    def _remember(self, size: int) -> None:
        self.earlier_sizes = (*self.earlier_sizes[1 - EARLIER_SIZES :], size)

    def may_end_at(self, offset: int) -> bool:
        """Did the kernel take this offset for the end of the file, when it sent what has just arrived?

        It may have been told another size since then, but not when the offset is one that pages of a mapping have,
        which are written where they are.
        """
        if offset == self.size:
            return True
        is_page = self.mappers > 0 and offset < self.size and offset % PAGE_BYTES == 0
        return offset in self.earlier_sizes and not is_page


EARLIER_SIZES = 16
"""So many changes of a file's size may be told of while one write is on its way."""

PAGE_BYTES = 4096
"""Pages of a mapping are written from a multiple of this on. The kernel's are as large or larger."""

SMALL_ENTRIES = 16_384
"""The largest directory whose listing the kernel may keep."""

OTHER_NAMES = 8
"""Names of a file with several that are kept besides the last one, in case that one goes."""

class InodeTable:
    """Every inode the kernel holds references to. The root is always known.

    Args:
        routes: how many the main tree has; what is numbered by a higher index is counted.
    """

    def __init__(self, routes: int = SYNTHETIC_INDEX) -> None:
        self._first_beside = routes << NODE_BITS
        self.beside = 0
        """Directories that are known of other trees than the main one, or are no volume's."""
        self._known: dict[int, KnownInode] = {}
        self.others: dict[int, list[tuple[int, bytes]]] = {}  # earlier (directory, name)s of files with several links
        self.small: set[int] = set()  # directories known to be, whose listing the kernel may keep, and …
        self.kept: set[int] = set()  # … those whose listing it may have; see `coherence/cached_readdir.py`
        self._peak = 0  # the most that was known since the table last shrank
        root = self._known[ROOT_INODE] = KnownInode(is_dir=True)
        root.lookups = 1
        root.parent = ROOT_INODE

    def __len__(self) -> int:
        return len(self._known)

    def get(self, inode: int) -> KnownInode | None:
        return self._known.get(inode)

    def records(self) -> list[tuple[int, KnownInode]]:
        """Every known inode with what is remembered of it."""
        return list(self._known.items())

    def items(self) -> list[tuple[int, int]]:
        """Every known inode with its lookup count."""
        return [(inode, known.lookups) for inode, known in self.records()]

    def reference(self, inode: int, parent: int, name: bytes, attr: Attr) -> None:
        """The kernel is given one more reference, under a name in `parent`, and told the size."""
        known = self._known.get(inode)
        if known is None:
            known = self._known[inode] = KnownInode(attr.is_dir)
            known.parent, known.name = parent, name
            self.beside += inode >= self._first_beside
        elif known.name != name or known.parent != parent:
            self.renamed(inode, parent, name, attr)
        known.told(attr)
        known.unheard = False
        known.lookups += 1

    def renamed(self, inode: int, parent: int, name: bytes, attr: Attr) -> None:
        """An inode has another name, if the kernel knows it."""
        known = self._known.get(inode)
        if known is None:
            return
        if attr.nlink > 1 and not attr.is_dir:
            others = [other for other in self.others.get(inode, ()) if other != (known.parent, known.name)]
            self.others[inode] = [*others, (known.parent, known.name)][-OTHER_NAMES:]
        known.parent, known.name = parent, name

    def told(self, inode: int, attr: Attr) -> None:
        """The kernel is told the attributes of an inode it knows."""
        known = self._known.get(inode)
        if known is not None:
            known.told(attr)

    def listed(self, inode: int, entries: int) -> None:
        """A directory has been seen from its beginning to its end."""
        if entries <= SMALL_ENTRIES:
            self.small.add(inode)
        else:
            self.small.discard(inode)

    def is_same(self, inode: int, version: object) -> bool:
        """Is this the version of the data that was opened before? From now on it is."""
        known = self._known.get(inode)
        if known is None:
            return False
        same, known.version = known.version == version, version
        return same

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
                self.others.pop(inode, None)
                self.small.discard(inode)
                self.kept.discard(inode)
                gone.append(inode)
        self._peak = max(self._peak, len(self._known) + len(gone))
        if heap.is_mostly_empty(len(self._known), self._peak):
            self._shrink()
        return gone

    def _shrink(self) -> None:
        """Most of what the kernel knew is forgotten: give its memory back."""
        self._known = dict(self._known)
        self.small, self.kept, self.others = set(self.small), set(self.kept), dict(self.others)
        self._peak = len(self._known)
        heap.give_back()
