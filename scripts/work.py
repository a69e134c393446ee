"""Pieces of work that several benchmarks do, and the clock they are measured with."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import statistics
import string
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

MIB = 1 << 20
BLOCK = 4096
NEEDLE = "rare_needle_7b"
"""A string that one file holds."""

DROP_CACHES = Path("/proc/sys/vm/drop_caches")


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def percentile(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def shell(command: str, directory: Path) -> None:
    subprocess.run(command, shell=True, cwd=directory, check=True, stdout=subprocess.DEVNULL)


def drop_caches() -> bool:
    """Drop clean pages, dentries and inodes. Only root can: False means that the cold measures are warm."""
    os.sync()
    try:
        DROP_CACHES.write_text("3")
    except PermissionError:
        return False
    return True


def vocabulary(chance: random.Random) -> list[str]:
    """Return 2,000 words."""
    return ["".join(chance.choices(string.ascii_lowercase, k=chance.randint(2, 9))) for _ in range(2000)]


def make_source_tree(target: Path, files: int) -> None:
    """Make a repository of `files` files of words, 13 KiB on average, 20 a directory, committed and packed in a tar."""
    chance = random.Random(7)
    words = vocabulary(chance)
    tree = target.parent / "source"
    for number in range(files):
        directory = tree / f"package{number // 200}" / f"module{number // 20 % 10}"
        directory.mkdir(parents=True, exist_ok=True)
        text = " ".join(chance.choices(words, k=chance.randint(10, 4000)))
        (directory / f"file{number}.py").write_text(text.replace(" e", "\ne"))
    identity = "-c user.name=bench -c user.email=bench@example.invalid"
    shell(f"git init -q && git add . && git {identity} commit -qm all", tree)
    with tarfile.open(target, "w") as archive:
        archive.add(tree, arcname="tree")
    shutil.rmtree(tree)


def make_file(path: str | Path, content: bytes) -> None:
    """Make a new file by one open, write and close."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.write(file, content)
    os.close(file)


def read_file(path: str | Path) -> None:
    """Read a file of up to 4 KiB by one open, read and close."""
    file = os.open(path, os.O_RDONLY)
    os.read(file, BLOCK)
    os.close(file)


def write_large(path: Path, mib: int) -> float:
    """Write a file in calls of 1 MiB, with one fsync; return the seconds."""
    block = random.Random(1).randbytes(MIB)

    def write() -> None:
        with open(path, "wb", buffering=0) as file:
            for _ in range(mib):
                file.write(block)
            os.fsync(file.fileno())

    return timed(write)


def read_large(path: Path) -> float:
    """Read a file in calls of 1 MiB, each into memory of its own; return the seconds."""

    def read() -> None:
        with open(path, "rb", buffering=0) as file:
            while file.read(MIB):
                pass

    return timed(read)


def read_again(path: Path) -> float:
    """Read a file in calls of 1 MiB, all into the same memory; return the seconds."""
    buffer = bytearray(MIB)

    def read() -> None:
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass

    return timed(read)


def offsets(seed: int, mib: int, count: int) -> list[int]:
    """Choose blocks of a file of so many MiB."""
    chance = random.Random(seed)
    return [chance.randrange(mib * MIB // BLOCK) * BLOCK for _ in range(count)]


FORK = multiprocessing.get_context("fork")


@contextmanager
def processes(
    count: int, work: Callable[[int, Barrier], Any]
) -> Iterator[tuple[Barrier, Callable[[float], list[Any]]]]:
    """Run processes that each call `work(number, start)` for the length of a block.

    Yield `start`, a barrier of theirs and this process, and a function that waits so many seconds for their results,
    and returns those that came. It waits no longer when one of them has failed.
    """
    start, answers = FORK.Barrier(count + 1), FORK.SimpleQueue()

    def one(number: int) -> None:
        answers.put(work(number, start))

    def results(limit_s: float) -> list[Any]:
        found, deadline = [], time.monotonic() + limit_s
        while len(found) < count and time.monotonic() < deadline:
            if not answers.empty():
                found.append(answers.get())
            elif any(worker.exitcode for worker in workers):
                break
            else:
                time.sleep(0.01)
        return found

    workers = [FORK.Process(target=one, args=(number,), daemon=True) for number in range(count)]
    try:
        for worker in workers:
            worker.start()
        yield start, results
    finally:
        for worker in workers:
            worker.kill()
            worker.join()
