"""The benchmark of one large file: 1 GiB written and read, and random reads of 4 KiB from the kernel's cache.

    scripts/bench --large [--peers bindfs|all|…] [--rounds N] [--quick] [--write]

It runs beside bindfs, which shows the cost of FUSE alone in C. The file is written in calls of 1 MiB with one fsync,
read the same way with dropped caches, and once more from the cache; then at random offsets, warm.
"""

from __future__ import annotations

import argparse
import os
import random
from functools import partial
from pathlib import Path

from measures import BLOCK, MIB, drop_caches, timed
from peers import PLAIN, Mount, choose, ours
from report import conditions, markdown, write_between
from rounds import Medians, Numbers, add_arguments, take_turns, workplace

RANDOM_READS = 20_000

SPEEDS = ("write + fsync (MiB/s)", "read cold (MiB/s)", "read warm (MiB/s)", "random 4 KiB warm (reads/s)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, rounds=3, peers="bindfs", quick="64 MiB")
    arguments = parser.parse_args()
    try:
        sides, without = choose(arguments.peers)
    except ValueError as error:
        parser.error(str(error))
    with workplace(arguments.directory) as work:
        run = partial(measure, mib=64 if arguments.quick else 1024)
        medians = take_turns([PLAIN, ours(arguments.url), *sides], arguments.rounds, work, run)
        report = "\n".join([conditions(arguments.url, arguments, work), *without, "", *table(medians)])
    print(report)
    if arguments.write:
        write_between("large", report)


def measure(mount: Mount, mib: int) -> Numbers:
    path = mount.root / "large"
    chance = random.Random(5)
    offsets = [chance.randrange(mib * MIB // BLOCK) * BLOCK for _ in range(RANDOM_READS)]
    seconds = [timed(lambda: write(path, mib))]
    drop_caches()
    seconds += [timed(lambda: read(path)) for _ in range(2)]
    speeds = [mib / each for each in seconds]
    file = os.open(path, os.O_RDONLY)
    try:
        speeds.append(RANDOM_READS / timed(lambda: [os.pread(file, BLOCK, offset) for offset in offsets]))
    finally:
        os.close(file)
    return dict(zip(SPEEDS, speeds, strict=True)) | {"server memory at its highest (MiB)": mount.server.peak_mib()}


def write(path: Path, mib: int) -> None:
    block = random.Random(1).randbytes(MIB)
    with open(path, "wb", buffering=0) as file:
        for _ in range(mib):
            file.write(block)
        os.fsync(file.fileno())


def read(path: Path) -> None:
    buffer = bytearray(MIB)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def table(medians: Medians) -> list[str]:
    """Make the table of each side, with ours in per cent of the others."""
    sides = list(next(iter(medians.values())))
    name = ours("sqlite").name
    others = [side for side in sides if side != name]
    rows = []
    for what, found in medians.items():
        shares = [f"{100 * found[name] / found[side]:.0f} %" if what in SPEEDS else "" for side in others]
        rows.append([what, *(f"{found[side]:.0f}" for side in sides), *shares])
    return markdown(["", *sides, *(f"{name} of {side}" for side in others)], rows)


if __name__ == "__main__":
    main()
