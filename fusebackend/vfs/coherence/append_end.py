"""`AppendEnd`: an append goes to the end that the file has when it arrives, not to the one that the kernel believes in.

Race: with O_APPEND the kernel chooses the offset, by the size it believes (`generic_write_checks`, fs/read_write.c).
If another face or host has appended meanwhile, that is in the middle of the file, and would destroy what was appended.
So what a handle with O_APPEND writes at the end that the kernel believes in is appended. Elsewhere go only pages of a
shared mapping, where they are mapped, and what is written after `fcntl` has taken O_APPEND back, of which a server is
not told.

The kernel may believe in one of several ends: it throws away attributes that arrive together with another notice of
the file, and a write may have been sent before it was told of a new size. The earlier ones are kept for that.

Cost: nothing for a file that others don't change; 150 bytes for one that they do, while the kernel knows it.
Switch: `append_end`.
"""

from __future__ import annotations

from fusebackend.vfs.handles import FileHandle
from fusebackend.vfs.inodes import InodeTable, KnownInode

EARLIER_SIZES = 16
"""So many changes of a file's size may be told of while one write is on its way."""

PAGE_BYTES = 4096
"""Pages of a mapping are written from a multiple of this on. The kernel's are as large or larger."""


class AppendEnd:
    """See the module's docstring. On the mount's loop, but for `write`."""

    def __init__(self, inodes: InodeTable, on: bool) -> None:
        self._inodes = inodes
        self._on = on
        self._earlier: dict[int, tuple[int, ...]] = inodes.by_inode({})  # sizes before `KnownInode.size`
        self._mappers: dict[int, int] = inodes.by_inode({})  # open handles through which pages can be mapped to write

    def opened(self, handle: FileHandle) -> None:
        if handle.can_map:
            self._mappers[handle.inode] = self._mappers.get(handle.inode, 0) + 1

    def closed(self, handle: FileHandle) -> None:
        if handle.can_map:
            left = self._mappers.pop(handle.inode, 1) - 1
            if left:
                self._mappers[handle.inode] = left

    def told(self, inode: int, known: KnownInode, size: int) -> None:
        """The kernel is told another size than it believes."""
        if not known.is_dir:
            self._remember(inode, known.size)
        known.size = size

    def wrote(self, inode: int, known: KnownInode, end: int, appending: bool) -> None:
        """The kernel has written up to here, and believes that the file goes as far, if no further.

        `known.size` may be one of which it knows nothing; the next append then comes to where this one has ended.
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
            return handle.route.changing.append(handle.node, data)
        return handle.write(offset, data)

    def may_be_end(self, inode: int, known: KnownInode, offset: int) -> bool:
        """Did the kernel take this offset for the end of the file, when it sent what has just arrived?

        It may have been told another size since then, but not when the offset is one that pages of a mapping have,
        which are written where they are.
        """
        if offset == known.size:
            return True
        is_page = inode in self._mappers and offset < known.size and offset % PAGE_BYTES == 0
        return offset in self._earlier.get(inode, ()) and not is_page
