"""The server of the control socket: it accepts connections (`serving.py`), as many as there is room for.

When all places are taken, the connection that has been idle longest makes room. What all of them together hold of
messages that are not complete is bounded here, too.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import struct
import threading
import time

from fusebackend.control import rendezvous, wire
from fusebackend.control.serving import MAX_COMMANDS_IN_ALL, Connection
from fusebackend.control.wire import ErrorObject, Failure, WireError
from fusebackend.mount.mounted import MountedBackend

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 256

MAX_HELD_BYTES = 256 << 20
"""Of all messages that are not complete yet, together."""

END_TIMEOUT_S = 5.0
"""How long the end waits for calls under way."""

ACCEPT_RETRY_S = 0.5
"""How long to wait when there are no descriptors or threads for another connection: those in use will end."""


class ControlServer:
    """Serves a `MountedBackend` on a Unix socket, from `start` to `close`."""

    def __init__(self, backend: MountedBackend, *, read_only: bool = False) -> None:
        self.backend = backend
        self.read_only = read_only
        self.address = ""
        self._listener: socket.socket | None = None
        self._connections: set[Connection] = set()
        self._guard = threading.Lock()
        self.commands = threading.BoundedSemaphore(MAX_COMMANDS_IN_ALL)  # places of those of all connections
        self._held_bytes = 0
        self._closing = False
        self._ending = threading.Lock()

    def start(self) -> str:
        """Listen, and return the address of the socket.

        Raises:
            OSError: no private directory for it.
        """
        self.address = rendezvous.address(self.backend.mountpoint)
        rendezvous.remove_stale(os.path.dirname(self.address))
        self._listener = rendezvous.listen(self.address, MAX_CONNECTIONS)
        threading.Thread(target=self._accept, name="fusebackend-control", daemon=True).start()
        return self.address

    def close(self) -> None:
        """Stop listening and end every connection. Calls under way are cancelled, and waited for a little."""
        with self._ending:  # who comes second returns when all is done, too
            if self._closing or self._listener is None:
                return
            with self._guard:
                self._closing = True
                connections = list(self._connections)
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`
            self._listener.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.address)
            deadline = time.monotonic() + END_TIMEOUT_S
            for connection in connections:
                connection.retire()
            for connection in connections:
                connection.finish(deadline)

    def counts(self) -> dict[str, int]:
        """For `status`."""
        with self._guard:
            return {"connections": len(self._connections), "held_bytes": self._held_bytes}

    def reserve(self, size: int) -> None:
        """A connection holds so much more of a message; less if negative. Raises `WireError` beyond the bound."""
        with self._guard:
            if size > 0 and self._held_bytes + size > MAX_HELD_BYTES:
                raise WireError(wire.BUSY, f"more than {MAX_HELD_BYTES} bytes of messages are under way")
            self._held_bytes += size

    def ended(self, connection: Connection) -> None:
        with self._guard:
            self._connections.discard(connection)

    def _accept(self) -> None:
        assert self._listener is not None
        while True:
            try:
                stream, _ = self._listener.accept()
                self._welcome(stream)
            except (OSError, RuntimeError) as error:  # RuntimeError: no thread for it
                if self._closing:
                    return
                log.error("could not accept a connection: %s", error)
                time.sleep(ACCEPT_RETRY_S)

    def _welcome(self, stream: socket.socket) -> None:
        refusal = self._refusal(stream)
        if refusal is not None:
            _refuse(stream, refusal)
            return
        connection = Connection(self, stream)
        with self._guard:
            if self._closing:
                _refuse(stream, wire.ENDING)
                return
            try:
                connection.start()
            except RuntimeError:
                _refuse(stream, ErrorObject(wire.BUSY, "no threads are left; try again"))
                raise
            self._connections.add(connection)

    def _refusal(self, stream: socket.socket) -> ErrorObject | None:
        uid = peer_uid(stream)
        if uid not in (os.geteuid(), 0):
            log.warning("user %d was refused at the control socket", uid)
            return ErrorObject(wire.SYSTEM_ERROR, "this mount is another user's", {"errno": errno.EPERM})
        with self._guard:
            taken = sum(not connection.retired for connection in self._connections)
        if taken < MAX_CONNECTIONS or self._make_room():
            return None
        return ErrorObject(wire.BUSY, f"{MAX_CONNECTIONS} connections are open already; try again")

    def _make_room(self) -> bool:
        """Close the connection that has been idle longest; False when all of them have something to do."""
        with self._guard:
            by_age = sorted(self._connections, key=lambda one: one.active_at)
        return any(connection.make_room() for connection in by_age)


def peer_uid(stream: socket.socket) -> int:
    """The user at the other end, as the kernel noted when it connected (unix(7), SO_PEERCRED)."""
    credentials = stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


def _refuse(stream: socket.socket, error: ErrorObject) -> None:
    with stream, contextlib.suppress(OSError):
        stream.settimeout(0)
        stream.send(wire.encode(Failure(None, error)))
