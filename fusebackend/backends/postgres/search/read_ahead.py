"""`ReadAhead`: a `grep` that reads the contents of many files with one query.

`EntryWalk` finds the files that may hold a pattern. `text.py` alone defines lines, matches and text files.
"""

from __future__ import annotations

import functools
import stat
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from fusebackend.backends.postgres.search.query import EntryWalk, SearchQueries
from fusebackend.base.globs import Matcher
from fusebackend.protocol import Attr, Volume
from fusebackend.volumes.contents import LOCKED_BYTES, read_with
from fusebackend.volumes.search import FileSearch
from fusebackend.volumes.storage import CHUNK_BYTES

FILES_FIRST: Final = 32
FILES_AHEAD: Final = 2048
BYTES_AHEAD: Final = 8 << 20
"""Bounds of one query, and so of memory; a single file may have `LOCKED_BYTES`."""

_CONTENTS = f"""
SELECT inode.node, inode.size, idx, data
FROM unnest(%(nodes)s::bigint[]) AS wanted (node)
CROSS JOIN LATERAL (
    SELECT node, size FROM fusebackend.inode WHERE volume = %(volume)s AND node = wanted.node AND size > 0
    AND (mode & {stat.S_IFMT(0o177777)}) = {stat.S_IFREG} LIMIT 1
) AS inode
LEFT JOIN LATERAL (
    SELECT idx, data FROM fusebackend.chunk
    WHERE volume = %(volume)s AND node = wanted.node AND inode.size <= %(limit)s
    AND (inode.size > {CHUNK_BYTES} OR position(%(needle)s::bytea IN data) > 0) ORDER BY idx OFFSET 0
) AS chunk ON true
WHERE idx IS NOT NULL OR inode.size > %(limit)s
"""

T = TypeVar("T")


class ReadAhead(FileSearch):
    """A search for a literal that reads the contents of many files with one query, ahead; iterates over those that may
    match.

    The server leaves out files of a single chunk without the pattern. Each file is read as of one moment. Larger ones
    are not read ahead, but by `read_with`.
    """

    def __init__(
        self, queries: SearchQueries, pattern: str, volume: Volume, path: str, matcher: Matcher | None, max_bytes: int
    ) -> None:
        self._needle = needle = pattern.encode("utf-8", "surrogatepass")  # no text holds a lone surrogate
        super().__init__(volume, path, matcher, max_bytes, functools.partial(EntryWalk, queries, needle), self.read)
        self._queries = queries
        self._limit = min(max_bytes, LOCKED_BYTES)
        self._ahead: dict[int, bytes | None] = {}

    def __iter__(self) -> Iterator[tuple[str, Attr]]:
        waiting: list[tuple[str, Attr]] = []
        size, files = 0, FILES_FIRST
        for found in super().__iter__():
            waiting.append(found)
            size += min(found[1].size, self._limit)
            if len(waiting) >= files or size >= BYTES_AHEAD:
                yield from self._readable(waiting)
                waiting, size, files = [], 0, min(files * 4, FILES_AHEAD)
        yield from self._readable(waiting)

    def read(self, volume: Volume, attr: Attr, max_bytes: int, take: Callable[[Iterable[bytes]], T]) -> T:
        """As `contents.read_with`, for the file that was iterated over last."""
        data = self._ahead.get(attr.node)
        return read_with(volume, attr, max_bytes, take) if data is None else take((data,))

    def _readable(self, files: list[tuple[str, Attr]]) -> list[tuple[str, Attr]]:
        if not files:
            return []
        nodes = list({attr.node for _, attr in files})
        rows = self._queries.rows(_CONTENTS, nodes=nodes, limit=self._limit, needle=self._needle)
        pieces: dict[int, list[bytes]] = {}
        sizes: dict[int, int] = {}
        for node, size, index, data in rows:
            sizes[node] = size
            if index is not None:
                known = pieces.setdefault(node, [])
                if index == len(known):  # else there is a hole before it, and the file is too short for its size
                    known.append(data)
        self._ahead = {}
        for node, size in sizes.items():
            content = b"".join(pieces.get(node, ()))
            if size > self._limit:
                self._ahead[node] = None
            elif len(content) == size:  # holes read as zeros, and no text holds any
                self._ahead[node] = content
        return [(path, attr) for path, attr in files if attr.node in self._ahead]
