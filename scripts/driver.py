"""The driver of the benchmarks: their options, their rounds, and their tables, printed and in BENCHMARKS.md.

    @benchmark("growth", "the cost of a file among 1,000 files, and among a million", rounds=1, peers="")
    def growth(run: Run) -> list[str]:
        ...
        return markdown(heads, rows)

`scripts/bench --growth` calls it, with the options that the decorator names. A number in a table is a median over the
rounds. In each round the sides take turns in an order that changes, and only one of them runs at a time: background
work of a server (an index here, an upload there) would slow the next.
"""

from __future__ import annotations

import argparse
import inspect
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from peers import PLAIN, Mount, Side, choose, ours
from serving import REPOSITORY
from work import DROP_CACHES

T = TypeVar("T")

BENCHMARKS = REPOSITORY / "BENCHMARKS.md"

Numbers = dict[str, float]
"""The results of one side in one round: number by measure."""

Medians = dict[str, dict[str, float]]
"""Measure → side → median of the rounds."""

Tables = Iterable[tuple[str, list[str]]]
"""The name of each table in BENCHMARKS.md, and its lines."""


class Run(argparse.Namespace):
    """The options of a run, and its place."""

    work: Path
    """A directory that is removed at the end."""
    load: float
    """The load average before the run."""
    rounds: int
    quick: str
    """What is done less, or ""."""
    only: tuple[str, ...]
    url: str
    peers: tuple[list[Side], list[str]]
    """The other mounts, and a line for each that can't be measured here."""
    directory: str | None
    write: bool

    @property
    def sides(self) -> list[Side]:
        """A plain directory, our mount, and the other mounts."""
        return [PLAIN, ours(self.url), *self.peers[0]]

    def conditions(self) -> str:
        """Describe the machine and the run."""
        words = [f"`{self.url.partition(':')[0]}:` on {machine(self.work)}" if "url" in self else machine(self.work)]
        if "rounds" in self:
            words.append(f"medians of {self.rounds} rounds")
        if self.quick:
            words.append(self.quick)
        return f"{'; '.join(words)}; load average {self.load:.1f} before."


# -- what a benchmark is -------------------------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    """Its errors are one line."""

    def error(self, message: str) -> Any:
        self.exit(2, f"{self.prog}: {message} (scripts/bench --help lists what there is)\n")


Option = tuple[str, dict[str, Any], bool]
"""Of one benchmark: its flag, the arguments for `add_argument`, and whether it narrows the work."""


def option(flag: str, *, narrows: bool = True, **settings: Any) -> Option:
    """Make an option. One that `narrows` the work does not go together with `--write`."""
    return flag, settings, narrows


def only(known: Iterable[str], *, narrows: bool = True) -> Option:
    return option("--only", narrows=narrows, type=words_of(known), default=tuple(known), help=f"of {', '.join(known)}")


@dataclass(frozen=True)
class Benchmark:
    name: str
    about: str
    """One line."""
    measure: Callable[[Run], list[str] | Tables]
    """Returns the lines of its table, or several tables."""
    missing: Callable[[], str | None]
    """Returns the reason why it can't run on this machine, or None."""
    options: Sequence[Option]
    table: str
    """The name of its table in BENCHMARKS.md."""

    def parser(self) -> Parser:
        parser = Parser(
            prog=f"scripts/bench --{self.name}",
            description=inspect.getdoc(self.measure),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        for flag, settings, _ in self.options:
            parser.add_argument(flag, **settings)
        return parser

    def parse(self, words: Sequence[str]) -> tuple[Run, list[str]]:
        """Parse the options; return the words that are none of this benchmark as well."""
        parser = self.parser()
        run, rest = parser.parse_known_args(words, Run(quick="", peers=([], [])))
        names = [flag for flag, _, narrows in self.options if narrows]
        if run.write and any(getattr(run, name[2:]) != parser.get_default(name[2:]) for name in names):
            parser.error(f"--write is for all the work: without {', '.join(names)}")
        return run, rest

    def run(self, run: Run) -> None:
        """Measure; print the tables, and write them to BENCHMARKS.md if that was asked for."""
        if (reason := self.missing()) is not None:
            raise SystemExit(reason)
        run.load = os.getloadavg()[0]
        run.work = Path(tempfile.mkdtemp(prefix="fusebackend-bench-", dir=run.directory)).resolve()
        try:
            for line in run.peers[1]:
                print(line, file=sys.stderr)
            found = self.measure(run)
            for table, lines in [(self.table, found)] if isinstance(found, list) else found:
                report = "\n".join([run.conditions(), *run.peers[1], "", *lines])
                print(report)
                if run.write:
                    write_between(table, report)
        finally:
            shutil.rmtree(run.work, ignore_errors=True)


REGISTERED: dict[str, Benchmark] = {}
"""By name, in the order of the list that `--help` prints."""


def benchmark(
    name: str,
    about: str,
    *options: Option,
    missing: Callable[[], str | None] = lambda: None,
    rounds: int | None = None,
    peers: str | None = None,
    quick: str = "",
    table: str = "",
) -> Callable[[Callable[[Run], Any]], Callable[[Run], Any]]:
    """Register a function as the benchmark `--name`.

    Args:
        rounds: the default of --rounds.
        peers: the default of --peers; None where there is nothing to compare with.
        quick: what --quick does less.
        table: its name in BENCHMARKS.md, where that is another one.
    """
    found = [*options]
    if rounds is not None:
        found.append(option("--rounds", narrows=False, type=positive, default=rounds, help=f"(default: {rounds})"))
    if peers is not None:
        words = f"other mounts, with commas, or 'all', or '' (default: '{peers}')"
        found.append(option("--peers", narrows=False, type=choose, default=peers, help=words))
        words = "sqlite, memory, dir, or a URL (default: sqlite)"
        found.append(option("--url", narrows=False, default="sqlite", help=words))
    if quick:
        found.append(option("--quick", action="store_const", const=quick, default="", help=quick))
    found.append(option("--directory", narrows=False, help="where to work (default: the directory of temporary files)"))
    found.append(option("--write", narrows=False, action="store_true", help="put the table into BENCHMARKS.md"))

    def register(measure: Callable[[Run], Any]) -> Callable[[Run], Any]:
        REGISTERED[name] = Benchmark(name, about, measure, missing, found, table or name)
        return measure

    return register


def positive(word: str) -> int:
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not '{word}'")
    return int(word)


def numbers(words: str) -> tuple[int, ...]:
    """Parse numbers above 0 with commas."""
    return tuple(sorted({positive(word) for word in words.split(",")}))


def words_of(known: Iterable[str]) -> Callable[[str], tuple[str, ...]]:
    """Return a parser of words with commas: each is one of `known`, or a part of some of them."""

    def parse(words: str | tuple[str, ...]) -> tuple[str, ...]:
        found = set()
        for word in words.split(",") if isinstance(words, str) else words:
            matches = [word] if word in known else [name for name in known if word in name]
            if not word or not matches:
                raise argparse.ArgumentTypeError(f"there is no '{word}'; there are {', '.join(known)}")
            found.update(matches)
        return tuple(name for name in known if name in found)

    return parse


# -- rounds --------------------------------------------------------------------------------------------------------


def order(sides: Sequence[T], number: int) -> list[T]:
    """Return the sides in the order of a round: every other one goes backwards, and the first one changes."""
    first = number // 2 % len(sides)
    turned = [*sides[first:], *sides[:first]]
    return turned[::-1] if number % 2 else turned


def in_rounds(count: int, one: Callable[[int], Iterable[tuple[str, str, float]]], *, warm_up: int = 0) -> Medians:
    """Run `count` rounds, after those to warm up. Each yields measure, side and number."""
    found: dict[str, dict[str, list[float]]] = {}
    for number in range(-warm_up, count):
        for measure, side, value in one(number):
            if number >= 0:
                found.setdefault(measure, {}).setdefault(side, []).append(value)
        print(f"round {number + 1} of {count} done", file=sys.stderr)
    return {
        measure: {side: statistics.median(values) for side, values in sides.items()} for measure, sides in found.items()
    }


def compare(run: Run, sides: Sequence[Side], measure: Callable[[Mount], Numbers]) -> Medians:
    """In each round, mount every side alone, with an empty file system, and measure it."""

    def one(number: int) -> Iterator[tuple[str, str, float]]:
        for side in order(sides, number):
            place = run.work / side.name.replace(" ", "-")
            os.sync()  # so that the dirty pages of the side before don't count here
            with side.mounted(place) as mount:
                yield from [(name, side.name, value) for name, value in measure(mount).items()]
            shutil.rmtree(place)
            print(f"  {side.name} done", file=sys.stderr)

    return in_rounds(run.rounds, one)


# -- tables --------------------------------------------------------------------------------------------------------


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Make the lines of a table with names in the first column and numbers in the others."""
    return [_line(heads), "|---|" + "---:|" * (len(heads) - 1), *map(_line, rows)]


def _line(cells: Sequence[str]) -> str:
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"


def cells(line: str) -> list[str]:
    """Parse a line that `markdown` made, without the stars of bold cells."""
    return [cell.strip().strip("*") for cell in line.strip().strip("|").split("|")]


def machine(work: Path) -> str:
    """Describe the machine, and the file system that `work` is on."""
    cpu = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    find = ["findmnt", "--noheadings", "--output", "FSTYPE", "--target", str(work)]
    disk = subprocess.run(find, capture_output=True, text=True, check=True).stdout.strip()
    return (
        f"{platform.system()} {platform.release()}, {cpu[1] if cpu else platform.machine()}, {os.cpu_count()} cores, "
        f"{memory_gib:.0f} GiB, {disk}, Python {platform.python_version()}"
        f"{'' if os.access(DROP_CACHES, os.W_OK) else '; not root: the cold measures are warm'}"
    )


def read_between(table: str) -> str:
    """Return the text between a table's markers in BENCHMARKS.md."""
    return _parts(table)[1]


def write_between(table: str, report: str) -> None:
    """Replace the text between a table's markers in BENCHMARKS.md."""
    before, _, after = _parts(table)
    BENCHMARKS.write_text(f"{before}{report}\n{after}")


def _parts(table: str) -> tuple[str, str, str]:
    """Split BENCHMARKS.md: up to and with the opening marker, between the two, and from the closing one on."""
    opening, closing = f"<!-- {table} -->\n", f"<!-- end of {table} -->"
    before, start, rest = BENCHMARKS.read_text().partition(opening)
    found, end, after = rest.partition(closing)
    if not start or not end:
        raise SystemExit(f"{BENCHMARKS} has no markers of '{table}'")
    return before + start, found, end + after
