"""`grep` and `glob` of a PostgreSQL volume, by an index of pg_trgm.

A search's queries find the files below a directory, or those that may hold a pattern; each is ended with its budget. A
`ReadAhead` reads the contents of many files with one query. The index has its own tables, and a `SearchIndexer` brings
it up to date.
"""

from __future__ import annotations

import errno
import functools
import itertools
import logging
import math
import re
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeVar

from psycopg import Connection, Error, OperationalError

from fusebackend.base import budget, paths
from fusebackend.base.batches import by_size
from fusebackend.base.budget import Budget
from fusebackend.base.globs import Matcher
from fusebackend.databases.pipeline import BEGIN, COMMIT, TICK_S, Rows, Statement, send
from fusebackend.databases.postgres import Connections
from fusebackend.protocol import ROOT_NODE, Attr, Volume
from fusebackend.volumes import trigram
from fusebackend.volumes.contents import LOCKED_BYTES, read_with
from fusebackend.volumes.search import FileSearch
from fusebackend.volumes.storage import CHUNK_BYTES
from fusebackend.volumes.walk import FileWalk, prefix_of

# -- queries -------------------------------------------------------------------------------------------------------
#
# The queries of searches: `SearchQueries` runs them, `TreeWalk` and `EntryWalk` find files with them.
#
# A query may take seconds, so only a few run at a time, and the volume's other operations keep the other connections.
# While the server works, the thread that waits for it watches the budget of the search, and has the server cancel a
# query that exceeds it.
#
# `TreeWalk` reads many directories with one query: a tree of 10,000 directories is a dozen round trips instead of
# 20,000. It reads the next directories ahead, in the order of the walk, up to `ENTRIES_AHEAD` entries at a time.
#
# `EntryWalk` finds the files below a directory that may hold a pattern, in the order of a `FileWalk`; a file that it
# leaves out has no match. One statement, so one moment of the volume: the server goes by the index, adds the files in
# `unindexed`, drops files of one chunk without the pattern, and returns the names with all directories above them. A
# pattern without an index entry, or with too many candidates, is looked for in all chunks when the whole volume is
# searched. Below a directory, which may be a small one, a `TreeWalk` takes over.

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


# -- read ahead --------------------------------------------------------------------------------------------------
#
# `ReadAhead`: a `grep` that reads the contents of many files with one query.
#
# `EntryWalk` finds the files that may hold a pattern. `text.py` alone defines lines, matches and text files.

FILES_FIRST: Final = 32
FILES_AHEAD: Final = 512
BYTES_AHEAD: Final = 8 << 20
"""Bounds of one query, and so of memory; a single file may have `LOCKED_BYTES`. A search that stops early reads little:
the first query is for a few files."""

_CONTENTS = f"""
SELECT inode.node, size, data
FROM unnest(%(nodes)s::bigint[]) AS wanted (node)
CROSS JOIN LATERAL (
    SELECT node, size FROM fusebackend.inode WHERE volume = %(volume)s AND node = wanted.node AND size > 0
    AND (mode & {stat.S_IFMT(0o177777)}) = {stat.S_IFREG} LIMIT 1
) AS inode
CROSS JOIN LATERAL (
    SELECT string_agg(data, ''::bytea ORDER BY idx) AS data FROM fusebackend.chunk
    WHERE volume = %(volume)s AND node = wanted.node AND size <= %(limit)s
    AND (size > {CHUNK_BYTES} OR position(%(needle)s::bytea IN data) > 0)
) AS contents
WHERE data IS NOT NULL OR size > %(limit)s
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
        found = super().__iter__()
        for most in (FILES_FIRST, 4 * FILES_FIRST, None):
            for files in by_size(itertools.islice(found, most), self._size_of, FILES_AHEAD, BYTES_AHEAD):
                yield from self._readable(files)

    def _size_of(self, found: tuple[str, Attr]) -> int:
        return min(found[1].size, self._limit)

    def read(self, volume: Volume, attr: Attr, max_bytes: int, take: Callable[[Iterable[bytes]], T]) -> T:
        """As `contents.read_with`, for the file that was iterated over last."""
        data = self._ahead.get(attr.node)
        return read_with(volume, attr, max_bytes, take) if data is None else take((data,))

    def _readable(self, files: list[tuple[str, Attr]]) -> list[tuple[str, Attr]]:
        nodes = list({attr.node for _, attr in files})
        rows = self._queries.rows(_CONTENTS, nodes=nodes, limit=self._limit, needle=self._needle)
        # A file that has less than its size has holes: they read as zeros, and no text holds any.
        self._ahead = {node: data for node, size, data in rows if data is None or len(data) == size}
        return [(path, attr) for path, attr in files if attr.node in self._ahead]


# -- index -------------------------------------------------------------------------------------------------------
#
# The search index of a PostgreSQL volume: two tables, a trigger, an index by pg_trgm, and its `SearchIndexer`.
#
# | table       | one row for                | columns                                                              |
# |-------------|----------------------------|----------------------------------------------------------------------|
# | `unindexed` | a node whose contents have | volume, node, changed_at (by the server's clock), change (the        |
# |             | changed since its entry,   | transaction that did it), large: too large for an entry, so its row  |
# |             | or that is too large       | stays                                                                |
# | `entry`     | a file with text chunks    | volume, node, words: the distinct words (`trigram.words`) of its     |
# |             |                            | chunks, with a space between them                                    |
#
# A trigger of `chunk` puts a node into `unindexed` in each transaction that changes its bytes. So a search by the
# entries that also reads the files in `unindexed` misses nothing, at any moment. An entry depends on a file's chunks
# alone: a change of the size, which changes no chunk, can't make it wrong.
#
# The index needs the extension pg_trgm. Opening a volume makes both where that is allowed; elsewhere nothing is
# indexed, and the server goes through all chunks for every search.
#
# The indexer works in the thread of the host's session, as what frees old rows does, on the two hosts that have had the
# volume open for longest; an advisory lock lets one of them at a time. Each portion of the work is one transaction,
# which takes some 50 ms here and as long again in the server. A row leaves `unindexed` only if it has not changed since
# it was read: a writer waits for a commit at most, and its bytes are indexed again. A file that changes all the time (a
# log) waits until it has been left alone for `QUIET_S`. A crash, or the lack of an indexer, costs no match: every
# search reads the files without an entry.

INDEXED_BYTES: Final = 1 << 20
"""Larger files have no entry: every search reads them."""

INDEX_LOCK: Final = 0x66620010
"""First key of the advisory lock under which a volume (the second key) is indexed; with 0, the index is made."""

INDEX: Final = "fusebackend.entry_words"

PENDING_KIB: Final = 4096
"""New text that the index gathers before it sorts it in. A search goes through it, for up to 10 ms; with 64 KiB, the
minimum, indexing takes five times as long. The indexer has it sorted in when it has nothing else to do."""

SEARCH_TABLES: Final = """
CREATE TABLE fusebackend.unindexed (
    volume integer NOT NULL, node bigint NOT NULL, changed_at timestamptz NOT NULL, change xid8 NOT NULL,
    large boolean NOT NULL DEFAULT false,
    PRIMARY KEY (volume, node)
) WITH (fillfactor = 70);
CREATE TABLE fusebackend.entry (
    volume integer NOT NULL, node bigint NOT NULL, words text COLLATE "C" NOT NULL,
    PRIMARY KEY (volume, node)
);
CREATE FUNCTION fusebackend.contents_changed() RETURNS trigger LANGUAGE plpgsql AS $body$
DECLARE
    of_volume integer;
    of_node bigint;
BEGIN
    IF TG_OP = 'DELETE' OR (TG_OP = 'UPDATE' AND NEW.node < 0) THEN
        of_volume := OLD.volume;
        of_node := OLD.node;
    ELSE
        of_volume := NEW.volume;
        of_node := NEW.node;
    END IF;
    IF of_node < 0 THEN
        RETURN NULL;
    END IF;
    INSERT INTO fusebackend.unindexed (volume, node, changed_at, change)
        VALUES (of_volume, of_node, clock_timestamp(), pg_current_xact_id())
        ON CONFLICT (volume, node) DO UPDATE
            SET changed_at = excluded.changed_at, change = excluded.change, large = false
            WHERE unindexed.change <> excluded.change;
    RETURN NULL;
END
$body$;
CREATE TRIGGER contents_changed AFTER INSERT OR UPDATE OR DELETE ON fusebackend.chunk
    FOR EACH ROW EXECUTE FUNCTION fusebackend.contents_changed();
"""
"""A chunk that only snapshots have has a negative node (`old_rows.py`), and is not searched."""

_STATE = """
SELECT to_regclass(%(index)s) IS NOT NULL, current_setting('server_encoding'),
    (SELECT quote_ident(nspname) FROM pg_extension JOIN pg_namespace ON pg_namespace.oid = extnamespace
     WHERE extname = 'pg_trgm')
"""


def make_index(connection: Connection[Any]) -> bool:
    """Make the index if it is missing. Returns whether it can be used; if not, a line in the log gives the reason.

    Args:
        connection: in autocommit mode.

    Raises:
        psycopg.OperationalError: the connection is lost.
    """
    try:
        return _make(connection)
    except Error as error:
        if connection.closed:
            raise
        reason = str(error).partition("\n")[0]
        log.warning(
            "grep has no index in the database '%s' and goes through all files: %s. Have somebody who may run "
            "'CREATE EXTENSION pg_trgm' there, and open the volume again",
            connection.info.dbname, reason,
        )  # fmt: skip
        return False


def _make(connection: Connection[Any]) -> bool:
    made, encoding, _ = _state(connection)
    if encoding != "UTF8":
        log.warning(
            "grep has no index in the database '%s' and goes through all files: its encoding is %s, not UTF8",
            connection.info.dbname, encoding,
        )  # fmt: skip
        return False
    if made:
        return True
    with connection.transaction():
        taken = connection.execute("SELECT pg_try_advisory_xact_lock(%s::int, 0)", [INDEX_LOCK]).fetchone()
        if taken == (False,):
            return True  # another host makes it, and a search is right without it
        connection.execute("CREATE EXTENSION IF NOT EXISTS pg_trgm")
        _, _, namespace = _state(connection)
        connection.execute(
            f"CREATE INDEX IF NOT EXISTS entry_words ON fusebackend.entry USING gin (words {namespace}.gin_trgm_ops) "
            f"WITH (fastupdate = on, gin_pending_list_limit = {PENDING_KIB})"
        )
    return True


def _state(connection: Connection[Any]) -> tuple[bool, str, str | None]:
    """Whether there is an index; the encoding of the database; the schema that pg_trgm is in."""
    row = connection.execute(_STATE, {"index": INDEX}).fetchone()
    assert row is not None, "a SELECT without FROM has a row"
    return row[0], row[1], row[2]


# -- bringing it up to date ----------------------------------------------------------------------------------------

QUIET_S = 2.0
"""A file that was changed more recently is not indexed yet."""

PORTION_FILES: Final = 256
PORTION_BYTES: Final = 2 << 20
"""Bounds of one transaction."""

_WAITING: Final = f"""
SELECT unindexed.node, change::text, (
    SELECT coalesce(sum(octet_length(data)), 0)::bigint FROM fusebackend.chunk
    WHERE chunk.volume = unindexed.volume AND chunk.node = unindexed.node
), EXISTS (
    SELECT FROM fusebackend.inode WHERE inode.volume = unindexed.volume AND inode.node = unindexed.node AND {REGULAR}
)
FROM fusebackend.unindexed
WHERE volume = %s AND NOT large AND changed_at NOT BETWEEN clock_timestamp() - make_interval(secs => %s::float8)
    AND clock_timestamp()
ORDER BY node LIMIT {PORTION_FILES}
"""
_TEXTS: Final = """
SELECT node, string_agg(data, ''::bytea ORDER BY idx) FROM fusebackend.chunk
WHERE volume = %s AND node = ANY(%s::bigint[]) GROUP BY node
"""
"""The chunks alone. A file with holes is no text, and yet may have an entry: a search reads the file before it finds
anything in it."""
_PUT: Final = """
INSERT INTO fusebackend.entry (volume, node, words) SELECT %s::int, * FROM unnest(%s::bigint[], %s::text[])
ON CONFLICT (volume, node) DO UPDATE SET words = excluded.words WHERE entry.words <> excluded.words
"""
_REMOVE: Final = "DELETE FROM fusebackend.entry WHERE volume = %s AND node = ANY(%s::bigint[])"

# A row that another transaction has locked stays: waiting for it could be a deadlock.
_SEEN: Final = """
WITH seen AS (
    SELECT node FROM fusebackend.unindexed JOIN unnest(%s::bigint[], %s::text[]) AS read (node, change) USING (node)
    WHERE volume = %s AND unindexed.change::text = read.change FOR UPDATE OF unindexed SKIP LOCKED
)
"""
_DONE: Final = _SEEN + "DELETE FROM fusebackend.unindexed USING seen WHERE volume = %s AND unindexed.node = seen.node"
_LARGE: Final = _SEEN + (
    "UPDATE fusebackend.unindexed SET large = true FROM seen WHERE volume = %s AND unindexed.node = seen.node"
)
_SORT_IN: Final = f"""
SELECT gin_clean_pending_list(oid) FROM pg_class WHERE oid = to_regclass('{INDEX}') AND pg_has_role(relowner, 'USAGE')
"""


class ChangedFile(NamedTuple):
    """A file to be indexed. `bytes` are in its chunks."""

    node: int
    change: str
    bytes: int
    is_file: bool


LEFT: Final = "EXISTS (SELECT FROM fusebackend.unindexed WHERE volume = %s AND NOT large)"


class SearchIndexer:
    """See the comment above the index. Its `work` is that of a `Worker` (`host_session.py`)."""

    def __init__(self, volume: int) -> None:
        self._volume = volume
        self._unsorted = False  # the index has gathered entries of this indexer

    def work(self, connection: Connection[Any], quiet_s: float | None = None) -> bool:
        """Index a portion, in one transaction of three round trips, which the pool rolls back if it fails. Returns
        whether there is more that has been left alone for long enough.

        Raises:
            psycopg.Error: nothing has been indexed.
        """
        lock = ("SELECT pg_try_advisory_xact_lock(%s::int, %s::int)", [INDEX_LOCK, self._volume])
        looked = (_WAITING, [self._volume, QUIET_S if quiet_s is None else quiet_s])
        _, locked, rows = send(connection, [BEGIN, lock, looked])
        waiting = [ChangedFile(*row) for row in rows] if locked == [(True,)] else []
        portion = next(by_size(waiting, _read_bytes, PORTION_FILES, PORTION_BYTES), [])
        if portion:
            self._unsorted = True
            send(connection, [*self._indexing(connection, portion), COMMIT])
            return True
        send(connection, [(_SORT_IN, []), COMMIT] if self._unsorted else [COMMIT])
        self._unsorted = False
        return False

    def _indexing(self, connection: Connection[Any], portion: list[ChangedFile]) -> list[Statement]:
        """The statements. Last come those that lock rows which writers of these files need."""
        large = [file for file in portion if file.is_file and file.bytes > INDEXED_BYTES]
        entries = self._entries(connection, [file.node for file in portion if file.is_file and file not in large])
        without = [file.node for file in portion if file.node not in entries]
        statements: list[Statement] = [
            (_PUT, [self._volume, list(entries), list(entries.values())]),
            (_REMOVE, [self._volume, without]),
        ]
        for statement, files in ((_LARGE, large), (_DONE, [file for file in portion if file not in large])):
            seen = [[file.node for file in files], [file.change for file in files]]
            statements.append((statement, [*seen, self._volume, self._volume]))
        return statements

    def _entries(self, connection: Connection[Any], nodes: list[int]) -> dict[int, str]:
        """The entries of nodes; none where the chunks are no text.

        The chunks are read after the rows of `unindexed`: a change in between is indexed now, and once more.
        """
        (rows,) = send(connection, [(_TEXTS, [self._volume, nodes])])
        return {node: words_of(text) for node, text in rows if trigram.is_text(text)}


def _read_bytes(file: ChangedFile) -> int:
    """How much of a file is read to index it."""
    return file.bytes if file.bytes <= INDEXED_BYTES else 0


def words_of(text: bytes) -> str:
    """An entry: the words that are long enough for the index."""
    return b" ".join(sorted(word for word in trigram.words(text) if len(word) >= trigram.TRIGRAM)).decode("utf-8")
