"""`TreeStorage`: inodes, names, and the bytes of files in chunks, for `TreeVolume`. A subclass keeps them.

Every method is called with the volume's lock held.
"""

from __future__ import annotations

import abc
import errno
import itertools
import stat

from fusebackend.base.errors import oserror
from fusebackend.protocol import Attr, Usage
from fusebackend.volumes.chunks import CHUNK_BYTES, CHUNK_SHIFT, Chunk, allocated_blocks
from fusebackend.volumes.native import NativeVolume
from fusebackend.volumes.quota import Quota, bytes_of_blocks

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


class TreeStorage(NativeVolume):
    """Inodes, names, chunks and extended attributes. It decides nothing: the rules are `TreeVolume`'s."""

    def __init__(self) -> None:
        super().__init__()
        self._versions = itertools.count(1)
        self._quota: Quota | None = None  # None for a volume without limits

    @property
    def usage(self) -> Usage | None:
        return None if self._quota is None else self._quota.usage

    @abc.abstractmethod
    def _inode(self, node: int) -> Inode:
        """The inode of a node; ESTALE when there is none."""

    def _parent_of(self, node: int) -> int:
        """The directory that a directory is in."""
        return self._inode(node).parent

    @abc.abstractmethod
    def _new_inode(self, mode: int, parent: int) -> Inode:
        """An inode with a number that was never used."""

    def _prepare(self, inode: Inode, names: bool = False) -> None:
        """The inode is about to be changed, or with `names` a name in it: read what that takes, which may fail."""

    @abc.abstractmethod
    def _changed(self, inode: Inode) -> None:
        """The inode's fields have changed. This and what follows it reads nothing that `_prepare` has not read."""

    def _renewed(self, inode: Inode) -> None:
        """The bytes of a file are others now, or the names in a directory: so is the version, if not the time."""
        inode.version = next(self._versions)

    def _let_go(self, node: int) -> None:
        """The kernel knows this node no longer; it need not be kept in memory."""

    @abc.abstractmethod
    def _drop(self, inode: Inode) -> None:
        """The inode is gone for good, with its chunks and extended attributes."""

    @abc.abstractmethod
    def _child(self, parent: int, name: bytes) -> int | None:
        """The node under a name."""

    @abc.abstractmethod
    def _set_child(self, parent: int, name: bytes, node: int | None) -> None:
        """Put a node under a name, or nothing."""

    @abc.abstractmethod
    def _children(self, parent: int, after: bytes, limit: int) -> list[tuple[bytes, int]]:
        """Up to `limit` names greater than `after`, in order, with their nodes."""

    @abc.abstractmethod
    def _chunk(self, node: int, index: int) -> Chunk | None:
        """A chunk of a file, None for a hole."""

    def _next_chunk(self, node: int, index: int) -> int | None:
        """The first chunk from an index on; None for none. A storage that can't tell says `index`."""
        return index

    @abc.abstractmethod
    def _new_chunk(self, node: int, index: int) -> Chunk:
        """An empty chunk where there was a hole."""

    @abc.abstractmethod
    def _chunk_changed(self, node: int, index: int, chunk: Chunk) -> None:
        """The chunk's bytes have changed."""

    @abc.abstractmethod
    def _drop_chunks(self, node: int, first: int) -> int:
        """Forget the chunks from index `first` on, or fail before the first; returns the sum of `allocated_blocks` over
        those that were there."""

    @abc.abstractmethod
    def _xattrs(self, inode: Inode) -> dict[bytes, bytes]:
        """The extended attributes of an inode; `_xattrs_changed` follows a change."""

    @abc.abstractmethod
    def _xattrs_changed(self, inode: Inode) -> None: ...

    def _admit(self, size: int) -> None:
        """`size` bytes are about to be added: raise ENOSPC when there is no room."""

    def _allocate(self, inode: Inode, blocks: int) -> None:
        """The inode takes so many blocks more, or fewer."""
        inode.blocks += blocks
        if self._quota is not None:
            self._quota.add(bytes_of_blocks(blocks))

    def _growth(self, inode: Inode, offset: int, size: int) -> int:
        """The blocks that a file takes more after a write of so many bytes."""
        blocks, end = 0, offset + size
        for index in range(offset >> CHUNK_SHIFT, -(-end >> CHUNK_SHIFT)):
            chunk = self._chunk(inode.node, index) if index << CHUNK_SHIFT < inode.size else None
            before = 0 if chunk is None else len(chunk.data)
            after = min(end - (index << CHUNK_SHIFT), CHUNK_BYTES)
            blocks += allocated_blocks(max(before, after)) - allocated_blocks(before)
        return blocks

    # -- bytes: no chunk begins at or beyond the end of its file ---------------------------------------------------

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

    def require_room(self, attr: Attr, size_bytes: int) -> None:
        if self._quota is not None:
            self._quota.require(bytes_of_blocks(allocated_blocks(size_bytes) - attr.blocks))

    def _require_room(self, inode: Inode, offset: int, size: int) -> None:
        """Raise EDQUOT if a write of so many bytes would pass the volume's limit. The chunks are looked at near it."""
        quota = self._quota
        chunks = -(-(offset + size) >> CHUNK_SHIFT) - (offset >> CHUNK_SHIFT)
        if quota is not None and not quota.admits(chunks << CHUNK_SHIFT):
            quota.require(bytes_of_blocks(self._growth(inode, offset, size)))

    def _put(self, inode: Inode, offset: int, data: bytes) -> None:
        view, node, done = memoryview(data), inode.node, 0
        first, last = offset >> CHUNK_SHIFT, (offset + len(data) - 1) >> CHUNK_SHIFT
        # All are read before one is changed. Beyond the end there is no chunk, and no need to look for one.
        known = -(-inode.size >> CHUNK_SHIFT)
        chunks = [self._chunk(node, index) for index in range(first, min(last + 1, known))]
        while done < len(data):
            index, start = offset >> CHUNK_SHIFT, offset & (CHUNK_BYTES - 1)
            length = min(len(data) - done, CHUNK_BYTES - start)
            chunk = chunks[index - first] if index - first < len(chunks) else None
            if chunk is None:
                chunk = self._new_chunk(node, index)
            before = len(chunk.data)
            chunk.put(start, view[done : done + length])
            if len(chunk.data) != before:
                self._allocate(inode, allocated_blocks(len(chunk.data)) - allocated_blocks(before))
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
            chunk = self._chunk(inode.node, index) if start else None
            self._allocate(inode, -self._drop_chunks(inode.node, index + 1 if start else index))
            if chunk is not None and len(chunk.data) > start:
                self._allocate(inode, allocated_blocks(start) - allocated_blocks(len(chunk.data)))
                chunk.cut(start)
                self._chunk_changed(inode.node, index, chunk)
        inode.size = size
