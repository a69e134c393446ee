"""`Twins`: what the kernel changes through one tree shows in the others.

Race: the kernel knows a directory by a number for each tree (`vfs/junctions.py`), and what it does through one of them
it notes for that one. Of the others it has names, absence, attributes and listings from before. They are invalidated as
after a change by the agent face, and the request is answered when that is done: so whoever hears of the change finds it
in every tree.

A notice of a name takes the directory's lock (`fuse_reverse_inval_entry`, fs/fuse/dir.c), which the kernel holds for as
long as somebody else's request in that directory is not answered. Two requests that waited for each other's directory
would wait for ever. So none waits for a directory whose lock is held by one that waits here, and none for longer than
`PATIENCE_S`; its notice then comes a moment after its answer. While a directory is being changed through two trees at
once in this way, the kernel keeps no name that it finds in it (`is_contended`): what can be seen late is a name that it
knew before, once.

A name that the kernel was never given in a directory needs no such notice, and attributes none that waits. It is
remembered which those are in other trees; in the main one, where that would cost every lookup, it is told of all.

While the kernel knows nothing of other trees (`InodeTable.beside`), nothing is done here. A directory that it knows in
one tree only costs a look into a table for each other tree. Switch: `twins`.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from functools import partial

import trio

from fusebackend.protocol import Change
from fusebackend.vfs.coherence.invalidation import Invalidation
from fusebackend.vfs.inodes import SYNTHETIC_INDEX, InodeTable, inode_number, route_index
from fusebackend.vfs.junctions import MountTree, Route

log = logging.getLogger(__name__)

PATIENCE_S = 0.25
"""How long an answer waits for its notices. They take 0.1 ms, or as long as another request in the directory."""

MOST_GIVEN = 10_000
"""Of how many names of a directory it is remembered that the kernel was given them. Beyond that it is told of any."""

CONTENDED_S = 5.0
"""For how long after two requests met in a directory the kernel looks up each name in it again."""

Told = list[tuple[Route, Change]]


class Twins:
    """See the module's docstring. On the mount's loop."""

    def __init__(
        self,
        tree: MountTree,
        inodes: InodeTable,
        invalidation: Invalidation,
        kept: set[int],
        on: bool,
    ) -> None:
        self._tree = tree
        self._inodes = inodes
        self._invalidation = invalidation
        self._kept = kept  # of `CachedReaddir`
        self._on = on
        self._held: Counter[int] = Counter()  # directories whose locks the kernel holds for requests that wait here
        # Directories of other trees than the main one, and names in them:
        self._given: dict[int, set[bytes]] = inodes.by_inode({})
        self.contended: dict[int, float] = {}  # directories, and until when; empty nearly always

    async def named(self, route: Route, *changed: tuple[int, bytes], moved: int | None = None) -> None:
        """Names have been changed through the tree of this route.

        Args:
            changed: the directories, by their nodes, and the names.
            moved: the node that has another name, if it is a directory.
        """
        told: Told = []
        targets: set[int] = set()
        for twin in route.twins:
            for node, name in changed:
                number = self._tree.directory(twin, node)
                if self._inodes.get(number) is None:
                    continue
                self._invalidation.overtaken.heard += 1  # answers that are on their way are of before
                if self._is_given(number, name):
                    targets.add(number)
                    told.append((twin, Change(parent=node, name=name)))
                elif number in self._kept:
                    told.append((twin, Change(node=node)))
                elif self._invalidation.kernel is not None and self._on:
                    self._invalidation.kernel.invalidate_inode(number, attributes_only=True)
            if moved is not None and self._inodes.get(inode_number(twin.index, moved)) is not None:
                told.append((twin, Change(node=moved)))
        if len(changed) > 1 and route.files is not route:
            for node, name in changed:  # a rename: the kernel knows both names now, and was given one
                self.given(self._tree.directory(route, node), name)
        if told and self._on:
            held = [self._tree.directory(route, node) for node, _ in changed]
            waits = targets.isdisjoint(self._held)
            if not waits:
                self.contended.update(dict.fromkeys((*held, *targets), trio.current_time() + CONTENDED_S))
            await self._tell(told, held, waits)

    def given(self, directory: int, name: bytes) -> None:
        """The kernel is told of a name, or of its absence, in a directory of another tree than the main one."""
        names = self._given.setdefault(directory, set())
        if len(names) < MOST_GIVEN:
            names.add(name)

    def _is_given(self, directory: int, name: bytes) -> bool:
        """May the kernel know this name, or its absence? In the main tree it may always, and on ways to routes."""
        if not len(self._tree.routes) <= route_index(directory) < SYNTHETIC_INDEX:
            return True
        names = self._given.get(directory, ())
        return name in names or len(names) >= MOST_GIVEN

    @property
    def remembered(self) -> int:
        """How many directories are remembered here."""
        return len(self._given)

    async def _tell(self, told: Told, held: list[int], waits: bool) -> None:
        if self._invalidation.kernel is None:
            return
        done = trio.Event()
        token = trio.lowlevel.current_trio_token()

        def deliver(_: object) -> None:
            with contextlib.suppress(trio.RunFinishedError):  # the mount has ended; nobody waits
                token.run_sync_soon(done.set)

        trio.lowlevel.start_thread_soon(partial(self._notify, told), deliver)
        if not waits:
            return
        self._held.update(held)
        try:
            with trio.move_on_after(PATIENCE_S):
                await done.wait()
        finally:
            self._held -= Counter(held)

    def _notify(self, told: Told) -> None:
        """In a thread."""
        try:
            for twin, change in told:
                self._invalidation.changed(twin, change)
        except Exception:  # the change is made already
            log.exception("defect in telling the kernel of %r", told)

    def is_contended(self, directory: int) -> bool:
        """Was it changed through two trees at once just now?"""
        until = self.contended.get(directory, 0.0)
        if until and until < trio.current_time():
            del self.contended[directory]
            return False
        return until > 0.0

    def attributes(self, route: Route, node: int) -> None:
        """Those of a directory have been changed through the tree of this route. Waits for nobody."""
        kernel = self._invalidation.kernel
        for twin in route.twins:
            number = self._tree.directory(twin, node)
            if self._inodes.get(number) is not None:
                self._invalidation.overtaken.heard += 1
                if kernel is not None and self._on:
                    kernel.invalidate_inode(number, attributes_only=True)
