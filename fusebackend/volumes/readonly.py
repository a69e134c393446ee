"""`ReadOnlyVolume`: a volume that changes nothing. Whoever tries is told EROFS, as by one that is mounted read-only."""

from __future__ import annotations

import errno
from typing import NoReturn

from fusebackend.base.errors import oserror
from fusebackend.protocol import Attr, AttrChanges, Caller
from fusebackend.volumes.native import NativeVolume


class ReadOnlyVolume(NativeVolume):
    """Every method that changes something, refused. A subclass answers the ones that look."""

    def mknod(self, parent: int, name: bytes, mode: int, rdev: int, caller: Caller) -> Attr:
        self._refuse(name)

    def mkdir(self, parent: int, name: bytes, mode: int, caller: Caller) -> Attr:
        self._refuse(name)

    def symlink(self, parent: int, name: bytes, target: bytes, caller: Caller) -> Attr:
        self._refuse(name)

    def link(self, node: int, new_parent: int, new_name: bytes) -> Attr:
        self._refuse(new_name)

    def unlink(self, parent: int, name: bytes) -> None:
        self._refuse(name)

    def rmdir(self, parent: int, name: bytes) -> None:
        self._refuse(name)

    def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int = 0) -> None:
        self._refuse(name)

    def create(self, parent: int, name: bytes, mode: int, flags: int, caller: Caller) -> Attr:
        self._refuse(name)

    def setattr(self, node: int, changes: AttrChanges) -> Attr:
        self._refuse()

    def setxattr(self, node: int, name: bytes, value: bytes) -> None:
        self._refuse()

    def removexattr(self, node: int, name: bytes) -> None:
        self._refuse()

    def write(self, node: int, offset: int, data: bytes) -> int:
        self._refuse()

    def _refuse(self, name: bytes | None = None) -> NoReturn:
        raise oserror(errno.EROFS, name)
