"""`SearchIndexer`: brings the entries of a PostgreSQL volume up to date, in a thread beside those who use it.

Which files it has to look at is in the table `unindexed` (`index_schema.py`). Every host that has the volume open has
an indexer; at any moment one of them works, which is the one that has got an advisory lock, and each portion of the
work is one transaction. A row leaves `unindexed` only as the change that was read: nobody who writes to a file
meanwhile waits for more than a commit, and what he writes is looked at again. What is changed all the time (a log)
waits until it has been left alone for `QUIET_S`.

Nothing is missed in a crash, or when there is no indexer: what has no entry is read by every search.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fusebackend.backends.postgres.batch import Statement, send
from fusebackend.backends.postgres.search.entry_walk import REGULAR
from fusebackend.backends.postgres.search.index_schema import INDEX, INDEX_LOCK, INDEXED_BYTES
from fusebackend.backends.postgres.statements import BEGIN, COMMIT
from fusebackend.volumes import trigram
from fusebackend.volumes.chunks import CHUNK_BYTES

if TYPE_CHECKING:
    from psycopg import Connection

    from fusebackend.backends.postgres.connections import Connections

log = logging.getLogger(__name__)

QUIET_S = 2.0
"""A file that was changed more recently is not indexed yet."""

PORTION_FILES: Final = 256
PORTION_BYTES: Final = 2 << 20
"""Bounds of one transaction, which takes some 50 ms of ours and as long again of the server's."""

LOOK_S = 5.0
"""How often it looks whether anything has been changed, or whether it is its turn."""

FAILED_S = 10.0
"""How long nothing is tried after it failed."""

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
_CHUNKS: Final = """
SELECT node, idx, data FROM fusebackend.chunk WHERE volume = %s AND node = ANY(%s::bigint[]) ORDER BY node, idx
"""
_PUT: Final = """
INSERT INTO fusebackend.entry (volume, node, words) SELECT %s::int, * FROM unnest(%s::bigint[], %s::text[])
ON CONFLICT (volume, node) DO UPDATE SET words = excluded.words WHERE entry.words <> excluded.words
"""
_REMOVE: Final = "DELETE FROM fusebackend.entry WHERE volume = %s AND node = ANY(%s::bigint[])"

# What somebody else has in hand just now stays: waiting for him could be waiting in a circle.
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
_LEFT: Final = "SELECT EXISTS (SELECT FROM fusebackend.unindexed WHERE volume = %s AND NOT large)"


class Changed(NamedTuple):
    """A file that waits. `bytes` are in its chunks."""

    node: int
    change: str
    bytes: int
    is_file: bool


class SearchIndexer:
    """See the module's docstring. Owns its thread, and has a connection only while it works."""

    def __init__(self, connections: Connections, volume: int) -> None:
        self._connections = connections
        self._volume = volume
        self._unsorted = False  # the index has gathered some of what was put into it here
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fusebackend-index", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread, after the portion it is at. To be called before the connections are closed."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        failing = False
        pause_s = 0.0
        while not self._stopping.wait(pause_s):
            begun = time.monotonic()
            try:
                more_s = self.work()
                failing = False
            except Exception as error:  # the thread goes on, and what it has not done is found without it
                if not failing:
                    log.warning("the search index of volume %d can't be brought up to date: %s", self._volume, error)
                failing = True
                more_s = FAILED_S
            # As long as it has worked, so that it takes half of a processor at the most.
            pause_s = LOOK_S if more_s is None else max(more_s, time.monotonic() - begun)

    def work(self, quiet_s: float | None = None) -> float | None:
        """Index a portion; gives the seconds after which there may be more to do, None when nothing is left.

        Raises:
            OSError: nothing has been indexed.
        """
        quiet_s = QUIET_S if quiet_s is None else quiet_s
        return self._connections.run(lambda connection: self._work(connection, quiet_s))

    def _work(self, connection: Connection[Any], quiet_s: float) -> float | None:
        """One transaction of three round trips, which the pool rolls back if it fails."""
        lock = ("SELECT pg_try_advisory_xact_lock(%s::int, %s::int)", [INDEX_LOCK, self._volume])
        waiting = (_WAITING, [self._volume, quiet_s])
        _, locked, rows, left = send(connection, [BEGIN, lock, waiting, (_LEFT, [self._volume])])
        if locked == [(False,)]:
            send(connection, [COMMIT])
            return LOOK_S
        portion = _portion([Changed(*row) for row in rows])
        if portion:
            self._unsorted = True
            send(connection, [*self._indexing(connection, portion), COMMIT])
            return 0.0
        send(connection, [(_SORT_IN, []), COMMIT] if self._unsorted else [COMMIT])
        self._unsorted = False
        return quiet_s if left == [(True,)] else None

    def _indexing(self, connection: Connection[Any], portion: list[Changed]) -> list[Statement]:
        """What is to be written. Last comes what others may wait for: who changes one of these files just now."""
        large = [file for file in portion if file.is_file and file.bytes > INDEXED_BYTES]
        entries = self._entries(connection, [file.node for file in portion if file.is_file and file not in large])
        without = [file.node for file in portion if file.node not in entries]
        statements: list[Statement] = []
        if entries:
            statements.append((_PUT, [self._volume, list(entries), list(entries.values())]))
        if without:
            statements.append((_REMOVE, [self._volume, without]))
        for statement, files in ((_LARGE, large), (_DONE, [file for file in portion if file not in large])):
            if files:
                seen = [[file.node for file in files], [file.change for file in files]]
                statements.append((statement, [*seen, self._volume, self._volume]))
        return statements

    def _entries(self, connection: Connection[Any], nodes: list[int]) -> dict[int, str]:
        """What is to be known of each of these; a file that no search may find has none.

        It is read after the changes that it is known by: what came in between is indexed now, and once more.
        """
        if not nodes:
            return {}
        chunks: dict[int, list[tuple[int, bytes]]] = {}
        (rows,) = send(connection, [(_CHUNKS, [self._volume, nodes])])
        for node, index, data in rows:
            chunks.setdefault(node, []).append((index, data))
        texts = ((node, text_of(found)) for node, found in chunks.items())
        return {node: words_of(text) for node, text in texts if text is not None}


def _portion(waiting: list[Changed]) -> list[Changed]:
    """The first of them, as many as may be in memory."""
    portion: list[Changed] = []
    size = 0
    for file in waiting:
        size += file.bytes if file.bytes <= INDEXED_BYTES else 0
        if portion and size > PORTION_BYTES:
            break
        portion.append(file)
    return portion


def text_of(chunks: list[tuple[int, bytes]]) -> bytes | None:
    """The text that is in these chunks, in order; None for what is none, as `text.grep_lines` defines it.

    The file may be longer, by zeros, and is no text as long as it is. It may become one by being cut, which changes no
    chunk, so that is not looked at here.
    """
    last = len(chunks) - 1
    if any(index != place or (place < last and len(data) < CHUNK_BYTES) for place, (index, data) in enumerate(chunks)):
        return None  # zeros between them
    text = b"".join(data for _, data in chunks)
    if b"\0" in text:
        return None
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return text


def words_of(text: bytes) -> str:
    """An entry: the words of which a search may ask for a part."""
    return b" ".join(sorted(word for word in trigram.words(text) if len(word) >= trigram.TRIGRAM)).decode("utf-8")
