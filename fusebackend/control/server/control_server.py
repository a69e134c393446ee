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
import selectors
import socket
import sys
import threading
import time
from collections.abc import Mapping
from typing import NamedTuple

from fusebackend.base import heap
from fusebackend.control import rendezvous, wire
from fusebackend.control.limits import (
    MAX_CONNECTIONS,
    NEWCOMER_S,
    NEWCOMERS,
)
from fusebackend.control.server.limiter import COMMANDS, Limiter
from fusebackend.control.server.server_connection import ServedConnection, peer
from fusebackend.control.verbs import VERBS, ServedMount, SocketVerb
from fusebackend.control.wire import ErrorObject, Failure

log = logging.getLogger(__name__)

END_TIMEOUT_S = 5.0
"""How long the end waits for calls under way."""

SWITCH_S = 0.0005
"""How long a thread keeps Python's lock while others want it (5 ms by default), as long as there are clients. A request
of the mount, and a new client, need it some ten times each, beside as many calls as may work at once (`limiter.py`).
Without clients it stays as it is: unpacking an archive took 6 to 14 % longer."""

ACCEPTED_AT_ONCE = 16
"""Connections accepted until those over which something has come are looked at."""

ACCEPT_RETRY_S = 0.5
"""How long to wait when there are no descriptors or threads for another connection: those in use will end."""


class ServedSocket(NamedTuple):
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
        self._sockets: dict[str, ServedSocket] = {}  # by the view's name; empty for the mount's
        self._connections: dict[ServedConnection, None] = {}  # the oldest first
        self._acceptor = threading.Thread(target=self._accept, name="fusebackend-control", daemon=True)
        self._selector = selectors.DefaultSelector()  # of the sockets, and of connections over which nothing has come
        self.limiter = Limiter()
        self._guard = threading.Lock()
        self._numbers = itertools.count(1)
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
        self._listen("", self.address, None)
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
            if self._closing or not self._sockets:
                raise OSError(errno.ENOTCONN, "the control socket is closed")
            if name not in self._sockets:
                self._listen(name, rendezvous.address(self.backend.mountpoint), view)
            return self._sockets[name].address

    def _listen(self, name: str, address: str, view: ServedMount | None) -> None:
        served = ServedSocket(rendezvous.listen(address, MAX_CONNECTIONS), address, view)
        served.listener.setblocking(False)
        self._sockets[name] = served
        self._selector.register(served.listener, selectors.EVENT_READ, served)

    def close(self) -> None:
        """Stop listening and end every connection. Calls under way are cancelled, and waited for a little."""
        with self._ending:  # a second caller returns when all is done, too
            if self._closing or not self._sockets:
                return
            with self._guard:
                self._closing = True
                connections = list(self._connections)
            for served in self._sockets.values():
                with contextlib.suppress(OSError):
                    served.listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            self._acceptor.join(END_TIMEOUT_S)
            for served in self._sockets.values():
                served.listener.close()
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(served.address)
            sys.setswitchinterval(self._switch_s)
            deadline = time.monotonic() + END_TIMEOUT_S
            for connection in connections:
                connection.retire()
            for connection in connections:
                connection.finish(deadline)

    def counts(self) -> dict[str, int]:
        """For `status`."""
        return {
            "connections": len(self._connections),
            "held_bytes": self.limiter.memory.used,
            "waiting": sum(map(len, self.limiter.queues.values())),
            "refused": self._refused,
        }

    def refused(self) -> None:
        """Count a call that was refused before it began, because there was too much at once."""
        with self._guard:
            self._refused += 1

    def crowded(self, connection: ServedConnection) -> bool:
        """Return True if this connection has a place for newcomers, because all others are taken."""
        return len(self._connections) > MAX_CONNECTIONS and connection in self._taken()[MAX_CONNECTIONS:]

    def _taken(self) -> list[ServedConnection]:
        """The connections that take calls, the oldest first, but for those over which a command runs: of these there
        are as many as there are places for commands."""
        with self._guard:
            return [one for one in self._connections if not (one.notice is not None or one.client.has[COMMANDS])]

    def ended(self, connection: ServedConnection) -> None:
        with self._guard:
            self._connections.pop(connection, None)
            if not self._connections:
                sys.setswitchinterval(self._switch_s)

    def _accept(self) -> None:
        """Accept connections, and begin to serve each when something comes over it: the newest first, for those before
        it may be hundreds; and after each, accept what has come meanwhile."""
        with self._selector:
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
        ready = [key.data for key, _ in self._selector.select()]
        sockets = [served for served in ready if isinstance(served, ServedSocket)]
        if sockets:
            for served in sockets:
                self._accept_all(served)
            ready = [key.data for key, _ in self._selector.select(0)]
        begun = [connection for connection in ready if isinstance(connection, ServedConnection)]
        if begun:
            self._begin(max(begun, key=lambda connection: connection.client.number))

    def _accept_all(self, served: ServedSocket) -> None:
        with contextlib.suppress(BlockingIOError):
            for _ in range(ACCEPTED_AT_ONCE):
                stream, _ = served.listener.accept()
                stream.setblocking(True)
                self._welcome(stream, served.view)

    def _welcome(self, stream: socket.socket, view: ServedMount | None) -> None:
        refusal = self._refusal(stream)
        if refusal is not None:
            _refuse(stream, refusal)
            return
        connection = ServedConnection(self, stream, next(self._numbers), view)
        with self._guard:
            if self._closing:
                _refuse(stream, wire.ENDING)
                return
            self._connections[connection] = None
            sys.setswitchinterval(SWITCH_S)
        self._selector.register(stream, selectors.EVENT_READ, connection)

    def _begin(self, connection: ServedConnection) -> None:
        """Serve a connection over which something has come, or that is closed."""
        self._selector.unregister(connection.stream)
        try:
            with self._guard:
                if not self._closing:  # else `close` ends it
                    connection.start()
        except RuntimeError:
            connection.end(ErrorObject(wire.BUSY, "no threads are left; try again"))
            raise

    def _refusal(self, stream: socket.socket) -> ErrorObject | None:
        uid = peer(stream).uid
        if uid not in (os.geteuid(), 0):
            log.warning("user %d was refused at the control socket", uid)
            return ErrorObject(wire.SYSTEM_ERROR, "this mount is another user's", {"errno": errno.EPERM})
        if len(self._connections) < MAX_CONNECTIONS:
            return None
        taken = self._taken()
        if len(taken) < MAX_CONNECTIONS:
            return None
        leaving = next((one for one in sorted(taken, key=lambda one: one.active_at) if one.make_room()), None)
        if leaving is None and len(taken) >= MAX_CONNECTIONS + NEWCOMERS:
            leaving = next(iter(taken[MAX_CONNECTIONS:]), None)  # the newcomer that has been here longest
            if leaving is None or time.monotonic() - leaving.since <= NEWCOMER_S:
                return ErrorObject(wire.BUSY, f"{MAX_CONNECTIONS} connections are open already; try again")
            leaving.retire(wire.MADE_ROOM)
        if leaving is not None and not leaving.begun:  # it has no thread that ends it
            self._selector.unregister(leaving.stream)
            leaving.end()
        return None


def _refuse(stream: socket.socket, error: ErrorObject) -> None:
    with stream, contextlib.suppress(OSError):
        stream.settimeout(0)
        stream.send(wire.encode(Failure(None, error)))
