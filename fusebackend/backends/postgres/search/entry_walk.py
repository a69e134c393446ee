"""`EntryWalk`: the files below a directory of a PostgreSQL volume that may hold a pattern, by asking the server once.

It stands where a plain search has its `FileWalk`, and gives the files in the same order; what it leaves out holds no
match. The server goes by the index, adds what is in `unindexed`, drops what has a single chunk without the pattern, and
answers with the names and all directories above them. That is one statement, so one moment of the volume.

A pattern of which no entry can tell, or of which too many do, is looked for in all chunks when the whole volume is
searched. Below a directory, which may be a small one, a `TreeWalk` takes over then.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from typing import Any, Final

from fusebackend.backends.postgres.search.queries import SearchQueries
from fusebackend.backends.postgres.search.tree_walk import TreeWalk
from fusebackend.base import budget, paths
from fusebackend.protocol import ROOT_NODE, Attr, Volume
from fusebackend.volumes import trigram
from fusebackend.volumes.chunks import CHUNK_BYTES

MAX_CANDIDATES: Final = 20_000
"""Files that are looked up one by one, 10 µs each. If there are more, the way without an index is the quicker one."""

REGULAR: Final = f"(mode & {stat.S_IFMT(0o177777)}) = {stat.S_IFREG}"

# LIMIT 1 and OFFSET 0 keep PostgreSQL from turning look-ups by key into a join for which it reads whole tables, when it
# thinks that there are many candidates. It thinks so after a large import.
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


class EntryWalk:
    """See the module's docstring. To be used as a `FileWalk`.

    Attributes:
        unreadable: always False; a volume of this kind can be read throughout.
    """

    unreadable = False

    def __init__(
        self,
        queries: SearchQueries,
        pattern: str,
        volume: Volume,
        directory: int,
        *,
        below: Sequence[str] = (),
        depth: int | None = None,
    ) -> None:
        self._queries = queries
        self._pattern = pattern
        self._directory = directory
        self._tree = TreeWalk(queries, volume, directory, below=below, depth=depth)
        self._budget = budget.current()

    def __iter__(self) -> Iterator[tuple[str, Attr]]:
        """Paths relative to the directory. Also some that a `below` and `depth` would spare the caller."""
        found = self._find()
        yield from self._tree if found is None else self._budget.metered(found)

    def _find(self) -> list[tuple[str, Attr]] | None:
        """Relative paths and what is there, sorted. None when the directory is to be walked."""
        try:
            needle = self._pattern.encode("utf-8")
        except UnicodeEncodeError:
            return None
        rows = self._indexed(needle) if self._queries.indexed else None
        if rows is None and self._directory == ROOT_NODE:
            rows = self._queries.rows(_NAMES.format(files=_ALL, count="0"), needle=needle)
        return None if rows is None else self._below(rows)

    def _indexed(self, needle: bytes) -> list[tuple[Any, ...]] | None:
        """What the index leads to; None when that is nothing, or too much."""
        parts = telling(needle)
        if not parts:
            return None
        likes = " AND ".join(f"words LIKE %(like{number})s" for number in range(len(parts)))
        query = _NAMES.format(files=_CANDIDATES.format(likes=likes), count="(SELECT count(*) FROM candidate)")
        given = {f"like{number}": like(part) for number, part in enumerate(parts)}
        rows = self._queries.rows(query, needle=needle, limit=MAX_CANDIDATES, **given)
        candidates = next(node for parent, _, node, *_ in rows if parent is None)
        return None if candidates == MAX_CANDIDATES else rows

    def _below(self, rows: list[tuple[Any, ...]]) -> list[tuple[str, Attr]]:
        """What is below the directory, of files and the directories above them."""
        places = {node: (parent, name) for parent, name, node, mode, _, _ in rows if not mode and parent}
        prefixes: dict[int, str | None] = {ROOT_NODE: None, self._directory: ""}
        found: list[tuple[str, Attr]] = []
        for parent, name, node, mode, size, mtime_ns in self._budget.metered(rows):
            if mode:
                prefix = _prefix(parent, places, prefixes)
                if prefix is not None:
                    found.append((prefix + paths.to_text(name), Attr(node, mode, size=size, mtime_ns=mtime_ns)))
        found.sort(key=_path_of)
        return found


def telling(needle: bytes) -> list[str]:
    """The parts of a pattern that an entry tells of, the longest ones: inside of one word each, and long enough for the
    index to have something of them."""
    return [text for part in trigram.fragments(needle) if len(text := part.decode("utf-8")) >= trigram.TRIGRAM]


def like(part: str) -> str:
    """What LIKE calls a text that holds `part`, which has nothing but `_` that means something to it."""
    return "%" + part.replace("_", r"\_") + "%"


def _prefix(directory: int, places: dict[int, tuple[int, bytes]], prefixes: dict[int, str | None]) -> str | None:
    """The way down to a directory, None when it is elsewhere. `prefixes` are those known by now."""
    trail: list[tuple[int, str]] = []
    node = directory
    while node not in prefixes:
        prefixes[node] = None  # until the way down is known; on damaged volumes directories may be in a circle
        if node not in places:
            break
        parent, name = places[node]
        trail.append((node, paths.to_text(name)))
        node = parent
    for below, text in reversed(trail):
        above = prefixes[node]
        prefixes[below] = None if above is None else f"{above}{text}/"
        node = below
    return prefixes[directory]


def _path_of(found: tuple[str, Attr]) -> str:
    return found[0]
