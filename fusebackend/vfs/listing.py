"""Listing a directory: dots, junctions, then the volume's own names, in pages that stay true while it changes."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from fusebackend.protocol import Attr
from fusebackend.vfs.coherence.cached_readdir import CachedReaddir
from fusebackend.vfs.handles import DirectoryHandle
from fusebackend.vfs.inode_resolver import InodeResolver
from fusebackend.vfs.inodes import Emit, Entry

if TYPE_CHECKING:
    from fusebackend.vfs.junctions import Route

PAGE_ENTRIES = 128
"""Entries asked of a volume at once: about what one FUSE request takes."""

SHARED_PAGE_ENTRIES = 1024
"""The same of a volume behind a network: each answer is waited for."""

_SOME_DIRECTORY = Attr(0, stat.S_IFDIR | 0o755, nlink=2)
"""For entries of which the kernel wants no more than that they are directories, or shall ask when it needs to know."""


class Listing:
    """Answers the kernel's readdirplus requests.

    Args:
        lookup: `FileSystem.lookup`.
    """

    def __init__(
        self, resolver: InodeResolver, cached: CachedReaddir, lookup: Callable[[int, bytes], Awaitable[Entry]]
    ) -> None:
        self._cached = cached
        self._resolver = resolver
        self._inodes = resolver.inodes
        self._overtaken = resolver.overtaken
        self._lookup = lookup

    async def list(self, handle: DirectoryHandle, offset: int, emit: Emit) -> None:
        """Emit from position `offset`: 0 is `.`, 1 is `..`, then names that lead to routes, then the volume's names.

        Every entry emitted but the dots counts as a lookup (FUSE's readdirplus). An answer that is an error gives the
        kernel nothing, so it would never give those references back: an error is raised only if nothing was emitted
        before it. The kernel asks again from there.
        """
        given = 0

        def give(name: bytes, entry: Entry, after: int) -> bool:
            nonlocal given
            taken = emit(name, entry, after)
            given += taken
            return taken

        try:
            await self._list(handle, offset, give)
        except OSError:
            if not given:
                raise

    async def _list(self, handle: DirectoryHandle, offset: int, emit: Emit) -> None:
        position = offset
        if position == 0:
            handle.ahead = []
            handle.names.clear()  # from the start: positions given out before mean nothing any more (POSIX, rewinddir)
        junction = handle.junction
        children = self._resolver.tree.listed(junction) if junction is not None else []
        if position == 0:
            if not emit(b".", Entry(handle.inode, _SOME_DIRECTORY, 0), 1):
                return
            position = 1
        if position == 1:
            known = self._inodes.get(handle.inode)
            parent = known.parent if known is not None else handle.inode
            above = parent if self._inodes.get(parent) is not None else handle.inode
            if not emit(b"..", Entry(above, _SOME_DIRECTORY, 0), 2):
                return
            position = 2
        while position - 2 < len(children):
            name = children[position - 2]
            entry = await self._route_entry(handle, name)
            if not emit(name, entry, position + 1):
                await self._resolver.forget([(entry.inode, 1)])
                return
            position += 1
        # A listing that began with counted positions goes on with them until it starts anew.
        first = 2 + len(children)
        if handle.kept and not handle.names and await self._cached.list(self._resolver, handle, position, first, emit):
            return
        if handle.route is not None:
            covered = frozenset() if junction is None else frozenset((*junction.children, junction.servers_name))
            await self._list_volume(handle, position, first, covered, emit)

    async def _route_entry(self, handle: DirectoryHandle, name: bytes) -> Entry:
        """Return the entry of a name that leads to a route, without asking one that may hang: the listing would wait.

        A broken route fails when it is entered, and not in the listing of the directory above it.
        """
        assert handle.junction is not None, "only junctions have names that lead to routes"
        child = self._resolver.tree.child(handle.junction, name)
        assert child is not None, "they stay until the mount ends"
        if child.route is None or not child.route.executor.blocking:
            with contextlib.suppress(OSError):
                return await self._lookup(handle.inode, name)
        self._inodes.reference(child.inode, handle.inode, name, _SOME_DIRECTORY)
        return Entry(child.inode, _SOME_DIRECTORY, 0)

    async def _list_volume(
        self, handle: DirectoryHandle, position: int, first: int, covered: frozenset[bytes], emit: Emit
    ) -> None:
        """The volume's own names, from `position` on; the first of them is at position `first`."""
        route, names = handle.route, handle.names
        assert route is not None
        if position - first > len(names):
            return  # a position that this handle never gave out
        after = names[position - first - 1] if position > first else b""
        page = handle.ahead if self._is_good(handle, route, position) else []
        at, generation, _ = handle.ahead_at
        handle.ahead = []
        limit = SHARED_PAGE_ENTRIES if route.shared else PAGE_ENTRIES
        while True:
            if not page:
                # From before the call: a later change is not in the page.
                at, generation = self._changes(route), self._overtaken.generation
                page = list(await route.ask(route.volume.readdir_brief, handle.node, after, limit))
                if not page:
                    self._cached.listed(handle.inode, len(names))
                    return
            self._resolver.twins.note_names(route, handle.inode, (name for name, _ in page))
            for index, (name, attr) in enumerate(page):
                after = name
                if name in covered:
                    continue
                # The kernel often repeats entries that did not fit into its caller's buffer: they keep their position.
                again = position - first < len(names) and names[position - first] == name
                following = position + 1 if again else first + len(names) + 1
                if not self._resolver.emit_entry(route, handle.inode, name, attr, generation, emit, following):
                    handle.ahead, handle.ahead_at = page[index:], (at, generation, position)
                    return
                if not again:
                    names.append(name)
                position = following
            page = []

    def _changes(self, route: Route) -> int:
        """The count of changes that a page belongs to: of a shared volume, only those by others."""
        return self._overtaken.generation if route.shared else self._resolver.changes

    def _is_good(self, handle: DirectoryHandle, route: Route, position: int) -> bool:
        """True if the rest of the page that was read last may be given out.

        Of a shared volume always, since others change something all the time: its entries are revalidated.
        """
        at, _, there = handle.ahead_at
        return there == position and (route.shared or (at == self._resolver.changes and route.policy.coherent))
