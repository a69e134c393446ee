"""`VerbTree`: a tree of something that is served without a mount, read by verbs: a `ReadTree` for `diff`.

Verbs tell no extended attributes, so those are not compared.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fusebackend.base import errors
from fusebackend.protocol.records import FILE_TYPES
from fusebackend.trees.tree import join

if TYPE_CHECKING:
    from fusebackend.control.client.client import Client
    from fusebackend.protocol import StatResult

_TYPES = {name: kind for kind, name in FILE_TYPES.items()}


class VerbTree:
    """See the module's docstring.

    Args:
        files: what is served.
        root: the agent's path of the tree in it.
    """

    device = 0

    def __init__(self, files: Client, root: str) -> None:
        self._files = files
        self._root = root.rstrip("/")

    def entry(self, path: bytes) -> os.stat_result | None:
        """Return the attributes of a path as lstat(2), or None if it isn't there."""
        found = self._files.stat(self._path(path))
        if found.code == errors.FILE_NOT_FOUND:
            return None
        return _attributes(found)

    def entries(self, path: bytes) -> dict[bytes, os.stat_result]:
        """Return the attributes of all names in a directory."""
        answer = self._files.stats(self._path(path))
        if answer.error is not None:
            raise OSError(errno.EIO, answer.error)
        there = (each for each in answer.entries or () if each.code != errors.FILE_NOT_FOUND)
        return {os.fsencode((each.path or "").rstrip("/").rpartition("/")[2]): _attributes(each) for each in there}

    @contextlib.contextmanager
    def reading(self, path: bytes) -> Iterator[int]:
        """Copy a file's bytes to an unnamed one, and open that."""
        (answer,) = self._files.download_files([self._path(path)])
        if answer.content is None:
            raise OSError(errno.EIO, answer.error or "it can't be read")
        with tempfile.TemporaryFile(prefix="fusebackend-") as copy:
            copy.write(answer.content)
            copy.flush()
            yield copy.fileno()

    def is_followed(self, path: bytes) -> bool:
        """Return True: the verbs read a link's target, and follow none."""
        return True

    def target(self, path: bytes) -> bytes:
        """Return the target of a symbolic link."""
        return os.fsencode(self._files.stat(self._path(path)).target or "")

    def xattrs(self, path: bytes) -> dict[str, bytes]:
        """Return none, see the module's docstring."""
        return {}

    def _path(self, path: bytes) -> str:
        return os.fsdecode(join(os.fsencode(self._root), path)) or "/"


def _attributes(found: StatResult) -> os.stat_result:
    if found.error is not None:
        raise OSError(errno.EIO, found.error)
    mode = _TYPES.get(found.type or "file", stat.S_IFREG) | (found.mode or 0)
    times = [found.atime_ns or 0, found.mtime_ns or 0, found.ctime_ns or 0]
    head = (mode, 0, 0, found.nlink or 1, found.uid or 0, found.gid or 0, found.size or 0)
    names = ("st_atime_ns", "st_mtime_ns", "st_ctime_ns")
    return os.stat_result((*head, *(each // 10**9 for each in times)), dict(zip(names, times, strict=True)))
