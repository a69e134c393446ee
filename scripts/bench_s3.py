"""The benchmarks of buckets: a mount beside `rclone mount` and obstore alone; the requests that an operation costs."""

from __future__ import annotations

import os
import random
import stat
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import peers
from bench_hosts import FILE_BYTES, LATENCY_S, READERS, files_of, speed_of_many, speed_of_one
from driver import Medians, Run, benchmark, in_rounds, markdown, only, order
from services import moto, seaweedfs
from services.failing_proxy import FailingProxy, failing_bucket
from services.s3 import Bucket, Service
from services.stall import Stall
from serving import Server, mounted, our_mount
from work import BLOCK, MIB, drop_caches, make_source_tree, offsets, read_large, shell, timed

from fusebackend.backends import S3Backend
from fusebackend.protocol import ROOT_NODE, Caller

# -- a bucket beside rclone ----------------------------------------------------------------------------------------

PART_BYTES = 8 * MIB
"""The size of a request of obstore alone, with four at once: the fastest size in trials."""

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
        self.offsets = offsets(3, scale.big_mib, scale.reads)

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
        return read_large(root / "big")

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


MEASURES: dict[str, Callable[[Work, Path], float]] = {
    "seq read": Work.sequential_read,
    "random read 4K": Work.random_read,
    "rg": Work.search,
    "rg again": Work.search,
    "git status": Work.git_status,
    "git status again": Work.git_status,
}


def rclone_command(bucket: Bucket, prefix: str, mountpoint: Path, cache: Path) -> list[str]:
    service = bucket.service
    return [
        peers.found("rclone"), "mount", f":s3:{bucket.name}/{prefix}", str(mountpoint), "--config=/dev/null",
        "--s3-provider=SeaweedFS", f"--s3-endpoint={service.endpoint}", f"--s3-access-key-id={service.key}",
        f"--s3-secret-access-key={service.secret}", "--vfs-cache-mode=writes", f"--cache-dir={cache}",
    ]  # fmt: skip


def one_round(work: Work, place: Path, only: Sequence[str], number: int) -> Iterator[tuple[str, str, float]]:
    """Start both mounts with empty caches, and run every measure on both, in turns."""
    place.mkdir()
    sides = {"ours": place / "ours", "rclone": place / "rclone"}
    command = rclone_command(work.bucket, "rclone", sides["rclone"], place / "cache")
    with (
        our_mount(work.bucket.url("ours"), sides["ours"]),
        mounted(command, sides["rclone"], place / "rclone-log"),
    ):
        work.service.wait_idle()  # the store still works on the writes and deletions of the last round
        turns = order(list(sides), number)
        if "seq read" in only:
            work.obstore_alone()  # the store reads its disk for this one
            yield "seq read", "obstore", work.obstore_alone()
        for name, measure in MEASURES.items():
            for side in turns if name in only else ():
                yield name, side, measure(work, sides[side])
        for side in turns if "untar" in only else ():
            yield "untar", side, work.untar(sides[side])
            yield "untar stored", side, work.stored(sides[side])
            work.clean(side)


def readers(bucket: Bucket, directory: Path, store: Any) -> str:
    """Compare one reader with many, of different files, with 50 ms between mount and store."""
    import obstore

    files = [files_of(reader) for reader in range(READERS + 1)]
    content = random.Random(5).randbytes(FILE_BYTES)
    for name in chain.from_iterable(files):
        obstore.put(store, f"latency/{name}", content)
    parts = urlsplit(bucket.service.endpoint)
    assert parts.hostname is not None and parts.port is not None
    mountpoint = directory / "far"
    with Stall((parts.hostname, parts.port)) as network:
        service = Service("http://{}:{}".format(*network.address), bucket.service.key, bucket.service.secret)
        with our_mount(Bucket(service, bucket.name).url("latency"), mountpoint):
            os.listdir(mountpoint)
            network.latency_s = LATENCY_S
            one, many = speed_of_one(mountpoint, files[0]), speed_of_many(mountpoint, files[1:])
    return (
        f"With {LATENCY_S * 1000:.0f} ms between mount and store: one reader {one:.2f} MiB/s, {READERS} readers "
        f"{many:.1f} MiB/s, {many / one:.0f} times as much."
    )


def missing() -> str | None:
    return seaweedfs.missing() or peers.PEERS["rclone"].missing()


@benchmark(
    "s3",
    "a mount of a bucket against `rclone mount` of the same one, and obstore alone",
    only((*MEASURES, "untar", "readers")),
    missing=missing,
    rounds=3,
    quick="about a tenth of the work",
    table="bucket",
)
def s3(run: Run) -> list[str]:
    """Start a SeaweedFS. Each round mounts a bucket of it by both anew, with nothing cached, and runs every measure on
    both, one after the other and in turns; a ratio is that of the medians of the rounds.

    rclone runs with `--vfs-cache-mode writes` and otherwise with its defaults: it stores a file 5 s after `close`, so
    that untar is measured twice, until `tar` ends and until everything is in the bucket. Our mount stores a file before
    `close` returns. The last part puts 50 ms between mount and store.
    """
    from obstore.store import S3Store

    lines: list[str] = []
    with seaweedfs.running() as server, server.bucket() as bucket:
        options: Any = bucket.options()
        store = S3Store(bucket.name, client_options={"allow_http": True}, **options)
        if run.only != ("readers",):
            work = Work(Scale(bool(run.quick)), run.work, bucket, store, Server([server.pid]))
            for side in ("ours", "rclone"):
                work.fill(side)
            one = lambda number: one_round(work, run.work / f"round{number}", run.only, number)  # noqa: E731
            lines += [*bucket_table(in_rounds(run.rounds, one)), ""]
        if "readers" in run.only:
            lines.append(readers(bucket, run.work, store))
    return lines


def bucket_table(medians: Medians) -> list[str]:
    rows = []
    for name, sides in medians.items():
        ours, rclone, alone = sides["ours"], sides["rclone"], sides.get("obstore")
        share = f"{alone:.2f} s, {100 * alone / ours:.0f} % of its speed" if alone else ""
        rows.append([name, f"{ours:.2f} s", f"{rclone:.2f} s", f"{rclone / ours:.2f}", share])
    return markdown(["measure", "fusebackend", "rclone mount", "rclone ÷ fusebackend", "obstore alone"], rows)


# -- requests ------------------------------------------------------------------------------------------------------

HOUR_S = 3600.0
SIZES = (100, 1000)
"""Files of the directories that are listed."""

CHANGED = 9
"""Files of a directory that is renamed, and of a directory in which calls change files."""

TEXT = "x" * 1023 + "\n"
ME = Caller(os.geteuid(), os.getegid())
KINDS = ("LIST", "HEAD", "GET", "PUT", "COPY", "DELETE", "POST")


class Operations:
    """The operations of both faces; `turn` is 0, 1 and 2."""

    def __init__(self, backend: S3Backend) -> None:
        self._backend = backend
        self._volume = backend.volume

    def all(self) -> dict[str, Callable[[int], object]]:
        backend = self._backend
        found: dict[str, Callable[[int], object]] = {}
        for size in SIZES:
            found[f"`ls` of {size:,} files"] = lambda _, size=size: backend.ls(f"/d{size}").error  # type: ignore[misc]
        found["`read` of 1 KiB"] = lambda _: backend.read("/d100/f0000").error
        found["`write` of a new file of 1 KiB"] = lambda turn: backend.write(f"/changed/new{turn}", TEXT).error
        found["`edit` of 1 KiB"] = lambda turn: backend.edit(f"/changed/f{turn:04}", "x\n", "y\n").error
        found["`move` of a file"] = lambda turn: backend.move(f"/changed/f{3 + turn:04}", f"/moved{turn}").error
        found["`delete` of a file"] = lambda turn: backend.delete(f"/changed/f{6 + turn:04}").error
        found["`grep` in 100 files of 1 KiB"] = lambda _: backend.grep("needle", "/d100").error
        found["`stat`"] = lambda _: self.stat("d100", "f0000")
        for size in SIZES:
            found[f"`ls -l` of {size:,} files"] = lambda _, size=size: self.list_all(f"d{size}")  # type: ignore[misc]
        found["open, read, close of 1 KiB"] = lambda _: self.read("d100", "f0000")
        found["create, write, close of 1 KiB"] = self.create
        found["rename of a file"] = self.rename
        found[f"rename of a directory of {CHANGED} files"] = self.rename_directory
        return found

    def _node(self, *names: str) -> int:
        node = ROOT_NODE
        for name in names:
            node = self._volume.lookup(node, name.encode()).node
        return node

    def stat(self, *names: str) -> None:
        self._volume.getattr(self._node(*names))

    def list_all(self, directory: str) -> None:
        """Do what `ls -l` makes the kernel ask for: pages of names, then each inode's attributes."""
        node, after = self._node(directory), b""
        while page := self._volume.readdir(node, after, 128):
            after = page[-1][0]
            for name, _ in page:
                found = self._volume.getattr(self._volume.lookup(node, name).node)
                assert stat.S_ISREG(found.mode)

    def read(self, *names: str) -> None:
        node = self._node(*names)
        self._volume.open(node, os.O_RDONLY)
        assert self._volume.read(node, 0, 4096) == TEXT.encode()
        self._volume.release(node, os.O_RDONLY)

    def create(self, turn: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT
        node = self._volume.create(self._node("changed"), b"made%d" % turn, 0o644, flags, ME).node
        self._volume.write(node, 0, TEXT.encode())
        self._volume.flush(node)
        self._volume.release(node, flags)

    def rename(self, turn: int) -> None:
        directory = self._node("changed")
        self._volume.rename(directory, b"f%04d" % turn, directory, b"renamed%d" % turn)

    def rename_directory(self, turn: int) -> None:
        self._volume.rename(ROOT_NODE, b"from%d" % turn, ROOT_NODE, b"to%d" % turn)


def put_files(bucket: Bucket) -> None:
    """Put the files past the backend, as another client does."""
    for size in SIZES:
        for number in range(size):
            bucket.put(f"d{size}/f{number:04}", TEXT.encode())


def put_changed(bucket: Bucket) -> None:
    """Put the files anew that the operations change."""
    for directory in ("changed", "from0", "from1", "from2"):
        for number in range(CHANGED):
            bucket.put(f"{directory}/f{number:04}", TEXT.encode())


def count(proxy: FailingProxy, bucket: Bucket, behind: Bucket) -> list[list[str]]:
    """Return the rows of the table; requests that prepare an operation go past the proxy."""
    rows, name = [], ""
    put_files(behind)
    for number in range(10**6):
        put_changed(behind)
        now = [0.0]
        with S3Backend(bucket.name, clock=lambda now=now: now[0], **bucket.options()) as backend:  # type: ignore[misc]
            operations = Operations(backend).all()
            if number == len(operations):
                return rows
            name, operation = list(operations.items())[number]
            cells = []
            for turn in range(3):
                if turn == 2:
                    now[0] += HOUR_S
                proxy.requests.clear()
                if (error := operation(turn)) is not None:
                    raise SystemExit(f"{name}: {error}")
                cells.append(shown(Counter(proxy.requests)))
            rows.append([name, *cells])
        for directory in ("changed", "from0", "from1", "from2", "to0", "to1", "to2"):
            remove(behind, directory)
    raise AssertionError("there are fewer operations than that")


def remove(bucket: Bucket, directory: str) -> None:
    for key in bucket.all_keys():
        if key.startswith((f"{directory}/", "moved")):
            bucket.delete(key)


def shown(requests: Counter[str]) -> str:
    """Write the number of requests, and of which kind: `3: 1 LIST, 2 HEAD`."""
    kinds = [f"{requests[kind]} {kind}" for kind in KINDS if requests[kind]]
    return f"{requests.total()}: {', '.join(kinds)}" if kinds else "0"


@benchmark("requests", "the requests that each operation costs on a bucket", missing=moto.missing)
def requests(run: Run) -> list[str]:
    """Count the requests of each operation at the side of the service: moto's S3 with a counting proxy in front of it
    (`tests/services/failing_proxy.py`), and an `S3Backend` in this process.

    Each operation runs three times: with nothing cached, again at once (listings are cached for a second), and again
    after an hour without a call. The clock that listings age by stands still meanwhile, and is moved by hand: nothing
    here depends on how fast the machine is. Operations that change something have another file each time.
    """
    with moto.running() as server, failing_bucket(server.service) as (proxy, bucket):
        rows = count(proxy, bucket, Bucket(server.service, bucket.name))
    return markdown(["operation", "nothing cached", "again at once", "after an idle hour"], rows)
