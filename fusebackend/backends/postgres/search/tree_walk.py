"""`TreeWalk`: a `FileWalk` of a PostgreSQL volume that reads many directories with one query.

A tree of 10,000 directories is a dozen round trips to the server instead of 20,000. The directories that will be walked
next, in the order of the walk, are read ahead together; not more than `ENTRIES_AHEAD` entries at a time.
"""

from __future__ import annotations

import stat
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final

from fusebackend.backends.postgres.search.queries import SearchQueries
from fusebackend.base import paths
from fusebackend.protocol import ROOT_NODE, Attr, Volume
from fusebackend.volumes.walk import FileWalk

DIRECTORIES_FIRST: Final = 16
DIRECTORIES_AHEAD: Final = 1024
ENTRIES_AHEAD: Final = 50_000
"""Bounds of one query: 50,000 entries take 0.2 s, and some 20 MB here."""

_LISTINGS = f"""
SELECT wanted.node, name, inode.node, mode, size, mtime_ns
FROM unnest(%(directories)s::bigint[]) AS wanted (node)
CROSS JOIN LATERAL (
    SELECT name, node FROM fusebackend.dentry WHERE volume = %(volume)s AND parent = wanted.node OFFSET 0
) AS dentry
CROSS JOIN LATERAL (
    SELECT node, mode, size, mtime_ns FROM fusebackend.inode
    WHERE volume = %(volume)s AND node = dentry.node
    AND (mode & {stat.S_IFMT(0o177777)}) IN ({stat.S_IFREG}, {stat.S_IFDIR})
    AND node <> {ROOT_NODE} AND ((mode & {stat.S_IFMT(0o177777)}) = {stat.S_IFREG} OR parent = wanted.node) LIMIT 1
) AS inode
LIMIT %(limit)s
"""


class TreeWalk(FileWalk):
    """See the module's docstring."""

    def __init__(
        self,
        queries: SearchQueries,
        volume: Volume,
        directory: int,
        *,
        below: Sequence[str] = (),
        depth: int | None = None,
    ) -> None:
        super().__init__(volume, directory, below=below, depth=depth)
        self._queries = queries
        self._read: dict[int, list[tuple[str, Attr]]] = {}  # listings whose directories have not been reached yet
        self._unread: deque[tuple[int, int]] = deque()  # directories and how deep they are, in the order of the walk
        self._ahead = DIRECTORIES_FIRST

    def _start(self) -> tuple[str, int] | None:
        start = super()._start()
        if start is not None:
            self._unread.append((start[1], 1 + len(self._below)))
        return start

    def _listing(self, directory: int) -> list[tuple[str, Attr]]:
        while directory not in self._read and self._unread:
            self._read_ahead()
        return self._read.pop(directory, [])

    def _read_ahead(self) -> None:
        """Read the directories that come next; their subdirectories come in their place."""
        wanted = list(islice(self._unread, self._ahead))
        listings = self._listings([node for node, _ in wanted])
        if listings is None:
            self._ahead = max(1, len(wanted) // 8)
            return
        self._ahead = min(self._ahead * 4, DIRECTORIES_AHEAD)
        for _ in wanted:
            self._unread.popleft()
        for node, level in reversed(wanted):
            self._read[node] = listings[node]
            if self._depth is None or level < self._depth:
                inner = [(attr.node, level + 1) for text, attr in reversed(listings[node]) if text.endswith("/")]
                self._unread.extendleft(inner)

    def _listings(self, directories: list[int]) -> dict[int, list[tuple[str, Attr]]] | None:
        """What is in each; None when it is too much for one query."""
        rows = self._queries.rows(_LISTINGS, directories=directories, limit=ENTRIES_AHEAD + 1)
        if len(rows) > ENTRIES_AHEAD:
            if len(directories) > 1:
                return None
            return {directories[0]: super()._listing(directories[0])}  # page by page
        listings: dict[int, list[tuple[str, Attr]]] = {directory: [] for directory in directories}
        for directory, name, node, mode, size, mtime_ns in self._budget.metered(rows):
            attr = Attr(node, mode, size=size, mtime_ns=mtime_ns)
            listings[directory].append((paths.to_text(name) + ("/" if attr.is_dir else ""), attr))
        for listing in listings.values():
            listing.sort(key=_text_of)
        return listings


def _text_of(entry: tuple[str, Attr]) -> str:
    return entry[0]
