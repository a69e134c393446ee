"""`Connection`: one client of the control socket, served.

A connection has a thread that reads calls and carries out the short ones at once, so that a `read` costs no more than
its message. Long verbs (a search, a command, a tree) have a thread of their own: the connection goes on meanwhile, can
cancel them, and cancels all of them when it ends. A reader that does not read holds up its own connection and nothing
else: no lock but that of sending is held while a message is sent.

The memory of a call is counted (`control/limits.py`), from its message to its answer, and calls that work take turns
(`turns.py`).

A client that sends no more may still read (`socat`, when its input has ended): it gets its answers and events as long
as it is there. Malformed messages get a JSON-RPC error, and the connection goes on.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import logging
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from fusebackend.control import wire
from fusebackend.control.limits import (
    FREE_BYTES,
    MAX_CALLS,
    MAX_COMMANDS,
    MAX_COMMANDS_IN_ALL,
    PATIENCE_S,
    TYPED_FACTOR,
    WORK_FACTOR,
    NoRoom,
    Share,
)
from fusebackend.control.server.calls import RunningCall, Subscription
from fusebackend.control.server.turns import Client, Turn
from fusebackend.control.staging import Staging
from fusebackend.control.verbs import OfPing, ServedMount, SocketVerb
from fusebackend.control.wire import CallId, Closed, ErrorObject, Failure, Lines, WireError
from fusebackend.protocol import Actor

if TYPE_CHECKING:
    from fusebackend.control.server.control_server import ControlServer

log = logging.getLogger(__name__)

MAX_THREADS = 2 * MAX_CALLS
"""Of the long calls of one connection: as many again may have ended, and wait for their answers to be read."""

IDLE_S = 1.0
"""A connection that has been idle for so long may be closed to make room for another one."""

STALLED_S = 60.0
"""So may one that has not read for so long while a message is sent."""

LAST_WORDS_S = 0.5
"""How long the end of the mount waits for a client to read an answer."""

HANGUP_S = 0.1
"""How often a connection that can't send any more is looked at: is the client still there?"""


class Connection:
    """See the module's docstring. `start` serves it in a thread of its own until it or the server ends.

    Args:
        server: what it shares with the others.
        stream: the client's end.
        number: of the connection, in the order of their begins.
        view: what the client sees of the mount, for good; None lets it choose.
    """

    def __init__(
        self, server: ControlServer, stream: socket.socket, number: int = 0, view: ServedMount | None = None
    ) -> None:
        self.server = server
        default = server.backend.default_view
        self.backend = view or (server.backend if default is None else server.backend.viewed(default))
        self._may_choose = view is None  # a view, which then is one for good
        self.staging = Staging()
        self.actor = peer(stream)
        self.active_at = self.since = time.monotonic()
        self._stream = stream
        self._lines = Lines(functools.partial(stream.recv, wire.RECEIVE_BYTES), held=self._hold)
        self.number = number
        self._client = Client(number)
        self._used = False  # something has come
        self._inside = False  # `server.arrivals`
        self._hangup = select.poll()
        self._hangup.register(stream, 0)
        self.held_bytes = 0
        self._sending = threading.Lock()
        self._sending_since: float | None = None
        self._guard = threading.Condition()  # notified when a call has ended
        self._notice: ErrorObject | None = None  # why no more calls are taken: the last message to the client
        self._busy = False
        self._calls: dict[CallId, RunningCall] = {}
        self._threads = 0  # of long calls, also while they send their answers
        self._commands = 0  # of these, commands
        self._subscriptions: dict[str, Subscription] = {}
        self._names = itertools.count(1)
        self._thread: threading.Thread | None = None  # while nothing has come, it needs none

    # -- life --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Raises `RuntimeError` when there can be no more threads."""
        thread = threading.Thread(target=self._run, name="fusebackend-connection", daemon=True)
        thread.start()
        self._thread = thread

    @property
    def begun(self) -> bool:
        return self._thread is not None

    def fileno(self) -> int:
        return self._stream.fileno()

    @property
    def is_closed(self) -> bool:
        """Return True if the client of a silent connection has closed it."""
        try:
            return not self._stream.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except OSError as error:
            return error.errno != errno.EAGAIN

    def end_silent(self, notice: ErrorObject | None = None) -> None:
        """End a connection that was never begun."""
        self._notice = self._notice or notice
        self._say_why()
        self._stream.close()
        self.staging.close()
        self.server.ended(self)

    def turn(self) -> contextlib.AbstractContextManager[Turn]:
        """A turn to work, for the length of a block."""
        return self.server.turns.turn(self._client)

    @property
    def retired(self) -> bool:
        """True if it takes no more calls."""
        return self._notice is not None

    def make_room(self) -> bool:
        """`retire`, if there is nothing to do, or the reader has gone to sleep; False if not so."""
        with self._guard:
            stalled = self._stalled(STALLED_S)
            still = time.monotonic() - self.active_at > IDLE_S or not (self._used or self._is_readable())
            idle = not self._busy and not self._has_work() and still
            if self.retired or not (stalled or idle):
                return False
            self._notice = wire.MADE_ROOM
        self.retire()
        if stalled:
            self.close()
        return True

    def _is_readable(self) -> bool:
        poll = select.poll()
        poll.register(self._stream, select.POLLIN)
        return bool(poll.poll(0))

    def retire(self, notice: ErrorObject = wire.ENDING) -> None:
        """Take no more calls, and end when those under way, which are cancelled, are answered."""
        with self._guard:
            self._notice = self._notice or notice
        with contextlib.suppress(OSError):
            self._stream.shutdown(socket.SHUT_RD)  # wakes the thread that reads
        self._cancel_all()

    def finish(self, deadline: float) -> None:
        """Wait for the end of one that was retired: until then, by the monotonic clock, or until the client reads no
        more."""
        if self._thread is None:
            self.end_silent()
            return
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
            with self._brief_turn():  # hundreds may end at once
                self._say_why()
                self.close()
                self._stream.close()
            with self._guard:  # a call may outlive its client, and still read what is mounted
                self._guard.wait_for(lambda: self._threads == 0)
            with self._brief_turn():
                self.staging.close()
                self.server.ended(self)

    def _say_why(self) -> None:
        """Send the reason of the end, if the client does not know it and that does not wait."""
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
                    self._take(line)
                del line
            except WireError as error:
                if self.retired:
                    return
                if error.error.code == wire.BUSY:
                    self.server.refused()
                self.send(wire.encode(Failure(error.call, error.error)))
                if error.error.code == wire.BUSY and error.call is None:
                    return  # the message that has begun can't be held, so its rest would be taken for a message
            finally:
                self._busy = False
                self.active_at = time.monotonic()

    def _linger(self) -> None:
        """Nothing more will be taken. Wait for calls under way until they are done, or the client is gone."""
        with self._guard:
            while self._has_work() and not self._client_is_gone():
                self._guard.wait(HANGUP_S)

    def _client_is_gone(self) -> bool:
        """Return True if the client has closed its end, so that it can't read any more."""
        return bool(self._hangup.poll(0))

    def _has_work(self) -> bool:
        return bool(self._threads or self._subscriptions)

    def _stalled(self, seconds: float) -> bool:
        """Return True if the client has not read for so long while a message is sent."""
        since = self._sending_since
        return since is not None and time.monotonic() - since > seconds

    # -- what is held of messages ------------------------------------------------------------------------------

    def _hold(self, size: int) -> None:
        """So much is held of messages that are not complete, or not understood yet."""
        self.active_at = time.monotonic()
        self._used = True
        if size > FREE_BYTES and not self._inside:
            if not self.server.arrivals.enter(self):
                raise WireError(wire.BUSY, "too many long messages are under way")
            self._inside = True
        elif size <= FREE_BYTES and self._inside:
            self._inside = False
            self.server.arrivals.leave(self)
        self.held_bytes = size

    def stands_still(self, seconds: float) -> bool:
        return not self._busy and time.monotonic() - self.active_at > seconds

    def give_up(self) -> None:
        log.warning("a client that sends half a message and no more was left")
        self._notice = wire.STOOD_STILL
        self._inside = False
        with contextlib.suppress(OSError):
            self._stream.shutdown(socket.SHUT_RD)

    # -- calls -------------------------------------------------------------------------------------------------

    def _take(self, line: bytes) -> None:
        """Understand a message, and carry it out, or have it carried out."""
        with contextlib.ExitStack() as stack:
            share = stack.enter_context(self.server.room.share())
            try:
                share.hold(WORK_FACTOR * len(line), PATIENCE_S)
            except NoRoom as error:
                with self._brief_turn():
                    raise WireError(wire.BUSY, str(error), call=wire.id_of(line)) from None
            with self._brief_turn():
                running = self._understood(line, share)
                del line
                self._lines.done()
                if running.verb.long:
                    self._begin(running)
                    stack.pop_all()  # the call closes its share itself
                    return
                answer = None if running.verb.works else running.outcome()
            running.finish(running.outcome() if answer is None else answer)

    def _brief_turn(self) -> contextlib.AbstractContextManager[Turn]:
        """A turn to understand a message and to carry out what is done in no time."""
        return self.server.brief_turns.turn(self._client)

    def _understood(self, line: bytes, share: Share) -> RunningCall:
        """The call that a message asks for. Raises `WireError`, and `Closed` for a change whose client is gone."""
        try:
            request = wire.parse_request(line)
            call = None if request.id is msgspec.UNSET else request.id
            verb = self.server.verbs.get(request.method)
            if verb is None:
                message = f"there is no verb '{request.method}'; see 'hello'"
                raise WireError(wire.METHOD_NOT_FOUND, message, call=call)
            if verb.params is OfPing:
                wire.require_few_values(request.params, call)
            if (verb.long or verb.stays) and self.server.crowded(self):
                raise WireError(wire.BUSY, "all places are taken: only short calls are answered; try again")
            params = wire.parse_params(request, verb.params)
        except MemoryError:
            raise WireError(wire.BUSY, "the server has no memory for this", call=wire.id_of(line)) from None
        if verb.params is not OfPing:
            share.hold((TYPED_FACTOR - WORK_FACTOR) * len(line))
        running = RunningCall(self, request.id, verb, params, share)
        if running.answered and (verb.changes or verb.command) and self._client_is_gone():
            raise Closed("the client of a change is gone, so it is not begun")
        return running

    def _begin(self, running: RunningCall) -> None:
        """Carry out a long call, in a thread of its own."""
        verb = running.verb
        call: CallId = running.key if running.answered else None
        with self._guard:
            self._require_place(verb, call)
            if running.key in self._calls:
                raise WireError(wire.INVALID_REQUEST, "a call with this id is under way", call=call)
            self._enter(verb, call)
            try:
                running.start()
            except RuntimeError:
                self._leave(verb.command)
                raise WireError(wire.BUSY, "no threads are left; try again", call=call) from None
            self._calls[running.key] = running
            self._threads += 1
            self._commands += verb.command

    def _require_place(self, verb: SocketVerb, call: CallId) -> None:
        """Raises `WireError` when as many are under way as may be: of commands, or of all other long verbs."""
        if verb.command:
            if self._commands >= MAX_COMMANDS:
                raise WireError(wire.BUSY, f"{MAX_COMMANDS} commands of this connection are under way", call=call)
            return
        calls = sum(not other.verb.command for other in self._calls.values())
        if calls >= MAX_CALLS or self._threads - self._commands >= MAX_THREADS:
            raise WireError(wire.BUSY, f"{MAX_CALLS} calls of this connection are under way", call=call)

    def _enter(self, verb: SocketVerb, call: CallId) -> None:
        """Take a place among those of all connections. Raises `WireError` when there is none."""
        if verb.command:
            if not self.server.commands.acquire(blocking=False):
                raise WireError(wire.BUSY, f"{MAX_COMMANDS_IN_ALL} commands are running already", call=call)
        elif not self.server.calls.enter(has_one=self._threads > self._commands):
            raise WireError(wire.BUSY, "too many calls of all connections are under way; try again", call=call)

    def _leave(self, command: bool) -> None:
        if command:
            self.server.commands.release()
        else:
            self.server.calls.leave(had_one=self._threads > self._commands)

    def call_done(self, call: RunningCall) -> None:
        """The outcome of a long call is known, so it can't be cancelled, and its id can be used again."""
        with self._guard:
            del self._calls[call.key]

    def call_ended(self, call: RunningCall) -> None:
        """The answer to a long call is sent, or its client is gone."""
        with self._guard:
            self._threads -= 1
            if call.verb.command:
                self._commands -= 1
            self._leave(call.verb.command)
            self.active_at = time.monotonic()
            self._guard.notify_all()

    def cancel(self, call: CallId) -> bool:
        """Cancel a call that is under way; False when there is none of that id."""
        with self._guard:
            found = self._calls.get(call)
            if found is not None:
                found.cancelled.set()
        return found is not None

    def introduce(self, actor: Actor) -> None:
        self.actor = replace(actor, uid=self.actor.uid, pid=self.actor.pid)

    def look_through(self, view: str) -> None:
        if not (view or self._may_choose):
            raise OSError(errno.EPERM, "this connection sees the mount through a view, for good")
        chosen = self.server.backend if self._may_choose else self.backend
        self.backend = chosen.viewed(view) if view else chosen
        self._may_choose = not view

    @property
    def read_only(self) -> bool:
        return self.server.read_only

    @property
    def subscribers(self) -> int:
        return self.server.subscriptions.taken

    @property
    def why_cancelled(self) -> str:
        return "cancelled" if self._notice is None else f"cancelled: {self._notice.message}"

    def subscribe(self, path: str) -> Subscription:
        """A subscription that is not started yet. Raises `WireError` for too many, `PathError` for the path."""
        with self._guard:
            if len(self._subscriptions) >= MAX_CALLS:
                raise WireError(wire.BUSY, f"this connection has {MAX_CALLS} subscriptions already")
            if not self.server.subscriptions.enter(has_one=bool(self._subscriptions)):
                raise WireError(wire.BUSY, "all connections together have too many subscriptions")
            try:
                subscription = Subscription(self, path, str(next(self._names)))
            except BaseException:
                self.server.subscriptions.leave(had_one=bool(self._subscriptions))
                raise
            self._subscriptions[subscription.name] = subscription
        return subscription

    def unsubscribe(self, name: str) -> bool:
        with self._guard:
            subscription = self._subscriptions.pop(name, None)
            if subscription is not None:
                self.server.subscriptions.leave(had_one=bool(self._subscriptions))
        if subscription is not None:
            subscription.close()
        return subscription is not None

    def _cancel_all(self) -> None:
        """Ask every call under way to end, and end the subscriptions."""
        with self._guard:
            subscriptions = list(self._subscriptions.values())
            for left in range(len(subscriptions)):
                self.server.subscriptions.leave(had_one=left > 0)
            self._subscriptions.clear()
            for call in self._calls.values():
                call.cancelled.set()
            self._guard.notify_all()
        for subscription in subscriptions:
            subscription.close()

    # -- sending -----------------------------------------------------------------------------------------------

    def send(self, line: bytes | bytearray | Callable[[], bytes | bytearray]) -> None:
        """Send one message, when the reader takes it; it may be made then only. Raises `Closed` when it is gone."""
        with self._sending:
            self._sending_since = time.monotonic()
            try:
                self._stream.sendall(line() if callable(line) else line)
            except OSError as error:
                raise Closed(str(error)) from None
            finally:
                self._sending_since = None


def peer(stream: socket.socket) -> Actor:
    """The process at the other end, as the kernel noted when it connected (unix(7), SO_PEERCRED). Its id is 0 outside
    of the server's pid namespace, which says nothing."""
    credentials = stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", credentials)
    return Actor(uid=uid, pid=pid or None)
