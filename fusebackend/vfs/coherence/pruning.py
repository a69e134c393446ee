"""`Pruning`: the kernel drops dentries of a volume whose nodes take memory, when it knows many inodes.

Saves: memory. The kernel drops dentries when it needs memory itself, and until then a volume that computes its nodes
keeps each node that the kernel has looked up: a walk through 1,000 conversations has 220,000 of them. A volume says how
many inodes it bears (`Volume.most_nodes`); beyond that, each `opendir` in it drops some of the oldest.

Costs: a comparison at each `opendir` in such a volume; beyond the limit 20 µs for each inode, and a lookup for each
name that is asked for again. Switch: `pruning`.

FUSE_NOTIFY_PRUNE (Linux 6.18, `fuse_notify_prune`, fs/fuse/dev.c) drops the inodes that nothing uses, and never waits.
An older kernel gets a notice for the name of each file that is not open, and keeps the directories: with
FUSE_NOTIFY_INVAL_ENTRY a process would lose the directory in which it works.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from fusebackend.vfs.coherence.invalidation import Invalidation
from fusebackend.vfs.inodes import ROOT_INODE, InodeTable, route_index
from fusebackend.vfs.junctions import Route

BATCH = 256
"""Inodes dropped at one `opendir`: 5 ms, and more than one listing adds to a walk on average."""

SHARE = 2
"""One in so many of a route's inodes, the older ones, is dropped until the next look at all of them."""

LOOKING_SHARE = 1 / 20
"""Of the time, at most, that goes into looks at all inodes, 10 ms for 60,000: all of them may be in use."""


class Pruning:
    """See the module's docstring. On the mount's loop.

    Attributes:
        prune: sends the notice; None for a kernel that lacks it.
    """

    def __init__(
        self,
        inodes: InodeTable,
        invalidation: Invalidation,
        on: bool,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.prune: Callable[[Sequence[int]], None] | None = None
        self._inodes = inodes
        self._invalidation = invalidation
        self._on = on
        self._clock = clock
        self._chosen: list[int] = []  # to be dropped, from the end on
        self._look_after = float("-inf")

    def looked_into(self, route: Route, limit: int) -> None:
        """Drop a batch of inodes, if more than `limit` are known. A directory of this route is being opened."""
        if len(self._inodes) <= limit or not self._on:
            return
        if not self._chosen:
            start = self._clock()
            if start < self._look_after:
                return
            self._chosen = self._oldest(route)
            end = self._clock()
            self._look_after = end + (end - start) / LOOKING_SHARE
        batch = self._chosen[-BATCH:]
        del self._chosen[-BATCH:]
        batch.reverse()
        if self.prune is not None:
            self.prune(batch)
        else:
            self._drop_names(batch)

    def _oldest(self, route: Route) -> list[int]:
        """The older inodes of a route, those that the kernel has known for longest first. None is of an open file.

        They are dropped from the end on: what is in a directory before the directory, which it keeps in use.
        """
        index, directories = route.index, self.prune is not None
        found = [
            inode
            for inode, known in self._inodes.records()
            if route_index(inode) == index and not known.opens and (directories or not known.is_dir)
        ]
        if found[:1] == [ROOT_INODE]:
            del found[0]
        return found[: len(found) // SHARE]

    def _drop_names(self, batch: Sequence[int]) -> None:
        for inode in batch:
            known = self._inodes.get(inode)
            if known is not None and not known.opens:
                self._invalidation.drop((known.parent, known.name))
