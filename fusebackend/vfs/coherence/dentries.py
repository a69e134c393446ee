"""`Dentries`: the kernel's dentries, on routes that other hosts change too.

The kernel does not say by which name it opens an inode. So every name that it was given, and no notice has dropped, is
kept here, both ways, for `Revalidation` to compare with the volume. One name leads to one inode; an inode has all
names by which it was found. Only for shared routes, since it costs some hundred bytes for each name.

Added on the mount's loop, dropped there and by the threads that notify the kernel.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import ParamSpec, TypeAlias, TypeVar

import trio

from fusebackend.base.recent import Recent
from fusebackend.protocol import RENAME_EXCHANGE, ROOT_NODE, Attr, Link, WrongLinks
from fusebackend.vfs.calls import request
from fusebackend.vfs.coherence.page_cache import KernelCache
from fusebackend.vfs.inodes import SYNTHETIC_INDEX, node_of, route_index
from fusebackend.vfs.junctions import MountTree, Route, call_and_hold

LINGER_S = 5.0
"""How long a dropped name is kept: longer than from a walk through the dentry to the request that follows."""

Name: TypeAlias = tuple[int, bytes]
"""A directory's inode number, and a name in it."""


@dataclass(slots=True, eq=False)
class Dentry:
    """The inode of a name, from one lookup: the next lookup makes another one."""

    inode: int


class Dentries:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._dentries: dict[Name, Dentry] = {}
        self._names: dict[int, tuple[Name, ...]] = {}
        self._lingering: deque[tuple[float, Name, Dentry]] = deque()
        self._guard = threading.Lock()

    def of(self, inode: int) -> tuple[Name, ...]:
        """The names of an inode."""
        return self._names.get(inode, ())

    def get(self, name: Name) -> Dentry | None:
        return self._dentries.get(name)

    def found(self, name: Name, inode: int) -> None:
        """Add the dentry that the kernel gets."""
        with self._guard:
            self._purge()
            before = self._dentries.get(name)
            self._dentries[name] = Dentry(inode)
            if before is None or before.inode != inode:
                if before is not None:
                    self._unname(before.inode, name)
                self._names[inode] = (*self._names.get(inode, ()), name)

    def removed(self, name: Name) -> None:
        """Remove a name that the kernel has removed itself."""
        with self._guard:
            self._remove(name, self._dentries.get(name))

    def dropped(self, name: Name, dentry: Dentry) -> None:
        """Let a name linger that a notice has dropped: a walk may have used it just before."""
        with self._guard:
            self._lingering.append((time.monotonic() + LINGER_S, name, dentry))

    def _purge(self) -> None:
        now = time.monotonic()
        while self._lingering and self._lingering[0][0] < now:
            _, name, dentry = self._lingering.popleft()
            if self._dentries.get(name) is dentry:  # it was not found again
                self._remove(name, dentry)

    def _remove(self, name: Name, dentry: Dentry | None) -> None:
        if dentry is not None:
            del self._dentries[name]
            self._unname(dentry.inode, name)

    def renamed(self, name: Name, new_name: Name, flags: int) -> list[tuple[int, Name, Name]]:
        """Move the dentries of a rename by the kernel; returns the inodes, with the names before and after it."""
        one, other = self._dentries.get(name), self._dentries.get(new_name)
        self.removed(name)
        self.removed(new_name)
        places = [(one, name, new_name), (other if flags & RENAME_EXCHANGE else None, new_name, name)]
        moved = [(dentry.inode, before, after) for dentry, before, after in places if dentry is not None]
        for inode, _, after in moved:
            self.found(after, inode)
        return moved

    def forget(self, inodes: Iterable[int]) -> None:
        """Remove all names of inodes that the kernel has forgotten."""
        with self._guard:
            for inode in inodes:
                for name in self._names.pop(inode, ()):
                    del self._dentries[name]

    def _unname(self, inode: int, name: Name) -> None:
        left = tuple(other for other in self._names[inode] if other != name)
        if left:
            self._names[inode] = left
        else:
            del self._names[inode]


def links_of(tree: MountTree, dentries: Dentries, route: Route, inode: int) -> dict[Link, list[Name]]:
    """Return the names of an inode by their links in the volume: one name in each tree."""
    links: dict[Link, list[Name]] = {}
    for parent, name in dentries.of(inode):
        directory = _node(tree, route, parent)
        if directory is not None:
            links.setdefault(Link(directory, name, node_of(inode)), []).append((parent, name))
    return links


def _node(tree: MountTree, route: Route, directory: int) -> int | None:
    """Return the node of a directory, which may be a junction in the kernel's numbers."""
    if route_index(directory) in (route.index, *(twin.index for twin in route.twins)):
        return node_of(directory)
    if route_index(directory) != SYNTHETIC_INDEX:
        return ROOT_NODE
    junction = tree.junction(directory)
    return junction.underlying[1] if junction is not None and junction.underlying is not None else None


# -- revalidation ------------------------------------------------------------------------------------------------


SECOND_WALK_S = 2.0
"""How long after an ESTALE its caller is expected back."""

MAX_WALKS = 1_000
"""Threads whose second walk is waited for; it takes a millisecond."""

_NO_WALK: tuple[int, frozenset[int], float] = (0, frozenset(), 0.0)

P = ParamSpec("P")
T = TypeVar("T")


class Revalidation:
    """An open by a name that another host has changed is not answered with the old file (d_revalidate).

    Race: the kernel walks a path through its dentries without a request, and asks to open an inode. On a volume that
    other hosts change too (`Features.shared`) its dentries are as fresh as the change feed. So an operation on a file
    that was reached by a path asks the volume in the same step whether every name that the kernel has for it, and every
    name of the directories above, still leads there. If one does not, the answer is ESTALE, which Linux keeps from the
    caller: it walks the path once more and looks up each name of it (LOOKUP_REVAL).

    The next request of that thread ends the second walk, or is for a file without a path, as /proc/self/fd/N: it is
    trusted. A second walk looks up each name, so the inodes it has found are those of the path, whatever their other
    names; rename(2) has two paths, and looks up the last name of the first one after the directories of the second.
    Names that proved wrong are dropped from the kernel's cache in the background, and count as known until then.

    Cost: on shared volumes alone, one question more in the same step for each open (`Volume.through`: a volume may ask
    both in one round trip). Switch: `revalidation`.

    On the mount's loop.

    Args:
        kernel: gives the kernel's caches.
    """

    def __init__(self, tree: MountTree, dentries: Dentries, kernel: Callable[[], KernelCache], on: bool) -> None:
        self._tree = tree
        self._dentries = dentries
        self._kernel = kernel
        self._on = on
        self.walks: Recent[int, tuple[int, frozenset[int], float]] = Recent(MAX_WALKS)
        """Thread on its second walk → the inode that it was refused, those that it has looked up since, and when."""

    async def call(self, route: Route, inode: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call into the volume for an inode, if that is where the kernel's path leads.

        Raises:
            Misled: it may be not.
        """
        trusted = self._is_second_walk(inode)
        self.arrived()
        return await self._call(route, inode, trusted, partial(function, *args, **kwargs))

    def arrived(self) -> None:
        """This thread's walk has ended with something else."""
        self.walks.pop(request.current().thread, None)

    async def readlink(self, route: Route, inode: int, node: int) -> bytes:
        """`call` in the middle of a walk."""
        volume = route.volume
        return await self._call(route, inode, self._is_second_walk(inode), partial(volume.readlink, node))

    async def check(self, route: Route, inode: int) -> None:
        """`call` of nothing."""
        if self._dentries.of(inode):
            await self.call(route, inode, lambda: None)
        self.arrived()

    async def lookup(self, route: Route, parent: int, node: int, name: bytes) -> Attr:
        """Look a name up and hold its node. The names of its directory are compared only if it is absent."""
        look = partial(call_and_hold, route.volume, route.volume.lookup, node, name)
        thread, trusted = request.current().thread, self._is_second_walk(parent)
        try:
            attr = await self._call(route, parent, trusted, look, absent=True)
        except WrongLinks:
            raise
        except OSError:
            self.walks.pop(thread, None)
            raise
        if thread in self.walks:
            refused, reached, _ = self.walks[thread]
            self.walks[thread] = refused, reached | {route.numbers(attr, parent)[0]}, time.monotonic()
        return attr

    async def _call(
        self, route: Route, inode: int, trusted: bool, function: Callable[[], T], *, absent: bool = False
    ) -> T:
        names = {} if trusted or not self._on else self._names(route, inode)
        way = route.ask if absent else route.call
        try:
            return await way(partial(route.volume.through, list(names), function, absent=absent))
        except WrongLinks as error:
            self.walks[request.current().thread] = inode, frozenset(), time.monotonic()
            for link in error.links:
                for name in names[link]:
                    self.drop(name)
            raise

    def _is_second_walk(self, inode: int) -> bool:
        """True if this thread is on its second walk, and has reached this inode."""
        refused, reached, at = self.walks.get(request.current().thread, _NO_WALK)
        return inode in (reached or (refused,)) and time.monotonic() < at + SECOND_WALK_S

    # -- names -------------------------------------------------------------------------------------------------

    def _names(self, route: Route, inode: int) -> dict[Link, list[Name]]:
        """Every name of an inode and of the directories above it, by the links that they are in the volume."""
        names: dict[Link, list[Name]] = {}
        seen = {inode}
        pending = [inode]
        while pending:
            child = pending.pop()
            for link, found in links_of(self._tree, self._dentries, route, child).items():
                names.setdefault(link, []).extend(found)
            for parent, _ in self._dentries.of(child):
                if parent not in seen:
                    seen.add(parent)
                    pending.append(parent)
        return names

    def drop(self, name: Name) -> None:
        """Have the kernel drop a name, in a thread: it may wait for a request to be answered first."""
        dentry = self._dentries.get(name)
        if dentry is not None:
            trio.lowlevel.spawn_system_task(self._drop, name, dentry)

    async def _drop(self, name: Name, dentry: Dentry) -> None:
        if self._dentries.get(name) is dentry:  # it has not been found again since
            await trio.to_thread.run_sync(self._kernel().invalidate_entry, *name)
            self._dentries.dropped(name, dentry)
