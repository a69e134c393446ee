"""`RouteExecutor`: calls into one volume. Inline where it doesn't block; in threads, under a deadline, where it may.

A thread hop costs about as much as a whole FUSE request, so memory, SQLite and local directories are called on the
loop's own thread. Half of it is that the thread wakes the loop, which had gone to sleep: so while one caller alone
makes calls that are short, the loop waits for each of them right here, for a moment. A blocking volume has `max_calls`
places for calls, a deadline for each call, which includes the wait for a place, and a circuit breaker. When it hangs,
its callers get ETIMEDOUT and other routes go on.

A thread can't be ended. After its call was given up it goes on until the backend answers, and keeps its place until
then, so there are never more than `max_calls` of them. Agents call in other threads (`run`), and have as many places
again. A change that was given up may have been made or not: the log says so. A call is given up, too, when the process
that waits for it was killed (`request.py`); if it has not begun, it never does.

This is the only place where the mount repeats a call, and it repeats only questions whose connection was lost: asking
again does no harm. A change is never repeated, since it may have been made. After a time-out the first thread is still
busy, and the caller has waited enough. (A backend repeats calls that only it can tell to be harmless: a conditional
write after a conflict, a statement on a new connection of a pool.)

The `async` methods belong to the loop; `run` and `finish` to any other thread.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import errno
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar

import trio

from fusebackend.base import budget, jitter
from fusebackend.base.deadline import BoundedCalls, GivenUp, Pending, RouteDown, countdown
from fusebackend.base.errors import oserror
from fusebackend.base.waiting import WouldWait, at_once
from fusebackend.protocol import ROOT_NODE, Volume
from fusebackend.vfs.calls import request
from fusebackend.vfs.options import DEFAULT_DEADLINE_S, DEFAULT_MAX_CALLS

# -- circuit breaker ---------------------------------------------------------------------------------------------
#
# `CircuitBreaker`: fails calls at once while a route is down, and gives the health that `status` shows.
#
# A call that ends in time is an answer, also with an error: ENOENT says that the backend is there. A time-out or a lost
# connection (`TROUBLE`) is a failure. After `FAILURES_TO_OPEN` of them in a row the route is *down*: calls fail at once
# with the error of the last one, so that a walk through a tree does not wait for the same silence again and again.
# Then, each time a pause has passed, the next call or `status` makes one probe; when it is answered, calls go through
# again. Pauses double up to a limit, and vary, so that many mounts of one server don't ask in step.
#
# Failures are counted for each kind of call by itself: a volume may answer `lookup` from its cache while every `read`
# hangs, and such an answer proves nothing.
#
# `CircuitBreaker` decides and never waits; any thread may call it. `RouteExecutor` makes the probe.


log = logging.getLogger(__name__)

FAILURES_TO_OPEN = 3

PAUSE_S = 0.5
MAX_PAUSE_S = 5.0
"""How long a route that is down is left alone before it is asked again: the first time, and at most."""

JITTER = 0.25
"""By which part of itself a pause varies."""

REMEMBERED_S = 60.0
"""A route counts as degraded for this long after its last failure."""

LOST = frozenset({
    errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE, errno.ENOTCONN, errno.ESHUTDOWN,
    errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET, errno.EHOSTDOWN, errno.EHOSTUNREACH,
})  # fmt: skip
"""There is no connection to the backend."""

TROUBLE = LOST | {errno.ETIMEDOUT}


class CircuitBreaker:
    """See the module's docstring.

    Args:
        name: of the route, in the log.
        clock: seconds that only grow.
        vary: a random number between two.

    Attributes:
        timeouts: calls that were given up at their deadline, ever.
        refused: calls that failed at once because the route was down, ever.
        down: the route is down, and calls fail at once.
    """

    def __init__(
        self,
        name: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        vary: Callable[[float, float], float] = jitter.between,
    ) -> None:
        self.name = name
        self.timeouts = 0
        self.refused = 0
        self._clock = clock
        self._vary = vary
        self._lock = threading.Lock()
        self._failures: collections.Counter[str] = collections.Counter()  # in a row, by kind of call
        self._why: OSError | None = None
        self._failed_at = 0.0
        self._since = 0.0  # the first failure in a row, by the wall clock
        self.down = False
        self._pause_s = PAUSE_S
        self._probe_at = 0.0
        self._probing = False

    def refusal(self) -> RouteDown:
        """The error of a call that is not made. Counts it."""
        with self._lock:
            self.refused += 1
            number = errno.EIO if self._why is None or self._why.errno is None else self._why.errno
        return RouteDown(number, f"it is down, and is not asked until it answers: {os.strerror(number)}")

    def answered(self, kind: str) -> None:
        """A call was answered in time, be it with an error."""
        if not self._failures and not self.down:
            return  # as nearly always
        with self._lock:
            del self._failures[kind]
            if not self._failures and not self.down:
                self._since = 0.0

    def failed(self, kind: str, error: OSError) -> None:
        """A call was given up at its deadline (ETIMEDOUT), or there was no connection for it."""
        with self._lock:
            self.timeouts += error.errno == errno.ETIMEDOUT
            self._why = error
            self._failed_at = self._clock()
            self._since = self._since or time.time()
            self._failures[kind] += 1
            if self.down or self._failures[kind] < FAILURES_TO_OPEN:
                return
            self.down = True
            self._pause_s = PAUSE_S
            self._rest()
        log.warning("%s is down: %s; until it answers, calls fail at once", self.name, _words(error))

    def _rest(self) -> None:
        self._probe_at = self._clock() + self._pause_s * self._vary(1 - JITTER, 1 + JITTER)

    def begin_probe(self) -> bool:
        """True if the caller may make a probe now. It must then call `recovered` or `still_down`."""
        with self._lock:
            if not self.down or self._probing or self._clock() < self._probe_at:
                return False
            self._probing = True
            return True

    def recovered(self) -> None:
        """The probe was answered."""
        with self._lock:
            was_down, self.down, self._probing = self.down, False, False
            self._failures.clear()
            self._since = 0.0
        if was_down:
            log.warning("%s answers again", self.name)

    def still_down(self, error: OSError) -> None:
        """The probe has failed."""
        with self._lock:
            self._probing = False
            self._why = error
            self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)
            self._rest()

    def describe(self) -> dict[str, Any]:
        """For `status`: `healthy`; or `degraded` or `down`, since when and why."""
        with self._lock:
            has_failed_lately = self._failures and self._clock() - self._failed_at < REMEMBERED_S
            state = "down" if self.down else "degraded" if has_failed_lately else "healthy"
            counts = {"timeouts": self.timeouts, "refused": self.refused}
            if state == "healthy":
                return {"state": state, **counts}
            assert self._why is not None, "it has failed"
            return {"state": state, "since": self._since, "why": _words(self._why), **counts}


def _words(error: OSError) -> str:
    return error.strerror or str(error)


# -- executor ----------------------------------------------------------------------------------------------------


INLINE_SYNC_S = 1e-3
"""A sync that takes less than this on average is not worth a thread."""

P = ParamSpec("P")
T = TypeVar("T")

AWAITED_S = 1e-3
"""How long the loop itself waits for a call in a thread, if calls take less than this on average."""

ALONE_S = 5e-3
"""A call of another thread in this time means that callers are many, and that the loop has other things to do."""

PATIENCE_S = 0.25
"""How long a call waits before the first look whether its process was killed."""

PROBE_PATIENCE_S = 1.0
"""How long a call waits for a probe of a volume that is down: it may have just come back."""

ATTEMPTS = 5

REPEAT_PAUSE_S = 0.1
"""Before the second attempt of a question, at most; doubled for each further one. Together a second and a half: a
server restarts in that time, and a pool finds out that its connections are gone."""

SEARCHES = ("grep", "grep_raw", "glob", "glob_info")

GRACE_S = 1.0
"""How long a search may go on after its budget is spent."""

FILE_S = 0.5
"""How much more time a batch has for each file but the first."""


class _Call(Generic[T]):
    """One call in a thread, as the loop sees it."""

    def __init__(self, function: Callable[[], T], *, is_awaited: bool) -> None:
        self.ended = trio.Event()
        self.given_up = False
        self.took_s = 0.0
        self.answer: T
        self.error: BaseException | None = None
        self._function = function
        self._run_in = contextvars.copy_context().run
        self._is_awaited = is_awaited
        self._answered = threading.Lock()
        self._answered.acquire()

    def run(self) -> None:
        """In the thread."""
        start = time.perf_counter()
        try:
            self.answer = self._run_in(self._function)
        except BaseException as error:
            self.error = error
        self.took_s = time.perf_counter() - start

    def tell(self, loop: Callable[[], None]) -> None:
        """In the thread: the call has ended. Tells the loop, unless that waits here and sees it."""
        self._answered.release()
        if not self._is_awaited:
            loop()

    def awaited(self, seconds: float) -> bool:
        """On the loop, which does nothing else meanwhile: whether the call ends in so many seconds."""
        if self._answered.acquire(timeout=seconds):
            return True
        self._is_awaited = False
        return self._answered.acquire(blocking=False)  # it has ended just now, and may not have told the loop


class RouteExecutor:
    """See the module's docstring.

    Args:
        blocking: calls may wait for a network or a slow disk. Otherwise everything else here is idle.
        volume: it may tell which of its calls need not wait. While it is down, a listing of its root is the probe.
        deadline_s: how long one call may take.
        max_calls: how many may run at once.
        name: of the route, in the log and in errors.
    """

    def __init__(
        self,
        blocking: bool,
        volume: Volume,
        deadline_s: float = DEFAULT_DEADLINE_S,
        *,
        max_calls: int = DEFAULT_MAX_CALLS,
        name: str = "the volume",
    ) -> None:
        self.blocking = blocking
        self.deadline_s = deadline_s
        self.max_calls = max_calls
        self.name = name
        self.health = CircuitBreaker(name)
        self.abandoned = 0  # calls of processes that were killed meanwhile
        self._volume = volume
        self._at_once = volume.at_once
        self._sync_s = INLINE_SYNC_S  # a moving average of how long a sync takes
        self._call_s = AWAITED_S  # the same of calls in threads
        self._caller, self._called_at = 0, 0.0
        self._running = 0
        self._waiting: deque[trio.Event] = deque()
        self._calls = BoundedCalls(max_calls, self._log_late)
        self._probing: Pending[None] | None = None
        self._probe_began = 0.0

    @property
    def tries_all(self) -> bool:
        """Whether each call is made on the loop first, and once more in a thread if it would wait."""
        return self._volume.all_at_once

    def describe(self) -> dict[str, Any]:
        """For `status`. Begins a probe of a volume that is down, if one is due."""
        trouble = self._volume.trouble
        if trouble is not None:
            return {"state": "degraded", "since": trouble[0], "why": trouble[1]}
        if not self.blocking:
            return {"state": "healthy"}
        self._begin_probe()
        limits = {"deadline_s": self.deadline_s, "max_calls": self.max_calls}
        counts = {"running": self._running, "waiting": len(self._waiting), "abandoned": self.abandoned}
        return {**self.health.describe(), **limits, **counts}

    # -- the loop's --------------------------------------------------------------------------------------------

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the function's result; ETIMEDOUT when the deadline passes, and at once while the volume is down."""
        if not self.blocking:
            return function(*args, **kwargs)
        may_try = self.tries_all or (
            getattr(function, "__self__", self) is self._volume and getattr(function, "__name__", "") in self._at_once
        )
        return await self._made(partial(function, *args, **kwargs), may_try, changes=True)

    async def ask(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`call` a function that changes nothing: it is repeated when its connection was lost."""
        if not self.blocking:
            return function(*args, **kwargs)
        may_try = bool(self._at_once) or self.tries_all
        return await self._made(partial(function, *args, **kwargs), may_try, changes=False)

    async def _made(self, function: Callable[[], T], may_try: bool, *, changes: bool) -> T:
        """Return the result of a function: tried on the loop first, unless the volume is down; else of a thread."""
        if may_try and not self.health.down:
            with contextlib.suppress(WouldWait):
                return at_once(function)
        attempt = partial(self._in_thread, function, changes)
        return await self._judged(attempt if changes else partial(_repeated, attempt))

    async def give_back(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """`call` a function that tells the volume what the kernel no longer needs, also while the volume is down: the
        kernel says it once. A call that is given up is in the log, goes on, and has nobody to tell."""
        if not self.blocking:
            function(*args, **kwargs)
            return
        try:
            if self.health.down:
                await self._in_thread(partial(function, *args, **kwargs), True)
            else:
                await self.call(function, *args, **kwargs)
        except (TimeoutError, InterruptedError) as error:
            log.info("%s: something given back may stay in use: %s", self.name, error)

    async def sync(self, function: Callable[[], T]) -> T:
        """Run an `fsync`, which waits for the disk in any volume: in a thread, so that other requests go on.

        Unless the disk has lately been so fast that the hop would cost more than it lets others do.
        """
        if self.blocking:
            return await self._judged(partial(self._in_thread, function, True))
        if self._sync_s < INLINE_SYNC_S:
            return self._timed(function)
        return await trio.to_thread.run_sync(self._timed, function)

    def _timed(self, function: Callable[[], T]) -> T:
        start = time.perf_counter()
        try:
            return function()
        finally:
            self._sync_s += (time.perf_counter() - start - self._sync_s) / 8

    async def _judged(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Make an attempt if the circuit breaker allows one, and count its outcome there."""
        if self.health.down:
            await self._wait_for_probe()
        kind = request.current().verb
        try:
            answer = await attempt()
        except OSError as error:
            if error.errno in TROUBLE:
                self.health.failed(kind, error)
            elif error.errno != errno.EINTR:
                self.health.answered(kind)
            raise
        self.health.answered(kind)
        return answer

    async def _wait_for_probe(self) -> None:
        """Wait for a probe of a volume that is down. Raises `RouteDown` if it is not answered."""
        self._begin_probe()
        while self.health.down and self._probe_left_s():
            await trio.sleep(PROBE_PATIENCE_S / 100)
        if self.health.down:
            raise self.health.refusal()

    async def _in_thread(self, function: Callable[[], T], changes: bool) -> T:
        """Run in a thread of its own, until the deadline or until the process that waits was killed.

        Args:
            changes: the function may change something. For the log.
        """
        asked = request.current()
        give_up_at = trio.current_time() + self.deadline_s
        await self._take_place(asked, give_up_at)
        is_awaited = self._is_awaited(asked)
        call = _Call(function, is_awaited=is_awaited)
        token = trio.lowlevel.current_trio_token()
        tell = partial(call.tell, partial(_tell_loop, token, partial(self._ended, call)))
        trio.lowlevel.start_thread_soon(call.run, lambda _: tell())
        try:
            if is_awaited and call.awaited(AWAITED_S):
                self._ended(call)
            await self._until(call.ended, asked, give_up_at)
        except BaseException as error:
            call.given_up = True
            if isinstance(error, TimeoutError):
                self._log_given_up(asked, changes)
            raise
        if call.error is not None:
            raise call.error
        return call.answer

    def _is_awaited(self, asked: request.Request) -> bool:
        """Whether the loop had better wait for a call than be woken by its thread, which costs half of the hop.

        That is so for one caller, who asks for nothing else meanwhile, and for short calls.
        """
        now = time.perf_counter()
        is_alone = self._running == 1 and (asked.thread == self._caller or now - self._called_at > ALONE_S)
        self._caller, self._called_at = asked.thread, now
        return is_alone and self._call_s < AWAITED_S

    async def _take_place(self, asked: request.Request, give_up_at: float) -> None:
        """Wait for one of `max_calls` places, in the order of the calls."""
        if self._running < self.max_calls:
            self._running += 1
            return
        turn = trio.Event()
        self._waiting.append(turn)
        try:
            await self._until(turn, asked, give_up_at)
        except BaseException:
            if turn.is_set():
                self._leave_place()
            else:
                self._waiting.remove(turn)
            raise

    def _leave_place(self) -> None:
        if self._waiting:
            self._waiting.popleft().set()
        else:
            self._running -= 1

    async def _until(self, event: trio.Event, asked: request.Request, give_up_at: float) -> None:
        """Wait for an event. ETIMEDOUT at the deadline; EINTR when the process that waits was killed."""
        while not event.is_set():
            with trio.move_on_at(min(give_up_at, trio.current_time() + PATIENCE_S)):
                await event.wait()
            if event.is_set():
                return
            if trio.current_time() >= give_up_at:
                raise oserror(errno.ETIMEDOUT)
            if asked.is_abandoned:
                self.abandoned += 1
                raise oserror(errno.EINTR)

    def _ended(self, call: _Call[Any]) -> None:
        """A thread has ended; on the loop."""
        if call.ended.is_set():
            return  # it was awaited, and has told all the same
        self._call_s += (call.took_s - self._call_s) / 8
        self._leave_place()
        call.ended.set()
        if call.given_up:
            self._log_late(call.error)

    def _log_late(self, error: BaseException | None) -> None:
        log.info("%s: a call that was given up has ended now: %s", self.name, error or "it was done")

    def _log_given_up(self, asked: request.Request, changes: bool) -> None:
        who = f"{asked.verb} (thread {asked.thread})" if asked.thread else asked.verb
        unknown = "; whether it was done is not known" if changes else ""
        log.warning("%s: no answer to %s within %g s%s", self.name, who, self.deadline_s, unknown)

    # -- any other thread's ------------------------------------------------------------------------------------

    def run(self, verb: str, call: Callable[[], T], files: int = 1) -> T:
        """Run a call of an agent or the server in a thread of its own, with the same limits as the kernel's.

        A search has the time of its budget (`base/budget.py`) and a moment more, so that one that ends by itself gives
        its results. Giving one up says nothing about the volume.

        Args:
            verb: of the agent, or another name for the kind of call.
            call: runs in the thread.
            files: how many files a batch is about. It has more time for each but the first.

        Raises:
            GivenUp: it took too long; it may still be carried out.
            RouteDown: the volume is down, and the call was not made.
            OSError: from the call.
        """
        if not self.blocking:
            return call()
        if self.health.down and not self._is_back():
            raise self.health.refusal()
        is_search = verb in SEARCHES
        most_s = self.deadline_s + (files - 1) * FILE_S
        try:
            answer = self._calls.run(call, _time_for_search() if is_search else countdown(most_s))
        except GivenUp:
            gone = GivenUp(f"no answer to {verb} {'in time' if is_search else f'within {most_s:g} s'}")
            if not is_search:
                self.health.failed(verb, gone)
                log.warning("%s: %s; whether it is still done is not known", self.name, gone)
            raise gone from None
        except OSError as error:
            if error.errno in TROUBLE:
                self.health.failed(verb, error)
            raise
        self.health.answered(verb)
        return answer

    def finish(self, function: Callable[[], None]) -> None:
        """Run the last call into a volume in a thread of its own, also while the volume is down.

        ETIMEDOUT when the deadline passes and the volume has stored no more files in that time.
        """
        if not self.blocking:
            function()
            return
        try:
            Pending(function).outcome(self._patience())
        except GivenUp as error:
            self.health.failed("finish", error)
            raise oserror(errno.ETIMEDOUT) from None

    def _patience(self) -> Callable[[], float]:
        """Seconds left of a deadline that begins anew whenever fewer files are still to be stored."""
        left_s, fewest = countdown(self.deadline_s), self._volume.unstored

        def left() -> float:
            nonlocal left_s, fewest
            unstored = self._volume.unstored
            if unstored < fewest:
                left_s, fewest = countdown(self.deadline_s), unstored
            return left_s()

        return left

    # -- probes ------------------------------------------------------------------------------------------------

    def _begin_probe(self) -> None:
        """Begin a probe, if one is due."""
        if self.health.begin_probe():
            self._probe_began = time.monotonic()
            self._probing = Pending(self._probe_now)

    def _probe_left_s(self) -> float:
        """How long the latest probe is worth waiting for."""
        if self._probing is None or self._probing.done():
            return 0.0
        return max(0.0, self._probe_began + PROBE_PATIENCE_S - time.monotonic())

    def _is_back(self) -> bool:
        """True if a volume that was down answers a probe now."""
        self._begin_probe()
        if self._probing is not None:
            with contextlib.suppress(GivenUp):
                self._probing.outcome(self._probe_left_s)
        return not self.health.down

    def _probe_now(self) -> None:
        try:
            self._volume.readdir(ROOT_NODE, b"", 1)
        except OSError as error:
            if error.errno in TROUBLE:
                self.health.still_down(error)
                return
        except Exception:
            log.exception("defect in a probe of %s", self.name)  # an answer of a kind: the next call shows it
        self.health.recovered()


async def _repeated(attempt: Callable[[], Awaitable[T]]) -> T:
    """Return the result of `attempt`; try again after an error of a lost connection."""
    for number in range(ATTEMPTS - 1):
        try:
            return await attempt()
        except OSError as error:
            if error.errno not in LOST:
                raise
        most_s = REPEAT_PAUSE_S * 2**number
        await trio.sleep(jitter.between(most_s / 2, most_s))
    return await attempt()


def _time_for_search() -> Callable[[], float]:
    left = budget.current()
    spent_at: float | None = None

    def left_s() -> float:
        nonlocal spent_at
        if not left.spent:
            return left.left_s + GRACE_S
        spent_at = time.monotonic() if spent_at is None else spent_at
        return max(0.0, spent_at + GRACE_S - time.monotonic())

    return left_s


def _tell_loop(token: trio.lowlevel.TrioToken, ended: Callable[[], None]) -> None:
    with contextlib.suppress(trio.RunFinishedError):  # the mount has ended
        token.run_sync_soon(ended)
