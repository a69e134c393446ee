"""The requests that each operation costs on a bucket, counted at the service's side.

    scripts/bench --requests [--write]

It starts SeaweedFS with a counting proxy in front of it (`tests/services/failing_proxy.py`), and calls an `S3Backend`
in this process. Each operation runs three times: with nothing cached, again at once (listings are cached for a second),
and again after an hour without a call. The clock that listings age by stands still meanwhile, and is moved by hand:
nothing here depends on how fast the machine is. Operations that change something have another file each time.
"""

from __future__ import annotations

import argparse
import os
import stat
import sys
from collections import Counter
from collections.abc import Callable

from report import markdown, write_between
from serving import REPOSITORY

from fusebackend.backends import S3Backend
from fusebackend.protocol import ROOT_NODE, Caller

sys.path.insert(0, str(REPOSITORY / "tests"))
sys.path.insert(0, str(REPOSITORY / "tests/support"))

from services import seaweedfs
from services.failing_proxy import FailingProxy, failing_bucket
from services.s3 import Bucket

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


def fill(bucket: Bucket) -> None:
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
    fill(behind)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table to BENCHMARKS.md")
    arguments = parser.parse_args()
    if (reason := seaweedfs.missing()) is not None:
        raise SystemExit(reason)
    with seaweedfs.running() as server, failing_bucket(server.service) as (proxy, bucket):
        rows = count(proxy, bucket, Bucket(server.service, bucket.name))
    report = "\n".join(markdown(["operation", "nothing cached", "again at once", "after an idle hour"], rows))
    print(report)
    if arguments.write:
        write_between("requests", report)


if __name__ == "__main__":
    main()
