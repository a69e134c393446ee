"""`HostSession`: this process among those that have a volume open; and the settings of all connections of a volume.

A session has a row in the table, and a connection that holds the advisory lock (`SESSION_LOCK`, id). A free lock means
that the process is gone, or can't reach the server any more. The same connection listens, reads the rows of the change
feed and sends its wake-ups (`feed.py`): it is the only one of a host that is idle. The session hands out node numbers,
and versions, which are the session's id and a count. Neither is ever given twice: the row and each block of numbers
are committed with a wait for the disk, and numbers are left out where the server may have an older state than before
(`schema.SKIP_NUMBERS`).

The last name of a node may go while processes on other hosts have it open; their feeds learn that a little later, and
they then register in `nameless`. So a node without a registered user is kept for `GRACE_S`, unless this is the only
session. A session whose lock has been free for as long is dead, and its registrations end; one that has only lost its
connection takes the lock again before.

The session's thread does what one of all hosts has to do, in portions with pauses between (`Worker`): it frees nodes
without a name and what deleted snapshots had (`old_rows.Pruner`), deletes old rows of the change feed, and brings the
search index up to date (`search.py`). The first sessions ask every `PERIOD_S` what there is to do, and all others
every `UNLED_S`: the first may have been killed, or stopped with all their locks.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple, TypeVar

from psycopg import Connection
from psycopg.errors import InsufficientPrivilege, LockNotAvailable
from psycopg.types.numeric import Int8BinaryDumper, Int8Dumper

from fusebackend.backends.postgres import old_rows, statements
from fusebackend.backends.postgres.feed import IS_OLD, VolumeFeed, channel, hello
from fusebackend.backends.postgres.schema import (
    LEASE_LOCK,
    NODES_AT_ONCE,
    REAP_LOCK,
    SESSION_LOCK,
    SKIP_NUMBERS,
)
from fusebackend.backends.postgres.uses import Uses
from fusebackend.base.waiting import will_wait
from fusebackend.databases.listener import Listener
from fusebackend.databases.pipeline import BEGIN, COMMIT, Statement, rollback, rows_of, send, transaction
from fusebackend.databases.postgres import Connections, is_pooled, translate_errors, when_free
from fusebackend.protocol import Change

log = logging.getLogger(__name__)

LOCK_S = 10
"""How long a change waits for another one, of any host, before it fails with EBUSY."""

IDLE_S = 30
"""A host that is silent for so long in the middle of a change loses its locks."""

SETTINGS = {
    # A commit waits for no disk where its caller does not ask for that (`unsynced.py`). A wake-up of the feed holds
    # a lock of the whole server until its commit.
    "synchronous_commit": "off",
    "jit": "off",
    # A table that was small when a statement was prepared is not read to its end when it has grown.
    "enable_seqscan": "off",
    "lock_timeout": f"{LOCK_S}s",
    "idle_in_transaction_session_timeout": f"{IDLE_S}s",
    "client_encoding": "UTF8",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
}
"""Of each connection of a volume."""

GRACE_S = 60.0
"""How long a node without a name is kept for other hosts that may have it open; and how long a host that has lost its
connection has to come back."""

REJOIN_S: Final = 20.0
"""A session whose connection was silent for so long, as that of a computer that slept, may be taken for dead soon."""

PERIOD_S = 10.0
"""How often the thread frees nodes, and checks its connection."""

UNLED_S = 120.0
"""How often a session looks after the volume, and does what it finds, though others are to."""

GATHER_S = 0.5
"""How long a registration waits for more, to be written together."""

FREED_AT_ONCE = 500

PAUSE_S: Final = 0.02
"""Between two portions of work in the background, if they take no longer."""

_CLAIM = "SELECT pg_advisory_lock(%s::int, %s::int)"

_CUT_OFF = """
SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid <> pg_backend_pid()
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
AND classid = %s::int::oid AND objid = %s::int::oid AND objsubid = 2
"""
"""Ends an older connection of this session: lost here, while the server may keep it for hours."""

_UNUSED = """
SELECT node FROM fusebackend.nameless n WHERE volume = %s AND session = 0 AND since <= now() - CASE
WHEN EXISTS (SELECT FROM fusebackend.session s WHERE s.volume = n.volume AND s.id <> {own})
THEN interval '{grace_s} s' ELSE interval '0 s' END AND NOT EXISTS (SELECT 1
FROM fusebackend.nameless u WHERE u.volume = n.volume AND u.node = n.node AND u.session <> 0)
"""

_ABANDON = """
WITH gone AS (DELETE FROM fusebackend.nameless WHERE volume = %s AND session = ANY(%s){also} RETURNING volume, node)
INSERT INTO fusebackend.nameless (volume, node, session) SELECT volume, node, 0 FROM gone ON CONFLICT DO NOTHING
"""
"""Nodes without a name that sessions use no more are without a known user from now on."""

T = TypeVar("T")


def configure(connection: Connection[Any]) -> None:
    """Set up a connection of a volume."""
    # One type for all numbers: else every statement is prepared again for each size of them.
    for dumper in (Int8Dumper, Int8BinaryDumper):
        connection.adapters.register_dumper(int, dumper)
    settings = ", ".join(f"set_config('{name}', '{value}', false)" for name, value in SETTINGS.items())
    send(connection, [(f"SELECT {settings}", ())])


def require_own_process(conninfo: str) -> None:
    """Refuse a transaction pooler, which runs each transaction of a connection in any process of the server.

    Settings, advisory locks, LISTEN and prepared statements belong to a process: hosts would lose their locks, and
    other clients of the pooler get the settings of a volume, whose commits do not wait for the disk.

    Raises:
        OSError: it is one; or the server can't be reached.
    """
    if is_pooled(conninfo):
        words = (
            "a volume can't be kept behind a transaction pooler (such as PgBouncer with pool_mode = transaction):"
            " give the address of the server itself, or of a pooler in session mode"
        )
        raise OSError(errno.ENOTSUP, words)


class Worker(NamedTuple):
    """Work in the background of a volume, which one of the first hosts does (`VolumeFeed.leads`), or else another."""

    failure: str
    """What the log says when it fails."""
    left: str
    """SQL, whose parameter is the volume: whether there may be something to do."""

    work: Callable[[Connection[Any]], bool]
    """Does a portion, in a short transaction. Returns whether there is more to do now."""


class HostSession:
    """See the module's docstring.

    Args:
        conninfo: how to connect to the server.
        connections: for the work that may take long.
        changed, became: as for `VolumeFeed`.

    Attributes:
        uses, feed: the nodes that are used here, and the changes of other hosts.
        newest: the newest snapshot, which the volume's tree asks for as well.
        workers: what the session's thread does in the background.

    Raises:
        OSError: the server can't be reached, or refuses.
    """

    id = 0
    """0 until it is registered."""

    each_period: Callable[[], object] = staticmethod(lambda: None)
    """Called every `PERIOD_S` in the session's thread. May raise OSError."""

    def __init__(
        self,
        conninfo: str,
        volume: int,
        connections: Connections,
        changed: Callable[[Sequence[Change]], object],
        became: Callable[[bool], object],
    ) -> None:
        self._volume = volume
        self.uses = Uses()
        self.feed = feed = VolumeFeed(volume, changed, became)
        self._connections = connections
        self._numbers = threading.Lock()
        self._nodes = iter(range(0))
        self._counts = itertools.count(1)
        self._unregistered: set[int] = set()  # open here and changed elsewhere: they may have lost their names
        self.newest = old_rows.Newest(volume)
        self._busy: list[Worker] = []  # those that have something to do
        self._failing: set[Worker] = set()
        self._due_at = 0.0  # when the thread looks for something to do
        self._looked_at = 0.0  # when it last looked for what one of all has to do
        self._stop = threading.Event()
        self._wake = threading.Event()
        feed.register = self._register
        with translate_errors():
            self._host = when_free(lambda: Listener(conninfo, channel(volume), feed, name="fusebackend-feed"))
        feed.wake, feed.is_quiet = self._host.wake, self._host.is_quiet
        self.workers = [
            Worker("nodes without a name can't be freed", f"EXISTS ({self._unused})", self._free_some),
            Worker("what deleted snapshots had can't be freed", old_rows.IS_LEFT, old_rows.Pruner(volume).work),
            Worker("changes that all hosts have heard of can't be deleted", IS_OLD, feed.sweep),
        ]
        self._thread = threading.Thread(target=self._work, name=f"fusebackend-session-{self.id}", daemon=True)
        self._thread.start()

    # -- numbers -----------------------------------------------------------------------------------------------

    def new_version(self) -> int:
        return self.id << 32 | next(self._counts)

    def new_node(self) -> int:
        with self._numbers:
            node = next(self._nodes, None)
            if node is None:
                first = self.run(_block)
                self._nodes = iter(range(first, first + NODES_AT_ONCE))
                node = next(self._nodes)
            return node

    # -- changes -----------------------------------------------------------------------------------------------

    def rejoin(self, connection: Connection[Any]) -> None:
        """Add the session again before a change, if its connection was silent, and it was removed as a dead one.

        Another one may have the lease, which this change would break.
        """
        if self.feed.lease.silent_s < REJOIN_S:
            return
        if not rows_of(connection, "SELECT true FROM fusebackend.session WHERE id = %s", (self.id,)):
            self._add(connection)
            send(connection, [hello(self._volume, self.id)])
            self._wait_for_lease(connection)

    # -- nodes without a name ----------------------------------------------------------------------------------

    def wake(self) -> None:
        """There may be something to register."""
        self._wake.set()

    def look_after(self, node: int) -> None:
        """A node that is open here has been changed elsewhere: check whether it has lost its name."""
        self._unregistered.add(node)
        self._wake.set()

    def work_soon(self) -> None:
        """There is something to do for a worker."""
        self._due_at = 0.0
        self._wake.set()

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                if self.uses.unused() or self._unregistered:
                    self.run(self._note)
                if time.monotonic() >= self._due_at:
                    self._due_at = time.monotonic() + PERIOD_S
                    self.each_period()
                    if self.feed.leads or time.monotonic() >= self._looked_at + UNLED_S:
                        self._looked_at = time.monotonic()
                        if not self.feed.lease.is_alone:
                            self.run(self._look_round)
                        self._busy = self.run(self._find_work)
            except OSError as error:
                log.warning("session %d of the volume has no connection: %s", self.id, error)
                self._due_at = 0.0
                self._stop.wait(1)
            if self._wake.wait(self._do_portions() if self._busy else PERIOD_S):
                self._wake.clear()
                self._stop.wait(GATHER_S)

    def _find_work(self, connection: Connection[Any]) -> list[Worker]:
        """The workers with something to do. The pool's connections are not used where there is nothing."""
        workers = tuple(self.workers)
        query = f"SELECT {', '.join(worker.left for worker in workers)}"
        (found,) = rows_of(connection, query, [self._volume] * len(workers))
        return [worker for worker, is_left in zip(workers, found, strict=True) if is_left]

    def _do_portions(self) -> float:
        """Have each worker do a portion. Returns the pause after them: they take half of a processor at most."""
        began = time.monotonic()
        for worker in tuple(self._busy):
            is_left = False
            try:
                is_left = self._connections.run(worker.work)
                self._failing.discard(worker)
            except Exception as error:  # the thread goes on, and tries it again in a while
                if worker not in self._failing:
                    log.warning("volume %d: %s: %s", self._volume, worker.failure, error)
                self._failing.add(worker)
            if not is_left:
                self._busy.remove(worker)
        return max(PAUSE_S, time.monotonic() - began)

    def _note(self, connection: Connection[Any]) -> None:
        """Register the nameless nodes that are used here, and unregister those that are no more."""
        unused = self.uses.unused()
        if unused:
            with _durable(connection):
                rows_of(connection, _ABANDON.format(also=" AND node = ANY(%s)"), (self._volume, [self.id], unused))
            self.uses.nameless.difference_update(unused)
        looked_after = list(self._unregistered)
        if looked_after:
            rows = rows_of(
                connection,
                "INSERT INTO fusebackend.nameless (volume, node, session) SELECT volume, node, %s"
                " FROM fusebackend.inode WHERE volume = %s AND node = ANY(%s) AND nlink = 0"
                " ON CONFLICT (volume, node, session) DO UPDATE SET since = now() RETURNING node",
                (self.id, self._volume, looked_after),
            )
            self._unregistered.difference_update(looked_after)
            self.uses.nameless.update(node for (node,) in rows)

    def _free(self) -> None:
        """Remove dead sessions and free unused nodes, unless another session does."""
        self.run(self._look_round)
        while self._connections.run(self._free_some):
            pass

    @property
    def _unused(self) -> str:
        """SQL: the nodes without a name that no session has used for `GRACE_S`, or if there is no other, now."""
        return _UNUSED.format(own=self.id, grace_s=GRACE_S)

    def _free_some(self, connection: Connection[Any]) -> bool:
        """Returns whether there may be more to free."""
        with _durable(connection):
            if not self._may_reap(connection):
                return False
            nodes = [node for (node,) in rows_of(connection, f"{self._unused} LIMIT {FREED_AT_ONCE}", (self._volume,))]
            if nodes:
                ((_, count),) = rows_of(connection, *statements.lock_changes(self._volume, exclusive=False))
                newest = self.newest.of(connection, count, lambda statement: rows_of(connection, *statement))
                send(connection, old_rows.keep_all(self._volume, nodes, newest) if newest else [])
            for table in ("chunk", "inode", "nameless") if nodes else ():
                query = f"DELETE FROM fusebackend.{table} WHERE volume = %s AND node = ANY(%s)"
                rows_of(connection, query, (self._volume, nodes))
            return len(nodes) == FREED_AT_ONCE

    def _may_reap(self, connection: Connection[Any]) -> bool:
        """Whether no other session is at it, until the end of the transaction."""
        lock = "SELECT pg_try_advisory_xact_lock(%s::int, %s::int)"
        return rows_of(connection, lock, (REAP_LOCK, self._volume)) == [(True,)]

    def _look_round(self, connection: Connection[Any]) -> None:
        """Remove dead sessions, unless another session does."""
        with _durable(connection):
            if not self._may_reap(connection):
                return
            others = rows_of(
                connection,
                "SELECT id, pg_try_advisory_xact_lock(%s::int, id),"
                " now() - missing_since >= make_interval(secs => %s::float8)"
                " FROM fusebackend.session WHERE volume = %s AND id <> %s",
                (SESSION_LOCK, GRACE_S, self._volume, self.id),
            )
            missing = [number for number, is_free, _ in others if is_free]
            dead = [number for number, is_free, for_long in others if is_free and for_long]
            if missing:
                since = "UPDATE fusebackend.session SET missing_since = now()"
                rows_of(connection, f"{since} WHERE id = ANY(%s) AND missing_since IS NULL", (missing,))
            if dead:
                self._bury(connection, dead)

    def _bury(self, connection: Connection[Any], sessions: list[int]) -> None:
        """Remove sessions, and their uses of nodes."""
        rows_of(connection, _ABANDON.format(also=""), (self._volume, sessions))
        query = "DELETE FROM fusebackend.session WHERE volume = %s AND id = ANY(%s)"
        rows_of(connection, query, (self._volume, sessions))

    # -- the connection ----------------------------------------------------------------------------------------

    def run(self, work: Callable[[Connection[Any]], T]) -> T:
        """The result of `work`, called with the session's connection; again with a new one if that was lost.

        Changes of other hosts wait meanwhile: it must be short.
        """
        will_wait()
        with translate_errors():
            return self._host.run(work)

    def _register(self, connection: Connection[Any]) -> None:
        """Set up a new connection. A replacement takes over the lock of the lost one; uses are registered anew."""
        configure(connection)
        send(connection, [SKIP_NUMBERS])
        if self.id:
            send(connection, [(_CUT_OFF, (SESSION_LOCK, self.id)), (_CLAIM, (SESSION_LOCK, self.id))])
        with _durable(connection):
            if self.id:
                self._add(connection)
            else:
                self.id = self.feed.session = number = self._registered(connection)
                rows_of(connection, _CLAIM, (SESSION_LOCK, number))
        name = ("SELECT set_config('application_name', %s, false)", (f"fusebackend-feed-{self.id}",))
        send(connection, [name, hello(self._volume, self.id)])
        self._wait_for_lease(connection)
        unused = set(self.uses.unused())  # their rows are removed, not added
        self._unregistered.update(self.uses.nameless.copy() - unused, self.uses.opened())
        self._wake.set()

    def _registered(self, connection: Connection[Any]) -> int:
        """Add the session. Returns its number."""
        query = (
            "INSERT INTO fusebackend.session (volume, host, pid) VALUES (%s, %s, %s)"
            " ON CONFLICT DO NOTHING RETURNING id"  # of a host that has added itself again to an older state
        )
        while not (rows := rows_of(connection, query, (self._volume, socket.gethostname(), os.getpid()))):
            pass
        return int(rows[0][0])

    def _add(self, connection: Connection[Any]) -> None:
        """Have a row, also if it was taken for dead."""
        query = (
            "INSERT INTO fusebackend.session (volume, id, host, pid) VALUES (%s, %s, %s, %s)"
            " ON CONFLICT (id) DO UPDATE SET missing_since = NULL"
        )
        rows_of(connection, query, (self._volume, self.id, socket.gethostname(), os.getpid()))

    def _wait_for_lease(self, connection: Connection[Any]) -> None:
        """Wait until no other session has the lease (`lease.py`): it has heard of this one, or it is cut off."""
        # The role may have a limit for statements.
        limits = "SELECT set_config('lock_timeout', %s, true), set_config('statement_timeout', '0', true)"
        lock = ("SELECT pg_advisory_xact_lock_shared(%s::int, %s::int)", (LEASE_LOCK, self._volume))
        wait: list[Statement] = [BEGIN, (limits, (f"{LOCK_S}s",)), lock, COMMIT]
        try:
            send(connection, wait)
        except LockNotAvailable:
            rollback(connection)
            log.warning("another host of the volume does not answer: its connection to the server is ended")
            try:
                send(connection, [(_CUT_OFF, (LEASE_LOCK, self._volume))])
            except InsufficientPrivilege:  # its lease has ended all the same: it was silent for longer than that holds
                log.warning("that takes the same role, or pg_signal_backend: each newcomer waits until it is gone")
            else:
                send(connection, wait)
        finally:
            rollback(connection)

    # -- life --------------------------------------------------------------------------------------------------

    def _leave(self, connection: Connection[Any]) -> None:
        with _durable(connection):
            self._bury(connection, [self.id])

    def close(self) -> None:
        """Free the nodes that this session was the last to use. OSError when the server can't be reached."""
        self._stop.set()
        self._wake.set()
        self._thread.join()
        try:
            self.run(self._leave)
            self._free()
        finally:
            self._host.close()


def _durable(connection: Connection[Any]) -> AbstractContextManager[None]:
    """A transaction whose commit waits for the disk."""
    return transaction(connection, ("SELECT set_config('synchronous_commit', 'on', true)", ()))


def _block(connection: Connection[Any]) -> int:
    """The next numbers, never given again even after a crash of the server: their commit waits for the disk.

    The message has it wait also for the log of another host's `nextval`, which is one for 32 of them (sequence.c).
    """
    with _durable(connection):
        query = "SELECT nextval('fusebackend.node_block'), pg_logical_emit_message(true, 'fusebackend', '')"
        ((first, _),) = rows_of(connection, query)
    return int(first)
