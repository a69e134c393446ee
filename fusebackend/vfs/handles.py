"""Open handles of files and directories: one record for each `open` the kernel has not released."""

from __future__ import annotations

import itertools
from typing import Generic, NamedTuple, TypeVar

from fusebackend.protocol import Attr
from fusebackend.vfs.mounttree import Junction, Route

Handle = TypeVar("Handle", "FileHandle", "DirectoryHandle")


class OpenedFile(NamedTuple):
    """What the kernel is told of a new handle."""

    number: int
    keep_pages: bool
    """The pages it has of the file are still good."""
    direct: bool
    """Writes through this handle pass the page cache by."""


class FileHandle:
    """One open file."""

    __slots__ = ("flags", "inode", "node", "route")

    def __init__(self, inode: int, route: Route, node: int, flags: int) -> None:
        self.inode = inode
        self.route = route
        self.node = node
        self.flags = flags  # of open(2)


class DirectoryHandle:
    """One open directory, and how far each position of its listing is.

    A position is an index into `names`: entry k was `names[k]`. Listings continue by name, so that entries which stay
    are seen exactly once whatever else comes and goes, and a seek back shows the same names again.
    """

    __slots__ = ("ahead", "ahead_at", "inode", "junction", "names", "node", "route")

    def __init__(self, inode: int, route: Route | None, node: int, junction: Junction | None) -> None:
        self.inode = inode
        self.route = route  # None where no volume has this directory
        self.node = node
        self.junction = junction
        self.names: list[bytes] = []
        self.ahead: list[tuple[bytes, Attr]] = []  # fetched and not given to the kernel yet …
        self.ahead_at = (-1, -1)  # … valid at this count of changes in the mount, for this position


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
