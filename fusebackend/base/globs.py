"""Glob patterns, the one set of rules that `glob` and grep's `glob` filter share. Pure functions.

wcmatch's syntax with BRACE and GLOBSTAR: `*` and `?` stay inside a segment, `**` spans segments, `[a-z]` and `{a,b}`
as in a shell, `\\` quotes. The rules on top of it (deepagents 0.7, `compile_grep_include_glob`):

- without a `/`, a pattern is matched against the file's name, at any depth;
- with a `/`, against the path relative to the search root; a leading `/` anchors to that root and means no more;
- a name that starts with `.` needs a pattern segment that starts with `.`, and `**` enters no such directory. So
  `*.yml`, which sees names alone, is broader than `**/*.yml`;
- `..` as a segment is refused; `!x` is no negation.

Only regular files are ever matched, so a pattern that ends with `/` matches nothing.

A path is matched segment by segment, all alternatives of the braces at once: a set of positions in the pattern, kept
as the bits of an integer, moves on with each name. wcmatch sees single segments only. As one regular expression,
fourteen `**` over a path of sixty segments ran for years, with Python's lock held (`re` never lets go of it), and so
stopped every route of a mount. Now 200 `**` over 2,000 segments take a few milliseconds. The stars inside of a segment
are linear by wcmatch's atomic groups (from 12 on).
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterable

PATTERN_MAX = 4096
"""Characters of a pattern, as of a path."""

ALTERNATIVES_MAX = 1000
"""How many patterns one with braces may stand for."""

EXPANDED_MAX = 32 << 10
"""Characters of them all together. It bounds the time to compile them (about 0.1 s) and their memory."""

KEPT_NAMES = 8192
"""Directory names of which a short pattern remembers what takes them; a long one of fewer (`_NAME_POSITIONS`)."""

_NAME_POSITIONS = 64
"""So many positions of a pattern count as much as a name."""

_MAGIC = re.compile(r"[*?\[\]{}\\!,]")
"""Characters that may mean something to wcmatch; a segment without them is matched letter by letter."""

_ANY_DEPTH = "**"


class GlobError(ValueError):
    """A pattern that can't be used; its text is one line for the user."""


class Matcher:
    """A compiled pattern. It never changes except for its cache, so any thread may use it.

    Attributes:
        prefix: the leading segments that are plain names; nothing outside of that directory can match.
        depth: how many segments a matching path has at most, None without a limit. With `prefix`, it tells a walk
            which directories it can skip.
    """

    __slots__ = (
        "_any_depth", "_directory", "_dots", "_ends", "_items", "_kept", "_last_names", "_plain", "_start", "_tests",
        "depth", "prefix",
    )  # fmt: skip

    def __init__(
        self,
        alternatives: list[list[str]],
        anchored: bool,
        prefix: tuple[str, ...],
        depth: int | None,
        dots: bool = False,
    ) -> None:
        """Each alternative is a list of segments; its positions follow those of the one before. With `dots`, `*` and
        `**` match names that begin with a dot.

        Raises the errors of wcmatch and re for a malformed segment.
        """
        self.prefix = prefix
        self.depth = depth
        self._dots = dots
        self._items = [segment for segments in alternatives for segment in segments]
        self._any_depth = self._ends = self._start = 0
        self._plain: dict[str, int] = {}
        patterns: dict[str, int] = {}
        first = position = 0
        for segments in alternatives:
            self._start |= 1 << first
            for position, segment in enumerate(segments, first):
                if segment == _ANY_DEPTH:
                    self._any_depth |= 1 << position
                elif _MAGIC.search(segment):
                    patterns[segment] = patterns.get(segment, 0) | 1 << position
                else:
                    self._plain[segment] = self._plain.get(segment, 0) | 1 << position
            self._ends |= 1 << position
            first = position + 1
        self._start = self._passed_over(self._start)
        self._tests = [(re.compile(_translate(segment, dots)), bits) for segment, bits in patterns.items()]
        self._kept: dict[str, int] = {}
        self._last_names: dict[int, re.Pattern[str]] = {}
        self._directory: tuple[str, int] | None = ("", self._start) if anchored else None

    @property
    def names(self) -> Iterable[str]:
        """The segments that are plain names, after its braces."""
        return self._plain

    def may_hold(self, segments: tuple[str, ...]) -> bool:
        """Return True if a file below this directory, relative to where the search began, can match."""
        shared = min(len(segments), len(self.prefix))
        return segments[:shared] == self.prefix[:shared] and (self.depth is None or len(segments) < self.depth)

    def matches(self, relative_path: str) -> bool:
        """Return True if the file at this path below the search root matches. The path has no leading `/`."""
        directory, _, name = relative_path.rpartition("/")
        known = self._directory
        if known is None:
            return self._last(self._start & self._ends).fullmatch(name) is not None
        if known[0] == directory:  # a walk asks for all files of a directory in a row
            reached = known[1]
        else:
            reached = self._reached(directory)
            self._directory = (directory, reached)
        ends = reached & self._ends
        return ends != 0 and self._last(ends).fullmatch(name) is not None

    def last_segments(self, directory: str) -> frozenset[str]:
        """Return the segments that a name in a directory has to fit one of, for the pattern to match the name's path.
        The directory is relative to the search root, which is empty."""
        ends = self._reached(directory) & self._ends
        return frozenset(item for at, item in enumerate(self._items) if ends >> at & 1) if ends else frozenset()

    def _reached(self, directory: str) -> int:
        """The positions that may come next below a directory."""
        reached = self._start
        for name in directory.split("/") if directory else ():
            found = self._fitting(name)
            onward = (reached & found & ~self._ends) << 1 | reached & found & self._any_depth
            reached = self._passed_over(onward)
            if not reached:
                break
        return reached

    def _fitting(self, name: str) -> int:
        """The positions that take a directory of this name."""
        found = self._kept.get(name)
        if found is None:
            found = self._plain.get(name, 0)
            for test, bits in self._tests:
                if test.fullmatch(name) is not None or (self._dots and "\n" in name):
                    found |= bits  # wcmatch's `$`, which is true before a newline, refuses `*` for a name as `..\\n`
            if self._dots or not name.startswith("."):
                found |= self._any_depth
            if len(self._kept) * (1 + len(self._items) // _NAME_POSITIONS) >= KEPT_NAMES:
                self._kept = {}
            self._kept[name] = found
        return found

    def _passed_over(self, positions: int) -> int:
        """Add the positions after a `**`, because it may match nothing; there are no two of them in a row."""
        return positions | (positions & self._any_depth) << 1

    def _last(self, ends: int) -> re.Pattern[str]:
        """The file's name as one regular expression, for those alternatives of which nothing else is left."""
        found = self._last_names.get(ends)
        if found is None:
            wanted = dict.fromkeys(item for at, item in enumerate(self._items) if ends >> at & 1)
            found = re.compile("|".join(_translate(item, self._dots) for item in wanted))
            if len(self._last_names) >= 16:
                self._last_names = {}
            self._last_names[ends] = found
        return found


@functools.lru_cache(maxsize=64)
def compile_glob(pattern: str) -> Matcher:
    """Compile a pattern; the last 64 are remembered.

    Raises:
        GlobError: the pattern is empty or too long, has a `..` segment, or its braces stand for more than a thousand
            alternatives or 32,768 characters.
    """
    if not pattern:
        raise GlobError("Glob pattern is empty")
    if len(pattern) > PATTERN_MAX:
        raise GlobError(f"Glob pattern is longer than {PATTERN_MAX} characters")
    segments = pattern.split("/")
    if ".." in segments:
        raise GlobError(f"Glob pattern '{pattern}' has a '..' segment; give the directory as the path instead")
    anchored = len(segments) > 1
    # `./a`, `/a` and `a//b` name what `a` and `a/b` name; an empty last segment stays, for it asks for a directory.
    wanted = [segment for segment in segments[:-1] if segment not in ("", ".")] + segments[-1:]
    try:
        alternatives = [_items(text) for text in _expanded("/".join(wanted))]
        plain = itertools.takewhile(lambda segment: not _MAGIC.search(segment), wanted[:-1] if anchored else ())
        # A brace may hold slashes, so only a pattern without one shows its depth.
        bounded = anchored and _ANY_DEPTH not in pattern and "{" not in pattern
        found = [items for items in alternatives if items]
        return Matcher(found, anchored, tuple(plain), len(wanted) if bounded else None)
    except Exception as error:  # wcmatch, bracex and re each have their own; the pattern is to blame for all of them
        raise GlobError(f"Glob pattern '{_short(pattern)}' can't be used: {error}") from error


def compile_anchored(patterns: Iterable[str]) -> Matcher:
    """Compile patterns that begin with a `/` into one, which matches what any of them does, and perhaps more where a
    name holds a newline. `*` and `**` match names that begin with a dot. Their errors are those of `compile_glob`.

    A `\\` that quotes a `/`, which is one for wcmatch, is a letter here.
    """
    found: dict[tuple[str, ...], None] = {}
    for pattern in patterns:
        try:
            found.update((tuple(items), None) for text in _expanded(pattern) if (items := _items(text.lstrip("/"))))
        except Exception as error:
            raise GlobError(f"Glob pattern '{_short(pattern)}' can't be used: {error}") from error
    return Matcher([list(items) for items in found], True, (), None, dots=True)


def name_test(segments: frozenset[str]) -> Callable[[str], object] | None:
    """Return a test of names: true if one fits any of these segments, `*` with names that begin with a dot. None where
    there are no segments. The usual forms (`name`, `*.key`, `draft-*`) cost little, however many there are."""
    plain, ends, begins, others = set(), [], [], []
    for segment in segments:
        if not _MAGIC.search(segment):
            plain.add(segment)
        elif segment[0] == "*" and not _MAGIC.search(segment[1:]):
            ends.append(segment[1:])
        elif segment[-1] == "*" and not _MAGIC.search(segment[:-1]):
            begins.append(segment[:-1])
        else:
            others.append(segment)
    if not (ends or begins or others):
        return plain.__contains__ if plain else None
    last, first = tuple(ends), tuple(begins)
    if not others:
        return lambda name: name in plain or name.endswith(last) or name.startswith(first)
    fits = re.compile("|".join(_translate(segment, dots=True) for segment in others)).fullmatch
    return lambda name: (
        name in plain or name.endswith(last) or name.startswith(first) or fits(name) or "\n" in name  # as in `_fitting`
    )


def _short(pattern: str) -> str:
    return pattern if len(pattern) <= 200 else pattern[:200] + "..."


def _expanded(text: str) -> list[str]:
    """Return the alternatives of a pattern with braces, as wcmatch expands them."""
    if "{" not in text:
        return [text]
    import bracex

    found: dict[str, None] = {}
    size = 0
    for one in bracex.iexpand(text, keep_escapes=True, limit=ALTERNATIVES_MAX, return_empty=True):
        found[one] = None
        size += len(one)
        if size > EXPANDED_MAX:
            raise ValueError(f"its braces stand for more than {EXPANDED_MAX} characters")
    return list(found)


def _items(text: str) -> list[str]:
    """The segments of a pattern without braces; empty for a pattern that matches no file.

    A `**` after another adds nothing. As the last segment it takes at least one name, which is `**` and `*`.
    """
    segments = text.split("/")
    if "" in (segments[0], segments[-1]):
        return []
    items: list[str] = []
    for segment in segments:
        if segment and not (segment == _ANY_DEPTH and items[-1:] == [_ANY_DEPTH]):
            items.append(segment)
    return [*items, "*"] if items[-1] == _ANY_DEPTH else items


def _translate(segment: str, dots: bool = False) -> str:
    """A regular expression for one segment: the whole of a name must fit (wcmatch ends in `$`, and a name may end in
    a newline)."""
    if not _MAGIC.search(segment):
        return re.escape(segment)
    from wcmatch import glob  # 30 ms to import, so not before it is needed

    included, _excluded = glob.translate(segment, flags=glob.DOTGLOB if dots else 0)
    return "|".join(included)
