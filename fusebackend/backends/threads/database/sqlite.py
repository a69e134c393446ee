"""`SqliteDatabase`: a checkpoint database of LangGraph's SqliteSaver, read directly.

The file is opened read-only; a second connection writes. `PRAGMA data_version` detects commits of others in some
microseconds, and row ids tell what they were: added rows have higher ones. A deletion shows in the number of rows, or
in another row under the highest id; rows are counted as often as takes a twentieth of the time.

A file in WAL mode that no process has open can't be opened without write permission to its directory. It is then read
as immutable, and opened anew when it changes. Another file at the path is opened as well (`DatabaseFile`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from fusebackend.backends.threads.database.rows import NOTHING, Link, News, Place
from fusebackend.backends.threads.database.sql import (
    LINE,
    LOST,
    Execute,
    SaverDialect,
    SaverTables,
    document_of,
    mapping,
    pruned_of,
    require_id,
)
from fusebackend.backends.threads.database.values import (
    require,
)
from fusebackend.base.errors import oserror
from fusebackend.databases.sqlite import (
    DatabaseFile,
    bound,
    has_wal,
    open_file,
    open_read_only,
    transaction,
    translate_errors,
)

COUNTING_SHARE: Final = 1 / 20
"""Of the time, at most, that goes into counting rows."""

ROWS_AT_ONCE: Final = 50_000
"""Counted in one statement, the first in some 8 ms, later ones, which compare the key of each row, in 20 to 40 ms.
Until it ends, no writer can commit to a file with a rollback journal."""

_KEYS: Final = {
    "checkpoints": "thread_id, checkpoint_ns, checkpoint_id",
    "writes": "thread_id, checkpoint_ns, checkpoint_id, task_id, idx",
}
"""The columns of each table's index."""


def _placeholders(statement: str) -> str:
    """CAST lets text that is not UTF-8 be compared by its bytes (`databases.sqlite.bound`)."""
    return re.sub(r":(thread|namespace|checkpoint|parent)\b", r"CAST(:\1 AS TEXT)", statement)


class _SeenUpTo(NamedTuple):
    """How far a table was read."""

    rows: int
    """Up to the last one."""
    last: int
    """The highest row id."""
    key: object
    """The key of that row."""


class SqliteDatabase(SaverTables):
    """See the module's docstring.

    Args:
        follows: as for `DatabaseFile`.
        clock: seconds that only grow.

    Raises:
        OSError: the file is not there, is no SQLite file, or has not the tables of a SqliteSaver.
        ModuleNotFoundError: ormsgpack is missing.
    """

    tells = True

    dialect = SaverDialect(
        tables={
            "checkpoints": "thread_id checkpoint_ns checkpoint_id parent_checkpoint_id type checkpoint metadata",
            "writes": "thread_id checkpoint_ns checkpoint_id task_id idx channel type value",
        },
        writes="writes",
        value="value",
        order="rowid",
        row="rowid",
        is_text=" AND {} < x''",  # TEXT sorts before BLOBs and, from '' on, after numbers
        among="checkpoint_id = :checkpoint",
        links="SELECT checkpoint_id, parent_checkpoint_id, type, checkpoint FROM checkpoints "
        f"WHERE {LINE} AND checkpoint_id = :checkpoint",
        document="type, checkpoint",
        placeholders=_placeholders,
        size="length({})",
        contains="instr(CAST({1} AS BLOB), CAST('{0}' AS BLOB))",
        changed=(
            "checkpoint = :document, metadata = CAST(:metadata AS BLOB), "
            "rowid = (SELECT max(rowid) + 1 FROM checkpoints)"
        ),
    )

    def __init__(self, path: str, *, follows: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        require()
        super().__init__(f"the checkpoint database {path}", clock)
        self.path = os.path.abspath(path)
        self._translated = translate_errors(f"'{path}' can't be read", lambda _: errno.EIO)
        self.identity = f"sqlite:{os.path.realpath(path)}"
        self._immutable = False
        self._writer: DatabaseFile | None = None
        self._at = DatabaseFile(path, self._opened, follows=follows)
        try:
            self._begin()
        except BaseException:
            self._at.close()
            raise

    def close(self) -> None:
        for opened in (self._at, self._writer):
            if opened is not None:
                opened.close()

    @property
    def trouble(self) -> tuple[float, str] | None:
        return self._at.trouble

    @property
    def _connection(self) -> sqlite3.Connection:
        return self._at.opened

    def _opened(self) -> sqlite3.Connection:
        if os.path.isfile(self.path) and os.path.getsize(self.path) == 0:
            raise OSError(errno.EINVAL, f"'{self.path}' is an empty file, no checkpoint database of LangGraph")
        connection, self._immutable = open_read_only(self.path)
        try:
            self._prepare(f"'{self.path}'", lambda table: self._columns(connection, table))
        except BaseException:
            connection.close()
            raise
        return connection

    def _begin(self) -> None:
        """Look at a file that was opened for the first time."""
        with self._translated:
            looked = self._at.look()
        self._recount = False
        seen = {table: self._look(table, 0) for table in self.dialect.tables}
        self._seen = {table: seen[table]._replace(rows=rows) for table, rows in self._count(seen).items()}
        self._looked, self._file_key = looked, self._at.key

    def _columns(self, connection: sqlite3.Connection, table: str) -> set[str]:
        with translate_errors(f"'{self.path}' can't be read as an SQLite database", lambda _: errno.EINVAL):
            return {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}

    # -- news --------------------------------------------------------------------------------------------------

    def news(self, *, now: bool = False) -> News | None:
        with self._translated:
            if self._immutable and has_wal(self.path):
                self._at.reopen()
            looked = self._at.look()
        if looked == self._looked and not (self._recount and self._may_count()):
            return None
        if self._at.key != self._file_key:
            self._begin()
            return News(True)
        everything, places = self._compare()
        self._looked = looked
        if everything:
            return News(True)
        return News(False, frozenset(places)) if places else None

    def _compare(self) -> tuple[bool, set[Place]]:
        """Whether anything was deleted or replaced; and the lines with added rows."""
        count = self._may_count()
        kept = self._count(self._seen) if count else {table: seen.rows for table, seen in self._seen.items()}
        everything, places, now = False, set(), {}
        with self._translated, transaction(self._connection, "DEFERRED"):
            for table, seen in self._seen.items():
                added = self._ask(f"SELECT thread_id, checkpoint_ns FROM {table} WHERE rowid > :last", last=seen.last)
                places |= {Place(*ids) for ids in added if all(isinstance(id_, str) for id_ in ids)}
                everything |= kept[table] != seen.rows or self._key(table, seen.last) != seen.key
                now[table] = self._look(table, kept[table] + len(added))
        self._seen, self._recount = now, not count
        return everything, places

    def _may_count(self) -> bool:
        return self._clock() - self._counted_at >= self._count_s / COUNTING_SHARE

    def _count(self, seen: Mapping[str, _SeenUpTo]) -> dict[str, int]:
        """The rows up to the last one seen of each table. Others may add rows meanwhile: only a deletion changes it."""
        began = self._clock()
        counted = {table: self._count_rows(table, last) for table, (_, last, _) in seen.items()}
        self._counted_at = self._clock()
        self._count_s = self._counted_at - began
        return counted

    def _count_rows(self, table: str, last: int) -> int:
        """In portions, along the table's index: in the order of rows each value would be read, hence `+rowid`; and
        without `+` SQLite compares with the first column of the index alone."""
        keys, rows, after, values = _KEYS[table], 0, "", {"last": last}
        bound_of = f"SELECT +{keys.replace(', ', ', +')} FROM {table} WHERE rowid = :bound"
        while bounds := self._ask(
            f"SELECT rowid FROM {table} WHERE +rowid <= :last{after} ORDER BY {keys} LIMIT 1 OFFSET {ROWS_AT_ONCE - 1}",
            **values,
        ):
            rows += ROWS_AT_ONCE
            after, values["bound"] = f" AND ({keys}) > ({bound_of})", bounds[0][0]
        rows += int(self._ask(f"SELECT count(*) FROM {table} WHERE +rowid <= :last{after}", **values)[0][0])
        return rows

    def _look(self, table: str, rows: int) -> _SeenUpTo:
        last = self._ask(f"SELECT max(rowid) FROM {table}")[0][0] or 0
        return _SeenUpTo(rows, last, self._key(table, last))

    def _key(self, table: str, rowid: int) -> object:
        return self._ask(f"SELECT {_KEYS[table]} FROM {table} WHERE rowid = :rowid", rowid=rowid)

    # -- lists -------------------------------------------------------------------------------------------------

    def threads(self) -> list[tuple[str, str | None]]:
        # Answered from the index: nothing is read where there are no odd rows.
        odd = self._ask("SELECT rowid FROM checkpoints WHERE thread_id >= x'' OR thread_id < '' LIMIT 1")
        if odd:
            self.log.tell(f"row {odd[0][0]} of the table 'checkpoints' has a thread_id that is no text; not shown")
        return super().threads()

    def _row(self, row: object) -> object:
        """The rows of a file that took another one's place are other ones, whatever their numbers."""
        return f"{self._file_key[1]}.{row}"

    # -- contents ----------------------------------------------------------------------------------------------

    def _link(self, row: Any, channel: str) -> Link:
        checkpoint, parent, kind, data = row
        require_id(checkpoint, parent)
        document = document_of(checkpoint, kind, data)
        ts, absent = document.get("ts"), LOST if channel in pruned_of(document) else NOTHING
        return Link(
            checkpoint,
            parent or None,
            ts if isinstance(ts, str) else None,
            channel in mapping(document, "channel_versions"),
            mapping(document, "channel_values").get(channel, absent),
        )

    # -- writing -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def changing(self) -> Iterator[Execute]:
        with translate_errors(f"'{self.path}' can't be written to", _errno_of_writing):
            self._at.at.require()
            if self._writer is None:
                self._writer = DatabaseFile(self.path, lambda: open_file(self.path, "mode=rw"))
            connection, at = self._writer.get(), self._writer.at
            with transaction(connection):
                yield lambda statement, **values: connection.execute(statement, _bound(values)).fetchall()
                at.require()
                if at.key != self._file_key:
                    raise oserror(errno.ESTALE)  # what was read is of another file

    def again(self) -> SqliteDatabase:
        return SqliteDatabase(self.path)

    def vacuum(self) -> None:
        translated = translate_errors(f"'{self.path}' can't be compacted", _errno_of_writing)
        with translated, contextlib.closing(open_file(self.path, "mode=rw")) as connection:
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    # -- statements --------------------------------------------------------------------------------------------

    def _ask(self, statement: str, **values: Any) -> list[Any]:
        with self._translated:
            return self._connection.execute(statement, _bound(values)).fetchall()

    def _ask_among(self, statement: str, place: Place, checkpoints: Sequence[str], **values: Any) -> list[Any]:
        """One by one: an old thread's checkpoint holds all of its files, and 32 in one statement may take 200 ms."""
        given, connection = _bound({**place._asdict(), **values}), self._connection
        rows: list[Any] = []
        with self._translated:
            for checkpoint in checkpoints:
                rows += connection.execute(statement, {**given, "checkpoint": bound(checkpoint)}).fetchall()
        return rows


def _bound(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: bound(value) for name, value in values.items()}


def _errno_of_writing(number: int) -> int:
    """EROFS where the file can't be opened for writing."""
    return errno.EROFS if number in (errno.ENOENT, errno.EACCES) else number
