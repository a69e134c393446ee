"""`ls`, `grep` and `glob` over a tree that is made of several backends.

A listing is the backend's own, with the routes' names in it, without the files that they hide. A search below a path
asks the backend the path belongs to and every route below it; hidden files are dropped, the rest is one sorted answer.

A glob is relative to the path that is searched. A route below that path sees only what is below itself, so it can't be
given the same pattern, and a pattern can't always be cut where the route begins (`**`, braces). So each backend is
asked for more, for files with a matching last segment, and the whole path is matched here, by `globs.compile_glob`. A
route that can't hold a match is not asked.

When one of several backends fails, the matches of the others are returned with `truncated` set and no error, the
failure in `missing` and in the log; only when nothing was found is it the error of the result. When the budget is spent
(`base/budget.py`), those that were not asked yet are left out, and the answer says `truncated`. Routes that may hang
(`AgentFace.guard`) are asked first, each in a thread of its own, so the others do not wait for them; so are backends
with an `a…` verb of their own, `MAX_AWAITED` at a time.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TypeVar

from fusebackend.base import asked, budget, caller, paths
from fusebackend.base.deadline import Pending
from fusebackend.base.globs import Matcher, compile_glob
from fusebackend.base.paths import AgentPath
from fusebackend.composite.router import RoutedPath, Routing, Scope
from fusebackend.protocol import FileInfo, GlobResult, GrepResult, LsResult
from fusebackend.remote.parallel import each

log = logging.getLogger(__name__)

MAX_AWAITED = 16
"""Routes with `a…` verbs of their own that one search or batch awaits at the same time."""

Found = TypeVar("Found", GrepResult, GlobResult)


class TreePattern:
    """A glob over several backends.

    Attributes:
        broad: the pattern for each backend; it matches at least what the pattern matches there.
    """

    def __init__(self, pattern: str) -> None:
        """Raises `GlobError` as `compile_glob` does."""
        self._matcher: Matcher = compile_glob(pattern)
        self.text = pattern
        self._anchored = "/" in pattern
        self.broad = _broad(pattern) if self._anchored else pattern

    def matches(self, relative_path: str) -> bool:
        """Return True if a file that was found by `broad` matches. A pattern without a slash is each backend's own to
        interpret."""
        return not self._anchored or self._matcher.matches(relative_path)

    def cut(self, segments: tuple[str, ...]) -> str | None:
        """Return the pattern for files below this directory; None where it can't be cut there."""
        if not self._anchored or self._matcher.prefix[: len(segments)] != segments:
            return None
        *directories, last = self.text.split("/")
        wanted = [segment for segment in directories if segment not in ("", ".")] + [last]
        return "/" + "/".join(wanted[len(segments) :])

    def may_match_below(self, segments: tuple[str, ...]) -> bool:
        """Return True if a file below this directory, relative to the searched path, can match."""
        return not self._anchored or self._matcher.may_hold(segments)


def _broad(pattern: str) -> str:
    """The pattern's last segment, at any depth.

    All dialects take `**/` for any depth (fnmatch and `rglob` too), but it enters no hidden directory. Where the
    pattern may ask for one, the bare segment does, which sees names alone.
    """
    directories, _, last = pattern.rpartition("/")
    if last.count("{") != last.count("}"):
        return "{*,.*}"  # the braces span a slash: no segment stands alone
    hidden = directories.startswith(".") or any(mark in directories for mark in ("/.", "{", "[", "\\"))
    last = "*" if last == "**" else last
    return last if hidden else f"**/{last}"


def ls(routing: Routing, routed: RoutedPath) -> LsResult:
    result = routed.face.ls(routed.inner)
    entries = routed.shown(result.entries)
    covered = {paths.join(routed.outer, name) for name in routing.table.names_below(routed.outer)}
    if not covered:
        return LsResult(error=routed.words(result.error), entries=entries)
    shown = [info for info in entries or () if info["path"].removesuffix("/") not in covered]
    shown += [FileInfo(path=directory + "/", is_dir=True, size=0, modified_at="") for directory in covered]
    error = routed.words(result.error) if result.error is not None and _has_directory(routed) else None
    return LsResult(error=error, entries=sorted(shown, key=lambda info: info["path"]))


def grep(routing: Routing, scope: Scope, pattern: str, glob: str | None, limit: int | None) -> GrepResult:
    """Raises `GlobError` for the filter."""
    tree_glob = TreePattern(glob) if glob else None
    if not routing.table.names_below(scope.top):
        routed = scope.own
        result = routed.face.grep(pattern, routed.inner, glob, limit)
        return replace(result, error=routed.words(result.error), matches=routed.shown(result.matches))
    broad = tree_glob.broad if tree_glob is not None else None

    more = None if limit is None else limit + 1  # so that hidden matches alone don't say `truncated`

    def ask(part: RoutedPath, at_most: int | None = more) -> GrepResult:
        with _asking(tree_glob, scope, part):
            result = part.face.grep(pattern, part.inner, broad, at_most)
        visible = _visible(routing, part, scope, tree_glob)
        found = part.shown(result.matches) or []
        matches = [match for match in found if visible(match["path"])]
        if result.truncated and at_most is not None and len(matches) < at_most <= len(found):
            return ask(part, None)  # hidden files have used up the limit
        return replace(result, matches=matches)

    results = _ask_all(scope, _parts(routing, scope, tree_glob), "grep", ask, GrepResult(truncated=True))
    if isinstance(results, str):
        return GrepResult(error=results)
    matches = [match for result in results for match in result.matches or ()]
    matches.sort(key=lambda match: (match["path"], match["line"]))
    cut = limit is not None and len(matches) > limit
    truncated = cut or any(result.truncated or result.error is not None for result in results)
    return GrepResult(matches=matches[:limit], truncated=truncated, missing=_missing(results))


def glob(routing: Routing, scope: Scope, pattern: str) -> GlobResult:
    """Raises `GlobError`."""
    tree_glob = TreePattern(pattern)
    if not routing.table.names_below(scope.top):
        routed = scope.own
        result = routed.face.glob(pattern, routed.inner)
        return replace(result, error=routed.words(result.error), matches=routed.shown(result.matches))

    def ask(part: RoutedPath) -> GlobResult:
        with _asking(tree_glob, scope, part):
            result = part.face.glob(tree_glob.broad, part.inner)
        visible = _visible(routing, part, scope, tree_glob)
        result.matches = [info for info in part.shown(result.matches) or () if visible(info["path"])]
        return result

    unasked = GlobResult(truncated=True, truncation_reason="budget")
    results = _ask_all(scope, _parts(routing, scope, tree_glob), "glob", ask, unasked)
    if isinstance(results, str):
        return GlobResult(error=results)
    found = {info["path"]: info for result in results for info in result.matches or ()}
    failed = any(result.error is not None for result in results)
    reasons = [result.truncation_reason for result in results if result.truncation_reason]
    return GlobResult(
        matches=[found[path] for path in sorted(found)],
        truncated=failed or any(result.truncated for result in results),
        truncation_reason=reasons[0] if reasons else "unreadable" if failed else None,
        missing=_missing(results),
    )


def _ask_all(
    scope: Scope, parts: list[RoutedPath], verb: str, ask: Callable[[RoutedPath], Found], unasked: Found
) -> list[Found] | str:
    """The answers of all parts that have something below a path; or the failures, when nothing else was found.

    Args:
        unasked: stands for those that the budget did not reach.
    """
    results: list[Found] = []
    failures: list[str] = []
    for part, result in _answers(parts, verb, ask):
        if result is None:
            results.append(unasked)
            continue
        if result.error is not None:
            if part is scope.own and not _has_directory(part):
                continue  # a directory that only the routes need
            named = result.error.startswith(part.face.name)
            failures.append(result.error if named else f"{part.face.name}: {result.error}")
            result.missing = failures[-1]
            log.warning("%s below %s is not complete: %s", verb, scope.top, failures[-1])
        results.append(result)
    if failures and not any(result.matches for result in results):
        return "; ".join(failures)
    return results


def _parts(routing: Routing, scope: Scope, pattern: TreePattern | None) -> list[RoutedPath]:
    """The backend that is searched, and each route below that may hold a match."""
    below = routing.below(scope.top)
    return [scope.own, *(part for part, names in below if pattern is None or pattern.may_match_below(names))]


def _visible(routing: Routing, part: RoutedPath, scope: Scope, pattern: TreePattern | None) -> Callable[[str], bool]:
    start = len((part.outer if part is scope.own else scope.top).rstrip("/")) + 1

    def visible(path: str) -> bool:
        covered = routing.table.covers(part.prefix, AgentPath(path))
        return not covered and (pattern is None or pattern.matches(path[start:]))

    return visible


def _asking(pattern: TreePattern | None, scope: Scope, part: RoutedPath) -> contextlib.AbstractContextManager[object]:
    """Give a part the arguments of the search: it is given `TreePattern.broad`, which names less."""
    if pattern is None:
        return contextlib.nullcontext()
    below = () if part is scope.own else tuple((part.prefix or "").removeprefix(scope.top).strip("/").split("/"))
    return asked.for_pattern(pattern.text, pattern.cut(below))


def _answers(
    parts: list[RoutedPath], verb: str, ask: Callable[[RoutedPath], Found]
) -> Iterator[tuple[RoutedPath, Found | None]]:
    """Return the answer of each part; None for those that the budget does not reach. A guard sees to it that a part
    ends."""
    left = budget.current()
    apart = [part for part in parts if part.face.guard] if len(parts) > 1 else []
    awaited = [part for part in parts if part not in apart and part.face.coroutine(verb, caller.library())]
    begun = [Pending(partial(ask, part)) for part in apart]
    for part in parts:
        if part not in apart and part not in awaited:
            yield part, None if left.spent else ask(part)
    yield from zip(awaited, each(ask, awaited, MAX_AWAITED), strict=True)
    for part, call in zip(apart, begun, strict=True):
        yield part, call.result()


def _missing(results: Iterable[GrepResult | GlobResult]) -> str | None:
    """Return the parts that could not be searched."""
    return "; ".join(result.missing for result in results if result.missing is not None) or None


def _has_directory(routed: RoutedPath) -> bool:
    """Return True if the backend has this directory, which the routes need anyway, as far as it can be told."""
    return routed.face.has(routed.inner) is not False
