"""`overlapping`: which records of others stand in the way of those that an undo takes back.

For each record of a call, these do: later ones at its paths; where it has made, moved or removed a name, later ones of
what is below; moves of a directory above, since when the path leads to another file, or to none.

Each directory is gone through once, however many names are below it: to compare each record with each would take the
square of a path's depth.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple


class Ours(NamedTuple):
    """A record that is taken back."""

    number: int
    call: int
    route: bytes
    path: bytes
    to_path: bytes | None
    is_whole: bool
    """All that is below its paths is changed with them."""


class Theirs(NamedTuple):
    """A record of another call."""

    number: int
    route: bytes
    path: bytes
    to_path: bytes | None
    is_move: bool
    """Of a directory."""
    oldest: int
    """Of an undo, the first call that it took back; 0 for others. An undo of only this call, or of later ones, has
    brought its state back, and is in no way."""


def overlapping(
    ours: Collection[Ours], theirs: Collection[Theirs], pairs: Iterable[tuple[int, int]]
) -> dict[int, tuple[int, int]]:
    """Return the numbers of the first and the last record that are in the way of each, where there are any. Of what is
    below, and of moves above, only the last counts.

    Args:
        pairs: further ones, by their numbers: of ours, of theirs.
    """
    at = defaultdict[tuple[bytes, bytes], list[Ours]](list)
    for each in ours:
        for path in filter(None, (each.path, each.to_path)):
            at[each.route, path].append(each)
    numbered = {other.number: other for other in theirs}
    found = defaultdict[int, list[Theirs]](list)
    for number, further in pairs:
        found[number].append(numbered[further])
    moves = defaultdict[tuple[bytes, bytes], list[Theirs]](list)
    passed: set[tuple[bytes, bytes, int]] = set()
    for other in sorted(theirs, reverse=True):
        for path in filter(None, (other.path, other.to_path)):
            for each in at.get((other.route, path), ()):
                found[each.number].append(other)
            if other.is_move:
                moves[other.route, path].append(other)
            for directory in _above(path):
                place = other.route, directory, other.oldest
                if place in passed:  # a later record of the same kind is below all of these
                    break
                passed.add(place)
                for each in at.get(place[:2], ()):
                    found[each.number] += [other] if each.is_whole else []
    _add_moves(at, moves, found)
    standing = {
        each.number: [other.number for other in found[each.number]
                      if other.number > each.number and other.oldest < each.call]
        for each in ours
    }  # fmt: skip
    return {number: (min(numbers), max(numbers)) for number, numbers in standing.items() if numbers}


def _add_moves(
    at: dict[tuple[bytes, bytes], list[Ours]],
    moves: dict[tuple[bytes, bytes], list[Theirs]],
    found: dict[int, list[Theirs]],
) -> None:
    """Add the last moves of directories above."""
    above: dict[tuple[bytes, bytes], tuple[Theirs, ...]] = {}  # of a directory, and of those above it
    for (route, path), records in at.items() if moves else ():
        way = []
        known: tuple[Theirs, ...] = ()
        for directory in _above(path):
            if (route, directory) in above:
                known = above[route, directory]
                break
            way.append((route, directory))
        for place in reversed(way):
            if place in moves:
                known = tuple({other.oldest: other for other in sorted([*known, *moves[place]])}.values())
            above[place] = known
        for each in records:
            found[each.number] += known


def _above(path: bytes) -> Iterator[bytes]:
    """Yield the directories above a path, from below, without the root."""
    while path := path.rpartition(b"/")[0]:
        yield path
