"""`SqliteDatabase`: a checkpoint database of LangGraph's SqliteSaver, read directly.

The file is opened read-only; a second connection is made when something is written. Commits of others are noticed by
`PRAGMA data_version`, which costs some microseconds, and told apart by row ids: what was added has higher ones. That
something was deleted shows in the number of rows, or in another row under the highest id; counting is done as often as
takes a twentieth of the time.

A file in WAL mode that nobody has open can't be opened by who may not write to its directory. It is then read as one
that does not change, and opened anew when it does.
"""

from __future__ import annotations

import contextlib
import errno
import json
import sqlite3
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from fusebackend.backends.threads.database.checkpoint_names import time_ns_of
from fusebackend.backends.threads.database.decode import loads, require
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
    portions,
)
from fusebackend.backends.threads.database.sqlite_statements import ANCESTRY, APPEND, IS_TEXT, LINE, NAMESPACES, THREADS
from fusebackend.base.errors import oserror
from fusebackend.databases.sqlite_file import Frozen, bound, connect, frozen, open_file, primary
from fusebackend.volumes.damage import DamageLog

COUNTING_SHARE: Final = 1 / 20
"""Of the time, at most, that goes into counting rows."""

IDS_AT_ONCE: Final = 500
"""In one statement."""

_NEEDED: Final = {
    "checkpoints": {"thread_id", "checkpoint_ns", "checkpoint_id", "parent_checkpoint_id", "type", "checkpoint",
                    "metadata"},
    "writes": {"thread_id", "checkpoint_ns", "checkpoint_id", "task_id", "idx", "channel", "type", "value"},
}  # fmt: skip


_IDS: Final = {"checkpoints": ("thread_id",)}
"""Columns that an index begins with."""

_IS_ID: Final = IS_TEXT.format("checkpoint_id")
_WRITE_TYPES: Final = (str, str, str, int, str)
"""Checkpoint, path of the task, task, place and channel."""


class _Seen(NamedTuple):
    """How far a table was read."""

    rows: int
    last: int
    """The highest row id."""
    key: object
    """What row that is."""


class SqliteDatabase(Database):
    """See the module's docstring.

    Raises:
        OSError: the file is not there, is no SQLite file, or has not the tables of a SqliteSaver.
        ModuleNotFoundError: ormsgpack is missing.
    """

    blocking = False
    tells = True

    def __init__(self, path: str) -> None:
        require()
        self.path = path
        self._told = DamageLog(f"the checkpoint database {path}")
        self._connection, self._frozen = connect(path)
        self._writer: sqlite3.Connection | None = None
        try:
            self._begin()
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        self._connection.close()
        if self._writer is not None:
            self._writer.close()

    def _begin(self) -> None:
        self._has_task_path = "task_path" in self._check()
        self._version = self._data_version()
        self._counted_at, self._count_s = time.monotonic(), 0.0
        self._recount = False
        self._seen = {table: self._look(table) for table in _NEEDED}

    def _check(self) -> set[str]:
        """The columns of `writes`. EINVAL when this is something else than a checkpoint database."""
        columns: set[str] = set()
        for table, needed in _NEEDED.items():
            try:
                columns = {row[1] for row in self._connection.execute(f"PRAGMA table_info({table})")}
            except sqlite3.DatabaseError as error:
                raise OSError(errno.EINVAL, f"'{self.path}' can't be read as an SQLite database: {error}") from None
            if not columns:
                raise OSError(
                    errno.EINVAL, f"'{self.path}' is no checkpoint database of LangGraph: it has no table '{table}'"
                )
            if missing := sorted(needed - columns):
                raise OSError(
                    errno.EINVAL,
                    f"'{self.path}' is no checkpoint database of LangGraph: its table '{table}' lacks '{missing[0]}'",
                )
        return columns

    # -- news --------------------------------------------------------------------------------------------------

    def news(self, *, now: bool = False) -> News | None:
        if self._frozen is not None:
            return self._thaw(self._frozen)
        version = self._data_version()
        if version == self._version and not (self._recount and self._may_count()):
            return None
        with self._snapshot():
            everything, places = self._compare()
        self._version = version
        if everything:
            return News(True)
        return News(False, frozenset(places)) if places else None

    def _thaw(self, before: Frozen) -> News | None:
        """Of a file that was opened as one that does not change: has it changed?"""
        if frozen(self.path) == before:
            return None
        connection, self._frozen = connect(self.path)
        self._connection.close()
        self._connection = connection
        self._begin()
        return News(True)

    def _compare(self) -> tuple[bool, set[Place]]:
        """Has anything been deleted or replaced; and where was something added."""
        count = self._may_count()
        everything, places, now = False, set(), {}
        for table, seen in self._seen.items():
            added = self._ask(f"SELECT thread_id, checkpoint_ns FROM {table} WHERE rowid > ?", (seen.last,))
            places |= {Place(*ids) for ids in added if all(isinstance(id_, str) for id_ in ids)}
            expected = seen.rows + len(added)
            now[table] = self._look(table, None if count else expected)
            everything |= now[table].rows != expected or self._key(table, seen.last) != seen.key
        self._seen, self._recount = now, not count
        return everything, places

    @contextlib.contextmanager
    def _snapshot(self) -> Iterator[None]:
        """The database as it is at one moment."""
        self._ask("BEGIN")
        try:
            yield
        finally:
            self._ask("COMMIT")

    def _data_version(self) -> int:
        return int(self._ask("PRAGMA data_version")[0][0])

    def _may_count(self) -> bool:
        return time.monotonic() - self._counted_at >= self._count_s / COUNTING_SHARE

    def _look(self, table: str, rows: int | None = None) -> _Seen:
        if rows is None:
            start = time.monotonic()
            rows = int(self._ask(f"SELECT count(*) FROM {table}")[0][0])
            self._counted_at = time.monotonic()
            self._count_s = self._counted_at - start
        last = self._ask(f"SELECT max(rowid) FROM {table}")[0][0] or 0
        return _Seen(rows, last, self._key(table, last))

    def _key(self, table: str, rowid: int) -> object:
        extra = ", task_id, idx" if table == "writes" else ""
        statement = f"SELECT thread_id, checkpoint_ns, checkpoint_id{extra} FROM {table} WHERE rowid = ?"
        return self._ask(statement, (rowid,))

    # -- lists -------------------------------------------------------------------------------------------------

    def threads(self) -> list[tuple[str, str | None]]:
        for table, columns in _IDS.items():
            for column in columns:
                # Asked of the indexes: nothing is read where there are none.
                odd = self._ask(f"SELECT rowid FROM {table} WHERE {column} >= x'' OR {column} < '' LIMIT 1")
                if odd:
                    self._told.tell(f"row {odd[0][0]} of the table '{table}' has a {column} that is no text; not shown")
        return self._ask(THREADS)

    def has_thread(self, thread: str) -> bool:
        return bool(self._ask("SELECT 1 FROM checkpoints WHERE thread_id = CAST(? AS TEXT) LIMIT 1", (thread,)))

    def namespaces(self, thread: str) -> list[str]:
        return [row[0] for row in self._ask(NAMESPACES, (thread,))]

    def listed(self, place: Place, checkpoints: Sequence[str]) -> list[Listed]:
        rows = []
        for some in portions(checkpoints, IDS_AT_ONCE):
            statement = (
                f"SELECT checkpoint_id, metadata FROM checkpoints WHERE {LINE} AND checkpoint_id IN {_many(some)}"
            )
            rows += self._ask(statement, (*place, *some))
        return [self._listed(place, checkpoint, metadata) for checkpoint, metadata in rows]

    def _listed(self, place: Place, checkpoint: str, metadata: bytes | str | None) -> Listed:
        found = _metadata(metadata)
        step, source = found.get("step"), found.get("source")
        ts = None
        if time_ns_of(checkpoint) is None:  # an id of somebody else's making: only the checkpoint knows when it was
            with contextlib.suppress(Damaged):
                ts = self.saved(place, checkpoint).ts
        return Listed(
            checkpoint, step if isinstance(step, int) else None, source if isinstance(source, str) else None, ts
        )

    def marks(self, place: Place) -> dict[str, Mark]:
        # Both are answered from the tables' indexes alone.
        marks: dict[str, Mark] = {}
        for checkpoint, row in self._ask(f"SELECT checkpoint_id, rowid FROM checkpoints WHERE {LINE}", place):
            if isinstance(checkpoint, str):
                marks[checkpoint] = Mark(row)
            else:
                self._told.tell(f"row {row} of the table 'checkpoints' has a checkpoint_id that is no text; not shown")
        statement = f"SELECT checkpoint_id, count(*), max(rowid) FROM writes WHERE {LINE} GROUP BY checkpoint_id"
        for checkpoint, count, last in self._ask(statement, place):
            if checkpoint in marks:
                marks[checkpoint] = Mark(marks[checkpoint].row, count, last)
        return marks

    def newest(self, place: Place) -> str | None:
        found = self._ask(f"SELECT max(checkpoint_id) FROM checkpoints WHERE {LINE} AND {_IS_ID}", place)[0][0]
        return None if found is None else str(found)

    # -- contents ----------------------------------------------------------------------------------------------

    def ancestry(self, place: Place, checkpoint: str, channel: str) -> Generator[Link, None, None]:
        met: set[str] = set()
        with contextlib.closing(self._start(ANCESTRY, (*place, checkpoint))) as cursor:
            while (row := self._next(cursor)) is not None:
                found, parent, kind, blob = row
                if found in met:
                    return  # a checkpoint that was stored anew below its own descendant
                met.add(found)
                yield _link(found, parent, Raw(kind, blob), channel)

    def links(self, place: Place, checkpoints: Sequence[str], channel: str) -> list[Link]:
        statement = (
            "SELECT checkpoint_id, parent_checkpoint_id, type, checkpoint FROM checkpoints "
            f"WHERE {LINE} AND checkpoint_id IN {_many(checkpoints)}"
        )
        links = []
        for found, parent, kind, blob in self._ask(statement, (*place, *checkpoints)):
            with contextlib.suppress(Damaged):
                links.append(_link(found, parent, Raw(kind, blob), channel))
        return links

    def writes(self, place: Place, checkpoints: Sequence[str], channel: str | None = None) -> dict[str, list[Write]]:
        only = "" if channel is None else " AND channel = ?"
        rows = []
        for some in portions(checkpoints, IDS_AT_ONCE):
            values = (*place, *some, *([] if channel is None else [channel]))
            rows += self._ask(f"{self._select_writes()} WHERE {LINE} AND checkpoint_id IN {_many(some)}{only}", values)
        return in_order(self._sound(rows))

    def writes_since(self, place: Place, checkpoint: str, order: int) -> list[Write]:
        statement = f"{self._select_writes()} WHERE {LINE} AND checkpoint_id = CAST(? AS TEXT) AND rowid > ?"
        return in_order(self._sound(self._ask(statement, (*place, checkpoint, order)))).get(checkpoint, [])

    def _sound(self, rows: list[Any]) -> list[Any]:
        """The writes that can be one, by their ids and places: LangGraph could not apply another."""
        sound = [row for row in rows if tuple(map(type, row[:5])) == _WRITE_TYPES]
        if len(sound) < len(rows):
            odd = next(row for row in rows if tuple(map(type, row[:5])) != _WRITE_TYPES)
            self._told.tell(f"row {odd[7]} of the table 'writes' has ids that are no text or a place that is no number")
        return sound

    def _select_writes(self) -> str:
        task_path = "task_path" if self._has_task_path else "''"
        return f"SELECT checkpoint_id, {task_path}, task_id, idx, channel, type, value, rowid FROM writes"

    def saved(self, place: Place, checkpoint: str) -> Saved:
        rows = self._ask(
            "SELECT parent_checkpoint_id, type, checkpoint, metadata FROM checkpoints "
            f"WHERE {LINE} AND checkpoint_id = CAST(? AS TEXT)",
            (*place, checkpoint),
        )
        if not rows:
            raise oserror(errno.ENOENT)
        parent, kind, blob, metadata = rows[0]
        _require_id(checkpoint, parent)
        document = _document(checkpoint, Raw(kind, blob))
        ts = document.get("ts")
        return Saved(
            checkpoint,
            parent or None,
            ts if isinstance(ts, str) else None,
            _mapping(document, "channel_values"),
            _mapping(document, "channel_versions"),
            _mapping(document, "versions_seen"),
            _metadata(metadata),
        )

    # -- writing -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[Append]:
        try:
            if self._writer is None:
                self._writer = open_file(self.path, "mode=rw")
            self._writer.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            number = errno.EBUSY if primary(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) else errno.EROFS
            raise OSError(number, f"'{self.path}' can't be written to: {error}") from None
        try:
            yield self._append
            self._writer.execute("COMMIT")
        except sqlite3.Error as error:
            raise OSError(errno.EIO, f"'{self.path}' can't be written to: {error}") from None
        finally:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")

    def _append(self, place: Place, checkpoint: str, channel: str, value: Raw) -> None:
        """After those that are there: savers number the writes of a task from 0 and never replace one."""
        assert self._writer is not None
        self._writer.execute(
            APPEND,
            (*map(bound, place), checkpoint, channel, value.kind, value.data),
        )

    # -- statements --------------------------------------------------------------------------------------------

    def _ask(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        try:
            return self._connection.execute(statement, tuple(map(bound, values))).fetchall()
        except sqlite3.Error as error:
            raise OSError(errno.EIO, f"'{self.path}' can't be read: {error}") from None

    def _start(self, statement: str, values: Sequence[Any]) -> sqlite3.Cursor:
        try:
            return self._connection.execute(statement, tuple(map(bound, values)))
        except sqlite3.Error as error:
            raise OSError(errno.EIO, f"'{self.path}' can't be read: {error}") from None

    def _next(self, cursor: sqlite3.Cursor) -> Any:
        try:
            return cursor.fetchone()
        except sqlite3.Error as error:
            raise OSError(errno.EIO, f"'{self.path}' can't be read: {error}") from None


def _many(values: Sequence[str]) -> str:
    return f"({', '.join(['CAST(? AS TEXT)'] * len(values))})"


def _document(checkpoint: str, raw: Raw) -> Mapping[str, Any]:
    try:
        document = loads(raw)
    except Damaged as error:
        raise Damaged(f"checkpoint {checkpoint}: {error}") from None
    if not isinstance(document, Mapping):
        raise Damaged(f"checkpoint {checkpoint}: no mapping but {type(document).__name__}")
    return document


def _link(checkpoint: str, parent: str | None, raw: Raw, channel: str) -> Link:
    _require_id(checkpoint, parent)
    document = _document(checkpoint, raw)
    versioned = channel in _mapping(document, "channel_versions")
    return Link(checkpoint, parent or None, versioned, _mapping(document, "channel_values").get(channel, NOTHING))


def _require_id(checkpoint: str, parent: object) -> None:
    if not isinstance(parent, str | None):
        raise Damaged(f"checkpoint {checkpoint}: the id of its parent is {type(parent).__name__}, not text")


def _mapping(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = document.get(key)
    return found if isinstance(found, Mapping) else {}


def _metadata(blob: bytes | str | None) -> Mapping[str, Any]:
    """Nothing where it can't be read: it names a checkpoint and explains it, and holds no file."""
    try:
        found = json.loads(blob) if blob is not None else {}
    except (TypeError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, Mapping) else {}
