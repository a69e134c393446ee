"""`overlapping`: which records of others stand in the way of those that an undo takes back. `OVERLAPS` finds them in
the history.

For each record of a call, these do: later ones at its paths; where it has made, moved or removed a name, later ones of
what is below; moves of a directory above, since when the path leads to another file, or to none.

Each directory is gone through once, however many names are below it: to compare each record with each would take the
square of a path's depth.
"""

from __future__ import annotations

import itertools
import stat
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from fusebackend.base.relative_paths import above

AMONG: Final = "(SELECT value FROM json_each(?1))"
"""The first value of a statement, a list of numbers as JSON: there may be more of them than SQLite takes values."""

_IS_DIR: Final = f"& {stat.S_IFMT(0xFFFF)} = {stat.S_IFDIR}"

IS_MOVE: Final = f"(kind = 'exchange' OR kind = 'rename' AND stamp_mode {_IS_DIR})"
"""A record may have moved a directory."""

_MINE: Final = (
    "SELECT number, call, route, path, to_path, kind, node, identity, "
    f"CASE WHEN mode {_IS_DIR} THEN 1 ELSE nlink END AS nlink, "
    "kind IN ('create', 'remove', 'rename', 'exchange') AS is_whole "
    f"FROM records WHERE call IN {AMONG}"
)

_SPANS: Final = " UNION ALL ".join(
    f"SELECT CAST({path} || '/' AS BLOB) AS low, CAST({path} || '0' AS BLOB) AS high FROM mine "
    f"WHERE is_whole AND {path} NOTNULL"
    for path in ("path", "to_path")
)
_TOPS: Final = (
    "SELECT low, high FROM (SELECT low, high, max(high) OVER "
    f"(ORDER BY low ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before FROM ({_SPANS})) "
    "WHERE before ISNULL OR before <= low"
)
"""What is below the paths of `mine`. Spans lie in each other or apart: one that begins before the end of another is in
it."""

_BOTH: Final = "m.kind IN ('content', 'attributes') AND o.kind IN ('content', 'attributes') AND +o.route = m.route"
_SAME: Final = f"o.node = m.node AND m.identity IS NULL AND {_BOTH}"
_PAIR: Final = "SELECT m.number AS mine, o.number AS other FROM mine m CROSS JOIN"
_PAIRS: Final = (
    f"{_PAIR} events o INDEXED BY records_of_links WHERE o.nlink > 1 AND o.number > m.number AND {_SAME} UNION "
    f"{_PAIR} records o WHERE m.nlink > 1 AND +o.number > m.number AND {_SAME} UNION "
    f"{_PAIR} events o INDEXED BY records_of_files WHERE o.identity = m.identity AND o.number > m.number"
    f" AND (m.nlink > 1 OR o.nlink > 1) AND {_BOTH}"
)
"""Changes of the same file by another of its names. Its node says so, or its identity where nodes don't last."""

_OTHERS: Final = " UNION ".join(
    f"SELECT o.number FROM {mine} m CROSS JOIN events o INDEXED BY {index} "
    f"WHERE {condition.format(f'o.{path}')} AND o.number > (SELECT min(number) FROM mine)"
    for path, index in (("path", "records_of_path"), ("to_path", "records_to_path"))
    for mine, condition in (
        ("mine", "{} = m.path"), ("mine", "{} = m.to_path"), ("tops", "{0} > m.low AND {0} < m.high"),
    )
)  # fmt: skip
"""For each record of the calls, an index finds the others. Left to itself, SQLite makes an index of prefixes."""


OVERLAPS: Final = (
    f"WITH mine AS MATERIALIZED ({_MINE}), tops AS MATERIALIZED ({_TOPS}), "
    f"pairs AS MATERIALIZED ({_PAIRS}), others AS MATERIALIZED ({_OTHERS} UNION SELECT other FROM pairs UNION "
    f"SELECT number FROM records WHERE number > (SELECT min(number) FROM mine) AND {IS_MOVE})"
)
"""The tables `mine`, the records of the calls of `AMONG`; `others`, those that may be in their way; and `pairs`, one of
each, by numbers."""


class Touch(NamedTuple):
    """A record, by what it touches."""

    number: int
    call: int
    """Of a record that is taken back: its call. Of another's: the first call that it has taken back, if it is an undo,
    else 0. An undo of only this call, or of later ones, has brought its state back, and is in no way."""
    route: bytes
    path: bytes
    to_path: bytes | None
    is_whole: bool
    """All below its paths is changed with them. Of another's: a directory was moved."""


def overlapping(
    ours: Collection[Touch], theirs: Collection[Touch], pairs: Iterable[tuple[int, int]]
) -> dict[int, tuple[int, int]]:
    """Return the numbers of the first and the last record that are in the way of each, where there are any. Of what is
    below, and of moves above, only the last counts.

    Args:
        pairs: further ones, by their numbers: of ours, and of those that may be in its way, if they are among theirs.
    """
    at = defaultdict[tuple[bytes, bytes], list[Touch]](list)
    for each in ours:
        for path in filter(None, (each.path, each.to_path)):
            at[each.route, path].append(each)
    numbered = {other.number: other for other in theirs}
    found = defaultdict[int, list[Touch]](list)
    for number, further in pairs:
        if further in numbered:
            found[number].append(numbered[further])
    moves = defaultdict[tuple[bytes, bytes], list[Touch]](list)
    passed: set[tuple[bytes, bytes, int]] = set()
    for other in sorted(theirs, reverse=True):
        for path in filter(None, (other.path, other.to_path)):
            for each in at.get((other.route, path), ()):
                found[each.number].append(other)
            if other.is_whole:
                moves[other.route, path].append(other)
            for directory in above(path):
                place = other.route, directory, other.call
                if place in passed:  # a later record of the same kind is below all of these
                    break
                passed.add(place)
                for each in at.get(place[:2], ()):
                    found[each.number] += [other] if each.is_whole else []
    _add_moves(at, moves, found)
    standing = {
        each.number: [other.number for other in found[each.number]
                      if other.number > each.number and other.call < each.call]
        for each in ours
    }  # fmt: skip
    return {number: (min(numbers), max(numbers)) for number, numbers in standing.items() if numbers}


def _add_moves(
    at: Mapping[tuple[bytes, bytes], Collection[Touch]],
    moves: Mapping[tuple[bytes, bytes], Collection[Touch]],
    found: dict[int, list[Touch]],
) -> None:
    """Add the last moves of directories above."""
    known: dict[tuple[bytes, bytes], tuple[Touch, ...]] = {}  # of a directory, and of those above it
    for (route, path), records in at.items() if moves else ():
        way = list(itertools.takewhile(lambda place: place not in known, ((route, each) for each in above(path))))
        last = known.get((route, next(above(way[-1][1] if way else path), b"")), ())
        for place in reversed(way):
            if place in moves:
                last = tuple({other.call: other for other in sorted([*last, *moves[place]])}.values())
            known[place] = last
        for each in records:
            found[each.number] += last
