"""The benchmark of snapshots on a mount of `sqlite:`.

    scripts/bench --snapshots [--rounds N] [--quick] [--write]

Taking: 16 processes write to files of their own while 100 snapshots are taken, of two trees of different size. Reading:
`ls -lR` of the first, the middle and the last of many snapshots, between which five files change, in turns with the
live tree; each right after a mount. Space: bytes of the volume's file, against the bytes that were live or replaced.
The policy: the same work of creating, rewriting and removing files with automatic snapshots and without, in turns.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from measures import timed
from report import machine, markdown, write_between
from serving import REPOSITORY, mounted

import fusebackend

WRITERS = 16
TAKEN = 100
CHANGED = 5
FILE_BYTES = 3000

WRITER = """
import os, random, sys, time
chance = random.Random(sys.argv[2])
while True:
    with open(f"{sys.argv[1]}/{chance.randrange(100)}", "wb") as file:
        file.write(os.urandom(500))
    time.sleep(0.002)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a tenth of the files and of the snapshots")
    parser.add_argument("--write", action="store_true", help="write the table to BENCHMARKS.md")
    arguments = parser.parse_args()
    scale = 10 if arguments.quick else 1
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory(prefix="fusebackend-bench-") as directory:
        work = Path(directory)
        for files in (10_000 // scale, 100_000 // scale):
            rows += taking(work / f"taking{files}", files)
        rows += reading(work / "reading", 2000, 10_000 // scale, arguments.rounds)
        rows += policy(work, 20_000 // scale, arguments.rounds)
        report = "\n".join([f"On {machine(work)}.", "", *markdown(("measure", "", "target"), rows)])
    print(report)
    if arguments.write:
        write_between("snapshots", report)


@contextlib.contextmanager
def mount(home: Path, *options: str) -> Iterator[Path]:
    """Mount `home`/volume.db on `home`/mnt."""
    home.mkdir(exist_ok=True)
    point = home / "mnt"
    words = ["--default", f"sqlite:{home}/volume.db", "-o", ",".join(options), "--foreground", str(point)]
    with mounted([sys.executable, "-m", "fusebackend", "mount", *words], point, home / "log"):
        yield point
    point.rmdir()


def fill(directory: Path, files: int) -> None:
    for number in range(files):
        above = directory / str(number // 100)
        if number % 100 == 0:
            above.mkdir()
        (above / str(number % 100)).write_bytes(b"%d" % number + b"x" * FILE_BYTES)


def taking(home: Path, files: int) -> list[list[str]]:
    """Take snapshots beside writers."""
    with mount(home, "snapshots=manual") as point:
        fill(point, files)
        with fusebackend.connect(point) as client, contextlib.ExitStack() as ends:
            for number in range(WRITERS):
                command = [sys.executable, "-c", WRITER, str(point / str(number % (files // 100))), str(number)]
                writer = subprocess.Popen(command, cwd="/")
                ends.callback(writer.wait)
                ends.callback(writer.kill)
            time.sleep(1)
            taken_s = []
            for number in range(TAKEN):
                taken_s.append(timed(lambda number=number: client.create_snapshot(f"s{number}")))  # type: ignore[misc]
                time.sleep(0.05)
    taken_s.sort()
    p50_ms, p99_ms = (taken_s[int(len(taken_s) * share)] * 1e3 for share in (0.5, 0.99))
    what = f"taking one of {files:,} files beside {WRITERS} writers, p50 and p99"
    return [[what, f"{p50_ms:.0f} and {p99_ms:.0f} ms", "p99 60 ms"]]


def reading(home: Path, files: int, snapshots: int, rounds: int) -> list[list[str]]:
    """Read many snapshots, and delete them."""
    chance = random.Random(5)
    replaced_bytes = 0
    with mount(home, "snapshots=manual") as point:
        fill(point, files)
        with fusebackend.connect(point) as client:
            for number in range(snapshots):
                client.create_snapshot(f"s{number}")
                for _ in range(CHANGED):
                    file = chance.randrange(files)
                    path = point / str(file // 100) / str(file % 100)
                    replaced_bytes += path.stat().st_size
                    saved = path.with_name("saved")
                    saved.write_bytes(b"%d" % number + b"y" * FILE_BYTES)
                    saved.replace(path)
        live_bytes = sum(path.stat().st_size for path in point.rglob("*") if path.is_file())
    size_bytes = (home / "volume.db").stat().st_size
    seconds: dict[str, list[float]] = {}
    trees = {"live": ".", "first": ".fusebackend/snapshots/s0", "last": f".fusebackend/snapshots/s{snapshots - 1}"}
    for _ in range(rounds):
        for name, tree in trees.items():
            with mount(home, "snapshots=manual") as point:
                list_all = ["ls", "-lR", str(point / tree)]
                seconds.setdefault(name, []).append(
                    timed(lambda list_all=list_all: subprocess.run(list_all, stdout=subprocess.DEVNULL, check=True))  # type: ignore[misc]
                )
    live_s, first_s, last_s = (statistics.median(seconds[name]) for name in trees)
    with mount(home, "snapshots=manual") as point, fusebackend.connect(point) as client:
        names = [f"s{number}" for number in range(snapshots)]
        deleted_s = timed(lambda: client.delete_snapshots(*names))
    return [
        [f"`ls -lR` of the first of {snapshots:,} snapshots ÷ of the live tree", f"{first_s / live_s:.2f}", "2"],
        [f"`ls -lR` of the last of {snapshots:,} snapshots ÷ of the live tree", f"{last_s / live_s:.2f}", "2"],
        [
            f"the file after {snapshots:,} snapshots ÷ bytes that are live or replaced",
            f"{size_bytes / (live_bytes + replaced_bytes):.2f}",
            "1.2",
        ],
        [f"deleting {snapshots:,} snapshots at once", f"{deleted_s:.1f} s", ""],
    ]


def policy(work: Path, files: int, rounds: int) -> list[list[str]]:
    """Do the same with automatic snapshots and without."""
    seconds: dict[str, list[float]] = {"manual": [], "auto": []}
    for number in range(rounds):
        for word, found in seconds.items():
            with mount(work / f"policy{number}{word}", f"snapshots={word}") as point:
                found.append(timed(lambda point=point: churn(point, files)))  # type: ignore[misc]
    share = statistics.median(seconds["auto"]) / statistics.median(seconds["manual"])
    return [[f"making, rewriting, removing {files:,} files: automatic snapshots ÷ none", f"{share:.2f}", "1.15"]]


def churn(point: Path, files: int) -> None:
    fill(point, files)
    for number in range(0, files, 2):
        path = point / str(number // 100) / str(number % 100)
        with open(path, "r+b") as file:
            file.write(os.urandom(100))
    for number in range(files):
        (point / str(number // 100) / str(number % 100)).unlink()


if __name__ == "__main__":
    sys.path.insert(0, str(REPOSITORY))
    main()
