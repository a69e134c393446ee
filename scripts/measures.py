"""The measures of the benchmark: fifteen pieces of work, each on a given directory."""

from __future__ import annotations

import mmap
import os
import random
import shutil
import sqlite3
import subprocess
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

MIB = 1 << 20
BLOCK = 4096


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


class Scale:
    """The amount of work: full, or a tenth for a quick look."""

    def __init__(self, quick: bool) -> None:
        self.files = 1000 if quick else 10_000
        self.tree_files = 300 if quick else 1500
        self.big_mib = 32 if quick else 256
        self.blocks = 500 if quick else 4000
        self.commits = 50 if quick else 200


def shell(command: str, directory: Path) -> None:
    subprocess.run(command, shell=True, cwd=directory, check=True, stdout=subprocess.DEVNULL)


def drop_caches() -> bool:
    """Drop clean pages, dentries and inodes. Only root can: False means that the cold measures are warm."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except PermissionError:
        return False
    return True


def make_source_tree(target: Path, files: int) -> None:
    """Make a repository of `files` files of words, 13 KiB on average, 20 a directory, committed and packed in a tar."""
    chance = random.Random(7)
    words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 9))) for _ in range(2000)]
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


PREPARES = {
    "git status": "untar",
    "find -ls": "untar",
    "rg": "untar",
    "grep -r warm": "untar",
    "seq read cold": "seq write + fsync",
    "random read 4K cold": "seq write + fsync",
    "random read 4K O_DIRECT": "seq write + fsync",
    "random write 4K + fsync": "seq write + fsync",
    "stat small": "create small",
    "read small": "create small",
    "unlink small": "create small",
}
"""The measures that must run before a measure, because they make its files."""


class Measures:
    """The fifteen measures, in their order; each returns the seconds of the part that counts."""

    def __init__(self, scale: Scale, archive: Path) -> None:
        self.scale = scale
        self.archive = archive
        chance = random.Random(3)
        self.offsets = [chance.randrange(scale.big_mib * MIB // BLOCK) * BLOCK for _ in range(scale.blocks)]

    def all(self) -> dict[str, Callable[[Path], float]]:
        return {
            "untar": self.untar,
            "git status": self.git_status,
            "find -ls": self.find,
            "rg": self.rg,
            "grep -r warm": self.grep,
            "seq write + fsync": self.sequential_write,
            "seq read cold": self.sequential_read,
            "random read 4K cold": self.random_read,
            "random read 4K O_DIRECT": self.direct_read,
            "random write 4K + fsync": self.random_write,
            "create small": self.create,
            "stat small": self.stat,
            "read small": self.read,
            "unlink small": self.unlink,
            "SQLite commit": self.commits,
        }

    def untar(self, root: Path) -> float:
        shutil.rmtree(root / "tree", ignore_errors=True)
        return timed(lambda: shell(f"tar xf {self.archive}", root))

    def git_status(self, root: Path) -> float:
        shell("git status", root / "tree")  # the first one after untar reads every file to refresh its index
        return timed(lambda: shell("git status", root / "tree"))

    def find(self, root: Path) -> float:
        return timed(lambda: shell("find tree -ls", root))

    def rg(self, root: Path) -> float:
        return timed(lambda: shell("rg -c --no-ignore zebra tree || true", root))

    def grep(self, root: Path) -> float:
        shell("grep -r zebra tree || true", root)
        return timed(lambda: shell("grep -r zebra tree || true", root))

    def sequential_write(self, root: Path) -> float:
        block = random.Random(1).randbytes(MIB)

        def write() -> None:
            with open(root / "big", "wb", buffering=0) as file:
                for _ in range(self.scale.big_mib):
                    file.write(block)
                os.fsync(file.fileno())

        (root / "big").unlink(missing_ok=True)
        return timed(write)

    def sequential_read(self, root: Path) -> float:
        drop_caches()

        def read() -> None:
            with open(root / "big", "rb", buffering=0) as file:
                while file.read(MIB):
                    pass

        return timed(read)

    def random_read(self, root: Path) -> float:
        drop_caches()
        return self._read_blocks(root, 0)

    def direct_read(self, root: Path) -> float:
        drop_caches()
        return self._read_blocks(root, os.O_DIRECT)

    def _read_blocks(self, root: Path, flags: int) -> float:
        file = os.open(root / "big", os.O_RDONLY | flags)
        buffer = mmap.mmap(-1, BLOCK)  # O_DIRECT wants an aligned one
        try:
            return timed(lambda: [os.preadv(file, [buffer], offset) for offset in self.offsets])
        finally:
            os.close(file)

    def random_write(self, root: Path) -> float:
        file = os.open(root / "big", os.O_RDWR)
        block = random.Random(2).randbytes(BLOCK)

        def write() -> None:
            for number, offset in enumerate(self.offsets):
                os.pwrite(file, block, offset)
                if number % 64 == 63:
                    os.fsync(file)

        try:
            return timed(write)
        finally:
            os.close(file)

    def _names(self, root: Path) -> list[str]:
        return [f"{root}/small/{number:05}" for number in range(self.scale.files)]

    def create(self, root: Path) -> float:
        shutil.rmtree(root / "small", ignore_errors=True)
        (root / "small").mkdir()
        names, content = self._names(root), b"x" * 1024

        def create() -> None:
            for name in names:
                file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
                os.write(file, content)
                os.close(file)

        return timed(create)

    def stat(self, root: Path) -> float:
        return timed(lambda: [entry.stat() for entry in os.scandir(root / "small")])

    def read(self, root: Path) -> float:
        def read() -> None:
            for name in self._names(root):
                file = os.open(name, os.O_RDONLY)
                os.read(file, 4096)
                os.close(file)

        return timed(read)

    def unlink(self, root: Path) -> float:
        return timed(lambda: [os.unlink(name) for name in self._names(root)])

    def commits(self, root: Path) -> float:
        for name in ("db", "db-journal"):
            (root / name).unlink(missing_ok=True)
        connection = sqlite3.connect(root / "db", isolation_level=None)
        connection.execute("CREATE TABLE t (a INTEGER, b TEXT)")

        def commit() -> None:
            for number in range(self.scale.commits):
                connection.execute("INSERT INTO t VALUES (?, ?)", (number, "x" * 100))

        try:
            return timed(commit)
        finally:
            connection.close()
