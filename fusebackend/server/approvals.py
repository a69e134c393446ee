"""`Approvals`: changes that wait until somebody approves them, and what became of them; and `InterruptedVerbs`, which
makes a request of a verb that a view interrupts, and makes what was approved.

A request is made once: `pending`, then `approved` while it is being made, then `made` or `failed`; or `denied`, or
`expired`. Who decides holds the lock while the state changes, so of two approvals one is refused. A server that is
killed between `approved` and `made` can't tell whether the change happened: the request is `failed`, and says so.

The same change that is asked for again while it waits is the same request. So it is after the decision where the caller
names its tool call (`Actor.call`): a graph that is resumed makes the call again, and gets the answer.

With a history, requests are in its file and outlive the server; without one they end with it. Any thread. The lock is
held for a few lines, never for the disk: the mount's loop takes it, too (`refused_by_kernel`).

A verb is made in its view first. Where it is refused by a rule of mode `interrupt`, its arguments become a request.
Once approved, they are made through the same view with an approval (`View.granting`) for the paths that the verb names,
or to which their links lead; of a verb that takes whole trees, for what is in these. All other rules hold.

A request has a stamp of what was at its paths, and what has another one was changed since: then nothing is made. The
comparison is just before the change; one by the kernel in between is not excluded.
"""

from __future__ import annotations

import contextlib
import contextvars
import errno
import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import msgspec

from fusebackend.base import budget, git_patch, paths
from fusebackend.base.errors import VANISHED
from fusebackend.base.git_patch import Side
from fusebackend.base.paths import AgentPath, PathError, to_name
from fusebackend.base.shown import name_shown
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
    unpacked,
)
from fusebackend.linux.command import REFUSED, Command
from fusebackend.protocol import (
    READING,
    SERVED,
    Actor,
    ApprovalInfo,
    Attr,
    Conditions,
    ExecuteResponse,
    Volume,
    current_actor,
)
from fusebackend.rules.rule import Operation
from fusebackend.server.rules import Views
from fusebackend.volumes.placing import NodeSource, whole
from fusebackend.volumes.walk import below, resolve

if TYPE_CHECKING:
    from fusebackend.vfs.junctions import MountTree

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
            self._history.end_call(self._history.open_call(kind, title, actor))  # it changes no file

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


# -- verbs that a view interrupts ------------------------------------------------------------------------------

COMPARED_BYTES: Final = 4 << 20
"""Larger files are compared by size and time of change."""

COMPARED_ENTRIES: Final = 10_000
"""In a directory that a request removes or moves. With more, there can be no request."""

SHOWN_BYTES: Final = 1 << 20
"""Of a change that is shown, and of the file before it."""

LISTED: Final = 1000
"""Names below a directory that is to be deleted, of those that are shown."""

KEPT_OUTPUT: Final = 64 << 10
"""Characters of the output of a command that was started by an approval."""

R = TypeVar("R")


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """The arguments of a verb, without its paths."""

    content: str | None = None
    old_string: str | None = None
    new_string: str | None = None
    replace_all: bool = False
    if_version: str | None = None
    if_absent: bool = False
    contents: list[bytes] = []
    conditions: list[Conditions] = []
    """Of `upload_files`, one for each path."""
    command: str | None = None
    timeout_s: float | None = None
    stdin: bytes | None = None
    offset: int = 0
    limit: int = 0
    """Of `read`."""


def change_of(data: bytes) -> Change:
    """Return the arguments in a request. Earlier programs kept conditions as lists, with a place for each path."""
    given = unpacked(dict[str, Any], data)
    if isinstance(given.get("if_version"), list):
        pairs = zip(given.pop("if_version"), given.pop("if_absent"), strict=True)
        conditions = [Conditions(if_version=version, if_absent=absent) for version, absent in pairs]
        given |= {"conditions": conditions} if "contents" in given else conditions[0]
    return msgspec.convert(given, Change)


class InterruptedVerbs:
    """Asks for the verbs that views interrupt, and makes those that were approved. Any thread.

    Args:
        approvals: has the requests.
        views: of the mount.
        tree: of the mount.
    """

    def __init__(self, approvals: Approvals, views: Views, tree: MountTree) -> None:
        self.approvals = approvals
        self._views = views
        self._tree = tree
        self._server = Actor(uid=os.geteuid(), pid=os.getpid())

    def where(self, view: str | None, named: Sequence[str]) -> tuple[str, list[AgentPath]] | None:
        """Return the view of a verb, and its paths there; None if nothing of it can need an approval.

        Args:
            view: that the client has chosen; None for one that names paths of views.
        """
        try:
            places = [self._views.place(path, view) for path in named]
        except PathError:
            return None
        names = {name for name, _ in places}
        if len(names) != 1 or (name := names.pop()) is None or not self._views.find(name).interrupts:
            return None
        return name, [inside for _, inside in places]

    def may_ask(self, view: str, verb: str, path: AgentPath) -> bool:
        """Return False for a path that no approval can let a verb change, or read."""
        operation: Operation = "read" if verb in READING else "write"
        return self._views.seen(view).shown.decide(operation, path) not in ("deny", "hide")

    def recall(
        self, view: str, named: list[AgentPath], verb: str, change: Callable[[], Change]
    ) -> tuple[Any, str | None]:
        """Return what `ask` has for a verb that its tool call has made before, and that was decided since; else twice
        None. Made again, it would find its own change."""
        actor = current_actor(self._server)
        if not actor.call:
            return None, None
        request = self.approvals.decided(Asked(0, 0, actor, view, verb, list(named), [], "", []), change())
        return (None, None) if request is None else self._answer(request, f"'{named[0]}'")

    # -- asking ------------------------------------------------------------------------------------------------

    def ask(self, view: str, verb: str, named: list[AgentPath], change: Change) -> tuple[Any, str | None]:
        """Have a verb wait that was refused.

        Args:
            named: its paths in the view.

        Returns:
            The answer of the verb, if it was made, else None, of one that only reads what makes it (`face`); and why
            there is none: None where it can't be asked for, since another rule denies it.
        """
        if not all(self.may_ask(view, verb, path) for path in named):
            return None, None
        title = f"{verb} {' '.join(map(_titled, named))}"
        return self._ask(f"'{named[0]}'", partial(self._asked, view, verb, named, title, change))

    def before_command(self, view: str, command: Command, run: Callable[[], ExecuteResponse]) -> ExecuteResponse:
        """Start a command, if the rules of its view allow that.

        Args:
            view: that binds it.
            command: its `cwd` is a path of the view.
            run: starts it.
        """
        try:
            cwd = paths.normalise(command.cwd)
        except PathError:
            return run()  # which says why it is none
        mode = self._views.seen(view).shown.decide("execute", cwd)
        if mode not in ("deny", "interrupt"):
            return run()
        if mode == "deny":
            refusal = f"view '{view}' denies commands that start in '{cwd}'"
            return ExecuteResponse(output=f"Error: {refusal}", exit_code=REFUSED)
        change = Change(command=command.text, timeout_s=command.timeout_s, stdin=command.stdin)
        title = f"execute {self.approvals.in_a_line(command.text)}"
        caller = budget.current()

        def ending_with_caller() -> ExecuteResponse:
            with budget.ending_with(caller):  # a cancelled caller holds no memory of it any more
                return run()

        begin = partial(contextvars.copy_context().run, ending_with_caller)
        answer, why = self._ask("a command", partial(self._asked, view, "execute", [cwd], title, change, begin))
        ran: ExecuteResponse = answer or ExecuteResponse(output=f"Error: {why}", exit_code=REFUSED)
        return ran

    def _ask(self, shown: str, asked: Callable[[], Request]) -> tuple[Any, str | None]:
        """Return what `ask` does. `shown` is what would be changed, `asked` makes the request."""
        try:
            return self._answer(asked(), shown)
        except CanNotAsk as error:
            return None, f"{shown} needs an approval, and can't be asked for: {error}"
        except CanNotBeMade as error:
            return None, f"{shown} needs an approval: it was approved, and could not be read: {error}"

    def _asked(
        self,
        view: str,
        verb: str,
        named: list[AgentPath],
        title: str,
        change: Change,
        begin: Callable[[], Any] | None = None,
    ) -> Request:
        """Return the request for a verb, as it is when its caller need not wait any more. CanNotAsk."""
        key = new_key()
        time_ns = time.time_ns()
        expires_ns = time_ns + int(self.approvals.options.expire_s * 1e9)
        size = sum(map(len, change.contents)) + len(change.content or "")
        if size > MAX_CHANGE_BYTES:
            raise CanNotAsk(f"a request keeps at most {MAX_CHANGE_BYTES >> 10} KiB of a change")
        stamps = [] if verb == "execute" else [self._stamp(verb, path, key) for path in named]
        granted = [self._leads_to(verb, path) for path in named] if stamps else []
        for path, place in zip(named, granted, strict=bool(stamps)):
            if place != path:  # the approver must know
                title += f" ({_titled(path)} leads to {_titled(place)})"
        actor = current_actor(self._server)
        asked = Asked(time_ns, expires_ns, actor, view, verb, list(named), list[str](granted), title, stamps)
        return self.approvals.ask(asked, change, key, begin)

    def _answer(self, request: Request, shown: str) -> tuple[Any, str | None]:
        """Return the answer of a verb, or why there is none. `shown` is what it would change. CanNotBeMade."""
        verb = request.asked.verb
        if request.state == "made" and verb in READING:
            return self.face(request), None
        if request.state in ("made", "failed") and request.became.answer:
            return unpacked(SERVED[verb].signature.return_annotation, request.became.answer), None
        number = request.number
        if request.state == "pending":
            how = f"'fusebackend approval approve {number}' has it happen, 'approval show {number}' shows it"
            return None, f"{shown} needs an approval: it is request {number}; {how}"
        return None, f"{shown} needs an approval: request {number}: {said(request)}"

    # -- making ------------------------------------------------------------------------------------------------

    def arguments(self, request: Request) -> Change:
        """Return the arguments of a request. CanNotBeMade: they were forgotten."""
        if request.change is None:
            raise CanNotBeMade("its change was forgotten")
        return change_of(request.change)

    def face(self, request: Request) -> Any:
        """Return what makes the verb of a request, after a comparison with what it was asked for.

        Raises:
            CanNotBeMade: something was changed since, or the mount has no such view any more.
        """
        asked = request.asked
        for path, stamp in zip(asked.paths, asked.stamps, strict=True):
            try:
                now = self._stamp(asked.verb, AgentPath(path), request.key)
            except CanNotAsk as error:
                raise CanNotBeMade(str(error)) from None
            if now != stamp:
                raise CanNotBeMade(
                    f"'{path}' {_difference(stamp, now)} since it was asked for; have it asked for again"
                )
        try:
            granted = [AgentPath(path) for path in asked.granted]
            return self._views.granting(asked.view, granted, trees=asked.verb in ("delete", "move"))
        except OSError as error:
            raise CanNotBeMade(str(error.strerror)) from None

    def _stamp(self, verb: str, path: AgentPath, key: bytes) -> str:
        """Return what is at a path. CanNotAsk: it can't be compared."""
        try:
            return self._look(path, partial(_stamped, follow=_follows(verb), key=key))
        except OSError as error:
            if error.errno in VANISHED:
                return ABSENT
            raise CanNotAsk(f"'{path}' can't be looked at: {error.strerror}") from None

    def _look(self, path: AgentPath, look: Callable[[Volume, str], R]) -> R:
        """Return what `look` finds, given the volume of a path and the path there."""
        route = self._tree.route_of(path)
        return route.executor.run("stat", partial(look, route.volume, route.inner(path)))

    def _leads_to(self, verb: str, path: AgentPath) -> AgentPath:
        """Return where symbolic links of a path lead; the path itself without any."""
        route = self._tree.route_of(path)
        inner = route.inner(path)
        try:
            place = route.executor.run("stat", partial(resolve, route.volume, inner, follow=_follows(verb)))
        except OSError:
            return path
        return path if place.path == inner else paths.join(route.prefix, place.path.strip("/"))

    # -- showing -----------------------------------------------------------------------------------------------

    def shown(self, request: Request) -> str:
        """Return the change of a request as text: a patch against the file as it is now, where it can be one. Once it
        is decided, what was asked is compared with nothing."""
        if request.change is None:
            return ""
        change = change_of(request.change)
        asked = request.asked
        if asked.verb == "execute":
            given = "" if not change.stdin else f"standard input:\n{change.stdin.decode('utf-8', 'replace')}"
            return f"{change.command}\n{given}"
        if asked.verb in READING:
            return f"read {asked.title.partition(' ')[2]}\n"
        if asked.verb == "move":
            old, new = (git_patch.quoted(to_name(path)) for path in asked.paths)
            return f"rename from {old}\nrename to {new}\n"
        pieces: list[bytes] = []
        for index, path in enumerate(asked.paths):
            look = partial(_data, follow=asked.verb != "delete")
            data = self._look_if_possible(AgentPath(path), look) if request.state == "pending" else None
            if asked.verb == "delete" and data is None:
                names = [b"", *(self._look_if_possible(AgentPath(path), _listed) or ())]
                pieces += [f"delete {git_patch.quoted(to_name(path) + name)}\n".encode() for name in names]
                continue
            before, after = _sides(asked.verb, change, index, data)
            pieces += git_patch.file_patch(to_name(path).lstrip(b"/"), before, after)
        return b"".join(pieces).decode("utf-8", "replace")

    def _look_if_possible(self, path: AgentPath, look: Callable[[Volume, str], R | None]) -> R | None:
        """Do `_look`; None where that fails."""
        try:
            return self._look(path, look)
        except OSError:
            return None


ABSENT: Final = "absent"


LED: Final = "led to "
"""Begins the stamp of a path that has symbolic links. Where nothing is yet, only this tells two targets apart."""


def _titled(path: str) -> str:
    """Return a path for the title of a request, which a name can't make look like that of another one."""
    shown = name_shown(path)
    return f"'{shown}'" if " " in shown or "'" in shown else shown


def _difference(before: str, now: str) -> str:
    """Return what has become of a path, in words."""
    if LED in before or LED in now:
        return "was changed, or leads elsewhere,"
    if now == ABSENT:
        return "has gone"
    return "was made" if before == ABSENT else "was changed"


def _follows(verb: str) -> bool:
    """Whether a verb follows a symbolic link that its path is."""
    return verb in ("write", "edit", "upload_files", *READING)


def _stamped(volume: Volume, inner: str, follow: bool, key: bytes) -> str:
    place = resolve(volume, inner, follow=follow)
    led = "" if place.path == inner else f"{LED}{digest(key, place.path.encode('utf-8', 'surrogatepass')).hex()} "
    return led + _found(volume, place.attr, key)


def _found(volume: Volume, attr: Attr | None, key: bytes) -> str:
    if attr is None:
        return ABSENT
    if attr.is_dir:
        return f"directory {digest(key, *_names(volume, attr)).hex()}"
    kind = stat.S_IFMT(attr.mode)
    if stat.S_ISLNK(attr.mode):
        return f"{kind:o} {digest(key, volume.readlink(attr.node)).hex()}"
    if not stat.S_ISREG(attr.mode) or attr.size > COMPARED_BYTES:
        return f"{kind:o} {attr.size} {attr.mtime_ns}"
    return f"{kind:o} {attr.size} {digest(key, whole(NodeSource(volume, attr.node))).hex()}"


def _names(volume: Volume, directory: Attr) -> Iterator[bytes]:
    """Yield what is in a directory, at any depth: names, sizes and times."""
    for count, (path, attr) in enumerate(below(volume, directory.node), 1):
        if count > COMPARED_ENTRIES:
            raise CanNotAsk(f"it is a directory with more than {COMPARED_ENTRIES} names")
        size, time_ns = (0, 0) if attr.is_dir else (attr.size, attr.mtime_ns)
        yield f"{attr.mode:o} {size} {time_ns} ".encode() + path + b"\n"


def _sides(verb: str, change: Change, index: int, data: bytes | None) -> tuple[Side | None, Side | None]:
    """Return a file before and after a change. `data` are its bytes; None if it has none, or they are not known."""
    before = None if data is None else Side(data)
    if verb == "write":
        return before, Side((change.content or "").encode("utf-8", "surrogatepass"))
    if verb == "upload_files":
        return before, Side(change.contents[index])
    if verb == "delete":
        return before, None
    old, new = ((each or "").encode("utf-8", "surrogatepass") for each in (change.old_string, change.new_string))
    if data is None:
        return Side(old), Side(new)
    return before, Side(data.replace(old, new, -1 if change.replace_all else 1) if old else data)


def _listed(volume: Volume, inner: str) -> list[bytes]:
    """Names below a directory, not too many of them."""
    attr = resolve(volume, inner, follow=False).attr
    found = []
    for path, _ in below(volume, attr.node) if attr is not None and attr.is_dir else ():
        found.append(path)
        if len(found) == LISTED:
            found.append(b"/...")
            break
    return found


def _data(volume: Volume, inner: str, follow: bool) -> bytes | None:
    """The bytes of a file; None if there is none, or it is too large to be shown."""
    attr = resolve(volume, inner, follow=follow).attr
    if attr is None or not stat.S_ISREG(attr.mode) or attr.size > SHOWN_BYTES:
        return None
    return whole(NodeSource(volume, attr.node))
