"""The benchmarks of services elsewhere: what one host sees of another's changes, and many readers far away."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from driver import Run, benchmark, in_rounds, markdown, option, positive
from services import postgres, seaweedfs
from services.stall import Stall
from serving import our_mount
from work import MIB, percentile, timed

from fusebackend.backends import PostgresBackend

# -- two hosts -----------------------------------------------------------------------------------------------------

CHANGES = 2000
WARM_UP = 50


@benchmark(
    "hosts", "two hosts: the time until one sees a close at the other",
    option("--changes", narrows=False, type=positive, default=CHANGES, help=f"of a row (default: {CHANGES})"),
    missing=postgres.missing,
)  # fmt: skip
def hosts(run: Run) -> list[str]:
    """Mount the same routes by two servers: a volume, a store, and a bucket where there is SeaweedFS. A process writes
    through the first mount; the time is from before its `close` until the other mount shows the change. In the volume
    an `open` after `close` sees it the first time, or the run fails; the others are repeated until they do."""
    with ExitStack() as stack:
        dsn = stack.enter_context(stack.enter_context(postgres.running(durable=True)).database())
        routes = {"/volume": f"postgres:{dsn}?volume=bench", "/store": f"store+postgres:{dsn}?ns=bench"}
        if seaweedfs.missing() is None:
            routes["/bucket"] = stack.enter_context(stack.enter_context(seaweedfs.running()).bucket()).url("bench")
        words = [word for prefix, url in routes.items() for word in ("--route", f"{prefix}={url}")]
        first, second = run.work / "first", run.work / "second"
        for host in (first, second):
            stack.enter_context(our_mount("memory:", host, *words))
        rows = []
        for row, (route, measure, share) in ROWS.items():
            if route in routes:
                print(row, file=sys.stderr)
                ms = [1000 * each for each in measure(first / route[1:], second / route[1:], run.changes // share)]
                rows.append([row, *(f"{each:.1f}" for each in (percentile(ms, 50), percentile(ms, 99), max(ms)))])
    return markdown(["from `close` at one host", "p50 (ms)", "p99 (ms)", "max (ms)"], rows)


def changes_of(measure: Callable[[Path, Path, bytes], float], here: Path, there: Path, changes: int) -> list[float]:
    """Change an existing file, each time to another size than the last, after some changes to warm up."""
    here, there = here / "file", there / "file"
    here.write_bytes(b"")
    there.read_bytes()
    contents = (b"%d" % number + b"x" * (100 + number % 100) for number in range(WARM_UP + changes))
    return [measure(here, there, content) for content in contents][WARM_UP:]


def names(here: Path, there: Path, changes: int) -> list[float]:
    return [to_name(here / f"new{number}", there / f"new{number}") for number in range(changes)]


def unchanged(here: Path, there: Path, changes: int) -> list[float]:
    (here / "other").write_bytes(b"x" * 64)
    (there / "other").read_bytes()
    return [timed((there / "other").read_bytes) for _ in range(changes)]


def put(path: Path, content: bytes, flags: int = os.O_TRUNC) -> float:
    """Write a file; return the time of the call of `close`."""
    fd = os.open(path, os.O_WRONLY | flags)
    if content:
        os.write(fd, content)
    closed = time.perf_counter()
    os.close(fd)
    return closed


def to_open_at_once(here: Path, there: Path, content: bytes) -> float:
    closed = put(here, content)
    if (found := there.read_bytes()) != content:
        raise SystemExit(f"close-to-open is violated: {found!r} instead of {content!r}")
    return time.perf_counter() - closed


def to_open(here: Path, there: Path, content: bytes) -> float:
    closed = put(here, content)
    while there.read_bytes() != content:
        pass
    return time.perf_counter() - closed


def to_stat(here: Path, there: Path, content: bytes) -> float:
    closed = put(here, content)
    while os.stat(there).st_size != len(content):
        pass
    return time.perf_counter() - closed


def to_name(here: Path, there: Path) -> float:
    there.exists()
    closed = put(here, b"", os.O_CREAT)
    while not there.exists():
        pass
    return time.perf_counter() - closed


ROWS: dict[str, tuple[str, Callable[[Path, Path, int], list[float]], int]] = {
    "`postgres:`, to `open` and `read`": ("/volume", partial(changes_of, to_open_at_once), 1),
    "`postgres:`, to `stat`": ("/volume", partial(changes_of, to_stat), 1),
    "`postgres:`, to a new name": ("/volume", names, 1),
    "`postgres:`, an `open` and `read` of what is unchanged": ("/volume", unchanged, 1),
    "`store+postgres:`, to `open` and `read`": ("/store", partial(changes_of, to_open), 4),
    "`store+postgres:`, to a new name": ("/store", names, 4),
    "`s3://`, to `open` and `read`": ("/bucket", partial(changes_of, to_open), 10),
    "`s3://`, to a new name": ("/bucket", names, 100),
}
"""The measures: each with its route, and its share of the changes, since some take longer."""


# -- many readers --------------------------------------------------------------------------------------------------

READERS = 64
LATENCY_S = 0.05
FILE_BYTES = 64 << 10
FILES_EACH = 4


@benchmark("readers", "64 readers at once of a service that is 50 ms away", missing=postgres.missing, rounds=3)
def readers(run: Run) -> list[str]:
    """Read uncached files through a mount, by one thread and by 64 at once, each its own. The services are a backend
    that sleeps for 50 ms in every call, and a PostgreSQL behind a proxy that delays all requests by 50 ms. A first
    round makes the connections and is not measured. (`scripts/bench --s3` does it with a bucket.)"""
    rounds = [
        [files_of(reader, f"round{number}-") for reader in range(READERS + 1)] for number in range(run.rounds + 1)
    ]
    rows = []
    with postgres.running() as server:
        services = {"a backend that sleeps": sleeping(run.work, rounds)}
        for most in (16, 64):
            services[f"`postgres:`, `connections={most}`"] = far_postgres(server, run.work, most, rounds)
        for service, mount in services.items():
            with mount as mountpoint:

                def one(number: int, mountpoint: Path = mountpoint) -> Iterator[tuple[str, str, float]]:
                    yield "many", "MiB/s", speed_of_many(mountpoint, rounds[number][1:])
                    yield "one", "MiB/s", speed_of_one(mountpoint, rounds[number][0])

                found = in_rounds(run.rounds, one, warm_up=1)
            one_s, many_s = found["one"]["MiB/s"], found["many"]["MiB/s"]
            rows.append([service, f"{one_s:.2f}", f"{many_s:.1f}", f"{many_s / one_s:.0f}"])
    return markdown(["service, 50 ms away", "one reader (MiB/s)", "64 readers (MiB/s)", "ratio"], rows)


def files_of(reader: int, prefix: str = "") -> list[str]:
    return [f"{prefix}r{reader}-{number}" for number in range(FILES_EACH)]


def speed_of_one(directory: Path, names: Sequence[str]) -> float:
    """Read files one after the other; return MiB/s."""

    def read() -> None:
        for name in names:
            assert len((directory / name).read_bytes()) == FILE_BYTES

    return len(names) * FILE_BYTES / MIB / timed(read)


def speed_of_many(directory: Path, names: Sequence[Sequence[str]]) -> float:
    """Read by many threads at once, each its own files; return MiB/s of all together."""

    def read() -> None:
        with ThreadPoolExecutor(len(names)) as threads:
            list(threads.map(lambda mine: speed_of_one(directory, mine), names))

    return sum(map(len, names)) * FILE_BYTES / MIB / timed(read)


@contextmanager
def sleeping(work: Path, rounds: Sequence[Sequence[Sequence[str]]]) -> Iterator[Path]:
    latency, mountpoint = work / "latency", work / "sleeping"
    with our_mount("python:stalling:backend", mountpoint, environment=[f"FUSEBACKEND_TEST_STALL={latency}"]):
        for name in (name for readers in rounds for names in readers for name in names):
            (mountpoint / name).write_bytes(bytes(FILE_BYTES))
        latency.write_text(str(LATENCY_S))
        try:
            yield mountpoint
        finally:
            latency.unlink()


@contextmanager
def far_postgres(
    server: postgres.Postgres, work: Path, connections: int, rounds: Sequence[Sequence[Sequence[str]]]
) -> Iterator[Path]:
    with server.database() as dsn, far_away(server, dsn) as (far, network):
        with PostgresBackend(dsn, "bench") as backend:
            names = (name for readers in rounds for names in readers for name in names)
            backend.upload_files([(f"/{name}", bytes(FILE_BYTES)) for name in names])
        mountpoint = work / f"connections{connections}"
        with our_mount(f"postgres:{far}?volume=bench&connections={connections}", mountpoint):
            network.latency_s = LATENCY_S
            try:
                yield mountpoint
            finally:
                network.latency_s = 0.0


@contextmanager
def far_away(server: postgres.Postgres, dsn: str) -> Iterator[tuple[str, Stall]]:
    """Yield the address of a database through a proxy, and the proxy."""
    with tempfile.TemporaryDirectory(prefix="fusebackend-far-") as directory:
        name = f".s.PGSQL.{postgres.PORT}"
        with Stall(f"{server.directory}/{name}", f"{directory}/{name}") as network:
            yield dsn.replace(str(server.directory), directory), network
