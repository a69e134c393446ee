"""`Unsynced`: the changes of this host that a crash of the server may take, until an `fsync` has waited for its disk.

A commit of the kernel face does not wait for the server's disk (`synchronous_commit = off`). If the server crashes, the
last changes of all hosts are gone: those of three times `wal_writer_delay`, 0.6 s by default, and never one without all
after it. An `fsync` that follows would confirm what is lost. So this records which nodes have been changed since the
last `fsync`, with the version that each has got, and the server's incarnation at the time. That is the volume's value
in `change_kept`, a table that a recovery empties and a clean restart keeps. After a crash, a node whose row has that
version has been recovered. Changes of any other may be lost, and its `fsync` is EIO.

Nothing is asked of the server for that: a crash ends every connection, so the incarnation is that of the connection.
A node that another host has changed in between counts as lost, for its row does not tell. So what is recorded for long
is synced by the session, in each of its periods (10 s). With `MAX_NODES` the next change waits for the disk first.
"""

from __future__ import annotations

import errno
import threading
import weakref
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from psycopg import Connection

from fusebackend.backends.postgres.schema import keep_changes
from fusebackend.databases.pipeline import BEGIN, COMMIT, Statement, rows_of, send

MAX_NODES = 10_000
"""Nodes with changes that may not be on the disk: a megabyte."""

WAIT_FOR_DISK: Statement = (
    "SELECT set_config('synchronous_commit', 'on', true), pg_logical_emit_message(true, 'fusebackend', '')",
    (),
)
"""A transaction that waits until the server's disk has all commits before it. Without a change, here the message, it
would not wait (xact.c). It follows a commit, whose rows are locked no longer then."""


class Unconfirmed(NamedTuple):
    """This host's last change of a node."""

    version: int
    incarnation: str


class Unsynced:
    """See the module's docstring. Any thread may call any method.

    Args:
        volume: the volume's number in the tables.
        is_open: whether a node is open here.
    """

    def __init__(self, volume: int, is_open: Callable[[int], bool]) -> None:
        self._volume = volume
        self._ask: Statement = "SELECT incarnation::text FROM fusebackend.change_kept WHERE volume = %s::int", (volume,)
        """Returns the server's incarnation, or no row after a crash."""
        self._begin = keep_changes(volume)
        """The server has a new one, unless another host has noticed first."""
        self._is_open = is_open
        self._lock = threading.Lock()
        self._nodes: dict[int, Unconfirmed] = {}
        self._lost: set[int] = set()  # nodes of which a change may be lost
        self._told: set[int] = set()  # … and an `fsync` has failed
        self._is_untold = False  # no sync of the volume has failed since the last loss
        self._incarnations: weakref.WeakKeyDictionary[Connection[Any], str] = weakref.WeakKeyDictionary()

    @property
    def is_pending(self) -> bool:
        """Whether there are changes that may not be on the disk."""
        return bool(self._nodes)

    @property
    def is_due(self) -> bool:
        """Whether the next change calls `sync` first."""
        return len(self._nodes) >= MAX_NODES

    def incarnation(self, connection: Connection[Any]) -> str:
        """The server's incarnation. Asked once, for a connection does not outlive a crash; not in a transaction."""
        found = self._incarnations.get(connection)
        if found is None:
            while not (rows := rows_of(connection, *self._ask)):
                send(connection, [self._begin])
            found = self._incarnations[connection] = rows[0][0]
        return found

    def committed(
        self, incarnation: str, before: Mapping[int, int], version: int, *, unnamed: AbstractSet[int], durable: bool
    ) -> None:
        """A transaction has given nodes a version.

        Args:
            incarnation: the server's in that transaction.
            before: the versions that they had in the tables.
            unnamed: those that have no name any more. Their rows are about to go.
            durable: its commit has waited for the disk.
        """
        with self._lock:
            for node, found in before.items():
                known = self._nodes.get(node)
                same = known is not None and known.incarnation == incarnation
                if known is not None and not same and known.version != found:
                    self._lose(node)
                if durable or (node in unnamed and not self._is_open(node)):
                    self._nodes.pop(node, None)
                else:
                    self._nodes[node] = Unconfirmed(version, incarnation)

    def sync(self, connection: Connection[Any]) -> None:
        """Wait until the server's disk has all that was committed before. Twice is once."""
        with self._lock:
            seen = dict(self._nodes)
        while not (rows := send(connection, [BEGIN, self._ask, WAIT_FOR_DISK, COMMIT])[1]):
            send(connection, [self._begin])
        doubtful = [node for node, change in seen.items() if change.incarnation != rows[0][0]]
        versions = "SELECT node, version FROM fusebackend.inode WHERE volume = %s AND node = ANY(%s)"
        found: dict[int, int] = dict(rows_of(connection, versions, (self._volume, doubtful))) if doubtful else {}
        with self._lock:
            for node, change in seen.items():
                if self._nodes.get(node) == change:
                    del self._nodes[node]
                    if change.incarnation != rows[0][0] and found.get(node) != change.version:
                        self._lose(node)

    def require(self, node: int) -> None:
        """EIO where a change of this node may be lost: once, or as long as the file stays open."""
        with self._lock:
            if node not in self._lost:
                return
            self._told.add(node)
        self.released(node)
        raise _lost()

    def require_all(self) -> None:
        """EIO where any change may be lost: once."""
        with self._lock:
            is_untold, self._is_untold = self._is_untold, False
        if is_untold:
            raise _lost()

    def released(self, node: int) -> None:
        """A handle was closed. An `fsync` of a later handle is about later changes."""
        if node in self._told and not self._is_open(node):
            with self._lock:
                self._told.discard(node)
                self._lost.discard(node)

    def _lose(self, node: int) -> None:
        self._lost.add(node)
        self._is_untold = True


def _lost() -> OSError:
    return OSError(errno.EIO, "PostgreSQL has crashed, and lost changes that were not on its disk yet")
