"""Listing a directory: dots, junctions, then the volume's own names, in pages that stay true while it changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from fusebackend.vfs.handles import DirectoryHandle
from fusebackend.vfs.inodes import Entry, inode_number

if TYPE_CHECKING:
    from fusebackend.vfs.filesystem import FileSystem

PAGE_ENTRIES = 128
"""Entries asked of a volume at once: about what one FUSE request takes."""

Emit: TypeAlias = Callable[[bytes, Entry, int], bool]
"""Given a name, its entry and the position after it; False when there is no room for it."""


async def list_directory(filesystem: FileSystem, handle: DirectoryHandle, offset: int, emit: Emit) -> None:
    """Emit from position `offset`: 0 is `.`, 1 is `..`, then names that lead to routes, then the volume's names.

    Every entry emitted but the dots counts as a lookup (FUSE's readdirplus).
    """
    position = offset
    children = sorted(handle.junction.children) if handle.junction is not None else []
    if position == 0:
        if not emit(b".", await filesystem.getattr(handle.inode), 1):
            return
        position = 1
    if position == 1:
        known = filesystem.inodes.get(handle.inode)
        parent = known.parent if known is not None else handle.inode
        above = parent if filesystem.inodes.get(parent) is not None else handle.inode
        if not emit(b"..", await filesystem.getattr(above), 2):
            return
        position = 2
    while position - 2 < len(children):
        name = children[position - 2]
        entry = await filesystem.lookup(handle.inode, name)
        if not emit(name, entry, position + 1):
            await filesystem.forget([(entry.inode, 1)])
            return
        position += 1
    if handle.route is not None:
        await _list_volume(filesystem, handle, position, 2 + len(children), frozenset(children), emit)


async def _list_volume(
    filesystem: FileSystem, handle: DirectoryHandle, position: int, first: int, covered: frozenset[bytes], emit: Emit
) -> None:
    """The volume's own names, from `position` on; the first of them is at position `first`."""
    route, names = handle.route, handle.names
    assert route is not None
    if position - first > len(names):
        return  # a position that this handle never gave out
    del names[position - first :]
    after = names[-1] if names else b""
    at = filesystem.changes
    page = handle.ahead if handle.ahead_at == (at, position) and route.policy.coherent else []
    handle.ahead = []
    timeout_s = route.policy.timeout_s
    while True:
        if not page:
            at = filesystem.changes  # before looking: what changes after is not in the page
            page = list(await route.call(route.volume.readdir, handle.node, after, PAGE_ENTRIES))
            if not page:
                return
        for index, (name, attr) in enumerate(page):
            after = name
            if name in covered:
                continue
            inode = inode_number(route.index, attr.node)
            if not emit(name, Entry(inode, attr, timeout_s), position + 1):
                handle.ahead, handle.ahead_at = page[index:], (at, position)
                return
            filesystem.inodes.reference(inode, handle.inode, attr.size)
            route.volume.hold(attr.node)
            names.append(name)
            position += 1
        page = []
