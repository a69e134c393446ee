"""The rounds of a comparison: in each, every side is mounted alone, does all the work, and is unmounted.

Only one runs at a time, for background work of a server (an index, an upload) would slow the next; the order changes
from round to round. A ratio is that of the medians over the rounds.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from peers import Mount, Side

Numbers = dict[str, float]
"""The results of one side in one round: number by measure."""

Medians = dict[str, dict[str, float]]
"""Measure → side → median of the rounds."""


def order(sides: Sequence[Side], number: int) -> list[Side]:
    """Return the sides in the order of a round: the first one changes, and every other round goes backwards."""
    first = number % len(sides)
    turned = [*sides[first:], *sides[:first]]
    return turned[::-1] if number % 2 else turned


def take_turns(sides: Sequence[Side], rounds: int, work: Path, run: Callable[[Mount], Numbers]) -> Medians:
    """Run `rounds` rounds; return the medians, in the order of the measures."""
    found: dict[str, dict[str, list[float]]] = {}
    for number in range(rounds):
        for side in order(sides, number):
            place = work / side.name.replace(" ", "-")
            os.sync()  # so that the dirty pages of the side before don't count here
            with side.mounted(place) as mount:
                for name, value in run(mount).items():
                    found.setdefault(name, {}).setdefault(side.name, []).append(value)
            shutil.rmtree(place)
            print(f"round {number + 1} of {rounds}: {side.name} done", file=sys.stderr)
    return {
        name: {side.name: statistics.median(values[side.name]) for side in sides if side.name in values}
        for name, values in found.items()
    }


def add_arguments(parser: argparse.ArgumentParser, rounds: int, peers: str, quick: str) -> None:
    """Add the options of every comparison."""
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--peers", default=peers, help=f"with commas, or 'all', or '' (default: '{peers}')")
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--url", default="sqlite", help="sqlite, memory, dir, or a URL (default: sqlite)")
    parser.add_argument("--write", action="store_true", help="write the table to BENCHMARKS.md")
    parser.add_argument("--directory", help="where to work (default: the system's temporary directory)")


@contextmanager
def workplace(directory: str | None) -> Iterator[Path]:
    """Yield a directory to work in; remove it at the end."""
    work = Path(tempfile.mkdtemp(prefix="fusebackend-bench-", dir=directory))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)
