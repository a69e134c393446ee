"""`KernelCache`: the notices that the mounted tree can send to the kernel."""

from __future__ import annotations

from typing import Protocol


class KernelCache(Protocol):
    """The kernel's caches. Callable from any thread; a name the kernel doesn't know is no error."""

    def invalidate_inode(self, inode: int, *, attributes_only: bool = False) -> None: ...

    def invalidate_entry(self, parent: int, name: bytes) -> None: ...

    def store(self, inode: int, content: bytes) -> None:
        """Give the kernel the pages of a file from its beginning. On the loop's thread; see `prefill.py` for when."""
