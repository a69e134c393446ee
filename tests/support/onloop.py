"""Run requests of a `FileSystem`, each on a loop of its own."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

import trio

from fusebackend.vfs.inodes import ROOT_INODE, Entry
from fusebackend.vfs.mounted_tree import FileSystem

T = TypeVar("T")


def run(call: Awaitable[T]) -> T:
    async def main() -> T:
        return await call

    return trio.run(main)


def walk(filesystem: FileSystem, *names: str, start: int = ROOT_INODE) -> Entry:
    """Look up one name after the other."""
    entry = Entry(start, None, 0)
    for name in names:
        entry = run(filesystem.lookup(entry.inode, name.encode()))
    return entry


def listed(filesystem: FileSystem, inode: int = ROOT_INODE) -> dict[bytes, Entry]:
    """Return what is in a directory, but for the dots, read in one request."""
    number = run(filesystem.opendir(inode))
    found: dict[bytes, Entry] = {}

    def emit(name: bytes, entry: Entry, after: int) -> bool:
        found[name] = entry
        return True

    run(filesystem.readdir(number, 0, emit))
    run(filesystem.releasedir(number))
    return {name: entry for name, entry in found.items() if name not in (b".", b"..")}
