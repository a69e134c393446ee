"""`KnownInodes`: rows of inodes that this host has read or committed, until they are known to have changed.

After each read of a file, and after each name that is made in a directory, the kernel asks for attributes again. They
are answered from here while changes of other hosts are announced, and are as fresh as the change feed. With the row of
a small file that was opened come its bytes: the `read` that follows is of the time of the `open`, as close-to-open has
it, and asks for nothing.

An answer of the tables may be older than a commit that this host has made meanwhile. So each is noted with the moment
before it was asked for, and is dropped if the node has changed since. No I/O happens here. Any thread may call any
method.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable, Mapping
from typing import Final

from fusebackend.backends.postgres.statements import StoredInode

MAX_INODES: Final = 2_000
"""The oldest are forgotten first; as many bytes of files as `MAX_BYTES`."""

MAX_BYTES: Final = 8 << 20

MAX_CHANGES: Final = 10_000


class _Known:
    __slots__ = ("before", "data", "inode")

    def __init__(self, inode: StoredInode, before: int, data: bytes | None) -> None:
        self.inode = inode
        self.before = before  # the version that this host's commit has replaced; 0 for a row that was read
        self.data = data  # all bytes of the file


class KnownInodes:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[int, _Known] = {}
        self._bytes = 0
        self._moment = 0
        self._changes: dict[int, int] = {}  # when a node last changed; all others did at `_floor` or before
        self._floor = 0
        self._sent: dict[int, int] = {}  # versions of bytes that the kernel has been given
        self._ends: dict[int, tuple[bytes, int]] = {}  # the last name of a directory, and since when

    @property
    def moment(self) -> int:
        """To be read before the tables are queried or changed, and passed on with the outcome."""
        return self._moment

    def get(self, node: int) -> StoredInode | None:
        """A copy of a row."""
        known = self._known.get(node)
        return None if known is None else copy.copy(known.inode)

    def data(self, node: int) -> tuple[StoredInode, bytes] | None:
        """A copy of the row of a small file, and all its bytes."""
        known = self._known.get(node)
        if known is None or known.data is None:
            return None
        self._sent[node] = known.inode.contents
        return copy.copy(known.inode), known.data

    def sent(self, node: int) -> int:
        """Which version of a file's bytes was last read from here; -1 for none. The kernel may still have them."""
        return self._sent.get(node, -1)

    def ends(self, directory: int, name: bytes) -> bool:
        """Whether no name of a directory comes after this one."""
        last, moment = self._ends.get(directory, (b"", -1))
        return last == name and self._changed_at(directory) <= moment

    def ended(self, moment: int, directory: int, name: bytes) -> None:
        """A listing has ended with this name."""
        with self._lock:
            self._ends.pop(directory, None)
            self._ends[directory] = name, moment
            while len(self._ends) > MAX_INODES:
                del self._ends[next(iter(self._ends))]

    def found(self, moment: int, inode: StoredInode, data: bytes | None = None) -> None:
        """A row was read, and perhaps all bytes of the file."""
        with self._lock:
            if self._changed_at(inode.node) <= moment:
                known = self._known.get(inode.node)
                if data is None and known is not None and known.inode.version == inode.version:
                    return
                self._set(_Known(copy.copy(inode), 0, data))

    def listed(self, moment: int, inodes: Iterable[StoredInode]) -> None:
        """Rows were read. Those that are known are no older from now on, for times don't go back."""
        for inode in inodes:
            if inode.node in self._known:
                self.found(moment, inode)

    def committed(self, moment: int, inodes: Iterable[StoredInode], before: Mapping[int, int]) -> None:
        """This host has committed these rows.

        Args:
            before: their versions until then. They tell which of two commits of this host was the later one.
        """
        with self._lock:
            for inode in inodes:
                known = self._known.get(inode.node)
                if self._changed_at(inode.node) > moment:
                    if known is not None and known.before and known.before == inode.version:
                        continue  # that one came later
                    follows = known is not None and known.inode.version == before.get(inode.node)
                else:
                    follows = True
                self._note_change(inode.node)
                if follows and inode.nlink:
                    self._set(_Known(copy.copy(inode), before.get(inode.node, 0), None))

    def accessed(self, node: int, atime_ns: int) -> None:
        """The access time of a node's row has been set."""
        with self._lock:
            known = self._known.get(node)
            if known is not None:
                known.inode = copy.copy(known.inode)
                known.inode.atime_ns = atime_ns

    def changed(self, node: int | None) -> None:
        """A row has changed; None stands for any."""
        with self._lock:
            if node is None:
                self._moment += 1
                self._floor = self._moment
                self._changes.clear()
                self._known.clear()
                self._bytes = 0
            else:
                self._note_change(node)

    def _changed_at(self, node: int) -> int:
        return self._changes.get(node, self._floor)

    def _note_change(self, node: int) -> None:
        self._moment += 1
        self._changes.pop(node, None)
        self._changes[node] = self._moment
        if len(self._changes) > MAX_CHANGES:
            self._floor = self._changes.pop(next(iter(self._changes)))
        self._drop(node)

    def _set(self, known: _Known) -> None:
        node = known.inode.node
        self._drop(node)
        self._known[node] = known
        self._bytes += len(known.data or b"")
        while len(self._known) > MAX_INODES or self._bytes > MAX_BYTES:
            self._drop(next(iter(self._known)))
        while len(self._sent) > MAX_CHANGES:
            del self._sent[next(iter(self._sent))]

    def _drop(self, node: int) -> None:
        known = self._known.pop(node, None)
        if known is not None:
            self._bytes -= len(known.data or b"")
