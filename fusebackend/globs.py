"""Glob patterns, the one set of rules that `glob` and grep's `glob` filter share. Pure functions.

wcmatch's syntax with BRACE and GLOBSTAR: `*` and `?` stay inside a segment, `**` spans segments, `[a-z]` and `{a,b}`
as in a shell, `\\` quotes. The rules on top of it (deepagents 0.7, `compile_grep_include_glob`):

- without a `/`, a pattern is matched against the file's name, at any depth;
- with a `/`, against the path relative to the search root; a leading `/` anchors to that root and means no more;
- a name that starts with `.` needs a pattern segment that starts with `.`, and `**` enters no such directory. So
  `*.yml`, which sees names alone, is broader than `**/*.yml`;
- `..` as a segment is refused; `!x` is no negation.

Only regular files are ever matched, so a pattern that ends with `/` matches nothing.
"""

from __future__ import annotations

import functools
import re

_MAGIC = re.compile(r"[*?\[\]{}\\!,]")
"""Characters that may mean something to wcmatch; a segment without them is matched letter by letter."""


class GlobError(ValueError):
    """A pattern that can't be used; its text is one line for the user."""


class Matcher:
    """A compiled pattern.

    Attributes:
        prefix: the leading segments that are plain names; nothing outside of that directory can match.
        depth: how many segments a matching path has at most, None without a limit. With `prefix`, it tells a walk
            which directories it can skip.
    """

    __slots__ = ("_anchored", "_regex", "depth", "prefix")

    def __init__(self, regex: re.Pattern[str], anchored: bool, prefix: tuple[str, ...], depth: int | None) -> None:
        self._regex = regex
        self._anchored = anchored
        self.prefix = prefix
        self.depth = depth

    def matches(self, relative_path: str) -> bool:
        """Does the file at this path below the search root match? The path has no leading `/`."""
        subject = relative_path if self._anchored else relative_path.rpartition("/")[2]
        # The whole of it: wcmatch ends in `$`, which would let a name's last newline pass.
        return self._regex.fullmatch(subject) is not None


@functools.lru_cache(maxsize=256)
def compile_glob(pattern: str) -> Matcher:
    """Compile a pattern; the last 256 are remembered.

    Raises:
        GlobError: the pattern is empty, has a `..` segment, or expands to more than a thousand alternatives.
    """
    if not pattern:
        raise GlobError("Glob pattern is empty")
    segments = pattern.split("/")
    if ".." in segments:
        raise GlobError(f"Glob pattern '{pattern}' has a '..' segment; give the directory as the path instead")
    anchored = len(segments) > 1
    # `./a`, `/a` and `a//b` name what `a` and `a/b` name; an empty last segment stays, for it asks for a directory.
    wanted = [segment for segment in segments[:-1] if segment not in ("", ".")] + segments[-1:]
    regex = _translate("/".join(wanted), pattern)
    if not anchored:
        return Matcher(regex, False, (), None)
    prefix: list[str] = []
    for segment in wanted[:-1]:
        if _MAGIC.search(segment):
            break
        prefix.append(segment)
    # A brace may hold slashes, so only a pattern without one shows its depth.
    bounded = "**" not in pattern and "{" not in pattern
    return Matcher(regex, True, tuple(prefix), len(wanted) if bounded else None)


def _translate(wanted: str, pattern: str) -> re.Pattern[str]:
    from wcmatch import glob  # 30 ms to import, so not before it is needed

    try:
        # The regular expressions are those of wcmatch's own matcher, and a third faster than calling it.
        included, _excluded = glob.translate(wanted, flags=glob.BRACE | glob.GLOBSTAR)
        return re.compile("|".join(included))
    except Exception as error:  # wcmatch, bracex and re each have their own; the pattern is to blame for all of them
        raise GlobError(f"Glob pattern '{pattern}' can't be used: {error}") from error
