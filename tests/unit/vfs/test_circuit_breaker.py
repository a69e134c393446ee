"""When a route is asked, when it is not, and what is said of it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from clocks import Clock
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from profiles import examples

from fusebackend.vfs.calls import executor as health
from fusebackend.vfs.calls.executor import FAILURES_TO_OPEN, MAX_PAUSE_S, PAUSE_S, TROUBLE, CircuitBreaker

TIMEOUT = TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
REFUSED = ConnectionRefusedError(errno.ECONNREFUSED, "nobody listens")


def steady(low: float, high: float) -> float:
    return (low + high) / 2


def fallen(clock: Clock, error: OSError = TIMEOUT, vary: Callable[[float, float], float] = steady) -> CircuitBreaker:
    route = CircuitBreaker("Route '/x/'", clock=clock, vary=vary)
    for _ in range(FAILURES_TO_OPEN):
        route.failed("read", error)
    return route


def test_one_probe_at_a_time_after_each_pause() -> None:
    clock = Clock()
    route = fallen(clock)
    assert not route.begin_probe()
    clock.now += PAUSE_S
    assert route.begin_probe() and not route.begin_probe()
    route.still_down(TIMEOUT)
    clock.now += PAUSE_S
    assert not route.begin_probe(), "the pauses grow"
    clock.now += PAUSE_S
    assert route.begin_probe()
    for _ in range(10):
        route.still_down(TIMEOUT)
        clock.now += MAX_PAUSE_S
        assert route.begin_probe(), "up to a limit"
    route.recovered()
    assert not route.down


def test_pauses_vary() -> None:
    clock = Clock()
    route = fallen(clock, vary=lambda low, high: high)
    clock.now += PAUSE_S
    assert not route.begin_probe()
    clock.now += PAUSE_S * health.JITTER
    assert route.begin_probe()


def test_what_status_says() -> None:
    clock = Clock()
    route = CircuitBreaker("Route '/x/'", clock=clock)
    assert route.describe() == {"state": "healthy", "timeouts": 0, "refused": 0}
    route.failed("read", REFUSED)
    said = route.describe()
    assert (said["state"], said["why"]) == ("degraded", "nobody listens") and said["since"] > 0
    route.failed("read", TIMEOUT)
    route.failed("read", TIMEOUT)
    later = route.describe()
    assert later["state"] == "down" and later["timeouts"] == 2
    assert later["since"] == said["since"], "the first of the failures in a row"


def test_an_old_failure_is_not_worth_telling() -> None:
    clock = Clock()
    route = CircuitBreaker("Route '/x/'", clock=clock)
    route.failed("rename", TIMEOUT)
    clock.now += health.REMEMBERED_S
    assert route.describe()["state"] == "healthy"


KINDS = st.sampled_from(["lookup", "read", "fsync"])


class HealthMachine(RuleBasedStateMachine):
    """Against the rules, counted by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.route = CircuitBreaker("Route '/x/'", clock=self.clock, vary=steady)
        self.in_a_row: dict[str, int] = {}
        self.down = False
        self.probing = False
        self.refused = 0

    @rule(kind=KINDS)
    def answer(self, kind: str) -> None:
        self.route.answered(kind)
        self.in_a_row.pop(kind, None)

    @rule(kind=KINDS, number=st.sampled_from(sorted(TROUBLE)))
    def fail(self, kind: str, number: int) -> None:
        self.route.failed(kind, OSError(number, os.strerror(number)))
        self.in_a_row[kind] = self.in_a_row.get(kind, 0) + 1
        self.down = self.down or self.in_a_row[kind] >= FAILURES_TO_OPEN

    @rule(seconds=st.floats(0, 2 * MAX_PAUSE_S))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule()
    def probe(self) -> None:
        began = self.route.begin_probe()
        assert not began or (self.down and not self.probing)
        self.probing = self.probing or began

    @precondition(lambda self: self.probing)
    @rule(answered=st.booleans())
    def end_probe(self, answered: bool) -> None:
        self.probing = False
        if answered:
            self.route.recovered()
            self.down, self.in_a_row = False, {}
        else:
            self.route.still_down(TIMEOUT)

    @precondition(lambda self: self.down and not self.probing)
    @rule()
    def wait_for_the_longest_pause(self) -> None:
        self.clock.now += MAX_PAUSE_S * (1 + health.JITTER)
        assert self.route.begin_probe(), "it is never left alone for longer"
        self.probing = True

    @invariant()
    def is_as_counted(self) -> None:
        assert self.route.down is self.down
        state = self.route.describe()["state"]
        assert (state == "down") is self.down
        assert state != "degraded" or self.in_a_row


HealthMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
TestHealthMachine = HealthMachine.TestCase
