"""The benchmark of many readers: the throughput of 64 readers at once from a service that is 50 ms away.

    scripts/bench --readers [--rounds N] [--write]

Each reader is a thread that opens and reads files of its own, none of them cached, one after the other. First one of
them reads alone, then 64 at once, through a mount with default options. The services are a backend that sleeps for
50 ms in every call, and a throwaway PostgreSQL behind a proxy that delays all requests by 50 ms: with the 16
connections that a host opens at most by default, and with 64. (`scripts/bench --s3` does it with a bucket.) A first
round of reading makes the connections and is not measured.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from measures import MIB, timed
from peers import serve_command
from report import markdown, write_between
from serving import REPOSITORY, mounted

sys.path.insert(0, str(REPOSITORY / "tests"))
sys.path.insert(0, str(REPOSITORY / "tests/support"))
from services import postgres
from services.stall import Stall

from fusebackend.backends import PostgresBackend

READERS = 64
LATENCY_S = 0.05
FILE_BYTES = 64 << 10
FILES_EACH = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write the table to BENCHMARKS.md")
    arguments = parser.parse_args()
    if reason := postgres.missing():
        raise SystemExit(reason)
    rows = []
    with tempfile.TemporaryDirectory(prefix="fusebackend-bench-") as directory, postgres.running() as server:
        work = Path(directory)
        with sleeping(work, arguments.rounds) as mountpoint:
            rows.append(row("a backend that sleeps", mountpoint, arguments.rounds))
        for connections in (16, 64):
            with far_postgres(server, work / f"{connections}", connections, arguments.rounds) as mountpoint:
                rows.append(row(f"`postgres:`, `connections={connections}`", mountpoint, arguments.rounds))
    heads = ["service, 50 ms away", "one reader (MiB/s)", "64 readers (MiB/s)", "ratio"]
    report = "\n".join(markdown(heads, rows))
    print(report)
    if arguments.write:
        write_between("readers", report)


def all_names(rounds: int) -> Iterator[str]:
    for number in range(rounds + 1):
        for reader in range(READERS + 1):
            yield from names(number, reader)


def names(number: int, reader: int) -> list[str]:
    return [f"round{number}-{reader}-{place}" for place in range(FILES_EACH)]


def row(service: str, mountpoint: Path, rounds: int) -> list[str]:
    """Make a row of the table: medians of the rounds; each round reads other files."""
    alone: list[float] = []
    together: list[float] = []

    def read(number: int, reader: int) -> None:
        for name in names(number, reader):
            assert len((mountpoint / name).read_bytes()) == FILE_BYTES

    def read_together(number: int) -> None:
        with ThreadPoolExecutor(READERS) as threads:
            list(threads.map(lambda reader: read(number, reader), range(1, READERS + 1)))

    mib = FILE_BYTES * FILES_EACH / MIB
    for number in range(rounds + 1):
        many, one = timed(partial(read_together, number)), timed(partial(read, number, 0))
        if number:
            alone.append(mib / one)
            together.append(READERS * mib / many)
    one, many = statistics.median(alone), statistics.median(together)
    return [service, f"{one:.2f}", f"{many:.1f}", f"{many / one:.0f}"]


@contextmanager
def sleeping(work: Path, rounds: int) -> Iterator[Path]:
    latency, mountpoint = work / "latency", work / "sleeping"
    os.environ["FUSEBACKEND_TEST_STALL"] = str(latency)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY / "tests"), str(REPOSITORY / "tests/support")])
    with mounted(serve_command("python:stalling:backend", mountpoint), mountpoint, work / "log"):
        for name in all_names(rounds):
            (mountpoint / name).write_bytes(bytes(FILE_BYTES))
        latency.write_text(str(LATENCY_S))
        try:
            yield mountpoint
        finally:
            latency.unlink()


@contextmanager
def far_postgres(server: postgres.Postgres, work: Path, connections: int, rounds: int) -> Iterator[Path]:
    work.mkdir()
    socket_name = f".s.PGSQL.{postgres.PORT}"
    with ExitStack() as stack:
        dsn = stack.enter_context(server.database())
        with PostgresBackend(dsn, "bench") as backend:
            backend.upload_files([(f"/{name}", bytes(FILE_BYTES)) for name in all_names(rounds)])
        network = stack.enter_context(Stall(f"{server.directory}/{socket_name}", f"{work}/{socket_name}"))
        far = dsn.replace(str(server.directory), str(work))
        url = f"postgres:{far}?volume=bench&connections={connections}"
        stack.enter_context(mounted(serve_command(url, work / "mount"), work / "mount", work / "log"))
        network.latency_s = LATENCY_S
        try:
            yield work / "mount"
        finally:
            network.latency_s = 0.0


if __name__ == "__main__":
    main()
