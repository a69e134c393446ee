"""The queries of searches: `SearchQueries` runs them, `TreeWalk` and `EntryWalk` find files with them.

A query may take seconds, so only a few run at a time, and the volume's other operations keep the other connections.
While the server works, the thread that waits for it watches the budget of the search, and has the server cancel a query
that exceeds it.

`TreeWalk` reads many directories with one query: a tree of 10,000 directories is a dozen round trips instead of 20,000.
It reads the next directories ahead, in the order of the walk, up to `ENTRIES_AHEAD` entries at a time.

`EntryWalk` finds the files below a directory that may hold a pattern, in the order of a `FileWalk`; a file that it
leaves out has no match. One statement, so one moment of the volume: the server goes by the index, adds the files in
`unindexed`, drops files of one chunk without the pattern, and returns the names with all directories above them. A
pattern without an index entry, or with too many candidates, is looked for in all chunks when the whole volume is
searched. Below a directory, which may be a small one, a `TreeWalk` takes over.
"""

from __future__ import annotations

import errno
import logging
import math
import re
import stat
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from fusebackend.base import budget, paths
from fusebackend.base.budget import Budget
from fusebackend.databases.pipeline import TICK_S, Rows, Statement, send
from fusebackend.databases.postgres import Connections
from fusebackend.protocol import ROOT_NODE, Attr, Volume
from fusebackend.volumes import trigram
from fusebackend.volumes.storage import CHUNK_BYTES
from fusebackend.volumes.walk import FileWalk, prefix_of

if TYPE_CHECKING:
    from psycopg import Connection

log = logging.getLogger(__name__)

QUERIES_AT_ONCE = 4
"""Connections of a volume that searches use at most."""

CANCEL_S = 2.0
"""How long the request to cancel may take."""

STALL_S = 4.0
"""How long the server may take to comply, before the connection is closed."""

_PARAMETER: Final = re.compile(r"%\((\w+)\)s")


class SearchQueries:
    """Runs queries on the volume's connections. Any thread may call any method.

    Args:
        volume: the volume's id in its tables.
        indexed: the index can be used (`index.make_index`).
    """

    def __init__(self, connections: Connections, volume: int, *, indexed: bool) -> None:
        self._connections = connections
        self._volume = volume
        self.indexed = indexed
        self._places = threading.BoundedSemaphore(QUERIES_AT_ONCE)

    def rows(self, query: str, **parameters: object) -> list[tuple[Any, ...]]:
        """The rows of one statement, which is one moment of the volume; `%(volume)s` is the volume's id.

        Raises:
            Spent: the budget of the current search ended before the server had them all.
            OSError: as `Connections.run`.
        """
        left = budget.current()
        while not self._places.acquire(timeout=TICK_S):
            left.require()
        try:
            left.require()
            given = {"volume": self._volume, **parameters}
            statement = _PARAMETER.sub("%s", query), [given[name] for name in _PARAMETER.findall(query)]
            return self._connections.run(lambda connection: _rows(connection, left, statement))
        finally:
            self._places.release()


def _rows(connection: Connection[Any], left: Budget, statement: Statement) -> Rows:
    """The rows of a statement, which the server cancels when the budget is spent."""
    from psycopg import Error, OperationalError

    ended_at = math.inf

    def watch() -> None:
        nonlocal ended_at
        if not left.spent:
            return
        now = time.monotonic()
        ended_at = min(ended_at, now + STALL_S)
        if now >= ended_at:
            raise TimeoutError(errno.ETIMEDOUT, "the server does not cancel a search")
        try:  # it may arrive before the query, and do nothing: it is repeated as long as the query runs
            connection.cancel_safe(timeout=CANCEL_S)
        except (Error, OSError) as error:
            log.info("a search that is over can't be ended yet: %s", error)

    try:
        # Planned each time: a pattern of one letter has another plan than a long one.
        return send(connection, [statement], watch=watch)[0]
    except OperationalError:  # cancelled, or cut
        left.require()
        raise


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
    """A `FileWalk` that reads many directories with one query."""

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
        self._read: dict[int, list[tuple[str, Attr]]] = {}  # listings of directories that the walk has not reached yet
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
        """The entries of each; None when they are too many for one query."""
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
            listing.sort(key=itemgetter(0))
        return listings


MAX_CANDIDATES: Final = 20_000
"""Files that are looked up one by one, 10 µs each. With more, going through all chunks is quicker."""

REGULAR: Final = f"(mode & {stat.S_IFMT(0o177777)}) = {stat.S_IFREG}"

# LIMIT 1 and OFFSET 0 keep PostgreSQL from turning look-ups by key into a join that reads whole tables, when it expects
# many candidates. It does after a large import.
_CANDIDATES = f"""
    indexed AS MATERIALIZED (SELECT volume, node FROM fusebackend.entry WHERE {{likes}}),
    candidate AS MATERIALIZED (
        (SELECT node FROM indexed WHERE volume = %(volume)s
         UNION SELECT node FROM fusebackend.unindexed WHERE volume = %(volume)s) LIMIT %(limit)s
    ),
    file AS MATERIALIZED (
        SELECT parent, name, inode.* FROM candidate
        CROSS JOIN LATERAL (
            SELECT node, mode, size, mtime_ns FROM fusebackend.inode
            WHERE volume = %(volume)s AND node = candidate.node AND size > 0 AND {REGULAR} LIMIT 1
        ) AS inode
        CROSS JOIN LATERAL (
            SELECT parent, name FROM fusebackend.dentry WHERE volume = %(volume)s AND node = candidate.node OFFSET 0
        ) AS dentry
        WHERE (SELECT count(*) FROM candidate) < %(limit)s AND (size > {CHUNK_BYTES} OR EXISTS (
            SELECT FROM fusebackend.chunk WHERE volume = %(volume)s AND node = candidate.node AND idx = 0
            AND position(%(needle)s::bytea IN data) > 0 OFFSET 0
        ))
    )
"""
_ALL = f"""
    file AS MATERIALIZED (
        SELECT dentry.parent, name, node, mode, size, mtime_ns
        FROM fusebackend.inode JOIN fusebackend.chunk USING (volume, node) JOIN fusebackend.dentry USING (volume, node)
        WHERE volume = %(volume)s AND {REGULAR} AND idx = 0
        AND (size > {CHUNK_BYTES} OR position(%(needle)s::bytea IN data) > 0)
    )
"""
_ABOVE = """
    SELECT entry.parent, entry.name, entry.node FROM {below} AS below CROSS JOIN LATERAL (
        SELECT parent, name, node FROM fusebackend.dentry
        WHERE volume = %(volume)s AND node = below.parent LIMIT 1
    ) AS entry
"""
_NAMES = f"""
WITH RECURSIVE {{files}}, above AS (
    {_ABOVE.format(below="(SELECT DISTINCT parent FROM file)")} UNION {_ABOVE.format(below="above")}
)
SELECT parent, name, node, mode, size, mtime_ns FROM file
UNION ALL SELECT parent, name, node, 0, 0, 0 FROM above
UNION ALL SELECT NULL, NULL, {{count}}, 0, 0, 0
"""
"""Files; directories above them, without a mode; and how many candidates there were, without a parent."""


class EntryWalk(TreeWalk):
    """A walk of the files that may hold a pattern, by the index; of all where that does not help."""

    def __init__(
        self,
        queries: SearchQueries,
        needle: bytes,
        volume: Volume,
        directory: int,
        *,
        below: Sequence[str] = (),
        depth: int | None = None,
    ) -> None:
        super().__init__(queries, volume, directory, below=below, depth=depth)
        self._needle = needle

    def __iter__(self) -> Iterator[tuple[str, Attr]]:
        """Paths relative to the directory, some of them outside of `below` and `depth`."""
        found = self._find()
        yield from super().__iter__() if found is None else self._budget.metered(found)

    def _find(self) -> list[tuple[str, Attr]] | None:
        """Relative paths with attributes, sorted. None when the directory is to be walked."""
        needle = self._needle
        rows = self._indexed(needle) if self._queries.indexed else None
        if rows is None and self._directory == ROOT_NODE:
            rows = self._queries.rows(_NAMES.format(files=_ALL, count="0"), needle=needle)
        return None if rows is None else self._in_order(rows)

    def _indexed(self, needle: bytes) -> list[tuple[Any, ...]] | None:
        """The rows by the index; None where the pattern has no entry, or too many."""
        parts = telling(needle)
        if not parts:
            return None
        likes = " AND ".join(f"words LIKE %(like{number})s" for number in range(len(parts)))
        query = _NAMES.format(files=_CANDIDATES.format(likes=likes), count="(SELECT count(*) FROM candidate)")
        given = {f"like{number}": like(part) for number, part in enumerate(parts)}
        rows = self._queries.rows(query, needle=needle, limit=MAX_CANDIDATES, **given)
        candidates = next(node for parent, _, node, *_ in rows if parent is None)
        return None if candidates == MAX_CANDIDATES else rows

    def _in_order(self, rows: list[tuple[Any, ...]]) -> list[tuple[str, Attr]]:
        """The files below the directory, of rows of files and the directories above them."""
        places = {node: (parent, name) for parent, name, node, mode, _, _ in rows if not mode and parent}
        prefixes: dict[int, str | None] = {ROOT_NODE: None, self._directory: ""}
        found: list[tuple[str, Attr]] = []
        for parent, name, node, mode, size, mtime_ns in self._budget.metered(rows):
            if mode:
                prefix = prefix_of(parent, places.get, prefixes)
                if prefix is not None:
                    found.append((prefix + paths.to_text(name), Attr(node, mode, size=size, mtime_ns=mtime_ns)))
        found.sort(key=itemgetter(0))
        return found


def telling(needle: bytes) -> list[str]:
    """The longest parts of a pattern that entries hold: within one word each, and long enough for the index."""
    return [
        text for part in trigram.fragments(needle) if len(text := part.decode("utf-8", "ignore")) >= trigram.TRIGRAM
    ]


def like(part: str) -> str:
    """The LIKE pattern of a text that holds `part`, in which only `_` is special."""
    return "%" + part.replace("_", r"\_") + "%"
