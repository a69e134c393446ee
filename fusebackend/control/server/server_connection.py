"""`ServedConnection`: one client of the control socket, served.

A connection has a thread that reads calls and carries out the short ones at once, so that a `read` costs no more than
its message. Long verbs (a search, a command, a tree) have a thread of their own: the connection goes on meanwhile, can
cancel them, and cancels all of them when it ends. A reader that does not read holds up its own connection and nothing
else: no lock but that of sending is held while a message is sent.

The memory of a call is counted, from its message to its answer, and calls that work take turns (`limiter.py`).

A client that sends no more may still read (`socat`, when its input has ended): it gets its answers and events as long
as it is there. Malformed messages get a JSON-RPC error, and the connection goes on.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import secrets
import select
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Any

import msgspec

from fusebackend.base import budget, jitter
from fusebackend.base.budget import Cancellation, Spent
from fusebackend.control import wire
from fusebackend.control.limits import (
    FREE_BYTES,
    MAX_ANSWER_BYTES,
    MAX_CALLS,
    PATIENCE_S,
    STANDSTILL_S,
    TYPED_FACTOR,
    WORK_FACTOR,
    NoRoom,
)
from fusebackend.control.server.limiter import (
    ARRIVING,
    ASLEEP,
    BRIEF,
    COMMANDS,
    LONG,
    SUBSCRIPTIONS,
    WORK,
    LimitedClient,
    Place,
)
from fusebackend.control.verbs import OfPing, ServedMount, SocketVerb
from fusebackend.control.wire import (
    CallId,
    Closed,
    ErrorObject,
    Failure,
    MessageLines,
    Notification,
    Request,
    Response,
    WireError,
)
from fusebackend.protocol import Actor, FileEvent, acting

if TYPE_CHECKING:
    from fusebackend.control.server.control_server import ControlServer

IDLE_S = 1.0
"""A connection that has been idle for so long may be closed to make room for another one."""

STALLED_S = 60.0
"""So may one that has not read for so long while a message is sent."""

LAST_WORDS_S = 0.5
"""How long the end of the mount waits for a client to read an answer."""

HANGUP_S = 0.1
"""How often a connection that can't send any more is looked at: is the client still there?"""

GONE = select.POLLHUP | select.POLLERR
"""The client has closed its end, so that it can't read any more."""


MAX_STAGED_BYTES = 2 << 30
"""Of all that one connection has staged; no backend takes a larger file."""

MAX_TOKENS = 8
"""Each is an open file, and 256 connections may have as many."""


class Staging:
    """Contents that arrive in pieces, because they are longer than a message may be. One per connection.

    Pieces are appended to files without a name, which go with the connection. One call may take content while another
    one adds some."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._files: dict[str, IO[bytes]] = {}
        self._bytes = 0

    def add(self, data: bytes, token: str | None) -> str:
        """Append a piece to the content of `token`; without one, begin something new. Returns the token.

        Raises:
            OSError: EINVAL for a token that is not known, EFBIG for too much, EMFILE for too many.
        """
        with self._guard:
            if token is not None and token not in self._files:
                raise OSError(errno.EINVAL, f"nothing is staged under '{token}'")
            if self._bytes + len(data) > MAX_STAGED_BYTES:
                raise OSError(errno.EFBIG, f"more than {MAX_STAGED_BYTES} bytes would be staged at once")
            if token is None:
                if len(self._files) >= MAX_TOKENS:
                    raise OSError(errno.EMFILE, f"{MAX_TOKENS} contents are staged already")
                token = secrets.token_hex(8)
                self._files[token] = tempfile.TemporaryFile(prefix="fusebackend-")  # noqa: SIM115 - until `take`
            self._files[token].write(data)
            self._bytes += len(data)
            return token

    def size(self, token: str) -> int:
        """How long what is staged is; 0 for a token that is not known."""
        with self._guard:
            file = self._files.get(token)
            return 0 if file is None else file.tell()

    def take_file(self, token: str | None) -> IO[bytes] | None:
        """The whole content, as a file which is the caller's to close, and which is no longer staged. None without a
        token, and for an unknown token."""
        with self._guard:
            file = None if token is None else self._files.pop(token, None)
            if file is not None:
                self._bytes -= file.tell()
        return file

    def close(self) -> None:
        with self._guard:
            for file in self._files.values():
                file.close()
            self._files.clear()


class ServedConnection:
    """See the module's docstring. `start` serves it in a thread of its own until it or the server ends.

    Args:
        server: what it shares with the others.
        stream: the client's end.
        number: of the connection, in the order of their begins.
        view: what the client sees of the mount, for good; None lets it choose.

    Attributes:
        notice: why no more calls are taken, the last message to the client; None while they are.
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
        self.client = LimitedClient(number)
        self.active_at = self.since = time.monotonic()
        self.stream = stream
        self._lines = MessageLines(stream)
        self._arriving = Place(server.limiter, self.client, ARRIVING, self._stands_still)
        self._sending = threading.Lock()
        self._sending_since: float | None = None
        self._guard = threading.Condition()  # notified when a call has ended
        self.notice: ErrorObject | None = None
        self._busy = False
        self._calls: dict[CallId, RunningCall] = {}  # long ones, until their outcome is known
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
        """Return True if something has come over it."""
        return self._thread is not None

    def make_room(self) -> bool:
        """`retire`, if there is nothing to do, or the reader has gone to sleep; False if not so."""
        with self._guard:
            stalled = self._stalled(STALLED_S)
            still = time.monotonic() - self.active_at > IDLE_S or not (self.begun or self._polls(select.POLLIN))
            idle = not self._busy and not self._has_work() and still
            if self.notice is not None or not (stalled or idle):
                return False
            self.notice = wire.MADE_ROOM
        self.retire()
        if stalled:
            self.close()
        return True

    def retire(self, notice: ErrorObject = wire.ENDING) -> None:
        """Take no more calls, and end when those under way, which are cancelled, are answered."""
        with self._guard:
            self.notice = self.notice or notice
        with contextlib.suppress(OSError):
            self.stream.shutdown(socket.SHUT_RD)  # wakes the thread that reads
        self._cancel_all()

    def finish(self, deadline: float) -> None:
        """Wait for the end of one that was retired: until then, by the monotonic clock, or until the client reads no
        more."""
        if self._thread is None:
            self.end()
            return
        while self._thread.is_alive() and time.monotonic() < deadline and not self._stalled(LAST_WORDS_S):
            self._thread.join(0.05)
        self.close()
        self._thread.join(max(deadline - time.monotonic(), 0.0))

    def close(self) -> None:
        """End the connection, from any thread."""
        with contextlib.suppress(OSError):
            self.stream.shutdown(socket.SHUT_RDWR)
        self._cancel_all()

    def _run(self) -> None:
        try:
            while (call := self._next_call()) is not None and call.carry_out():
                pass
        except Exception:  # nothing a client does may end the server
            log.exception("a connection failed")
        self._lines.forget()
        self._hold(0)
        with self._guard:  # calls under way are waited for until they are done, or the client is gone
            while self._has_work() and not self._polls(GONE):
                self._guard.wait(HANGUP_S)
        self.end()

    def end(self, notice: ErrorObject | None = None) -> None:
        """Close it, in its own thread if it has one."""
        self.notice = self.notice or notice
        if self.notice is not None and self._sending.acquire(blocking=False):
            with contextlib.suppress(OSError):  # a client that does not read now is not told why
                self.stream.send(wire.encode(Failure(None, self.notice)), socket.MSG_DONTWAIT)
            self._sending.release()
        self.close()
        self.stream.close()
        with self._guard:  # a call may outlive its client, and still read what is mounted
            self._guard.wait_for(lambda: not self._threads)
        self.staging.close()
        self.server.ended(self)

    def _polls(self, events: int) -> bool:
        """Return True if one of these poll(2) events is there, or the stream is closed. For any thread, which a poll
        object is not."""
        poll = select.poll()
        with contextlib.suppress(ValueError):  # it has no descriptor any more
            poll.register(self.stream, events)
            return bool(poll.poll(0))
        return True

    @property
    def _threads(self) -> int:
        """Of long calls, also while they send their answers."""
        return self.client.has[LONG] + self.client.has[COMMANDS]

    def _has_work(self) -> bool:
        return bool(self._threads or self._subscriptions)

    def _stalled(self, seconds: float) -> bool:
        """Return True if the client has not read for so long while a message is sent."""
        since = self._sending_since
        return since is not None and time.monotonic() - since > seconds

    # -- messages ----------------------------------------------------------------------------------------------

    def _hold(self, size: int) -> None:
        """So much is held of messages that are not complete, or not understood yet."""
        self.active_at = time.monotonic()
        arriving = self._arriving
        if max(size, arriving.held) <= FREE_BYTES:
            return
        self._busy, was_busy = True, self._busy  # while it waits here, it does not stand still
        try:
            if size > FREE_BYTES >= arriving.held:
                self.server.limiter.take(arriving)
            arriving.hold(size - arriving.held, PATIENCE_S)
        except NoRoom as error:
            raise WireError(wire.BUSY, str(error)) from None
        finally:
            self._busy = was_busy
            if arriving.held <= FREE_BYTES:
                self.server.limiter.leave(arriving)

    def _stands_still(self) -> bool:
        """Give up the message that arrives if it stands still half way; asked while others wait to arrive."""
        if self._busy or time.monotonic() - self.active_at <= STANDSTILL_S:
            return False
        log.warning("a client that sends half a message and no more was left")
        self.notice = wire.STOOD_STILL
        with contextlib.suppress(OSError):
            self.stream.shutdown(socket.SHUT_RD)
        return True

    def _next_call(self) -> RunningCall | None:
        """Return the next short call; begin the long ones before it. None when no more are taken."""
        while True:
            self._busy, refusal = False, None
            try:
                self._hold(len(self._lines.held))
                line = self._lines.next()
                if line is None:
                    self._lines.receive()
                    continue
                with self._guard:
                    if self.notice is not None:
                        return None
                    self._busy = True
                call = self._understood(line) if line and not line.isspace() else None
                if call is not None and not call.verb.long:
                    return call
            except Closed:
                return None
            except WireError as error:
                refusal = Failure(error.call, error.error)
            line = None  # as the error's frames, it has the message
            if refusal is not None and (self.notice is not None or not self._refused(refusal)):
                return None

    def _refused(self, refusal: Failure) -> bool:
        """Send an error; False when it is the last message."""
        is_busy = refusal.error.code == wire.BUSY
        goes_on = not is_busy or refusal.id is not None  # the rest of a message that can't be held is no message
        if is_busy:
            self.server.refused()
        if goes_on:
            self._hold(len(self._lines.held))  # while the client does not read the error, nothing of its message
        try:
            self.send(wire.encode(refusal))
        except Closed:
            return False
        return goes_on

    def _understood(self, line: bytes) -> RunningCall:
        """The call that a message asks for, which has begun if it is long. Raises `WireError`, and `Closed` for a
        change whose client is gone."""
        place = Place(self.server.limiter, self.client, BRIEF)
        try:
            place.hold(WORK_FACTOR * len(line), PATIENCE_S)
            self.server.limiter.take(place)
            call = self._parsed(line, place)
            self._hold(len(self._lines.held))
            if call.verb.long:
                self.server.limiter.leave(place)  # it goes on in another thread
                self._begin(call)
            return call
        except BaseException as error:
            self.server.limiter.leave(place)
            place.hold(-place.held)
            if isinstance(error, (NoRoom, MemoryError)):
                message = str(error) or "the server has no memory for this"
                raise WireError(wire.BUSY, message, call=wire.id_of(line)) from None
            raise

    def _parsed(self, line: bytes, place: Place) -> RunningCall:
        request = wire.parse_request(line)
        id = None if request.id is msgspec.UNSET else request.id
        verb = self.server.verbs.get(request.method)
        if verb is None:
            raise WireError(wire.METHOD_NOT_FOUND, f"there is no verb '{request.method}'; see 'hello'", call=id)
        if verb.params is OfPing:
            wire.require_few_values(request.params, id)
        if (verb.long or verb.stays) and self.server.crowded(self):
            raise WireError(wire.BUSY, "all places are taken: only short calls are answered; try again")
        call = RunningCall(self, request, verb, wire.parse_params(request, verb.params), place)
        if verb.params is not OfPing:
            place.hold((TYPED_FACTOR - WORK_FACTOR) * len(line))
        if call.answered and (verb.changes or verb.command) and self._polls(GONE):
            raise Closed("the client of a change is gone, so it is not begun")
        return call

    def _begin(self, call: RunningCall) -> None:
        """Carry out a long call, in a thread of its own. Raises `WireError`, or `NoRoom`."""
        with self._guard:
            if call.key in self._calls:
                raise WireError(wire.INVALID_REQUEST, "a call with this id is under way", call=call.key)
            if not call.verb.command and sum(not other.verb.command for other in self._calls.values()) >= MAX_CALLS:
                raise NoRoom(f"{MAX_CALLS} calls of this connection are under way")
            call.apart = Place(self.server.limiter, self.client, COMMANDS if call.verb.command else LONG)
            self.server.limiter.take(call.apart)
            try:
                threading.Thread(target=call.carry_out, name="fusebackend-call", daemon=True).start()
            except RuntimeError:
                self.server.limiter.leave(call.apart)
                raise NoRoom("no threads are left; try again") from None
            self._calls[call.key] = call

    def call_done(self, call: RunningCall) -> None:
        """The outcome of a long call is known, so it can't be cancelled, and its id can be used again."""
        with self._guard:
            del self._calls[call.key]

    def call_ended(self, place: Place) -> None:
        """The answer to a long call is sent, or its client is gone."""
        with self._guard:
            self.server.limiter.leave(place)
            self.active_at = time.monotonic()
            self._guard.notify_all()

    # -- for calls ---------------------------------------------------------------------------------------------

    def cancel(self, call: CallId) -> bool:
        """Cancel a call that is under way; False when there is none of that id."""
        with self._guard:
            found = self._calls.get(call)
            if found is not None:
                found.cancelled.set()
        return found is not None

    def introduce(self, actor: Actor) -> None:
        """Have further calls made by `actor`; user and process are those that the kernel names."""
        self.actor = replace(actor, uid=self.actor.uid, pid=self.actor.pid)

    def look_through(self, view: str) -> None:
        """Have further calls see the mount through a view; through none, if its name is empty."""
        if not (view or self._may_choose):
            raise OSError(errno.EPERM, "this connection sees the mount through a view, for good")
        chosen = self.server.backend if self._may_choose else self.backend
        self.backend = chosen.viewed(view) if view else chosen
        self._may_choose = not view

    def subscribe(self, path: str) -> Subscription:
        """A subscription that is not started yet. Raises `NoRoom` for one too many, `PathError` for the path."""
        with self._guard:
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
            subscriptions, self._subscriptions = self._subscriptions, {}
            for call in self._calls.values():
                call.cancelled.set()
            self._guard.notify_all()
        for subscription in subscriptions.values():
            subscription.close()

    # -- sending -----------------------------------------------------------------------------------------------

    def send(self, line: bytes | bytearray | Callable[[], bytes | bytearray]) -> None:
        """Send one message, when the reader takes it; it may be made then only. Raises `Closed` when it is gone."""
        with self._sending:
            self._sending_since = time.monotonic()
            try:
                self.stream.sendall(line() if callable(line) else line)
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


# -- calls -------------------------------------------------------------------------------------------------------


AT_EASE = 32
"""Up to so many subscriptions, events are sent as they come."""

WAKES_PER_S = 1000
"""With more, each looks now and then, so often all together: 300 threads that woke for every change left the mount no
time, and a `stat` took 1.6 s."""

LOOK_S = 1.0
"""Interval at which a waiting subscription counts the others."""

EVENTS_AT_ONCE = 100

NEVER = Cancellation()
"""Of short calls: no thread is left to cancel one."""

log = logging.getLogger(__name__)


class RunningCall:
    """One call: carried out in the connection's thread, or in one of its own. Verbs see it as their `Call`.

    Attributes:
        key: its id, or an object for a call without an id.
        place: in which its message is understood, and then among the calls that work, unless it is done in no time. It
            is the host of the call's budget.
        subscribed: a subscription, which begins when the answer, which names it, is sent.
        apart: its place among those that have a thread of their own.
    """

    def __init__(
        self, connection: ServedConnection, request: Request, verb: SocketVerb, params: Any, place: Place
    ) -> None:
        self.backend = connection.backend
        self.cancelled = Cancellation() if verb.long else NEVER
        self.answered = request.id is not msgspec.UNSET
        self.key: Any = request.id if self.answered else object()
        self.verb = verb
        self.apart: Place | None = None
        self.connection = connection
        self._actor = connection.actor
        self._params = params
        self.place = place
        self.subscribed: Subscription | None = None

    def carry_out(self) -> bool:
        """Run the verb, and send the answer. Returns False when the client is gone."""
        answer: bytes | bytearray = b""
        kind = ASLEEP if self.verb.command else WORK if self.verb.works else BRIEF
        at_work = self.connection.server.limiter.at_work(self.place, kind)
        try:
            try:
                with at_work, budget.limited(None, cancelled=self.cancelled, host=self.place), acting(self._actor):
                    if self.verb.changes and self.connection.server.read_only:
                        raise OSError(errno.EROFS, "Read-only file system: this mount is read-only")
                    result = self.verb.run(self, self._params)
                    if self.answered:
                        answer = self._encoded(result)
            except Closed:
                raise
            except Exception as error:
                if self.answered:
                    answer = wire.encode(Failure(self.key, _told(error)))
            finally:
                self._params = result = None  # neither is needed while a slow client reads
                if self.apart is not None:
                    self.connection.call_done(self)
            if answer:
                self.connection.send(answer)
            if self.subscribed is not None:
                self.subscribed.start()  # its events come after the answer that names it
        except Closed:
            return False
        finally:
            self.place.hold(-self.place.held)
            if self.apart is not None:
                self.connection.call_ended(self.apart)
        return True

    def _encoded(self, result: Any) -> bytearray:
        self.require()
        line = wire.encode(Response(self.key, result))
        if len(line) > MAX_ANSWER_BYTES:
            raise WireError(
                wire.BUSY, f"the answer is longer than {MAX_ANSWER_BYTES >> 20} MiB: ask for less, or with stream"
            )
        if len(line) > self.place.held:  # the result, of which it is made, has been counted where it is large
            self.place.hold(len(line))
        return line

    # -- for verbs ---------------------------------------------------------------------------------------------

    def require(self) -> None:
        """Raise `WireError` if it was cancelled. The outcome of a change is sent in any case."""
        if self.cancelled.is_set() and not self.verb.changes:
            notice = self.connection.notice
            raise WireError(wire.CANCELLED, "cancelled" if notice is None else f"cancelled: {notice.message}")

    def notify(self, method: str, **params: Any) -> None:
        """Send what there is so far; waits for the reader, and raises `ConnectionError` when there is none."""
        self.notify_of(method, lambda: params)

    def notify_of(self, method: str, params: Callable[[], Mapping[str, Any]]) -> None:
        """`notify`, with parameters that are made when it is the call's turn to send, so that no piece waits in
        memory."""
        if self.answered:
            self.connection.send(lambda: wire.encode(Notification(method, {"call": self.key, **params()})))


def _told(error: Exception) -> ErrorObject:
    """An exception as JSON-RPC says it. Unexpected exceptions are logged."""
    if isinstance(error, WireError):
        return error.error
    if isinstance(error, (Spent, MemoryError)):
        return ErrorObject(wire.BUSY, str(error) or "the server has no memory for this")
    if isinstance(error, NotImplementedError):
        return ErrorObject(wire.NOT_SUPPORTED, str(error))
    if isinstance(error, ValueError):
        return ErrorObject(wire.INVALID_PARAMS, str(error))
    if isinstance(error, OSError):
        named = {"path": error.filename} if isinstance(error.filename, str) else {}
        return ErrorObject(wire.SYSTEM_ERROR, error.strerror or str(error), {"errno": error.errno, **named})
    log.error("a verb failed", exc_info=error)
    return ErrorObject(wire.INTERNAL_ERROR, f"{type(error).__name__}: {error}")


class Subscription:
    """The changes below a path, sent as they happen. A reader that falls behind gets `overflow`."""

    def __init__(self, connection: ServedConnection, path: str, name: str) -> None:
        """Raises `NoRoom` for one too many, `PathError` for a path that is none."""
        self.name = name
        self._connection = connection
        self._limiter = connection.server.limiter
        self._place = Place(self._limiter, connection.client, SUBSCRIPTIONS)
        self._limiter.take(self._place)
        try:
            self._watch = connection.backend.watch(path)
        except BaseException:
            self._limiter.leave(self._place)
            raise

    def start(self) -> None:
        threading.Thread(target=self._run, name="fusebackend-subscription", daemon=True).start()

    def close(self) -> None:
        self._limiter.leave(self._place)
        self._watch.close()

    def _run(self) -> None:
        try:
            while (events := self._next()) is not None:
                lines = (Notification("change", {"subscription": self.name, "event": event}) for event in events)
                if events:
                    self._connection.send(b"".join(map(wire.encode, lines)))
        except Closed:
            self._watch.close()

    def _next(self) -> list[FileEvent] | None:
        """Events, perhaps none; None at the end."""
        wait_s: float | None = LOOK_S
        crowd = len(self._limiter.taken[SUBSCRIPTIONS])
        if crowd > AT_EASE:
            time.sleep(jitter.between(0.5, 1.5) * crowd / WAKES_PER_S)
            wait_s = 0.0
        event = self._watch.get(wait_s)
        if event is None:
            return None if self._watch.closed else []
        events = [event]
        while len(events) < EVENTS_AT_ONCE and (event := self._watch.get(0.0)) is not None:
            events.append(event)
        return events
