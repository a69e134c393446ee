"""The benchmark of growth: the cost of a file among 1,000 files, and among a million.

    scripts/bench --growth [--sizes 1000,10000,…] [--peers all|bindfs,…] [--rounds N] [--quick] [--write]

For each size, an empty file system is filled with directories of 100 files of 100 bytes, and then measured:

- create: open, write, close; a file;
- find: `find -ls` over all, with dropped caches; a file;
- ls: `ls -l` of one directory, with dropped caches; the median of some, spread over the tree;
- stat: of files spread over the tree, the same way.

Beside the time stands the resident memory of the servers: when all files were made, after `find`, and after the kernel
has dropped its caches. A line below each table states whether the cost grows with the number of files.
"""

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
from pathlib import Path

from measures import drop_caches, timed
from peers import PLAIN, Mount, choose, ours
from report import conditions, markdown, write_between
from rounds import Medians, Numbers, add_arguments, take_turns, workplace

SIZES = (1000, 10_000, 100_000, 1_000_000)
QUICK_SIZES = (1000, 10_000)

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, rounds=1, peers="", quick="up to 10,000 files")
    parser.add_argument("--sizes", help="how many files, with commas")
    arguments = parser.parse_args()
    try:
        sizes = sizes_of(arguments)
        sides, without = choose(arguments.peers)
    except ValueError as error:
        parser.error(str(error))
    reports: list[str] = []
    with workplace(arguments.directory) as work:
        found: dict[int, Medians] = {}
        for size in sizes:
            print(f"{size:,} files", file=sys.stderr)

            def run(mount: Mount, size: int = size) -> Numbers:
                return measure(mount, size)

            found[size] = take_turns([PLAIN, ours(arguments.url), *sides], arguments.rounds, work, run)
        for side in (ours(arguments.url), PLAIN, *sides):
            reports += ["", *table(side.name, {size: numbers_of(side.name, found[size]) for size in sizes})]
        report = "\n".join([conditions(arguments.url, arguments, work), *without, *reports])
    print(report)
    if arguments.write:
        write_between("growth", report)


def sizes_of(arguments: argparse.Namespace) -> Sequence[int]:
    if not arguments.sizes:
        return QUICK_SIZES if arguments.quick else SIZES
    sizes = sorted({int(word) for word in arguments.sizes.split(",")})
    if sizes[0] < FILES_PER_DIRECTORY:
        raise ValueError(f"--sizes: {sizes[0]} is less than one directory of {FILES_PER_DIRECTORY}")
    return sizes


def measure(mount: Mount, size: int) -> Numbers:
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
            stats += [timed(lambda one=one: os.stat(one)) for one in files]
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
            file = os.open(f"{directory}/f{place:02}", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            os.write(file, CONTENT)
            os.close(file)
        if time.monotonic() - told > 30:
            told = time.monotonic()
            print(f"  {number * FILES_PER_DIRECTORY:,} files in {told - began:.0f} s", file=sys.stderr)


def numbers_of(side: str, medians: Medians) -> Numbers:
    return {name: found[side] for name, found in medians.items()}


def table(side: str, found: dict[int, Numbers]) -> list[str]:
    """Make the table of a side's costs, a row for each size, and the line about its growth."""
    served = side != PLAIN.name
    heads = [f"files, {side}", *(f"{name} ({unit})" for name, unit in TIMES.items())]
    heads += [f"{name} (MiB)" for name in MEMORY if served]
    rows = []
    for size, numbers in found.items():
        row = [f"{size:,}", *(f"{numbers[name] * SCALE[unit]:.1f}" for name, unit in TIMES.items())]
        rows.append(row + [f"{numbers[name]:.0f}" for name in MEMORY if served])
    return [*markdown(heads, rows), "", *([verdict(found)] if len(found) > 1 else [])]


def verdict(found: dict[int, Numbers]) -> str:
    """Compare the cost of one file, directory or call among the most files with that among the fewest."""
    sizes = sorted(found)
    fewest, most = (sizes[1] if len(sizes) > 2 else sizes[0]), sizes[-1]
    parts = []
    for name in TIMES:
        ratio = found[most][name] / found[fewest][name]
        is_linear = "linear" if ratio <= LINEAR else "not linear"
        parts.append(f"{name} {ratio:.2f} × ({is_linear}, n^{exponent(found, name):.2f})")
    return f"Each, of {most:,} against of {fewest:,}: {', '.join(parts)}."


def exponent(found: dict[int, Numbers], name: str) -> float:
    """Return the power of the number of files with which the whole grows: 1 is linear. Least squares of logarithms."""
    sizes = sorted(found)
    fit = statistics.linear_regression(
        [math.log(size) for size in sizes], [math.log(size * found[size][name]) for size in sizes]
    )
    return fit.slope


if __name__ == "__main__":
    main()
