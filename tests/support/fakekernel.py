"""`FakeKernel`: a kernel that records notifications and does nothing else."""

from __future__ import annotations


class FakeKernel:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []
        self.names: list[tuple[int, bytes]] = []
        """The dentries that were invalidated: (parent inode, name)."""

    def invalidate_inode(self, inode: int, *, attributes_only: bool = False) -> None:
        self.told.append(("attributes" if attributes_only else "inode", inode))

    def invalidate_entry(self, parent: int, name: bytes) -> None:
        self.told.append(("entry", parent, name))
        self.names.append((parent, name))

    def store(self, inode: int, content: bytes) -> None:
        self.told.append(("store", inode, content))

    def take(self) -> list[tuple[int, bytes]]:
        """Return the names since the last call."""
        taken, self.names = self.names, []
        return taken
