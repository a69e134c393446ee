"""`Revalidation`: an open by a name that another host has changed is not answered with the old file (d_revalidate).

Race: the kernel walks a path through its dentries without a request, and asks to open an inode. On a volume that other
hosts change too (`Features.shared`) its dentries are as fresh as the change feed. So an operation on a file that was
reached by a path asks the volume in the same step whether every name that the kernel has for it, and every name of the
directories above, still leads there. If one does not, the answer is ESTALE, which Linux keeps from the caller: it walks
the path once more and looks up each name of it (LOOKUP_REVAL).

The next request of that thread ends the second walk, or is for a file without a path, as /proc/self/fd/N: it is
trusted. A second walk looks up each name, so the inodes it has found are those of the path, whatever their other names;
rename(2) has two paths, and looks up the last name of the first one after the directories of the second.
Names that proved wrong are dropped from the kernel's cache in the background, and count as known until then.

Cost: on shared volumes alone, one question more in the same step for each open (`Volume.through`: a volume may ask both
in one round trip). Switch: `revalidation`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

import trio

from fusebackend.protocol import Attr, Link, WrongLinks
from fusebackend.vfs.calls import request
from fusebackend.vfs.coherence.dentries import Dentries, Dentry, Name, links_of
from fusebackend.vfs.coherence.page_cache import KernelCache
from fusebackend.vfs.junctions import MountTree, Route, call_and_hold

SECOND_WALK_S = 2.0
"""How long after an ESTALE its caller is expected back."""

MAX_WALKS = 1_000
"""Threads whose second walk is waited for; it takes a millisecond."""

P = ParamSpec("P")
T = TypeVar("T")


class Revalidation:
    """See the module's docstring. On the mount's loop.

    Args:
        kernel: gives the kernel's caches, None before `FileSystem.attach`.
    """

    def __init__(self, tree: MountTree, dentries: Dentries, kernel: Callable[[], KernelCache | None], on: bool) -> None:
        self._tree = tree
        self._dentries = dentries
        self._kernel = kernel
        self._on = on
        self.walks: dict[int, tuple[int, frozenset[int], float]] = {}
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
            self.walks[thread] = refused, reached | {route.number(attr)}, time.monotonic()
        return attr

    async def _call(
        self, route: Route, inode: int, trusted: bool, function: Callable[[], T], *, absent: bool = False
    ) -> T:
        names = {} if trusted or not self._on else self._names(route, inode)
        way = route.ask if absent else route.call
        try:
            return await way(partial(route.volume.through, list(names), function, absent=absent))
        except WrongLinks as error:
            if len(self.walks) >= MAX_WALKS:
                self.walks.pop(next(iter(self.walks)))
            self.walks[request.current().thread] = inode, frozenset(), time.monotonic()
            for link in error.links:
                for name in names[link]:
                    self.drop(name)
            raise

    def _is_second_walk(self, inode: int) -> bool:
        """True if this thread is on its second walk, and has reached this inode."""
        refused, reached, at = self.walks.get(request.current().thread, (0, frozenset[int](), 0.0))
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
        kernel = self._kernel()
        if kernel is not None and self._dentries.get(name) is dentry:  # it has not been found again since
            await trio.to_thread.run_sync(kernel.invalidate_entry, *name)
            self._dentries.dropped(name, dentry)
