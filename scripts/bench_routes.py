"""The benchmarks of two kinds of routes: threads as people read them, and file systems of fsspec."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import sqlite3
import statistics
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
from driver import Run, benchmark, in_rounds, markdown, only, option, positive
from services import fsspec_servers, webdav
from serving import REPOSITORY, Server, our_mount
from work import MIB, drop_caches, read_again, timed

# -- threads -------------------------------------------------------------------------------------------------------

THREADS = 1000
LOOKED_AT = 15
"""Threads of the first row, spread over all."""

WORD = "Quillfox"
"""In each tenth thread or so: `conversations.WORDS` has others for most."""

LS = "first `ls -l` of a thread (ms)"
RG = "`rg -l WORD /threads/*/messages` (s)"
COMMANDS = {
    "`ls -lt /threads` (s)": "ls -lt . > /dev/null",
    RG: f"rg -l {WORD} ./*/messages > /dev/null",
    "`cat` of all transcripts (s)": "cat ./*/transcript.md > /dev/null",
    "`find /threads` (s)": "find . > /dev/null",
    "`du -s /threads` (s)": "du -s . > /dev/null",
}
TARGETS = {LS: "20", "`ls -lt /threads` (s)": "0.2", RG: "10"}
STATES = ("no cache file", "with it")
PLAIN = "plain copy"


@benchmark(
    "threads",
    "threads as people read them: `ls`, `rg`, `find` and `du` over 1,000 conversations",
    option("--threads-count", narrows=False, type=positive, default=THREADS, help=f"to make (default: {THREADS})"),
    option("--database", narrows=False, type=Path, help="a database that is there: of a SqliteSaver"),
    only(COMMANDS),
    rounds=3,
)
def threads(run: Run) -> list[str]:
    """Make a database, unless `--database` names one. In each round it is mounted twice: with an empty cache directory,
    and again with what the first mount has left there. `rg` also searches a copy of the same files in a plain
    directory, right after each mount."""
    database = run.work / "threads.db"
    if run.database is None:
        make = [REPOSITORY / "scripts/make_threads_database", database, str(run.threads_count)]
        subprocess.run(make, check=True, stdout=sys.stderr)
    elif run.database.is_file():
        shutil.copy(run.database, database)
    else:
        raise SystemExit(f"there is no file '{run.database}'")

    def one(number: int) -> Iterator[tuple[str, str, float]]:
        cache = run.work / "cache"
        shutil.rmtree(cache, ignore_errors=True)
        cache.mkdir()
        for state in STATES:
            mountpoint = run.work / f"mount{number}-{state.replace(' ', '-')}"
            for row, cost in looked_at(database, mountpoint, cache, run.only, run.work / "plain"):
                yield from ((row, f"{state}, {column}", value) for column, value in cost.items())
            copy = cost_of(COMMANDS[RG], run.work / "plain", None)
            yield from ((RG, f"{PLAIN}, {column}", value) for column, value in copy.items())

    medians = in_rounds(run.rounds, one)
    heads, columns = ["", "target"], []
    for state in (*STATES, PLAIN):
        heads += [state, "processor (s)", *(["memory (MiB)"] if state != PLAIN else [])]
        columns += [(f"{state}, time", ".2f"), (f"{state}, processor", ".1f")]
        columns += [(f"{state}, memory", ".0f")] if state != PLAIN else []
    rows = [
        [name, TARGETS.get(name, ""), *(f"{found[key]:{form}}" if found.get(key) else "" for key, form in columns)]
        for name, found in medians.items()
    ]
    with contextlib.closing(sqlite3.connect(database)) as connection:
        count, checkpoints = connection.execute(
            "SELECT count(DISTINCT thread_id), count(*) FROM checkpoints"
        ).fetchone()
    about = f"{count:,} threads, {checkpoints:,} checkpoints, {database.stat().st_size >> 20} MiB of SQLite."
    return [about, "", *markdown(heads, rows)]


Cost = dict[str, float]
"""Of a command: `time`, `processor` and `memory`. For `LS` milliseconds, the median of some, and no processor time:
ticks are 10 ms."""


def looked_at(
    database: Path, mountpoint: Path, cache: Path, names: tuple[str, ...], plain: Path
) -> Iterator[tuple[str, Cost]]:
    """Mount, and run each command once, in order. The first time, copy the messages to a plain directory at the end."""
    drop_caches()
    with our_mount(f"threads+sqlite:{database}", mountpoint, environment=[f"XDG_CACHE_HOME={cache}"]) as server:
        times = [1000 * timed(lambda one=one: shell(f"ls -l {one} > /dev/null", mountpoint)) for one in some(database)]
        yield LS, {"time": statistics.median(times), "memory": server.peak_mib()}
        for name in names:
            yield name, cost_of(COMMANDS[name], mountpoint, server)
        if not plain.exists():
            plain.mkdir()
            shell(f"cp -r --parents ./*/messages '{plain}'", mountpoint)


def cost_of(command: str, directory: Path, server: Server | None) -> Cost:
    def used() -> float:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return children.ru_utime + children.ru_stime + (server.processor_s() if server is not None else 0.0)

    before = used()
    time = timed(lambda: shell(command, directory))
    return {"time": time, "processor": used() - before, "memory": server.peak_mib() if server is not None else 0.0}


def shell(command: str, directory: Path) -> None:
    done = subprocess.run(command, shell=True, cwd=directory, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{command}: {done.stderr}")


def some(database: Path) -> list[str]:
    """Return some of the threads, spread over all."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        found = [row[0] for row in connection.execute("SELECT DISTINCT thread_id FROM checkpoints ORDER BY thread_id")]
    return found[:: max(1, len(found) // LOOKED_AT)]


# -- fsspec --------------------------------------------------------------------------------------------------------

NAME = "large"
KINDS = ("file", "zip", "ftp", "sftp", "smb", "webdav", "http")


class Place(NamedTuple):
    """Where a file system has the directory: for fsspec and as a route."""

    fs: Any
    path: str
    url: str


@benchmark(
    "fsspec", "reading one file of `fsspec:` routes, beside fsspec alone", only(KINDS),
    option("--mib", type=positive, default=64, help="size of the file"), rounds=5,
)  # fmt: skip
def fsspec_routes(run: Run) -> list[str]:
    """Read a file in turns by fsspec alone, as an open file in calls of 1 MiB (`open`) and as a whole (`cat`), and
    through a mount, by read(2) of 1 MiB of a file that the kernel has no page of."""
    rows = []
    for kind in run.only:
        if kind == "smb" and (os.geteuid() != 0 or shutil.which("smbd") is None):
            print("smb is left out: it needs root and smbd", file=sys.stderr)
            continue
        work = run.work / kind
        work.mkdir()
        with (
            place(kind, work, random.Random(1).randbytes(run.mib * MIB)) as there,
            our_mount(there.url, work / "mount"),
        ):
            path = work / "mount" / NAME
            ways: dict[str, Callable[[], object]] = {
                "open": lambda there=there: by_open(there, run.mib * MIB),
                "cat": lambda there=there: by_cat(there, run.mib * MIB),
                "mount": lambda path=path: read_again(path),
            }

            def one(number: int, ways=ways, path=path) -> Iterator[tuple[str, str, float]]:
                for name, read in ways.items():
                    drop_pages(path)
                    yield name, "MiB/s", run.mib / timed(read)

            found = in_rounds(run.rounds, one, warm_up=1)  # which makes the connections
        opened, cat, mount = (found[name]["MiB/s"] for name in ways)
        rows.append(
            [kind, f"{opened:.0f}", f"{cat:.0f}", f"{mount:.0f}", f"{mount / opened:.2f}", f"{mount / cat:.2f}"]
        )
    heads = ["", "fsspec, `open`", "fsspec, `cat`", "mount", "of `open`", "of `cat`"]
    return [f"MiB/s of {run.mib} MiB:", "", *markdown(heads, rows)]


def by_open(there: Place, size: int) -> None:
    there.fs.invalidate_cache()
    with there.fs.open(there.path, "rb") as file:
        assert sum(map(len, iter(lambda: file.read(MIB), b""))) == size


def by_cat(there: Place, size: int) -> None:
    there.fs.invalidate_cache()
    assert len(there.fs.cat_file(there.path)) == size


def drop_pages(path: Path) -> None:
    """Make the kernel forget a file, which takes it 8 ms for 64 MiB."""
    with open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def place(kind: str, work: Path, content: bytes) -> Iterator[Place]:
    """Serve a directory with the file in it."""
    files = work / "files"
    files.mkdir()
    (files / NAME).write_bytes(content)
    login = {"host": "127.0.0.1", "username": fsspec_servers.USER, "password": fsspec_servers.PASSWORD}
    user = f"{fsspec_servers.USER}:{fsspec_servers.PASSWORD}@127.0.0.1"
    with ExitStack() as stack:
        if kind == "file":
            yield Place(opened("file"), f"{files}/{NAME}", f"fsspec:file://{files}")
        elif kind == "zip":
            archive = work / "a.zip"
            with zipfile.ZipFile(archive, "w") as made:
                made.write(files / NAME, NAME)
            yield Place(opened("zip", fo=str(archive)), NAME, f"fsspec:zip://?fo={archive}")
        elif kind == "webdav":
            url = stack.enter_context(webdav.running(files)).url
            yield Place(opened("webdav", base_url=url), NAME, f"fsspec:webdav://?base_url={url}")
        elif kind == "http":
            url = f"http://127.0.0.1:{stack.enter_context(fsspec_servers.running('http', files))}"
            yield Place(opened("http"), f"{url}/{NAME}", f"fsspec:{url}")
        else:
            port = stack.enter_context(fsspec_servers.running(kind, files))  # type: ignore[arg-type]
            top = "/files" if kind == "smb" else ""  # the share
            if kind == "smb":
                login["share_access"] = "rwd"  # as a route has it; else no two may open the file
            yield Place(opened(kind, port=port, **login), f"{top}/{NAME}", f"fsspec:{kind}://{user}:{port}{top}/")


def opened(protocol: str, **options: Any) -> Any:
    return fsspec.filesystem(protocol, skip_instance_cache=True, **options)
