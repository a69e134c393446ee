"""`Uses`: which nodes of a volume this process has open, and which its mount's kernel knows. Pure.

Here is also what a rewrite needs to know: whether another host has changed a file since it was opened here to be
written. A file's row says which version last changed its bytes (`contents`), and which one last made it 0 bytes long
(`emptied`); a process that has it open for writing keeps what these were.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable

from fusebackend.backends.postgres.rows import StoredInode

WRITING = os.O_WRONLY | os.O_RDWR


class Opened:
    """A node that is open here."""

    __slots__ = ("contents", "contents_before", "count", "emptied", "emptied_before", "is_changed_elsewhere", "writers")

    def __init__(self) -> None:
        self.count = 0
        self.writers = 0
        self.contents = 0  # the version of the bytes that this host has opened, or made
        self.emptied: int | None = None  # the version that made it 0 bytes long, where that was done here
        # What the row had before it was last written here. If that failed it has them still, and else never again.
        self.contents_before = 0
        self.emptied_before = 0
        self.is_changed_elsewhere = False


class Uses:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opened: dict[int, Opened] = {}
        self._held: set[int] = set()
        self._nameless: set[int] = set()  # those of ours that have no name, and are noted as used by this session
        self._unused: set[int] = set()  # those of these that nobody uses any more

    def __contains__(self, node: int) -> bool:
        return node in self._opened or node in self._held

    def is_open(self, node: int) -> bool:
        return node in self._opened

    # -- opening -----------------------------------------------------------------------------------------------

    def open(self, node: int, flags: int, contents: int) -> None:
        """One more handle; `contents` is the version of the file's bytes, where the handle is to write."""
        with self._lock:
            opened = self._opened.setdefault(node, Opened())
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
                self._note_unused(node)

    def hold(self, node: int) -> None:
        self._held.add(node)

    def forget(self, nodes: Iterable[int]) -> None:
        with self._lock:
            for node in nodes:
                self._held.discard(node)
                self._note_unused(node)

    # -- without a name ----------------------------------------------------------------------------------------

    def note_nameless(self, node: int) -> None:
        with self._lock:
            self._nameless.add(node)
            self._note_unused(node)  # its last user may have gone meanwhile

    def _note_unused(self, node: int) -> None:
        if node in self._nameless and node not in self:
            self._nameless.discard(node)
            self._unused.add(node)

    def unused(self) -> list[int]:
        """Nodes that this session is noted as a user of, and is no more."""
        with self._lock:
            return list(self._unused)

    def forget_unused(self, nodes: Iterable[int]) -> None:
        """That has been noted."""
        with self._lock:
            self._unused.difference_update(nodes)

    def is_noted(self, node: int) -> bool:
        """Does the database know that this session uses it, though it has no name?"""
        return node in self._nameless

    def nameless(self) -> list[int]:
        with self._lock:
            return list(self._nameless)

    def opened(self) -> list[int]:
        with self._lock:
            return list(self._opened)

    # -- who has written ---------------------------------------------------------------------------------------

    # `version` is that of the transaction that asks; a row that has it was written by it before.

    def may_write(self, inode: StoredInode, version: int) -> bool:
        """Has nobody else emptied the file since this host did, to write it anew?"""
        opened = self._opened.get(inode.node)
        if opened is None or opened.emptied is None:
            return True
        return inode.emptied in (opened.emptied, opened.emptied_before, version)

    def may_empty(self, inode: StoredInode, version: int) -> bool:
        """Has nobody else changed the file since it was last opened here to be written?"""
        opened = self._opened.get(inode.node)
        if opened is None or opened.writers == 0:
            return True
        known = (opened.contents, opened.contents_before, version)
        return not opened.is_changed_elsewhere and inode.contents in known

    def wrote(self, node: int, version: int, contents: int, emptied: int | None) -> None:
        """This host is about to commit other bytes of a file, whose row is locked.

        Args:
            contents: what the row has had for it until now; as `emptied`, which is None where it is not emptied.
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
