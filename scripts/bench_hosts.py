"""The benchmark of two hosts: the time until one sees a close at the other, in one volume that both have mounted.

    scripts/bench --hosts [--changes N] [--write]

Two servers mount the same routes: a volume and a store of a throwaway PostgreSQL, and a bucket of a throwaway SeaweedFS
where there is one. One process writes a file through the first mount:

- to an open: from the moment before `close` on one to the moment when an `open` and `read` of the same path at the
  other have returned the new bytes. They begin when `close` has returned. In the volume they are right the first time,
  and the run fails if they are not; in the store and the bucket they are repeated until they are;
- to a `stat`: from the same moment until `stat` of the cached path at the other shows the new size. It depends on the
  change feed, and is repeated until then;
- to a name: until a new file is there at the other, with a negative dentry of its name cached before.

Beside them stands the same `open` and `read` of an unchanged file, the least that an open costs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from measures import timed
from peers import serve_command
from report import markdown, write_between
from serving import REPOSITORY, mounted

sys.path.insert(0, str(REPOSITORY / "tests"))
sys.path.insert(0, str(REPOSITORY / "tests/support"))

CHANGES = 2000
WARM_UP = 50


def main() -> None:
    from services import postgres, seaweedfs

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changes", type=int, default=CHANGES)
    parser.add_argument("--write", action="store_true", help="write the table to BENCHMARKS.md")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fusebackend-bench-")))
        dsn = stack.enter_context(stack.enter_context(postgres.running(durable=True)).database())
        routes = {"/volume": f"postgres:{dsn}?volume=bench", "/store": f"store+postgres:{dsn}?ns=bench"}
        if seaweedfs.missing() is None:
            routes["/bucket"] = stack.enter_context(stack.enter_context(seaweedfs.running()).bucket()).url("bench")
        hosts = (work / "first", work / "second")
        for number, host in enumerate(hosts):
            command = serve_command("memory:", host)
            for prefix, url in routes.items():
                command += ["--route", f"{prefix}={url}"]
            stack.enter_context(mounted(command, host, work / f"log{number}"))
        report = measure(*hosts, list(routes), arguments.changes)
    print(report)
    if arguments.write:
        write_between("hosts", report)


def measure(here: Path, there: Path, routes: Sequence[str], changes: int) -> str:
    """Measure, and make a table of milliseconds."""
    rows = []
    for row, (route, measured, count) in ROWS.items():
        if route in routes:
            sides = (here / route[1:], there / route[1:])
            print(row, file=sys.stderr)
            rows.append([row, *(f"{ms:.1f}" for ms in quantiles(measured(*sides, changes // count)))])
    return "\n".join(markdown(["from `close` at one host", "p50 (ms)", "p99 (ms)", "max (ms)"], rows))


def opens(here: Path, there: Path, changes: int) -> list[float]:
    return [to_open(here / "file", there / "file", content) for content in contents(here / "file", changes)][WARM_UP:]


def opens_in_the_end(here: Path, there: Path, changes: int) -> list[float]:
    return [
        to_open(here / "file", there / "file", content, at_once=False) for content in contents(here / "file", changes)
    ][WARM_UP:]


def stats(here: Path, there: Path, changes: int) -> list[float]:
    (there / "file").read_bytes()
    return [to_stat(here / "file", there / "file", content) for content in contents(here / "file", changes)][WARM_UP:]


def names(here: Path, there: Path, changes: int) -> list[float]:
    return [to_name(here / f"new{number}", there / f"new{number}") for number in range(changes)]


def unchanged(here: Path, there: Path, changes: int) -> list[float]:
    (here / "other").write_bytes(b"x" * 64)
    (there / "other").read_bytes()
    return [timed((there / "other").read_bytes) for _ in range(changes)]


ROWS: dict[str, tuple[str, Callable[[Path, Path, int], list[float]], int]] = {
    "`postgres:`, to `open` and `read`": ("/volume", opens, 1),
    "`postgres:`, to `stat`": ("/volume", stats, 1),
    "`postgres:`, to a new name": ("/volume", names, 1),
    "`postgres:`, an `open` and `read` of what is unchanged": ("/volume", unchanged, 1),
    "`store+postgres:`, to `open` and `read`": ("/store", opens_in_the_end, 4),
    "`store+postgres:`, to a new name": ("/store", names, 4),
    "`s3://`, to `open` and `read`": ("/bucket", opens_in_the_end, 10),
    "`s3://`, to a new name": ("/bucket", names, 100),
}
"""The measures: each with its route, and its share of the changes, since some take longer."""


def contents(file: Path, changes: int) -> Iterator[bytes]:
    """Yield new contents of an existing file, each of another size than the last."""
    file.write_bytes(b"")
    for number in range(WARM_UP + changes):
        yield b"%d" % number + b"x" * (100 + number % 100)


def put(path: Path, content: bytes) -> float:
    """Write a file; return the time of the call of `close`."""
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC)
    os.write(fd, content)
    closed = time.perf_counter()
    os.close(fd)
    return closed


def to_open(here: Path, there: Path, content: bytes, *, at_once: bool = True) -> float:
    closed = put(here, content)
    while (found := there.read_bytes()) != content:
        if at_once:
            raise SystemExit(f"close-to-open is violated: {found!r} instead of {content!r}")
    return time.perf_counter() - closed


def to_stat(here: Path, there: Path, content: bytes) -> float:
    closed = put(here, content)
    while os.stat(there).st_size != len(content):
        pass
    return time.perf_counter() - closed


def to_name(here: Path, there: Path) -> float:
    there.exists()
    fd = os.open(here, os.O_WRONLY | os.O_CREAT)
    closed = time.perf_counter()
    os.close(fd)
    while not there.exists():
        pass
    return time.perf_counter() - closed


def quantiles(seconds: list[float]) -> tuple[float, float, float]:
    """Return p50, p99 and the maximum, in milliseconds."""
    p99 = statistics.quantiles(seconds, n=100, method="inclusive")[98]
    return statistics.median(seconds) * 1000, p99 * 1000, max(seconds) * 1000


if __name__ == "__main__":
    main()
