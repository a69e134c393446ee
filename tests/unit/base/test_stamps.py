"""`stamps`: times of the kernel's coarse clock, and finer ones for what has been looked at within a tick."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from clocks import MULTIGRAIN
from raising import raising

from fusebackend.base import stamps
from fusebackend.base.stamps import Clock

needs_multigrain = pytest.mark.skipif(not MULTIGRAIN, reason="this kernel has no multigrain timestamps (Linux 6.13)")


@pytest.fixture
def tick_ns(monkeypatch: pytest.MonkeyPatch) -> int:
    """The coarse clock stands still."""
    now_ns = stamps.coarse_ns()
    monkeypatch.setattr(time, "clock_gettime_ns", lambda _: now_ns)
    return now_ns


def test_stamps_that_nobody_has_seen_are_those_of_the_tick(tick_ns: int) -> None:
    clock = Clock()
    assert [clock.now_ns() for _ in range(3)] == [tick_ns] * 3


@needs_multigrain
def test_a_stamp_is_later_than_what_was_seen_in_its_tick(tick_ns: int) -> None:
    clock = Clock()
    given = [clock.now_ns()]
    for _ in range(100):
        clock.saw(given[-1])
        given.append(clock.now_ns())
        assert clock.now_ns() == given[-1], "nobody has seen that one"
    assert given == sorted(set(given))
    assert given[-1] <= time.time_ns()


@needs_multigrain
def test_an_exact_one_fits_between_times_of_a_finer_clock() -> None:
    clock = Clock()
    given = [time.time_ns()]
    for _ in range(20):
        time.sleep(0.001)  # not all of them in one tick
        given += [clock.now_ns(exact=True), time.time_ns()]
    assert given == sorted(given)


@needs_multigrain
def test_what_the_kernel_stamps_after_a_fine_stamp_is_no_earlier(tmp_path: Path) -> None:
    """`touch` on a file system without multigrain times has the coarse clock; the kernel keeps it from going back."""
    clock = Clock()
    file = tmp_path / "file"
    file.touch()
    for _ in range(100):
        clock.saw_all()
        given = clock.now_ns()
        os.utime(file)
        assert file.stat().st_mtime_ns >= given


def test_stamps_are_no_earlier_than_a_time_that_passed(tick_ns: int) -> None:
    clock = Clock()
    passed = time.time_ns()
    clock.passed(passed)
    assert clock.now_ns() >= passed
    clock.passed(time.time_ns() + 10**12)
    assert clock.now_ns() < passed + 10**12, "a time in the future says nothing of now"


def test_a_clock_that_is_set_back_goes_on_from_there(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    clock.now_ns()
    hour_ago = stamps.coarse_ns() - 3600 * 10**9
    monkeypatch.setattr(time, "clock_gettime_ns", lambda _: hour_ago)
    clock.saw_all()
    assert clock.now_ns() == hour_ago


def test_without_a_descriptor_it_is_the_time_of_the_tick(tick_ns: int, monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setattr(os, "memfd_create", raising(OSError(24, "Too many open files")))
    clock = Clock()
    clock.now_ns()
    clock.saw_all()
    assert clock.now_ns() == tick_ns
