"""The benchmark: fifteen measures on a plain directory and on a mount of the same disk, as ratios.

    scripts/bench [--url URL] [--rounds N] [--only WORDS] [--quick] [--write]

Each round runs every measure on both, one after the other, so that noise of the machine hits both alike; the ratio is
that of the medians. `--write` replaces the table in BENCHMARKS.md. Never part of a test: numbers are not promises.
"""

from __future__ import annotations

import argparse
import mmap
import os
import platform
import random
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
MIB = 1 << 20
BLOCK = 4096


class Scale:
    """How much work: the issue's sizes, or a tenth for a quick look."""

    def __init__(self, quick: bool) -> None:
        self.files = 1000 if quick else 10_000
        self.tree_files = 300 if quick else 1500
        self.big_mib = 32 if quick else 256
        self.blocks = 500 if quick else 4000
        self.commits = 50 if quick else 200


def shell(command: str, directory: Path) -> None:
    subprocess.run(command, shell=True, cwd=directory, check=True, stdout=subprocess.DEVNULL)


def drop_caches() -> None:
    """Forget clean pages, dentries and inodes; only root can, and without it the cold measures are warm."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except PermissionError:
        pass


def make_source_tree(target: Path, files: int) -> None:
    """A repository with `files` files of words, 13 KiB on average, 20 a directory, committed and packed in a tar."""
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


class Measures:
    """The fifteen, in the order they run in; each gives the seconds of the part that counts."""

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


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@contextmanager
def mounted(url: str, mountpoint: Path, log: Path) -> Iterator[float]:
    """A mount of `url`; gives the seconds until it answered."""
    command = [sys.executable, "-m", "fusebackend", "mount", "--foreground", "--default", url, str(mountpoint)]
    start = time.perf_counter()
    with open(log, "wb") as output:
        server = subprocess.Popen(command, cwd=REPOSITORY, stdout=output, stderr=output)
    try:
        while not os.path.ismount(mountpoint):
            if server.poll() is not None or time.perf_counter() - start > 20:
                raise SystemExit(f"the mount did not start:\n{log.read_text()}")
            time.sleep(0.005)
        mountpoint.stat()
        yield time.perf_counter() - start
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)


def import_seconds() -> float:
    """`import fusebackend` beyond what starting Python costs, median of five."""

    def run(code: str) -> float:
        command = [sys.executable, "-c", code]
        return statistics.median(timed(lambda: subprocess.run(command, check=True)) for _ in range(5))

    return run("import fusebackend") - run("pass")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="sqlite", help="sqlite, memory, dir, or a URL (default: sqlite)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="only measures whose name contains one of these words, with commas")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work")
    parser.add_argument("--write", action="store_true", help="write the table to BENCHMARKS.md")
    parser.add_argument("--directory", help="where to work (default: the system's temporary directory)")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds must be 1 or more")
    work = Path(tempfile.mkdtemp(prefix="fusebackend-bench-", dir=arguments.directory))
    try:
        report = run(arguments, work)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(report)
    if arguments.write:
        write_report(report)


def run(arguments: argparse.Namespace, work: Path) -> str:
    scale = Scale(arguments.quick)
    plain, mountpoint = work / "plain", work / "mount"
    for directory in (plain, mountpoint, work / "dir"):
        directory.mkdir()
    urls = {"sqlite": f"sqlite:{work / 'volume.db'}", "memory": "memory:", "dir": f"dir:{work / 'dir'}"}
    url = urls.get(arguments.url, arguments.url)
    archive = work / "source.tar"
    make_source_tree(archive, scale.tree_files)
    measures = Measures(scale, archive).all()
    words = [word for word in arguments.only.split(",") if word]
    seconds: dict[str, dict[Path, list[float]]] = {name: {plain: [], mountpoint: []} for name in measures}
    with mounted(url, mountpoint, work / "log") as answer_s:
        for number in range(arguments.rounds):
            for name, measure in measures.items():
                for root in (plain, mountpoint) if number % 2 == 0 else (mountpoint, plain):
                    seconds[name][root].append(measure(root))
            print(f"round {number + 1} of {arguments.rounds} done", file=sys.stderr)
    rows = {}
    for name, found in seconds.items():
        if not words or any(word in name for word in words):
            rows[name] = (statistics.median(found[plain]), statistics.median(found[mountpoint]))
    return table(url.partition(":")[0], rows, arguments, answer_s)


def table(scheme: str, rows: dict[str, tuple[float, float]], arguments: argparse.Namespace, answer_s: float) -> str:
    quick = ", quick" if arguments.quick else ""
    lines = [
        f"`{scheme}:` on {platform.system()} {platform.release()}, {platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}; medians of {arguments.rounds} rounds{quick}.",
        "",
        "| measure | plain directory (ms) | mount (ms) | ratio |",
        "|---|---:|---:|---:|",
    ]
    ratios = []
    for name, (plain, mount) in rows.items():
        ratios.append(mount / plain)
        lines.append(f"| {name} | {plain * 1000:.1f} | {mount * 1000:.1f} | {mount / plain:.1f} |")
    lines.append(f"| **geometric mean** | | | **{statistics.geometric_mean(ratios):.2f}** |")
    lines += ["", f"`import fusebackend`: {import_seconds():.3f} s. Mount answers after {answer_s:.2f} s."]
    return "\n".join(lines)


def write_report(report: str) -> None:
    """Replace what stands between the markers in BENCHMARKS.md."""
    path = REPOSITORY / "BENCHMARKS.md"
    before, start, rest = path.read_text().partition("<!-- table -->\n")
    _, end, after = rest.partition("<!-- end of table -->")
    if not start or not end:
        raise SystemExit(f"{path} has no table markers")
    path.write_text(f"{before}{start}{report}\n{end}{after}")


if __name__ == "__main__":
    main()
