"""A merge over four kinds of routes in a process of its own, which ends at one write of the journal or keeps on.

    merge_killed.py DIRECTORY S3_URL POINT

At POINT `fill` it makes the files: those of stores and buckets have the server's times in later processes. Without a
branch in the directory, it makes one, with its changes. At another POINT the process kills itself; -1 for never. Prints
`merged` and the number of writes, or the conflicts.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from langgraph.store.sqlite import SqliteStore
from merging import Branched, at, chmod, link, mkdir, remove, rename, replace, write

from fusebackend.backends import StoreBackend
from fusebackend.backends.directory.volume import DirectoryVolume
from fusebackend.backends.sqlite.backend import SqliteVolume
from fusebackend.base import durable
from fusebackend.protocol import Volume
from fusebackend.remote.volume import volume_of
from fusebackend.trees.merge.run import Journal
from fusebackend.urls import open_backend

PREFIXES = ["", "src/", "store/", "s3/"]


def fill(volume: Volume) -> None:
    for name in (b"a", b"b", b"c"):
        write(volume, name, name * 10)
    mkdir(volume, b"d")
    for number in range(4):
        write(volume, b"d/%d" % number, b"%d\n" % number)


def change(branch: Volume, prefix: bytes) -> None:
    """The same in each route, as far as it can hold it."""
    write(branch, prefix + b"a", b"changed\n" * 20)
    replace(branch, prefix + b"b", b"replaced\n")
    mkdir(branch, prefix + b"new")
    write(branch, prefix + b"new/file", b"new\n" * 1000)
    rename(branch, prefix + b"d/0", prefix + b"new/0")
    remove(branch, prefix + b"d/1")
    if prefix == b"s3/":  # SeaweedFS goes on listing a directory whose last file was renamed
        write(branch, prefix + b"d/more", b"more\n")
    else:
        rename(branch, prefix + b"d", prefix + b"e")
        write(branch, prefix + b"e/more", b"more\n")
    if prefix in (b"", b"src/"):
        chmod(branch, prefix + b"c", 0o750)
        link(branch, prefix + b"new/file", prefix + b"linked")
        rename(branch, prefix + b"e", prefix + b"t")  # a file and a directory change places
        rename(branch, prefix + b"c", prefix + b"e")
        rename(branch, prefix + b"t", prefix + b"c")


def volumes(directory: Path, s3: str) -> dict[str, Volume]:
    (directory / "root").mkdir(exist_ok=True)
    context = SqliteStore.from_conn_string(str(directory / "store.db"))
    store = context.__enter__()
    store.setup()
    return {
        "/": SqliteVolume(directory / "volume.db"),
        "/src": DirectoryVolume(directory / "root"),
        "/store": volume_of(StoreBackend(store, namespace=("n",))),
        "/s3": volume_of(open_backend(s3)),
    }


def counting(point: int) -> list[str]:
    """Have the process killed at one write of a journal, at a half of it, or after it."""
    done: list[str] = []

    def at_point(word: str) -> None:
        if len(done) == point:
            os.kill(os.getpid(), signal.SIGKILL)
        done.append(word)

    note, begin, end, put_in_place = Journal.note, Journal.begin, Journal.end, durable.put_in_place

    def half(path: str) -> None:
        at_point("before")
        if len(done) == point:
            with open(path, "ab") as file:
                file.write(b'{"half')
        at_point("half")

    def noting(journal: Any, line: dict[str, Any]) -> None:
        half(journal.path)
        note(journal, line)
        at_point("after")

    def beginning(journal: Any, line: dict[str, Any]) -> None:
        half(f"{journal.path}.new")
        begin(journal, line)
        at_point("begun")

    def placing(new: str, path: str) -> None:
        at_point("after")
        put_in_place(new, path)

    def ending(journal: Any) -> None:
        at_point("end")
        end(journal)
        at_point("ended")

    Journal.note, Journal.begin, Journal.end = noting, beginning, ending  # type: ignore[method-assign]
    durable.put_in_place = placing
    return done


def main() -> None:
    directory, s3 = Path(sys.argv[1]), sys.argv[2]
    there = volumes(directory, s3)
    if sys.argv[3] == "fill":
        for volume in there.values():
            fill(volume)
            volume.close()
        return
    point, branch = int(sys.argv[3]), directory / "branches" / "b.db"
    if not branch.exists():
        trees = Branched(str(branch.parent), there)
        for prefix in PREFIXES:
            change(trees.branch, prefix.encode())
            trees.branch.sync()
    else:
        trees = Branched(str(branch.parent), there, create=False)
    done = counting(point)
    outcome = trees.merge()
    if outcome.is_refused:
        print("refused", outcome.plan.conflicts)
    else:
        assert not trees.plan().steps
        assert at(trees.main, b"new/file").nlink == 2
        print("merged", len(done))
        for path, file in sorted(trees.all(modes=False).items()):
            print(path, file.type, file.data)
    sys.stdout.flush()
    trees.close()
    for volume in there.values():
        volume.close()


main()
