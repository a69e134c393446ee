"""Open handles of files and directories: one record for each `open` the kernel has not released."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

from fusebackend.protocol import Attr, AttrChanges, Volume
from fusebackend.vfs.calls import request
from fusebackend.vfs.junctions import Junction, Route
from fusebackend.vfs.setid import without_set_id

Handle = TypeVar("Handle", "FileHandle", "DirectoryHandle")


class OpenedFile(NamedTuple):
    """The answer to OPEN or CREATE."""

    number: int
    keep_pages: bool
    """The pages that the kernel has of the file are still valid."""
    direct: bool
    """Writes through this handle pass the page cache by."""


class FileHandle:
    """One open file."""

    __slots__ = ("_privileged", "bare", "can_map", "direct", "flags", "inode", "node", "opened_at", "opener", "route")

    def __init__(self, inode: int, route: Route, node: int, flags: int) -> None:
        self.inode = inode
        self.route = route
        self.node = node
        self.flags = flags  # of open(2)
        self.can_map = flags & os.O_ACCMODE == os.O_RDWR
        """Pages can be mapped for writing (mmap(2)): the file is open for reading and writing."""
        self.direct = False  # its writes pass the kernel's page cache by …
        self.bare = False  # … and the file is known to have no capabilities, see `vfs/setid.py`
        self.opened_at = time.monotonic()
        self.opener = opener = request.current()
        if route.author is not None and flags & os.O_ACCMODE != os.O_RDONLY:
            asked = opener.verb, opener.thread, opener.uid, opener.gid
            self.opener = request.Request(*asked, author=route.author(opener))
        self._privileged: bool | None = None

    @property
    def privileged(self) -> bool:
        """True if a write by the thread that opened it leaves set-ID bits alone (CAP_FSETID)."""
        if self._privileged is None:
            self._privileged = self.opener.can(request.CAP_FSETID)
        return self._privileged

    def open(self, truncate: bool) -> Attr:
        """Open the node, and empty it if `truncate`, in one step and one thread; returns the attributes after that.

        An error leaves it closed.
        """
        volume, node = self.route.volume, self.node
        # An attempt that is given up between two of these calls must still be able to close the node.
        with volume.lock if self.route.executor.tries_all else contextlib.nullcontext():
            attr = volume.open(node, self.flags)
            try:
                if truncate:
                    empty = without_set_id(volume, node, AttrChanges(size=0), self.opener)
                    return self.route.door.setattr(node, empty)
                if attr is None:
                    return volume.getattr(node)
                self.node = attr.node  # that of a content of its own, see `Volume.open`
                return attr
            except BaseException:
                volume.release(node, self.flags)
                raise

    def write(self, offset: int, data: bytes) -> int:
        return self.route.door.write(self.node, offset, data)


def close_all(volume: Volume, handles: Iterable[FileHandle], nodes: Iterable[int]) -> None:
    """After the unmount: close the open handles of a volume, forget its nodes, and make everything durable."""
    for handle in handles:
        volume.release(handle.node, handle.flags)
    volume.forget(nodes)
    volume.sync()


class DirectoryHandle:
    """One open directory, and the names before each position of its listing.

    A position counts the names given out before it, and the listing goes on after the last of these. It goes on by
    name, so that an entry that stays is seen exactly once while others come and go. After a seek back, other names than
    before get positions of their own: all positions stay valid until the listing starts anew.

    A listing that the kernel may keep has other positions, see `coherence/cached_readdir.py`.
    """

    __slots__ = ("ahead", "ahead_at", "inode", "junction", "kept", "names", "node", "route")

    def __init__(
        self, inode: int, route: Route | None, node: int, junction: Junction | None, kept: bool = False
    ) -> None:
        self.inode = inode
        self.route = route  # None where no volume has this directory
        self.node = node
        self.junction = junction
        self.names: list[bytes] = []
        self.ahead: list[tuple[bytes, Attr]] = []  # fetched and not given to the kernel yet …
        self.ahead_at = (-1, -1, -1)  # … at these counts of all changes and of others'; for this position
        self.kept = kept  # the kernel may keep the listing


class HandleTable(Generic[Handle]):
    """Handles by number. A number is never used twice."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._open: dict[int, Handle] = {}

    def __len__(self) -> int:
        return len(self._open)

    def items(self) -> list[tuple[int, Handle]]:
        return list(self._open.items())

    def __getitem__(self, number: int) -> Handle:
        return self._open[number]

    def add(self, handle: Handle) -> int:
        number = next(self._numbers)
        self._open[number] = handle
        return number

    def remove(self, number: int) -> Handle:
        return self._open.pop(number)
