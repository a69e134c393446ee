"""`Quota`: the limits of a volume, and what counts towards them.

What counts is what `du` and `find` show: the `st_blocks` of every inode but the root, and their number; besides, the
bytes of extended attributes. An inode with several names counts once, and one without a name until it is gone. Earlier
states that snapshots keep count nothing: they are not in the tree.

The sums are counted from the inodes when a volume with limits is opened, so after a crash they are those of the tree
that is left. A volume without limits has no `Quota`, and counts nothing.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from typing import NamedTuple

from fusebackend.protocol import BLOCK_BYTES, Usage


class Limits(NamedTuple):
    """How much a volume may hold; None for no limit.

    Raises `ValueError` in `of` for a limit that is not above 0.
    """

    limit_bytes: int | None = None
    limit_files: int | None = None

    @classmethod
    def of(cls, limit_bytes: int | None, limit_files: int | None) -> Limits | None:
        """Return the limits; None without any.

        Args:
            limit_bytes: of all files, directories, links and extended attributes together.
            limit_files: how many files, directories, links and special files.
        """
        for name, value in (("limit_bytes", limit_bytes), ("limit_files", limit_files)):
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be above 0, not {value}")
        return None if limit_bytes is limit_files is None else cls(limit_bytes, limit_files)


class Quota:
    """See the module's docstring. Called with the volume's lock held.

    Args:
        limits: of the volume.
        used_bytes, used_files: what is there.
    """

    def __init__(self, limits: Limits, used_bytes: int = 0, used_files: int = 0) -> None:
        self.limits = limits
        self.used_bytes = used_bytes
        self.used_files = used_files

    def admits(self, more_bytes: int) -> bool:
        """Return True if there is room for so many bytes. A volume that is over its limit may still shrink."""
        return not self._passed(more_bytes, 0)

    def require(self, more_bytes: int, more_files: int = 0) -> None:
        """Raise EDQUOT where there is no room for so much more."""
        passed = self._passed(more_bytes, more_files)
        if passed:
            raise OSError(errno.EDQUOT, f"{os.strerror(errno.EDQUOT)}: {passed}")

    def _passed(self, more_bytes: int, more_files: int) -> str:
        """Say which limit so much more would pass; empty for none."""
        used_bytes, limit_bytes, used_files, limit_files = self.usage
        if more_bytes > 0 and limit_bytes is not None and used_bytes + more_bytes > limit_bytes:
            return f"{used_bytes:,} of {limit_bytes:,} bytes are used, and {more_bytes:,} more are needed"
        if more_files > 0 and limit_files is not None and used_files + more_files > limit_files:
            return f"there are {used_files:,} of {limit_files:,} files and directories"
        return ""

    def add(self, more_bytes: int, more_files: int = 0) -> None:
        """Count what has been added, or taken away."""
        self.used_bytes += more_bytes
        self.used_files += more_files

    @property
    def usage(self) -> Usage:
        return Usage(self.used_bytes, self.limits.limit_bytes, self.used_files, self.limits.limit_files)


def bytes_of_blocks(blocks: int) -> int:
    """What so many blocks of `Attr.blocks` count."""
    return blocks * BLOCK_BYTES


def bytes_of_xattrs(xattrs: Mapping[bytes, bytes]) -> int:
    """What extended attributes count."""
    return sum(len(name) + len(value) for name, value in xattrs.items())
