"""The benchmark of the mount: fifteen measures on a plain directory, on our mount and on other mounts, as ratios."""

from __future__ import annotations

import statistics
import subprocess
import sys

from driver import Medians, Numbers, Run, benchmark, compare, markdown, only, option
from measures import MEASURES, PREPARES, Measures, Scale
from peers import COMPARABLE, PLAIN, VIEWED, Mount, ours, viewed
from work import make_source_tree, timed

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


@benchmark(
    "mount",
    "fifteen measures, as ratios to a plain directory (without any of these words, too)",
    only(MEASURES),
    option("--history", action="store_true", help="our mount without history and snapshots as well"),
    option("--view", action="store_true", help=f"our mount through {VIEWED} as well"),
    rounds=3,
    peers="",
    quick="a tenth of the work",
    table="table",
)
def mount_measures(run: Run) -> list[str]:
    """In each round mount every side alone, with an empty file system, and do all the measures (`measures.py`)."""
    mine = [ours(run.url), ours(run.url, POLLING)]
    mine += [ours(run.url, UNRECORDED)] if run.history else []
    mine += [viewed(run.url)] if run.view else []
    scale = Scale(bool(run.quick))
    archive = run.work / "source.tar"
    make_source_tree(archive, scale.tree_files)
    measures = Measures(scale, archive).all()
    needed = {*run.only, *(PREPARES[name] for name in run.only if name in PREPARES)}

    def measure(mount: Mount) -> Numbers:
        seconds = {name: one(mount.root) for name, one in measures.items() if name in needed}
        costs = {name: cost(mount) for name, cost in COSTS.items()}
        return {name: seconds[name] for name in run.only} | costs

    medians = compare(run, [PLAIN, *mine, *run.peers[0]], measure)
    return [*tables(medians), "", f"`import fusebackend`: {import_seconds():.3f} s."]


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


def import_seconds() -> float:
    """Return the time of `import fusebackend` without the start of Python, median of five."""

    def run(code: str) -> float:
        command = [sys.executable, "-c", code]
        return statistics.median(timed(lambda: subprocess.run(command, check=True)) for _ in range(5))

    return run("import fusebackend") - run("pass")
