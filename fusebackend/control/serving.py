"""`Connection`: one client of the control socket, served.

A connection has a thread that reads calls and carries out the short ones at once, so that a `read` costs no more than
its message. Long verbs (a search, a command, a tree) have a thread of their own: the connection goes on meanwhile, can
cancel them, and cancels all of them when it ends. A reader that does not read holds up its own connection and nothing
else: no lock but that of sending is held while a message is sent.

A client that sends no more may still read (`socat`, when its input has ended): it gets its answers and events as long
as it is there. Whatever a client sends, it gets a JSON-RPC error, and its connection goes on.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import select
import socket
import threading
import time
from typing import TYPE_CHECKING

import msgspec

from fusebackend.control import wire
from fusebackend.control.calls import RunningCall, Subscription
from fusebackend.control.staging import Staging
from fusebackend.control.verbs import VERBS, Verb
from fusebackend.control.wire import CallId, Closed, ErrorObject, Failure, Lines, WireError

if TYPE_CHECKING:
    from fusebackend.control.server import ControlServer

log = logging.getLogger(__name__)

MAX_CALLS = 16
"""Long calls and subscriptions of one connection at once, each."""

MAX_THREADS = 2 * MAX_CALLS
"""Of the long calls of one connection: as many again may have ended, and wait for their answers to be read."""

MAX_COMMANDS = 256
"""Commands of one connection at once, those included whose answers wait to be read. They run for as long as they like,
so they take no place of a search or an upload."""

MAX_COMMANDS_IN_ALL = 1024
"""Of all connections together: each has a thread, and two pipes."""

FREE_BYTES = 1 << 20
"""What a connection may hold of a message that is not counted."""

IDLE_S = 1.0
"""A connection that has been idle for so long may be closed to make room for another one."""

STALLED_S = 60.0
"""One that has not read what it was sent for so long, too."""

LAST_WORDS_S = 0.5
"""How long the end of the mount waits for a client to read an answer."""

HANGUP_S = 0.1
"""How often a connection that can't send any more is looked at: is the client still there?"""


class Connection:
    """See the module's docstring. `start` serves it in a thread of its own until it or the server ends."""

    def __init__(self, server: ControlServer, stream: socket.socket) -> None:
        self.server = server
        self.backend = server.backend
        self.staging = Staging()
        self.active_at = time.monotonic()
        self._stream = stream
        self._lines = Lines(functools.partial(stream.recv, wire.RECEIVE_BYTES), reserve=self._reserve)
        self._hangup = select.poll()
        self._hangup.register(stream, 0)
        self._held_bytes = 0
        self._sending = threading.Lock()
        self._sending_since: float | None = None
        self._guard = threading.Condition()  # notified when a call has ended
        self._notice: ErrorObject | None = None  # why no more calls are taken: the last thing that the client is told
        self._busy = False
        self._calls: dict[CallId, RunningCall] = {}
        self._threads = 0  # of long calls, also while they send their answers
        self._commands = 0  # of these, commands
        self._subscriptions: dict[str, Subscription] = {}
        self._names = itertools.count(1)
        self._thread = threading.Thread(target=self._run, name="fusebackend-connection", daemon=True)

    # -- life --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Raises `RuntimeError` when there can be no more threads."""
        self._thread.start()

    @property
    def retired(self) -> bool:
        """Does it take no more calls?"""
        return self._notice is not None

    def make_room(self) -> bool:
        """`retire`, if there is nothing to do, or the reader has gone to sleep; False if not so."""
        with self._guard:
            stalled = self._stalled(STALLED_S)
            idle = not self._busy and not self._has_work() and time.monotonic() - self.active_at > IDLE_S
            if self.retired or not (stalled or idle):
                return False
            self._notice = wire.MADE_ROOM
        self.retire()
        if stalled:
            self.close()
        return True

    def retire(self) -> None:
        """Take no more calls, and end when those under way, which are cancelled, are answered."""
        with self._guard:
            self._notice = self._notice or wire.ENDING
        with contextlib.suppress(OSError):
            self._stream.shutdown(socket.SHUT_RD)  # wakes the thread that reads
        self._cancel_all()

    def finish(self, deadline: float) -> None:
        """Wait for the end of one that was retired: until then, by the monotonic clock, or until nobody reads."""
        while self._thread.is_alive() and time.monotonic() < deadline and not self._stalled(LAST_WORDS_S):
            self._thread.join(0.05)
        self.close()
        self._thread.join(max(deadline - time.monotonic(), 0.0))

    def close(self) -> None:
        """End the connection, from any thread."""
        with contextlib.suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)
        self._cancel_all()

    def _run(self) -> None:
        try:
            try:
                with contextlib.suppress(Closed):
                    self._serve()
            finally:
                self._lines.forget()
            self._linger()
        except Exception:  # nothing a client does may end the server
            log.exception("a connection failed")
        finally:
            self._say_why()
            self.close()
            self._stream.close()
            with self._guard:  # a call may outlive its client, and still read what is mounted
                self._guard.wait_for(lambda: self._threads == 0)
            self.staging.close()
            self.server.ended(self)

    def _say_why(self) -> None:
        """Why this is the end, if the client does not know and can be told without waiting."""
        if self._notice is not None and self._sending.acquire(blocking=False):
            with contextlib.suppress(OSError):
                self._stream.send(wire.encode(Failure(None, self._notice)), socket.MSG_DONTWAIT)
            self._sending.release()

    def _serve(self) -> None:
        """Answer calls until no more are taken. Raises `Closed` at the end of the stream."""
        while True:
            try:
                line = self._lines.next()
                with self._guard:
                    if self.retired:
                        return
                    self._busy = True
                if line and not line.isspace():
                    self._answer(wire.parse_request(line))
            except WireError as error:
                if self.retired:
                    return
                self.send(wire.encode(Failure(error.call, error.error)))
                if error.error.code == wire.BUSY and error.call is None:
                    return  # what it has begun to send can't be held, so what follows can't be understood
            finally:
                self._busy = False
                self.active_at = time.monotonic()

    def _linger(self) -> None:
        """Nothing more will be taken. Go on with what is under way until it is done, or the client is gone."""
        with self._guard:
            while self._has_work() and not self._client_is_gone():
                self._guard.wait(HANGUP_S)

    def _client_is_gone(self) -> bool:
        """Has it closed its end, so that it can't even read any more?"""
        return bool(self._hangup.poll(0))

    def _has_work(self) -> bool:
        return bool(self._threads or self._subscriptions)

    def _stalled(self, seconds: float) -> bool:
        """Has the client not read what it is being sent for so long?"""
        since = self._sending_since
        return since is not None and time.monotonic() - since > seconds

    def _reserve(self, size: int) -> None:
        self.active_at = time.monotonic()
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
        if running.answered and (verb.changes or verb.command) and self._client_is_gone():
            raise Closed("whoever asked for a change no longer waits for it, so it is not begun")
        if not verb.long:
            running.run()
            return
        with self._guard:
            self._require_place(verb, call)
            if running.key in self._calls:
                raise WireError(wire.INVALID_REQUEST, "a call with this id is under way", call=call)
            if verb.command and not self.server.commands.acquire(blocking=False):
                raise WireError(wire.BUSY, f"{MAX_COMMANDS_IN_ALL} commands are running already", call=call)
            try:
                running.start()
            except RuntimeError:
                if verb.command:
                    self.server.commands.release()
                raise WireError(wire.BUSY, "no threads are left; try again", call=call) from None
            self._calls[running.key] = running
            self._threads += 1
            self._commands += verb.command

    def _require_place(self, verb: Verb, call: CallId) -> None:
        """Raises `WireError` when as many are under way as may be: of commands, or of all other long verbs."""
        if verb.command:
            if self._commands >= MAX_COMMANDS:
                raise WireError(wire.BUSY, f"{MAX_COMMANDS} commands of this connection are under way", call=call)
            return
        calls = sum(not other.command for other in self._calls.values())
        if calls >= MAX_CALLS or self._threads - self._commands >= MAX_THREADS:
            raise WireError(wire.BUSY, f"{MAX_CALLS} calls of this connection are under way", call=call)

    def call_done(self, call: RunningCall) -> None:
        """The outcome of a long call is known, so it can't be cancelled, and its id can be used again."""
        with self._guard:
            del self._calls[call.key]

    def call_ended(self, call: RunningCall) -> None:
        """The answer to a long call is sent, if there is anybody to send it to."""
        with self._guard:
            self._threads -= 1
            if call.command:
                self._commands -= 1
                self.server.commands.release()
            self.active_at = time.monotonic()
            self._guard.notify_all()

    def cancel(self, call: CallId) -> bool:
        """Cancel a call that is under way; False when there is none of that id."""
        with self._guard:
            found = self._calls.get(call)
            if found is not None:
                found.cancelled.set()
        return found is not None

    @property
    def why_cancelled(self) -> str:
        return "cancelled" if self._notice is None else f"cancelled: {self._notice.message}"

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

    def _cancel_all(self) -> None:
        """Ask every call under way to end, and end the subscriptions."""
        with self._guard:
            subscriptions = list(self._subscriptions.values())
            self._subscriptions.clear()
            for call in self._calls.values():
                call.cancelled.set()
            self._guard.notify_all()
        for subscription in subscriptions:
            subscription.close()

    # -- sending -----------------------------------------------------------------------------------------------

    def send(self, line: bytes) -> None:
        """Send one message, when the reader takes it. Raises `Closed` when it is gone."""
        with self._sending:
            self._sending_since = time.monotonic()
            try:
                self._stream.sendall(line)
            except OSError as error:
                raise Closed(str(error)) from None
            finally:
                self._sending_since = None
