"""`Failing`: statements of SQLite, and calls of volumes, that are EIO on command, as on a disk that does not answer.

`Retried` tries each operation of a volume on such a disk first, and then again: one that fails has changed nothing, or
the second one goes wrong.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import sqlite3
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fusebackend.base.errors import oserror
from fusebackend.protocol import Volume

READS = ("lookup", "getattr", "readdir", "readlink", "listxattr", "getxattr", "open", "read", "next_data")
CHANGES = ("create", "mknod", "mkdir", "symlink", "link", "unlink", "rmdir", "rename", "setattr", "setxattr")
CHANGES += ("removexattr", "write", "place", "fsync", "sync")


class Failing:
    """Counts the statements on connections that are opened from now on. Nothing fails outside of `after`.

    Args:
        patch: undoes it.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.hit = False
        """Whether something has failed in the last block."""
        self._left: int | None = None
        self._thread = 0
        failing = self

        class Connection(sqlite3.Connection):
            def execute(self, *arguments: Any) -> Any:
                failing.count(arguments[0])
                return super().execute(*arguments)

            def executemany(self, *arguments: Any) -> Any:
                failing.count(arguments[0])
                return super().executemany(*arguments)

            def blobopen(self, *arguments: Any, **options: Any) -> Any:
                failing.count("blob")
                return super().blobopen(*arguments, **options)

        patch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, factory=Connection))

    @contextlib.contextmanager
    def after(self, calls: int) -> Iterator[None]:
        """So many calls by this thread succeed, and all that follow in this block fail."""
        self._left, self.hit, self._thread = calls, False, threading.get_ident()
        try:
            yield
        finally:
            self._left = None

    def count(self, statement: str) -> None:
        # SQLite rolls back without the disk, and `transaction` relies on it.
        if self._is_over() and statement != "ROLLBACK":
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise error

    def counts(self, volume: Volume) -> None:
        """Count the reads of a volume, too."""
        for name in READS:
            setattr(volume, name, functools.partial(self._read, getattr(volume, name)))

    def _read(self, call: Callable[..., Any], *arguments: Any) -> Any:
        if self._is_over():
            raise oserror(errno.EIO)
        return call(*arguments)

    def _is_over(self) -> bool:
        if self._left is None or threading.get_ident() != self._thread:
            return False
        self._left -= 1
        self.hit |= self._left < 0
        return self._left < 0


def drop_caches(volume: Any) -> None:
    """Have all that can be read from the file of an SQLite volume read again."""
    volume._names.clear()
    volume._chunks.clear()
    changed = volume._dirty.inodes.keys() | volume._dirty.xattrs.keys()
    for inode in list(volume._inodes.values()):
        if inode.opens == 0 and inode.nlink > 0 and inode.node not in changed:
            del volume._inodes[inode.node]


class Retried:
    """A volume whose operations are made again if they fail. `calls` is for `Failing.after`; None for no failure."""

    def __init__(self, volume: Volume, failing: Failing) -> None:
        self._volume = volume
        self._failing = failing
        self.calls: int | None = None
        self.writes_back = False
        """Whether nothing waits in the dirty buffer when an operation begins."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._volume, name)
        if self.calls is None or name not in READS + CHANGES:
            return found
        return functools.partial(self._twice, found)

    def _twice(self, call: Callable[..., Any], *arguments: Any) -> Any:
        assert self.calls is not None
        if self.writes_back:
            self._volume.write_back()  # type: ignore[attr-defined]
        drop_caches(self._volume)
        try:
            with self._failing.after(self.calls):
                return call(*arguments)
        except OSError as error:
            if not self._failing.hit or error.errno != errno.EIO:
                raise  # one that is refused anyway may have failed before in what only prepares it
        return call(*arguments)
