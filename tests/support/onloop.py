"""Run requests of a `FileSystem`, each on a loop of its own."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import NamedTuple, TypeVar

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


class Seen(NamedTuple):
    """A name in a listing, and the position after it."""

    name: bytes
    entry: Entry
    after: int


async def readdir(filesystem: FileSystem, number: int, position: int = 0, room: int = 1 << 30) -> list[Seen]:
    """Make one request for up to so many names; the kernel sees one more, and has no room for it."""
    seen: list[Seen] = []

    def emit(name: bytes, entry: Entry, after: int) -> bool:
        if len(seen) == room:
            return False
        seen.append(Seen(name, entry, after))
        return True

    await filesystem.readdir(number, position, emit)
    return seen


def listed(filesystem: FileSystem, inode: int = ROOT_INODE) -> dict[bytes, Entry]:
    """Return what is in a directory, but for the dots, read in one request."""
    number = run(filesystem.opendir(inode))
    found = run(readdir(filesystem, number))
    run(filesystem.releasedir(number))
    return {each.name: each.entry for each in found if each.name not in (b".", b"..")}
