"""`HistoryFile`: the calls and records of a mount, in an SQLite file of its server.

Numbers are given in memory at once, so that a change waits for no disk; rows are written by one thread, in batches, at
most `WRITE_EVERY_S` later, or by `flush`. A killed server leaves what was flushed. A power cut may take the last
seconds (`synchronous = NORMAL`), and harms nothing that was written before. Readers see all that was added before.

A volume that keeps a log (`protocol/commit_log.py`) has each record in the transaction of its change: the number is
reserved there, in the order of the commits, and the record is added when the commit has succeeded (`reserve`). Of a
killed server it has those that are not in the file, and the next one takes them up (`replay`).

A file that is damaged, or of another version, is set aside, and a new one begun: a history is never the reason why a
mount does not work. Methods may be called by any thread. None but readers and `flush` waits for the disk, unless
`MOST_WAITING` rows are not written yet.

Rows that can't be written, as on a full disk, are tried again. Beyond `MOST_WAITING` they are lost, and the calls that
they are of have a gap (`gaps`), so that no undo of one seems to be whole.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import logging
import operator
import os
import sqlite3
import stat
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec

from fusebackend.base.at_path import AtPath, state_at
from fusebackend.base.paths import ROOT, AgentPath, is_below, to_name
from fusebackend.base.relative_paths import above
from fusebackend.databases import sqlite
from fusebackend.history import events, requests
from fusebackend.history.events import Row, decode, encode, row_of
from fusebackend.history.masking import LogOptions, kept
from fusebackend.history.overlaps import AMONG, IS_MOVE, OVERLAPS, Touch, overlapping
from fusebackend.history.records import Call, CallKind, Image, Kept, Record, RecordKind, Stamp, State
from fusebackend.history.requests import Request
from fusebackend.protocol import Actor, CommitLog, LogRow, VerifyResult

log = logging.getLogger(__name__)

FILE_NAME: Final = "history.db"
"""In the directory of the history."""

ASIDE: Final = ".set-aside"
"""The end of the name of a file that can't be used."""

WRITE_EVERY_S: Final = 0.1
"""Rows wait for so long at most."""

RETRY_S: Final = 1.0
"""After rows could not be written."""

MOST_WAITING: Final = 20_000
"""With more rows in memory, the next change writes them itself: some 10 MB."""

MOST_HELD_BYTES: Final = 16 << 20
"""So it is with more bytes of files in these rows."""

CHECKED_BYTES: Final = 32 << 20
"""A file up to this size is checked when it is opened, which takes up to 50 ms. Damage of a larger one shows when it is
read."""

TITLE_CHARACTERS: Final = 200

DOUBT_S: Final = 60.0
"""For so long a change may yet be made whose connection was lost at its commit."""

ROWS: Final = 50
"""Events in one statement."""

FORGOTTEN: Final = "they were forgotten ('fusebackend forget')"
"""Why the bytes of an image are lost."""

VERSION: Final = 3
"""Of the tables; `PRAGMA user_version`."""

RETURNED: Final = b">"
"""Between the two identities of a file that an undo has brought back: the one before, and the one since."""

_LOST: Final = frozenset({"change", "left", "returned"})
"""Events that are given up where too many can't be written: a gap says so."""

_ERASE: Final = (
    "UPDATE events SET secret = NULL, bytes = NULL, image_node = 0, "
    "name = CASE place WHEN 'lost' THEN name ELSE ? END, "
    "place = CASE WHEN place IS NULL THEN NULL ELSE 'lost' END "
    "WHERE path NOTNULL AND (place IS NOT NULL OR secret IS NOT NULL) AND "
)
_FIRST_END: Final = "SELECT min(number) FROM events WHERE event = 'end' AND path ISNULL AND number >= ?"
_LAST: Final = "SELECT coalesce(max(number), 0) FROM events WHERE event = '{}' AND path ISNULL"
_IS_GONE: Final = "SELECT 1 FROM events WHERE event = 'gone' AND call = ? AND path ISNULL"
_ROUTE: Final = "INSERT OR REPLACE INTO routes VALUES (?, ?)"

_CALLS: Final = (
    "SELECT calls.number, kind, payload, began_ns, ended_ns, undone_by, "
    "(SELECT count(*) FROM records WHERE records.call = calls.number), "
    "(SELECT group_concat(undoes.call) FROM undoes WHERE undoes.undo = calls.number) FROM calls"
)
_ENDED: Final = (
    " JOIN (SELECT call AS ended, number AS end_ns FROM events WHERE event = 'end' AND path ISNULL)"
    " ON ended = calls.number"
)
"""Beside `_CALLS`, for those in the order of their ends."""

_RECORDS: Final = (
    "SELECT records.number, records.call, time_ns, route, kind, path, to_path, node, linked, payload, place, name, "
    "image_node, secret, stamp, identity"
)

_IS_BY: Final = (
    "(? IN (said(payload, 1), said(payload, 2), said(payload, 3), said(payload, 4)) "
    "OR CAST(said(payload, 5) AS TEXT) = ?)"
)
"""By the words of its actor, which follow the title of a call."""

_CHANGED: Final = "EXISTS (SELECT 1 FROM records WHERE records.call = calls.number AND {0})"  # not after `drop`
_SHOWN: Final = f"({_CHANGED} OR kind IN ({', '.join(map(repr, requests.LOGGED))}))"

_DAMAGE: Final = frozenset({sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, 0, sqlite3.SQLITE_ERROR})

_STANDING: Final = (
    "NOT EXISTS (SELECT 1 FROM calls WHERE calls.number = records.call AND undone_by IS NOT NULL) "
    "AND NOT EXISTS (SELECT 1 FROM undoes WHERE undo = records.call GROUP BY undo HAVING min({0}) {1})"
)
"""The records that are not undone, without those of undos that took back nothing older than something: what is compared
of each call that they took back, and how."""

FORGET: Final = "forget"
"""Stands for the statements of `events.forget`."""

_Statement = tuple[str, Row]
"""An event, without a statement of its own, or a statement with its values."""


class Entry(msgspec.Struct, eq=False):
    """A record on its way. `HistoryFile` makes them.

    Args:
        event: its row, with the number 0 until it has one.
        head: the events of its call's begin, until they are in the file.
    """

    event: list[Any]
    after: Stamp | None
    head: Sequence[Row] = ()
    doubted_s: float = 0.0
    is_asked: bool = False

    @property
    def call(self) -> int:
        return int(self.event[events.CALL])

    @property
    def number(self) -> int:
        return int(self.event[events.NUMBER])

    @property
    def node(self) -> int:
        return int(self.event[events.NODE])

    @property
    def left_at(self) -> bytes:
        """The path of the file after the change."""
        moved = self.event[events.TO_PATH] if len(self.event) > events.TO_PATH else None
        return bytes(moved or self.event[events.PATH])

    @property
    def said(self) -> LogRow:
        """What a volume is to keep of it."""
        return self.number, encode((self.event, self.after, self.head))


def _entry_of(number: int, said: bytes) -> Entry | None:
    """Return a record from `Entry.said`; None if it is of another version, or damaged."""
    try:
        (_, call, kind, _, *row), after, head = decode(said)
        entry = Entry(["change", call, kind, number, *row], None if after is None else Stamp(*after), head)
    except (msgspec.DecodeError, TypeError, ValueError):
        return None
    return entry if events.NODE < len(entry.event) <= len(events.COLUMNS) else None


class HistoryLocked(OSError):
    """Another server has the history open: EBUSY."""


class Filter(NamedTuple):
    """Which calls `calls` returns. A field that is None, or empty, leaves none out."""

    by: str = ""
    """The agent, thread, tool call or command of the actor, or its uid as a number."""
    thread: str = ""
    """Of this conversation."""
    since_ns: int | None = None
    """That were going on at this time or later."""
    until_ns: int | None = None
    """That began before this time."""
    paths: tuple[AgentPath, ...] = ()
    """That changed something at or below one of these paths of the mount. Without one, calls that changed files in
    branches alone are left out (`HistoryFile.apart`)."""
    before: int | None = None
    """With a lower number than this one."""
    first: int | None = None
    """With this number or a higher one."""
    ended_after_ns: int | None = None
    """That ended after this time, in the order of their ends. No two calls end at the same time."""
    ended_before_ns: int | None = None
    """That ended before this time."""
    with_requests: bool = False
    """Also requests for approvals, and decisions about them, which have changed nothing."""
    is_standing: bool = False
    """That are no undos, and not undone."""


class HistoryFile:
    """See the module's docstring.

    Args:
        path: of the file. Its directory is made, with mode 0700.
        options: what it keeps of commands.

    Attributes:
        earlier: the number of the last record of an earlier server; 0 if there is none.
        last: the number of the last record.
        interrupted: the calls that went on when the last server was killed.
        made: the records of its last changes that volumes say were made.
        was_killed: the last server did not close the file.
        closed: the number of the last record when a server has closed it last.
        set_aside: where the file went that was damaged or of another version, and why, a line; None if none was.

    Raises:
        HistoryLocked: another server has it open.
        OSError: there can't be a file.
    """

    def __init__(self, path: str, time_ns: Callable[[], int] = time.time_ns, options: LogOptions | None = None) -> None:
        self.path = path
        self.commands = (options or LogOptions()).commands
        """What it keeps of commands."""
        self._time_ns = time_ns
        self.set_aside: str | None = None
        self._guard = threading.Lock()  # of the next fields, and of the numbers
        self._waiting: list[_Statement] = []  # until they are written
        self._held_bytes = 0  # of files, in these
        self._reserved: dict[int, Entry] = {}  # records whose changes are being committed, by their numbers
        self._heads: dict[int, list[Row]] = {}  # the events of the begins of calls that are not in the file
        self._late_ends: set[int] = set()  # calls that end with their last reserved record
        self._gaps: set[int] = set()
        self._open: set[int] = set()
        self.forgets = 0
        """How often calls were deleted."""
        self.forgotten_ns: int
        """The latest end of a deleted call."""
        self._writing = threading.Lock()  # of the writer's connection
        self._reading = threading.Lock()
        self._read_errors = sqlite.translate_errors(f"the history '{path}' can't be read")
        self.apart: AgentPath | None = None
        """The directory of the routes whose calls are no calls of the mount, unless they are asked for by a path there:
        branches. None if there are none."""
        self.failed: str | None = None
        """Why rows can't be written, or are lost; None if all are written."""
        self._errno = 0  # of the last attempt to write; 0 if it was made
        self._has_lost = False
        self._call: int
        self.last: int
        self.interrupted: list[int] = []
        self.made: set[int] = set()
        with contextlib.ExitStack() as opened:
            opened.callback(os.close, _locked(os.path.dirname(path) or "."))
            self._writer = opened.enter_context(contextlib.closing(self._opened()))
            status = os.stat(path)
            self._file = AtPath(path, (status.st_dev, status.st_ino))
            self._reader = opened.enter_context(contextlib.closing(sqlite.open_file(path, "mode=rw")))
            self._reader.create_function("said", 2, _word, deterministic=True)
            new = "INSERT OR IGNORE INTO state VALUES (1, ?, 0, 0, NULL, 0, zeroblob(16), 1, zeroblob(16))"
            self._writer.execute(new, (str(uuid.uuid4()),))
            found = self._writer.execute("SELECT history, call, record, closed, link, digest FROM state").fetchone()
            self.id, self._call, self.last, closed, *self._chain = found
            self.earlier = self.last
            self.was_killed = closed != self.last
            self.closed: int = closed or 0
            (self._ended_ns,) = self._writer.execute(_LAST.format("end")).fetchone()
            (self.forgotten_ns,) = self._writer.execute(_LAST.format("forget")).fetchone()
            self._connections = opened.pop_all()
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fusebackend-history", daemon=True)
        self._thread.start()
        self._end_interrupted()

    # -- life --------------------------------------------------------------------------------------------------

    def _opened(self) -> sqlite3.Connection:
        try:
            return _connect(self.path)
        except sqlite3.Error as error:
            if self.set_aside is not None or sqlite.primary(error) not in _DAMAGE:
                raise OSError(sqlite.errno_of(error), f"no history can be kept in '{self.path}': {error}") from None
            place = _set_aside(self.path)
            self.set_aside = (
                f"the history '{self.path}' can't be used ({error}): it is kept in '{place}', and a new one begins"
            )
        log.warning("%s", self.set_aside)
        return self._opened()

    def _end_interrupted(self, calls: Iterable[int] = ()) -> None:
        """End the calls that a kill has interrupted with their last record.

        Args:
            calls: that have ended so, and have more records now.
        """
        last = "(SELECT max(time_ns) FROM records WHERE call = calls.number)"
        rows = self._read(
            f"SELECT max(coalesce(ended_ns, 0), coalesce({last}, began_ns)), number FROM calls "
            "WHERE ended_ns IS NULL OR number IN (SELECT value FROM json_each(?)) ORDER BY 1",
            (json.dumps([*calls]),),
        )
        with self._guard:
            for ended_ns, number in rows:
                self._ended_ns = max(self._ended_ns, ended_ns)
                self._put("end", number, number=ended_ns)
        self.interrupted = sorted({*self.interrupted, *(number for _, number in rows)})
        self.flush()

    def close(self) -> None:
        """End open calls, write everything, and let go of the file. Twice is once."""
        if self._closed.is_set():
            return
        for number in tuple(self._open):
            self.end_call(number)
        self._closed.set()
        self._wake.set()
        self._thread.join()
        self.flush()
        with contextlib.suppress(sqlite3.Error):  # then the next server takes it for killed
            self._writer.execute("UPDATE state SET closed = record")
        self._connections.close()

    @property
    def size_bytes(self) -> int:
        """Of the file and its WAL."""
        found = map(state_at, (self.path, self.path + "-wal"))
        return sum(each.size for each in found if each is not None)

    # -- writing -----------------------------------------------------------------------------------------------

    def open_call(self, kind: CallKind, title: str, actor: Actor, undoes: Sequence[int] = ()) -> int:
        """Begin a call that is about to change something; returns its number. Readers are shown none without a record.

        Args:
            undoes: of an undo: the calls that it takes back. See `mark_undone`.
        """
        began_ns = self._time_ns()
        how = self.commands if kind in ("command", "tool", "session") or self.commands == "full" else "masked"
        command = kept(actor.command, self.commands)
        # The title of a session is its command: to mask one may take 90 us.
        title = (command if title == actor.command and how == self.commands else kept(title, how))[:TITLE_CHARACTERS]
        words = (title, actor.agent, actor.thread, actor.call, command, actor.uid, actor.pid, actor.host)
        payload = encode([*map(sqlite.bound, words)])
        with self._guard:
            self._call += 1
            number = self._call
            begin = row_of("call", number, kind, number, payload=payload, time_ns=began_ns)
            self._heads[number] = [begin, *(row_of("undoes", number, number=each) for each in undoes)]
            for row in self._heads[number]:
                self._append(row)
            self._open.add(number)
        return number

    def end_call(self, number: int) -> None:
        """End a call. Twice is once."""
        with self._guard:
            if number not in self._open:
                return
            if any(entry.call == number for entry in self._reserved.values()):
                self._late_ends.add(number)
                return
            self._open.discard(number)
            self._gaps.discard(number)
            self._ended_ns = max(self._ended_ns + 1, self._time_ns())
            self._put("end", number, number=self._ended_ns)

    def add(
        self, call: int, prefix: AgentPath, kind: RecordKind, path: bytes, kept: Kept | None = None, **fields: Any
    ) -> int:
        """Add a record to a call that is open; returns its number.

        Args:
            kept: the file before the change.
            fields: further fields of `Record`.
        """
        return self.put(self.entry(call, prefix, kind, path, kept, **fields))

    def put(self, entry: Entry) -> int:
        """Add a record that was made by `entry`, or that was reserved: its change was made. Returns its number."""
        event = entry.event
        with self._guard:
            number: int = event[events.NUMBER]
            if not number:
                number = event[events.NUMBER] = self.last = self.last + 1
            elif self._reserved.pop(number, None) is None:
                return number
            self._append(event)
            if len(event) == len(events.COLUMNS):
                self._held_bytes += len(event[-1])
            if entry.after is not None:
                self._put_left(number, entry.after)
        if self._late_ends:
            self._end_late(entry)
        if self._is_full:
            self.flush()
        return number

    def entry(
        self,
        call: int,
        prefix: AgentPath,
        kind: RecordKind,
        path: bytes,
        kept: Kept | None = None,
        to_path: bytes = b"",
        node: int = 0,
        linked: bool = False,
        after: Stamp | None = None,
    ) -> Entry:
        """Return a record for `put` or `reserve`. The arguments are those of `add`."""
        mode = payload = nlink = xattrs = image = identity = None
        if kept is not None:
            _, before, image, _, identity = kept
            mode, payload, nlink = before.mode, encode((*before[:8], before.target)), before.nlink
            xattrs = encode(before.xattrs) if before.xattrs else None
        event = ["change", call, kind, 0, mode, payload, self._time_ns(), to_name(prefix), path, node]
        if kept is not None or to_path or linked:
            event += (to_path or None, int(linked), nlink, identity)
        if image is not None:
            event += (image.place, sqlite.bound(image.name), image.node, xattrs)
            if image.data is not None:
                event.append(image.data)
        elif xattrs is not None:
            event += (None, None, None, xattrs)
        return Entry(event, after)

    def _put_left(self, number: int, stamp: Stamp | None) -> None:
        if stamp is None:
            self._append(("left", None, None, number, None, None))
        else:
            self._append(("left", None, None, number, stamp.mode, encode(stamp)))

    # -- records in the transactions of a volume ---------------------------------------------------------------

    def reserve(self, entry: Entry) -> Entry:
        """Give a record of a change that is about to be committed its number. `put` or `release` follows.

        Numbers are in the order of these calls; until the outcome is known, readers that go on after a number
        (`records_after`) are shown none from this one on.
        """
        with self._guard:
            entry.event[events.NUMBER] = self.last = self.last + 1
            self._reserved[self.last] = entry
            entry.head = self._heads.get(entry.call, ())
        return entry

    def release(self, entry: Entry) -> None:
        """Forget a record that was reserved: its change was not made."""
        with self._guard:
            self._reserved.pop(entry.number, None)
        self._end_late(entry)

    def _end_late(self, entry: Entry) -> None:
        if entry.call in self._late_ends:
            self._late_ends.discard(entry.call)
            self.end_call(entry.call)

    def doubt(self, entry: Entry) -> None:
        """Nobody knows yet whether the change of a record that was reserved was made. `settle` or `DOUBT_S` decides."""
        with self._guard:
            if entry.number in self._reserved:
                entry.doubted_s = time.monotonic()

    def doubtful(self) -> list[int]:
        """Return the numbers of records that are in doubt. One that was for `DOUBT_S` is asked for once more, and then
        released."""
        with self._guard:
            doubted = [entry for entry in self._reserved.values() if entry.doubted_s]
        for entry in doubted:
            if entry.is_asked:
                self.release(entry)
            entry.is_asked = time.monotonic() - entry.doubted_s > DOUBT_S
        return [entry.number for entry in doubted if entry.number in self._reserved]

    def settle(self, there: Iterable[int]) -> None:
        """Confirm records that were in doubt, by their numbers."""
        for number in there:
            entry = self._reserved.get(number)
            if entry is not None:
                self.put(entry)

    def written(self) -> int:
        """Return a number: no record with a lower one waits to be written, or for the outcome of its change."""
        with self._guard:
            waiting = (row[events.NUMBER] for each, row in self._waiting if not each and row[0] == "change")
            return min(min(waiting, default=self.last + 1), min(self._reserved, default=self.last + 1))

    def commit_log(self, lost: Callable[[Sequence[int]], None] = lambda numbers: None) -> CommitLog:
        """Return the history as volumes see it that keep its records.

        Args:
            lost: as in `CommitLog`.
        """
        return CommitLog(self.id, self.written, self.doubtful, self.settle, self._reserved.copy, lost)

    def replay(self, prefix: AgentPath, rows: Iterable[LogRow]) -> int:
        """Take up records of a route that its volume has kept for a killed server, before anything else changes. One
        that was deleted since, with its call or by itself, is not taken up. Returns how many were."""
        entries = [entry for number, said in sorted(rows) if (entry := _entry_of(number, said)) is not None]
        entries = [entry for entry in entries if entry.event[events.ROUTE] == to_name(prefix)]
        if not entries:
            return 0
        self.made.update(entry.number for entry in entries)
        first, last = entries[0].number, max(self.last, entries[-1].number)
        query = "SELECT number, time_ns, kind, path FROM records WHERE number >= ?"
        there = {number: (time_ns, kind, path) for number, time_ns, kind, path in self._read(query, (first,))}
        known = set(there.values())
        query = "SELECT number FROM events WHERE event = 'unmade' AND number >= ? AND path ISNULL"
        dropped = {*self._numbers(query, first)}
        calls: dict[int, int] = {}
        taken = 0
        for entry in entries:
            event = entry.event
            if entry.number in dropped or (event[events.TIME], event[events.KIND], event[events.PATH]) in known:
                continue
            if entry.number in there:  # a server that could not read these has given the number to another one
                self.made.discard(entry.number)
                event[events.NUMBER] = last = last + 1
                self.made.add(last)
            event[events.CALL] = self._replayed_call(entry, calls)
            if entry.call:
                taken += 1
                with self._guard:
                    self.last = max(self.last, entry.number)
                    self._reserved[entry.number] = entry
                self.put(entry)
        self.flush()
        self.earlier = self.last
        self._end_interrupted(call for call in calls.values() if call)
        return taken

    def _replayed_call(self, entry: Entry, calls: dict[int, int]) -> int:
        """Return the number of the call that a record belongs to, which is put if it is not here; 0 if it was deleted.

        Args:
            calls: of earlier records: their numbers then, and now.
        """
        number, head = entry.call, entry.head
        if number not in calls:
            there = self._read("SELECT began_ns FROM calls WHERE number = ?", (number,))
            if there and (not head or head[0][events.TIME] == there[0][0]):
                calls[number] = number
            elif not head or self._read(_IS_GONE, (number,)):
                calls[number] = 0
            else:
                with self._guard:
                    calls[number] = found = self._call + 1 if there else number
                    self._call = max(self._call, found)
                    (_, _, kind, _, *rest), *undoes = head
                    self._append(("call", found, kind, found, *rest))
                    for _, _, _, undone, *_ in undoes:
                        self._put("undoes", found, number=undone)
        return calls[number]

    def drop(self, numbers: Iterable[int]) -> None:
        """Delete records of changes that were not made."""
        dropped = [*numbers]
        with self._guard:
            for number in dropped:
                self._append((number,), events.DROP)
            if dropped:
                self._put("drop", payload=encode(dropped))

    def set_after(self, stamps: Mapping[int, Stamp | None]) -> None:
        """Set `after` of records, by their numbers."""
        with self._guard:
            for number, stamp in stamps.items():
                self._put_left(number, stamp)

    def mark_undone(self, calls: Iterable[int], by: int | None) -> None:
        """Note which undo has taken calls back; None after that undo was taken back itself."""
        with self._guard:
            for number in calls:
                self._put("undone", number, number=by)

    def _put(self, event: str, call: int | None = None, **columns: Any) -> None:
        self._append(row_of(event, call, **columns))

    def _append(self, row: Row, statement: str = "") -> None:
        if not self._waiting:
            self._wake.set()
        self._waiting.append((statement, row))

    @property
    def _is_full(self) -> bool:
        return len(self._waiting) > MOST_WAITING or self._held_bytes > MOST_HELD_BYTES

    def _run(self) -> None:
        while not self._closed.is_set():
            self._wake.wait()
            self._closed.wait(RETRY_S if self._errno else WRITE_EVERY_S)  # so that a burst is one transaction
            self.flush()

    def flush(self) -> None:
        """Write what was added. An error is logged, once in a row, and kept in `failed`."""
        with self._writing:
            with self._guard:
                rows, numbers = self._waiting.copy(), (self._call, self.last)
                held_bytes, self._held_bytes = self._held_bytes, 0
                self._wake.clear()
                if self._closed.is_set():  # which the thread has to see
                    self._wake.set()
            if not rows:
                return
            try:
                self._write(rows, numbers)
            except sqlite3.Error as error:
                if not self._errno:
                    log.error("the history '%s' can't be written, and is incomplete: %s", self.path, error)
                self._errno, self.failed = sqlite.errno_of(error), str(error)
                with self._guard:  # for the next attempt, unless they are too many
                    self._held_bytes += held_bytes
                    if self._is_full:
                        self._lose()
                    self._wake.set()
                return
            with self._guard:
                del self._waiting[: len(rows)]
                if self._waiting:
                    self._wake.set()
                for statement, row in rows:
                    if not statement and row[0] == "call":
                        self._heads.pop(row[events.NUMBER], None)
            self._errno = 0
            if not self._has_lost:
                trouble = self._file.trouble  # SQLite goes on with a file that was moved or deleted
                self.failed = None if trouble is None else trouble[1]

    def before_commit(self) -> tuple[str, int]:
        """Write what was added; returns what `SnapshotVolume.before_commit` does."""
        self.flush()
        return self.id, self.last

    def _write(self, rows: Sequence[_Statement], numbers: tuple[int, int]) -> None:
        """Write rows and the last numbers in one transaction. With the writer's lock.

        Events are written many at a time: after each statement this thread waits for Python's lock, and takes it from
        the mount's loop.
        """
        link, digest = self._chain
        with sqlite.transaction(self._writer):
            for statement, group in itertools.groupby(rows, operator.itemgetter(0)):
                found = [row for _, row in group]
                if statement == FORGET:
                    found = [events.forget(self._writer, ended_ns, calls) for ended_ns, *calls in found]
                elif statement:
                    self._writer.executemany(statement, found)
                    continue
                by_columns: dict[tuple[bool, ...], list[Row]] = {}
                for row in found:
                    link += 1
                    digest = events.digest(link, digest, row)
                    columns = tuple(map(operator.is_not, row, itertools.repeat(None)))
                    by_columns.setdefault(columns, []).append((link, digest, *itertools.compress(row, columns)))
                for columns, linked in by_columns.items():
                    whole = len(linked) - len(linked) % ROWS
                    for start in range(0, whole, ROWS):
                        values = tuple(itertools.chain.from_iterable(linked[start : start + ROWS]))
                        self._writer.execute(events.append(columns, ROWS), values)
                    self._writer.executemany(events.append(columns, 1), linked[whole:])
            values = (*numbers, link, digest)
            self._writer.execute("UPDATE state SET call = ?, record = ?, link = ?, digest = ?", values)
        self._chain = [link, digest]

    def require(self) -> None:
        """Write what was added.

        Raises:
            OSError: it can't be written, so the file lacks changes that were made. Its errno is that of SQLite's error.
        """
        self.flush()
        if self._errno:
            raise OSError(self._errno, f"the history '{self.path}' can't be written: {self.failed}")

    def _lose(self) -> None:
        """Forget the changes that wait, so that their calls have gaps. Called with the guard."""
        lost = {row[events.CALL] for statement, row in self._waiting if not statement and row[0] == "change"}
        why = f"the history could not be written ({self.failed})"
        self._waiting = [each for each in self._waiting if each[0] or each[1][0] not in _LOST]
        self._held_bytes = 0
        for call in sorted(lost):
            self._put("gap", call, payload=sqlite.bound(why))
        self._has_lost = True

    def note_gap(self, call: int, why: str) -> None:
        """Note that a change of a call was not recorded.

        Args:
            why: a line.
        """
        with self._guard:
            if call not in self._gaps:
                self._gaps.add(call)
                self._put("gap", call, payload=sqlite.bound(why))

    def gaps(self, calls: Sequence[int]) -> dict[int, str]:
        """Return why changes of calls were not recorded, for those of the calls that have such."""
        found = f"SELECT call, why FROM gaps WHERE call IN {AMONG} ORDER BY call, link DESC"
        return {call: _text(why) for call, why in self._read(found, (json.dumps([*calls]),))}

    # -- reading -----------------------------------------------------------------------------------------------

    def call(self, number: int) -> Call | None:
        """Return a call; None if there is none, or if it has changed nothing."""
        found = next(self._calls("WHERE calls.number = ?", (number,)), None)
        return found if found is not None and (found.changes or found.kind in requests.LOGGED) else None

    def calls(self, limit: int | None = None, where: Filter | None = None) -> list[Call]:
        """Return calls that changed something, the newest first; with `ended_after_ns`, as they ended.

        Args:
            limit: at most so many; None for all.
        """
        wanted = where or Filter()
        is_main, values = self._main()
        if wanted.paths:
            is_main, values = "1", []
        of_paths = [self._calls_at(wanted.paths)] if wanted.paths else []
        ended = wanted.ended_after_ns is not None
        conditions = [
            (True, (_SHOWN if wanted.with_requests else _CHANGED).format(is_main), values),
            (wanted.by, _IS_BY, [wanted.by, wanted.by]),
            (wanted.thread, "said(payload, 2) = ?", [wanted.thread]),
            (wanted.first is not None, "calls.number >= ?", [wanted.first]),
            (wanted.since_ns is not None, "coalesce(ended_ns, ?) >= ?", [1 << 62, wanted.since_ns]),
            (wanted.until_ns is not None, "began_ns < ?", [wanted.until_ns]),
            (wanted.before is not None, "calls.number < ?", [wanted.before]),
            (wanted.paths, "calls.number IN (SELECT value FROM json_each(?))", of_paths),
            (ended, "end_ns > ? AND end_ns = ended_ns", [wanted.ended_after_ns]),
            (wanted.ended_before_ns is not None, "ended_ns < ?", [wanted.ended_before_ns]),
            (wanted.is_standing, "kind != 'undo' AND undone_by ISNULL", []),
        ]
        given = [(text, values) for is_given, text, values in conditions if is_given]
        text = f"{_ENDED if ended else ''} WHERE {' AND '.join(text for text, _ in given)}"
        order = "end_ns" if ended else "calls.number DESC"
        values = [value for _, values in given for value in values]
        return list(self._calls(f"{text} ORDER BY {order} LIMIT ?", (*values, -1 if limit is None else limit)))

    def _calls(self, rest: str, values: Sequence[Any]) -> Iterator[Call]:
        for row in self._read(f"{_CALLS} {rest}", values):
            number, kind, payload, began_ns, ended_ns, undone_by, changes, undoes = row
            title, *who = map(_text, decode(payload))
            taken_back = tuple(sorted(int(each) for each in undoes.split(","))) if undoes else ()
            yield Call(number, kind, title, Actor(*who), began_ns, ended_ns, changes, taken_back, undone_by)

    def _main(self) -> tuple[str, list[Any]]:
        """Return the condition of records that are not of branches."""
        return ("1", []) if self.apart is None else ("NOT (route > ? AND route < ?)", [*_below(to_name(self.apart))])

    def _calls_at(self, paths: Iterable[AgentPath]) -> str:
        """Return the calls that changed something at or below these paths, as JSON. A statement for each path: one for
        all would be too deep for SQLite beyond some 330."""
        found: set[int] = set()
        for condition, values in self._at(paths):
            calls = self._read(f"SELECT DISTINCT call FROM records WHERE {condition}", values)
            found.update(number for (number,) in calls)
        return json.dumps(sorted(found))

    def _at(self, paths: Iterable[AgentPath]) -> Iterator[tuple[str, list[Any]]]:
        """Yield for each path of the mount the condition of records at or below it. Branches are not below its root."""
        routes = self._read("SELECT DISTINCT route FROM records", ())
        at = "path = ? OR path > ? AND path < ? OR to_path = ? OR to_path > ? AND to_path < ?"
        for path in paths:
            conditions: list[str] = ["0"]
            values: list[Any] = []
            for (stored,) in routes:
                prefix = AgentPath(os.fsdecode(stored))
                if path == ROOT and self.apart is not None and is_below(prefix, self.apart):
                    continue
                if is_below(prefix, path):
                    conditions.append("route = ?")
                    values.append(stored)
                elif is_below(path, prefix):
                    inner = to_name(path if prefix == ROOT else path[len(prefix) :])
                    below = _below(inner)
                    conditions.append(f"(route = ? AND ({at}))")
                    values += [stored, inner, *below, inner, *below]
            yield f"({' OR '.join(conditions)})", values

    def ends(self, after: Callable[[int], int]) -> Iterator[int]:
        """Yield the end of the oldest call, then that of the first one after `after` it, and so on.

        Args:
            after: returns the time at which to go on, in ns, for a call that ended at one.
        """
        from_ns = 0
        while (row := self._read(_FIRST_END, (from_ns,))) != [(None,)]:
            ((ended_ns,),) = row
            yield ended_ns
            from_ns = after(ended_ns)

    def records(self, call: int, limit: int = -1) -> list[Record]:
        """Return the records of a call, in their order; the first `limit` of them, if that is not negative."""
        return self._records("WHERE call = ? ORDER BY number LIMIT ?", (call, limit))

    def records_after(self, number: int, limit: int, prefix: AgentPath | None = None) -> list[Record]:
        """Return the records of all calls with a higher number, in their order, at most `limit`.

        Args:
            number: a negative one counts from the end: -1 is for the newest record.
            prefix: those of this route; None for all but those of branches.
        """
        is_main, values = self._main() if prefix is None else ("route = ?", [to_name(prefix)])
        if number < 0:
            newest = self._records(f"WHERE {is_main} ORDER BY number DESC LIMIT ?", (*values, min(-number, limit)))
            return newest[::-1]
        with self._guard:  # what is committed later may have a lower number than what is there now
            last = min(self._reserved, default=self.last + 1)
        where = f"WHERE number > ? AND number < ? AND {is_main} ORDER BY number LIMIT ?"
        return self._records(where, (number, last, *values, limit))

    def unstamped(self, call: int, limit: int, *, all_of_them: bool = False) -> Iterator[tuple[int, AgentPath, bytes]]:
        """Yield the records of a call that may get a stamp, and have none: number, prefix, the path to look at.

        Args:
            limit: so many are read at a time.
            all_of_them: also those that have a stamp.
        """
        more = "" if all_of_them else "AND stamp_mode IS NULL"
        statement = (
            "SELECT number, route, coalesce(to_path, path) FROM records "
            f"WHERE call = ? AND number > ? AND kind != 'remove' {more} ORDER BY number LIMIT ?"
        )
        last, count = 0, limit
        while count == limit:
            rows = self._read(statement, (call, last, limit))
            count = len(rows)
            for last, prefix, path in rows:
                yield last, AgentPath(os.fsdecode(prefix)), path

    def record(self, number: int) -> Record | None:
        """Return a record."""
        return next(iter(self._records("WHERE number = ?", (number,))), None)

    def note_return(self, number: int, before: bytes, now: bytes) -> None:
        """Note that the file which the record of an undo has made is an earlier one, with other names for both."""
        with self._guard:
            self._put("returned", number=number, identity=before + RETURNED + now)

    def returned(self, prefix: AgentPath, number: int) -> dict[bytes, bytes]:
        """Return what the files of a route are since undos have brought them back: identity, or node, before → then.

        Args:
            number: nodes in records up to this one mean nothing any more.
        """
        rows = self._read(
            "SELECT events.identity, records.number FROM events JOIN records ON records.number = events.number "
            "WHERE event = 'returned' AND events.path ISNULL AND records.route = ? ORDER BY records.number",
            (to_name(prefix),),
        )
        pairs = ((identity.partition(RETURNED), each) for identity, each in rows)
        return {before: now for (before, _, now), each in pairs if each > number or not before.isdigit()}

    def was_removed(self, record: Record, identities: Collection[bytes]) -> bool:
        """Return True if another call has removed a name of a file that has one of these identities since a record, and
        is not undone. An undo has removed it, too, if what it took back began before: the record has those bytes."""
        began = "(SELECT min(taken.number) FROM records AS taken WHERE taken.call = undoes.call)"
        return bool(self._read(
            f"SELECT 1 FROM events AS records WHERE identity IN ({', '.join('?' * len(identities))}) "
            f"AND number > ? AND call != ? AND kind IN ('remove', 'rename') AND {_STANDING.format(began, '> ?')} "
            "LIMIT 1",
            (*identities, record.number, record.call, record.number),
        ))  # fmt: skip

    def later(self, record: Record, path: bytes) -> int | None:
        """Return the last other call that has touched a path of a record's route since: the path, what is below it, or
        a directory above that was made, moved or removed; None if none has.

        An undone change counts as never made: undone calls are left out, and so are undos that took back the record's
        call or later ones. `since` has the records of these as well.
        """
        chosen, values = _touching(record.number, record.prefix, path)
        found = self._numbers(
            f"SELECT call FROM records WHERE number IN ({chosen}) AND call != ? AND "
            f"{_STANDING.format('undoes.call', '>= ?')} ORDER BY number DESC LIMIT 1",
            *values, record.call, record.call,
        )  # fmt: skip
        return found[0] if found else None

    def since(self, number: int, prefix: AgentPath, path: bytes) -> list[Record]:
        """Return the records of all calls after this number that touch a path, as `later`; undone ones, too."""
        chosen, values = _touching(number, prefix, path)
        return self._records(f"WHERE number IN ({chosen}) ORDER BY number", values)

    def has_links(self, number: int, prefix: AgentPath) -> bool:
        """Return True if a record of a route after this number is of a file with several names: it names only one."""
        linked = "SELECT 1 FROM records WHERE number > ? AND route = ? AND (linked OR nlink > 1 AND mode & ? != ?)"
        return bool(self._read(f"{linked} LIMIT 1", (number, to_name(prefix), 0o170000, stat.S_IFDIR)))

    def was_changing(self, prefix: AgentPath, node: int, number: int, time_ns: int) -> bool:
        """Return True if a call had changed a file at a time, and had not ended: it may change it on without a record.

        Args:
            number: of the last record before that time.
            time_ns: since the epoch.
        """
        with self._guard:
            going_on = json.dumps([*self._open])
        rows = self._read(
            "SELECT 1 FROM calls WHERE number IN (SELECT value FROM json_each(?) UNION "
            "SELECT call FROM events WHERE event = 'end' AND number >= ? AND path ISNULL) AND began_ns < ? AND EXISTS "
            "(SELECT 1 FROM records WHERE call = calls.number AND node = ? AND route = ? AND number <= ?) LIMIT 1",
            (going_on, time_ns, time_ns, node, to_name(prefix), number),
        )
        return bool(rows)

    def begin(self, call: Call) -> int:
        """Return the number of the last record before those of a call.

        Raises:
            OSError: ENODATA, not all that was changed since is in the history any more; the text says why.
        """
        ((number, link),) = self._read(
            "SELECT min(records.number) - 1, calls.link FROM records JOIN calls ON calls.number = call WHERE call = ?",
            (call.number,),
        )
        gone = self._read(
            "SELECT 1 FROM events WHERE link > ? AND event = 'gone' AND path ISNULL AND +call > 0", (link,)
        )
        self._require_all(call.began_ns, f"{call.ref} began", is_gone=bool(gone))
        return int(number)

    def begin_at(self, time_ns: int, words: str) -> int:
        """Return the number of the last record before a time.

        Args:
            time_ns: since the epoch.
            words: the time, for an error.

        Raises:
            OSError: ENODATA, not all that was changed since is in the history; the text says why.
        """
        ((oldest_ns,),) = self._read("SELECT min(began_ns) FROM calls", ())
        if oldest_ns is None or oldest_ns > time_ns:
            since = "" if oldest_ns is None else f": the oldest began {datetime.fromtimestamp(oldest_ns // 10**9)}"
            raise OSError(errno.ENODATA, f"the history has no call as old as '{words}'{since}")
        self._require_all(time_ns, f"'{words}'", is_gone=time_ns < self.forgotten_ns)
        first = "SELECT coalesce(min(number) - 1, (SELECT max(number) FROM records), 0) FROM records WHERE time_ns >= ?"
        ((number,),) = self._read(first, (time_ns,))
        return int(number)

    def end_at(self, time_ns: int) -> int:
        """Return a number that records before a time, since the epoch, are below."""
        ((number,),) = self._read("SELECT max(number) + 1 FROM records WHERE time_ns < ?", (time_ns,))
        return number or 0

    def _require_all(self, since_ns: int, words: str, *, is_gone: bool) -> None:
        """Raise ENODATA if a change since a time is not in the history.

        Args:
            is_gone: a call that has made one was deleted.
        """
        if is_gone:
            raise OSError(errno.ENODATA, f"calls that have changed something since {words} were forgotten")
        gaps = self._read(
            "SELECT call, why FROM gaps LEFT JOIN calls ON calls.number = gaps.call "
            "WHERE coalesce(ended_ns, ?) >= ? ORDER BY call LIMIT 1",
            (1 << 62, since_ns),
        )
        for gap, why in gaps:
            raise OSError(errno.ENODATA, f"a change of c{gap} was not recorded: {_text(why)}")

    def newest_at(self, prefix: AgentPath, path: bytes, below: int) -> Record | None:
        """Return the last record before one of this number that made, changed, moved or removed the file at a path, or
        moved a directory above it; None if there is none. Records of attributes are none."""
        directories, marks = _directories(path, 4)
        moves = "kind IN ('rename', 'exchange')"
        chosen = " UNION ALL ".join(
            f"SELECT max(number) AS found FROM records WHERE {condition} AND number < ?2 AND route = ?3"
            for condition in (
                "path = ?1 AND kind != 'attributes'",
                "to_path = ?1",
                f"path IN ({marks}) AND {moves}",
                f"to_path IN ({marks}) AND {moves}",
            )
        )
        values = (path, below, to_name(prefix), *directories)
        return next(iter(self._records(f"WHERE number = (SELECT max(found) FROM ({chosen}))", values)), None)

    def overlaps(self, calls: Sequence[int]) -> dict[int, tuple[Record, Record]]:
        """Return, by the number of a record of these calls, the first and the last record of others that are in the way
        of an undo (`overlaps.py`): at its paths, below and above, and what has changed its file by another name. For
        10,000 records it takes 0.3 s."""
        mine = (json.dumps([*calls]),)
        first = f"(SELECT min(number) FROM records WHERE call IN {AMONG})"
        if not self._read(f"SELECT 1 FROM records WHERE number > {first} AND call NOT IN {AMONG} LIMIT 1", mine):
            return {}
        ours = self._read(f"{OVERLAPS} SELECT number, call, route, path, to_path, is_whole FROM mine", mine)
        theirs = self._read(
            f"{OVERLAPS} SELECT records.number, coalesce((SELECT min(call) FROM undoes WHERE undo = records.call), 0), "
            f"route, path, to_path, {IS_MOVE} "
            "FROM others CROSS JOIN records ON records.number = others.number "
            f"WHERE records.call NOT IN {AMONG} AND NOT EXISTS "
            "(SELECT 1 FROM calls WHERE calls.number = records.call AND undone_by NOTNULL)",
            mine,
        )
        pairs = self._read(f"{OVERLAPS} SELECT mine, other FROM pairs", mine)
        found = overlapping([Touch(*each) for each in ours], [Touch(*each) for each in theirs], pairs)
        chosen = json.dumps([number for both in found.values() for number in both])
        known = {record.number: record for record in self._records(f"WHERE number IN {AMONG}", (chosen,))}
        return {number: (known[first], known[last]) for number, (first, last) in found.items()}

    def unfinished(self, calls: Sequence[int]) -> list[int]:
        """Return the undos of calls that are not undone: they were interrupted, and are not undone themselves."""
        return self._numbers(
            "SELECT DISTINCT undo FROM undoes CROSS JOIN calls AS made ON made.number = undo "
            "CROSS JOIN calls AS taken ON taken.number = undoes.call "
            f"WHERE undoes.call IN {AMONG} AND made.undone_by IS NULL AND taken.undone_by IS NULL",
            json.dumps([*calls]),
        )

    def _records(self, rest: str, values: Sequence[Any]) -> list[Record]:
        return [_record_of(row) for row in self._read(f"{_RECORDS} FROM records {rest}", values)]

    def images(self, place: str) -> set[str]:
        """Return the names of images in a place that records need: files, or snapshots."""
        return {_text(name) for (name,) in self._read("SELECT DISTINCT name FROM records WHERE place = ?", (place,))}

    def image_data(self, number: int) -> bytes:
        """Return the bytes of an image that the record of a number has (`Image.data`).

        Raises:
            OSError: EIO, they are gone.
        """
        statement = "SELECT bytes FROM events WHERE number = ? AND path NOTNULL AND bytes NOTNULL"  # by the index
        for (data,) in self._read(statement, (number,), flushed=True):
            return bytes(data)
        raise OSError(errno.EIO, "the bytes have been deleted")

    @property
    def image_bytes(self) -> int:
        """Of all images in records."""
        ((found,),) = self._read("SELECT coalesce(sum(length(bytes)), 0) FROM events WHERE place = 'file'", ())
        return int(found)

    def _read(self, statement: str, values: Sequence[Any], *, flushed: bool = False) -> list[tuple[Any, ...]]:
        """Return the rows of a question.

        Args:
            flushed: it asks for what is written for sure, such as what a record says that was read before. An undo asks
                for the bytes of each file, and has added a record for the one before.
        """
        if not flushed:
            self.flush()
        with self._reading, self._read_errors:
            return self._reader.execute(statement, [sqlite.bound(value) for value in values]).fetchall()

    def _numbers(self, statement: str, *values: Any) -> list[int]:
        """`_read` of one column."""
        return [number for (number,) in self._read(statement, values)]

    def at(self, paths: Iterable[AgentPath]) -> list[Record]:
        """Return the records of changes at or below paths of the mount."""
        return [each for condition, values in self._at(paths) for each in self._records(f"WHERE {condition}", values)]

    def forget_contents(self, paths: Iterable[AgentPath], nodes: Mapping[AgentPath, Iterable[int]]) -> None:
        """Have the records of changes at or below these paths, and of these nodes, name no image and no extended
        attributes any more, and erase what the file has of deleted rows. The records stay.

        Args:
            nodes: of files, by the prefix of their route.
        """
        paths = list(paths)
        for condition, values in self._at(paths):
            self._forget_contents(condition, values)
        for prefix, numbers in nodes.items():
            for node in numbers:
                self._forget_contents("route = ? AND (node = ? OR image_node = ?)", (to_name(prefix), node, node))
        asked = [each.number for each in self.requests() if requests.concerns(each, paths)]
        with self._guard:
            for number in asked:
                self._append((-number,), requests.FORGET)
        self.flush()
        with self._writing, self._reading, sqlite.translate_errors(f"the history '{self.path}' can't be rewritten"):
            self._writer.execute("VACUUM")
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _forget_contents(self, condition: str, values: Iterable[Any]) -> None:
        with self._guard:
            self._append((FORGOTTEN, *values), _ERASE + condition)

    def verify(self) -> VerifyResult:
        """Check that the history is as it was written, see `events.py`."""
        self.flush()
        with (
            self._read_errors,
            contextlib.closing(sqlite.open_file(self.path, "mode=ro")) as reader,
            sqlite.transaction(reader, "DEFERRED"),
        ):
            return events.verify(reader)

    # -- requests ----------------------------------------------------------------------------------------------

    def put_request(self, event: Mapping[str, Any]) -> None:
        """Keep a new request for an approval, or what became of one: `requests.asked` or `requests.became`. `require`
        waits until it is written."""
        with self._guard:
            self._put(**event)

    def delete_requests(self, numbers: Iterable[int]) -> None:
        """Delete requests."""
        self._forget([-number for number in numbers])

    def _forget(self, calls: Sequence[int]) -> None:
        """Have all go that is said of calls, or of requests, which have negative numbers here."""
        with self._guard:
            self._append((self.forgotten_ns, *calls), FORGET)

    def requests(self) -> list[Request]:
        """Return all requests, by number."""
        return requests.load(self._read(requests.SELECT, ()))

    # -- retention ---------------------------------------------------------------------------------------------

    def oldest(self, limit: int) -> list[int]:
        """Return the numbers of the oldest calls that have ended."""
        return self._numbers("SELECT number FROM calls WHERE ended_ns IS NOT NULL ORDER BY number LIMIT ?", limit)

    def ended_before(self, time_ns: int) -> list[int]:
        """Return the numbers of calls that ended before a time."""
        first = "number IN (SELECT call FROM events WHERE event = 'end' AND number < ? AND path ISNULL)"
        return self._numbers(
            f"SELECT number FROM calls WHERE {first} AND ended_ns < ? ORDER BY number", time_ns, time_ns
        )

    def going_on(self, number: int) -> list[int]:
        """Return the calls that had changed something when the record of this number was the last one, and that ended
        later."""
        last = "SELECT link FROM events WHERE number <= ? AND path NOTNULL ORDER BY number DESC LIMIT 1"
        return self._numbers(
            f"SELECT call FROM events AS ends WHERE event = 'end' AND path ISNULL AND link > coalesce(({last}), 0) "
            "AND EXISTS (SELECT 1 FROM records WHERE records.call = ends.call AND number <= ?)",
            number,
            number,
        )

    def bind(self, backends: Mapping[AgentPath, str | None]) -> None:
        """Delete the calls that changed a route which another backend has now: an undo would change the wrong files. Of
        a branch in the place of another one of its name only the records are deleted.

        Args:
            backends: each prefix with a text that names its backend, the same in the next server; None for one whose
                files end with its server.
        """
        known = dict(self._read("SELECT prefix, backend FROM routes", ()))
        for prefix, backend in backends.items():
            stored, named = to_name(prefix), sqlite.bound(backend)
            if backend is None or known.get(stored, named) != named:
                if self.apart is not None and is_below(prefix, self.apart):
                    self.drop_route(prefix)
                else:
                    self.forget(self._numbers("SELECT DISTINCT call FROM records WHERE route = ?", stored))
            with self._guard:
                self._append((stored, named), _ROUTE)
        self.flush()

    def drop_route(self, prefix: AgentPath) -> None:
        """Delete the records of a branch that is gone. Their images are for the caller to remove."""
        stored = to_name(prefix)
        self.drop(self._numbers("SELECT number FROM records WHERE route = ?", stored))
        with self._guard:  # a change on the way may leave another record: `bind` finds that
            self._append((stored, None), _ROUTE)
        self.flush()

    def bound_apart(self) -> list[AgentPath]:
        """Return the prefixes of all branches that have or had records."""
        if self.apart is None:
            return []
        rows = self._read("SELECT prefix FROM routes WHERE prefix > ? AND prefix < ?", _below(to_name(self.apart)))
        return [AgentPath(os.fsdecode(prefix)) for (prefix,) in rows]

    def changed_routes(self, call: int) -> set[AgentPath]:
        """Return the prefixes of the routes that a call has changed."""
        rows = self._read("SELECT DISTINCT route FROM records WHERE call = ?", (call,))
        return {AgentPath(os.fsdecode(prefix)) for (prefix,) in rows}

    def forget(self, calls: Sequence[int]) -> None:
        """Delete calls and their records. Their images are for the caller to remove, see `images`."""
        if not calls:
            return
        chosen = json.dumps(list(calls))
        ends = self._read(f"{_LAST.format('end')} AND call IN {AMONG}", (chosen,))
        self.forgotten_ns = max(self.forgotten_ns, ends[0][0])
        self._forget(calls)
        self.flush()
        self.forgets += 1
        with self._writing, sqlite.translate_errors(f"the history '{self.path}' can't be made smaller"):
            self._writer.execute("PRAGMA incremental_vacuum").fetchall()


def _locked(directory: str) -> int:
    """Make the directory, and lock it for this process; returns the descriptor that holds the lock."""
    os.makedirs(directory, 0o700, exist_ok=True)
    os.chmod(directory, 0o700)
    lock = os.open(os.path.join(directory, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException as error:
        os.close(lock)
        if isinstance(error, BlockingIOError):
            raise HistoryLocked(errno.EBUSY, f"another server keeps its history in '{directory}'") from None
        raise
    return lock


def _connect(path: str) -> sqlite3.Connection:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    connection = sqlite.open_file(path, "mode=rw")
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version not in (0, VERSION):
            raise sqlite3.DatabaseError(f"it is of another version: {version}, and this program knows {VERSION} alone")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # before there is a table
        connection.execute("PRAGMA journal_mode = WAL").fetchone()
        connection.execute("PRAGMA synchronous = NORMAL")
        small = os.stat(path).st_size <= CHECKED_BYTES
        if small and connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
            raise sqlite3.DatabaseError("it is damaged: quick_check finds errors")
        connection.executescript(events.SCHEMA)
        connection.execute(f"PRAGMA user_version = {VERSION}")
    except BaseException:
        connection.close()
        raise
    return connection


def _set_aside(path: str) -> str:
    """Rename the file and its WAL; returns the new path. An earlier file of that name is deleted."""
    place = path + ASIDE
    for end in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(place + end)
        with contextlib.suppress(FileNotFoundError):
            os.rename(path + end, place + end)
    return place


# -- rows ------------------------------------------------------------------------------------------------------


def _text(value: Any) -> Any:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value


def _word(payload: bytes, place: int) -> Any:
    return decode(payload)[place]


def _record_of(row: Sequence[Any]) -> Record:
    number, call, time_ns, route, kind, path, to_path, node, linked, payload, *image, secret, stamp, identity = row
    before = None
    if payload is not None:
        *words, target = decode(payload)
        before = State._make((*words, {} if secret is None else decode(secret), target))
    kept = None if image[0] is None else Image(image[0], _text(image[1]) or "", image[2])
    after = None if stamp is None else Stamp(*decode(stamp))
    return Record(
        number, call, time_ns, AgentPath(os.fsdecode(route)), kind, path, to_path or b"", node, bool(linked), before,
        kept, after, identity or b"",
    )  # fmt: skip


def _below(path: bytes) -> tuple[bytes, bytes]:
    """Return the bounds, both exclusive, of the paths below a path."""
    bare = path.rstrip(b"/")
    return bare + b"/", bare + b"0"


def _directories(path: bytes, first: int) -> tuple[list[bytes], str]:
    """Return the directories above a path, and for a statement their parameters, from this number on."""
    directories = list(above(path.rstrip(b"/")))
    return directories, ", ".join(f"?{first + place}" for place in range(len(directories))) or "NULL"


def _touching(number: int, prefix: AgentPath, path: bytes) -> tuple[str, list[Any]]:
    """Return a statement for the numbers of the records after one that touch a path of its route, see `later`."""
    directories, marks = _directories(path, 6)
    whole = "('create', 'remove', 'rename', 'exchange')"
    # Several statements in one, each of which an index answers.
    chosen = " UNION ".join(
        f"SELECT number FROM records WHERE number > ?1 AND route = ?2 AND {condition}"
        for condition in (
            "path = ?3",
            "to_path = ?3",
            "path > ?4 AND path < ?5",
            "to_path > ?4 AND to_path < ?5",
            f"path IN ({marks}) AND kind IN {whole}",
            f"to_path IN ({marks}) AND kind IN {whole}",
        )
    )
    return chosen, [number, to_name(prefix), path, *_below(path), *directories]
