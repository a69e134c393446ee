"""The benchmark: fifteen measures on a plain directory, on our mount and on other mounts, as ratios.

    scripts/bench [--peers all|bindfs,…] [--rounds N] [--only WORDS] [--quick] [--url URL] [--history] [--view]
        [--write]

In each round every one is mounted alone, with an empty file system, and does all the measures; a ratio is that of the
medians over the rounds. `--write` replaces the tables in BENCHMARKS.md and draws docs/benchmark.svg. Never part of a
test: numbers are not promises. `measures.py` and BENCHMARKS.md describe the measures.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from pathlib import Path

import plot
from measures import PREPARES, Measures, Scale, make_source_tree, timed
from peers import COMPARABLE, PLAIN, VIEWED, Mount, Side, choose, ours, viewed
from report import conditions, markdown, write_between
from rounds import Medians, Numbers, add_arguments, take_turns, workplace

OURS = "fusebackend"
POLLING = "idle=poll"
"""Our mount with this option, in a column of its own. It keeps the machine's processors awake, so it is no default."""

UNRECORDED = "history=off,snapshots=manual"
"""Our mount without what undo needs: with `--history`, to see what that costs."""

HISTORY_TARGET = 1.15
VIEW_TARGET = 1.03

COSTS = {
    "the mount answers after (s)": lambda mount: mount.server.answered_s,
    "memory at its highest (MiB)": lambda mount: mount.server.peak_mib(),
    "processor time of the servers (s)": lambda mount: mount.server.processor_s(),
}
"""Numbers of the servers in a round, besides the measures."""

FAR_BEHIND = 1.2
"""A ratio to the best of the others above this is printed bold."""


def import_seconds() -> float:
    """Return the time of `import fusebackend` without the start of Python, median of five."""

    def run(code: str) -> float:
        command = [sys.executable, "-c", code]
        return statistics.median(timed(lambda: subprocess.run(command, check=True)) for _ in range(5))

    return run("import fusebackend") - run("pass")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, rounds=3, peers="", quick="a tenth of the work")
    parser.add_argument("--only", default="", help="only measures whose name contains one of these words, with commas")
    parser.add_argument("--history", action="store_true", help="our mount without history and snapshots as well")
    parser.add_argument("--view", action="store_true", help=f"our mount through {VIEWED} as well")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds must be 1 or more")
    if arguments.write and (arguments.only or arguments.quick or arguments.history or arguments.view):
        parser.error("--write is for all the work: without --only, --quick, --history and --view")
    try:
        sides, without = choose(arguments.peers)
    except ValueError as error:
        parser.error(str(error))
    for line in without:
        print(line, file=sys.stderr)
    with workplace(arguments.directory) as work:
        options = [POLLING, UNRECORDED] if arguments.history else [POLLING]
        mine = [ours(arguments.url), *(ours(arguments.url, option) for option in options)]
        mine += [viewed(arguments.url)] if arguments.view else []
        medians = measure(arguments, [PLAIN, *mine, *sides], work)
        report = "\n".join([conditions(arguments.url, arguments, work), *without, "", *tables(medians), "", footnote()])
    print(report)
    if arguments.write:
        write_between("table", report)
        plot.main()


def measure(arguments: argparse.Namespace, sides: list[Side], work: Path) -> Medians:
    scale = Scale(arguments.quick)
    archive = work / "source.tar"
    make_source_tree(archive, scale.tree_files)
    measures = Measures(scale, archive).all()
    words = [word for word in arguments.only.split(",") if word]
    shown = [name for name in measures if not words or any(word in name for word in words)]
    if not shown:
        raise SystemExit(f"--only: no measure has {' or '.join(words)} in its name; there are {', '.join(measures)}")
    needed = {*shown, *(PREPARES[name] for name in shown if name in PREPARES)}

    def run(mount: Mount) -> Numbers:
        seconds = {name: one(mount.root) for name, one in measures.items() if name in needed}
        costs = {name: cost(mount) for name, cost in COSTS.items()}
        return {name: seconds[name] for name in shown} | costs

    return take_turns(sides, arguments.rounds, work, run)


def tables(medians: Medians) -> list[str]:
    """Make the table of milliseconds and ratios of the measures, and the table of the servers' costs below it."""
    measures = {name: found for name, found in medians.items() if name not in COSTS}
    mounts = [name for name in next(iter(measures.values())) if name != PLAIN.name]
    rivals = [name for name in mounts if name in COMPARABLE]
    heads = ["measure", f"{PLAIN.name} (ms)", f"{OURS} (ms)", *(f"{name} ÷ plain" for name in mounts)]
    rows = []
    for name, found in measures.items():
        ratios = [f"{found[mount] / found[PLAIN.name]:.1f}" for mount in mounts]
        rows.append([name, f"{found[PLAIN.name] * 1000:.1f}", f"{found[OURS] * 1000:.1f}", *ratios])
    means = [f"**{mean(measures, mount, PLAIN.name):.2f}**" for mount in mounts]
    rows.append(["**geometric mean**", "", "", *means])
    if rivals:
        heads.append(f"{OURS} ÷ best of {', '.join(rivals)}")
        for row, found in zip(rows, measures.values(), strict=False):
            row.append(against(found[OURS] / min(found[rival] for rival in rivals)))
        best = min(mean(measures, rival, PLAIN.name) for rival in rivals)
        rows[-1].append(f"**{mean(measures, OURS, PLAIN.name) / best:.2f}**")
    notes = []
    if UNRECORDED in mounts:
        times = f"{mean(measures, OURS, UNRECORDED):.2f} times as long (geometric mean; target {HISTORY_TARGET})"
        notes += ["", f"With history and automatic snapshots the measures take {times}."]
    if VIEWED in mounts:
        times = f"{mean(measures, VIEWED, OURS):.2f} times as long (geometric mean; target {VIEW_TARGET})"
        notes += ["", f"Through {VIEWED} they take {times}."]
    costs = [[name, *(f"{medians[name][mount]:.1f}" for mount in mounts)] for name in COSTS]
    return [*markdown(heads, rows), *notes, "", *markdown(["server", *mounts], costs)]


def mean(measures: Medians, side: str, base: str) -> float:
    """Return the geometric mean of a side's ratios."""
    return statistics.geometric_mean(found[side] / found[base] for found in measures.values())


def against(ratio: float) -> str:
    return f"**{ratio:.2f}**" if ratio > FAR_BEHIND else f"{ratio:.2f}"


def footnote() -> str:
    return f"`import fusebackend`: {import_seconds():.3f} s."


if __name__ == "__main__":
    main()
