"""The benchmark of two hosts: how soon one sees what the other has closed, in one PostgreSQL volume.

    scripts/bench --hosts [--changes N] [--write]

Two servers mount the same volume of a throwaway PostgreSQL. One process writes a file through the first mount:

- to an open: from the moment before `close` on one to the moment when an `open` and `read` of the same path at the
  other have returned the new bytes. They begin when `close` has returned, and are right the first time; the run fails
  if they are not;
- to a `stat`: from the same moment until `stat` of the cached path at the other shows the new size, which is told by
  the change feed and asked for again and again.

Beside them the same `open` and `read` of a file that nobody has changed, which is what an open costs anyway.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from report import write_between
from serving import REPOSITORY, mounted

sys.path.insert(0, str(REPOSITORY / "tests"))

CHANGES = 2000
WARM_UP = 50


def main() -> None:
    from services import postgres

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changes", type=int, default=CHANGES)
    parser.add_argument("--write", action="store_true", help="write the table to BENCHMARKS.md")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="fusebackend-bench-") as directory,
        postgres.running(durable=True) as server,
        server.database() as dsn,
    ):
        work = Path(directory)
        hosts = (work / "first", work / "second")
        with ExitStack() as stack:
            for number, host in enumerate(hosts):
                stack.enter_context(mounted(serving(dsn, host), host, work / f"log{number}"))
            report = measure(*hosts, arguments.changes)
    print(report)
    if arguments.write:
        write_between("hosts", report)


def serving(dsn: str, mountpoint: Path) -> list[str]:
    url = f"postgres:{dsn}?volume=bench"
    return [sys.executable, "-m", "fusebackend", "mount", "--foreground", "--default", url, str(mountpoint)]


def measure(here: Path, there: Path, changes: int) -> str:
    """A table of milliseconds."""
    (here / "file").write_bytes(b"")
    (here / "other").write_bytes(b"x" * 64)
    (there / "other").read_bytes()
    opens: list[float] = []
    stats: list[float] = []
    plain: list[float] = []
    for number in range(-WARM_UP, changes):
        content = b"%d" % number + b"x" * (abs(number) % 100)
        seconds = to_open(here / "file", there / "file", content)
        seconds_stat = to_stat(here / "file", there / "file", content + b"longer" * 20)
        start = time.perf_counter()
        (there / "other").read_bytes()
        if number >= 0:
            opens.append(seconds)
            stats.append(seconds_stat)
            plain.append(time.perf_counter() - start)
    rows = [("to `open` and `read`", opens), ("to `stat`", stats), ("an `open` and `read` of what is unchanged", plain)]
    return "\n".join(
        [
            "| from `close` at one host | p50 (ms) | p99 (ms) | max (ms) |",
            "|---|---:|---:|---:|",
            *(f"| {name} | {' | '.join(f'{ms:.1f}' for ms in quantiles(found))} |" for name, found in rows),
        ]
    )


def put(path: Path, content: bytes) -> float:
    """Write a file; returns when `close` was called."""
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC)
    os.write(fd, content)
    closed = time.perf_counter()
    os.close(fd)
    return closed


def to_open(here: Path, there: Path, content: bytes) -> float:
    closed = put(here, content)
    found = there.read_bytes()
    seconds = time.perf_counter() - closed
    if found != content:
        raise SystemExit(f"close-to-open is violated: {found!r} instead of {content!r}")
    return seconds


def to_stat(here: Path, there: Path, content: bytes) -> float:
    closed = put(here, content)
    while os.stat(there).st_size != len(content):
        pass
    return time.perf_counter() - closed


def quantiles(seconds: list[float]) -> tuple[float, float, float]:
    """p50, p99 and the maximum, in milliseconds."""
    return statistics.median(seconds) * 1000, statistics.quantiles(seconds, n=100)[98] * 1000, max(seconds) * 1000


if __name__ == "__main__":
    main()
