"""`grep` and `glob` over the kernel face alone, for every volume. Faster ones must give the same answers.

The lock is taken for a page of entries or for one file, never for a tree. Files that vanish meanwhile are passed over;
files that may not be read are passed over and reported (`truncated`); any other error of the volume ends the search
with it. When the budget is spent (`base/budget.py`), the answer is everything found by then, and `truncated`.
"""

from __future__ import annotations

import errno
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeAlias, TypeVar

from fusebackend.base import budget, paths
from fusebackend.base.budget import Budget, Spent
from fusebackend.base.errors import VANISHED
from fusebackend.base.globs import Matcher, compile_glob
from fusebackend.protocol import Attr, FileInfo, GlobResult, GrepMatch, GrepResult, Volume
from fusebackend.text import grep_pieces, iso_time
from fusebackend.volumes.contents import read_with, require_regular
from fusebackend.volumes.walk import UNREADABLE, FileWalk, resolve


class Walk(Protocol):
    """A `FileWalk`, or a faster one of a volume: in the same order, and files that it leaves out can't match."""

    @property
    def unreadable(self) -> bool: ...

    def __iter__(self) -> Iterator[tuple[str, Attr]]: ...


PASSED_OVER = VANISHED | {errno.ELOOP}
"""Errors of a file that a listing has shown: it is gone, or is a link (`Attr.is_brief`)."""

MakeWalk: TypeAlias = Callable[..., Walk]
"""Called with the volume, the directory, `below` and `depth`."""

T = TypeVar("T")


class Read(Protocol):
    """`read_with`, or a faster one of a volume."""

    def __call__(self, volume: Volume, attr: Attr, max_bytes: int, take: Callable[[Iterable[bytes]], T]) -> T: ...


def file_info(path: str, attr: Attr, *, is_dir: bool = False) -> FileInfo:
    """The record of one entry. Directories have size 0 in every backend, not that of the volume."""
    return FileInfo(
        path=path + "/" if is_dir else path,
        is_dir=is_dir,
        size=0 if is_dir else attr.size,
        modified_at=iso_time(attr.mtime_ns),
    )


class FileSearch:
    """The regular files under a path that match a pattern, in the order of their paths.

    Attributes:
        unreadable: something could not be looked into, so this is not all.
    """

    def __init__(self, volume: Volume, path: str, matcher: Matcher | None, walk: MakeWalk = FileWalk) -> None:
        """The path may be a file: then that is the tree, and the pattern sees its name. An absent path is an empty
        tree, as in the seeds.

        Raises:
            PathError, OSError: as `walk.resolve`; EINVAL for a FIFO, socket or device.
        """
        self._base = paths.normalise(path)
        self._matcher = matcher
        self._single: Attr | None = None
        self._walk: Walk | None = None
        attr = resolve(volume, path, needs="type").attr
        if attr is not None and attr.is_dir:
            below, depth = (matcher.prefix, matcher.depth) if matcher is not None else ((), None)
            self._walk = walk(volume, attr.node, below=below, depth=depth)
        elif attr is not None:
            require_regular(attr)
            self._single = attr
        self.unreadable = False

    def __iter__(self) -> Iterator[tuple[str, Attr]]:
        matches = self._matcher.matches if self._matcher is not None else None
        if self._single is not None:
            name = self._base.rpartition("/")[2]
            if matches is None or matches(name):
                yield self._base, self._single
        if self._walk is not None:
            for relative, attr in self._walk:
                if matches is None or matches(relative):
                    yield paths.join(self._base, relative), attr
            self.unreadable |= self._walk.unreadable


def glob_files(volume: Volume, pattern: str, path: str, walk: MakeWalk = FileWalk) -> GlobResult:
    """`glob`; raises `GlobError`, `PathError` and `OSError`."""
    search = FileSearch(volume, path, compile_glob(pattern), walk)
    matches: list[FileInfo] = []
    try:
        left = budget.current()
        for found, attr in left.kept(search, _size_of):
            matches.append(file_info(found, attr))
            left.rest()
    except Spent:
        return GlobResult(matches=matches, truncated=True, truncation_reason="budget")
    reason = "unreadable" if search.unreadable else None
    return GlobResult(matches=matches, truncated=search.unreadable, truncation_reason=reason)


def grep_files(
    volume: Volume,
    pattern: str,
    path: str,
    glob: str | None,
    max_count: int | None,
    max_bytes: int,
    walk: MakeWalk = FileWalk,
    read: Read = read_with,
) -> GrepResult:
    """`grep`; raises as `glob_files`. Files larger than `max_bytes` are passed over, and `truncated` is set."""
    search = FileSearch(volume, path, compile_glob(glob) if glob else None, walk)
    result = grep_found(volume, pattern, search, max_count, max_bytes, read)
    result.truncated |= search.unreadable
    return result


def grep_found(
    volume: Volume,
    pattern: str,
    files: Iterable[tuple[str, Attr]],
    max_count: int | None,
    max_bytes: int,
    read: Read,
) -> GrepResult:
    """The matches in these files, in their order; raises as `grep_files`."""
    limit = None if max_count is None else max(0, max_count)
    left = budget.current()
    matches: list[GrepMatch] = []
    incomplete = False
    try:
        for found, attr in files:
            left.require()
            left.rest()
            # One more than wanted, to know whether there is more.
            wanted = None if limit is None else limit + 1 - len(matches)
            take = functools.partial(_grep_metered, left, pattern, wanted)
            try:
                lines = read(volume, attr, max_bytes, take)
            except OSError as error:
                if error.errno not in PASSED_OVER | UNREADABLE | {errno.EFBIG}:
                    raise
                incomplete |= error.errno not in PASSED_OVER
                continue
            matches.extend(GrepMatch(path=found, line=line, text=text) for line, text in lines)
            if limit is not None and len(matches) > limit:
                return GrepResult(matches=matches[:limit], truncated=True)
    except Spent:
        # One more than `limit` was asked for, so there can't be more than that.
        return GrepResult(matches=matches, truncated=True)
    return GrepResult(matches=matches, truncated=incomplete)


def _grep_metered(left: Budget, pattern: str, wanted: int | None, pieces: Iterable[bytes]) -> list[tuple[int, str]]:
    return grep_pieces(left.metered(pieces), pattern, wanted, left.hold)


def _size_of(found: tuple[str, Attr]) -> int:
    return budget.ENTRY_BYTES + len(found[0])
