"""`grep` and `glob`: the answers of a `Search`, and `FileSearch`, the one over the kernel face alone, for every volume.
Faster ones must give the same answers.

The lock is taken for a page of entries or for one file, never for a tree. Files that vanish meanwhile are passed over;
files that may not be read are passed over and reported (`truncated`); any other error of the volume ends the search
with it. When the budget is spent (`base/budget.py`), the answer is everything found by then, and `truncated`.
"""

from __future__ import annotations

import abc
import errno
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeAlias, TypeVar

from fusebackend.base import budget, paths
from fusebackend.base.budget import Budget, Spent
from fusebackend.base.errors import VANISHED
from fusebackend.base.globs import Matcher
from fusebackend.base.paths import AgentPath
from fusebackend.protocol import Attr, FileInfo, GlobResult, GrepMatch, GrepResult, Volume
from fusebackend.text import grep_lines, iso_time
from fusebackend.volumes.contents import read_with, require_regular
from fusebackend.volumes.walk import UNREADABLE, FileWalk, resolve

PASSED_OVER = VANISHED | {errno.ELOOP}
"""Errors of a file that a listing has shown: it is gone, or is a link (`Attr.is_brief`)."""

MakeWalk: TypeAlias = Callable[..., FileWalk]
"""Called with the volume, the directory, `below` and `depth`. A faster walk of a volume has the same order, and leaves
out no file that can match."""

T = TypeVar("T")

Lines: TypeAlias = tuple[str, Sequence[tuple[int, str]]]
"""A file, and the lines of it that hold a literal, with their numbers."""


class Read(Protocol):
    """`read_with`, or a faster one of a volume."""

    def __call__(self, volume: Volume, attr: Attr, max_bytes: int, take: Callable[[Iterable[bytes]], T]) -> T: ...


class Unreadable(Exception):
    """Raised by a search at its end: there was something that could not be looked into."""


class Search(abc.ABC):
    """The files at or below a path that match a pattern, by the order of their paths. `Spent` may end it, and
    `Unreadable`.

    Attributes:
        missing: the parts that were not searched, once it has ended.
    """

    missing: str | None = None

    def __init__(self, path: AgentPath, matcher: Matcher | None) -> None:
        self._path = path
        self._matcher = matcher

    def _matches(self, relative: str) -> bool:
        """Whether a file matches at this path below that of the search. Of the file there itself, the path is empty,
        and the pattern sees the name."""
        return self._matcher is None or self._matcher.matches(relative or self._path.rpartition("/")[2])

    @abc.abstractmethod
    def files(self) -> Iterator[FileInfo]:
        """`glob`: their records."""

    @abc.abstractmethod
    def lines(self, pattern: str, limit: int | None) -> Iterator[Lines]:
        """`grep`: the lines with a literal, file by file, as `text.grep_lines` finds them; `limit` of a file are
        enough. Files that can't be read are passed over."""


def globbed(search: Search) -> GlobResult:
    """The answer of `glob`; raises the errors of the search."""
    matches: list[FileInfo] = []
    reason: str | None = None
    left = budget.current()
    try:
        for info in left.kept(search.files(), _size_of):
            matches.append(info)  # one by one: what there is when the budget is spent is the answer
            left.rest()
    except Spent:
        reason = "budget"
    except Unreadable:
        reason = "unreadable"
    truncated = reason is not None
    return GlobResult(matches=matches, truncated=truncated, truncation_reason=reason, missing=search.missing)


def grepped(search: Search, pattern: str, max_count: int | None) -> GrepResult:
    """The answer of `grep`; raises the errors of the search."""
    wanted = None if max_count is None else max(0, max_count) + 1  # one more, to know whether there is more
    matches: list[GrepMatch] = []
    truncated = False
    left = budget.current()
    try:
        for found, lines in search.lines(pattern, wanted):
            left.rest()
            matches += [GrepMatch(path=found, line=line, text=text) for line, text in lines]
            if wanted is not None and len(matches) >= wanted:
                truncated = True
                del matches[wanted - 1 :]
                break
    except (Spent, Unreadable):
        truncated = True
    return GrepResult(matches=matches, truncated=truncated, missing=search.missing)


def file_info(path: str, attr: Attr, *, is_dir: bool = False) -> FileInfo:
    """The record of one entry. Directories have size 0 in every backend, not that of the volume."""
    return FileInfo(
        path=path + "/" if is_dir else path,
        is_dir=is_dir,
        size=0 if is_dir else attr.size,
        modified_at=iso_time(attr.mtime_ns),
    )


class FileSearch(Search):
    """The regular files of a volume.

    Attributes:
        unreadable: something could not be looked into, so this is not all.
    """

    def __init__(
        self,
        volume: Volume,
        path: str,
        matcher: Matcher | None,
        max_bytes: int,
        walk: MakeWalk = FileWalk,
        read: Read = read_with,
    ) -> None:
        """An absent path, which is normalised, is an empty tree, as in the seeds. Files larger than `max_bytes` are not
        searched for lines, and then it is not all.

        Raises:
            PathError, OSError: as `walk.resolve`; EINVAL for a FIFO, socket or device.
        """
        super().__init__(AgentPath(path), matcher)
        self._volume = volume
        self._max_bytes = max_bytes
        self._read = read
        self._single: Attr | None = None
        self._walk: FileWalk | None = None
        attr = resolve(volume, path, needs="type").attr
        if attr is not None and attr.is_dir:
            below, depth = (matcher.prefix, matcher.depth) if matcher is not None else ((), None)
            self._walk = walk(volume, attr.node, below=below, depth=depth)
        elif attr is not None:
            require_regular(attr)
            self._single = attr
        self.unreadable = False

    def __iter__(self) -> Iterator[tuple[str, Attr]]:
        if self._single is not None and self._matches(""):
            yield self._path, self._single
        if self._walk is not None:
            for relative, attr in self._walk:
                if self._matches(relative):
                    yield paths.join(self._path, relative), attr
            self.unreadable |= self._walk.unreadable

    def files(self) -> Iterator[FileInfo]:
        for found, attr in self:
            yield file_info(found, attr)
        if self.unreadable:
            raise Unreadable

    def lines(self, pattern: str, limit: int | None) -> Iterator[Lines]:
        left = budget.current()
        take = functools.partial(_grep_metered, left, pattern, limit)
        incomplete = False
        for found, attr in self:
            left.require()
            try:
                yield found, self._read(self._volume, attr, self._max_bytes, take)
            except OSError as error:
                if error.errno not in PASSED_OVER | UNREADABLE | {errno.EFBIG}:
                    raise
                incomplete |= error.errno not in PASSED_OVER
        if incomplete or self.unreadable:
            raise Unreadable


def _grep_metered(left: Budget, pattern: str, wanted: int | None, pieces: Iterable[bytes]) -> list[tuple[int, str]]:
    return grep_lines(left.metered(pieces), pattern, wanted, left.hold)


def _size_of(info: FileInfo) -> int:
    return budget.ENTRY_BYTES + len(info["path"])
