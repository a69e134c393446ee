"""Listing a directory: dots, junctions, then the volume's own names, in pages that stay true while it changes.

`CachedReaddir` saves requests: the kernel keeps listings of small directories; see it.
"""

from __future__ import annotations

import bisect
import contextlib
import stat
import sys
from collections.abc import Awaitable, Callable

import trio

from fusebackend.protocol import Attr
from fusebackend.vfs.handles import DirectoryHandle
from fusebackend.vfs.inode_resolver import InodeResolver
from fusebackend.vfs.inodes import Emit, Entry, InodeTable
from fusebackend.vfs.junctions import Route

SMALL_ENTRIES = 16_384
"""The largest directory whose listing the kernel may keep."""

KEPT_PAGE_ENTRIES = 4096
"""Entries read before other requests get a turn."""

_HASH_BITS = 62


def position_after(name: bytes) -> int:
    """Return the position after a name: above all positions that count names."""
    return 1 << _HASH_BITS | hash(name) & (1 << _HASH_BITS) - 1


class KeptListing:
    """A directory's names in the order of their positions, as they were at one moment."""

    def __init__(self, fingerprint: tuple[int, ...], changes: int, page: list[tuple[bytes, Attr]]) -> None:
        self.fingerprint = fingerprint  # of the directory, and …
        self.changes = changes  # … `Places.changes`, from before it was read
        self._entries = sorted((position_after(name), name, attr) for name, attr in page)

    def __len__(self) -> int:
        return len(self._entries)

    def after(self, position: int) -> list[tuple[int, bytes, Attr]]:
        """The entries from a position on, each with its name and the position after it."""
        return self._entries[bisect.bisect_left(self._entries, (position + 1,)) :]


async def _fingerprint(route: Route, node: int) -> tuple[int, ...]:
    attr: Attr = await route.ask(route.volume.getattr, node)
    return attr.fingerprint


async def _read(resolver: InodeResolver, route: Route, node: int, bound: int) -> KeptListing | None:
    """All of a directory; None when it has more than so many entries."""
    changes, fingerprint = resolver.changes, await _fingerprint(route, node)
    entries: list[tuple[bytes, Attr]] = []
    while page := await route.ask(route.volume.readdir, node, entries[-1][0] if entries else b"", KEPT_PAGE_ENTRIES):
        entries += page
        if len(entries) > bound:
            return None
        await trio.lowlevel.checkpoint()
    return KeptListing(fingerprint, changes, entries)


class CachedReaddir:
    """The kernel keeps listings of small directories, of volumes that report every change at once.

    With FOPEN_CACHE_DIR the kernel keeps a listing until the directory's time moves, it changes a name there itself, or
    a notice drops it (fs/fuse/readdir.c; `fuse/pyfuse3_patches/cached_opendir.py` sets the flag).

    Saves: a second listing takes 2 requests instead of 4 or more. Twenty listings of 20 directories: 921 requests
    instead of 1,981, a third of the processor time; `git status` in 1,000 files: 387 instead of 642. Costs: a listing
    is read as a whole; 60 bytes for each small directory. Switch: `cached_readdir`.

    When the kernel drops a page of a cached listing, a reader goes on here, at a position that another handle, closed
    since, gave out for a listing with other names. So a position means the same in every handle at any time, as in
    ext4: it is a hash of the name before it, and names are listed in the order of their hashes. An entry that stays is
    then seen exactly once, while others come and go.

    That order needs the whole directory when a listing begins, so that of a large directory isn't kept: a grown one
    gets counted positions, if this handle has given out none of these. And since the kernel may keep the listing for
    other readers, it is never older than the last change of the directory.

    On the mount's loop.
    """

    def __init__(self, inodes: InodeTable, on: bool) -> None:
        self._on = on
        self.small: set[int] = inodes.by_inode(set())
        """Directories known to have few entries, and …"""
        self.kept: set[int] = inodes.by_inode(set())
        """… those whose listing the kernel may have."""
        self._listings: dict[DirectoryHandle, KeptListing] = {}

    def closed(self, handle: DirectoryHandle) -> None:
        """Drop the listing of an open directory."""
        self._listings.pop(handle, None)

    def listed(self, inode: int, entries: int) -> None:
        """A directory has been seen from its beginning to its end."""
        if entries <= SMALL_ENTRIES:
            self.small.add(inode)
        else:
            self.small.discard(inode)

    async def may_keep(self, route: Route, inode: int, node: int) -> bool:
        """True if the kernel may keep the listing of a directory.

        A read of a cached listing moves no access time. So a listing that has to move it is not kept, except where the
        kernel asks anyway: it has none, or one from before the last change.
        """
        if inode not in self.small or not self._on or not route.keeps_listings:
            return False
        if inode in self.kept:
            attr: Attr = await route.ask(route.volume.getattr, node)
            return attr.atime_ns < attr.mtime_ns or not route.volume.access_due(attr)
        self.kept.add(inode)
        return True

    async def list(
        self, resolver: InodeResolver, handle: DirectoryHandle, position: int, first: int, emit: Emit
    ) -> bool:
        """As `Listing.list`, from `position` on. The volume's own names begin at the position `first`.

        False, and nothing is emitted, when a listing that begins is of a directory too large for that, and at a counted
        position: another handle has found it too large.
        """
        if first < position < 1 << _HASH_BITS:
            return False
        route = handle.route
        assert route is not None, "a directory without a route is not kept"
        listing = self._listings.get(handle)
        if position <= first or listing is None or listing.fingerprint != await _fingerprint(route, handle.node):
            bound = SMALL_ENTRIES if position <= first else sys.maxsize
            listing = await _read(resolver, route, handle.node, bound)
            self.listed(handle.inode, bound + 1 if listing is None else len(listing))
            if listing is None:
                self.closed(handle)
                return False
            self._listings[handle] = listing
        left = listing.after(position)
        if not left:
            self.closed(handle)  # read to its end: a directory that stays open needs it no more
        resolver.twins.note_names(route, handle.inode, (name for _, name, _ in left))
        for following, name, attr in left:
            generation = resolver.overtaken.generation
            if listing.changes != resolver.changes:
                try:
                    attr = await route.ask(route.volume.lookup, handle.node, name)
                except FileNotFoundError:
                    continue
            if not resolver.emit_entry(route, handle.inode, name, attr, generation, emit, following):
                break
        return True


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
            known = self._resolver.inodes.get(handle.inode)
            parent = known.parent if known is not None else handle.inode
            above = parent if self._resolver.inodes.get(parent) is not None else handle.inode
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
        self._resolver.inodes.reference(child.inode, handle.inode, name, _SOME_DIRECTORY)
        return Entry(child.inode, _SOME_DIRECTORY, 0)

    async def _list_volume(
        self, handle: DirectoryHandle, position: int, first: int, covered: frozenset[bytes], emit: Emit
    ) -> None:
        """The volume's own names, from `position` on; the first of them is at position `first`."""
        route, names = handle.route, handle.names
        assert route is not None
        limit = SHARED_PAGE_ENTRIES if route.shared else PAGE_ENTRIES
        after = names[-1] if names else b""
        while position - first > len(names):  # another handle gave it out, and the kernel has kept that listing
            more = await route.ask(route.volume.readdir_brief, handle.node, after, limit)
            if not more:
                return
            after = more[-1][0]
            names += [name for name, _ in more if name not in covered]
        after = names[position - first - 1] if position > first else b""
        page = handle.ahead if self._is_good(handle, route, position) else []
        at, generation, _ = handle.ahead_at
        handle.ahead = []
        while True:
            if not page:
                # From before the call: a later change is not in the page.
                at, generation = self._changes(route), self._resolver.overtaken.generation
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
        return self._resolver.overtaken.generation if route.shared else self._resolver.changes

    def _is_good(self, handle: DirectoryHandle, route: Route, position: int) -> bool:
        """True if the rest of the page that was read last may be given out.

        Of a shared volume always, since others change something all the time: its entries are revalidated.
        """
        at, _, there = handle.ahead_at
        return there == position and (route.shared or (at == self._resolver.changes and route.policy.coherent))
