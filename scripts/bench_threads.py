"""The benchmark of threads as people read them: `ls`, `rg`, `find` and `du` over 1,000 conversations.

    scripts/bench --threads [--threads-count N] [--database PATH] [--rounds N] [--write]

The database is made by `scripts/make_threads_database`, in about a minute, unless `--database` names one. In each
round it is mounted twice: with an empty cache directory, and again with what the first mount has left there. The first
`ls -l` of a thread is the median over some threads, none of which was read before on that mount. The memory is the
highest of the server (VmHWM) up to the end of that row.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
from pathlib import Path

from measures import drop_caches, timed
from peers import serve_command
from report import machine, markdown, write_between
from rounds import workplace
from serving import REPOSITORY, mounted

THREADS = 1000
LOOKED_AT = 15
"""Threads of the first row, spread over all."""

WORD = "Quillfox"
"""In each tenth thread or so: `conversations.WORDS` has others for most."""

LS = "first `ls -l` of a thread (ms)"
TARGETS = {
    LS: 20.0,
    "`ls -lt /threads` (s)": 0.2,
    "`rg -l WORD /threads/*/messages` (s)": 10.0,
    "`cat` of all transcripts (s)": None,
    "`find /threads` (s)": None,
    "`du -s /threads` (s)": None,
}
COMMANDS = {
    "`ls -lt /threads` (s)": "ls -lt . > /dev/null",
    "`rg -l WORD /threads/*/messages` (s)": f"rg -l {WORD} ./*/messages > /dev/null",
    "`cat` of all transcripts (s)": "cat ./*/transcript.md > /dev/null",
    "`find /threads` (s)": "find . > /dev/null",
    "`du -s /threads` (s)": "du -s . > /dev/null",
}
MEMORY_TARGET_MIB = 200

Numbers = dict[str, tuple[float, float]]
"""Seconds or milliseconds by row, and the memory in MiB."""


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
        found: dict[str, list[Numbers]] = {"without": [], "with": []}
        for number in range(arguments.rounds):
            cache = work / "cache"
            shutil.rmtree(cache, ignore_errors=True)
            for state in found:
                found[state].append(measure(database, work / f"mount{number}-{state}", cache, arguments.only))
            print(f"round {number + 1} of {arguments.rounds} done", file=sys.stderr)
        report = table(found, sizes(database), machine(work))
    print(report)
    if arguments.write:
        write_between("threads", report)


def measure(database: Path, mountpoint: Path, cache: Path, only: str) -> Numbers:
    """Mount, and run each command once, in order."""
    cache.mkdir(exist_ok=True)
    os.environ["XDG_CACHE_HOME"] = str(cache)
    drop_caches()
    log = mountpoint.with_suffix(".log")
    with mounted(serve_command(f"threads+sqlite:{database}", mountpoint), mountpoint, log) as server:
        names = threads(database)
        times = [1000 * timed(lambda one=one: run(f"ls -l {one} > /dev/null", mountpoint)) for one in names]
        found = {LS: (statistics.median(times), server.peak_mib())}
        for name, command in COMMANDS.items():
            if not only or any(word in name for word in only.split(",")):
                found[name] = (timed(lambda command=command: run(command, mountpoint)), server.peak_mib())
                print(f"{name}: {found[name][0]:.2f}, {found[name][1]:.0f} MiB", file=sys.stderr)
    return found


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
            values = [numbers[name] for numbers in found[state] if name in numbers]
            if values:
                cells += [f"{statistics.median(time for time, _ in values):.2f}", f"{max(m for _, m in values):.0f}"]
        if cells:
            rows.append([name, f"{target:g}" if target else "", *cells])
    heads = ["", "target", "no cache file", "memory (MiB)", "with it", "memory (MiB)"]
    return "\n".join([f"{what}, on {where}; medians of {len(found['with'])} rounds.", "", *markdown(heads, rows)])


if __name__ == "__main__":
    main()
