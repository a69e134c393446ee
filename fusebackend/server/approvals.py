"""`Approvals`: changes that wait until somebody approves them, and what became of them.

A request is made once: `pending`, then `approved` while it is being made, then `made` or `failed`; or `denied`, or
`expired`. Who decides holds the lock while the state changes, so of two approvals one is refused. A server that is
killed between `approved` and `made` can't tell whether the change happened: the request is `failed`, and says so.

The same change that is asked for again while it waits is the same request. So it is after the decision where the caller
names its tool call (`Actor.call`): a graph that is resumed makes the call again, and gets the answer.

With a history, requests are in its file and outlive the server; without one they end with it. Any thread. The lock is
held for a few lines, never for the disk: the mount's loop takes it, too (`refused_by_kernel`).
"""

from __future__ import annotations

import contextlib
import contextvars
import errno
import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal

from fusebackend.base import budget
from fusebackend.base.paths import AgentPath
from fusebackend.history import requests
from fusebackend.history.history_file import HistoryFile
from fusebackend.history.masking import kept
from fusebackend.history.requests import (
    ApprovalOptions,
    Asked,
    Became,
    Request,
    RequestState,
    concerns,
    digest,
    new_key,
    packed,
)
from fusebackend.protocol import READING, Actor, ApprovalInfo

log = logging.getLogger(__name__)

MAX_CHANGE_BYTES: Final = 1 << 20
"""Of one request. In the file it takes a third more."""

MAX_BYTES: Final = 32 << 20
"""Of all requests that are kept."""

MAX_PENDING: Final = 1000
"""Requests that wait."""

SHARE: Final = 4
"""Of the requests that may wait, in number and bytes, an agent of a view has one part in so many: an agent in a loop
leaves room for others. Agents name themselves, so this does not bound a malicious agent."""

DECIDED_S: Final = 24 * 3600
"""A request is kept for so long after the decision."""

MAX_KEPT: Final = 2000
"""Requests in all. With more, the oldest go that were decided, or refused by the kernel."""

NOTED_AGAIN_S: Final = 60.0
MAX_NOTED: Final = 1000
"""What the kernel refuses is noted once in so long for a path and a process, and so often at most in that time: a
program may try again and again."""

LOOK_S: Final = 0.2
"""How often a caller who waits is looked at: it may have been cancelled."""

MAX_REASON: Final = 500
"""Characters of a reason."""

BY_KERNEL: Final = "a system call can't wait: use a verb, which asks for an approval"

WAITING: Final = ("pending", "approved")


class CanNotAsk(Exception):
    """There can't be a request. Its text says why."""


class CanNotBeMade(Exception):
    """What was approved can't happen any more. Its text says why."""


class Approvals:
    """See the module's docstring.

    Args:
        history: keeps the requests; None if there is none.
        options: how long callers and requests wait.
    """

    def __init__(
        self,
        history: HistoryFile | None = None,
        options: ApprovalOptions | None = None,
        time_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.options = options or ApprovalOptions()
        self._history = history
        self._time_ns = time_ns
        self._changed = threading.Condition()
        self._requests: dict[int, Request] = {}
        self._same: dict[bytes, int] = {}  # identity of a change → the newest request for it
        self._begins: dict[int, Callable[[], Any]] = {}  # of callers who wait for their commands
        self._noted: dict[tuple[str, ...], float] = {}
        self._last = 0
        self._bytes = 0
        self.is_closed = False
        """True once the mount has ended."""
        for request in () if history is None else history.requests():
            self._keep(request)
        with self._changed:
            for request in list(self._requests.values()):
                if request.state == "approved":
                    why = "the server ended while it was being made: look whether it happened"
                    self._become(request, "failed", request.became.by, why)

    def close(self) -> None:
        """Let go of callers who wait. Their requests stay."""
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()

    # -- asking ------------------------------------------------------------------------------------------------

    def ask(
        self, asked: Asked, change: Any, key: bytes | None = None, begin: Callable[[], Any] | None = None
    ) -> Request:
        """Have a change wait for an approval, and wait for it as long as the options say.

        Args:
            asked: who asks for what.
            change: the arguments of the verb.
            key: of the digests in `asked`.
            begin: starts the command of the caller, while that waits.

        Returns:
            The request, as it is when the caller need not wait any more.

        Raises:
            CanNotAsk: it would be too large, or there are too many.
        """
        data = packed(change)
        with self._changed:
            self._clean()
            request = self._known(asked, data)
            is_new = request is None
            if request is None:
                self._require_room(asked, len(data))
                request = self._add(Request(self._last + 1, asked, key or new_key(), data))
            if begin is not None and request.state == "pending":
                self._begins[request.number] = begin
        if is_new:
            try:
                self._written()
            except OSError as error:
                with self._changed:
                    self._become(request, "failed", None, f"it can't be kept: {error.strerror}")
                raise CanNotAsk(f"the request can't be kept: {error.strerror}") from None
        try:
            request = self._waited(request.number)
            with self._changed:
                # A tool call that is made again, as in a graph that was interrupted, may read again.
                if asked.verb in READING and not asked.actor.call and request.state not in WAITING:
                    self._same.pop(_identity(asked, data), None)
            return request
        finally:
            with self._changed:
                if begin is not None and self._begins.get(request.number) is begin:
                    del self._begins[request.number]

    def decided(self, asked: Asked, change: Any) -> Request | None:
        """Return the request for a change that was decided, for a caller that names its tool call; None without one."""
        if not any(each.state not in WAITING for each in tuple(self._requests.values())):
            return None
        with self._changed:
            request = self._known(asked, packed(change))
            return None if request is None or request.state in WAITING else request

    def _known(self, asked: Asked, change: bytes) -> Request | None:
        """Return the request for the same change."""
        number = self._same.get(_identity(asked, change))
        request = None if number is None else self._requests.get(number)
        if request is None or not (request.state in WAITING or asked.actor.call or asked.verb in READING):
            return None
        return request

    def _require_room(self, asked: Asked, size: int) -> None:
        if size > MAX_CHANGE_BYTES:
            raise CanNotAsk(f"a request keeps at most {MAX_CHANGE_BYTES >> 10} KiB of a change, and this has {size}")
        self._clean(size)
        waiting = [each for each in self._requests.values() if each.state in WAITING]
        if len(waiting) >= MAX_PENDING or self._bytes + size > MAX_BYTES:
            raise CanNotAsk(f"{len(waiting)} requests wait already: have them decided first")
        who = asked.view, asked.actor.agent
        own = [len(each.change or b"") for each in waiting if (each.asked.view, each.asked.actor.agent) == who]
        if len(own) >= MAX_PENDING // SHARE or sum(own) + size > MAX_BYTES // SHARE:
            raise CanNotAsk(f"{len(own)} requests of this agent wait already: have them decided first")

    def _waited(self, number: int) -> Request:
        deadline_s = time.monotonic() + self.options.wait_s
        asking = budget.current()
        with self._changed:
            while True:
                self._clean()
                request = self._requests[number]
                left_s = deadline_s - time.monotonic()
                waits = request.state == "approved" or (request.state == "pending" and left_s > 0)
                if not waits or self.is_closed or asking.cancelled:
                    return request
                self._changed.wait(LOOK_S if request.state == "approved" else min(left_s, LOOK_S))

    def refused_by_kernel(self, view: str, path: AgentPath, actor: Actor, what: Literal["read", "change"]) -> None:
        """Note that the kernel's caller was refused what a verb could have asked for. It never waits."""
        now_s = time.monotonic()
        key = (view, path, actor.command, str(actor.pid), what)
        with self._changed:
            if now_s - self._noted.get(key, -NOTED_AGAIN_S) < NOTED_AGAIN_S:
                return
            self._noted = {each: at_s for each, at_s in self._noted.items() if now_s - at_s < NOTED_AGAIN_S}
            if len(self._noted) >= MAX_NOTED:
                return
            self._clean()
            self._noted[key] = now_s
            time_ns = self._time_ns()
            asked = Asked(time_ns, time_ns, actor, view, what, [path], [path], f"{what} {path}", [])
            self._add(Request(self._last + 1, asked, new_key(), None, "refused", Became(time_ns, None, BY_KERNEL)))

    # -- deciding ----------------------------------------------------------------------------------------------

    def list(self) -> list[ApprovalInfo]:
        """Return all requests that are kept, by number."""
        with self._changed:
            self._clean()
            return [info_of(each) for each in self._requests.values()]

    def find(self, number: int) -> Request:
        """Return a request. OSError: ENOENT, there is none of that number."""
        with self._changed:
            self._clean()
            return self._found(number)

    def approve(
        self,
        number: int,
        by: Actor,
        make: Callable[[Request, Callable[[], Any] | None], tuple[Any, str | None]],
    ) -> None:
        """Approve a request, and make its change.

        Args:
            by: who decides.
            make: makes it, given what starts a command whose caller waits; returns the verb's answer, and its error. It
                is called once at most.

        Raises:
            OSError: ENOENT, there is no such request; EALREADY, it was decided already; or the decision can't be kept,
                and the request waits on.
        """
        with self._changed:
            request = self._become(self._pending(number), "approved", by)
            begin = self._begins.get(number)
        try:
            self._written()
        except OSError:
            with self._changed:
                self._become(request, "pending", None)
            raise
        self._note("approval", f"approve {request.number}: {request.asked.title}", by)
        answer: Any = None
        try:
            # The decision holds even if its caller goes away: none of its context comes along, no cancellation either.
            answer, error = contextvars.Context().run(make, request, begin)
        except CanNotBeMade as why:
            error = str(why)
        except BaseException as failure:
            with self._changed:
                self._become(request, "failed", by, f"{type(failure).__name__}: {failure}")
            raise
        with self._changed:
            data = b"" if answer is None else packed(answer)
            self._become(request, "made" if error is None else "failed", by, error or "", data)
        with contextlib.suppress(OSError):  # it is in the log, and `status` says it; the change was made
            self._written()

    def deny(self, number: int, by: Actor, reason: str = "") -> None:
        """Deny a request: it will not happen.

        Raises:
            OSError: as `approve`.
        """
        reason = " ".join(reason.split())[:MAX_REASON]
        with self._changed:
            request = self._become(self._pending(number), "denied", by, reason)
        self._note("denial", f"deny {number}: {request.asked.title}{f' ({reason})' if reason else ''}", by)
        self._written()

    def forget(self, paths: Iterable[AgentPath], by: Actor) -> None:
        """Forget the changes of requests at or below paths. Those that wait are denied."""
        chosen = list(paths)
        with self._changed:
            for request in [each for each in self._requests.values() if concerns(each, chosen)]:
                self._bytes -= len(request.change or b"")
                self._requests[request.number] = request = request._replace(change=None)
                if request.state == "pending":
                    self._become(request, "denied", by, "its change was forgotten")

    def _found(self, number: int) -> Request:
        request = self._requests.get(number)
        if request is None:
            raise OSError(errno.ENOENT, f"there is no request {number} ('fusebackend approval list' has them)")
        return request

    def _pending(self, number: int) -> Request:
        self._clean()
        request = self._found(number)
        if request.state != "pending":
            raise OSError(errno.EALREADY, f"request {number} is decided already: {said(request)}")
        return request

    # -- states: with the lock ---------------------------------------------------------------------------------

    def _keep(self, request: Request) -> None:
        self._last = max(self._last, request.number)
        self._requests[request.number] = request
        self._bytes += len(request.change or b"")
        if request.change is not None:
            self._same[_identity(request.asked, request.change)] = request.number

    def _add(self, request: Request) -> Request:
        self._keep(request)
        if self._history is not None:
            self._history.put_request(requests.asked(request))
        self._note("request", f"request {request.number}: {request.asked.title}", request.asked.actor)
        return request

    def _become(
        self, request: Request, state: RequestState, by: Actor | None, reason: str = "", answer: bytes = b""
    ) -> Request:
        became = Became(self._time_ns(), by, reason, answer)
        request = self._requests[request.number]._replace(state=state, became=became)
        self._requests[request.number] = request
        if self._history is not None:
            self._history.put_request(requests.became(request))
        self._changed.notify_all()
        return request

    def _clean(self, more_bytes: int = 0) -> None:
        """Have requests expire, and delete those that were decided long ago, are too many, or leave no room for so many
        bytes; the newest stays, for its number."""
        now_ns = self._time_ns()
        for request in list(self._requests.values()):
            if request.state == "pending" and request.asked.expires_ns <= now_ns:
                self._become(request, "expired", None, "nobody decided in time")
                self._note("denial", f"expired {request.number}: {request.asked.title}", request.asked.actor)
        decided = [each for each in self._requests.values() if each.state not in WAITING and each.number != self._last]
        spare = len(self._requests) - MAX_KEPT
        gone = []
        for place, each in enumerate(decided):
            is_in_the_way = bool(each.change) and self._bytes + more_bytes > MAX_BYTES
            if place < spare or is_in_the_way or each.became.time_ns < now_ns - DECIDED_S * 10**9:
                gone.append(each)
                del self._requests[each.number]
                self._bytes -= len(each.change or b"")
        numbers = {each.number for each in gone}
        if numbers:
            self._same = {key: number for key, number in self._same.items() if number not in numbers}
            if self._history is not None:
                self._history.delete_requests(numbers)

    def in_a_line(self, command: str) -> str:
        """Return a command as the history would keep it."""
        return kept(command, "masked" if self._history is None else self._history.commands)

    def _note(self, kind: Any, title: str, actor: Actor) -> None:
        if self._history is not None:
            self._history.note_call(kind, title, actor)

    def _written(self) -> None:
        """Wait until the history's file has it. OSError: it can't be written."""
        if self._history is not None:
            self._history.require()


def _identity(asked: Asked, change: bytes) -> bytes:
    actor = asked.actor
    said = [asked.view, asked.verb, asked.paths, actor.agent, actor.thread, actor.call]
    return digest(b"", packed(said), change)


def said(request: Request) -> str:
    """Return what became of a request, in words."""
    state, reason = request.state, request.became.reason
    words = {
        "pending": "nobody has decided yet",
        "approved": "it was approved, and is being made",
        "made": "it was approved, and has happened",
        "failed": "it was approved, and could not be made",
        "denied": "it was denied",
        "expired": "it has expired",
        "refused": "it was refused",
    }[state]
    return f"{words}: {reason}" if reason else words


def info_of(request: Request, change: str | None = None) -> ApprovalInfo:
    """Return a request as the verbs have it."""
    asked, became = request.asked, request.became
    return ApprovalInfo(
        request.number,
        request.state,
        asked.verb,
        list(asked.paths),
        asked.view,
        asked.actor,
        asked.time_ns,
        asked.expires_ns,
        asked.title,
        len(request.change or b""),
        became.time_ns or None,
        became.by,
        became.reason or None,
        change,
    )
