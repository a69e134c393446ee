"""`BranchCalls`: who changed what in a branch, in the branch's own file.

A change has a row in the transaction that has the change itself, so that a crash takes both or none, and a copy of the
branch has them too. A call is one of the mount's (`history/calls.py`), with a number of its own in the branch, and that
of the mount beside it. A file's bytes and attributes are noted once for each call, names each time. The bytes from
before a change are in the history alone, by whose records `diff` and `undo` go.

Places are kept as node and name, and shown as they are now (`BranchVolume.changes`), for a directory can move. All
calls hold the branch's lock.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from fusebackend.base.paths import to_name, to_text
from fusebackend.history.calls import Calls, OpenCall
from fusebackend.protocol import Actor

MAX_CHANGES: Final = 100_000
"""A branch remembers so many, the newest: some 10 MB."""

MOST_OPEN: Final = 100
"""Calls that go on, of which is known what they have changed already. Another one may be noted twice."""

TABLES: Final = (
    """CREATE TABLE IF NOT EXISTS branch_call (
        number INTEGER PRIMARY KEY, kind TEXT NOT NULL, title BLOB NOT NULL, agent BLOB NOT NULL, thread BLOB NOT NULL,
        tool_call BLOB NOT NULL, command BLOB NOT NULL, uid INTEGER, pid INTEGER, host BLOB NOT NULL,
        began_ns INTEGER NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS branch_change (
        number INTEGER PRIMARY KEY, call INTEGER NOT NULL, time_ns INTEGER NOT NULL, kind TEXT NOT NULL,
        node INTEGER NOT NULL, parent INTEGER NOT NULL, name BLOB NOT NULL, to_parent INTEGER NOT NULL,
        to_name BLOB NOT NULL)""",
    "CREATE TABLE IF NOT EXISTS branch_call_of (number INTEGER PRIMARY KEY, call INTEGER NOT NULL)",
    "CREATE INDEX IF NOT EXISTS branch_change_call ON branch_change (call)",
    "CREATE INDEX IF NOT EXISTS branch_change_node ON branch_change (node)",
)

ChangeKind: TypeAlias = Literal["create", "remove", "rename", "exchange", "content", "attributes"]


class BranchCall(NamedTuple):
    """A call that has changed something in a branch."""

    number: int
    kind: str
    title: str
    actor: Actor
    began_ns: int
    ended_ns: int | None
    """Its last change. None while it goes on."""
    changes: int
    call: int = 0
    """The number of the call in the mount; 0 if it is not known: a copy of the branch does not have it, for it would be
    that of a call in the other one."""


class BranchChange(NamedTuple):
    """A row of `branch_change`."""

    number: int
    call: int
    time_ns: int
    kind: ChangeKind
    node: int
    parent: int
    name: bytes
    to_parent: int
    to_name: bytes


class Rows:
    """Calls and changes that are not in the file yet."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.numbers: list[tuple[int, int]] = []
        self.changes: list[BranchChange] = []

    def write(self, db: sqlite3.Connection) -> None:
        """Write them, inside the caller's transaction, and delete the oldest changes beyond `MAX_CHANGES`."""
        db.executemany(f"INSERT INTO branch_call VALUES ({', '.join('?' * 11)})", self.calls)
        db.executemany("INSERT INTO branch_call_of VALUES (?, ?)", self.numbers)
        db.executemany(f"INSERT INTO branch_change VALUES ({', '.join('?' * 9)})", self.changes)
        oldest = self.changes[-1].number - MAX_CHANGES if self.changes else 0
        if oldest > 0 and db.execute("DELETE FROM branch_change WHERE number <= ?", (oldest,)).rowcount:
            left = "SELECT 1 FROM branch_change WHERE call = branch_call.number"
            db.execute(f"DELETE FROM branch_call WHERE NOT EXISTS ({left})")
            db.execute("DELETE FROM branch_call_of WHERE number NOT IN (SELECT number FROM branch_call)")


class _Noted:
    """What a call that goes on has changed."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.files: dict[int, set[ChangeKind]] = {}


class BranchCalls:
    """See the module's docstring.

    Args:
        db: the branch's file.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._open: dict[OpenCall, _Noted] = {}
        self._call: int = db.execute("SELECT coalesce(max(number), 0) FROM branch_call").fetchone()[0]
        self._change: int = db.execute("SELECT coalesce(max(number), 0) FROM branch_change").fetchone()[0]

    def note(
        self,
        rows: Rows,
        authors: Calls,
        kind: ChangeKind,
        node: int,
        old: tuple[int, bytes] = (0, b""),
        new: tuple[int, bytes] = (0, b""),
    ) -> bool:
        """Note a change, by the call that makes it. False if the call has changed the file in this way already.

        Args:
            rows: take it.
            node: the file.
            old: directory and name, of a name that was made, removed or renamed.
            new: those that a rename leads to.
        """
        author = authors.current()
        noted = self._open.get(author)
        if noted is None:
            noted = self._begin(rows, authors, author)
        known = noted.files.setdefault(node, set())
        if kind in ("content", "attributes"):
            if known & {"create", "content", kind}:
                return False
            known.add(kind)
        elif kind == "create":
            known.add(kind)
        self._change += 1
        rows.changes.append(BranchChange(self._change, noted.number, time.time_ns(), kind, node, *old, *new))
        return True

    def _begin(self, rows: Rows, authors: Calls, author: OpenCall) -> _Noted:
        if len(self._open) >= MOST_OPEN:
            self._open = {each: noted for each, noted in self._open.items() if not each.ended}
            if len(self._open) >= MOST_OPEN:
                del self._open[next(iter(self._open))]
        self._call += 1
        rows.numbers.append((self._call, authors.number(author)))  # before the time below: it begins that call
        title, actor = authors.said(author)
        words = [to_name(each) for each in (actor.agent, actor.thread, actor.call, actor.command)]
        row = (actor.uid, actor.pid, to_name(actor.host), time.time_ns())
        rows.calls.append((self._call, author.kind, to_name(title), *words, *row))
        noted = self._open[author] = _Noted(self._call)
        return noted

    def all(self, db: sqlite3.Connection) -> Iterator[BranchCall]:
        """Yield the calls that are in the file, the newest first."""
        going_on = {noted.number for author, noted in self._open.items() if not author.ended}
        rows = db.execute(
            "SELECT branch_call.*, coalesce(branch_call_of.call, 0), max(time_ns), count(*) FROM branch_call "
            "JOIN branch_change ON branch_change.call = branch_call.number "
            "LEFT JOIN branch_call_of ON branch_call_of.number = branch_call.number "
            "GROUP BY branch_call.number ORDER BY branch_call.number DESC"
        ).fetchall()
        for number, kind, title, *words, uid, pid, host, began_ns, of_mount, last_ns, changes in rows:
            agent, thread, tool_call, command = map(to_text, words)
            actor = Actor(agent, thread, tool_call, command, uid, pid, to_text(host))
            ended_ns = None if number in going_on else last_ns
            yield BranchCall(number, kind, to_text(title), actor, began_ns, ended_ns, changes, of_mount)
