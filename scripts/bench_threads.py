"""The benchmark of threads as people read them: `ls`, `rg`, `find` and `du` over 1,000 conversations.

    scripts/bench --threads [--threads-count N] [--database PATH] [--rounds N] [--write]

The database is made by `scripts/make_threads_database`, in about a minute, unless `--database` names one. In each
round it is mounted twice: with an empty cache directory, and again with what the first mount has left there. The first
`ls -l` of a thread is the median over some threads, none of which was read before on that mount. The memory is the
highest of the server (VmHWM) up to the end of that row. Processor seconds are those of the server and of the command,
user and system: on a machine with other work the times are of both, and these nearly of the command alone. `rg` also
searches a copy of the same files in a plain directory, right after each mount.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import shutil
import sqlite3
import statistics
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from measures import drop_caches, timed
from peers import serve_command
from report import machine, markdown, write_between
from rounds import workplace
from serving import REPOSITORY, Server, mounted

THREADS = 1000
LOOKED_AT = 15
"""Threads of the first row, spread over all."""

WORD = "Quillfox"
"""In each tenth thread or so: `conversations.WORDS` has others for most."""

LS = "first `ls -l` of a thread (ms)"
RG = "`rg -l WORD /threads/*/messages` (s)"
TARGETS = {
    LS: 20.0,
    "`ls -lt /threads` (s)": 0.2,
    RG: 10.0,
    "`cat` of all transcripts (s)": None,
    "`find /threads` (s)": None,
    "`du -s /threads` (s)": None,
}
COMMANDS = {
    "`ls -lt /threads` (s)": "ls -lt . > /dev/null",
    RG: f"rg -l {WORD} ./*/messages > /dev/null",
    "`cat` of all transcripts (s)": "cat ./*/transcript.md > /dev/null",
    "`find /threads` (s)": "find . > /dev/null",
    "`du -s /threads` (s)": "du -s . > /dev/null",
}
STATES = ("no cache file", "with it")
PLAIN = "plain copy"


class Cost(NamedTuple):
    """What a command took. For `LS` milliseconds, the median of some, and no processor time: ticks are 10 ms."""

    time: float
    processor_s: float
    memory_mib: float


Numbers = dict[str, Cost]
"""By row."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads-count", type=int, default=THREADS, help=f"how many to make (default: {THREADS})")
    parser.add_argument("--database", type=Path, help="a database that is there: of a SqliteSaver")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="only commands that contain one of these words, with commas")
    parser.add_argument("--write", action="store_true", help="write the table to BENCHMARKS.md")
    parser.add_argument("--directory", help="where to work (default: the system's temporary directory)")
    arguments = parser.parse_args()
    if arguments.rounds < 1 or arguments.threads_count < 1:
        parser.error("--rounds and --threads-count must be 1 or more")
    if arguments.database is not None and not arguments.database.is_file():
        parser.error(f"there is no file '{arguments.database}'")
    with workplace(arguments.directory) as work:
        database = work / "threads.db"
        if arguments.database is not None:
            shutil.copy(arguments.database, database)
        else:
            make = [str(REPOSITORY / "scripts/make_threads_database"), str(database), str(arguments.threads_count)]
            subprocess.run(make, check=True, stdout=sys.stderr)
        found: dict[str, list[Numbers]] = {state: [] for state in (*STATES, PLAIN)}
        for number in range(arguments.rounds):
            cache = work / "cache"
            shutil.rmtree(cache, ignore_errors=True)
            for state in STATES:
                mountpoint = work / f"mount{number}-{state.replace(' ', '-')}"
                found[state].append(measure(database, mountpoint, cache, arguments.only, work / "plain"))
                found[PLAIN].append({RG: cost(COMMANDS[RG], work / "plain", None)})
            print(f"round {number + 1} of {arguments.rounds} done", file=sys.stderr)
        report = table(found, sizes(database), machine(work))
    print(report)
    if arguments.write:
        write_between("threads", report)


def measure(database: Path, mountpoint: Path, cache: Path, only: str, plain: Path) -> Numbers:
    """Mount, and run each command once, in order. The first time, copy the messages to a plain directory at the end."""
    cache.mkdir(exist_ok=True)
    os.environ["XDG_CACHE_HOME"] = str(cache)
    drop_caches()
    log = mountpoint.with_suffix(".log")
    with mounted(serve_command(f"threads+sqlite:{database}", mountpoint), mountpoint, log) as server:
        names = threads(database)
        times = [1000 * timed(lambda one=one: run(f"ls -l {one} > /dev/null", mountpoint)) for one in names]
        found = {LS: Cost(statistics.median(times), 0.0, server.peak_mib())}
        for name, command in COMMANDS.items():
            if not only or any(word in name for word in only.split(",")):
                found[name] = cost(command, mountpoint, server)
                print(f"{name}: {found[name]}", file=sys.stderr)
        if not plain.exists():
            plain.mkdir()
            run(f"cp -r --parents ./*/messages '{plain}'", mountpoint)
    return found


def cost(command: str, directory: Path, server: Server | None) -> Cost:
    def used() -> float:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return children.ru_utime + children.ru_stime + (server.processor_s() if server is not None else 0.0)

    before = used()
    time = timed(lambda: run(command, directory))
    return Cost(time, used() - before, server.peak_mib() if server is not None else 0.0)


def run(command: str, directory: Path) -> None:
    done = subprocess.run(command, shell=True, cwd=directory, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{command}: {done.stderr}")


def threads(database: Path) -> list[str]:
    """Return some of the threads, spread over all."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        found = [row[0] for row in connection.execute("SELECT DISTINCT thread_id FROM checkpoints ORDER BY thread_id")]
    return found[:: max(1, len(found) // LOOKED_AT)]


def sizes(database: Path) -> str:
    """Describe a database."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        count, rows = connection.execute("SELECT count(DISTINCT thread_id), count(*) FROM checkpoints").fetchone()
    return f"{count:,} threads, {rows:,} checkpoints, {database.stat().st_size >> 20} MiB of SQLite"


def table(found: dict[str, list[Numbers]], what: str, where: str) -> str:
    rows = []
    for name, target in TARGETS.items():
        cells = []
        for state in found:
            costs = [numbers[name] for numbers in found[state] if name in numbers]
            time, processor, memory = map(statistics.median, zip(*costs, strict=True)) if costs else (0.0, 0.0, 0.0)
            cells += [f"{time:.2f}" if costs else "", f"{processor:.1f}" if processor else ""]
            if state != PLAIN:
                cells.append(f"{memory:.0f}" if costs else "")
        if any(cells):
            rows.append([name, f"{target:g}" if target else "", *cells])
    heads = ["", "target"]
    for state in found:
        heads += [state, "processor (s)"] + (["memory (MiB)"] if state != PLAIN else [])
    described = f"{what}, on {where}; load average {os.getloadavg()[0]:.0f}; medians of {len(found[STATES[0]])} rounds."
    return "\n".join([described, "", *markdown(heads, rows)])


if __name__ == "__main__":
    main()
