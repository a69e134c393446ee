"""`aside`: a verb that blocks, run in a thread, awaited under asyncio or trio, and left when its caller is cancelled.

Every `a…` verb that has nothing better is its plain verb, run by this. Promises to a cancelled caller:

- it goes on within `GRACE_S`, even if the thread is stuck;
- a verb that has not begun (all of the backend's `MAX_CALLS` places are taken) never begins;
- one that has begun sees it in its budget: a search ends with the matches that it has, a command is killed, and a verb
  that asks several backends asks no further one. A single change that has begun, such as a `write`, is carried out;
- what can't be interrupted goes on alone, its answer is dropped, and the log says so.

The threads are trio's (`trio.lowlevel.start_thread_soon`), which are daemons and are used again; none keeps the
process. At its end those that were cancelled have `EXIT_S`, so that the commands in them are killed.

If the backend has an `a…` verb of its own, the loop in which the thread's caller waits awaits it (`caller.py`), and it
is cancelled with its caller.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import anyio
import anyio.from_thread
import anyio.lowlevel
import sniffio
import trio

from fusebackend.base import budget, caller
from fusebackend.base.caller import CallerGone

log = logging.getLogger(__name__)

MAX_CALLS = 64
"""Verbs of one backend in threads at once, also those that were cancelled and have not ended. Others wait in order."""

MAX_COMMANDS = 512
"""Commands of one backend at once. They have their own places: some run for hours, and no `read` waits for them."""

GRACE_S = 0.05
"""How long a cancelled caller waits for its verb to end, so that the command it started is gone by then."""

EXIT_S = 1.0
"""How long the end of the process waits for verbs that were cancelled."""

T = TypeVar("T")


async def aside(backend: object, verb: str, call: Callable[[], T]) -> T:
    """Run `call` in a thread, and return or raise its outcome. See the module's docstring.

    Args:
        backend: the backend of the verb; each has places of its own.
        verb: its name, for its place and for the log.
    """
    await anyio.lowlevel.checkpoint_if_cancelled()
    cancelled = anyio.get_cancelled_exc_class()
    job = _Job(f"{type(backend).__name__}.{verb}", call)
    places = _places(backend, verb)
    places.take(job)
    try:
        await job.done.wait()
    except cancelled:
        if places.leave(job):
            with anyio.move_on_after(GRACE_S, shield=True):
                await job.done.wait()
            job.abandon()
        raise
    except BaseException:
        places.leave(job)
        raise
    if job.error is not None:
        raise job.error
    return job.answer


def until_cancelled(call: Callable[[], Awaitable[T]]) -> T:
    """In a thread that no loop waits for: await something on an asyncio loop of its own.

    Raises:
        CallerGone: the budget was called off meanwhile.
    """
    return anyio.run(_until_cancelled, call)


async def _until_cancelled(call: Callable[[], Awaitable[T]]) -> T:
    wake = _waker()
    if budget.current().cancelled:
        raise CallerGone
    with anyio.CancelScope() as scope, budget.current().waking(lambda: wake(scope.cancel)):
        return await call()
    raise CallerGone


def _waker() -> Callable[[Callable[[], object]], object]:
    """Has something called on the loop that runs, from any thread. RuntimeError when the loop has ended."""
    if sniffio.current_async_library() == "trio":
        return trio.lowlevel.current_trio_token().run_sync_soon
    return asyncio.get_running_loop().call_soon_threadsafe


# --------------------------------------------------------------------------------------------------------------
# One call
# --------------------------------------------------------------------------------------------------------------


class _Job(Generic[T]):
    """A verb on its way through a thread; for the verb, the task that awaits it (`caller.AwaitingTask`)."""

    def __init__(self, name: str, call: Callable[[], T]) -> None:
        self.name = name
        self.library = sniffio.current_async_library()
        self.done = anyio.Event()
        self.cancelled = budget.Cancellation()
        self.begun = False
        self.answer: T
        self.error: BaseException | None = None
        self._call = call
        self._context = contextvars.copy_context()
        self._loop = anyio.lowlevel.current_token()
        self._wake = _waker()
        self._guard = threading.Lock()
        self._ended = False
        self._abandoned = False

    def abandon(self) -> None:
        """Say so when the thread goes on all the same."""
        with self._guard:
            self._abandoned = not self._ended
            if self._abandoned:
                _left_alone.add(self)
        if self._abandoned:
            log.warning("%s was cancelled and can't be interrupted: it goes on, and its answer is dropped", self.name)

    # -- the thread's ------------------------------------------------------------------------------------------

    def ask(self, call: Callable[[], Awaitable[Any]]) -> Any:
        return anyio.from_thread.run(_until_cancelled, call, token=self._loop)

    def run(self) -> None:
        try:
            self.answer = self._context.run(self._run)
        except BaseException as error:
            self.error = error
        with self._guard:
            self._ended = True
            _left_alone.discard(self)
        if self._abandoned:
            log.info("%s, which was cancelled, has ended now: %s", self.name, self.error or "it was done")
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._wake(self.done.set)

    def _run(self) -> T:
        caller.current.set(self)
        sniffio.current_async_library_cvar.set(None)  # copied with the context; no loop runs in this thread
        with budget.limited(None, cancelled=self.cancelled):
            return self._call()


_left_alone: set[_Job[Any]] = set()


@atexit.register
def _give_them_a_moment() -> None:
    deadline = time.monotonic() + EXIT_S
    while _left_alone and time.monotonic() < deadline:
        time.sleep(0.01)


# --------------------------------------------------------------------------------------------------------------
# Threads
# --------------------------------------------------------------------------------------------------------------


class _Places:
    """So many threads at most, and those that wait for one, first come first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._guard = threading.Lock()
        self._running = 0
        self._waiting: deque[_Job[Any]] = deque()

    def __reduce__(self) -> tuple[type[_Places], tuple[int]]:  # a copy of a backend has places of its own
        return _Places, (self._most,)

    def take(self, job: _Job[Any]) -> None:
        """Begin it, now or when there is a place. RuntimeError when the machine has no more threads."""
        with self._guard:
            if self._running >= self._most:
                self._waiting.append(job)
                return
            self._running += 1
            job.begun = True
        try:
            trio.lowlevel.start_thread_soon(functools.partial(self._run, job), _nobody, job.name)
        except BaseException:
            with self._guard:
                self._running -= 1
            raise

    def leave(self, job: _Job[Any]) -> bool:
        """It is not to begin any more; or if it has, it is to end. Return whether it has begun."""
        with self._guard:
            if not job.begun:
                self._waiting.remove(job)
        job.cancelled.set()
        return job.begun

    def _run(self, job: _Job[Any]) -> None:
        following: _Job[Any] | None = job
        while following is not None:
            following.run()
            with self._guard:
                following = self._waiting.popleft() if self._waiting else None
                if following is None:
                    self._running -= 1
                else:
                    following.begun = True


def _nobody(outcome: object) -> None:
    """`_run` raises nothing, and answers through the job."""


_shared = {False: _Places(MAX_CALLS), True: _Places(MAX_COMMANDS)}
"""For backends that can't carry places of their own."""


def _places(backend: object, verb: str) -> _Places:
    commands = verb == "execute"
    try:
        own = vars(backend)
    except TypeError:  # it has __slots__
        return _shared[commands]
    most = MAX_COMMANDS if commands else MAX_CALLS
    found: _Places = own.setdefault("_places_for_commands" if commands else "_places_for_calls", _Places(most))
    return found
