"""A host's records about nodes. `Uses`: which are open, or known to the kernel. `Accesses`: when they were read.

`Uses` also detects write conflicts: whether another host has changed a file since it was opened here for writing. The
file's row has the version that last changed its bytes (`contents`), and the one that last made it 0 bytes long
(`emptied`); a process that has the file open for writing remembers both. No I/O happens here.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from fusebackend.backends.postgres.statements import StoredInode

WRITING = os.O_WRONLY | os.O_RDWR

MAX_ACCESSES = 500
"""With so many they are stored soon, else in the next period of the session."""


class Accesses(dict[int, int]):
    """Access times, by node, that have moved and are not in the tables yet: a read of a file waits for no write.

    Until they are stored, this host shows them by `shown`. Any thread may call any method.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    def note(self, node: int, atime_ns: int) -> None:
        with self._lock:
            self[node] = atime_ns

    def shown(self, inode: StoredInode) -> StoredInode:
        """An inode of the tables, with its access time."""
        atime_ns = self.get(inode.node)
        if atime_ns is not None:
            inode.atime_ns = atime_ns
        return inode

    def stored(self, times: Mapping[int, int]) -> None:
        """These are in the tables, or another change has come before them."""
        with self._lock:
            for node, atime_ns in times.items():
                if self.get(node) == atime_ns:
                    del self[node]


@dataclass(slots=True)
class OpenNode:
    """A node that is open here."""

    count: int = 0
    writers: int = 0
    contents: int = 0
    """The version of the bytes that this host has opened, or made."""
    emptied: int | None = None
    """The version that made it 0 bytes long, where that was done here."""
    # The row's values before it was last written here. It still has them if that failed, and else never again.
    contents_before: int = 0
    emptied_before: int = 0
    is_changed_elsewhere: bool = False


class Uses:
    """The nodes that this process uses. Any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opened: dict[int, OpenNode] = {}
        self.held: set[int] = set()
        """Known to the kernel."""
        self.nameless: set[int] = set()
        """Registered in the table as used by this session, for they have no name."""

    def __contains__(self, node: int) -> bool:
        return node in self._opened or node in self.held

    def is_open(self, node: int) -> bool:
        return node in self._opened

    # -- opening -----------------------------------------------------------------------------------------------

    def open(self, node: int, flags: int, contents: int) -> None:
        """One more handle; `contents` is the version of the file's bytes, where the handle is to write."""
        with self._lock:
            opened = self._opened.setdefault(node, OpenNode())
            opened.count += 1
            if flags & WRITING:
                opened.writers += 1
                opened.contents = opened.contents_before = contents
                opened.is_changed_elsewhere = False
                if opened.writers == 1:
                    opened.emptied = None

    def release(self, node: int, flags: int) -> None:
        with self._lock:
            opened = self._opened.get(node)
            assert opened is not None, f"node {node} released more often than opened"
            opened.count -= 1
            opened.writers -= bool(flags & WRITING)
            if opened.count == 0:
                del self._opened[node]

    def unused(self) -> list[int]:
        """Nodes that this session is registered for, and uses no more."""
        return [node for node in self.nameless.copy() if node not in self]  # copied in one step of the interpreter

    def opened(self) -> list[int]:
        return list(self._opened)

    # -- conflicts between hosts -------------------------------------------------------------------------------

    # `version` is that of the current transaction; a row that has it was written by it before.

    def may_write(self, inode: StoredInode, version: int) -> bool:
        """Whether no other host has emptied the file since this host did, to write it anew."""
        opened = self._opened.get(inode.node)
        if opened is None or opened.emptied is None:
            return True
        return inode.emptied in (opened.emptied, opened.emptied_before, version)

    def may_empty(self, inode: StoredInode, version: int) -> bool:
        """Whether no other host has changed the file since it was last opened here for writing."""
        opened = self._opened.get(inode.node)
        if opened is None or opened.writers == 0:
            return True
        known = (opened.contents, opened.contents_before, version)
        return not opened.is_changed_elsewhere and inode.contents in known

    def wrote(self, node: int, version: int, contents: int, emptied: int | None) -> None:
        """This host is about to commit other bytes of a file, whose row is locked.

        Args:
            contents: the row's value until now.
            emptied: the same, None where the file is not emptied.
        """
        opened = self._opened.get(node)
        if opened is None:
            return
        if contents != version:  # else this transaction has written to it before
            if contents not in (opened.contents, opened.contents_before):
                opened.is_changed_elsewhere = True
            opened.contents, opened.contents_before = version, contents
        if emptied is not None and emptied != version and opened.writers:
            opened.emptied, opened.emptied_before = version, emptied
