"""`refs.py`: the states that a REF names."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from for_each import for_each

from fusebackend.trees.refs import MAIN_REF, Ref, RefError, Refs, begin_ns, time_ns

BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 11, 23, 12, 0, 0, tzinfo=BERLIN)


def ns(moment: datetime) -> int:
    return round(moment.timestamp()) * 10**9


SNAPSHOTS = {
    "noon": ns(NOW),
    "half": ns(NOW - timedelta(minutes=30)),
    "night": ns(datetime(2026, 11, 22, 23, 30, tzinfo=BERLIN)),
    "sunday": ns(datetime(2026, 11, 22, 9, 0, tzinfo=BERLIN)),
    "summer": ns(datetime(2026, 7, 1, 9, 0, tzinfo=BERLIN)),
}
REFS = Refs(SNAPSHOTS, now=NOW, zone=BERLIN)


@for_each(
    ("text", "name"),
    [
        ("sunday", "sunday"),
        ("0s", "noon"),
        ("1s", "half"),
        ("30m", "half"),
        ("31m", "night"),
        ("24h", "sunday"),
        ("2d", "summer"),
        ("12:00", "noon"),
        ("11:59:59", "half"),
        ("9:00", "night"),
        ("14:05", "sunday"),
        ("23:30", "night"),
        ("yesterday", "night"),
        ("2026-11-22", "night"),
        ("2026-11-21", "summer"),
        ("2026-11-22T09:00", "sunday"),
        ("2026-11-22 08:00:00Z", "sunday"),
        ("2026-11-22T07:59:59+00:00", "summer"),
        ("2026-07-01T09:00", "summer"),
        ("2026-11-23", "noon"),
        ("today", "noon"),
        ("31 m", "night"),
    ],
)
def test_a_name_or_the_newest_at_or_before_a_time(text: str, name: str) -> None:
    assert REFS.is_ref(text)
    assert REFS.one(text).name == name


def test_a_pair() -> None:
    assert REFS.pair("sunday..noon") == (REFS.one("sunday"), REFS.one("noon"))
    assert REFS.pair("sunday..") == REFS.pair("sunday") == (REFS.one("sunday"), MAIN_REF)
    assert REFS.pair("..sunday") == (MAIN_REF, REFS.one("sunday"))
    assert REFS.pair("main..1h")[0].is_main
    assert REFS.one("now") == MAIN_REF
    assert REFS.newest() == Ref("noon", ns(NOW))


@for_each("text", ["..", "../x", "nothing", "a..b", "10", "10y", "25:00", "2026-13-01", "2026-11-22x", ""])
def test_other_words_are_no_refs(text: str) -> None:
    assert not REFS.is_ref(text) or text == ""
    with pytest.raises(RefError):
        Refs({}, now=NOW).pair(text or "1h")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("x", "no snapshot 'x'; there are: summer, sunday, night, half, noon (fusebackend snapshot list --all)"),
        ("2026-06-01", "no snapshot is as old as '2026-06-01'; the oldest is summer of 2026-07-01 07:00:00 "
         "(fusebackend snapshot list --all)"),
        ("999999999w", "no snapshot is as old as '999999999w'; the oldest is summer of 2026-07-01 07:00:00 "
         "(fusebackend snapshot list --all)"),
    ],
)  # fmt: skip
def test_errors_say_what_there_is(text: str, error: str) -> None:
    with pytest.raises(RefError) as raised:
        Refs(SNAPSHOTS, now=NOW, zone=UTC).one(text)
    assert str(raised.value) == error


def test_without_snapshots() -> None:
    with pytest.raises(RefError, match=r"^no snapshot 'x'; there are none \(fusebackend snapshot create\)$"):
        Refs({}).one("x")
    with pytest.raises(RefError, match=r"^no snapshot is as old as '1h'; there are none"):
        Refs({}).one("1h")
    with pytest.raises(RefError, match="no snapshot to compare with"):
        Refs({}).newest()


def test_an_error_lists_the_newest_names_only() -> None:
    many = {f"s{number}": number for number in range(30)}
    with pytest.raises(RefError, match=r"there are: …, s20, s21, .*, s29 \("):
        Refs(many).one("x")


def test_the_hour_that_comes_twice() -> None:
    """02:30 of the day on which summer time ends is the first of the two, as in Python's calendar."""
    first = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    refs = Refs({"first": ns(first)}, now=NOW, zone=BERLIN)
    assert refs.one("2026-10-25T02:30").name == "first"


def test_what_is_asked_for_since_a_day_begins_with_it() -> None:
    def midnight_ns() -> int:
        return round(datetime.combine(datetime.now().date(), time()).timestamp()) * 10**9

    before, today = midnight_ns(), begin_ns("today")
    assert today in (before, midnight_ns()), "the day may begin meanwhile"
    assert begin_ns("yesterday") < begin_ns("today")
    assert begin_ns("2026-11-22") == round(datetime(2026, 11, 22).timestamp()) * 10**9
    assert begin_ns("2026-11-22T14:05") == time_ns("2026-11-22T14:05")
    with pytest.raises(RefError, match="'noon' is no time"):
        begin_ns("noon")
