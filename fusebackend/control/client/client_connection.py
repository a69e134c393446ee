"""`Connection`: a client's end of one connection to a control server, carrying one call at a time, or the changes of a
watch (`RemoteWatch`); and `Pool`, which keeps connections for the next calls.

A call may take as long as it likes, for a server that is alive: when nothing has come for a while, that is asked over
another connection. A call whose caller no longer waits (`base/budget.py`) hangs up, and so the server cancels it.

A kept connection may be dead when it is used again: the server has ended, or has made room for others. A call that was
not sent is sent again over a new connection; so is a call that was sent, if it changes nothing. A call that may have
changed something is never repeated.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from fusebackend.base import budget, errors, jitter
from fusebackend.base.deadline import is_readable
from fusebackend.base.errors import UserError
from fusebackend.control import rendezvous, wire
from fusebackend.control.wire import Closed, Incoming, MessageLines
from fusebackend.protocol import PLAIN, SERVED, Actor, EventSequence, FileEvent, current_actor

MAX_ANSWER_BYTES = 1 << 30
"""The longest message a client takes. Longer contents come in pieces."""

CONNECT_TIMEOUT_S = 10.0

SILENCE_S = 5.0
"""How long a call is waited for until the server is asked whether it is alive."""

ANSWER_TIMEOUT_S = 10.0
"""How long it may take to say so."""

GONE = "is gone without an answer, so nobody knows what it did"

NO_WORDS: Mapping[str, str] = MappingProxyType({"agent": "", "thread": "", "call": ""})
"""What a server knows of the actor of a new connection."""

MAX_IDLE = 16
"""Connections kept for the next call, or a few more."""

PATIENCE_S = 10.0
"""How long a server that has no room is asked again."""

Take = Callable[[Mapping[str, Any]], None]
T = TypeVar("T")


class ServerLost(ConnectionError):
    """The server of a mount can't be reached, or was gone before it answered."""


class NotSent(ServerLost):
    """It was gone before it had the whole call: nothing has been done."""


class TurnedAway(NotSent):
    """It has no room for this connection, or not any more: nothing has been done."""


class InvalidCall(UserError, ValueError):
    """The server does not take the parameters of a call."""


class FailedCall(UserError, RuntimeError):
    """The server says why a call came to nothing, which no errno does."""


class NotSupported(UserError, NotImplementedError):
    """The mounted backend can't do this."""


class AnsweredError(UserError):
    """The server answered with an error."""

    def __init__(self, error: wire.ErrorObject) -> None:
        super().__init__(error.message)
        self.code = error.code
        self.data = error.data or {}

    def as_exception(self, path: str | None = None) -> Exception:
        """Return the exception that the same call raises in the server's own process.

        Args:
            path: that the call names.
        """
        if self.code == wire.INVALID_PARAMS:
            return InvalidCall(str(self))
        if self.code == wire.SYSTEM_ERROR:
            named = [self.data["path"]] if "path" in self.data else []
            return errors.about(OSError(self.data.get("errno", errno.EIO), str(self), *named), path)
        return FailedCall(str(self))


class Connection:
    """See the module's docstring.

    Attributes:
        mountpoint: the mount point of the server.
        process: that has made it; in its children it is no connection of theirs.
        used: it has carried a call before, so the server may have closed it since.
        answering: something of the answer to the last call has come.
        hung: the server lives, but does nothing.

    Raises:
        ServerLost: no server listens.
    """

    def __init__(self, address: str, mountpoint: str, actor: Callable[[], Actor] = current_actor) -> None:
        try:
            self._stream = _connected(address)
        except OSError as error:
            words = {
                errno.ECONNREFUSED: "no server listens",
                errno.ENOENT: "no server listens",
                errno.EACCES: "the mount is another user's",
                errno.EAGAIN: "it hangs, or is stopped",
            }
            why = words.get(error.errno or 0, error.strerror)
            raise ServerLost(f"the server of '{mountpoint}' can't be reached at '{address}': {why}") from None
        self.used = False
        self.answering = False
        self.hung = False
        self.mountpoint = mountpoint
        self._address = address
        self._actor = actor
        self._said = NO_WORDS
        self.process = os.getpid()
        self._ids = itertools.count(1)
        self._lines = MessageLines(self._stream, MAX_ANSWER_BYTES)

    def waiting(self, timeout_s: float | None) -> bool:
        """Return True if a message, or the beginning of one, comes within so many seconds. None waits for ever."""
        return bool(self._lines.held) or is_readable(self._stream.fileno(), timeout_s)

    def close(self) -> None:
        """Also from another thread, which ends a call under way. In a child, the parent's connection goes on."""
        self.hang_up()
        self._stream.close()

    def hang_up(self) -> None:
        """End it; the caller that waits for it closes it."""
        if self.process == os.getpid():
            with contextlib.suppress(OSError):  # it has ended already
                self._stream.shutdown(socket.SHUT_RDWR)

    def call(
        self,
        kind: type[T],
        verb: str,
        params: Mapping[str, Any],
        take: Take | None = None,
    ) -> T:
        """Ask, hand every notification of the call to `take`, and give the answer as `kind`.

        Raises:
            AnsweredError, TurnedAway, NotSent, ServerLost: see there.
            NotImplementedError: the mounted backend can't do this.
        """
        number, line = self._numbered(verb, params)
        self.answering = False
        with budget.current().waking(self.hang_up):
            self._send(line)
            while True:
                message = self.next()
                if message.method is not None:
                    if take is not None and message.params is not msgspec.UNSET:
                        take(wire.decode(message.params, Any))
                    continue
                if message.id == number or (message.id is None and message.error is not None):
                    return self._result(kind, message)

    def _numbered(self, verb: str, params: Mapping[str, Any]) -> tuple[int, bytes | bytearray]:
        """A call as it is sent, and its number.

        Before a change by another actor than the one before, and other verbs for which the actor counts, it has a
        `hello` without an id, which the server does not answer: so who acts may differ from call to call, and costs no
        round trip.
        """
        number = next(self._ids)
        line = wire.encode({"jsonrpc": "2.0", "id": number, "method": verb, "params": params})
        known = SERVED.get(verb, PLAIN)
        if not (known.changes or known.command or known.has_actor):
            return number, line
        actor = self._actor()
        said = {"agent": actor.agent, "thread": actor.thread, "call": actor.call}
        if said == self._said:
            return number, line
        self._said = said
        return number, wire.encode({"jsonrpc": "2.0", "method": "hello", "params": {"actor": said}}) + line

    def _send(self, line: bytes | bytearray) -> None:
        """Send a whole call. Raises `NotSent` or `TurnedAway`."""
        left = memoryview(line)
        while left:
            try:
                left = left[self._stream.send(left) :]
            except TimeoutError:
                self._require_life(NotSent, "does not take the call")
            except OSError as error:
                gone = NotSent(f"the server of '{self.mountpoint}' is gone: {error.strerror}")
                raise self._last_words() or gone from None

    def _require_life(self, kind: type[ServerLost], what: str) -> None:
        """Raises `kind` when the server, asked over another connection, does not answer."""
        try:
            with _connected(self._address) as stream:
                stream.settimeout(ANSWER_TIMEOUT_S)
                stream.send(wire.encode({"jsonrpc": "2.0", "id": 0, "method": "ping"}))
                stream.recv(1)  # it answers, or has no room
                return
        except OSError as error:
            if not isinstance(error, TimeoutError | BlockingIOError):  # it is ending, and so will this connection
                return
        self.hung = True
        raise kind(f"the server of '{self.mountpoint}' {what}: it hangs, or is stopped")

    def _last_words(self) -> TurnedAway | None:
        """Return the last message of a server that has closed the connection."""
        with contextlib.suppress(ServerLost):
            message = self.next()
            return None if message.error is None else TurnedAway(self._turned_away(message.error))
        return None

    def _turned_away(self, error: wire.ErrorObject) -> str:
        return f"the server of '{self.mountpoint}' takes no calls: {error.message}"

    def next(self) -> Incoming:
        """Return the next message. Raises `ServerLost` at the end."""
        while (line := self._lines.next()) is None:
            try:
                self._lines.receive()
            except TimeoutError:
                self._require_life(ServerLost, GONE)
            except (Closed, wire.WireError) as error:
                raise ServerLost(f"the server of '{self.mountpoint}' {GONE}: {error}") from None
        self.answering = True
        try:
            message: Incoming = wire.decode(line, Incoming)
        except msgspec.DecodeError as error:
            raise self._strange(error) from None
        return message

    def _result(self, kind: type[T], message: Incoming) -> T:
        """Return the result in an answer, as `kind`; raise its error."""
        if message.error is not None:
            if message.error.code == wire.BUSY and message.id is None:
                raise TurnedAway(self._turned_away(message.error))
            if message.error.code == wire.NOT_SUPPORTED:
                raise NotSupported(message.error.message)
            raise AnsweredError(message.error)
        if message.result is msgspec.UNSET:
            raise self._strange("no result")
        try:
            result: T = wire.decode(message.result, kind)
        except msgspec.DecodeError as error:
            raise self._strange(error) from None
        return result

    def _strange(self, what: object) -> ServerLost:
        return ServerLost(f"the server of '{self.mountpoint}' does not speak this protocol: {what}")


class RemoteWatch(EventSequence):
    """The changes that a server tells of, like `vfs.watch.feed.Watch`, over a connection that has subscribed to them,
    and is its own from now on."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._closed = threading.Event()

    def close(self) -> None:
        """End it, from any thread; an iteration under way ends."""
        self._closed.set()
        self._connection.close()

    def get(self, timeout_s: float | None = None) -> FileEvent | None:
        """The next change; None when none came in time, or the watch is closed.

        Raises:
            ServerLost: the server has ended.
        """
        while not self._closed.is_set():
            try:
                if not self._connection.waiting(timeout_s):
                    return None
                message = self._connection.next()
            except (OSError, ValueError) as error:  # closing from another thread shows as any of these
                if self._closed.is_set():
                    return None
                if not isinstance(error, ServerLost):
                    raise
                raise ServerLost(f"the server of '{self._connection.mountpoint}' has ended") from None
            if message.error is not None:
                raise ServerLost(
                    f"the server of '{self._connection.mountpoint}' tells of no more changes: {message.error.message}"
                )
            if message.method == "change" and message.params is not msgspec.UNSET:
                params: dict[str, Any] = wire.decode(message.params, Any)
                return wire.convert(params["event"], FileEvent)
        return None


def _connected(address: str) -> socket.socket:
    """A connection; waits for a server that has a queue of others to accept. Raises OSError."""
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stream.setblocking(False)
    deadline = time.monotonic() + CONNECT_TIMEOUT_S
    try:
        while True:
            try:
                with rendezvous.short(address) as name:
                    stream.connect(name)
            except BlockingIOError:  # of a Unix socket: its queue is full (connect(2), EAGAIN)
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.005)
            else:
                stream.settimeout(SILENCE_S)
                return stream
    except BaseException:
        stream.close()
        raise


# -- connections that are kept ---------------------------------------------------------------------------------


class Pool:
    """A client's connections, one for each call while it lasts, kept for the next one; see the module's docstring. For
    any number of threads, and after a fork for both processes.

    A call that is given up, by an exception or because its caller was cancelled, closes its connection, and so the
    server cancels it.

    Args:
        connect: makes a connection. Raises `ServerLost`.
    """

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        # Each step of a list is atomic. A lock that was held at a fork would never be released in the child.
        self._idle: list[Connection] = []

    def close(self) -> None:
        """Close the connections that are kept; for the next call there will be a new one."""
        while self._idle:
            with contextlib.suppress(IndexError):  # another thread has taken the last one
                self._idle.pop().close()

    def ask(
        self, kind: type[T], verb: str, params: Mapping[str, Any], take: Take | None = None
    ) -> tuple[Connection, T]:
        """Ask; returns the answer as `kind`, and the connection, which is the caller's until `give_back`.

        Raises:
            AnsweredError: the server answers with an error.
            ServerLost: it can't be reached, or is gone before it answered.
            NotImplementedError: the mounted backend can't do this.
        """
        deadline = time.monotonic() + PATIENCE_S
        while True:
            connection = self._borrow()
            try:
                return connection, connection.call(kind, verb, params, take)
            except (AnsweredError, NotImplementedError):
                self.give_back(connection)
                raise
            except TurnedAway:
                connection.close()
                if time.monotonic() > deadline or budget.current().cancelled:
                    raise
                time.sleep(jitter.between(0.0, 0.05))
            except BaseException as error:
                connection.close()
                if not _may_repeat(connection, verb, error):
                    raise
            self.close()  # the others that are kept are as old

    def _borrow(self) -> Connection:
        while self._idle:
            with contextlib.suppress(IndexError):  # another thread has taken the last one
                connection = self._idle.pop()
                if connection.process == os.getpid():
                    return connection
                connection.close()  # it is the parent's
        return self._connect()

    def give_back(self, connection: Connection) -> None:
        """Keep a connection whose call has ended, for the next one."""
        connection.used = True
        if len(self._idle) < MAX_IDLE:
            self._idle.append(connection)
        else:
            connection.close()


def _may_repeat(connection: Connection, verb: str, error: BaseException) -> bool:
    """Return True if a call that failed in this way may be made again. Only when it is the fault of a connection that
    had been kept."""
    if not connection.used or connection.hung or budget.current().cancelled or not isinstance(error, ServerLost):
        return False
    harmless = not (SERVED.get(verb, PLAIN).changes or verb == "execute" or connection.answering)
    return harmless or isinstance(error, NotSent)
