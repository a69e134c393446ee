"""`Inode`: an inode of a native volume as it is in memory."""

from __future__ import annotations

from fusebackend.protocol import Attr

MAX_FILE_BYTES = (1 << 63) - 1
"""The largest offset `off_t` can hold."""


class Inode(Attr):
    """An `Attr` that the volume changes in place, with fields that the kernel does not see."""

    __slots__ = ("opens", "parent", "unnoted", "xattrs")

    def __init__(self, node: int, mode: int, *, parent: int = 0) -> None:
        super().__init__(node, mode)
        self.parent = parent  # of a directory, which has one name; 0 for anything else
        self.opens = 0  # open handles …
        self.unnoted = 0  # … and those of them that were opened with O_NOATIME
        self.xattrs: dict[bytes, bytes] | None = None  # None until they are asked for
