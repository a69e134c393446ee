"""`AppendEnd`: an append goes to the end of the file at its arrival, not to the end that the kernel assumes.

Race: with O_APPEND the kernel chooses the offset, by its own size of the file (`generic_write_checks`,
fs/read_write.c). If another face or host has appended meanwhile, that is in the middle of the file, and would overwrite
its data. So a write at the kernel's end of the file, through a handle with O_APPEND, becomes an append. Two kinds of
writes keep their offset: pages of a shared mapping, and writes after `fcntl` has cleared O_APPEND, which no request
reports.

The kernel may have one of several sizes: it drops attributes that arrive together with another notice of the file, and
a write may have been sent before a notice of a new size. The earlier ones are kept for that.

Cost: nothing for a file that others don't change; 150 bytes for one that they do, while the kernel knows it.
Switch: `append_end`.
"""

from __future__ import annotations

from fusebackend.vfs.handles import FileHandle
from fusebackend.vfs.inodes import InodeTable, KnownInode

EARLIER_SIZES = 16
"""So many changes of a file's size may be sent to the kernel while one write is on its way."""

PAGE_BYTES = 4096
"""Pages of a mapping are written from a multiple of this on. The kernel's are as large or larger."""


class AppendEnd:
    """See the module's docstring. On the mount's loop, but for `write`.

    `opened` and `closed` are for handles that can map.
    """

    def __init__(self, inodes: InodeTable, on: bool) -> None:
        self._inodes = inodes
        self._on = on
        self._earlier: dict[int, tuple[int, ...]] = inodes.by_inode({})  # sizes before `KnownInode.size`
        self._mappers: dict[int, int] = inodes.by_inode({})  # open handles through which pages can be mapped to write

    def opened(self, handle: FileHandle) -> None:
        self._mappers[handle.inode] = self._mappers.get(handle.inode, 0) + 1

    def closed(self, handle: FileHandle) -> None:
        left = self._mappers.pop(handle.inode, 1) - 1
        if left:
            self._mappers[handle.inode] = left

    def size_sent(self, inode: int, known: KnownInode, size: int) -> None:
        """Note that the kernel gets another size than it has."""
        if not known.is_dir:
            self._remember(inode, known.size)
        known.size = size

    def wrote(self, inode: int, known: KnownInode, end: int, appending: bool) -> None:
        """Note a write by the kernel up to `end`: its size of the file is at least that.

        `known.size` may be one that the kernel does not have; its next append then begins at `end`.
        """
        if end > known.size:
            known.size = end
        elif appending and end != known.size:
            self._remember(inode, end)

    def _remember(self, inode: int, size: int) -> None:
        self._earlier[inode] = (*self._earlier.get(inode, ())[1 - EARLIER_SIZES :], size)

    def write(self, handle: FileHandle, offset: int, data: bytes) -> int:
        """Write through a handle with O_APPEND. In the volume's thread."""
        known = self._inodes.get(handle.inode)
        if self._on and (known is None or offset == known.size or self.may_be_end(handle.inode, known, offset)):
            return handle.route.door.append(handle.node, data)
        return handle.write(offset, data)

    def may_be_end(self, inode: int, known: KnownInode, offset: int) -> bool:
        """True if this offset may have been the kernel's end of the file when it sent the write.

        Also a size from before the last one counts, but not at an offset of a mapped page: that page is written where
        it is.
        """
        if offset == known.size:
            return True
        is_page = inode in self._mappers and offset < known.size and offset % PAGE_BYTES == 0
        return offset in self._earlier.get(inode, ()) and not is_page
