"""Calls into a volume that may hang: deadlines, places, killed clients, repetition, and the way back."""

from __future__ import annotations

import errno
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing
from eventually import eventually
from for_each import for_each

from fusebackend.base import budget
from fusebackend.base.deadline import BoundedCalls, GivenUp, RouteDown
from fusebackend.vfs.calls import executor, request
from fusebackend.vfs.calls.executor import FAILURES_TO_OPEN, RouteExecutor

LIMIT_S = 20.0


class Hanging:
    """A volume's method that hangs until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.calls = 0

    def __call__(self, answer: Any = None) -> Any:
        self.calls += 1
        self.go.wait(LIMIT_S)
        return answer


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    call = Hanging()
    yield call
    call.go.set()


def executor_of(blocking: bool, *, probe: Callable[[], object] = lambda: None, **options: Any) -> RouteExecutor:
    """The executor of a volume whose root is listed by `probe`."""
    volume = SimpleNamespace(
        at_once=frozenset(), all_at_once=False, trouble=None, unstored=0, readdir=lambda *_: probe()
    )
    return RouteExecutor(blocking, cast(Any, volume), **options)


def run(function: Callable[[], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        with trio.fail_after(LIMIT_S):
            return await function()

    return trio.run(main)


async def fails(number: int, call: Callable[[], Awaitable[Any]]) -> None:
    with pytest.raises(OSError) as failure:
        await call()
    assert failure.value.errno == number


# -- the hop -----------------------------------------------------------------------------------------------------


@pytest.mark.trio
async def test_the_loop_waits_for_short_calls_of_one_caller_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "AWAITED_S", LIMIT_S)
    route_executor = executor_of(True, deadline_s=2 * LIMIT_S)
    route_executor._call_s = 0.0
    begun, let_go = threading.Event(), threading.Event()
    turns: list[str] = []

    def blocked() -> str:
        begun.set()
        assert let_go.wait(LIMIT_S)
        return "answer"

    async def call(thread: int) -> None:
        request.asked.set(request.Request("read", thread))
        assert await route_executor.call(blocked) == "answer"
        turns.append(f"call of {thread}")

    async def other_task() -> None:
        turns.append("another task")

    timer = threading.Timer(0.05, let_go.set)
    timer.start()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(call, 1)
        await trio.lowlevel.checkpoint()
        nursery.start_soon(other_task)
    timer.join()
    assert turns == ["call of 1", "another task"], "the loop did nothing else"
    turns.clear()
    let_go.clear()
    monkeypatch.setattr(executor, "ALONE_S", LIMIT_S)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(call, 2)
        nursery.start_soon(call, 3)
        await trio.to_thread.run_sync(begun.wait)
        turns.append("another task")
        let_go.set()
    assert turns[0] == "another task", "there are several callers"


@pytest.mark.trio
async def test_no_answer_is_lost_or_told_twice_when_the_loop_has_waited_in_vain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(executor, "AWAITED_S", 1e-4)
    route_executor = executor_of(True, deadline_s=LIMIT_S, max_calls=2)

    for number in range(500):
        route_executor._call_s = 0.0
        pause_s = (number % 40) * 1e-5
        assert await route_executor.call(lambda n=number, s=pause_s: (time.sleep(s), n)[1]) == number
        assert route_executor._running == 0
    with pytest.raises(ZeroDivisionError):
        await route_executor.call(lambda: 1 / 0)


# -- places ------------------------------------------------------------------------------------------------------


@pytest.mark.trio
@pytest.mark.parametrize("places", [1, 3])
async def test_no_more_threads_than_places_and_first_come_first_served(hanging: Hanging, places: int) -> None:
    route_executor = executor_of(True, deadline_s=LIMIT_S, max_calls=places)
    begun: list[int] = []

    def begin(number: int) -> None:
        begun.append(number)
        hanging()

    async with trio.open_nursery() as nursery:
        for number in range(6):
            nursery.start_soon(route_executor.call, begin, number)
            await trio.testing.wait_all_tasks_blocked(0.01)
        while hanging.calls < places:
            await trio.sleep(0.005)
        assert (hanging.calls, route_executor.describe()["waiting"]) == (places, 6 - places)
        hanging.go.set()
    assert sorted(begun) == list(range(6)) and set(begun[:places]) == set(range(places))
    assert places > 1 or begun == list(range(6))
    assert (route_executor.describe()["running"], route_executor.describe()["waiting"]) == (0, 0)


@pytest.mark.trio
async def test_threads_that_hang_keep_their_places_and_nothing_piles_up(hanging: Hanging) -> None:
    route_executor = executor_of(True, deadline_s=0.05, max_calls=2)
    before = threading.active_count()

    for _ in range(2):
        await fails(errno.ETIMEDOUT, lambda: route_executor.call(hanging))
    await fails(errno.ETIMEDOUT, lambda: route_executor.call(hanging))  # it has waited for a place
    assert (hanging.calls, route_executor.health.timeouts) == (2, 3) and threading.active_count() <= before + 3


@pytest.mark.trio
async def test_places_are_free_again_when_what_hung_has_ended(hanging: Hanging) -> None:
    route_executor = executor_of(True, deadline_s=0.05, max_calls=1)

    await fails(errno.ETIMEDOUT, lambda: route_executor.call(hanging))
    hanging.go.set()
    while route_executor.describe()["running"]:
        await trio.sleep(0.005)
    assert await route_executor.call(lambda: 7) == 7


def test_the_loop_ends_though_a_thread_hangs(hanging: Hanging) -> None:
    route_executor = executor_of(True, deadline_s=LIMIT_S)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(route_executor.call, hanging)
            while not hanging.calls:
                await trio.sleep(0.005)
            nursery.cancel_scope.cancel()

    start = time.monotonic()
    run(main)
    assert time.monotonic() - start < LIMIT_S / 2


# -- what is said ------------------------------------------------------------------------------------------------


@pytest.mark.trio
async def test_the_outcome_of_a_change_is_unknown_and_that_of_a_question_no_matter(
    hanging: Hanging, caplog: pytest.LogCaptureFixture
) -> None:
    route_executor = executor_of(True, deadline_s=0.05, name="Route '/x/'")

    request.asked.set(request.Request("rename"))
    await fails(errno.ETIMEDOUT, lambda: route_executor.call(hanging))
    request.asked.set(request.Request("read", 4711, 0, 0))
    await fails(errno.ETIMEDOUT, lambda: route_executor.ask(hanging))
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        "Route '/x/': no answer to rename within 0.05 s; whether it was done is not known",
        "Route '/x/': no answer to read (thread 4711) within 0.05 s",
    ]


# -- whose request it is ------------------------------------------------------------------------------------------


STUCK = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpid(), flush=True)
sys.stdin.read()
"""


def test_a_living_process_is_waited_for_and_one_that_has_ended_was_not_waiting_for_this() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    for thread in (os.getpid(), child.pid):
        assert not request.Request("read", thread).is_abandoned
    assert not request.NOBODYS.is_abandoned


def test_a_signal_that_does_not_kill_is_none() -> None:
    child = subprocess.Popen([sys.executable, "-c", STUCK], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None and child.stdout.readline()
        child.send_signal(signal.SIGSTOP)  # so that it takes nothing that is sent to it
        eventually(lambda: _state(child.pid) == "T")
        child.send_signal(signal.SIGTERM)
        assert not request.Request("read", child.pid).is_abandoned
    finally:
        child.kill()
        child.communicate()


def _state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0]


@pytest.mark.trio
async def test_nobody_waits_for_a_call_whose_process_was_killed(
    hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That a killed process looks like this, `mounted/test_route_health.py` knows."""
    killed: set[int] = set()
    monkeypatch.setattr(request.Request, "is_abandoned", property(lambda self: self.thread in killed))
    monkeypatch.setattr(executor, "PATIENCE_S", 0.01)
    route_executor = executor_of(True, deadline_s=LIMIT_S, max_calls=1)

    async def ask_for(thread: int) -> None:
        request.asked.set(request.Request("read", thread, 0, 0))
        await fails(errno.EINTR, lambda: route_executor.ask(hanging))

    async with trio.open_nursery() as nursery:
        for thread in (1, 2):
            nursery.start_soon(ask_for, thread)
            await trio.testing.wait_all_tasks_blocked(0.005)
        killed.update((1, 2))
    assert hanging.calls == 1, "the second one had not begun, and never does"
    said = route_executor.describe()
    assert (said["abandoned"], said["waiting"], said["state"]) == (2, 0, "healthy")


# -- repetition --------------------------------------------------------------------------------------------------


class Flaky:
    """Fails so many times, then answers."""

    def __init__(self, *errors: int) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise OSError(self.errors.pop(0), "on purpose")
        return "answer"


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "REPEAT_PAUSE_S", 0.001)


@pytest.mark.trio
@pytest.mark.usefixtures("hasty")
@for_each(
    ("verb", "errors", "calls"),
    [
        ("ask", [errno.ECONNRESET, errno.ECONNREFUSED, errno.EPIPE], 4),
        ("ask", [errno.ECONNRESET] * 100, executor.ATTEMPTS),  # not for ever
        ("ask", [errno.ENOENT], 1),
        ("ask", [errno.EIO], 1),
        ("ask", [errno.ETIMEDOUT], 1),
        ("call", [errno.ECONNRESET], 1),  # a change is never made twice
    ],
)
async def test_a_question_is_asked_again_when_its_connection_was_lost(verb: str, errors: list[int], calls: int) -> None:
    flaky, route_executor = Flaky(*errors), executor_of(True)
    asked = partial(getattr(route_executor, verb), flaky)
    if calls > len(errors):
        assert await asked() == "answer"
        assert route_executor.describe()["state"] == "healthy"
    else:
        await fails(errors[0], asked)
    assert flaky.calls == calls


# -- down, and up again ------------------------------------------------------------------------------------------


class Service:
    """A volume's backend that can be lost."""

    def __init__(self) -> None:
        self.up = True
        self.probes = 0

    def ask(self) -> str:
        if not self.up:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "nobody listens")
        return "answer"

    def probe(self) -> None:
        self.probes += 1
        self.ask()


async def bring_down(route_executor: RouteExecutor, service: Service) -> None:
    service.up = False
    for _ in range(FAILURES_TO_OPEN):
        await fails(errno.ECONNREFUSED, lambda: route_executor.call(service.ask))
    assert route_executor.health.down


@pytest.mark.trio
async def test_calls_fail_at_once_until_it_answers_again() -> None:
    service = Service()
    route_executor = executor_of(True, probe=service.probe, name="Route '/x/'")

    await bring_down(route_executor, service)
    asked = 0

    def count() -> None:
        nonlocal asked
        asked += 1

    await fails(errno.ECONNREFUSED, lambda: route_executor.call(count))
    assert asked == 0, "it is not asked at all"
    service.up = True
    while route_executor.health.down:
        await trio.sleep(0.01)
        try:
            assert await route_executor.call(service.ask) == "answer"
        except RouteDown as error:
            assert error.errno == errno.ECONNREFUSED
    assert service.probes >= 1 and route_executor.describe()["state"] == "healthy"


@pytest.mark.trio
async def test_the_call_that_finds_it_back_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service()
    route_executor = executor_of(True, probe=service.probe)

    await bring_down(route_executor, service)
    service.up = True
    monkeypatch.setattr(route_executor.health, "_probe_at", 0.0)  # the pause is over
    assert await route_executor.call(service.ask) == "answer"
    assert route_executor.describe()["refused"] == 0


@pytest.mark.trio
async def test_a_probe_that_hangs_holds_nobody_up_and_there_is_one(
    hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "PROBE_PATIENCE_S", 0.05)
    service = Service()
    route_executor = executor_of(True, probe=hanging)

    start = time.monotonic()
    await bring_down(route_executor, service)
    for _ in range(20):
        monkeypatch.setattr(route_executor.health, "_probe_at", 0.0)
        with pytest.raises(RouteDown):
            await route_executor.call(service.ask)
    assert time.monotonic() - start < LIMIT_S / 2 and hanging.calls == 1


def test_asking_for_the_status_is_a_reason_to_look() -> None:
    service = Service()
    route_executor = executor_of(True, probe=service.probe)
    run(lambda: bring_down(route_executor, service))
    service.up = True
    eventually(lambda: route_executor.describe()["state"] == "healthy")


@pytest.mark.trio
async def test_application_errors_say_that_it_is_there() -> None:
    route_executor = executor_of(True)

    for _ in range(2 * FAILURES_TO_OPEN):
        await fails(errno.ENOENT, lambda: route_executor.call(Flaky(errno.ENOENT)))
    assert route_executor.describe()["state"] == "healthy"


# -- other threads -----------------------------------------------------------------------------------------------


def test_an_agent_is_given_the_same_deadline_and_the_same_health(hanging: Hanging) -> None:
    route_executor = executor_of(True, deadline_s=0.05)
    for _ in range(FAILURES_TO_OPEN):
        with pytest.raises(GivenUp, match=r"^no answer to read within 0.05 s$"):
            route_executor.run("read", hanging)
    with pytest.raises(RouteDown):
        route_executor.run("read", hanging)
    run(lambda: fails(errno.ETIMEDOUT, lambda: route_executor.call(hanging)))
    assert hanging.calls == FAILURES_TO_OPEN


def test_a_search_that_is_given_up_says_nothing_of_the_route(hanging: Hanging, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "GRACE_S", 0.0)
    route_executor = executor_of(True, deadline_s=LIMIT_S)
    for _ in range(FAILURES_TO_OPEN):
        with budget.granted(0.0), pytest.raises(GivenUp, match=r"^no answer to grep in time$"):
            route_executor.run("grep", hanging)
    assert route_executor.describe()["state"] == "healthy"


def test_a_route_that_does_not_block_is_called_where_we_are() -> None:
    here = threading.get_ident()
    assert executor_of(False).run("read", threading.get_ident) == here
    assert run(lambda: executor_of(False).call(threading.get_ident)) == here


def test_agents_have_as_many_places_again(hanging: Hanging) -> None:
    route_executor = executor_of(True, deadline_s=0.05, max_calls=1)
    with pytest.raises(GivenUp):
        route_executor.run("read", hanging)
    assert run(lambda: route_executor.call(lambda: 7)) == 7, "the kernel's calls have places of their own"
    with pytest.raises(GivenUp, match=r"^no answer to read within"):
        route_executor.run("read", lambda: 7)
    assert hanging.calls == 1


def test_the_last_words_are_said_to_a_volume_that_is_down_and_end_at_the_deadline(hanging: Hanging) -> None:
    service = Service()
    route_executor = executor_of(True, deadline_s=0.05)
    run(lambda: bring_down(route_executor, service))
    said: list[int] = []
    route_executor.finish(lambda: said.append(1))
    assert said == [1]
    with pytest.raises(TimeoutError) as failure:
        route_executor.finish(hanging)
    assert failure.value.errno == errno.ETIMEDOUT
    with pytest.raises(ZeroDivisionError):
        route_executor.finish(lambda: 1 / 0)
    executor_of(False).finish(lambda: said.append(threading.get_ident()))
    assert said[1:] == [threading.get_ident()]


def test_the_last_words_may_take_as_long_as_files_are_stored():
    volume = Storing()
    route_executor = RouteExecutor(True, cast(Any, volume), deadline_s=1.0)
    route_executor.finish(volume.store_all)
    assert volume.unstored == 0
    volume.unstored = 5
    with pytest.raises(TimeoutError):
        route_executor.finish(volume.hang)
    volume.hanging.set()


class Storing:
    """As much of a volume as is asked here, with three files that take half a second each."""

    at_once, all_at_once, trouble = frozenset[str](), False, None

    at_once = frozenset()
    all_at_once = False

    def __init__(self):
        self.unstored = 3
        self.hanging = threading.Event()

    def store_all(self):
        while self.unstored:
            time.sleep(0.5)
            self.unstored -= 1

    def hang(self):
        self.hanging.wait(30)


# -- fsync -------------------------------------------------------------------------------------------------------


@pytest.mark.trio
async def test_a_slow_disk_is_waited_for_in_a_thread_and_a_fast_one_where_we_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr(executor.time, "perf_counter", lambda: clock[0])
    route_executor = executor_of(False)

    async def where(takes_s: float) -> bool:
        def fsync() -> bool:
            clock[0] += takes_s
            return threading.get_ident() == here

        here = threading.get_ident()
        return await route_executor.sync(fsync)

    assert not await where(0.0), "nothing is known of the disk yet"
    assert await where(0.0), "it is fast"
    assert await where(1.0), "until it was slow"
    assert not await where(1.0)
    while not await where(0.0):
        pass


class TestCalls:
    def test_there_are_no_more_than_said(self, hanging: Hanging) -> None:
        calls = BoundedCalls(2)
        for _ in range(2):
            with pytest.raises(GivenUp, match="no answer"):
                calls.run(hanging, lambda: 0.0)
        with pytest.raises(GivenUp, match="not even begun: 2 earlier calls"):
            calls.run(hanging, lambda: 0.0)
        eventually(lambda: hanging.calls == 2)
        hanging.go.set()
        assert calls.run(lambda: 7, lambda: LIMIT_S) == 7

    def test_one_that_ends_late_is_told_of(self, hanging: Hanging) -> None:
        late: list[BaseException | None] = []
        calls = BoundedCalls(2, late.append)
        with pytest.raises(GivenUp):
            calls.run(hanging, lambda: 0.0)
        hanging.go.set()
        eventually(lambda: late == [None])
