"""`InMemoryBackend`: a whole POSIX volume in dicts, and the reference for every other one.

Nothing outlives the process; `fsync` promises nothing beyond that (`Features.durable` is False).
"""

from __future__ import annotations

import bisect
import errno
import itertools
import os
import stat

from fusebackend.base.errors import oserror
from fusebackend.base.stamps import now_ns
from fusebackend.protocol import ROOT_NODE, Features, OnExists, StatFs
from fusebackend.volumes.agent_face import VolumeBackend
from fusebackend.volumes.chunks import Chunk, allocated_blocks
from fusebackend.volumes.posix import DIRECTORY_BYTES, TreeVolume
from fusebackend.volumes.storage import Inode


class InMemoryVolume(TreeVolume):
    """The kernel face of `InMemoryBackend`."""

    features = Features(durable=False)

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count(ROOT_NODE)
        self._inodes: dict[int, Inode] = {}
        self._names: dict[int, dict[bytes, int]] = {}
        self._sorted: dict[int, list[bytes]] = {}  # names in order, made when a listing asks, dropped when one changes
        self._chunks: dict[int, dict[int, Chunk]] = {}
        root = self._new_inode(stat.S_IFDIR | 0o755, ROOT_NODE)
        root.nlink, root.size, root.blocks = 2, DIRECTORY_BYTES, allocated_blocks(DIRECTORY_BYTES)
        root.uid, root.gid = os.geteuid(), os.getegid()
        root.atime_ns = root.mtime_ns = root.ctime_ns = now_ns()

    def statfs(self) -> StatFs:
        with self.lock:
            used = sum(inode.blocks for inode in self._inodes.values()) // 8
            page_bytes = os.sysconf("SC_PAGE_SIZE")
            free = os.sysconf("SC_AVPHYS_PAGES") * page_bytes // 4096
            return StatFs(4096, used + free, free, len(self._inodes) + 2**31, 2**31)

    def _inode(self, node: int) -> Inode:
        try:
            return self._inodes[node]
        except KeyError:
            raise oserror(errno.ESTALE) from None

    def _new_inode(self, mode: int, parent: int) -> Inode:
        node = next(self._numbers)
        inode = self._inodes[node] = Inode(node, mode, parent=parent)
        if stat.S_ISDIR(mode):
            self._names[node] = {}
        return inode

    def _changed(self, inode: Inode) -> None:
        """Inodes are changed where they are kept."""

    def _drop(self, inode: Inode) -> None:
        for table in (self._inodes, self._names, self._sorted, self._chunks):
            table.pop(inode.node, None)

    def _child(self, parent: int, name: bytes) -> int | None:
        names = self._names.get(parent)
        return None if names is None else names.get(name)

    def _set_child(self, parent: int, name: bytes, node: int | None) -> None:
        names = self._names[parent]
        in_order = self._sorted.get(parent)
        if node is None:
            del names[name]
            if in_order is not None:
                del in_order[bisect.bisect_left(in_order, name)]
            return
        if in_order is not None and name not in names:
            bisect.insort(in_order, name)
        names[name] = node

    def _children(self, parent: int, after: bytes, limit: int) -> list[tuple[bytes, int]]:
        names = self._names.get(parent)
        if names is None:
            self._directory(parent)
            raise oserror(errno.ESTALE)
        in_order = self._sorted.get(parent)
        if in_order is None:
            in_order = self._sorted[parent] = sorted(names)
        start = bisect.bisect_right(in_order, after)
        return [(name, names[name]) for name in in_order[start : start + limit]]

    def _chunk(self, node: int, index: int) -> Chunk | None:
        chunks = self._chunks.get(node)
        return None if chunks is None else chunks.get(index)

    def _next_chunk(self, node: int, index: int) -> int | None:
        chunks = self._chunks.get(node, {})
        return index if index in chunks else min((other for other in chunks if other > index), default=None)

    def _new_chunk(self, node: int, index: int) -> Chunk:
        chunk = self._chunks.setdefault(node, {})[index] = Chunk()
        return chunk

    def _chunk_changed(self, node: int, index: int, chunk: Chunk) -> None:
        """Chunks are changed where they are kept."""

    def _drop_chunks(self, node: int, first: int) -> int:
        chunks = self._chunks.get(node, {})
        gone = [index for index in chunks if index >= first]
        return sum(allocated_blocks(len(chunks.pop(index).data)) for index in gone)

    def _xattrs(self, inode: Inode) -> dict[bytes, bytes]:
        if inode.xattrs is None:
            inode.xattrs = {}
        return inode.xattrs

    def _xattrs_changed(self, inode: Inode) -> None:
        """Extended attributes are changed where they are kept."""


class InMemoryBackend(VolumeBackend):
    """Files in this process's memory, on both faces.

    Args:
        on_exists: how `write` treats an existing file, `"error"` (the seeds) or `"replace"` (deepagents 0.7).
    """

    def __init__(self, *, on_exists: OnExists = "error") -> None:
        super().__init__(InMemoryVolume(), on_exists=on_exists)
