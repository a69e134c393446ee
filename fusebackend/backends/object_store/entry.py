"""`Entry`: a file or directory of the bucket that this volume has shown to somebody. A record; `tree.py` keeps order.

Two locks guard one: the tree's, which is held for moments and never over a request, guards names, attributes and
versions; the entry's own (`lock`) guards the content, and is held while the file is loaded or stored. Who needs both
takes the entry's first.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fusebackend.backends.object_store.metadata import DIRECTORY_MODE, FILE_MODE, Stamp
from fusebackend.base.stamps import now_ns
from fusebackend.base.waiting import Lock
from fusebackend.protocol import BLOCK_BYTES, Attr

if TYPE_CHECKING:
    from fusebackend.backends.object_store.put import WriteBuffer
    from fusebackend.backends.object_store.ranged_reader import RangedReader

NEVER = float("-inf")


class Entry(Attr):
    """See the module's docstring. `parent`, `name` and `segment` stay when it is gone; they say where it was."""

    __slots__ = (
        "base", "buffer", "changes", "checked_at", "children", "dirty", "etag", "extra", "forgotten", "ghosts", "gone",
        "held", "large", "listed_at", "local", "lock", "marker", "modified_ns", "name", "opens", "order", "parent",
        "poisoned", "reader", "segment", "stamped", "tail_from", "target", "tried", "unlinked", "writers",
    )  # fmt: skip

    def __init__(self, node: int, parent: Entry | None, name: bytes, segment: str, *, is_dir: bool) -> None:
        super().__init__(node, DIRECTORY_MODE if is_dir else FILE_MODE)
        self.parent = parent
        self.name = name
        self.segment = segment  # the last part of its key
        self.lock = Lock()
        self.held = False  # known to the kernel
        self.forgotten = False  # was held: the number need not be stable any more
        self.gone = False  # it has no name any more
        self.unlinked = False  # because it was taken away through this volume
        self.stamped = False  # mode, owner and time are those that are kept with the object
        self.extra: dict[str, str] = {}  # attributes of the object that are none of ours
        self.etag: str | None = None  # the version known last; of a directory, that of its marker
        self.modified_ns: int | None = None  # when the store says it was put; None: as it will say next
        self.checked_at = NEVER  # by the tree's clock: when the store last showed it

        # Of a directory.
        self.children: dict[bytes, Entry] = {}
        self.order: list[bytes] | None = None  # the names of the children, sorted
        self.listed_at = NEVER  # since then the children are all there is
        self.large = False  # listing it takes more than one request
        self.changes: dict[bytes, int] = {}  # names that were made or taken away here, and when, by the tree's count
        self.ghosts: set[str] = set()  # removed here, and still listed by the store for a while
        self.marker = False  # its sign is in the store

        # Of a file.
        self.opens = 0
        self.writers = 0  # open handles that write where they like, so without O_APPEND
        self.base: str | None = None  # for those: the version that the first of them has opened
        self.buffer: WriteBuffer | None = None
        self.dirty = False  # the buffer holds what the store does not
        self.local = False  # the store has never had it, unless by one of …
        self.tried: tuple[str, ...] = ()  # … the uploads of it that failed: their answers may have been lost
        self.tail_from: int | None = None  # if the dirty buffer was only appended to: from this size on
        self.poisoned = False  # a conflict: handles opened before see ESTALE
        self.reader: RangedReader | None = None
        self.target: tuple[str | None, bytes] | None = None  # of a symbolic link: the version, and where it leads

    @property
    def key(self) -> str:
        """Where it is, or was; that of a directory ends with `/`, and the top's is empty."""
        parts: list[str] = []
        entry = self
        while entry.parent is not None:
            parts.append(entry.segment + "/" if entry.is_dir else entry.segment)
            entry = entry.parent
        return "".join(reversed(parts))

    @property
    def is_gone(self) -> bool:
        """Is it, or a directory above it, no more?"""
        entry: Entry | None = self
        while entry is not None and not entry.gone:
            entry = entry.parent
        return entry is not None

    @property
    def busy(self) -> bool:
        """Does somebody use its content, so that what the store says of it must wait?"""
        return self.opens > 0 or self.dirty

    @property
    def unsent(self) -> bool:
        """Has the store never had it, for certain?"""
        return self.local and not self.tried

    @property
    def is_ahead(self) -> bool:
        """Is there something here, or below, that the store does not have yet?"""
        return any(entry.local or entry.dirty for entry in self.tree())

    @property
    def idle(self) -> bool:
        """Does nobody need this entry?"""
        if self.held or self.busy or self.children or self.parent is None:
            return False
        return self.gone or self.forgotten

    def names(self) -> list[bytes]:
        """The names of the children, sorted."""
        if self.order is None:
            self.order = sorted(self.children)
        return self.order

    def following(self, after: bytes) -> Iterator[Entry]:
        """The children whose names come after one, in their order."""
        order = self.names()
        return (self.children[order[number]] for number in range(bisect.bisect_right(order, after), len(order)))

    @property
    def stamp(self) -> Stamp:
        return Stamp(self.mode, self.uid, self.gid, self.mtime_ns)

    def restamp(self, stamp: Stamp) -> None:
        self.mode, self.uid, self.gid, self.mtime_ns = stamp
        self.stamped = True

    def resize(self, size: int) -> None:
        self.size = size
        self.blocks = -(-size // BLOCK_BYTES)

    def touch(self) -> None:
        """The content has changed."""
        self.mtime_ns = self.ctime_ns = now_ns()
        self.version += 1

    def is_within(self, directory: Entry) -> bool:
        """Is this the directory, or something below it?"""
        entry: Entry | None = self
        while entry is not None and entry is not directory:
            entry = entry.parent
        return entry is not None

    def tree(self) -> Iterator[Entry]:
        """This entry and all that is known below it."""
        left = [self]
        while left:
            entry = left.pop()
            yield entry
            left += list(entry.children.values())

    def drop_content(self) -> None:
        """Let go of the buffer and the reader."""
        buffer, self.buffer = self.buffer, None
        reader, self.reader = self.reader, None
        if buffer is not None:
            buffer.close()
        if reader is not None:
            reader.close()
