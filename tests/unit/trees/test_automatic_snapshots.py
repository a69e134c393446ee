"""Snapshots that a mount takes by itself: when, and which of them are kept."""

from __future__ import annotations

import errno
from datetime import UTC, datetime

import pytest
from clocks import Clock
from hypothesis import example, given
from hypothesis import strategies as st
from raising import raising

from fusebackend.backends.memory import InMemoryVolume
from fusebackend.base.errors import oserror
from fusebackend.base.paths import ROOT
from fusebackend.protocol import ROOT_NODE, Caller, StatFs
from fusebackend.trees.automatic import EVERY_S, AutomaticSnapshots, expired, name_at, time_of
from fusebackend.trees.snapshots import Snapshots

HOUR, DAY = 3600, 86400
NOW = int(datetime(2026, 11, 23, 12, 30, tzinfo=UTC).timestamp())
ME = Caller(0, 0)


def aged(*ages_s: float) -> list[tuple[str, int]]:
    """Snapshots of these ages, the oldest first; the name of each is its age."""
    return [(str(age), int((NOW - age) * 1e9)) for age in sorted(ages_s, reverse=True)]


def test_all_of_an_hour_are_kept() -> None:
    assert expired(aged(*range(0, HOUR, 10)), NOW * 10**9) == []


def test_the_first_of_each_hour_is_kept_for_a_day() -> None:
    # 12:30 is now: 10:00 to 10:50 are one hour, 09:50 another.
    ages = [minutes * 60 for minutes in (100, 110, 120, 150, 160)]
    assert expired(aged(*ages), NOW * 10**9) == ["7200", "6600", "6000"]


def test_the_first_of_each_day_is_kept_for_a_week() -> None:
    ages = [days * DAY + hours * HOUR for days in (2, 6, 7, 8) for hours in (0, 1)]
    gone = expired(aged(*ages), NOW * 10**9)
    assert gone == [str(age) for age in (8 * DAY + HOUR, 8 * DAY, 7 * DAY + HOUR, 7 * DAY, 6 * DAY, 2 * DAY)]


@example([83190, 81507], 3686)
@given(st.lists(st.integers(0, 10 * DAY), unique=True), st.integers(0, 10 * DAY))
def test_what_is_kept_does_not_depend_on_how_often_it_is_looked_at(ages: list[int], step: int) -> None:
    taken = aged(*ages)
    later_ns = (NOW + step) * 10**9
    gone = expired(taken, NOW * 10**9)
    kept = [each for each in taken if each[0] not in gone]
    at_once = expired(taken, later_ns)
    assert {*gone, *expired(kept, later_ns)} == set(at_once)


@given(st.lists(st.integers(0, 10 * DAY), unique=True))
def test_how_many_are_kept(ages: list[int]) -> None:
    gone = set(expired(aged(*ages), NOW * 10**9))
    kept = [age for age in ages if str(age) not in gone]
    assert set(filter(lambda age: age < HOUR, ages)) <= set(kept)
    assert len([age for age in kept if HOUR <= age < DAY]) <= 24
    assert len([age for age in kept if DAY <= age < 7 * DAY]) <= 8, "seven days touch eight dates"
    assert not [age for age in kept if age >= 7 * DAY]


def test_names_are_times() -> None:
    time_ns = NOW * 10**9 + 45_000_000
    assert name_at(time_ns) == "@20261123T123000.045Z"
    assert time_of(name_at(time_ns)) == time_ns
    assert [time_of(name) for name in ("mine", "@mine", "20261123T123000Z")] == [None] * 3


@pytest.fixture
def clock() -> Clock:
    return Clock(NOW)


@pytest.fixture
def taking(volume: InMemoryVolume, clock: Clock) -> AutomaticSnapshots:
    return AutomaticSnapshots(Snapshots({ROOT: volume}), clock, lambda: int(clock() * 1e9))


@pytest.fixture
def volume() -> InMemoryVolume:
    return InMemoryVolume()


def names(volume: InMemoryVolume) -> list[str]:
    return [taken.name for taken in volume.snapshots()]


def touch(volume: InMemoryVolume, name: bytes) -> None:
    volume.create(ROOT_NODE, name, 0o600, 0, ME)


def test_one_is_taken_before_a_call_if_something_has_changed(
    volume: InMemoryVolume, taking: AutomaticSnapshots, clock: Clock
) -> None:
    taking.before_call()
    assert names(volume) == ["@20261123T123000.000Z"]
    touch(volume, b"a")
    clock.now += EVERY_S - 1
    taking.before_call()
    assert len(names(volume)) == 1, "not so soon"
    clock.now += 1
    taking.before_call()
    assert len(names(volume)) == 2
    clock.now += EVERY_S
    taking.before_call()
    assert len(names(volume)) == 2, "nothing has changed since"
    assert volume.snapshot(names(volume)[1]).lookup(ROOT_NODE, b"a")


def test_a_volume_that_takes_none_hinders_no_call(
    volume: InMemoryVolume,
    taking: AutomaticSnapshots,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:

    monkeypatch.setattr(volume, "take_snapshot", raising(oserror(errno.ENOSPC)))
    for _ in range(3):
        taking.before_call()
        clock.now += EVERY_S
    assert len(caplog.records) == 1 and "No space left" in caplog.text


def test_old_ones_go_and_others_stay(volume: InMemoryVolume, taking: AutomaticSnapshots, clock: Clock) -> None:
    volume.take_snapshot("mine")
    for number in range(6):
        touch(volume, b"%d" % number)
        taking.take_if_changed()
        clock.now += 600
    clock.now += 4 * HOUR
    taking.clean()
    assert names(volume) == ["mine", "@20261123T123000.000Z", "@20261123T130000.000Z"], "the first of each hour"
    clock.now += 7 * DAY
    taking.clean()
    assert names(volume) == ["mine"]


@pytest.mark.parametrize(
    "disk", [StatFs(4096, 1 << 30, 1 << 29, 0, 0), StatFs(4096, 100, 50, 0, 0), StatFs(4096, 1 << 30, 1 << 20, 0, 0)]
)
def test_the_oldest_go_where_they_take_too_much(
    volume: InMemoryVolume, taking: AutomaticSnapshots, clock: Clock, monkeypatch: pytest.MonkeyPatch, disk: StatFs
) -> None:
    kept_bytes = 11 << 30 if disk.blocks_free == 1 << 29 else 1 << 20
    monkeypatch.setattr(volume, "snapshot_bytes", lambda: kept_bytes)
    monkeypatch.setattr(volume, "statfs", lambda: disk)
    volume.take_snapshot("mine")
    for number in range(8):
        touch(volume, b"%d" % number)
        taking.take_if_changed()
        clock.now += EVERY_S
    before = names(volume)
    taking.clean()
    assert names(volume) == [before[0], *before[3:]], "a quarter of eight"
    for _ in range(20):
        taking.clean()
    assert names(volume) == ["mine"]
