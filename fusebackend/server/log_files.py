"""`LogFiles`: the kernel face of `/.fusebackend/log`: the calls of the history as files, a line for each call.

    2026-11-23.jsonl    the calls that ended on that day, as JSON, in the order of their ends
    today.jsonl         those of the present day; an open handle stays with its day
    calls.tsv           all of them, as a table

A file grows when a call ends, and only then, so `tail -f` follows it. A handle reads past the page cache, which would
keep the last page as it was. Nothing can be changed (EROFS). Only the server's user can read: titles name files and
commands that others need not know of.

Lines are made when somebody looks, and kept in an unnamed file until a call in it is deleted. A look costs a query; the
first one after a start, some 0.1 ms for each call.

Any thread; `lock` is held while lines are made.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from datetime import date, datetime, timedelta
from datetime import time as clock
from typing import IO, Final

from fusebackend.base.errors import oserror
from fusebackend.base.paths import to_name
from fusebackend.base.shown import name_shown
from fusebackend.history.history_file import Filter, HistoryFile
from fusebackend.history.records import Call
from fusebackend.protocol import Attr
from fusebackend.server.history import call_info, change_info
from fusebackend.vfs.pseudo_files import PseudoDirectory, own_attr

TABLE_NODE: Final = 2
TODAY_NODE: Final = 3
FIRST_DAY: Final = 1 << 10
"""The node of a day is this and its ordinal."""

OPENED: Final = 1 << 32
"""Added to the node of a file: its node for open handles."""

LISTED_CHANGES: Final = 100
"""Changes that a line of JSON has; `changes` counts all."""

FETCHED: Final = 500
"""Calls in one query."""

COLUMNS: Final = (
    "call", "began", "ended", "kind", "agent", "thread", "tool_call", "command", "uid", "pid", "changes", "undoes",
    "title",
)  # fmt: skip
"""Of the table."""

_NS: Final = 10**9


class _Lines:
    """A file: the lines of the calls that ended from one time to another."""

    def __init__(
        self, history: HistoryFile, line: Callable[[Call], bytes], head: bytes, begin_ns: int, end_ns: int
    ) -> None:
        self._history = history
        self._line = line
        self._head = head
        self._begin_ns, self._end_ns = begin_ns, end_ns
        self._file: IO[bytes] = tempfile.TemporaryFile(dir=os.path.dirname(history.path))  # noqa: SIM115  # see `close`
        self._reset()

    def _reset(self) -> None:
        self._forgets = self._history.forgets
        self._file.seek(0)
        self._file.truncate()
        self._file.write(self._head)
        self.size = len(self._head)
        self.last_ns = self._begin_ns - 1
        """The end of the last call in it."""

    def extend(self) -> None:
        """Add the calls that have ended since the last look."""
        if self._forgets != self._history.forgets:
            self._forgets = self._history.forgets
            if self._history.forgotten_ns >= self._begin_ns:
                self._reset()
        while True:
            wanted = Filter(ended_after_ns=self.last_ns, ended_before_ns=self._end_ns, with_requests=True)
            found = self._history.calls(FETCHED, wanted)
            for call in found:
                assert call.ended_ns is not None, "it was asked for by its end"
                self.size += self._file.write(self._line(call))
                self.last_ns = call.ended_ns
            if len(found) < FETCHED:
                break
        self._file.flush()

    def read(self, offset: int, size: int) -> bytes:
        return os.pread(self._file.fileno(), size, offset)

    def close(self) -> None:
        self._file.close()


class LogFiles(PseudoDirectory):
    """See the module's docstring.

    Args:
        history: of the mount.
    """

    features = replace(PseudoDirectory.features, blocking=True)
    file_mode = 0o400
    directory_mode = 0o500

    def __init__(self, history: HistoryFile) -> None:
        super().__init__()
        self._history = history
        self._files: dict[int, _Lines] = {}

    def close(self) -> None:
        """Let go of the files. Twice is once."""
        with self.lock:
            for each in self._files.values():
                each.close()
            self._files.clear()

    # -- names and attributes ----------------------------------------------------------------------------------

    def nodes(self) -> Mapping[bytes, int]:
        days = {date.today(), *(_day_of(each) for each in self._history.ends(_next_midnight))}
        found = {to_name(f"{day.isoformat()}.jsonl"): FIRST_DAY + day.toordinal() for day in days}
        return {**found, b"calls.tsv": TABLE_NODE, b"today.jsonl": TODAY_NODE}

    def file_attr(self, node: int) -> Attr:
        with self.lock:
            lines = self._extended(node)
            time_ns = lines.last_ns if lines.last_ns > 0 else self.since_ns
            return own_attr(node, stat.S_IFREG | self.file_mode, time_ns, lines.size)

    def _extended(self, node: int) -> _Lines:
        """Return the file of a node, with all calls that have ended. With the lock held."""
        node = self._of_day(node % OPENED)
        lines = self._files.get(node)
        if lines is None:
            if node == TABLE_NODE:
                head = "\t".join(COLUMNS).encode() + b"\n"
                lines = _Lines(self._history, _row, head, 1, 1 << 62)
            elif node > FIRST_DAY:
                begin = date.fromordinal(node - FIRST_DAY)
                until_ns = _midnight(begin + timedelta(days=1))
                lines = _Lines(self._history, self._object, b"", _midnight(begin), until_ns)
            else:
                raise oserror(errno.ESTALE)
            self._files[node] = lines
        lines.extend()
        return lines

    def _of_day(self, node: int) -> int:
        return FIRST_DAY + date.today().toordinal() if node == TODAY_NODE else node

    # -- data --------------------------------------------------------------------------------------------------

    def opened(self, node: int) -> Attr:
        return self.file_attr(OPENED + self._of_day(node))

    def read(self, node: int, offset: int, size: int) -> bytes:
        with self.lock:
            return self._extended(node).read(offset, size)

    # -- lines -------------------------------------------------------------------------------------------------

    def _object(self, call: Call) -> bytes:
        info = asdict(call_info(call))
        del info["undone_by"]  # it comes later, and a line stays as it is
        found = [change_info(each) for each in self._history.records(call.number, LISTED_CHANGES)]
        changed = [{"change": each.change, "path": each.path, "to_path": each.to_path} for each in found]
        return json.dumps({"time": _iso(call.ended_ns), **info, "changed": changed}).encode("ascii") + b"\n"


def _row(call: Call) -> bytes:
    actor = call.actor
    words = (
        call.ref, _iso(call.began_ns), _iso(call.ended_ns), call.kind, actor.agent, actor.thread, actor.call,
        actor.command, actor.uid, actor.pid, call.changes, " ".join(f"c{each}" for each in call.undoes), call.title,
    )  # fmt: skip
    return "\t".join("" if word is None else name_shown(str(word)) for word in words).encode() + b"\n"


def _iso(time_ns: int | None) -> str:
    """Return a local time, with its offset."""
    return "" if time_ns is None else datetime.fromtimestamp(time_ns / _NS).astimezone().isoformat("T", "milliseconds")


def _midnight(day: date) -> int:
    """Return the begin of a day, in the local zone."""
    return round(datetime.combine(day, clock()).timestamp()) * _NS


def _next_midnight(time_ns: int) -> int:
    return _midnight(_day_of(time_ns) + timedelta(days=1))


def _day_of(time_ns: int) -> date:
    return datetime.fromtimestamp(time_ns / _NS).date()
