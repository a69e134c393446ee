"""`StoredInode`: an inode as a row of the table has it, and how rows become one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusebackend.volumes.storage import Inode

FIELDS = (
    "node", "mode", "nlink", "uid", "gid", "rdev", "size", "blocks", "atime_ns", "mtime_ns", "ctime_ns", "parent",
    "version", "contents", "emptied",
)  # fmt: skip
COLUMNS = ", ".join(FIELDS)


def columns_of(table: str) -> str:
    return ", ".join(f"{table}.{field}" for field in FIELDS)


class StoredInode(Inode):
    """An `Inode`, with what only the table knows."""

    __slots__ = ("contents", "ctime_before_ns", "emptied", "is_new", "mtime_before_ns")

    def __init__(self, node: int, mode: int, *, parent: int = 0) -> None:
        super().__init__(node, mode, parent=parent)
        self.contents = 0  # the version that last changed the bytes
        self.emptied = 0  # the version that last made it 0 bytes long
        self.is_new = True  # the table has no row of it
        self.ctime_before_ns = self.mtime_before_ns = -(1 << 63)

    @classmethod
    def of(cls, row: Sequence[Any]) -> StoredInode:
        """The inode of a row of `COLUMNS`."""
        inode = cls(row[0], row[1], parent=row[11])
        (
            inode.nlink, inode.uid, inode.gid, inode.rdev, inode.size, inode.blocks,
            inode.atime_ns, inode.mtime_ns, inode.ctime_ns,
        ) = row[2:11]  # fmt: skip
        inode.version, inode.contents, inode.emptied = row[12:15]
        inode.is_new = False
        inode.ctime_before_ns, inode.mtime_before_ns = inode.ctime_ns, inode.mtime_ns
        return inode

    @property
    def row(self) -> tuple[int, ...]:
        return tuple(getattr(self, field) for field in FIELDS)

    def settle_times(self) -> None:
        """A change is never dated before the one it follows, though the clocks of two hosts may say so.

        What follows within a tick of the clock keeps its date: that of a file which is touched in the same one.
        """
        if self.ctime_ns < self.ctime_before_ns:
            now = self.ctime_before_ns + 1
            if self.mtime_ns == self.ctime_ns:  # set together: now, as this host has it
                self.mtime_ns = max(now, self.mtime_before_ns)
            self.ctime_ns = now
        self.ctime_before_ns, self.mtime_before_ns = self.ctime_ns, self.mtime_ns
