"""The server of the control socket.

One thread accepts; each connection has a thread that reads calls and carries out the short ones at once, so that a
`read` costs no more than its message. Long verbs (a search, a command, a tree) have a thread of their own: the
connection goes on meanwhile, can cancel them, and cancels all of them when it ends. A reader that does not read holds
up its own connection and nothing else: no lock is held while a message is sent.

Everything has a bound: connections, calls and subscriptions of each, the length of a message, and what all of them
together hold of messages that are not complete. Whatever a client sends, it gets a JSON-RPC error, and the server goes
on. When all connections are taken, the one that has been idle longest makes room.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import socket
import struct
import threading
import time
from typing import Any

import msgspec

from fusebackend.control import rendezvous, wire
from fusebackend.control.calls import RunningCall, Subscription
from fusebackend.control.staging import Staging
from fusebackend.control.verbs import VERBS
from fusebackend.control.wire import CallId, Closed, ErrorObject, Failure, Lines, WireError
from fusebackend.mount.mounted import MountedBackend

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 256
MAX_CALLS = 16
"""Long calls and subscriptions of one connection at once, each."""

MAX_HELD_BYTES = 256 << 20
"""Of all messages that are not complete yet, together."""

FREE_BYTES = 1 << 20
"""What a connection may hold that is not counted."""

IDLE_S = 1.0
"""A connection that has been idle for so long may be closed to make room for another one."""

STALLED_S = 60.0
"""One that has not read what it was sent for so long, too."""

END_TIMEOUT_S = 5.0
"""How long the end waits for calls under way."""


class ControlServer:
    """Serves a `MountedBackend` on a Unix socket, from `start` to `close`."""

    def __init__(self, backend: MountedBackend, *, read_only: bool = False) -> None:
        self.backend = backend
        self.read_only = read_only
        self.address = ""
        self._listener: socket.socket | None = None
        self._connections: set[Connection] = set()
        self._guard = threading.Lock()
        self._held_bytes = 0
        self._closing = False

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
        with self._guard:
            if self._closing or self._listener is None:
                return
            self._closing = True
            connections = list(self._connections)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        self._listener.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.address)
        deadline = time.monotonic() + END_TIMEOUT_S
        for connection in connections:
            connection.cancel_all()
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
            except OSError as error:
                if self._closing:
                    return
                log.error("could not accept a connection: %s", error)  # no more descriptors: those in use will end
                time.sleep(0.1)
                continue
            refusal = self._refusal(stream)
            if refusal is not None:
                _refuse(stream, refusal)
                continue
            connection = Connection(self, stream)
            with self._guard:
                self._connections.add(connection)
            connection.start()

    def _refusal(self, stream: socket.socket) -> ErrorObject | None:
        uid = peer_uid(stream)
        if uid not in (os.geteuid(), 0):
            log.warning("user %d was refused at the control socket", uid)
            return ErrorObject(wire.SYSTEM_ERROR, "this mount is another user's", {"errno": errno.EPERM})
        with self._guard:
            taken = len(self._connections)
        if taken < MAX_CONNECTIONS or self._make_room():
            return None
        return ErrorObject(wire.BUSY, f"{MAX_CONNECTIONS} connections are open already; try again")

    def _make_room(self) -> bool:
        """Close the connection that has been idle longest; False when all of them have something to do."""
        with self._guard:
            idle = [one for one in self._connections if one.expendable()]
        if not idle:
            return False
        oldest = min(idle, key=lambda one: one.active_at)
        self.ended(oldest)
        oldest.close()
        return True


def peer_uid(stream: socket.socket) -> int:
    """The user at the other end, as the kernel noted when it connected (unix(7), SO_PEERCRED)."""
    credentials = stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


def _refuse(stream: socket.socket, error: ErrorObject) -> None:
    with stream, contextlib.suppress(OSError):
        stream.settimeout(0)
        stream.send(wire.encode(Failure(None, error)))


class Connection:
    """One client. `start` serves it in a thread of its own until it or the server ends."""

    def __init__(self, server: ControlServer, stream: socket.socket) -> None:
        self.server = server
        self.backend = server.backend
        self.staging = Staging()
        self.active_at = time.monotonic()
        self._stream = stream
        self._lines = Lines(stream, reserve=self._reserve)
        self._held_bytes = 0
        self._sending = threading.Lock()
        self._sending_since: float | None = None
        self._busy = False
        self._over = False
        self._calls: dict[CallId, RunningCall] = {}
        self._subscriptions: dict[str, Subscription] = {}
        self._names = itertools.count(1)
        self._guard = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="fusebackend-connection", daemon=True)

    # -- life --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End the connection, from any thread."""
        with contextlib.suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)
        self.cancel_all()

    def finish(self, deadline: float) -> None:
        """Let the calls that were cancelled answer until then, by the monotonic clock, and end."""
        while self._calls and time.monotonic() < deadline:
            time.sleep(0.005)
        self.close()
        self._thread.join(max(deadline - time.monotonic(), 0.0))

    def expendable(self) -> bool:
        """May this connection be closed to make room? An idle one, or one whose reader has gone to sleep."""
        now = time.monotonic()
        since = self._sending_since
        if since is not None:
            return now - since > STALLED_S
        return not (self._busy or self._calls or self._subscriptions) and now - self.active_at > IDLE_S

    def _run(self) -> None:
        try:
            self._serve()
        except Closed:
            log.debug("a connection has ended")
        except Exception:  # nothing a client does may end the server
            log.exception("a connection failed")
        finally:
            self.close()
            self._lines.forget()
            self.staging.close()
            self._stream.close()
            self._over = True
            self._leave()

    def _serve(self) -> None:
        while True:
            try:
                line = self._lines.next()
                self._busy = True
                if line and not line.isspace():
                    self._answer(wire.parse_request(line))
            except WireError as error:
                self.send(Failure(error.call, error.error))
                if error.error.code == wire.BUSY and error.call is None:
                    return  # what it has begun to send can't be held, so what follows can't be understood
            finally:
                self._busy = False
                self.active_at = time.monotonic()

    def _reserve(self, size: int) -> None:
        before, after = self._held_bytes, self._held_bytes + size
        self.server.reserve(max(after - FREE_BYTES, 0) - max(before - FREE_BYTES, 0))
        self._held_bytes = after

    # -- calls -------------------------------------------------------------------------------------------------

    def _answer(self, request: wire.Request) -> None:
        call = None if request.id is msgspec.UNSET else request.id
        verb = VERBS.get(request.method)
        if verb is None:
            raise WireError(wire.METHOD_NOT_FOUND, f"there is no verb '{request.method}'; see 'hello'", call=call)
        params = wire.parse_params(request, verb.params)
        running = RunningCall(self, request.id, verb, params)
        if not verb.long:
            running.run()
            return
        with self._guard:
            if len(self._calls) >= MAX_CALLS:
                raise WireError(wire.BUSY, f"{MAX_CALLS} calls of this connection are under way", call=call)
            if running.key in self._calls:
                raise WireError(wire.INVALID_REQUEST, "a call with this id is under way", call=call)
            self._calls[running.key] = running
        running.start()

    def call_ended(self, call: RunningCall) -> None:
        with self._guard:
            if self._calls.get(call.key) is call:
                del self._calls[call.key]
        self.active_at = time.monotonic()
        self._leave()

    def _leave(self) -> None:
        """Forget the connection when nothing of it runs any more: a call may outlive its client, and still read."""
        with self._guard:
            if not self._over or self._calls:
                return
        self.server.ended(self)

    def cancel(self, call: CallId) -> bool:
        """Cancel a call that is under way; False when there is none of that id."""
        with self._guard:
            found = self._calls.get(call)
        if found is not None:
            found.cancelled.set()
        return found is not None

    def subscribe(self, path: str) -> Subscription:
        """A subscription that is not started yet. Raises `WireError` for too many, `PathError` for the path."""
        with self._guard:
            if len(self._subscriptions) >= MAX_CALLS:
                raise WireError(wire.BUSY, f"this connection has {MAX_CALLS} subscriptions already")
            subscription = Subscription(self, path, str(next(self._names)))
            self._subscriptions[subscription.name] = subscription
        return subscription

    def unsubscribe(self, name: str) -> bool:
        with self._guard:
            subscription = self._subscriptions.pop(name, None)
        if subscription is not None:
            subscription.close()
        return subscription is not None

    def cancel_all(self) -> None:
        """Ask every call under way to end, and end the subscriptions."""
        with self._guard:
            calls, subscriptions = list(self._calls.values()), list(self._subscriptions.values())
            self._subscriptions.clear()
        for call in calls:
            call.cancelled.set()
        for subscription in subscriptions:
            subscription.close()

    # -- sending -----------------------------------------------------------------------------------------------

    def send(self, message: Any) -> None:
        """Send one message, when the reader takes it. Raises `Closed` when it is gone."""
        data = wire.encode(message)
        with self._sending:
            self._sending_since = time.monotonic()
            try:
                self._stream.sendall(data)
            except OSError as error:
                raise Closed(str(error)) from None
            finally:
                self._sending_since = None
