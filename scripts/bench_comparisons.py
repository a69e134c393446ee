"""The other comparisons with a plain directory and other mounts: one large file, parallel work, growth."""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.synchronize import Barrier
from pathlib import Path

from driver import Medians, Numbers, Run, benchmark, compare, markdown, numbers, option, positive
from peers import PLAIN, Mount, ours
from work import (
    BLOCK,
    drop_caches,
    make_file,
    offsets,
    percentile,
    processes,
    read_again,
    read_file,
    timed,
    write_large,
)

# -- one large file ------------------------------------------------------------------------------------------------

RANDOM_READS = 20_000

SPEEDS = ("write + fsync (MiB/s)", "read cold (MiB/s)", "read warm (MiB/s)", "random 4 KiB warm (reads/s)")


@benchmark(
    "large", "one file of 1 GiB, written and read, and random reads from the kernel's cache", rounds=3, peers="bindfs",
    quick="64 MiB",
)  # fmt: skip
def large(run: Run) -> list[str]:
    """Write, read cold, read warm, and read at random offsets, warm. bindfs shows the cost of FUSE alone in C."""
    return large_table(compare(run, run.sides, partial(measure_large, mib=64 if run.quick else 1024)))


def measure_large(mount: Mount, mib: int) -> Numbers:
    path = mount.root / "large"
    places = offsets(5, mib, RANDOM_READS)
    seconds = [write_large(path, mib)]
    drop_caches()
    seconds += [read_again(path) for _ in range(2)]
    speeds = [mib / each for each in seconds]
    with open(path, "rb") as file:
        speeds.append(RANDOM_READS / timed(lambda: [os.pread(file.fileno(), BLOCK, place) for place in places]))
    return dict(zip(SPEEDS, speeds, strict=True)) | {"server memory at its highest (MiB)": mount.server.peak_mib()}


def large_table(medians: Medians) -> list[str]:
    """Make the table of each side, with ours in per cent of the others."""
    sides = list(next(iter(medians.values())))
    name = ours("sqlite").name
    others = [side for side in sides if side != name]
    rows = []
    for what, found in medians.items():
        shares = [f"{100 * found[name] / found[side]:.0f} %" if what in SPEEDS else "" for side in others]
        rows.append([what, *(f"{found[side]:.0f}" for side in sides), *shares])
    return markdown(["", *sides, *(f"{name} of {side}" for side in others)], rows)


# -- parallel work -------------------------------------------------------------------------------------------------

KEPT = 20
"""The number of files of a process that exist at a time."""

STATS = ("written", "unknown", "known")
"""The target of a `stat`: a file just written, an uncached file, and the same again."""

LOOPS = 2000

LIMIT_S = 600.0
"""The time limit for all processes together."""


@dataclass(frozen=True)
class Done:
    """The result of one process: its begin and end (monotonic seconds), and the times of its `stat`s, in seconds."""

    began: float
    ended: float
    stats: dict[str, list[float]]


@benchmark(
    "parallel",
    "16 processes in directories of their own, against one process",
    option("--processes", type=positive, default=16),
    rounds=3,
    peers="",
    quick="a tenth of the work",
)
def parallel(run: Run) -> list[str]:
    """Each process creates, stats, reads, renames and removes files of its own, and stats uncached files of others: one
    process alone, and all at once, from a common start on."""
    loops = LOOPS // 10 if run.quick else LOOPS
    medians = compare(run, run.sides, partial(measure_parallel, count=run.processes, loops=loops))
    sides = list(next(iter(medians.values())))
    rows = [[name, *(f"{found[side]:.1f}" for side in sides)] for name, found in medians.items()]
    return markdown(["", *sides], rows)


def measure_parallel(mount: Mount, count: int, loops: int) -> Numbers:
    """Run one process alone first, then all; each does the same number of rounds."""
    alone = together(mount.root / "alone", 1, loops)
    mount.server.wait_idle()
    many = together(mount.root / "many", count, loops)
    found = {"one process (rounds/s)": throughput(alone, loops), "all (rounds/s)": throughput(many, loops)}
    found["all ÷ one"] = found["all (rounds/s)"] / found["one process (rounds/s)"]
    ends = [each.ended - each.began for each in many]
    found["last ÷ first to end"] = max(ends) / min(ends)
    for what in STATS:
        for who, done in (("one", alone), ("all", many)):
            seconds = [value for each in done for value in each.stats[what]]
            p50, p99 = percentile(seconds, 50), percentile(seconds, 99)
            found[f"stat {what}, {who}: p50 (µs)"] = p50 * 1e6
            found[f"stat {what}, {who}: p99 (µs)"] = p99 * 1e6
            found[f"stat {what}, {who}: p99 ÷ p50"] = p99 / p50
    return found


def together(place: Path, count: int, loops: int) -> list[Done]:
    """Run processes at once, from a common start on."""
    place.mkdir()
    for number in range(count):
        (place / f"p{number}").mkdir()
        (place / f"unknown{number}").mkdir()
        for file in range(loops):
            (place / f"unknown{number}" / f"{file}").touch()
    drop_caches()
    with processes(count, partial(_work, place, loops)) as (start, results):
        start.wait(LIMIT_S)
        done = results(LIMIT_S)
    if len(done) < count:
        raise SystemExit(f"{count - len(done)} of {count} processes have not done their work")
    return done


def _work(place: Path, loops: int, number: int, start: Barrier) -> Done:
    """Run the rounds of one process."""
    mine, others = f"{place}/p{number}", f"{place}/unknown{number}"
    content, path = b"x" * 1024, f"{mine}/new"
    stats: dict[str, list[float]] = {what: [] for what in STATS}
    start.wait()
    began = time.monotonic()
    for turn in range(loops):
        make_file(path, content)
        stats["written"].append(stat_s(path))
        read_file(path)
        for what in ("unknown", "known"):
            stats[what].append(stat_s(f"{others}/{turn}"))
        os.rename(path, f"{mine}/{turn}")
        if turn >= KEPT:
            os.unlink(f"{mine}/{turn - KEPT}")
    return Done(began, time.monotonic(), stats)


def stat_s(path: str) -> float:
    start = time.perf_counter()
    os.stat(path)
    return time.perf_counter() - start


def throughput(done: Sequence[Done], loops: int) -> float:
    """Return the rounds a second, from the begin of the first process to the end of the last."""
    return len(done) * loops / (max(each.ended for each in done) - min(each.began for each in done))


# -- growth --------------------------------------------------------------------------------------------------------

SIZES = (1000, 10_000, 100_000, 1_000_000)

FILES_PER_DIRECTORY = 100
DIRECTORIES_ASKED = 10
FILES_ASKED = 20
"""The number of directories, and of files in each: as many as the smallest size has, so that all sizes look up the same
number of names that are not cached."""
ASKED_TIMES = 5
CONTENT = b"x" * 100

TIMES = {"create": "µs", "find": "µs", "ls": "ms", "stat": "µs"}
"""The timed operations and their units in the table."""

MEMORY = ("memory", "after find", "when forgotten")
SCALE = {"µs": 1e6, "ms": 1e3}

LINEAR = 1.5
"""A file among the most that takes no longer than this many times one among the fewest is called linear. The fewest
are those of 10,000 where there are so many: a thousand fit into caches of all kinds."""


def sizes(words: str) -> tuple[int, ...]:
    found = numbers(words)
    if found[0] < FILES_PER_DIRECTORY * DIRECTORIES_ASKED:
        raise argparse.ArgumentTypeError(f"{found[0]} is less than {DIRECTORIES_ASKED} directories of 100")
    return found


@benchmark(
    "growth", "the cost of a file among 1,000 files, and among a million",
    option("--sizes", type=sizes, default=SIZES, help="how many files, with commas"), rounds=1, peers="",
    quick="up to 10,000 files",
)  # fmt: skip
def growth(run: Run) -> list[str]:
    """For each size, fill an empty file system with directories of 100 files of 100 bytes; then time `find -ls` over
    all, `ls -l` of a directory and `stat` of files, with dropped caches."""
    found: dict[int, Medians] = {}
    for size in SIZES[:2] if run.quick and run.sizes == SIZES else run.sizes:
        print(f"{size:,} files", file=sys.stderr)
        found[size] = compare(run, run.sides, partial(measure_growth, size=size))
    lines: list[str] = []
    for side in (ours(run.url), PLAIN, *run.peers[0]):
        of_side = {
            size: {name: values[side.name] for name, values in medians.items()} for size, medians in found.items()
        }
        lines += [*growth_table(side.name, of_side), ""]
    return lines[:-1]


def measure_growth(mount: Mount, size: int) -> Numbers:
    """Return seconds by the operation's name, and MiB by the moment's name."""
    root, server = mount.root / "files", mount.server
    directories = [root / f"d{number:05}" for number in range(size // FILES_PER_DIRECTORY)]
    found: Numbers = {"create": timed(lambda: fill(root, directories)) / size}
    server.wait_idle()
    found["memory"] = server.memory_mib()
    forget(mount)
    command = ["find", str(root), "-ls"]
    found["find"] = timed(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL)) / size
    found["after find"] = server.memory_mib()
    drop_caches()
    server.wait_idle()
    found["when forgotten"] = server.memory_mib()
    return found | ask(mount, directories)


def ask(mount: Mount, directories: Sequence[Path]) -> Numbers:
    """Time `ls -l` of a directory and `stat` of a file, with the kernel's caches dropped."""
    chance = random.Random(len(directories))
    lists: list[float] = []
    stats: list[float] = []
    for _ in range(ASKED_TIMES):
        forget(mount)
        asked = chance.sample(directories, DIRECTORIES_ASKED)
        lists += [timed(lambda one=one: [each.stat() for each in os.scandir(one)]) for one in asked]
        forget(mount)
        for directory in chance.sample(directories, DIRECTORIES_ASKED):
            files = [f"{directory}/f{n:02}" for n in chance.sample(range(FILES_PER_DIRECTORY), FILES_ASKED)]
            stats += [stat_s(one) for one in files]
    return {"ls": statistics.median(lists), "stat": statistics.median(stats)}


def forget(mount: Mount) -> None:
    """Drop the kernel's dentries and inodes, and wait until the server has handled every FORGET."""
    drop_caches()
    mount.server.wait_idle(1)


def fill(root: Path, directories: Sequence[Path]) -> None:
    root.mkdir()
    began = told = time.monotonic()
    for number, directory in enumerate(directories):
        directory.mkdir()
        for place in range(FILES_PER_DIRECTORY):
            make_file(f"{directory}/f{place:02}", CONTENT)
        if time.monotonic() - told > 30:
            told = time.monotonic()
            print(f"  {number * FILES_PER_DIRECTORY:,} files in {told - began:.0f} s", file=sys.stderr)


def growth_table(side: str, found: dict[int, Numbers]) -> list[str]:
    """Make the table of a side's costs, a row for each size, and the line about its growth."""
    served = side != PLAIN.name
    heads = [f"files, {side}", *(f"{name} ({unit})" for name, unit in TIMES.items())]
    heads += [f"{name} (MiB)" for name in MEMORY if served]
    rows = []
    for size, values in found.items():
        row = [f"{size:,}", *(f"{values[name] * SCALE[unit]:.1f}" for name, unit in TIMES.items())]
        rows.append(row + [f"{values[name]:.0f}" for name in MEMORY if served])
    return [*markdown(heads, rows), *(["", verdict(found)] if len(found) > 1 else [])]


def verdict(found: dict[int, Numbers]) -> str:
    """Compare the cost of one file, directory or call among the most files with that among the fewest."""
    ascending = sorted(found)
    fewest, most = ascending[1 if len(found) > 2 else 0], ascending[-1]
    parts = []
    for name in TIMES:
        ratio = found[most][name] / found[fewest][name]
        is_linear = "linear" if ratio <= LINEAR else "not linear"
        parts.append(f"{name} {ratio:.2f} × ({is_linear}, n^{exponent(found, name):.2f})")
    return f"Each, of {most:,} against of {fewest:,}: {', '.join(parts)}."


def exponent(found: dict[int, Numbers], name: str) -> float:
    """Return the power of the number of files with which the whole grows: 1 is linear. Least squares of logarithms."""
    ascending = sorted(found)
    whole = [math.log(size * found[size][name]) for size in ascending]
    return statistics.linear_regression([math.log(size) for size in ascending], whole).slope
