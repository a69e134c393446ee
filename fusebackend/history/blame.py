"""`blame`: which call left each line of a file as it is.

The records of the history lead back from a path: each change of a file's bytes by a call has the bytes before it. The
file of today is compared with the version before the last change, that with the one before it, and so on (`lineage`);
renames are followed. A file that a call has put in the place of another one, by a rename or by making it anew, goes on
from that one: so do editors write.

A line has several candidates where the history can't tell: where the bytes between two calls are lost, or where calls
changed a file in turn (after its second record of a file, a call has no more of it: `recorder.py`). `others` says that
a change which the log does not have may have made the line: an older one, or one past the mount; the sizes and times
that calls have left show these.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import Final, NamedTuple

from fusebackend.base.paths import AgentPath
from fusebackend.history.history_file import HistoryFile
from fusebackend.history.records import Call, Record

MOST_VERSIONS: Final = 300
"""Versions that are compared. What is older counts as older than the log."""

AUTOJUNK_LINES: Final = 5000
"""Between files that differ in more lines than this, lines that are frequent do not count for the comparison
(`difflib`): it takes the square of them."""


class LineOrigin(NamedTuple):
    """Where a line comes from."""

    calls: frozenset[int]
    """One of these has made it. Empty: no call of the log."""
    others: bool
    """A change that the log does not have may have made it."""


class Step(NamedTuple):
    """A change of a file's bytes."""

    record: Record
    source: Record | None
    """The record with the bytes before it; None: there was no file."""


class Place(NamedTuple):
    """Where a file was."""

    prefix: AgentPath
    path: bytes
    below: int
    """Its records have lower numbers."""


def lineage(
    history: HistoryFile,
    prefix: AgentPath,
    path: bytes,
    below: int = 1 << 62,
    before: Callable[[bytes, int], Place | None] = lambda path, below: None,
) -> tuple[list[Step], bool]:
    """Return the changes of the file that is at a path, the newest first, and True if they begin with an empty file.

    Args:
        below: only records with a lower number than this one.
        before: returns where a file of a branch was when that was made, for its path there and the lowest number of a
            record that the branch has of it.
    """
    steps: list[Step] = []
    while len(steps) < MOST_VERSIONS:
        record = history.newest_at(prefix, path, below)
        if record is None:
            place = before(path, below)
            if place is None:
                break
            rest, is_new = lineage(history, *place)
            return [*steps, *rest], is_new
        below = record.number
        if record.kind == "content":
            steps.append(Step(record, record))
        elif record.kind == "create":
            if record.linked:
                break
            replaced = history.newest_at(prefix, path, below)
            if replaced is None or (replaced.kind, replaced.call) != ("remove", record.call):
                return [*steps, Step(record, None)], True
            steps.append(Step(record, replaced))
            below = replaced.number
        elif record.kind == "rename" and record.to_path == path:
            rest, is_new = lineage(history, prefix, record.path, below, before)
            if not _has_file(record) or not (is_new and all(each.record.call == record.call for each in rest)):
                return [*steps, *rest], is_new
            steps.append(Step(record, record))
        elif record.kind in ("rename", "exchange") and (found := _moved_from(record, path)) is not None:
            path = found
        else:
            break
    return steps, False


def _has_file(record: Record) -> bool:
    """Return True if a record replaced a regular file."""
    return record.before is not None and stat.S_ISREG(record.before.mode)


def _moved_from(record: Record, path: bytes) -> bytes | None:
    """Return where a path was before a rename or an exchange; None if it was moved away."""
    pairs = [(record.to_path, record.path)]
    if record.kind == "exchange":
        pairs.append((record.path, record.to_path))
    for to_path, from_path in pairs:
        if path == to_path or path.startswith(to_path + b"/"):
            return from_path + path[len(to_path) :]
    return None


def blame(
    steps: Sequence[Step],
    is_new: bool,
    now: Sequence[bytes],
    left: tuple[int, int],
    read: Callable[[Record], Sequence[bytes] | None],
    call: Callable[[int], Call | None],
) -> list[LineOrigin]:
    """Return the origin of each line of a file.

    Args:
        steps, is_new: of `lineage`.
        now: the lines of the file.
        left: its size and its modification time.
        read: returns the lines of the file before a record; None where they are lost.
        call: returns a call by its number.
    """
    lines: Sequence[bytes] = []  # of the last version that is known
    origins: list[LineOrigin] = []
    pending = LineOrigin(frozenset(), not is_new)  # of the changes since
    order = steps[::-1]
    for number, step in enumerate(order):
        before = [] if step.source is None else read(step.source)
        if before is not None:
            origins = _carried(lines, before, origins, pending)
            lines, pending = before, LineOrigin(frozenset(), False)
        after = order[number + 1].record if number + 1 < len(order) else None
        others = _others(step.record, after, left, call)
        pending = LineOrigin(
            pending.calls | {step.record.call} | _in_turn(order[: number + 1], call), pending.others or others
        )
    return _carried(lines, now, origins, pending)


def _carried(
    before: Sequence[bytes], after: Sequence[bytes], origins: Sequence[LineOrigin], changed: LineOrigin
) -> list[LineOrigin]:
    """Return the origins of the lines of the next version: those of the lines that both have, and `changed`."""
    found = [changed] * len(after)
    for start, to, count in _common(before, after):
        found[to : to + count] = origins[start : start + count]
    return found


def _common(before: Sequence[bytes], after: Sequence[bytes]) -> Iterator[tuple[int, int, int]]:
    """Yield the lines that two versions have in common: begin in the one and in the other, and number."""
    shorter = min(len(before), len(after))
    head = next((at for at in range(shorter) if before[at] != after[at]), shorter)
    tail = next((at for at in range(shorter - head) if before[-1 - at] != after[-1 - at]), shorter - head)
    yield 0, 0, head
    inner = before[head : len(before) - tail], after[head : len(after) - tail]
    matcher = SequenceMatcher(None, *inner, autojunk=max(map(len, inner)) > AUTOJUNK_LINES)
    for start, to, count in matcher.get_matching_blocks():
        yield head + start, head + to, count
    yield len(before) - tail, len(after) - tail, tail


def _in_turn(steps: Sequence[Step], call: Callable[[int], Call | None]) -> set[int]:
    """Return the calls that may have changed the file after the last of these steps, and have no more records of it."""
    numbers = [each.record.call for each in steps]
    found = set()
    for number in {each for each in numbers[:-1] if numbers.count(each) > 1}:
        made = call(number)
        if made is None or made.ended_ns is None or made.ended_ns > steps[-1].record.time_ns:
            found.add(number)
    return found


def _others(record: Record, after: Record | None, left: tuple[int, int], call: Callable[[int], Call | None]) -> bool:
    """Return True if the file was changed past the log between a change and the next one, or since."""
    if record.after is None or (after is not None and (after.before is None or after.call == record.call)):
        return False
    made = call(record.call)
    end_ns = None if made is None else made.ended_ns
    if end_ns is None or (after is not None and after.time_ns < end_ns):
        return False
    state = left if after is None or after.before is None else (after.before.size, after.before.mtime_ns)
    return (record.after.size, record.after.mtime_ns) != state
