"""A kernel as small as can be before a `FileSystem`: paths in, dentries cached, inodes pinned while something is open.

Only for volumes that don't block: their requests are answered without ever waiting, so no loop is needed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Coroutine
from typing import Any, TypeVar

from fusebackend.protocol import AttrChanges, Caller
from fusebackend.vfs.inodes import ROOT_INODE, Entry
from fusebackend.vfs.mounted_tree import FileSystem

ME = Caller(os.geteuid(), os.getegid())
T = TypeVar("T")


def answer(request: Coroutine[Any, Any, T]) -> T:
    """Run a request to its end; fail if it waits."""
    try:
        request.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise AssertionError("a volume that does not block has waited")


class SmallKernel:
    """See the module's docstring. It is the `KernelCache` of its file system too."""

    def __init__(self, filesystem: FileSystem) -> None:
        self.filesystem = filesystem
        self.dentries: dict[tuple[int, bytes], int] = {}
        self.above: dict[int, tuple[int, bytes]] = {}  # inode → (parent, name) in this kernel's dentry cache
        self.lookups: dict[int, int] = {}
        self.opened: dict[int, int] = {}  # handle → inode
        filesystem.attach(self)

    # -- notifications -------------------------------------------------------------------------------------------

    def invalidate_inode(self, inode: int, *, attributes_only: bool = False) -> None:
        """Do nothing: this kernel caches no attributes and no pages."""

    def invalidate_entry(self, parent: int, name: bytes) -> None:
        self.dentries.pop((parent, name), None)

    def store(self, inode: int, content: bytes) -> None:
        """Do nothing: this kernel caches no pages."""

    # -- names -------------------------------------------------------------------------------------------------

    def inode(self, path: str) -> int:
        inode = ROOT_INODE
        for part in path.split("/"):
            if part:
                inode = self._child(inode, os.fsencode(part))
        return inode

    def _child(self, parent: int, name: bytes) -> int:
        found = self.dentries.get((parent, name))
        if found is None:
            entry = answer(self.filesystem.lookup(parent, name))
            if not entry.inode:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
            found = self._take(parent, name, entry)
        return found

    def _take(self, parent: int, name: bytes, entry: Entry) -> int:
        self.dentries[parent, name] = entry.inode
        self.above[entry.inode] = (parent, name)
        self.lookups[entry.inode] = self.lookups.get(entry.inode, 0) + 1
        return entry.inode

    def _place(self, path: str) -> tuple[int, bytes]:
        directory, _, name = path.rstrip("/").rpartition("/")
        return self.inode(directory), os.fsencode(name)

    def create(self, path: str, flags: int = os.O_RDWR) -> int:
        parent, name = self._place(path)
        entry, opened = answer(self.filesystem.create(parent, name, 0o644, flags | os.O_CREAT, ME))
        self.opened[opened.number] = self._take(parent, name, entry)
        return opened.number

    def mkdir(self, path: str) -> None:
        parent, name = self._place(path)
        self._take(parent, name, answer(self.filesystem.mkdir(parent, name, 0o755, ME)))

    def mknod(self, path: str, mode: int) -> None:
        parent, name = self._place(path)
        self._take(parent, name, answer(self.filesystem.mknod(parent, name, mode, 0, ME)))

    def symlink(self, path: str, target: bytes) -> None:
        parent, name = self._place(path)
        self._take(parent, name, answer(self.filesystem.symlink(parent, name, target, ME)))

    def link(self, old: str, new: str) -> None:
        inode = self.inode(old)
        parent, name = self._place(new)
        self._take(parent, name, answer(self.filesystem.link(inode, parent, name)))

    def unlink(self, path: str) -> None:
        parent, name = self._place(path)
        answer(self.filesystem.unlink(parent, name))
        self.dentries.pop((parent, name), None)

    def rmdir(self, path: str) -> None:
        parent, name = self._place(path)
        answer(self.filesystem.rmdir(parent, name))
        self.dentries.pop((parent, name), None)

    def rename(self, old: str, new: str, flags: int = 0) -> None:
        source, target = self._place(old), self._place(new)
        moved = self._child(*source)
        answer(self.filesystem.rename(*source, *target, flags))
        other = self.dentries.pop(target, None)
        self.dentries.pop(source, None)
        self.dentries[target], self.above[moved] = moved, target
        if flags and other is not None:
            self.dentries[source], self.above[other] = other, source

    # -- files -------------------------------------------------------------------------------------------------

    def open(self, path: str, flags: int = os.O_RDWR) -> int:
        inode = self.inode(path)
        number = answer(self.filesystem.open(inode, flags)).number
        self.opened[number] = inode
        return number

    def write(self, handle: int, data: bytes, offset: int = 0) -> None:
        answer(self.filesystem.write(handle, offset, data))

    def close(self, handle: int) -> None:
        answer(self.filesystem.release(handle))
        del self.opened[handle]

    def put(self, path: str, data: bytes) -> None:
        """`echo data > path`"""
        try:
            handle = self.open(path, os.O_WRONLY | os.O_TRUNC)
        except FileNotFoundError:
            handle = self.create(path)
        self.write(handle, data)
        self.close(handle)

    def setattr(self, path: str, **changes: int) -> None:
        answer(self.filesystem.setattr(self.inode(path), AttrChanges(**changes)))

    def setxattr(self, path: str, name: bytes, value: bytes) -> None:
        answer(self.filesystem.setxattr(self.inode(path), name, value))

    # -- memory ------------------------------------------------------------------------------------------------

    def forget(self) -> None:
        """Forget every inode but the open ones and the directories above them."""
        kept = {ROOT_INODE}
        for inode in self.opened.values():
            while inode not in kept:
                kept.add(inode)
                inode = self.above[inode][0]
        given = [(inode, count) for inode, count in self.lookups.items() if inode not in kept]
        for inode, _ in given:
            del self.lookups[inode]
        self.dentries = {place: inode for place, inode in self.dentries.items() if inode in kept and place[0] in kept}
        answer(self.filesystem.forget(given))
