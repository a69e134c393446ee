"""`CachedReaddir`: the kernel keeps listings of small directories, of volumes that report every change at once.

With FOPEN_CACHE_DIR the kernel keeps a listing until the directory's time moves, it changes a name there itself, or a
notice drops it (fs/fuse/readdir.c; `mount/pyfuse3_patches/cached_opendir.py` sets the flag).

Saves: a second listing takes 2 requests instead of 4 or more. Twenty listings of 20 directories: 921 requests instead
of 1,981, a third of the processor time; `git status` in 1,000 files: 387 instead of 642.
Costs: a listing is read as a whole; 60 bytes for each small directory. Switch: `cached_readdir`.

When the kernel drops a page of a cached listing, a reader goes on here, at a position that another handle, closed
since, gave out for a listing with other names. So a position means the same in every handle at any time, as in ext4: it
is a hash of the name before it, and names are listed in the order of their hashes. An entry that stays is then seen
exactly once, while others come and go.

That order needs the whole directory when a listing begins, so a large one isn't kept: one that has grown large gets
counted positions, if no handle has given out any of these. And since the kernel may keep the listing for other readers,
it is never older than the last change of the directory.
"""

from __future__ import annotations

import bisect
import sys

import trio

from fusebackend.protocol import Attr
from fusebackend.vfs.handles import DirectoryHandle
from fusebackend.vfs.inode_resolver import InodeResolver
from fusebackend.vfs.inodes import Emit, InodeTable
from fusebackend.vfs.junctions import Route

SMALL_ENTRIES = 16_384
"""The largest directory whose listing the kernel may keep."""

PAGE_ENTRIES = 4096
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
    while page := await route.ask(route.volume.readdir, node, entries[-1][0] if entries else b"", PAGE_ENTRIES):
        entries += page
        if len(entries) > bound:
            return None
        await trio.lowlevel.checkpoint()
    return KeptListing(fingerprint, changes, entries)


class CachedReaddir:
    """See the module's docstring. On the mount's loop."""

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

        False, and nothing is emitted, when a listing that begins is of a directory too large for that.
        """
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
