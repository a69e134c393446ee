"""`grep` and `glob` of a PostgreSQL volume: the search that every volume has, over fewer and larger questions.

`EntryWalk` finds the files that may hold a pattern, `TreeWalk` those below a directory, and `ReadAhead` brings what is
in them. What a line, a match and a text file are is said in `text.py`, and by nobody else.
"""

from __future__ import annotations

import functools

from fusebackend.backends import search
from fusebackend.backends.postgres.searchfiles import ReadAhead
from fusebackend.backends.postgres.searchquery import SearchQueries
from fusebackend.backends.postgres.searchtree import TreeWalk
from fusebackend.backends.postgres.searchwalk import EntryWalk
from fusebackend.globs import compile_glob
from fusebackend.protocol import GlobResult, GrepResult, Volume


def grep_files(
    queries: SearchQueries,
    volume: Volume,
    pattern: str,
    path: str,
    glob: str | None,
    max_count: int | None,
    max_bytes: int,
) -> GrepResult:
    """As `search.grep_files`."""
    walk = functools.partial(EntryWalk, queries, pattern)
    files = search.FileSearch(volume, path, compile_glob(glob) if glob else None, walk)
    ahead = ReadAhead(queries, pattern, files, max_bytes)
    result = search.grep_found(volume, pattern, ahead, max_count, max_bytes, ahead.read)
    result.truncated |= files.unreadable
    return result


def glob_files(queries: SearchQueries, volume: Volume, pattern: str, path: str) -> GlobResult:
    """As `search.glob_files`."""
    return search.glob_files(volume, pattern, path, functools.partial(TreeWalk, queries))
