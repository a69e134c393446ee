"""`ThreadsWalk`: the files of threads that a search looks at. `history/` is left out unless the search names it.

A history holds each file once for every checkpoint. In 1,000 threads of 30 checkpoints that is thirty times the files
of the heads: a search of all spent its 15 s on the history of the first 300 threads and never saw the other heads.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from fusebackend.backends.threads.database.rows import Damaged
from fusebackend.backends.threads.line_view import HISTORY, History
from fusebackend.backends.threads.nodes import FileNode
from fusebackend.base import asked
from fusebackend.base.errors import oserror
from fusebackend.base.globs import compile_glob
from fusebackend.protocol import Attr, Volume
from fusebackend.volumes.contents import PIECE_BYTES, read_with
from fusebackend.volumes.walk import FileWalk

LEFT_OUT = "history/ of threads is searched only where the path or the pattern names it"
"""`missing` of an answer that is without it."""

T = TypeVar("T")

_ENDS = re.compile(r"[/{},]")
"""What ends a name in a pattern."""


class ThreadsSearch:
    """One search of threads: makes its walk, and knows whether that has left something out."""

    def __init__(self, pattern: str | None) -> None:
        """`pattern`: the glob of the search, None for none."""
        wanted = asked.current()
        patterns = [pattern or "", wanted.pattern if wanted is not None else ""]
        self._named = any(HISTORY.decode() in _ENDS.split(pattern) for pattern in patterns)
        self._narrower = compile_glob(wanted.here) if wanted is not None and wanted.here is not None else None
        self._walk: ThreadsWalk | None = None
        self._damaged: str | None = None  # why a file was passed over, the first of them

    def walk(self, volume: Volume, directory: int, *, below: Sequence[str] = (), depth: int | None = None) -> FileWalk:
        """A `MakeWalk`. Of a search over several backends it goes no further than the whole glob does."""
        if self._narrower is not None and len(self._narrower.prefix) > len(below):
            below, depth = self._narrower.prefix, self._narrower.depth
        if self._named:
            return FileWalk(volume, directory, below=below, depth=depth)
        self._walk = ThreadsWalk(volume, directory, below=below, depth=depth)
        return self._walk

    def read(self, volume: Volume, attr: Attr, max_bytes: int, take: Callable[[Iterable[bytes]], T]) -> T:
        """As `contents.read_with`. A node of threads has its bytes at hand, and needs not be opened for them: that took
        half of the time of a `grep`.

        One that is damaged is passed over and told, as one that may not be read: the others are searched all the same.
        """
        if not isinstance(attr, FileNode):
            return read_with(volume, attr, max_bytes, take)  # of a head that can be written to
        with volume.viewing():
            try:
                attr.settle()
                data = attr.data()
            except Damaged as error:
                raise self._passed_over(str(error)) from None
            except OSError as error:
                if error.errno == errno.EIO:
                    raise self._passed_over(str(error.strerror)) from None
                raise
        if len(data) > max_bytes:
            raise oserror(errno.EFBIG)
        return take(data[start : start + PIECE_BYTES] for start in range(0, len(data), PIECE_BYTES))

    def _passed_over(self, why: str) -> OSError:
        self._damaged = self._damaged or why
        return OSError(errno.EACCES, why)

    @property
    def missing(self) -> str | None:
        """What was not searched."""
        left_out = LEFT_OUT if self._walk is not None and self._walk.has_left_out else None
        return "; ".join(filter(None, (self._damaged, left_out))) or None


class ThreadsWalk(FileWalk):
    """See the module's docstring. A walk that begins in a history goes through it: its path has named it."""

    has_left_out = False

    def _listing(self, directory: int) -> list[tuple[str, Attr]]:
        listing = super()._listing(directory)
        found = [entry for entry in listing if not isinstance(entry[1], History)]
        self.has_left_out |= len(found) < len(listing)
        return found

