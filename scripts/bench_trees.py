"""The benchmarks of snapshots and of undo."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from driver import Run, benchmark, in_rounds, markdown, only
from services import seaweedfs
from serving import REPOSITORY, our_mount
from work import percentile, timed

import fusebackend

FILES_PER_DIRECTORY = 100


def file_of(tree: Path, number: int) -> Path:
    return tree / str(number // FILES_PER_DIRECTORY) / str(number % FILES_PER_DIRECTORY)


def new_files(tree: Path, files: int) -> Iterator[tuple[int, Path]]:
    """Yield numbers and paths, and make the directories."""
    for number in range(files):
        path = file_of(tree, number)
        if number % FILES_PER_DIRECTORY == 0:
            path.parent.mkdir(parents=True)
        yield number, path


# -- snapshots -----------------------------------------------------------------------------------------------------

WRITERS = 16
TAKEN = 100
CHANGED = 5
FILE_BYTES = 3000
SIZES = {"taken": (10_000, 100_000), "read": (2000, 10_000), "policy": 20_000}
"""Files of the trees of which snapshots are taken; files and snapshots of the one that is read; files of the work."""

WRITER = """
import os, random, sys, time
chance = random.Random(sys.argv[2])
while True:
    with open(f"{sys.argv[1]}/{chance.randrange(100)}", "wb") as file:
        file.write(os.urandom(500))
    time.sleep(0.002)
"""


@benchmark(
    "snapshots", "taking, reading, and deleting snapshots of `sqlite:`; what automatic ones cost", rounds=3,
    quick="a tenth of the files and of the snapshots",
)  # fmt: skip
def snapshots(run: Run) -> list[str]:
    """Take snapshots beside 16 writers; list the first and the last of many, between which five files change, in turns
    with the live tree, each right after a mount; do the same work with automatic snapshots and without, in turns."""
    scale = 10 if run.quick else 1
    rows = [taking(run.work / f"taking{files}", files // scale) for files in SIZES["taken"]]
    files, count = SIZES["read"]
    rows += reading(run, files, count // scale)
    rows.append(policy(run, SIZES["policy"] // scale))
    return markdown(("measure", "", "target"), rows)


@contextlib.contextmanager
def mount(home: Path, option: str = "snapshots=manual") -> Iterator[Path]:
    """Mount `home`/volume.db on `home`/mnt."""
    home.mkdir(exist_ok=True)
    point = home / "mnt"
    with our_mount(f"sqlite:{home}/volume.db", point, "-o", option):
        yield point
    point.rmdir()


def fill(tree: Path, files: int) -> None:
    for number, path in new_files(tree, files):
        path.write_bytes(b"%d" % number + b"x" * FILE_BYTES)


def taking(home: Path, files: int) -> list[str]:
    """Take snapshots beside writers."""
    with mount(home) as point, contextlib.ExitStack() as ends:
        fill(point, files)
        client = ends.enter_context(fusebackend.connect(point))
        for number in range(WRITERS):
            directory = point / str(number % (files // FILES_PER_DIRECTORY))
            writer = subprocess.Popen([sys.executable, "-c", WRITER, directory, str(number)], cwd="/")
            ends.callback(writer.wait)
            ends.callback(writer.kill)
        time.sleep(1)
        taken_ms = []
        for number in range(TAKEN):
            taken_ms.append(1000 * timed(lambda number=number: client.create_snapshot(f"s{number}")))
            time.sleep(0.05)
    what = f"taking one of {files:,} files beside {WRITERS} writers, p50 and p99"
    return [what, f"{percentile(taken_ms, 50):.0f} and {percentile(taken_ms, 99):.0f} ms", "p99 60 ms"]


def reading(run: Run, files: int, count: int) -> list[list[str]]:
    """Read many snapshots, and delete them."""
    home = run.work / "reading"
    chance = random.Random(5)
    replaced_bytes = 0
    with mount(home) as point, fusebackend.connect(point) as client:
        fill(point, files)
        for number in range(count):
            client.create_snapshot(f"s{number}")
            for _ in range(CHANGED):
                path = file_of(point, chance.randrange(files))
                replaced_bytes += path.stat().st_size
                saved = path.with_name("saved")
                saved.write_bytes(b"%d" % number + b"y" * FILE_BYTES)
                saved.replace(path)
        live_bytes = sum(path.stat().st_size for path in point.rglob("*") if path.is_file())
    size_bytes = (home / "volume.db").stat().st_size
    trees = {"live": ".", "first": ".fusebackend/snapshots/s0", "last": f".fusebackend/snapshots/s{count - 1}"}

    def one(number: int) -> Iterator[tuple[str, str, float]]:
        for name, tree in trees.items():
            with mount(home) as point:
                command = ["ls", "-lR", str(point / tree)]
                yield "s", name, timed(partial(subprocess.run, command, stdout=subprocess.DEVNULL, check=True))

    seconds = in_rounds(run.rounds, one)["s"]
    with mount(home) as point, fusebackend.connect(point) as client:
        deleted_s = timed(lambda: client.delete_snapshots(*(f"s{number}" for number in range(count))))
    space = f"{size_bytes / (live_bytes + replaced_bytes):.2f}"
    return [
        *(
            [f"`ls -lR` of the {name} of {count:,} snapshots ÷ of the live tree",
             f"{seconds[name] / seconds['live']:.2f}", "2"]
            for name in ("first", "last")
        ),
        [f"the file after {count:,} snapshots ÷ bytes that are live or replaced", space, "1.2"],
        [f"deleting {count:,} snapshots at once", f"{deleted_s:.1f} s", ""],
    ]  # fmt: skip


def policy(run: Run, files: int) -> list[str]:
    """Do the same with automatic snapshots and without."""

    def one(number: int) -> Iterator[tuple[str, str, float]]:
        for word in ("manual", "auto"):
            with mount(run.work / f"policy{number}{word}", f"snapshots={word}") as point:
                yield "s", word, timed(lambda point=point: churn(point, files))

    seconds = in_rounds(run.rounds, one)["s"]
    what = f"making, rewriting, removing {files:,} files: automatic snapshots ÷ none"
    return [what, f"{seconds['auto'] / seconds['manual']:.2f}", "1.15"]


def churn(point: Path, files: int) -> None:
    fill(point, files)
    for number in range(0, files, 2):
        with open(file_of(point, number), "r+b") as file:
            file.write(os.urandom(100))
    for number in range(files):
        file_of(point, number).unlink()


# -- undo ----------------------------------------------------------------------------------------------------------

FILES = 10_000
TARGETS_S = {"sqlite": 2, "dir": 10, "store": 10, "s3": 10}
KEEPS_ATTRIBUTES = {"sqlite", "dir"}
XATTR = "user.number"
PAUSE_S = 3.0
"""A process session ends after 2 s of quiet: what made the files is then another call."""


@benchmark(
    "undo", "10,000 files deleted by `rm -rf` on a mount, and had back by `fusebackend undo`", only(TARGETS_S),
    rounds=3, quick="a tenth of the files",
)  # fmt: skip
def undo(run: Run) -> list[str]:
    """Delete files by `rm -rf`, and have them back by `fusebackend undo`, with modes, times, and extended attributes
    where the route keeps them; all of that is compared afterwards. The processor time is the server's in the undo."""
    files = FILES // 10 if run.quick else FILES
    rows = []
    for name in run.only:
        found = in_rounds(run.rounds, lambda number, name=name: undone(name, run.work / f"{name}{number}", files))
        rows.append([f"`{name}:`", *(f"{each['s']:.1f}" for each in found.values()), str(TARGETS_S[name])])
        print(rows[-1], file=sys.stderr)
    heads = ("route", "`rm -rf` (s)", "`undo` (s)", "processor of the server (s)", "target (s)")
    return [f"{files:,} files:", "", *markdown(heads, rows)]


def undone(name: str, home: Path, files: int) -> Iterator[tuple[str, str, float]]:
    """Yield seconds of deleting the files of a new mount, of undoing that, and of its server's processors meanwhile."""
    home.mkdir()
    point = home / "mnt"
    environment = [f"{variable}={home / variable}" for variable in ("XDG_STATE_HOME", "XDG_DATA_HOME")]
    with route(name, home) as url, our_mount(url, point, environment=environment) as server:
        keeps = name in KEEPS_ATTRIBUTES
        fill_with_attributes(point / "tree", files, keeps)
        before = state(point / "tree", keeps)
        time.sleep(PAUSE_S)
        with fusebackend.connect(point) as client:
            call = client.begin_call("rm -rf")
            yield "deleting", "s", timed(lambda: subprocess.run(["rm", "-rf", point / "tree"], check=True))
            deleted = client.end_call(call)
        assert deleted is not None and not (point / "tree").exists()
        server.wait_idle()
        began_s = server.processor_s()
        words = [sys.executable, "-m", "fusebackend", "undo", "--mount", str(point), deleted]
        yield (
            "undoing",
            "s",
            timed(lambda: subprocess.run(words, check=True, cwd=REPOSITORY, stdout=subprocess.DEVNULL)),
        )
        yield "processor", "s", server.processor_s() - began_s
        if state(point / "tree", keeps) != before:
            raise SystemExit(f"{name}: the files after undo differ from those before the deletion")


@contextlib.contextmanager
def route(name: str, home: Path) -> Iterator[str]:
    """Yield the URL of an empty route."""
    if name == "s3":
        with seaweedfs.running() as server, server.bucket() as bucket:
            yield bucket.url()
        return
    (home / "files").mkdir()
    urls = {"sqlite": f"sqlite:{home}/files.db", "dir": f"dir:{home}/files"}
    yield urls.get(name, f"store+sqlite:{home}/store.db?ns=memories")


def fill_with_attributes(tree: Path, files: int, keeps: bool) -> None:
    for number, path in new_files(tree, files):
        path.write_bytes(b"%d " % number * (number % 500))
        if keeps:
            path.chmod((0o644, 0o600, 0o755)[number % 3])
            os.setxattr(path, XATTR, b"%d" % number)
            os.utime(path, ns=(number, number * 10**9))


def state(tree: Path, keeps: bool) -> dict[str, object]:
    found: dict[str, object] = {}
    for path in (path for path in tree.rglob("*") if path.is_file()):
        status = path.stat()
        attributes = (status.st_mode, status.st_mtime_ns, os.getxattr(path, XATTR)) if keeps else None
        found[str(path)] = (path.read_bytes(), attributes)
    return found
