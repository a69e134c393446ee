"""The benchmark of parallel work: 16 processes in directories of their own, against one process.

    scripts/bench --parallel [--processes N] [--peers all|bindfs,…] [--rounds N] [--quick] [--write]

In each round a process creates a file of 1 KiB, `stat`s it, reads it, `stat`s an uncached file, and the same again,
renames the file, and removes the file of 20 rounds before. The table has the rounds a second of all together, the time
between the end of the first and the last process, and p50 and p99 of `stat`: of the file just written and of the
uncached one, which the server answers, and of the cached one.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.synchronize import Barrier
from pathlib import Path

from measures import drop_caches
from peers import PLAIN, Mount, choose, ours
from report import conditions, markdown, write_between
from rounds import Medians, Numbers, add_arguments, take_turns, workplace

CONTENT = b"x" * 1024
KEPT = 20
"""The number of files of a process that exist at a time."""

STATS = ("written", "unknown", "known")
"""The target of a `stat`: a file just written, an uncached file, and the same again."""

LIMIT_S = 600.0
"""The time limit for all processes together."""

FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Done:
    """The result of one process: its begin and end (monotonic seconds), and the times of its `stat`s, in seconds."""

    began: float
    ended: float
    stats: dict[str, list[float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, rounds=3, peers="", quick="a tenth of the work")
    parser.add_argument("--processes", type=int, default=16)
    arguments = parser.parse_args()
    if arguments.processes < 2:
        parser.error("--processes must be 2 or more")
    try:
        sides, without = choose(arguments.peers)
    except ValueError as error:
        parser.error(str(error))
    loops = 200 if arguments.quick else 2000
    with workplace(arguments.directory) as work:
        run = partial(measure, processes=arguments.processes, loops=loops)
        medians = take_turns([PLAIN, ours(arguments.url), *sides], arguments.rounds, work, run)
        report = "\n".join([conditions(arguments.url, arguments, work), *without, "", *table(medians)])
    print(report)
    if arguments.write:
        write_between("parallel", report)


def measure(mount: Mount, processes: int, loops: int) -> Numbers:
    """Run one process alone first, then all; each does the same number of rounds."""
    alone = together(mount.root / "alone", 1, loops)
    mount.server.wait_idle()
    many = together(mount.root / "many", processes, loops)
    numbers = {"one process (rounds/s)": throughput(alone, loops), "all (rounds/s)": throughput(many, loops)}
    numbers["all ÷ one"] = numbers["all (rounds/s)"] / numbers["one process (rounds/s)"]
    ends = [each.ended - each.began for each in many]
    numbers["last ÷ first to end"] = max(ends) / min(ends)
    for what in STATS:
        for who, done in (("one", alone), ("all", many)):
            seconds = [value for each in done for value in each.stats[what]]
            p50, p99 = percentile(seconds, 50), percentile(seconds, 99)
            numbers[f"stat {what}, {who}: p50 (µs)"] = p50 * 1e6
            numbers[f"stat {what}, {who}: p99 (µs)"] = p99 * 1e6
            numbers[f"stat {what}, {who}: p99 ÷ p50"] = p99 / p50
    return numbers


def together(place: Path, processes: int, loops: int) -> list[Done]:
    """Run processes at once, from a common start on."""
    place.mkdir()
    for number in range(processes):
        (place / f"p{number}").mkdir()
        (place / f"unknown{number}").mkdir()
        for file in range(loops):
            (place / f"unknown{number}" / f"{file}").touch()
    drop_caches()
    start, answers = FORK.Barrier(processes), FORK.SimpleQueue()
    workers = [FORK.Process(target=work, args=(place, n, loops, start, answers)) for n in range(processes)]
    for worker in workers:
        worker.start()
    try:
        deadline, done = time.monotonic() + LIMIT_S, []
        while len(done) < processes:
            while answers.empty():
                if time.monotonic() > deadline or any(worker.exitcode for worker in workers):
                    raise SystemExit(f"{processes - len(done)} of {processes} processes have not done their work")
                time.sleep(0.01)
            done.append(answers.get())
        return done
    finally:
        for worker in workers:
            worker.kill()
            worker.join()


def work(place: Path, number: int, loops: int, start: Barrier, answers: multiprocessing.SimpleQueue[Done]) -> None:
    """Run the rounds of one process."""
    mine, others = f"{place}/p{number}", f"{place}/unknown{number}"
    stats: dict[str, list[float]] = {what: [] for what in STATS}
    start.wait()
    began = time.monotonic()
    for turn in range(loops):
        path = f"{mine}/new"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        os.write(file, CONTENT)
        os.close(file)
        stats["written"].append(stat_s(path))
        file = os.open(path, os.O_RDONLY)
        os.read(file, 4096)
        os.close(file)
        for what in ("unknown", "known"):
            stats[what].append(stat_s(f"{others}/{turn}"))
        os.rename(path, f"{mine}/{turn}")
        if turn >= KEPT:
            os.unlink(f"{mine}/{turn - KEPT}")
    answers.put(Done(began, time.monotonic(), stats))


def stat_s(path: str) -> float:
    start = time.perf_counter()
    os.stat(path)
    return time.perf_counter() - start


def throughput(done: Sequence[Done], loops: int) -> float:
    """Return the rounds a second, from the begin of the first process to the end of the last."""
    return len(done) * loops / (max(each.ended for each in done) - min(each.began for each in done))


def percentile(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def table(medians: Medians) -> list[str]:
    sides = list(next(iter(medians.values())))
    rows = [[name, *(f"{found[side]:.1f}" for side in sides)] for name, found in medians.items()]
    return markdown(["", *sides], rows)


if __name__ == "__main__":
    main()
