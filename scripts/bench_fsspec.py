"""The benchmark of `fsspec:` routes: the throughput of reading one file, beside fsspec alone.

    scripts/bench --fsspec [--rounds N] [--mib N] [--only KIND …] [--write]

Each file system is read in turns: by fsspec alone, as an open file in calls of 1 MiB (`open`) and as a whole (`cat`),
and through a mount, by read(2) of 1 MiB of a file that the kernel has no page of. The servers run on this machine and,
but for Samba, are Python programs, so client and server share its processors. `smb` needs root and `smbd`.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from measures import MIB, timed
from peers import serve_command
from report import machine, markdown, write_between
from serving import REPOSITORY, mounted

sys.path.insert(0, str(REPOSITORY / "tests"))
sys.path.insert(0, str(REPOSITORY / "tests/support"))
import fsspec
from services import fsspec_servers, webdav

NAME = "large"
LOCAL = ("file", "zip")
REMOTE = ("ftp", "sftp", "smb", "webdav", "http")


class Place(NamedTuple):
    """Where a file system has the directory: for fsspec and as a route."""

    fs: Any
    path: str
    url: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=64, help="size of the file")
    parser.add_argument("--only", nargs="+", choices=LOCAL + REMOTE, default=LOCAL + REMOTE)
    parser.add_argument("--write", action="store_true", help="write the table to BENCHMARKS.md")
    arguments = parser.parse_args()
    if "smb" in arguments.only and (os.geteuid() != 0 or shutil.which("smbd") is None):
        print("smb is left out: it needs root and smbd", file=sys.stderr)
        arguments.only = [kind for kind in arguments.only if kind != "smb"]
    with tempfile.TemporaryDirectory(prefix="fusebackend-bench-") as directory:
        work = Path(directory)
        rows = [row(kind, work / kind, arguments.mib, arguments.rounds) for kind in arguments.only]
        about = machine(work)
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    heads = ["", "fsspec, `open`", "fsspec, `cat`", "mount", "of `open`", "of `cat`"]
    said = f"MiB/s of {arguments.mib} MiB on {about}; medians of {arguments.rounds} rounds; load averages {load}."
    report = "\n".join([said, "", *markdown(heads, rows)])
    print(report)
    if arguments.write:
        write_between("fsspec", report)


def row(kind: str, work: Path, mib: int, rounds: int) -> list[str]:
    """Make a row of the table: medians of the rounds. A first round makes the connections and is not measured."""
    work.mkdir()
    found: dict[str, list[float]] = {"open": [], "cat": [], "mount": []}
    with place(kind, work, random.Random(1).randbytes(mib * MIB)) as there:
        command = serve_command(there.url, work / "mount")
        with mounted(command, work / "mount", work / "log"):
            ways: dict[str, Callable[[], None]] = {
                "open": lambda: by_open(there, mib * MIB),
                "cat": lambda: by_cat(there, mib * MIB),
                "mount": lambda: by_mount(work / "mount" / NAME, mib * MIB),
            }
            for number in range(rounds + 1):
                for name, read in ways.items():
                    drop_pages(work / "mount" / NAME)
                    seconds = timed(read)
                    if number:
                        found[name].append(mib / seconds)
    opened, cat, mount = (statistics.median(speeds) for speeds in found.values())
    return [kind, f"{opened:.0f}", f"{cat:.0f}", f"{mount:.0f}", f"{mount / opened:.2f}", f"{mount / cat:.2f}"]


def by_open(there: Place, size: int) -> None:
    there.fs.invalidate_cache()
    with there.fs.open(there.path, "rb") as file:
        got = 0
        while piece := file.read(MIB):
            got += len(piece)
    assert got == size


def by_cat(there: Place, size: int) -> None:
    there.fs.invalidate_cache()
    assert len(there.fs.cat_file(there.path)) == size


def by_mount(path: Path, size: int) -> None:
    buffer = bytearray(MIB)
    got = 0
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            got += count
    assert got == size


def drop_pages(path: Path) -> None:
    """Make the kernel forget a file, which takes it 8 ms for 64 MiB."""
    with open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def place(kind: str, work: Path, content: bytes) -> Iterator[Place]:
    """Serve a directory with the file in it."""
    files = work / "files"
    files.mkdir()
    (files / NAME).write_bytes(content)
    login = {"host": "127.0.0.1", "username": fsspec_servers.USER, "password": fsspec_servers.PASSWORD}
    user = f"{fsspec_servers.USER}:{fsspec_servers.PASSWORD}@127.0.0.1"
    with ExitStack() as stack:
        if kind == "file":
            yield Place(opened("file"), f"{files}/{NAME}", f"fsspec:file://{files}")
        elif kind == "zip":
            archive = work / "a.zip"
            with zipfile.ZipFile(archive, "w") as made:
                made.write(files / NAME, NAME)
            yield Place(opened("zip", fo=str(archive)), NAME, f"fsspec:zip://?fo={archive}")
        elif kind == "webdav":
            url = stack.enter_context(webdav.running(files)).url
            yield Place(opened("webdav", base_url=url), NAME, f"fsspec:webdav://?base_url={url}")
        elif kind == "http":
            url = f"http://127.0.0.1:{stack.enter_context(fsspec_servers.running('http', files))}"
            yield Place(opened("http"), f"{url}/{NAME}", f"fsspec:{url}")
        elif kind == "ftp" or kind == "sftp" or kind == "smb":
            port = stack.enter_context(fsspec_servers.running(kind, files))  # type: ignore[arg-type]
            top = "/files" if kind == "smb" else ""  # the share
            if kind == "smb":
                login["share_access"] = "rwd"  # as a route has it; else no two may open the file
            yield Place(opened(kind, port=port, **login), f"{top}/{NAME}", f"fsspec:{kind}://{user}:{port}{top}/")


def opened(protocol: str, **options: Any) -> Any:
    return fsspec.filesystem(protocol, skip_instance_cache=True, **options)


if __name__ == "__main__":
    main()
