"""`Search`: `grep` and `glob` of a PostgreSQL volume, over fewer and larger questions than those of other volumes.

`EntryWalk` finds the files that may hold a pattern, `TreeWalk` those below a directory, `ReadAhead` brings what is in
them, and `SearchIndexer` keeps the index. What a line, a match and a text file are is said in `text.py` alone.
"""

from __future__ import annotations

import functools

from fusebackend.backends.postgres.connections import Connections
from fusebackend.backends.postgres.search.contents_ahead import ReadAhead
from fusebackend.backends.postgres.search.entry_walk import EntryWalk
from fusebackend.backends.postgres.search.index_schema import make_index
from fusebackend.backends.postgres.search.indexer import SearchIndexer
from fusebackend.backends.postgres.search.queries import SearchQueries
from fusebackend.backends.postgres.search.tree_walk import TreeWalk
from fusebackend.base.globs import compile_glob
from fusebackend.protocol import GlobResult, GrepResult, Volume
from fusebackend.volumes import search


class Search:
    """The searches of a volume, until `close`, which comes before that of the connections.

    Args:
        volume: the kernel face, for the way down a path and for large files.
        id: the volume's id in its tables.

    Attributes:
        queries: what it asks the server.
        indexer: None where the database has no index.
    """

    def __init__(self, volume: Volume, connections: Connections, id: int) -> None:
        self._volume = volume
        indexed = connections.run(make_index)
        self.queries = SearchQueries(connections, id, indexed=indexed)
        self.indexer = SearchIndexer(connections, id) if indexed else None
        if self.indexer is not None:
            self.indexer.start()

    def close(self) -> None:
        if self.indexer is not None:
            self.indexer.stop()

    def grep_files(
        self, pattern: str, path: str, glob: str | None, max_count: int | None, max_bytes: int
    ) -> GrepResult:
        """As `search.grep_files`."""
        walk = functools.partial(EntryWalk, self.queries, pattern)
        files = search.FileSearch(self._volume, path, compile_glob(glob) if glob else None, walk)
        ahead = ReadAhead(self.queries, pattern, files, max_bytes)
        result = search.grep_found(self._volume, pattern, ahead, max_count, max_bytes, ahead.read)
        result.truncated |= files.unreadable
        return result

    def glob_files(self, pattern: str, path: str) -> GlobResult:
        """As `search.glob_files`."""
        return search.glob_files(self._volume, pattern, path, functools.partial(TreeWalk, self.queries))
