"""`PostgresDatabase`: the checkpoint tables of LangGraph's PostgresSaver, read directly.

There a checkpoint is JSON with the values that are numbers, texts, truths or null; any other value is in
`checkpoint_blobs`, under its channel's version. A delta channel's snapshot leaves `true` in the JSON and is a blob.

One connection reads; a second one writes. Neither sets anything beyond a transaction, nor prepares a statement: a
transaction pooler would leave that to others. A commit anywhere in the cluster changes the server's snapshot, which
is queried every `NEWS_INTERVAL_S` at most. A trigger that notifies would be quicker, but would change the schema of
another program.
"""

from __future__ import annotations

import contextlib
import errno
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from psycopg import Connection

from fusebackend.backends.threads.database.rows import NOTHING, Link, News, Place, Raw
from fusebackend.backends.threads.database.sql import (
    LINE,
    LOST,
    Execute,
    SaverDialect,
    SaverTables,
    require_versions,
    value_of,
)
from fusebackend.backends.threads.database.values import require
from fusebackend.base.waiting import will_wait
from fusebackend.databases.postgres import Connections, connect, ping, translate_errors

NEWS_INTERVAL_S: Final = 0.05
"""The server is not queried for news more often."""

CONNECTIONS: Final = 2
"""One that reads, also while another one writes."""

LOCK_TIMEOUT_MS: Final = 5000
"""How long a write waits for the agents' own writes."""


def _placeholders(statement: str) -> str:
    return re.sub(r"(?<!:):(\w+)", r"%(\1)s", statement)


_OF_LINE: Final = "c.thread_id = :thread AND c.checkpoint_ns = :namespace"

_LINKS: Final = f"""
SELECT c.checkpoint_id, c.parent_checkpoint_id,
    CASE jsonb_typeof(c.checkpoint -> 'ts') WHEN 'string' THEN c.checkpoint ->> 'ts' END,
    c.checkpoint -> 'channel_versions', CAST(c.checkpoint -> 'channel_values' -> :channel AS text),
    jsonb_typeof(c.checkpoint -> 'pruned') = 'array' AND c.checkpoint -> 'pruned' ? :channel, b.type, b.blob
FROM checkpoints c LEFT JOIN checkpoint_blobs b
ON b.thread_id = :thread AND b.checkpoint_ns = :namespace AND b.channel = :channel
    AND b.version = c.checkpoint -> 'channel_versions' ->> :channel AND b.type <> 'empty'
WHERE {_OF_LINE} AND c.checkpoint_id = ANY(:checkpoints)
"""

_VALUES_BESIDE: Final = f"""
SELECT b.channel, b.type, b.blob
FROM checkpoints c, jsonb_each_text(
    CASE jsonb_typeof(c.checkpoint -> 'channel_versions') WHEN 'object' THEN c.checkpoint -> 'channel_versions' END
) AS v(channel, version)
JOIN checkpoint_blobs b ON b.thread_id = :thread AND b.checkpoint_ns = :namespace
    AND b.channel = v.channel AND b.version = v.version AND b.type <> 'empty'
WHERE {_OF_LINE} AND c.checkpoint_id = :checkpoint
"""


class PostgresDatabase(SaverTables):
    """See the module's docstring.

    Args:
        dsn: libpq's words, or a `postgresql://` URI.
        clock: seconds that only grow.

    Raises:
        OSError: the server can't be reached, or the database has not the tables of a PostgresSaver.
        ModuleNotFoundError: ormsgpack is missing.
    """

    tells = False

    dialect = SaverDialect(
        tables={
            "checkpoints": "thread_id checkpoint_ns checkpoint_id parent_checkpoint_id checkpoint metadata",
            "checkpoint_blobs": "thread_id checkpoint_ns channel version type blob",
            "checkpoint_writes": "thread_id checkpoint_ns checkpoint_id task_id idx channel type blob",
        },
        writes="checkpoint_writes",
        value="blob",
        order="xmin::text::bigint",  # the transaction's id: grows with time, until it wraps around after four billion
        row="xmin::text",
        is_text="",
        among="checkpoint_id = ANY(:checkpoints)",
        links=_LINKS,
        document="'jsonb', checkpoint",
        placeholders=_placeholders,
        size="pg_column_size({})",
        contains="position('{0}'::bytea IN {1}) > 0",
        changed="checkpoint = CAST(:document AS jsonb), metadata = CAST(:metadata AS jsonb)",
        values_beside=_VALUES_BESIDE,
        sizes_beside="SELECT channel, version, CASE type WHEN 'empty' THEN 0 ELSE pg_column_size(blob) END "
        f"FROM checkpoint_blobs WHERE {LINE}",
        remove_beside=f"DELETE FROM checkpoint_blobs WHERE {LINE} AND channel = :channel AND version = :version",
        # Savers insert into these tables, in this order when into both; no reader waits for this.
        lock_writers="LOCK TABLE checkpoints, checkpoint_writes IN SHARE ROW EXCLUSIVE MODE",
        # Two at once would lock the same rows in another order.
        lock_prunes="SELECT pg_advisory_xact_lock(hashtext('fusebackend threads prune'))",
    )

    def __init__(self, dsn: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        require()
        super().__init__("the checkpoint database", clock)
        self._dsn = dsn
        self._connections = Connections(dsn, CONNECTIONS)
        try:
            self.identity = self._connections.run(_identity)
            self._prepare("it", self._columns)
            self._asked_at = clock()
            self._snapshot = self._current_snapshot()
        except BaseException:
            self._connections.close()
            raise

    def close(self) -> None:
        """A cancelled search may still query in its thread: it gets an error, and no new connection."""
        self._connections.close()

    def _columns(self, table: str) -> set[str]:
        columns = "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%(table)s) AND attnum > 0"
        return {row[0] for row in self._ask(columns, table=table)}

    # -- news --------------------------------------------------------------------------------------------------

    def news(self, *, now: bool = False) -> News | None:
        if not now and self._clock() - self._asked_at < NEWS_INTERVAL_S:
            return None
        will_wait()
        self._asked_at = self._clock()
        snapshot = self._current_snapshot()
        if snapshot == self._snapshot:
            return None
        self._snapshot = snapshot
        return News(True)

    def _current_snapshot(self) -> str:
        """The transactions that have ended: another snapshot after each commit."""
        return str(self._ask("SELECT pg_current_snapshot()::text")[0][0])

    # -- contents ----------------------------------------------------------------------------------------------

    def _link(self, row: Any, channel: str) -> Link:
        """A checkpoint that is no mapping has no channels: its descendants are read past it."""
        found, parent, ts, versions, inline, is_lost, kind, blob = row
        require_versions(found, versions)
        stored: Any = LOST if is_lost else NOTHING
        if inline is not None:  # as text: a null of JSON is a value
            stored = json.loads(inline)
        if kind is not None:
            stored = value_of(found, channel, Raw(kind, blob))
        return Link(found, parent or None, ts, channel in (versions or ()), stored)

    # -- writing -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def changing(self) -> Iterator[Execute]:
        translated = translate_errors("the checkpoint database can't be written to", _errno_of_writing)
        with translated, self._connections.leased(ping) as connection, connection.transaction():

            def execute(statement: str, **values: Any) -> list[Any]:
                cursor = connection.execute(statement, values)
                return cursor.fetchall() if cursor.description else []

            execute(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}")
            yield execute

    def again(self) -> PostgresDatabase:
        return PostgresDatabase(self._dsn)

    def vacuum(self) -> None:
        translated = translate_errors("the checkpoint database can't be compacted", _errno_of_writing)
        with translated, contextlib.closing(connect(self._dsn)) as connection:
            connection.execute(f"VACUUM FULL {', '.join(self.dialect.tables)}")

    # -- statements --------------------------------------------------------------------------------------------

    def _ask(self, statement: str, **values: Any) -> list[Any]:
        try:
            return self._connections.run(lambda connection: list(connection.execute(statement, values).fetchall()))
        except OSError as error:
            raise OSError(errno.EIO, f"the checkpoint database can't be read: {error.strerror}") from error

    def _ask_among(self, statement: str, place: Place, checkpoints: Sequence[str], **values: Any) -> list[Any]:
        return self._ask(statement, **place._asdict(), checkpoints=list(checkpoints), **values)


def _identity(connection: Connection[Any]) -> str:
    server = connection.info
    return f"postgres:{server.host}:{server.port}/{server.dbname}"


def _errno_of_writing(number: int) -> int:
    """EROFS where the role may not write."""
    return errno.EROFS if number == errno.EACCES else number
