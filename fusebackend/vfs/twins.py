"""`Twins`: what the kernel changes through one tree shows in the others.

The kernel knows a directory by a number for each tree (`mounttree.py`), and what it does through one of them it notes
for that one. Of the others it has names, absence, attributes and listings from before. They are invalidated as after a
change by the agent face, and the request is answered when that is done: so whoever hears of the change finds it in
every tree.

A notice of a name takes the directory's lock (`fuse_reverse_inval_entry`, fs/fuse/dir.c), which the kernel holds for as
long as somebody else's request in that directory is not answered. Two requests that waited for each other's directory
would wait for ever. So none waits for a directory whose lock is held by one that waits here, and none for longer than
`PATIENCE_S`; its notice then comes a moment after its answer. While a directory is being changed through two trees at
once in this way, the kernel keeps no name that it finds in it (`is_contended`): what can be seen late is a name that it
knew before, once.

While the kernel knows nothing of other trees (`InodeTable.beside`), nothing is done here. A directory that it knows in
one tree only costs a look into a table for each other tree.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from functools import partial

import trio

from fusebackend.protocol import Change
from fusebackend.vfs.inodes import InodeTable, inode_number
from fusebackend.vfs.invalidation import Invalidation
from fusebackend.vfs.mounttree import MountTree, Route

log = logging.getLogger(__name__)

PATIENCE_S = 0.25
"""How long an answer waits for its notices. They take 0.1 ms, or as long as another request in the directory."""

CONTENDED_S = 5.0
"""For how long after two requests met in a directory the kernel looks up each name in it again."""

Told = list[tuple[Route, Change]]


class Twins:
    """See the module's docstring. On the mount's loop."""

    def __init__(self, tree: MountTree, inodes: InodeTable, invalidation: Invalidation) -> None:
        self._tree = tree
        self._inodes = inodes
        self._invalidation = invalidation
        self._held: Counter[int] = Counter()  # directories whose locks the kernel holds for requests that wait here
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
                if self._inodes.get(number) is not None:
                    targets.add(number)
                    told.append((twin, Change(parent=node, name=name)))
            if moved is not None and self._inodes.get(inode_number(twin.index, moved)) is not None:
                told.append((twin, Change(node=moved)))
        if told:
            self._invalidation.changes += 1  # answers that are on their way are of before
            held = [self._tree.directory(route, node) for node, _ in changed]
            waits = targets.isdisjoint(self._held)
            if not waits:
                self.contended.update(dict.fromkeys((*held, *targets), trio.current_time() + CONTENDED_S))
            await self._tell(told, held, waits)

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
                self._invalidation.changes += 1
                if kernel is not None:
                    kernel.invalidate_inode(number, attributes_only=True)
