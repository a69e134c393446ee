"""`KeptLog`: rows of a host's history in the transactions that make its changes (`protocol/commit_log.py`).

A killed server takes what it had in memory: the records of the last tenth of a second, and the answers to its commits.
The rows say which changes were made, and the next server of that history takes them up. The statement that tells the
feed of a change adds its row: one of its own would take twice as long. Every `PERIOD_S` of the session another one
deletes those that the history has in its file, until `SETTLED_S` after the last change. A host that never comes back
leaves its rows: the next history to begin after `KEPT`, longer than a history keeps its calls, deletes them.

A crash of the server takes the last changes with their rows (`unsynced.py`), and the history has their records. So no
row is deleted before the server's disk has it; after a crash the history is told which rows are not there.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from psycopg import Connection

from fusebackend.backends.postgres.statements import ALWAYS, keyed
from fusebackend.backends.postgres.unsynced import WAIT_FOR_DISK
from fusebackend.databases.pipeline import BEGIN, COMMIT, Statement, rows_of, send
from fusebackend.protocol import CommitLog, LogRow

KEPT: Final = "7 days"
"""How long the rows of a history are kept for it."""

SETTLED_S: Final = 120.0
"""So long after its last row a history has none there: longer than a transaction, and than its outcome is in doubt
(`history_file.DOUBT_S`)."""

_OWN: Final = "volume = %s::int AND history = %s::text::uuid"


class KeptLog:
    """See the module's docstring. Any thread may call any method.

    Args:
        volume: the volume's number in the tables.
        log: the history.
        incarnation: returns the server's, on a connection; another one after a crash.
    """

    def __init__(self, volume: int, log: CommitLog, incarnation: Callable[[Connection[Any]], str]) -> None:
        self.history = log.history
        self._own = (volume, log.history)
        self._log = log
        self._incarnation = incarnation
        self._sweeping = threading.Lock()
        self._before = ""  # the incarnation of the last sweep
        self._unsafe: set[int] = set()  # rows that a crash may take
        self._suspects: set[int] = set()  # … and one may have taken
        self._added_at_s = -math.inf
        self._swept_at_s = 0.0

    def added(self, rows: Sequence[LogRow], statements: list[Statement]) -> list[Statement]:
        """Return the statements of a transaction that tell of its changes, with rows added by the first one."""
        if not rows:
            return statements
        self._added_at_s = time.monotonic()
        self._unsafe.update(number for number, _ in rows)
        records, values = keyed(("int8", "bytea"), rows)
        query = (
            "INSERT INTO fusebackend.logged (volume, history, number, record)"
            f" SELECT %s::int, %s::text::uuid, * FROM {records} k {ALWAYS}"
        )
        if not statements:
            return [(query, [*self._own, *values])]
        (first, parameters), *others = statements
        return [(f"WITH logged AS ({query}) {first}", [*self._own, *values, *parameters]), *others]

    def load(self, connection: Connection[Any]) -> list[LogRow]:
        """The rows that are there, by their numbers.

        Deletes those of hosts that have not come back: that reads all rows of the volume, few as they are.
        """
        self._before = self._incarnation(connection)
        query = f"SELECT number, record FROM fusebackend.logged WHERE {_OWN} ORDER BY number"
        found = [(number, bytes(record)) for number, record in rows_of(connection, query, self._own)]
        if found:
            self._added_at_s = time.monotonic()
        old = (
            "DELETE FROM fusebackend.logged WHERE volume = %s::int AND history <> %s::text::uuid"
            f" AND at < now() - interval '{KEPT}'"
        )
        rows_of(connection, old, self._own)
        return found

    def sweep(self, connection: Connection[Any]) -> None:
        """Delete the rows that the history does not need. Those whose commit had no answer are looked for first, and
        those that a crash may have taken."""
        with self._sweeping:  # else what another thread deletes seems to be lost
            began_s = time.monotonic()
            doubtful = list(self._log.doubtful())
            if doubtful:
                self._log.settle(self._there(connection, doubtful))
            self._look_for_lost(connection)
            written, unsafe = self._log.written(), self._unsafe.copy()
            send(connection, [BEGIN, WAIT_FOR_DISK, COMMIT])
            self._unsafe.difference_update(number for number in unsafe if number < written)
            query = f"DELETE FROM fusebackend.logged WHERE {_OWN} AND number < %s"
            rows_of(connection, query, (*self._own, written))
            self._swept_at_s = began_s

    def _look_for_lost(self, connection: Connection[Any]) -> None:
        incarnation = self._incarnation(connection)
        if incarnation != self._before:
            self._suspects.update(self._unsafe.copy())
            self._before = incarnation
        decided = self._suspects.difference(self._log.pending())  # first: what is confirmed by now has its row
        lost = decided.difference(self._there(connection, decided)) if decided else ()
        if lost:
            self._log.lost(sorted(lost))
        self._suspects -= decided

    def _there(self, connection: Connection[Any], numbers: Iterable[int]) -> list[int]:
        query = f"SELECT number FROM fusebackend.logged WHERE {_OWN} AND number = ANY(%s::int8[])"
        return [number for (number,) in rows_of(connection, query, (*self._own, list(numbers)))]

    @property
    def is_due(self) -> bool:
        """Whether `sweep` is to be called: not on an idle host, after one that began when all was settled."""
        return self._swept_at_s < self._added_at_s + SETTLED_S
