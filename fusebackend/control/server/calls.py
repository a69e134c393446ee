"""Calls of a connection that are under way, and its subscriptions to changes."""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from fusebackend.base import budget, jitter
from fusebackend.base.budget import Cancellation, Spent
from fusebackend.control import wire
from fusebackend.control.limits import MAX_ANSWER_BYTES
from fusebackend.control.server.limiter import ASLEEP, SUBSCRIPTIONS, WORK, Place, Share
from fusebackend.control.verbs import SocketVerb
from fusebackend.control.wire import Closed, ErrorObject, Failure, Notification, Request, Response, WireError
from fusebackend.protocol import FileEvent, acting

if TYPE_CHECKING:
    from fusebackend.control.server.server_connection import Connection

AT_EASE = 32
"""Up to so many subscriptions, events are sent as they come."""

WAKES_PER_S = 1000
"""With more, each looks now and then, so often all together: 300 threads that woke for every change left the mount no
time, and a `stat` took 1.6 s."""

LOOK_S = 1.0
"""Interval at which a waiting subscription counts the others."""

EVENTS_AT_ONCE = 100

log = logging.getLogger(__name__)


class RunningCall:
    """One call: carried out in the connection's thread, or in one of its own. Verbs see it as their `Call`.

    It is the `Host` of its budget: `share` is the memory it holds.

    Attributes:
        key: its id, or an object for a call without an id.
        place: among the calls that work; the one in which its message was understood, if it is done in no time.
        apart: its place among those that have a thread of their own.
    """

    def __init__(
        self, connection: Connection, request: Request, verb: SocketVerb, params: Any, share: Share, brief: Place
    ) -> None:
        self.backend = connection.backend
        self.staging = connection.staging
        self.cancelled = Cancellation()
        self.answered = request.id is not msgspec.UNSET
        self.key: Any = request.id if self.answered else object()
        self.verb = verb
        self.apart: Place | None = None
        self.connection = connection
        self._actor = connection.actor
        self._params = params
        self._share = share
        self.place = brief
        if verb.command or verb.works:
            self.place = Place(connection.server.limiter, connection.client, ASLEEP if verb.command else WORK)
        self.hold, self.rest = share.hold, self.place.rest  # for the budget
        self._subscribed: Subscription | None = None

    def carry_out(self) -> bool:
        """Run the verb, and send the answer. Returns False when the client is gone."""
        answer: bytes | bytearray = b""
        try:
            try:
                with self.place, budget.limited(None, cancelled=self.cancelled, host=self), acting(self._actor):
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
            if self._subscribed is not None:
                self._subscribed.start()  # its events come after the answer that names it
        except Closed:
            return False
        finally:
            self._share.close()
            if self.apart is not None:
                self.connection.call_ended(self.apart)
        return True

    def _encoded(self, result: Any) -> bytearray:
        if self.cancelled.is_set() and not self.verb.changes:  # the outcome of a change is sent in any case
            raise WireError(wire.CANCELLED, self.connection.why_cancelled)
        line = wire.encode(Response(self.key, result))
        if len(line) > MAX_ANSWER_BYTES:
            raise WireError(
                wire.BUSY, f"the answer is longer than {MAX_ANSWER_BYTES >> 20} MiB: ask for less, or with stream"
            )
        if len(line) > self._share.held:  # the result, of which it is made, has been counted where it is large
            self._share.hold(len(line))
        return line

    # -- for verbs ---------------------------------------------------------------------------------------------

    def notify(self, method: str, **params: Any) -> None:
        self.notify_of(method, lambda: params)

    def notify_of(self, method: str, params: Callable[[], Mapping[str, Any]]) -> None:
        if self.answered:
            self.connection.send(lambda: wire.encode(Notification(method, {"call": self.key, **params()})))

    def subscribe(self, path: str) -> str:
        self._subscribed = self.connection.subscribe(path)
        return self._subscribed.name


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
        return ErrorObject(wire.SYSTEM_ERROR, error.strerror or str(error), {"errno": error.errno})
    log.error("a verb failed", exc_info=error)
    return ErrorObject(wire.INTERNAL_ERROR, f"{type(error).__name__}: {error}")


class Subscription:
    """The changes below a path, sent as they happen. A reader that falls behind gets `overflow`."""

    def __init__(self, connection: Connection, path: str, name: str) -> None:
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
