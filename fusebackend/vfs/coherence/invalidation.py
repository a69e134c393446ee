"""`Invalidation`: notices to the kernel of changes by the other face and other hosts.

Race: the kernel caches names, attributes and pages for an hour (`entry_cache.py`), and does not ask in between. A
change that it has not made itself needs a notice (FUSE_NOTIFY_INVAL_INODE, FUSE_NOTIFY_INVAL_ENTRY).

A volume publishes each change in the thread that made it, with no lock held. The notice is sent in that thread too, so
that the mount is up to date when an agent's call returns.

Cost: 0.1 ms for each change by an agent; a notice of a name waits for a request in the same directory. Switch:
`invalidation`.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import trio

from fusebackend.protocol import Change, Link
from fusebackend.rules.ruled_volume import NODES
from fusebackend.vfs.coherence.dentries import Dentries, Name, links_of
from fusebackend.vfs.coherence.entry_cache import NegativeDentries, Overtaken
from fusebackend.vfs.coherence.page_cache import NO_KERNEL, KernelCache, PageVersions
from fusebackend.vfs.handles import WriteBarrier
from fusebackend.vfs.inodes import ROOT_INODE, SYNTHETIC_INDEX, InodeTable, inode_number, route_index
from fusebackend.vfs.junctions import MountTree, Route

log = logging.getLogger(__name__)


class Invalidation:
    """Subscribed to every route of every tree while the kernel listens."""

    def __init__(
        self,
        tree: MountTree,
        inodes: InodeTable,
        dentries: Dentries,
        page_versions: PageVersions,
        overtaken: Overtaken,
        negative: NegativeDentries,
        filled: set[int],
        barrier: WriteBarrier,
        on: bool,
    ) -> None:
        self._tree = tree
        self._inodes = inodes
        self._dentries = dentries
        self._page_versions = page_versions
        self._negative = negative
        self._filled = filled  # of `Prefill`
        self._barrier = barrier
        self._on = on
        self.overtaken = overtaken
        self.kernel: KernelCache = NO_KERNEL
        self._ends: list[Callable[[], None]] = []  # of what a volume calls
        self._followed = 0  # of the tree's routes
        self._guard = threading.Lock()

    def start(self, kernel: KernelCache) -> None:
        self.kernel = kernel
        self.follow()

    def follow(self) -> None:
        """Subscribe to routes that were attached since the last call, and have agents' changes of their files pass the
        write barrier, if there is a kernel. In any thread."""
        with self._guard:
            if self.kernel is not NO_KERNEL:
                new = self._tree.attached[self._followed :]
                self._followed += len(new)
                self._ends += [route.volume.subscribe(partial(self.changed, route)) for route in new]
                self._ends += [
                    route.volume.guard(partial(self._barrier.begin, route)) for route in new if route.files is route
                ]

    def stop(self) -> None:
        with self._guard:
            for end in self._ends:
                end()
            self._ends = []
            self.kernel = NO_KERNEL

    def expire(self, route: Route) -> None:
        """Expire everything that the kernel has of this route: others may have changed anything.

        It keeps the dentries of directories: without them a process that works in one would lose it, and a sandbox the
        file systems mounted there. But it has to ask for their attributes, and the volume answers ESTALE for a
        directory that has moved, which makes the kernel look the name up again.
        """
        route.volume.expire()
        family = (route, *route.twins)
        absent = {name for each in family for name in self._negative.take(each)}
        for each in family:
            self.changed(each, Change())
        if route.shared:
            return
        for inode, known in self._inodes.records():
            absent.discard((known.parent, known.name))  # it was made since
            if not known.is_dir and route_index(inode) == route.files.index:
                for place in (*self._inodes.others.get(inode, ()), (known.parent, known.name)):
                    self.drop(*self._in_all_trees(place))
        self.drop(*absent)

    def drop(self, *names: Name) -> None:
        """Drop these dentries. Not those of the server's: something may be mounted there."""
        for name in names:
            if self._tree.is_volumes(*name):
                self.kernel.invalidate_entry(*name)

    def _in_all_trees(self, name: Name) -> Iterator[Name]:
        """A name in a directory, and the same name by each number that the directory has in other trees."""
        yield name
        place = self._tree.place_of(name[0])
        if place is not None:
            for twin in place[0].twins:
                number = self._tree.directory(twin, place[1])
                if self._inodes.get(number) is not None:
                    yield number, name[1]

    def changed(self, route: Route, change: Change) -> None:
        """Notify the kernel of one change of a route, in this tree. May wait for a request."""
        self.overtaken.generation += 1
        anything = change.node is None and change.parent is None
        if anything and route.shared:
            route.follow_feed()
        if not self._on:
            return
        if anything:
            for inode, _ in self._inodes.items():
                if route_index(inode) == route.index:
                    self._invalidate(route, inode)
            if route.shared:
                self._drop_names(route)
            return
        if change.node is not None:
            for inode in self._numbers(route, change.node):
                self._invalidate(route, inode)
        if change.parent is not None and change.name is not None:
            for inode in self._numbers(route, change.parent):
                if self._tree.is_volumes(inode, change.name):
                    self._drop_name((inode, change.name))
                # A directory's pages are its cached listing. They go even though its time has moved, for utimes(2) may
                # set that back.
                self.kernel.invalidate_inode(inode, attributes_only=not route.keeps_listings)

    def _invalidate(self, route: Route, inode: int) -> None:
        self._filled.discard(inode)
        if route.shared:
            self._page_versions.tell(inode, partial(self.kernel.invalidate_inode, inode))
        else:
            self.kernel.invalidate_inode(inode)

    def _drop_name(self, name: Name) -> None:
        dentry = self._dentries.get(name)
        self.kernel.invalidate_entry(*name)
        if dentry is not None:
            self._dentries.dropped(name, dentry)

    def _drop_names(self, route: Route) -> None:
        """Drop all dentries of files, and those of directories that are wrong, if the volume answers."""
        directories: dict[Link, Name] = {}
        for inode, known in self._inodes.records():
            if route_index(inode) != route.index:
                continue
            if known.is_dir:
                links = links_of(self._tree, self._dentries, route, inode)
                directories.update((link, names[0]) for link, names in links.items())
            else:
                for name in self._dentries.of(inode):
                    self._drop_name(name)
        if not route.volume.features.change_feed:
            return  # the volume's server may be away: opens look at the names, and they expire soon
        try:
            for link in route.volume.wrong_links(list(directories)):
                self._drop_name(directories[link])
        except OSError as error:
            log.info("route %s: directories are looked at when they are opened: %s", route.prefix, error)

    def _numbers(self, route: Route, node: int) -> list[int]:
        """Return the inodes by which the kernel knows a node: its own, and that of a junction."""
        numbers = {inode_number(route.index, node), self._tree.directory(route, node)}
        return [number for number in numbers if self._inodes.get(number) is not None]


# -- pruning -----------------------------------------------------------------------------------------------------


BATCH = 256
"""Inodes dropped at one `opendir`: 5 ms, and more than one listing adds to a walk on average."""

SHARE = 2
"""One in so many of a route's inodes, the older ones, is dropped until the next look at all of them."""

LOOKING_SHARE = 1 / 20
"""Of the time, at most, that goes into looks at all inodes, 10 ms for 60,000: all of them may be in use."""


class Pruning:
    """The kernel drops dentries of a volume whose nodes take memory, when it knows many inodes.

    Saves: memory. The kernel drops dentries when it needs memory itself, and until then a volume that computes its
    nodes keeps each node that the kernel has looked up: a walk through 1,000 conversations has 220,000 of them. A
    volume says how many inodes it bears (`Volume.most_nodes`); beyond that, each `opendir` in it drops some of the
    oldest.

    Costs: a comparison at each `opendir` in such a volume; beyond the limit 20 µs for each inode, and a lookup for each
    name that is asked for again. Switch: `pruning`.

    FUSE_NOTIFY_PRUNE (Linux 6.18, `fuse_notify_prune`, fs/fuse/dev.c) drops the inodes that nothing uses, and never
    waits. An older kernel gets a notice for the name of each file that is not open, and keeps the directories: with
    FUSE_NOTIFY_INVAL_ENTRY a process would lose the directory in which it works.

    On the mount's loop.

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


# -- twins -------------------------------------------------------------------------------------------------------


PATIENCE_S = 0.25
"""How long an answer waits for its notices. They take 0.1 ms, or as long as another request in the directory."""

MAX_NOTED = 10_000
"""So many names of a directory are kept. Beyond that every name gets a notice."""

CONTENDED_S = 5.0
"""For how long after two requests met in a directory the kernel looks up each name in it again."""

Notices = list[tuple[Route, Change]]


class Twins:
    """A change by the kernel through one tree is visible in the others.

    Race: a directory has an inode for each tree (`vfs/junctions.py`), and the kernel applies its own change to one of
    them. Of the others it has names, absence, attributes and listings from before. They are invalidated as after a
    change by the agent face, and the request is answered after that: a process that learns of the change finds it in
    every tree. So are the pages and attributes of a file that is changed through a view by a number of its own
    (`Route.is_restricted`).

    A notice of a name takes the directory's lock (`fuse_reverse_inval_entry`, fs/fuse/dir.c), which the kernel holds
    until another request in that directory is answered. Two requests that waited for each other's directory would wait
    for ever. So none waits for a directory whose lock is held by a request that waits here, and none for longer than
    `PATIENCE_S`; its notice then comes a moment after its answer. While a directory is being changed through two trees
    at once in this way, the kernel caches no name that it finds in it (`is_contended`): only a name that it knew before
    may be seen late, once.

    A name that the kernel was never given in a directory needs no such notice, and a notice of attributes does not
    wait. The names that it was given are kept for other trees alone: in the main one that would cost every lookup, so
    every name gets a notice.

    While the kernel knows nothing of other trees (`InodeTable.beside`), nothing is done here. A directory that it knows
    in one tree only costs a look into a table for each other tree. Switch: `twins`.

    On the mount's loop.
    """

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
                self.note_names(route, self._tree.directory(route, node), (name,))
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
            elif self._on:
                self._invalidation.kernel.invalidate_inode(number, attributes_only=True)
        return notices, targets

    def note_names(self, route: Route, directory: int, names: Iterable[bytes]) -> None:
        """Note that the kernel gets names, or their absence, in a directory, if its tree is not the main one."""
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
        notify = partial(
            trio.to_thread.run_sync,
            self._notify_in_thread,
            notices,
            abandon_on_cancel=True,
            limiter=trio.CapacityLimiter(1),  # a notice that waits for a request keeps no other back
        )
        if not waits:
            trio.lowlevel.spawn_system_task(notify)
            return
        self._held.update(held)
        try:
            with trio.move_on_after(PATIENCE_S):
                await notify()
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
        for twin in route.twins:
            number = self._tree.directory(twin, node)
            if self._inodes.get(number) is not None:
                self._invalidation.overtaken.generation += 1
                if self._on:
                    self._invalidation.kernel.invalidate_inode(number, attributes_only=True)
