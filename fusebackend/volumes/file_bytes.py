"""`FileBytes`: the bytes of files, read, written and cut in the chunks that a `TreeStorage` keeps.

Every method is called with the volume's lock held.
"""

from __future__ import annotations

import errno
import stat

from fusebackend.base.errors import oserror
from fusebackend.volumes.chunks import CHUNK_BYTES, CHUNK_SHIFT, allocated_blocks
from fusebackend.volumes.storage import Inode, TreeStorage

MAX_FILE_BYTES = (1 << 63) - 1
"""The largest offset `off_t` can hold."""


class FileBytes(TreeStorage):
    """See the module's docstring. No chunk begins at or beyond the end of its file."""

    def _get(self, inode: Inode, offset: int, size: int) -> bytes:
        end = min(offset + size, inode.size)
        if offset >= end:
            return b""
        pieces: list[bytes | bytearray] = []
        while offset < end:
            index, start = offset >> CHUNK_SHIFT, offset & (CHUNK_BYTES - 1)
            length = min(end - offset, CHUNK_BYTES - start)
            chunk = self._chunk(inode.node, index)
            piece = chunk.data[start : start + length] if chunk is not None else b""
            pieces.append(piece)
            if len(piece) < length:
                pieces.append(bytes(length - len(piece)))
            offset += length
        return bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)

    def _put(self, inode: Inode, offset: int, data: bytes) -> None:
        view, node, done = memoryview(data), inode.node, 0
        while done < len(data):
            index, start = offset >> CHUNK_SHIFT, offset & (CHUNK_BYTES - 1)
            length = min(len(data) - done, CHUNK_BYTES - start)
            # Beyond the end there is no chunk, and no need to look for one.
            chunk = self._chunk(node, index) if index << CHUNK_SHIFT < inode.size else None
            if chunk is None:
                chunk = self._new_chunk(node, index)
            before = len(chunk.data)
            chunk.put(start, view[done : done + length])
            if len(chunk.data) != before:
                inode.blocks += allocated_blocks(len(chunk.data)) - allocated_blocks(before)
            self._chunk_changed(node, index, chunk)
            done += length
            offset += length

    def _resize(self, inode: Inode, size: int) -> None:
        if stat.S_ISDIR(inode.mode):
            raise oserror(errno.EISDIR)
        if size > MAX_FILE_BYTES:
            raise oserror(errno.EFBIG)
        if size < inode.size:
            index, start = size >> CHUNK_SHIFT, size & (CHUNK_BYTES - 1)
            inode.blocks -= self._drop_chunks(inode.node, index + 1 if start else index)
            if start:
                chunk = self._chunk(inode.node, index)
                if chunk is not None and len(chunk.data) > start:
                    inode.blocks -= allocated_blocks(len(chunk.data)) - allocated_blocks(start)
                    chunk.cut(start)
                    self._chunk_changed(inode.node, index, chunk)
        inode.size = size
