"""The benchmarks of buckets: a mount beside `rclone mount` and obstore alone; the requests that an operation costs."""

from __future__ import annotations

import os
import random
import stat
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from urllib.parse import urlsplit

import obstore
import peers
from bench_hosts import FILE_BYTES, LATENCY_S, READERS, files_of, speed_of_many, speed_of_one
from driver import Medians, Run, benchmark, in_rounds, markdown, only, order
from obstore.store import S3Store
from services import seaweedfs
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
    """The measures. `root` is a mount point, whose name is the prefix in the bucket that it shows."""

    def __init__(self, scale: Scale, directory: Path, bucket: Bucket, store: S3Store, service: Server) -> None:
        self.service = service
        self.scale = scale
        self.bucket = bucket
        self.store = store
        self.directory = directory
        make_source_tree(directory / "tree.tar", scale.tree_files)
        shell("tar xf tree.tar", directory)
        self.small = directory / "small.tar"
        make_small_files(self.small, scale.small_files)
        self.offsets = offsets(3, scale.big_mib, scale.reads)

    def fill(self, prefix: str) -> None:
        """Upload the files that are only read, past the mounts, as another client would."""
        block = random.Random(1).randbytes(PART_BYTES)
        parts = (block for _ in range(self.scale.big_mib * MIB // PART_BYTES))
        obstore.put(self.store, f"{prefix}/big", parts, use_multipart=True, chunk_size=PART_BYTES)

        def put(path: Path) -> None:
            obstore.put(self.store, f"{prefix}/{path.relative_to(self.directory)}", path.read_bytes())

        with ThreadPoolExecutor(16) as threads:
            list(threads.map(put, [path for path in (self.directory / "tree").rglob("*") if path.is_file()]))

    def obstore_alone(self, prefix: str = "ours") -> float:
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
        with open(root / "big", "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            return timed(lambda: [os.pread(file.fileno(), BLOCK, offset) for offset in self.offsets])

    def search(self, root: Path) -> float:
        drop_caches()
        return timed(lambda: shell("rg -c --no-ignore zebra tree || true", root))

    def git_status(self, root: Path) -> float:
        return timed(lambda: shell("git -c safe.directory='*' status", root / "tree"))

    def untar(self, root: Path) -> tuple[float, float]:
        """Return the seconds of unpacking, and until the last of the files is in the bucket. Remove the files.

        The directory has a new name: SeaweedFS lists an emptied one for a while after its last object.
        """
        new = f"new{time.monotonic_ns()}"
        (root / new).mkdir()
        began = time.perf_counter()
        untar_s = timed(lambda: shell(f"tar xf {self.small}", root / new))
        while len(keys := self.keys(f"{root.name}/{new}")) < self.scale.small_files:
            if time.perf_counter() - began > STORED_LIMIT_S:
                raise SystemExit(f"{root.name} has not stored its files after {STORED_LIMIT_S:.0f} s")
            time.sleep(0.05)
        stored_s = time.perf_counter() - began
        obstore.delete(self.store, keys)
        return untar_s, stored_s

    def keys(self, prefix: str) -> list[str]:
        return [item["path"] for page in obstore.list(self.store, prefix) for item in page]


def make_small_files(target: Path, count: int) -> None:
    """Make a tar of `count` files of 1 to 8 KiB, 50 a directory."""
    chance = random.Random(11)
    with tempfile.TemporaryDirectory() as directory:
        for number in range(count):
            path = Path(directory, f"d{number // 50}", f"file{number}")
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(chance.randbytes(chance.randrange(1 << 10, 8 << 10)))
        shell(f"tar cf {target} .", Path(directory))


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
        *peers.rclone_command(f":s3:{bucket.name}/{prefix}", mountpoint, cache, "writes"), "--s3-provider=SeaweedFS",
        f"--s3-endpoint={service.endpoint}", f"--s3-access-key-id={service.key}",
        f"--s3-secret-access-key={service.secret}",
    ]  # fmt: skip


def one_round(work: Work, only: Sequence[str], number: int) -> Iterator[tuple[str, str, float]]:
    """Start both mounts with empty caches, and run every measure on both, in turns."""
    place = work.directory / f"round{number}"
    place.mkdir()
    sides = {"ours": place / "ours", "rclone": place / "rclone"}
    command = rclone_command(work.bucket, "rclone", sides["rclone"], place / "cache")
    with our_mount(work.bucket.url("ours"), sides["ours"]), mounted(command, sides["rclone"], place / "rclone-log"):
        work.service.wait_idle()  # the store still works on the writes and deletions of the last round
        turns = order(list(sides), number)
        if "seq read" in only:
            work.obstore_alone()  # the store reads its disk for this one
            yield "seq read", "obstore", work.obstore_alone()
        for name, measure in MEASURES.items():
            for side in turns if name in only else ():
                yield name, side, measure(work, sides[side])
        for side in turns if "untar" in only else ():
            untar_s, stored_s = work.untar(sides[side])
            yield from (("untar", side, untar_s), ("untar stored", side, stored_s))


def readers(bucket: Bucket, directory: Path, store: S3Store) -> str:
    """Compare one reader with many, of different files, with 50 ms between mount and store."""
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
    both, in turns. The last part puts 50 ms between mount and store."""
    lines: list[str] = []
    with seaweedfs.running() as server, server.bucket() as bucket:
        store = S3Store(bucket.name, client_options={"allow_http": True}, **bucket.options())
        if run.only != ("readers",):
            work = Work(Scale(bool(run.quick)), run.work, bucket, store, Server([server.pid]))
            for side in ("ours", "rclone"):
                work.fill(side)
            medians = in_rounds(run.rounds, partial(one_round, work, run.only))
            lines += [*bucket_table(medians), ""]
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

CHANGING = ("changed", "from0", "from1", "from2")

TEXT = "x" * 1023 + "\n"
ME = Caller(os.geteuid(), os.getegid())
KINDS = ("LIST", "HEAD", "GET", "PUT", "COPY", "DELETE", "POST")


class Operations:
    """The operations of both faces. Their argument `turn` is 0, 1 and 2."""

    def __init__(self, backend: S3Backend) -> None:
        self._volume = backend.volume
        listed = f"d{SIZES[0]}"
        self.all: dict[str, Callable[[int], object]] = {
            **{f"`ls` of {size:,} files": lambda _, size=size: backend.ls(f"/d{size}").error for size in SIZES},
            "`read` of 1 KiB": lambda _: backend.read(f"/{listed}/f0000").error,
            "`write` of a new file of 1 KiB": lambda turn: backend.write(f"/changed/new{turn}", TEXT).error,
            "`edit` of 1 KiB": lambda turn: backend.edit(f"/changed/f{turn:04}", "x\n", "y\n").error,
            "`move` of a file": lambda turn: backend.move(f"/changed/f{3 + turn:04}", f"/moved{turn}").error,
            "`delete` of a file": lambda turn: backend.delete(f"/changed/f{6 + turn:04}").error,
            f"`grep` in {SIZES[0]} files of 1 KiB": lambda _: backend.grep("needle", f"/{listed}").error,
            "`stat`": lambda _: self.stat(listed, "f0000"),
            **{f"`ls -l` of {size:,} files": lambda _, size=size: self.list_all(f"d{size}") for size in SIZES},
            "open, read, close of 1 KiB": lambda _: self.read(listed, "f0000"),
            "create, write, close of 1 KiB": self.create,
            "rename of a file": self.rename,
            f"rename of a directory of {CHANGED} files": self.rename_directory,
        }

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
        while page := self._volume.readdir_brief(node, after, 128):
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


def put(bucket: Bucket, directory: str, files: int) -> None:
    """Put files past the backend, as another client does."""
    for number in range(files):
        bucket.put(f"{directory}/f{number:04}", TEXT.encode())


def count(proxy: FailingProxy, bucket: Bucket, behind: Bucket) -> Iterator[list[str]]:
    """Yield the rows of the table; requests that prepare an operation go past the proxy."""
    for size in SIZES:
        put(behind, f"d{size}", size)
    listed = behind.all_keys()
    now = [0.0]
    number, names = 0, [""]
    while number < len(names):
        for key in set(behind.all_keys()) - set(listed):
            behind.delete(key)
        for directory in CHANGING:
            put(behind, directory, CHANGED)
        with S3Backend(bucket.name, clock=lambda: now[0], **bucket.options()) as backend:
            operations = Operations(backend).all
            names = list(operations)
            cells = []
            for turn in range(3):
                now[0] += HOUR_S if turn == 2 else 0.0
                proxy.requests.clear()
                if (error := operations[names[number]](turn)) is not None:
                    raise SystemExit(f"{names[number]}: {error}")
                cells.append(shown(Counter(proxy.requests)))
            yield [names[number], *cells]
        number += 1


def shown(requests: Counter[str]) -> str:
    """Write the number of requests, and of which kind: `3: 1 LIST, 2 HEAD`."""
    kinds = [f"{requests[kind]} {kind}" for kind in KINDS if requests[kind]]
    return f"{requests.total()}: {', '.join(kinds)}" if kinds else "0"


@benchmark("requests", "the requests that each operation costs on a bucket", missing=seaweedfs.missing)
def requests(run: Run) -> list[str]:
    """Count the requests at SeaweedFS, with a counting proxy in front of it. Each operation runs with
    nothing cached, again at once, and again after an hour without a call, of a clock that is moved by hand. One that
    changes something has another file each time."""
    with seaweedfs.running() as server, failing_bucket(server.service) as (proxy, bucket):
        rows = list(count(proxy, bucket, Bucket(server.service, bucket.name)))
    return markdown(["operation", "nothing cached", "again at once", "after an idle hour"], rows)
