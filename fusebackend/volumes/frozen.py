"""`FrozenTree`: a state of a native volume that never changes again, such as a snapshot.

A subclass answers the reading methods of a storage (`TreeVolume`). Its nodes need no count of open handles: none of
them goes before the whole tree does.
"""

from __future__ import annotations

import abc
import errno
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fusebackend.base.errors import oserror
from fusebackend.base.recent import Recent
from fusebackend.protocol import Attr, Features, KnowsXattrs, Snapshot, StatFs, Volume
from fusebackend.volumes.damage import Damage
from fusebackend.volumes.posix import TreeVolume
from fusebackend.volumes.storage import ChunkCache, Inode
from fusebackend.volumes.walk import entries

CACHE_INODES = 4096
CACHE_BYTES = 4 << 20
"""Bounds of the caches of one snapshot: some 2 MiB of inodes, and 4 MiB of chunks."""


def _refuse(*_: object) -> Any:
    raise oserror(errno.EROFS)


_REFUSED: Any = _refuse


class GivesPieces(KnowsXattrs):
    """A volume whose files are read as a whole, and not opened."""

    def pieces(self, node: int) -> Iterator[tuple[int, bytes]]:
        """As `Source.pieces`."""
        raise NotImplementedError

    def read(self, node: int, offset: int, size: int) -> bytes:
        raise oserror(errno.EBADF)

    def statfs(self) -> StatFs:
        return StatFs(4096, 0, 0, 0, 0)


class LooksAhead(Volume):
    """A volume that gets nodes together, where each takes a query."""

    def ahead(self, nodes: Sequence[int], *, contents: bool = False) -> None:
        """Nodes are about to be read: get them. What is not there has no error.

        Args:
            contents: get their first chunks as well.
        """


class FrozenTree(TreeVolume, LooksAhead):
    """A read-only tree. Every change is EROFS, and reads move no access times."""

    features = Features(read_only=True)
    directory_moves = 0

    # What a `Volume` does that can't be changed: EROFS.
    mknod, mkdir, symlink, link = Volume.mknod, Volume.mkdir, Volume.symlink, Volume.link
    unlink, rmdir, rename = Volume.unlink, Volume.rmdir, Volume.rename
    setattr, setxattr, removexattr, write = Volume.setattr, Volume.setxattr, Volume.removexattr, Volume.write
    access_due = Volume.access_due
    hold, forget = Volume.hold, Volume.forget  # every node is there as long as the tree is

    _new_inode = _changed = _drop = _set_child = _REFUSED
    _chunk_changed = _drop_chunks = _xattrs_changed = _REFUSED

    def place_of(self, directory: int) -> tuple[int, bytes]:
        """Return the directory that a directory is in, and its name there, for which that one is listed.

        Raises:
            OSError: ENOTDIR, it is none; ESTALE, it is not there, or is the root.
        """
        with self.lock:
            self._directory(directory)
            parent = self._parent_of(directory)
            for name, attr in entries(self, parent):
                if attr.node == directory:
                    return parent, name
        raise oserror(errno.ESTALE)

    def open(self, node: int, flags: int) -> Attr | None:
        return self.getattr(node)

    def release(self, node: int, flags: int) -> None:
        """Nothing to count."""


class StoredSnapshot(FrozenTree):
    """A snapshot whose rows are in a database, with caches of its own. ESTALE once it is deleted.

    Args:
        volume: the volume, in lines of the log.
        guard: guards the caches.
    """

    def __init__(self, taken: Snapshot, volume: str, guard: AbstractContextManager[Any]) -> None:
        super().__init__()
        self.taken = taken
        self.is_deleted = False
        self._damage = Damage(f"snapshot '{taken.name}' of {volume}")
        self._guard = guard
        self._inodes: Recent[int, Inode] = Recent(CACHE_INODES)
        self._chunks = ChunkCache(CACHE_BYTES)

    @abc.abstractmethod
    def _read_inode(self, node: int) -> Inode:
        """The inode of a node, from its row. ESTALE; EIO for a damaged one."""

    def _require(self) -> None:
        if self.is_deleted:
            raise oserror(errno.ESTALE)

    def _inode(self, node: int) -> Inode:
        self._require()
        with self._guard:
            inode = self._inodes.use(node)
        return self._kept(self._read_inode(node)) if inode is None else inode

    def _kept(self, inode: Inode) -> Inode:
        """The inode of this node that is cached from now on."""
        with self._guard:
            return self._inodes.setdefault(inode.node, inode)

    def forget_cached(self) -> None:
        """Read everything again."""
        with self._guard:
            self._inodes.clear()
            self._chunks.clear()

    def _entries(self, directory: int, children: list[tuple[bytes, int]]) -> list[tuple[bytes, Inode]]:
        return self._damage.entries(directory, children, self._inode)

    def statfs(self) -> StatFs:
        self._require()
        return StatFs(4096, 0, 0, 0, 0)
