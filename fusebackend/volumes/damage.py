"""Damage: rows in a volume's tables that no volume writes, changed by another program or by a disk.

One bad row is one bad entry. Its name is left out of listings, and a lookup of it is EIO; everything beside it is as
before. The log names it, once. `fusebackend check --repair` mends the file of an SQLite volume.

A directory is where it says it is (`Inode.parent`), by one name. Any other name that leads to it is damage. So no
directory that can be reached from the root is below itself, and no walk goes round in a circle.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fusebackend.base.errors import oserror
from fusebackend.protocol import MAX_NODE, NAME_MAX_BYTES, ROOT_NODE
from fusebackend.volumes.storage import CHUNK_BYTES, Inode

log = logging.getLogger(__name__)

MAX_LOGGED = 1000
"""So many lines about one volume are enough."""

_NUMBERS = {int}
_MAX_ID = (1 << 32) - 1
_KINDS = frozenset({stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK, stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR, stat.S_IFBLK})

T = TypeVar("T", bound=Inode)


def is_sound(row: Sequence[Any]) -> bool:
    """True if an inode can be: node, mode, nlink, uid, gid, rdev, size, blocks, atime, mtime, ctime, parent."""
    return set(map(type, row)) == _NUMBERS and is_in_range(row)


def is_in_range(row: Sequence[int]) -> bool:
    """`is_sound`, for a database that keeps nothing but numbers there."""
    node, mode, nlink, uid, gid, rdev, size, blocks, _, _, _, parent = row
    return (
        1 <= node <= MAX_NODE
        and 0 <= mode <= 0o177777
        and stat.S_IFMT(mode) in _KINDS
        and 0 <= nlink <= _MAX_ID
        and 0 <= uid <= _MAX_ID
        and 0 <= gid <= _MAX_ID
        and 0 <= rdev <= _MAX_ID
        and size >= 0
        and blocks >= 0
        and (parent == 0 or 1 <= parent <= MAX_NODE)
        and not (stat.S_ISDIR(mode) and parent == 0)
        and not (stat.S_ISLNK(mode) and size > CHUNK_BYTES)
    )


class DamageLog:
    """Logs each damage of one file or database once, when it is met.

    Args:
        whole: the name of the file or database in the log.
    """

    def __init__(self, whole: str) -> None:
        self._whole = whole
        self._logged: set[str] = set()

    def tell(self, what: str) -> None:
        """Log a line, if it is new."""
        if what not in self._logged and len(self._logged) < MAX_LOGGED:
            self._logged.add(what)
            log.error("%s is damaged: %s", self._whole, what)


class DamagedError(OSError):
    """EIO of an inode that is damaged: not of a disk or a lower tree that can't be read at the moment."""


class Damage(DamageLog):
    """Logs the damage of one volume, and leaves it out of listings."""

    def of_inode(self, row: Sequence[Any]) -> DamagedError:
        """Return the error to raise for the row of an inode."""
        self.tell(f"inode {row[0]} has {tuple(row[1:12])!r}")
        return DamagedError(errno.EIO, os.strerror(errno.EIO))

    def require_entry(self, directory: int, name: bytes, inode: Inode) -> None:
        """Raise EIO for a name that doesn't lead where it seems to."""
        if what := _misled(directory, inode):
            self.tell(f"name {name!r} in inode {directory}: {what}")
            raise oserror(errno.EIO, name)

    def entries(
        self, directory: int, children: Sequence[tuple[bytes, int]], inode_of: Callable[[int], T]
    ) -> list[tuple[bytes, T]]:
        """The entries of a directory that can be shown. All of a page are looked at together, for nearly all are. An
        inode that can't be read fails the listing: without a name in it `rsync --delete` would delete that file."""
        try:
            found = [(name, inode_of(child)) for name, child in children]
        except OSError:
            return [(name, inode) for name, node in children if (inode := self._found(directory, name, node, inode_of))]
        return self.shown(directory, found)

    def shown(self, directory: int, found: list[tuple[bytes, T]]) -> list[tuple[bytes, T]]:
        """`entries`, for inodes that are there."""
        if are_names([name for name, _ in found]) and not any(
            not inode.nlink or (inode.parent and (inode.parent != directory or inode.node == ROOT_NODE))
            for _, inode in found
        ):
            return found
        return [(name, inode) for name, inode in found if self._is_shown(directory, name, inode)]

    def _found(self, directory: int, name: bytes, node: int, inode_of: Callable[[int], T]) -> T | None:
        try:
            inode = inode_of(node)
        except OSError as error:
            if not isinstance(error, DamagedError) and error.errno != errno.ESTALE:
                raise
            self.tell(f"name {name!r} in inode {directory} leads to inode {node!r}, which does not exist or is damaged")
            return None
        return inode if self._is_shown(directory, name, inode) else None

    def _is_shown(self, directory: int, name: bytes, inode: Inode) -> bool:
        what = _misled(directory, inode) or ("no name that Linux allows" if not are_names([name]) else None)
        if what:
            self.tell(f"name {name[:300]!r} in inode {directory}: {what}")
        return not what


def _misled(directory: int, inode: Inode) -> str | None:
    if not inode.nlink:
        return f"inode {inode.node} has a link count of 0"
    if stat.S_ISDIR(inode.mode) and (inode.parent != directory or inode.node == ROOT_NODE):
        return f"directory inode {inode.node} says its parent is inode {inode.parent}"
    return None


def are_names(names: Sequence[bytes]) -> bool:
    """Whether Linux allows all of these names. It would refuse a whole listing for one (fs/fuse/readdir.c)."""
    joined = b"/".join(names)
    return (
        joined.count(b"/") == max(len(names) - 1, 0)
        and b"\0" not in joined
        and all(names)
        and len(max(names, key=len, default=b"")) <= NAME_MAX_BYTES
        and b"." not in names
        and b".." not in names
    )
