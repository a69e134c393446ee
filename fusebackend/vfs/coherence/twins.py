"""`Twins`: a change by the kernel through one tree is visible in the others.

Race: a directory has an inode for each tree (`vfs/junctions.py`), and the kernel applies its own change to one of them.
Of the others it has names, absence, attributes and listings from before. They are invalidated as after a change by the
agent face, and the request is answered after that: a process that learns of the change finds it in every tree. So are
the pages and attributes of a file that is changed through a view by a number of its own (`Route.is_restricted`).

A notice of a name takes the directory's lock (`fuse_reverse_inval_entry`, fs/fuse/dir.c), which the kernel holds until
another request in that directory is answered. Two requests that waited for each other's directory would wait for ever.
So none waits for a directory whose lock is held by a request that waits here, and none for longer than `PATIENCE_S`;
its notice then comes a moment after its answer. While a directory is being changed through two trees at once in this
way, the kernel caches no name that it finds in it (`is_contended`): only a name that it knew before may be seen late,
once.

A name that the kernel was never given in a directory needs no such notice, and attributes none that waits. Those names
are kept for other trees; in the main one, where that would cost every lookup, every name gets a notice.

While the kernel knows nothing of other trees (`InodeTable.beside`), nothing is done here. A directory that it knows in
one tree only costs a look into a table for each other tree. Switch: `twins`.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections import Counter
from collections.abc import Iterable
from functools import partial

import trio

from fusebackend.protocol import Change
from fusebackend.rules.ruled_volume import NODES
from fusebackend.vfs.coherence.invalidation import Invalidation
from fusebackend.vfs.inodes import SYNTHETIC_INDEX, InodeTable, inode_number, route_index
from fusebackend.vfs.junctions import MountTree, Route

log = logging.getLogger(__name__)

PATIENCE_S = 0.25
"""How long an answer waits for its notices. They take 0.1 ms, or as long as another request in the directory."""

MAX_NOTED = 10_000
"""So many names of a directory are kept. Beyond that every name gets a notice."""

CONTENDED_S = 5.0
"""For how long after two requests met in a directory the kernel looks up each name in it again."""

Notices = list[tuple[Route, Change]]


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
        self._held: Counter[int] = Counter()  # directories locked for a request that waits here
        # Directories of other trees than the main one, and names in them:
        self._noted: dict[int, set[bytes]] = inodes.by_inode({})
        self.contended: dict[int, float] = {}  # directories, and until when; empty nearly always

    async def names_changed(self, route: Route, *changed: tuple[int, bytes], moved: int | None = None) -> None:
        """Names have been changed through the tree of this route.

        Args:
            changed: the directories, by their nodes, and the names.
            moved: the node that has another name, if it is a directory.
        """
        notices, targets = self._notices(route.twins, *changed)
        for twin in route.twins:
            if moved is not None and self._inodes.get(inode_number(twin.index, moved)) is not None:
                notices.append((twin, Change(node=moved)))
        if len(changed) > 1 and route.files is not route:
            for node, name in changed:  # a rename: the kernel knows both names now, and was given one
                self.note_name(self._tree.directory(route, node), name)
        if notices and self._on:
            held = [self._tree.directory(route, node) for node, _ in changed]
            waits = targets.isdisjoint(self._held)
            if not waits:
                self.contended.update(dict.fromkeys((*held, *targets), trio.current_time() + CONTENDED_S))
            await self._notify(notices, held, waits)

    async def linked(self, route: Route, node: int, name: bytes, locked: int) -> None:
        """A file has another name beside this one. A view that hides names now gives it another number: there this one
        is found anew.

        Args:
            route: of the main tree.
            node, name: the directory, and the name in it.
            locked: the directory of the new name, by its inode. The kernel has locked it until it is answered, so no
                answer waits for a notice in it.
        """
        notices, targets = self._notices([twin for twin in route.twins if twin.hides], (node, name))
        if notices and self._on:
            await self._notify(notices, [locked], targets.isdisjoint((*self._held, locked)))

    def _notices(self, twins: Iterable[Route], *changed: tuple[int, bytes]) -> tuple[Notices, set[int]]:
        """Return the notices of names in other trees, and the directories that they lock."""
        notices: Notices = []
        targets: set[int] = set()
        for twin, (node, name) in itertools.product(twins, changed):
            number = self._tree.directory(twin, node)
            if self._inodes.get(number) is None:
                continue
            self._invalidation.overtaken.generation += 1  # answers that are on their way are of before
            if self._may_be_cached(number, name):
                targets.add(number)
                notices.append((twin, Change(parent=node, name=name)))
            elif number in self._kept:
                notices.append((twin, Change(node=node)))
            elif self._invalidation.kernel is not None and self._on:
                self._invalidation.kernel.invalidate_inode(number, attributes_only=True)
        return notices, targets

    def note_name(self, directory: int, name: bytes) -> None:
        """Note that the kernel gets a name, or its absence, in a directory of another tree than the main one."""
        names = self._noted.setdefault(directory, set())
        if len(names) < MAX_NOTED:
            names.add(name)

    def note_names(self, route: Route, directory: int, names: Iterable[bytes]) -> None:
        """Do it for names that the kernel is about to be given in a listing."""
        if route.files is not route:
            noted = self._noted.setdefault(directory, set())
            if len(noted) < MAX_NOTED:
                noted.update(names)

    def _may_be_cached(self, directory: int, name: bytes) -> bool:
        """True if the kernel may have this name, or its absence: in the main tree and on ways to routes always."""
        if not len(self._tree.routes) <= route_index(directory) < SYNTHETIC_INDEX:
            return True
        names = self._noted.get(directory, ())
        return name in names or len(names) >= MAX_NOTED

    async def _notify(self, notices: Notices, held: list[int], waits: bool) -> None:
        if self._invalidation.kernel is None:
            return
        done = trio.Event()
        token = trio.lowlevel.current_trio_token()

        def deliver(_: object) -> None:
            with contextlib.suppress(trio.RunFinishedError):  # the mount has ended
                token.run_sync_soon(done.set)

        trio.lowlevel.start_thread_soon(partial(self._notify_in_thread, notices), deliver)
        if not waits:
            return
        self._held.update(held)
        try:
            with trio.move_on_after(PATIENCE_S):
                await done.wait()
        finally:
            self._held -= Counter(held)

    def _notify_in_thread(self, notices: Notices) -> None:
        """In a thread."""
        try:
            for twin, change in notices:
                self._invalidation.changed(twin, change)
        except Exception:  # the change is made already
            log.exception("defect in telling the kernel of %r", notices)

    def is_contended(self, directory: int) -> bool:
        """True if it was changed through two trees at once just now."""
        until = self.contended.get(directory, 0.0)
        if until and until < trio.current_time():
            del self.contended[directory]
            return False
        return until > 0.0

    async def file_changed(self, route: Route, node: int) -> None:
        """A file has been changed through the tree of this route. One that rules restrict there was changed by a number
        of its own: what the kernel has of it by that of the main tree is of before."""
        if not (self._on and route.is_restricted(node)):
            return
        node &= NODES
        if self._inodes.get(inode_number(route.files.index, node)) is not None:
            self._invalidation.overtaken.generation += 1
            await self._notify([(route.files, Change(node=node))], [], True)

    def attributes_changed(self, route: Route, node: int) -> None:
        """Expire a directory's attributes in other trees after a change through this one. Does not wait."""
        kernel = self._invalidation.kernel
        for twin in route.twins:
            number = self._tree.directory(twin, node)
            if self._inodes.get(number) is not None:
                self._invalidation.overtaken.generation += 1
                if kernel is not None and self._on:
                    kernel.invalidate_inode(number, attributes_only=True)
