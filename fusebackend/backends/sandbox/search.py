"""`Search`: `grep` and `glob` in a sandbox.

The sandbox's `find` and `grep` say which files there are, and which hold the literal; what matches a pattern, and which
lines of a text file count, is decided here, by the rules of all backends. So a `glob` is one command, and a `grep` one,
and one for each two hundred of the files that hold the literal.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fusebackend import text
from fusebackend.backends.sandbox.script_answers import END, Entry, Found, entries_of, failure, info_of, status_of
from fusebackend.base import budget, paths
from fusebackend.base.budget import Spent
from fusebackend.base.errors import VANISHED
from fusebackend.base.globs import Matcher
from fusebackend.base.paths import AgentPath
from fusebackend.protocol import NAME_MAX_BYTES, FileInfo
from fusebackend.remote.agent_verbs import Unreadable

if TYPE_CHECKING:
    from fusebackend.backends.sandbox.base import BaseSandbox

LONGEST_S = 600.0
"""For a search that nobody limits."""

READ_FILES = 50
"""Candidates that are read at a time, so that a search that is limited does not read all."""


class Search:
    """The regular files below a path, or the one at it, whose path relative to it matches.

    `files` and `lines` raise, besides `OSError` for a path that can't be searched: `Spent` when the budget is, and
    `Unreadable` at the end of a search that was not allowed to see everything.
    """

    def __init__(self, sandbox: BaseSandbox, path: AgentPath, matcher: Matcher | None) -> None:
        self._sandbox = sandbox
        self._path = path
        self._matcher = matcher
        self._budget = budget.current()
        self._below = matcher.prefix if matcher is not None else ()
        self._depth = ""
        if matcher is not None and matcher.depth is not None:
            self._depth = str(matcher.depth - len(self._below))

    def files(self) -> Iterator[FileInfo]:
        found = self._ask("fb_find", self._depth)
        for path, entry in self._matching(found):
            yield info_of(path, entry)
        self._finish(found)

    def lines(self, pattern: str, limit: int | None) -> Iterator[tuple[str, Sequence[tuple[int, str]]]]:
        if not _is_in_a_line(pattern):
            self._ask("fb_find", "0")  # whether the path can be searched is to be said all the same
            return
        max_bytes = self._sandbox.max_search_bytes
        found = self._ask("fb_grep", self._depth, str(max_bytes // 512), pattern)
        incomplete = found.unreadable
        matching = self._matching(found)
        incomplete |= any(entry.size > max_bytes for _, entry in matching)
        left = limit
        candidates = [path for path, entry in matching if entry.size <= max_bytes]
        for start in range(0, len(candidates), READ_FILES):
            for path, data in self._read(candidates[start : start + READ_FILES]):
                if data is None or len(data) > max_bytes:
                    incomplete = True
                    continue
                lines = text.grep_lines(data, pattern, left)
                if lines:
                    yield path, lines
                if left is not None:
                    left -= len(lines)
                    if left <= 0:
                        return
        self._finish(found._replace(unreadable=incomplete))

    def _read(self, candidates: Sequence[str]) -> Iterator[tuple[str, bytes | None]]:
        """The bytes of files, None for those that can't be read; those that are gone are left out."""
        there = [self._sandbox.path_of(AgentPath(path)) for path in candidates]
        self._budget.require()
        for path, source, piece in zip(candidates, there, self._sandbox.pieces(there), strict=True):
            self._budget.require()
            try:
                if piece.code == "b":
                    yield path, self._sandbox.fetch(source)
                elif piece.code == "f":
                    yield path, piece.data
                else:
                    raise failure(piece.code)
            except OSError as error:
                if error.errno not in VANISHED:
                    yield path, None

    # -- asking ------------------------------------------------------------------------------------------------

    def _ask(self, function: str, *arguments: str) -> Found:
        """What the sandbox finds; paths are relative to the path that is searched, the file at it being ``."""
        empty = Found([], True, False)
        below = []
        for segment in self._below:
            try:
                if len(paths.to_name(segment)) > NAME_MAX_BYTES:
                    return empty
            except UnicodeEncodeError:
                return empty
            below.append(segment)
        script = self._sandbox.search_script().call(function, *arguments, self._sandbox.path_of(self._path), *below)
        self._budget.require()
        try:
            answer = self._sandbox.ask(script, min(self._budget.left_s, LONGEST_S), looks=True, cut=True)
        except OSError as error:
            if error.errno == errno.ETIMEDOUT:
                raise Spent from None
            raise
        status, listing = status_of(answer)
        if status == "f":
            return entries_of(listing + END)
        if status == "ok":
            return entries_of(listing)
        if status == "n":
            return empty
        if status == "x":
            return empty._replace(unreadable=True)
        raise failure(status)

    def _matching(self, found: Found) -> list[tuple[str, Entry]]:
        """Files by their whole paths, in their order."""
        matching: list[tuple[str, Entry]] = []
        prefix = "".join(f"{segment}/" for segment in self._below)
        matches = self._matcher.matches if self._matcher is not None else None
        for entry in found.entries:
            relative = prefix + paths.to_text(entry.path)
            path = paths.join(self._path, relative) if entry.path else self._path
            if matches is None or matches(relative if entry.path else paths.parent_and_name(self._path)[1]):
                matching.append((path, entry))
        return sorted(matching, key=lambda item: item[0])

    def _finish(self, found: Found) -> None:
        if not found.ended:
            raise Spent
        if found.unreadable:
            raise Unreadable


def _is_in_a_line(pattern: str) -> bool:
    """Can a line of a text file hold this?"""
    try:
        pattern.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return "\n" not in pattern and "\0" not in pattern
