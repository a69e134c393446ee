"""Where the keys of a store are in the tree of files.

A key that is a path (it starts with `/`, and every segment is a name that Linux takes) is the file at that path, letter
for letter. A store takes other keys too, and other values; none is hidden, and no two share a place:

- a segment that is no name (empty, `.`, `..`, with a NUL, over 255 bytes) is escaped as in `remote/keys.py`: `//x` is
  `/%/x`, `/a/` is `/a/%`, `/a/../b` is `/a/%2E%2E/b`, the empty key is `/%`;
- a key without a leading slash is shown as if it had one; where there is a key with it as well, it is below `/%.`;
- a key that has other keys below it is a directory and a file: the directory keeps the name, the file's ends in `%=`;
- a value that is no file is `NAME.json`, and can be read only;
- whatever would still take a name that is taken gives way, with `%=` (and `%` more often, if need be) at the end, or
  before `.json`. Plain paths never give way to anything else.

A key over 4,096 bytes is listed as far as its directories go, and can't be opened: no path is that long.

Pure functions; a name of a file is text with surrogateescape, as in agent paths.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from fusebackend.base import paths
from fusebackend.protocol import NAME_MAX_BYTES
from fusebackend.remote import keys

FOREIGN_SUFFIX = ".json"
FILE_MARK = paths.to_text(keys.FILE_MARK)
RELATIVE = paths.to_text(keys.RELATIVE)


class Place(NamedTuple):
    """A directory: what is in it has keys that start with `rooted`, or with `bare` in place of it."""

    rooted: str | None
    bare: str | None

    def below(self, segment: str) -> Place:
        rooted = None if self.rooted is None else f"{self.rooted}{segment}/"
        bare = None if self.bare is None else f"{self.bare}{segment}/"
        return Place(rooted, None if bare == "/" else bare)  # a key that starts with a slash is not bare

    @property
    def prefixes(self) -> tuple[str, ...]:
        return tuple(prefix for prefix in self if prefix is not None)


ROOT_PLACE = Place("/", "")
RELATIVE_PLACE = Place(None, "")


class Child(NamedTuple):
    """What a name in a directory leads to: a file, by its key, or a directory."""

    key: str
    place: Place | None = None
    foreign: bool = False
    """The value is no file."""


def is_name(segment: str) -> bool:
    """Can a directory hold this, letter for letter?"""
    if segment in ("", ".", "..") or "\0" in segment:
        return False
    try:
        return len(segment) * 3 <= NAME_MAX_BYTES or len(paths.to_name(segment)) <= NAME_MAX_BYTES
    except UnicodeEncodeError:
        return False


def is_text(path: str) -> bool:
    """Is it UTF-8, with no byte that is not?"""
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def bounds(prefix: str) -> tuple[tuple[str, str | None], ...]:
    """The ranges of keys (from, to but without) that start with a prefix, which ends with `/` or is empty.

    Keys are in the order of their code points, which is that of their bytes in UTF-8. The empty prefix stands for all
    keys without a leading slash.
    """
    if prefix == "":
        return (("", "/"), ("0", None))  # "0" comes after "/"
    return ((prefix, prefix[:-1] + "0"),)


def after(key: str, prefix: str) -> str:
    """The smallest key that may follow in a level: all keys of one subdirectory count as one."""
    segment, slash, _ = key[len(prefix) :].partition("/")
    return f"{prefix}{segment}0" if slash else key + "\0"


class KeyList:
    """Keys in memory, in order."""

    def __init__(self, found: Iterable[str]) -> None:
        self._keys = sorted(found)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __contains__(self, key: str) -> bool:
        place = bisect.bisect_left(self._keys, key)
        return place < len(self._keys) and self._keys[place] == key

    def below(self, prefix: str) -> list[str]:
        """All keys that start with a prefix, as `bounds` has it."""
        found: list[str] = []
        for start, end in bounds(prefix):
            found += self._keys[bisect.bisect_left(self._keys, start) : self._end(end)]
        return found

    def any_below(self, prefix: str) -> bool:
        return any(bisect.bisect_left(self._keys, start) < self._end(end) for start, end in bounds(prefix))

    def level(self, prefix: str) -> list[str]:
        """Of these, the ones without a further slash, and one of each subdirectory."""
        found: list[str] = []
        for start, end in bounds(prefix):
            index, last = bisect.bisect_left(self._keys, start), self._end(end)
            while index < last:
                key = self._keys[index]
                found.append(key)
                index = bisect.bisect_left(self._keys, after(key, prefix), index + 1, last)
        return found

    def _end(self, end: str | None) -> int:
        return len(self._keys) if end is None else bisect.bisect_left(self._keys, end)

    def add(self, key: str) -> None:
        if key not in self:
            bisect.insort(self._keys, key)

    def discard(self, key: str) -> None:
        if key in self:
            del self._keys[bisect.bisect_left(self._keys, key)]


def split_level(place: Place, found: Iterable[str]) -> tuple[dict[str, str], set[str]]:
    """The keys of a level as segment → key of files, and segments of directories. Rooted keys win over bare ones.

    `found` may hold keys further down, and those of other places, which are passed over.
    """
    files: dict[str, str] = {}
    bare: dict[str, str] = {}
    directories: set[str] = set()
    for key in found:
        rooted = key.startswith("/")
        prefix = place.rooted if rooted else place.bare
        if prefix is None or not key.startswith(prefix):
            continue
        segment, slash, _ = key[len(prefix) :].partition("/")
        if slash:
            directories.add(segment)
        else:
            (files if rooted else bare)[segment] = key
    return {**bare, **files}, directories


def arrange_level(
    place: Place, files: dict[str, str], directories: Iterable[str], foreign: Collection[str], *, relative: bool = False
) -> dict[str, Child]:
    """The names in a directory.

    Args:
        files, directories: as `split_level` gives them.
        foreign: those keys whose values are no files.
        relative: there are keys to be shown below `RELATIVE`.
    """
    children: dict[str, Child] = {}
    waiting: list[tuple[str, str, bool, Child]] = []  # segment, suffix, whether it must be marked, child
    subdirectories = set(directories)
    for segment in sorted(subdirectories):
        child = Child("", place.below(segment))
        if is_name(segment):
            children[segment] = child
        else:
            waiting.append((segment, "", False, child))
    for segment in sorted(files):
        key = files[segment]
        if key in foreign:
            waiting.append((segment, FOREIGN_SUFFIX, False, Child(key, None, True)))
        elif segment in subdirectories:
            waiting.append((segment, "", True, Child(key)))
        elif is_name(segment):
            children[segment] = Child(key)
        else:
            waiting.append((segment, "", False, Child(key)))
    if relative:
        children[next(name for name in _wanted(RELATIVE, "", False) if name not in children)] = Child(
            "", RELATIVE_PLACE
        )
    for segment, suffix, marked, child in waiting:
        children[next(name for name in _wanted(segment, suffix, marked) if name not in children)] = child
    return children


def _wanted(segment: str, suffix: str, marked: bool) -> Iterator[str]:
    """The names to try, the nicest first."""
    base = segment if is_name(segment) else paths.to_text(keys.name_of(segment))
    if not marked:
        yield _fitting(base, segment, suffix)
    mark = FILE_MARK
    while True:
        yield _fitting(base, segment, mark + suffix)
        mark += "%"


def _fitting(base: str, segment: str, suffix: str) -> str:
    whole = base + suffix
    if len(paths.to_name(whole)) <= NAME_MAX_BYTES:
        return whole
    return paths.to_text(keys.cut_name(paths.to_name(base), segment, NAME_MAX_BYTES - len(suffix))) + suffix


def may_be_arranged(path: str) -> bool:
    """Could this path be there without being a key, letter for letter or without its leading slash?"""
    return "%" in path or path.endswith(FOREIGN_SUFFIX)
