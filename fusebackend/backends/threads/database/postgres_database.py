"""`PostgresDatabase`: the checkpoint tables of LangGraph's PostgresSaver, read directly.

There a checkpoint is JSON with the values that are numbers, texts, truths or null; any other value is in
`checkpoint_blobs`, under its channel's version. A delta channel's snapshot leaves `true` in the JSON and is a blob.

One connection that can't write, and a second one when something is written. That something was committed, anywhere in
the cluster, shows in the server's snapshot; it is asked for as often as `NEWS_INTERVAL_S` says. A trigger that notifies
would be quicker and would change somebody else's schema, so there is none.
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, Final

from fusebackend.backends.threads.database.decode import loads, require
from fusebackend.backends.threads.database.postgres_statements import (
    ANCESTRY,
    APPEND,
    BLOBS,
    LINE,
    LINKS,
    NAMESPACES,
    THREADS,
)
from fusebackend.backends.threads.database.rows import (
    NOTHING,
    Append,
    Damaged,
    Database,
    Link,
    Listed,
    Mark,
    News,
    Place,
    Raw,
    Saved,
    Write,
    in_order,
)
from fusebackend.base.errors import oserror

NEWS_INTERVAL_S: Final = 0.05
"""The server is not asked for news more often."""

CONNECT_TIMEOUT_S: Final = 10

LOCK_TIMEOUT_MS: Final = 5000
"""How long writing waits for the agents' own writes."""

FIRST_PAGE: Final = 2
LAST_PAGE: Final = 512
"""Ancestors fetched at once: few first, for an old thread's checkpoints hold whole values."""

_NEEDED: Final = {
    "checkpoints": {"thread_id", "checkpoint_ns", "checkpoint_id", "parent_checkpoint_id", "checkpoint", "metadata"},
    "checkpoint_blobs": {"thread_id", "checkpoint_ns", "channel", "version", "type", "blob"},
    "checkpoint_writes": {"thread_id", "checkpoint_ns", "checkpoint_id", "task_id", "idx", "channel", "type", "blob"},
}


class PostgresDatabase(Database):
    """See the module's docstring.

    Args:
        dsn: libpq's words, or a `postgresql://` URI.
        clock: seconds that only grow.

    Raises:
        OSError: the server can't be reached, or the database has not the tables of a PostgresSaver.
        ModuleNotFoundError: psycopg or ormsgpack is missing.
    """

    blocking = True
    tells = False

    def __init__(self, dsn: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        require()
        self._psycopg = _psycopg()
        self._dsn = dsn
        self._clock = clock
        self._closed = False
        self._connection = self._connect(read_only=True)
        self._writer: Any = None
        try:
            self._has_task_path = "task_path" in self._check()
            self._asked_at = clock()
            self._snapshot = self._current_snapshot()
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """A search that was cancelled may still ask in its thread: it gets an error, and no new connection."""
        self._closed = True
        self._connection.close()
        if self._writer is not None:
            self._writer.close()

    def _check(self) -> set[str]:
        """The columns of `checkpoint_writes`. EINVAL when these are not the tables of a PostgresSaver."""
        columns: set[str] = set()
        for table, needed in _NEEDED.items():
            rows = self._ask(
                "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%(table)s) AND attnum > 0", table=table
            )
            columns = {row[0] for row in rows}
            if not columns:
                raise OSError(errno.EINVAL, f"no checkpoint database of LangGraph: there is no table '{table}'")
            if missing := sorted(needed - columns):
                raise OSError(
                    errno.EINVAL, f"no checkpoint database of LangGraph: the table '{table}' lacks '{missing[0]}'"
                )
        return columns

    # -- news --------------------------------------------------------------------------------------------------

    def news(self, *, now: bool = False) -> News | None:
        if not now and self._clock() - self._asked_at < NEWS_INTERVAL_S:
            return None
        self._asked_at = self._clock()
        snapshot = self._current_snapshot()
        if snapshot == self._snapshot:
            return None
        self._snapshot = snapshot
        return News(True)

    def _current_snapshot(self) -> str:
        """Which transactions have ended: it is another one after each commit."""
        return str(self._ask("SELECT pg_current_snapshot()::text")[0][0])

    # -- lists -------------------------------------------------------------------------------------------------

    def threads(self) -> list[tuple[str, str | None]]:
        return self._ask(THREADS)

    def has_thread(self, thread: str) -> bool:
        return bool(self._ask("SELECT 1 FROM checkpoints WHERE thread_id = %(thread)s LIMIT 1", thread=thread))

    def namespaces(self, thread: str) -> list[str]:
        return [row[0] for row in self._ask(NAMESPACES, thread=thread)]

    def marks(self, place: Place) -> dict[str, Mark]:
        rows = self._ask(f"SELECT checkpoint_id, xmin::text FROM checkpoints WHERE {LINE}", **place._asdict())
        marks = {checkpoint: Mark(row) for checkpoint, row in rows}
        statement = (
            "SELECT checkpoint_id, count(*), max(xmin::text::bigint) FROM checkpoint_writes "
            f"WHERE {LINE} GROUP BY checkpoint_id"
        )
        for checkpoint, count, last in self._ask(statement, **place._asdict()):
            if checkpoint in marks:
                marks[checkpoint] = Mark(marks[checkpoint].row, count, last)
        return marks

    def listed(self, place: Place, checkpoints: Sequence[str]) -> list[Listed]:
        rows = self._ask(
            "SELECT checkpoint_id, metadata ->> 'step', metadata ->> 'source', checkpoint ->> 'ts' FROM checkpoints "
            f"WHERE {LINE} AND checkpoint_id = ANY(%(checkpoints)s)",
            **place._asdict(),
            checkpoints=list(checkpoints),
        )
        return [Listed(checkpoint, _number(step), source, ts) for checkpoint, step, source, ts in rows]

    def newest(self, place: Place) -> str | None:
        found = self._ask(f"SELECT max(checkpoint_id) FROM checkpoints WHERE {LINE}", **place._asdict())[0][0]
        return None if found is None else str(found)

    # -- contents ----------------------------------------------------------------------------------------------

    def ancestry(self, place: Place, checkpoint: str, channel: str) -> Generator[Link, None, None]:
        met: set[str] = set()
        limit, following = FIRST_PAGE, checkpoint
        while True:
            rows = self._ask(ANCESTRY, **place._asdict(), checkpoint=following, channel=channel, limit=limit)
            for row in rows:
                if row[0] in met:
                    if row[0] != following:
                        return  # a checkpoint that was stored anew below its own descendant
                    continue  # a page begins with the last one of the page before
                met.add(row[0])
                yield _link(row, channel)
            if len(rows) < limit:
                return
            following, limit = rows[-1][0], min(limit * 4, LAST_PAGE)

    def links(self, place: Place, checkpoints: Sequence[str], channel: str) -> list[Link]:
        links = []
        for row in self._ask(LINKS, **place._asdict(), checkpoints=list(checkpoints), channel=channel):
            with contextlib.suppress(Damaged):
                links.append(_link(row, channel))
        return links

    def writes(self, place: Place, checkpoints: Sequence[str], channel: str | None = None) -> dict[str, list[Write]]:
        only = "" if channel is None else " AND channel = %(channel)s"
        rows = self._ask(
            f"{self._select_writes()} WHERE {LINE} AND checkpoint_id = ANY(%(checkpoints)s){only}",
            **place._asdict(),
            checkpoints=list(checkpoints),
            channel=channel,
        )
        return in_order(rows)

    def writes_since(self, place: Place, checkpoint: str, order: int) -> list[Write]:
        rows = self._ask(
            f"{self._select_writes()} WHERE {LINE} AND checkpoint_id = %(checkpoint)s "
            "AND xmin::text::bigint > %(order)s",
            **place._asdict(),
            checkpoint=checkpoint,
            order=order,
        )
        return in_order(rows).get(checkpoint, [])

    def _select_writes(self) -> str:
        """Transaction ids tell which of two writes came first, until they wrap around after four billion."""
        task_path = "task_path" if self._has_task_path else "''"
        return (
            f"SELECT checkpoint_id, {task_path}, task_id::text, idx, channel, type, blob, xmin::text::bigint "
            "FROM checkpoint_writes"
        )

    def saved(self, place: Place, checkpoint: str) -> Saved:
        line = place._asdict()
        rows = self._ask(
            "SELECT parent_checkpoint_id, checkpoint, metadata FROM checkpoints "
            f"WHERE {LINE} AND checkpoint_id = %(checkpoint)s",
            **line,
            checkpoint=checkpoint,
        )
        if not rows:
            raise oserror(errno.ENOENT)
        parent, document, metadata = rows[0]
        if not isinstance(document, Mapping):
            raise Damaged(f"checkpoint {checkpoint}: no mapping but {type(document).__name__}")
        values = dict(_mapping(document, "channel_values"))
        for channel, kind, blob in self._ask(BLOBS, **line, checkpoint=checkpoint):
            values[channel] = _value(checkpoint, channel, Raw(kind, blob))
        ts = document.get("ts")
        return Saved(
            checkpoint,
            parent or None,
            ts if isinstance(ts, str) else None,
            values,
            _mapping(document, "channel_versions"),
            _mapping(document, "versions_seen"),
            metadata if isinstance(metadata, Mapping) else {},
        )

    # -- writing -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[Append]:
        psycopg = self._psycopg
        try:
            if self._writer is None or self._writer.closed:
                self._writer = self._connect(read_only=False)
            with self._writer.transaction():
                self._writer.execute(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}")
                # Savers insert into these tables, in this order when into both; nothing that reads is kept waiting.
                self._writer.execute("LOCK TABLE checkpoints, checkpoint_writes IN SHARE ROW EXCLUSIVE MODE")
                yield self._append
        except psycopg.errors.LockNotAvailable:
            raise OSError(errno.EBUSY, "others keep writing to the checkpoint database") from None
        except (psycopg.errors.InsufficientPrivilege, psycopg.errors.ReadOnlySqlTransaction) as error:
            raise OSError(errno.EROFS, f"the checkpoint database can't be written to: {_line(error)}") from None
        except psycopg.Error as error:
            raise OSError(errno.EIO, f"the checkpoint database can't be written to: {_line(error)}") from None

    def _append(self, place: Place, checkpoint: str, channel: str, value: Raw) -> None:
        """After those that are there: savers number the writes of a task from 0 and never replace one."""
        self._writer.execute(
            APPEND,
            {**place._asdict(), "checkpoint": checkpoint, "channel": channel, "kind": value.kind, "data": value.data},
        )

    # -- statements --------------------------------------------------------------------------------------------

    def _connect(self, *, read_only: bool) -> Any:
        psycopg = self._psycopg
        try:
            connection = psycopg.connect(
                self._dsn,
                autocommit=True,
                connect_timeout=CONNECT_TIMEOUT_S,
                application_name="fusebackend",
                prepare_threshold=None,  # a plan made once knows nothing of how long a chain is
            )
            if read_only:
                connection.execute("SET default_transaction_read_only = on")
        except psycopg.Error as error:
            raise OSError(errno.EIO, f"PostgreSQL can't be reached: {_line(error)}") from None
        if self._closed:
            connection.close()
            raise OSError(errno.EIO, "the checkpoint database was closed")
        return connection

    def _ask(self, statement: str, **values: Any) -> list[Any]:
        """All rows. A connection that was lost is made anew, once."""
        psycopg = self._psycopg
        for attempt in (1, 2):
            try:
                if self._connection.closed:
                    self._connection = self._connect(read_only=True)
                return list(self._connection.execute(statement, values).fetchall())
            except psycopg.Error as error:
                if attempt == 1 and self._connection.closed and not self._closed:
                    continue
                raise OSError(errno.EIO, f"the checkpoint database can't be read: {_line(error)}") from None
        raise AssertionError("the second attempt returns or raises")


def _psycopg() -> Any:
    try:
        import psycopg
    except ImportError:
        raise ModuleNotFoundError(
            "threads+postgres: needs psycopg: pip install 'fusebackend[postgres]'", name="psycopg"
        ) from None
    return psycopg


def _line(error: Exception) -> str:
    """An error of the server's on one line."""
    return " ".join(str(error).split()) or type(error).__name__


def _link(row: Any, channel: str) -> Link:
    found, parent, version, inline, kind, blob = row
    stored: Any = NOTHING if inline is None else inline
    if kind is not None:
        stored = _value(found, channel, Raw(kind, blob))
    return Link(found, parent or None, version is not None, stored)


def _value(checkpoint: str, channel: str, raw: Raw) -> Any:
    try:
        return loads(raw)
    except Damaged as error:
        raise Damaged(f"checkpoint {checkpoint}: '{channel}': {error}") from None


def _mapping(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = document.get(key)
    return found if isinstance(found, Mapping) else {}


def _number(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None
