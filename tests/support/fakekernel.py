"""`FakeKernel`: a kernel that keeps what it is told, and does nothing."""

from __future__ import annotations


class FakeKernel:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []
        self.names: list[tuple[int, bytes]] = []
        """The names that it was told to look up again."""

    def invalidate_inode(self, inode: int, *, attributes_only: bool = False) -> None:
        self.told.append(("attributes" if attributes_only else "inode", inode))

    def invalidate_entry(self, parent: int, name: bytes) -> None:
        self.told.append(("entry", parent, name))
        self.names.append((parent, name))

    def store(self, inode: int, content: bytes) -> None:
        self.told.append(("store", inode))

    def take(self) -> list[tuple[int, bytes]]:
        """The names since this was last asked."""
        taken, self.names = self.names, []
        return taken
