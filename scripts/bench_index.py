"""The benchmark of the index of `sqlite:`: the gain of a search, and the cost of writing.

    scripts/bench --index [--rounds N] [--quick] [--text words|letters] [--write]

Each round makes the same files of 2 KiB, a thousand a directory, on a plain directory, on a mount of `sqlite:` without
its index, and on a mount with it. Then it searches for a string in one of them: the verb `grep`, over the control
socket, in turns with `rg -F` on the plain directory, all of it in the kernel's cache. The cost has two parts: the added
time of making the files, and the added processor time of the server until all is indexed.
"""

from __future__ import annotations

import argparse
import os
import random
import sqlite3
import statistics
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from measures import timed
from report import write_between
from serving import REPOSITORY, mounted

import fusebackend

SIZE_BYTES = 2048
NEEDLE = "rare_needle_7b"
SEARCHES = 9
SETTLED_LIMIT_S = 600

Seconds = dict[str, list[float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a tenth of the files")
    parser.add_argument("--text", choices=["words", "letters"], default="words", help="of 2,000 words, or at random")
    parser.add_argument("--write", action="store_true", help="write the table to BENCHMARKS.md")
    arguments = parser.parse_args()
    files = 10_000 if arguments.quick else 100_000
    contents = [text.encode() for text in texts(files, arguments.text)]
    seconds: Seconds = {}
    for number in range(arguments.rounds):
        with tempfile.TemporaryDirectory(prefix="fusebackend-bench-") as directory:
            for name, found in one_round(Path(directory), contents).items():
                seconds.setdefault(name, []).extend(found)
        print(f"round {number + 1} of {arguments.rounds} done", file=sys.stderr)
    report = table({name: statistics.median(found) for name, found in seconds.items()}, files)
    print(report)
    if arguments.write:
        write_between("index", report)


def texts(files: int, kind: str) -> Iterator[str]:
    """Yield texts, each with its own number; one holds the needle."""
    chance = random.Random(7)
    words = ["".join(chance.choices(string.ascii_lowercase, k=chance.randint(2, 9))) for _ in range(2000)]
    for number in range(files):
        start = f"file {number}\n" + (f"{NEEDLE}\n" if number == files // 2 else "")
        if kind == "words":
            rest = " ".join(chance.choices(words, k=420)).replace(" e", "\ne")
        else:
            rest = "".join(chance.choices(string.ascii_lowercase + "  \n", k=SIZE_BYTES))
        yield (start + rest).ljust(SIZE_BYTES)[:SIZE_BYTES]


def one_round(work: Path, contents: list[bytes]) -> Seconds:
    plain = work / "plain"
    plain.mkdir()
    seconds = {"plain": [timed(lambda: create(plain, contents))]}
    with serving(work, "off", "python:unindexed:backend") as mountpoint:
        seconds["off"] = [timed(lambda: create(mountpoint, contents))]
        seconds["off cpu"] = [processor_s(mountpoint)]
    with serving(work, "on", f"sqlite:{work / 'on.db'}") as mountpoint, fusebackend.connect(mountpoint) as client:
        seconds["on"] = [timed(lambda: create(mountpoint, contents))]

        def grep() -> None:
            found = client.grep(NEEDLE)
            assert not found.truncated and len(found.matches or ()) == 1, found

        seconds["fresh"] = [timed(grep)]
        seconds["settled"] = [timed(lambda: settle(work / "on.db"))]
        seconds["on cpu"] = [processor_s(mountpoint)]
        ripgrep = ["rg", "--no-config", "-F", NEEDLE, str(plain)]
        for name in ("grep", "rg"):
            seconds[name] = []
        for _ in range(SEARCHES):
            seconds["grep"].append(timed(grep))
            seconds["rg"].append(timed(lambda: subprocess.run(ripgrep, check=True, stdout=subprocess.DEVNULL)))
    return seconds


@contextmanager
def serving(work: Path, name: str, url: str) -> Iterator[Path]:
    mountpoint = work / name
    settings = [f"PYTHONPATH={REPOSITORY / 'scripts'}", f"UNINDEXED_FILE={work / 'off.db'}"]
    serve = [sys.executable, "-m", "fusebackend", "mount", "--foreground", "--default", url, str(mountpoint)]
    with mounted(["env", *settings, *serve], mountpoint, work / f"{name}.log"):
        yield mountpoint


def create(root: Path, contents: list[bytes]) -> None:
    for number, content in enumerate(contents):
        if number % 1000 == 0:
            os.mkdir(f"{root}/{number // 1000:03}")
        file = os.open(f"{root}/{number // 1000:03}/{number:06}.txt", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        os.write(file, content)
        os.close(file)


def processor_s(mountpoint: Path) -> float:
    """Return the processor time that the server of a mount has used so far."""
    with fusebackend.connect(mountpoint) as client:
        pid = client.status()["pid"]
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def settle(file: Path) -> None:
    """Wait until everything is indexed."""
    db = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
    deadline = time.monotonic() + SETTLED_LIMIT_S
    while db.execute("SELECT count(*) FROM unindexed").fetchone()[0]:
        if time.monotonic() > deadline:
            raise SystemExit(f"not everything was indexed within {SETTLED_LIMIT_S} s")
        time.sleep(0.1)
    db.close()


def table(s: dict[str, float], files: int) -> str:
    share, more_cpu = s["on"] / s["off"] - 1, s["on cpu"] - s["off cpu"]
    rows = [
        f"| a rare string in {files:,} files | `rg -F`, plain directory "
        f"| {s['grep'] * 1000:.1f} ms | {s['rg'] * 1000:.1f} ms | {s['rg'] / s['grep']:.0f} × faster |",
        f"| the same, before they are indexed | `rg -F`, plain directory "
        f"| {s['fresh'] * 1000:.0f} ms | {s['rg'] * 1000:.0f} ms | {s['rg'] / s['fresh']:.1f} × faster |",
        f"| making the files on the mount | without an index | {s['on']:.1f} s | {s['off']:.1f} s | {share:+.0%} |",
        f"| processor time of the server for that, all indexed | without an index "
        f"| {s['on cpu']:.1f} s | {s['off cpu']:.1f} s | {more_cpu:+.1f} s, {more_cpu / s['off']:.0%} of making them |",
        f"| from the last file to the last entry | | {s['settled']:.1f} s | | |",
        f"| making the files in a plain directory | | | {s['plain']:.1f} s | |",
    ]
    return "\n".join(["| what | against | ours | that | |", "|---|---|---:|---:|---:|", *rows])


if __name__ == "__main__":
    main()
