"""The measures of the benchmark: fifteen pieces of work, each on a given directory."""

from __future__ import annotations

import mmap
import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path

from work import BLOCK, drop_caches, make_file, offsets, read_file, read_large, shell, timed, write_large


class Scale:
    """The amount of work: full, or a tenth for a quick look."""

    def __init__(self, quick: bool) -> None:
        self.files = 1000 if quick else 10_000
        self.tree_files = 300 if quick else 1500
        self.big_mib = 32 if quick else 256
        self.blocks = 500 if quick else 4000
        self.commits = 50 if quick else 200


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
    """The fifteen measures, with their amount of work."""

    def __init__(self, scale: Scale, archive: Path) -> None:
        self.scale = scale
        self.archive = archive
        self.offsets = offsets(3, scale.big_mib, scale.blocks)

    def all(self) -> dict[str, Callable[[Path], float]]:
        return {name: partial(each, self) for name, each in MEASURES.items()}

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
        (root / "big").unlink(missing_ok=True)
        return write_large(root / "big", self.scale.big_mib)

    def sequential_read(self, root: Path) -> float:
        drop_caches()
        return read_large(root / "big")

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
        return timed(lambda: [make_file(name, content) for name in names])

    def stat(self, root: Path) -> float:
        return timed(lambda: [entry.stat() for entry in os.scandir(root / "small")])

    def read(self, root: Path) -> float:
        return timed(lambda: [read_file(name) for name in self._names(root)])

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


MEASURES: dict[str, Callable[[Measures, Path], float]] = {
    "untar": Measures.untar,
    "git status": Measures.git_status,
    "find -ls": Measures.find,
    "rg": Measures.rg,
    "grep -r warm": Measures.grep,
    "seq write + fsync": Measures.sequential_write,
    "seq read cold": Measures.sequential_read,
    "random read 4K cold": Measures.random_read,
    "random read 4K O_DIRECT": Measures.direct_read,
    "random write 4K + fsync": Measures.random_write,
    "create small": Measures.create,
    "stat small": Measures.stat,
    "read small": Measures.read,
    "unlink small": Measures.unlink,
    "SQLite commit": Measures.commits,
}
"""In their order; each returns the seconds of the part that counts."""
