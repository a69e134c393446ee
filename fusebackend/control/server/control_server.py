"""The server of the control socket: it accepts connections (`server_connection.py`), as many as there is room for.

When all places are taken, the connection that has been idle longest makes room, or one over which nothing has ever
come. When all are at work, there are some more places for short calls, so that a newcomer is answered.
`control/limits.py` has their common limits.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Mapping
from typing import NamedTuple

from fusebackend.base import heap
from fusebackend.control import rendezvous, wire
from fusebackend.control.limits import (
    MAX_COMMANDS_IN_ALL,
    MAX_CONNECTIONS,
    MAX_SHARED_SUBSCRIPTIONS,
    NEWCOMER_S,
    NEWCOMERS,
    Arrivals,
    Places,
    Room,
)
from fusebackend.control.server.server_connection import Connection, peer
from fusebackend.control.server.turns import Turns
from fusebackend.control.verbs import VERBS, ServedMount, SocketVerb
from fusebackend.control.wire import ErrorObject, Failure

log = logging.getLogger(__name__)

END_TIMEOUT_S = 5.0
"""How long the end waits for calls under way."""

SWITCH_S = 0.0005
"""How long a thread keeps Python's lock while others want it (5 ms by default), as long as there are clients. A request
of the mount, and a new client, need it some ten times each, beside as many calls as may work at once (`turns.py`).
Without clients it stays as it is: unpacking an archive took 6 to 14 % longer."""

ACCEPTED_AT_ONCE = 16
"""Connections accepted until those over which something has come are looked at."""

ACCEPT_RETRY_S = 0.5
"""How long to wait when there are no descriptors or threads for another connection: those in use will end."""


class Door(NamedTuple):
    """A socket that the server listens on."""

    listener: socket.socket
    address: str
    view: ServedMount | None
    """What all clients of this socket see, for good; None is the mount, where a client may choose a view."""


class ControlServer:
    """Serves a `ServedMount` on a Unix socket, from `start` to `close`; and views of it on sockets of their own."""

    def __init__(
        self,
        backend: ServedMount,
        *,
        read_only: bool = False,
        verbs: Mapping[str, SocketVerb] = VERBS,
        address: str | None = None,
    ) -> None:
        self.backend = backend
        self.read_only = read_only
        self.verbs = verbs
        self.address = ""
        self._own_address = address
        self._switch_s = sys.getswitchinterval()
        self._doors: dict[int, Door] = {}  # by descriptor; the first one is the mount's
        self._view_addresses: dict[str, str] = {}
        self._connections: set[Connection] = set()
        self._acceptor = threading.Thread(target=self._accept, name="fusebackend-control", daemon=True)
        self._poll = select.epoll()  # of the thread that accepts: the listeners, and the silent connections
        self._silent: dict[int, Connection] = {}  # of that thread, by descriptor: those that need no thread yet
        self.room = Room()
        self.turns = Turns()
        self.brief_turns = Turns(places=1)
        self.arrivals = Arrivals()
        self.calls = Places()
        self.subscriptions = Places(MAX_SHARED_SUBSCRIPTIONS)
        self._guard = threading.Lock()
        self._numbers = itertools.count(1)
        self.commands = threading.BoundedSemaphore(MAX_COMMANDS_IN_ALL)  # places of those of all connections
        self._refused = 0
        self._closing = False
        self._ending = threading.Lock()

    def start(self) -> str:
        """Listen, and return the address of the socket.

        Raises:
            OSError: no private directory for it.
        """
        heap.keep_less()
        self._switch_s = sys.getswitchinterval()
        self.address = self._own_address or rendezvous.address(self.backend.mountpoint)
        if self._own_address is None:
            rendezvous.remove_stale(os.path.dirname(self.address))
        self._open(Door(rendezvous.listen(self.address, MAX_CONNECTIONS), self.address, None))
        self._acceptor.start()
        return self.address

    def open_view(self, name: str) -> str:
        """Listen on a socket whose clients see the mount through a view, and can't leave it. There is one for each
        view, until the server ends.

        Returns:
            Its address.

        Raises:
            OSError: ENOENT, there is no such view; ENOTCONN, the server does not listen, or has ended; or the socket
                can't be made.
        """
        view = self.backend.viewed(name)
        with self._guard:
            if self._closing or not self._doors:
                raise OSError(errno.ENOTCONN, "the control socket is closed")
            if name not in self._view_addresses:
                address = rendezvous.address(self.backend.mountpoint)
                self._open(Door(rendezvous.listen(address, MAX_CONNECTIONS), address, view))
                self._view_addresses[name] = address
            return self._view_addresses[name]

    def _open(self, door: Door) -> None:
        door.listener.setblocking(False)
        self._doors[door.listener.fileno()] = door
        self._poll.register(door.listener, select.EPOLLIN)

    def close(self) -> None:
        """Stop listening and end every connection. Calls under way are cancelled, and waited for a little."""
        with self._ending:  # a second caller returns when all is done, too
            if self._closing or not self._doors:
                return
            with self._guard:
                self._closing = True
                connections = list(self._connections)
            for door in self._doors.values():
                with contextlib.suppress(OSError):
                    door.listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            self._acceptor.join(END_TIMEOUT_S)
            for door in self._doors.values():
                door.listener.close()
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(door.address)
            sys.setswitchinterval(self._switch_s)
            deadline = time.monotonic() + END_TIMEOUT_S
            for connection in connections:
                connection.retire()
            for connection in connections:
                connection.finish(deadline)

    def counts(self) -> dict[str, int]:
        """For `status`."""
        with self._guard:
            held = sum(connection.held_bytes for connection in self._connections) + self.room.used
            refused, waiting = self._refused, self.turns.waiting
            return {"connections": len(self._connections), "held_bytes": held, "waiting": waiting, "refused": refused}

    def refused(self) -> None:
        """Count a call that was refused before it began, because there was too much at once."""
        with self._guard:
            self._refused += 1

    def crowded(self, connection: Connection) -> bool:
        """Return True if this connection has a place for newcomers, because all others are taken."""
        return len(self._connections) > MAX_CONNECTIONS and connection in self._newcomers()

    def _newcomers(self) -> list[Connection]:
        """The connections in places for newcomers, the oldest first."""
        with self._guard:
            taken = [one for one in self._connections if not one.retired]
        return sorted(taken, key=_number)[MAX_CONNECTIONS:]

    def ended(self, connection: Connection) -> None:
        with self._guard:
            self._discard(connection)

    def _add(self, connection: Connection) -> None:
        self._connections.add(connection)
        sys.setswitchinterval(SWITCH_S)

    def _discard(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            sys.setswitchinterval(self._switch_s)

    def _accept(self) -> None:
        """Accept connections, and begin to serve each when something comes over it: the newest first, for those before
        it may be hundreds; and after each, accept what has come meanwhile."""
        with self._poll:
            while True:
                try:
                    self._look()
                except (OSError, RuntimeError) as error:  # RuntimeError: no thread for it
                    if not self._closing:
                        log.error("could not accept a connection: %s", error)
                        time.sleep(ACCEPT_RETRY_S)
                if self._closing:  # connections that came before the end got a message
                    return

    def _look(self) -> None:
        """Wait for something to do, and do it."""
        ready = {descriptor for descriptor, _ in self._poll.poll()}
        doors = [self._doors[descriptor] for descriptor in ready if descriptor in self._doors]
        if doors:
            for door in doors:
                self._accept_all(door)
            ready = {descriptor for descriptor, _ in self._poll.poll(0)}
        begun = [connection for descriptor, connection in self._silent.items() if descriptor in ready]
        if begun:
            self._begin(max(begun, key=_number))

    def _accept_all(self, door: Door) -> None:
        with contextlib.suppress(BlockingIOError):
            for _ in range(ACCEPTED_AT_ONCE):
                stream, _ = door.listener.accept()
                stream.setblocking(True)
                self._welcome(stream, door.view)

    def _welcome(self, stream: socket.socket, view: ServedMount | None) -> None:
        refusal = self._refusal(stream)
        if refusal is not None:
            _refuse(stream, refusal)
            return
        connection = Connection(self, stream, next(self._numbers), view)
        with self._guard:
            if self._closing:
                _refuse(stream, wire.ENDING)
                return
            self._add(connection)
        self._silent[stream.fileno()] = connection
        self._poll.register(stream, select.EPOLLIN)

    def _begin(self, connection: Connection) -> None:
        """Serve a connection over which something has come; end it if it is closed."""
        self._forget_silent(connection)
        if connection.is_closed:
            connection.end_silent()
            return
        try:
            with self._guard:
                if not self._closing:  # else `close` ends it
                    connection.start()
        except RuntimeError:
            connection.end_silent(ErrorObject(wire.BUSY, "no threads are left; try again"))
            raise

    def _forget_silent(self, connection: Connection) -> None:
        descriptor = connection.fileno()
        if self._silent.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)

    def _refusal(self, stream: socket.socket) -> ErrorObject | None:
        uid = peer(stream).uid
        if uid not in (os.geteuid(), 0):
            log.warning("user %d was refused at the control socket", uid)
            return ErrorObject(wire.SYSTEM_ERROR, "this mount is another user's", {"errno": errno.EPERM})
        if len(self._connections) < MAX_CONNECTIONS:
            return None
        with self._guard:
            taken = sum(not connection.retired for connection in self._connections)
        if taken < MAX_CONNECTIONS or self._make_room() or taken < MAX_CONNECTIONS + NEWCOMERS:
            return None
        if self._make_newcomers_room():
            return None
        return ErrorObject(wire.BUSY, f"{MAX_CONNECTIONS} connections are open already; try again")

    def _make_room(self) -> bool:
        """Close the connection that has been idle longest; False when all of them have something to do."""
        with self._guard:
            by_age = sorted((one for one in self._connections if not one.retired), key=lambda one: one.active_at)
        for connection in by_age:
            if connection.make_room():
                self._end_silent(connection)
                return True
        return False

    def _make_newcomers_room(self) -> bool:
        """Close the newcomer that has been here longest; False when it has just come."""
        for connection in self._newcomers()[:1]:
            if time.monotonic() - connection.since > NEWCOMER_S:
                connection.retire(wire.MADE_ROOM)
                self._end_silent(connection)
                return True
        return False

    def _end_silent(self, connection: Connection) -> None:
        """End a connection that has no thread to end it."""
        if not connection.begun:
            self._forget_silent(connection)
            connection.end_silent()


def _number(connection: Connection) -> int:
    return connection.number


def _refuse(stream: socket.socket, error: ErrorObject) -> None:
    with stream, contextlib.suppress(OSError):
        stream.settimeout(0)
        stream.send(wire.encode(Failure(None, error)))
