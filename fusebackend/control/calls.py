"""What a connection has under way: calls, and subscriptions to changes."""

from __future__ import annotations

import errno
import logging
import threading
from typing import TYPE_CHECKING, Any

import msgspec

from fusebackend.budget import Cancellation
from fusebackend.control import wire
from fusebackend.control.verbs import Params, Verb
from fusebackend.control.wire import CallId, Closed, ErrorObject, Failure, Notification, Response, WireError

if TYPE_CHECKING:
    from fusebackend.control.serving import Connection

log = logging.getLogger(__name__)


class RunningCall:
    """One call: run in the connection's thread, or with `start` in one of its own. Verbs see it as their `Call`."""

    def __init__(self, connection: Connection, id: CallId | msgspec.UnsetType, verb: Verb, params: Params) -> None:
        self.backend = connection.backend
        self.staging = connection.staging
        self.cancelled = Cancellation()
        self.answered = id is not msgspec.UNSET
        self.key: Any = id if self.answered else object()
        self.command = verb.command
        self._connection = connection
        self._verb = verb
        self._params = params
        self._subscribed: Subscription | None = None

    def start(self) -> None:
        threading.Thread(target=self._run_apart, name="fusebackend-call", daemon=True).start()

    def _run_apart(self) -> None:
        try:
            try:
                answer = self._outcome()
            finally:
                self._connection.call_done(self)
            self._send(answer)
        except Closed:
            log.debug("nobody waits for the answer any more")
        finally:
            self._connection.call_ended(self)

    def run(self) -> None:
        """Carry out the call and send the answer. Raises `Closed` when there is nobody to send it to."""
        self._send(self._outcome())
        if self._subscribed is not None:
            self._subscribed.start()  # its events come after the answer that names it

    def _send(self, answer: bytes) -> None:
        if self.answered:
            self._connection.send(answer)

    def _outcome(self) -> bytes:
        """The answer, as it is sent."""
        try:
            if self._verb.changes and self._connection.server.read_only:
                raise OSError(errno.EROFS, "Read-only file system: this mount is read-only")
            result = self._verb.run(self, self._params)
            if self.cancelled.is_set() and not self._verb.changes:  # what has been changed is told in any case
                raise WireError(wire.CANCELLED, self._connection.why_cancelled)
            return wire.encode(Response(self.key, result)) if self.answered else b""
        except Closed:
            raise
        except Exception as error:
            return wire.encode(Failure(self.key, _told(error))) if self.answered else b""

    # -- for verbs ---------------------------------------------------------------------------------------------

    def notify(self, method: str, **params: Any) -> None:
        if self.answered:
            self._connection.send(wire.encode(Notification(method, {"call": self.key, **params})))

    def cancel(self, call: CallId) -> bool:
        return self._connection.cancel(call)

    def subscribe(self, path: str) -> str:
        self._subscribed = self._connection.subscribe(path)
        return self._subscribed.name

    def unsubscribe(self, subscription: str) -> bool:
        return self._connection.unsubscribe(subscription)


def _told(error: Exception) -> ErrorObject:
    """An exception as JSON-RPC says it. What nobody expected is logged."""
    if isinstance(error, WireError):
        return error.error
    if isinstance(error, NotImplementedError):
        return ErrorObject(wire.NOT_SUPPORTED, str(error))
    if isinstance(error, ValueError):
        return ErrorObject(wire.INVALID_PARAMS, str(error))
    if isinstance(error, OSError):
        return ErrorObject(wire.SYSTEM_ERROR, error.strerror or str(error), {"errno": error.errno})
    log.error("a verb failed", exc_info=error)
    return ErrorObject(wire.INTERNAL_ERROR, f"{type(error).__name__}: {error}")


class Subscription:
    """The changes below a path, sent as they happen. A reader that falls behind is told so (`overflow`)."""

    def __init__(self, connection: Connection, path: str, name: str) -> None:
        """Raises `PathError` for a path that is none."""
        self.name = name
        self._connection = connection
        self._watch = connection.backend.watch(path)
        self._thread = threading.Thread(target=self._run, name="fusebackend-subscription", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._watch.close()

    def _run(self) -> None:
        try:
            for event in self._watch:
                change = {"subscription": self.name, "event": event}
                self._connection.send(wire.encode(Notification("change", change)))
        except Closed:
            self._watch.close()
