"""`GoneVolume`: takes the place of a volume that was detached from a running mount. Every call is ESTALE."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence

from fusebackend.base.errors import oserror
from fusebackend.protocol import Attr, StatFs
from fusebackend.volumes.native import NativeVolume


class GoneVolume(NativeVolume):
    """See the module's docstring. The kernel may go on asking for inodes that it has."""

    def lookup(self, parent: int, name: bytes) -> Attr:
        raise oserror(errno.ESTALE)

    def readdir(self, node: int, after: bytes, limit: int) -> Sequence[tuple[bytes, Attr]]:
        raise oserror(errno.ESTALE)

    def getattr(self, node: int) -> Attr:
        raise oserror(errno.ESTALE)

    def read(self, node: int, offset: int, size: int) -> bytes:
        raise oserror(errno.ESTALE)

    def open(self, node: int, flags: int) -> Attr | None:
        raise oserror(errno.ESTALE)

    def statfs(self) -> StatFs:
        raise oserror(errno.ESTALE)

    def _refusal(self, what: str) -> OSError:
        return oserror(errno.ESTALE)

    def forget(self, nodes: Iterable[int]) -> None:
        """Nothing is kept."""
