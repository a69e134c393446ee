"""REF, the name of a state of the mount: a snapshot, a branch, a time, a call, or `main` for the present state.

A time names the newest snapshot that was taken at it or before:

    10m  2h  3d  1w         so long ago (s, m, h, d, w)
    14:05  14:05:30         today at that time; yesterday, if it is yet to come
    yesterday  2026-11-22   the end of that day; `today` is the newest snapshot
    2026-11-22T14:05        that moment, in the local zone; also with a space, seconds, `Z` or an offset such as +02:00

A call, `c42`, is the state before it: what was changed since it began is taken back, by the records of the history. A
snapshot's name is looked for first. `now` is `main`. `A..B` is a pair; a side that is left out is `main`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta, tzinfo
from operator import itemgetter
from typing import Final, NamedTuple

from fusebackend.base.errors import UserError
from fusebackend.base.stamps import EPOCH, nanoseconds
from fusebackend.history.records import is_call_name

MAIN: Final = "main"
_PRESENT = (MAIN, "now")
LIST_HINT: Final = "fusebackend snapshot list --all"
NAMES_IN_ERROR: Final = 10
"""An error lists at most so many names, the newest ones."""

_AGO = re.compile(r"(\d{1,9}) ?([smhdw])", re.ASCII)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_CLOCK = re.compile(r"\d{1,2}:\d{2}(?::\d{2})?", re.ASCII)
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


class RefError(UserError, ValueError):
    """A REF that names nothing; its text is one line for the user."""


class Ref(NamedTuple):
    """A state of the mount.

    Attributes:
        name: the snapshot's, the branch's or the call's, or `main`.
        time_ns: when it was taken, made or begun; None for `main`.
        is_branch: it is a branch.
        is_call: it is the state before a call.
        is_recorded: it is the state at a time, from the records of the history. `Refs` names none.
    """

    name: str
    time_ns: int | None
    is_branch: bool = False
    is_call: bool = False
    is_recorded: bool = False

    @property
    def is_main(self) -> bool:
        return self.time_ns is None


MAIN_REF: Final = Ref(MAIN, None)


class Refs:
    """The states that a mount has.

    Args:
        snapshots: all of them, when they were taken, by their names.
        branches: all of them, when they were made, by their names.
        began_ns: returns when a call began, by its name. Raises `RefError` if there is no such call.
        now: the time of the question, with its zone; None for the present.
        zone: the zone of times without one; None for the local zone.
    """

    def __init__(
        self,
        snapshots: Mapping[str, int],
        branches: Mapping[str, int] | None = None,
        *,
        began_ns: Callable[[str], int] | None = None,
        now: datetime | None = None,
        zone: tzinfo | None = None,
    ) -> None:
        self._snapshots = sorted(snapshots.items(), key=itemgetter(1))
        self._by_name = {name: Ref(name, time_ns, is_branch=True) for name, time_ns in (branches or {}).items()}
        self._by_name |= {name: Ref(name, time_ns) for name, time_ns in self._snapshots}
        self._now = (datetime.now().astimezone() if now is None else now).astimezone(zone)
        self._zone = zone
        self._began_ns = began_ns

    def is_ref(self, text: str) -> bool:
        """Return True for a name that is there, for a time, a call, and for a pair of these; not for the path `..`."""
        sides = text.split("..", 1)
        return any(sides) and all(not each or self._is_one(each) for each in sides)

    def _is_one(self, text: str) -> bool:
        return text in _PRESENT or text in self._by_name or is_call_name(text) or self.moment(text) is not None

    def is_present(self, text: str) -> bool:
        """Return True for a name of the present state."""
        return text in _PRESENT and text not in self._by_name

    def newest(self) -> Ref:
        """Return the newest snapshot. Raises `RefError` if there is none."""
        if not self._snapshots:
            raise RefError("there is no snapshot to compare with (fusebackend snapshot create)")
        return Ref(*self._snapshots[-1])

    def one(self, text: str) -> Ref:
        """Return the state that a REF names. Raises `RefError`."""
        if text in self._by_name:
            return self._by_name[text]
        if self.is_present(text):
            return MAIN_REF
        if is_call_name(text) and self._began_ns is not None:
            return Ref(text, self._began_ns(text), is_call=True)
        moment = self.moment(text)
        if moment is None:
            raise RefError(f"no snapshot '{text}'; {self._those()}")
        limit_ns = nanoseconds(moment)
        earlier = [(name, time_ns) for name, time_ns in self._snapshots if time_ns <= limit_ns]
        if not earlier:
            raise RefError(f"no snapshot is as old as '{text}'; {self._oldest()}")
        return Ref(*earlier[-1])

    def has_call(self, text: str) -> bool:
        """Return True for a REF, or a pair of them, of which one is the state before a call."""
        sides = [text] if text in self._by_name else text.split("..", 1)
        return any(is_call_name(each) and each not in self._by_name for each in sides)

    def pair(self, text: str) -> tuple[Ref, Ref]:
        """Return both states of `A..B`; of a REF alone, that state and `main`. Raises `RefError`."""
        if text in self._by_name or ".." not in text or text == "..":
            return self.one(text), MAIN_REF
        before, _, after = text.partition("..")
        return self.one(before or MAIN), self.one(after or MAIN)

    def moment(self, text: str) -> datetime | None:
        """Return the time that a text names, or None if it names none."""
        if found := _AGO.fullmatch(text.lower()):
            try:
                return self._now - timedelta(**{_UNITS[found[2]]: int(found[1])})
            except OverflowError:
                return EPOCH
        if text.lower() in ("yesterday", "today"):
            return self._end_of((self._now - timedelta(days=int(text.lower() == "yesterday"))).date())
        try:
            if _CLOCK.fullmatch(text):
                clock, today = time.fromisoformat(text.zfill(len(text) + (text[1] == ":"))), self._now.date()
                moment = self._at(today, clock)
                return moment if moment <= self._now else self._at(today - timedelta(days=1), clock)
            if _DAY.fullmatch(text):
                return self._end_of(date.fromisoformat(text))
            if _DAY.fullmatch(text[:10]) and text[10:11] in ("T", " "):
                moment = datetime.fromisoformat(text)
                return moment if moment.tzinfo is not None else self._local(moment)
        except (ValueError, OverflowError):
            return None
        return None

    def _end_of(self, day: date) -> datetime:
        return self._at(day + timedelta(days=1), time()) - timedelta(microseconds=1)

    def _at(self, day: date, clock: time) -> datetime:
        return self._local(datetime.combine(day, clock))

    def _local(self, moment: datetime) -> datetime:
        """Return a moment of the calendar with its offset, which depends on the moment: summer time."""
        return moment.astimezone() if self._zone is None else moment.replace(tzinfo=self._zone)

    def _those(self) -> str:
        """The names that are there, for an error."""
        if not self._snapshots:
            return "there are none (fusebackend snapshot create)"
        names = [name for name, _ in self._snapshots[-NAMES_IN_ERROR:]]
        more = "…, " if len(self._snapshots) > NAMES_IN_ERROR else ""
        return f"there are: {more}{', '.join(names)} ({LIST_HINT})"

    def _oldest(self) -> str:
        if not self._snapshots:
            return self._those()
        name, taken_ns = self._snapshots[0]
        moment = datetime.fromtimestamp(taken_ns / 10**9, self._zone).strftime("%Y-%m-%d %H:%M:%S")
        return f"the oldest is {name} of {moment} ({LIST_HINT})"


def begin_ns(text: str) -> int:
    """Return the time since which something is asked for, in ns since 1970: as a REF names it, but of a day its begin.

    Raises:
        RefError: the text names no time.
    """
    days = {"today": 0, "yesterday": 1}.get(text.lower())
    if days is not None:
        text = (datetime.now().date() - timedelta(days=days)).isoformat()
    return time_ns(f"{text}T00:00" if _DAY.fullmatch(text) else text)


def time_ns(text: str) -> int:
    """Return the time that a text names, in ns since 1970. Raises `RefError`."""
    moment = Refs({}).moment(text)
    if moment is None:
        raise RefError(f"'{text}' is no time; there are: 10m, 2h, 3d, 14:05, yesterday, 2026-11-22, 2026-11-22T14:05")
    return nanoseconds(moment)
