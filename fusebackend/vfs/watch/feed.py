"""`ChangeFeed`: every change of the mounted tree, from either face, for watchers.

`WatchListener`s report the kernel's changes; the doors have them while a `Watch` is open. Volumes
themselves report those of agents (`Volume.observe`). Both call with the volume's lock held, so `ChangeFeed` and `Watch`
never wait: they put events into queues with a bound.

A watcher that looks at the mount because of an event must not see the state before it:

- An event of the agent face gets its place in the queues at once, and is released after the kernel was notified
  (`ChangeGate`).
- The kernel applies its own change when it has the answer, and then lets go of the directory or file. `Watch.get` waits
  for that (`_wait_for_kernel`).
"""

from __future__ import annotations

import errno
import stat
import threading
import time
import typing
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Literal, NamedTuple

from fusebackend.base import paths
from fusebackend.base.paths import ROOT, AgentPath, to_text
from fusebackend.composite.route_table import PrefixTable
from fusebackend.protocol import RENAME_EXCHANGE, Change, EventKind, EventSequence, EventSource, FileEvent
from fusebackend.vfs.coherence.page_cache import NO_KERNEL, KernelCache
from fusebackend.vfs.door import ChangeListener, DoorChange
from fusebackend.vfs.junctions import MountTree, Route
from fusebackend.vfs.watch.node_paths import NodePaths

# -- the queue of a watcher --------------------------------------------------------------------------------------


QUEUE_EVENTS = 10_000
"""What is kept for a watcher that does not keep up. Beyond that there is one `overflow`, and the rest is dropped."""

_REPEATED = frozenset({"modified", "attributes", "unknown"})
"""Queued once until a watcher takes them."""

_SOURCES = typing.get_args(EventSource)

_WHOLE_TREES = frozenset({"deleted", "moved", "exchanged", "unknown"})
"""For a directory, these concern everything below it too."""


class ChangeGate:
    """Shut from the moment of a change until both faces show it."""

    __slots__ = ("_watches", "is_open")

    def __init__(self, watches: tuple[Watch, ...]) -> None:
        self.is_open = False
        self._watches = watches

    def open(self) -> None:
        self.is_open = True
        for watch in self._watches:
            watch.wake()


class Queued(NamedTuple):
    event: FileEvent
    gate: ChangeGate | None
    wait: Callable[[], None] | None = None
    """Called without any lock when the event is taken; returns when the kernel has applied the answer."""


class Watch(EventSequence):
    """The changes at and below one path, from its making on. Take them with `get` or by iterating; thread-safe.

    It ends with `close`, from any thread, or with the mount: then what is left can still be taken. A path need not
    exist, and a watch stays with its path when the file there moves away. A move in or out gives `moved`, with one of
    its paths outside.

    Args:
        on_close: called with it when it is closed.
        shown: returns an event as the watcher may see it, None for none. Called under a volume's lock.
    """

    def __init__(
        self,
        path: AgentPath,
        on_close: Callable[[Watch], None],
        shown: Callable[[FileEvent], FileEvent | None] = lambda event: event,
    ) -> None:
        self.path = path
        self._on_close = on_close
        self._shown = shown
        self._queue: deque[Queued] = deque()
        self._repeated: set[tuple[str, ...]] = set()  # queued, with nothing after that changes what their path means
        self._overflowed = False
        self._ended = False
        self._changed = threading.Condition()

    # -- for the watcher ---------------------------------------------------------------------------------------

    def get(self, timeout_s: float | None = None) -> FileEvent | None:
        """The next event. None when there is none within `timeout_s` (None: wait for ever), and when it has ended."""
        with self._changed:
            self._changed.wait_for(self._is_ready, timeout_s)
            if not self._queue or not self._may_go(self._queue[0]):
                return None
            event, _, wait = self._queue.popleft()
            self._repeated.discard((event.kind, event.path, event.source))
            if len(self._queue) < QUEUE_EVENTS:
                self._overflowed = False
        if wait is not None:
            wait()
        return event

    @property
    def closed(self) -> bool:
        """Nothing will come any more."""
        return self._ended and not self._queue

    def close(self) -> None:
        """End it, and drop what was not taken. Twice is once."""
        self._on_close(self)
        with self._changed:
            self._ended = True
            self._queue.clear()
            self._changed.notify_all()

    def _is_ready(self) -> bool:
        return self._ended if not self._queue else self._may_go(self._queue[0])

    def _may_go(self, queued: Queued) -> bool:
        return queued.gate is None or queued.gate.is_open or self._ended

    # -- for the feed ------------------------------------------------------------------------------------------

    def put(self, queued: Queued) -> None:
        """Queue an event if it is of something watched here. Never waits."""
        event = self._shown(queued.event) if self._concerns(queued.event) else None
        if event is None:
            return
        with self._changed:
            if self._ended or (event.kind, event.path, event.source) in self._repeated:
                return
            if len(self._queue) < QUEUE_EVENTS:
                self._note(event)
                self._queue.append(queued if event is queued.event else queued._replace(event=event))
            elif not self._overflowed:
                self._overflowed = True
                path = self.path if self.path == ROOT else self.path + "/"
                self._queue.append(Queued(FileEvent("overflow", path, True, event.source, None, event.time_ns), None))
            self._changed.notify_all()

    def _concerns(self, event: FileEvent) -> bool:
        if self.path == ROOT:
            return True
        for path in (event.path, event.moved_from):
            if path is not None:
                bare = path.rstrip("/")
                if paths.is_below(bare, self.path) or (event.kind in _WHOLE_TREES and self.path.startswith(bare + "/")):
                    return True
        return False

    def _note(self, event: FileEvent) -> None:
        """Further changes of a path are worth an event again once its name has changed."""
        if event.kind in _REPEATED:
            self._repeated.add((event.kind, event.path, event.source))
        elif event.moved_from is not None or event.is_dir:
            self._repeated.clear()
        else:
            self._repeated.difference_update((kind, event.path, source) for kind in _REPEATED for source in _SOURCES)

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def end(self) -> None:
        """Take no more events; queued ones can still be taken."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()


# -- the feed ----------------------------------------------------------------------------------------------------


NO_NAME = b"/"
"""A name that no directory has."""


class _Once:
    """Run an action in the first call; others wait for its end, and later ones return at once. Without it, each of 512
    watchers asked the kernel for each change."""

    __slots__ = ("_action", "_guard")

    def __init__(self, action: Callable[[], None]) -> None:
        self._action: Callable[[], None] | None = action
        self._guard = threading.Lock()

    def __call__(self) -> None:
        if self._action is not None:
            with self._guard:
                if self._action is not None:
                    self._action()
                    self._action = None


class ChangeFeed:
    """See the module's docstring. One for each mounted tree; the `FileSystem` calls `start` and `stop`."""

    def __init__(self, tree: MountTree, names: NodePaths) -> None:
        self._tree = tree
        self._names = names
        self._kernel: KernelCache = NO_KERNEL
        self._watches: tuple[Watch, ...] = ()  # replaced as a whole: it is read with no lock
        self._guard = threading.Lock()
        self._unobserve: list[Callable[[], None]] = []
        self._stopped = False

    def watch(self, path: str = "/", shown: Callable[[FileEvent], FileEvent | None] = lambda event: event) -> Watch:
        """Watch the changes at and below a path, from now on; `shown` as of `Watch`.

        Raises:
            PathError: the path is malformed.
            OSError: ENOTCONN, the mount has ended.
        """
        watch = Watch(paths.normalise(path), self._remove, shown)
        with self._guard:
            if self._stopped:
                raise OSError(errno.ENOTCONN, "The mount has ended, so nothing can be watched")
            self._observe()
            self._set((*self._watches, watch))
        return watch

    def _remove(self, gone: Watch) -> None:
        with self._guard:
            self._set(tuple(watch for watch in self._watches if watch is not gone))

    def _set(self, watches: tuple[Watch, ...]) -> None:
        before, self._watches = self._watches, watches
        if bool(before) == bool(watches):
            return
        for volume, routes in self._tree.volumes():
            self._report(routes)
            volume.watched = bool(watches)

    def follow(self) -> None:
        """Report the kernel's changes of routes that have been attached in other trees. In any thread."""
        with self._guard:
            for _, routes in self._tree.volumes():
                self._report(routes)

    def _report(self, routes: list[Route]) -> None:
        """Report the kernel's changes of a volume to watchers, if there are any, once for each prefix that it has."""
        unstored: set[int] = set()
        for route in routes:
            for each in (route, *route.twins):
                if each.is_view:
                    continue  # its changes go on through the main tree's route
                emit = partial(self._changed_by_kernel, each, routes)
                watching = WatchListener(each, self._names, emit, unstored) if self._watches else None
                each.listen("watchers", watching, self._names)

    def start(self, kernel: KernelCache) -> None:
        """Follow the changes of agents, also without a watcher: the paths in `Names` must be right for the next one."""
        with self._guard:
            self._kernel = kernel
            self._observe()

    def _observe(self) -> None:
        if not self._unobserve:
            self._unobserve = [
                volume.observe(partial(self._changed_by_others, routes)) for volume, routes in self._tree.volumes()
            ]

    def stop(self) -> None:
        """End every watch with the mount."""
        with self._guard:
            self._stopped = True
            for unobserve in self._unobserve:
                unobserve()
            watches = self._watches
            self._set(())
        for watch in watches:
            watch.end()

    # -- events ------------------------------------------------------------------------------------------------

    def _changed_by_kernel(self, through: Route, routes: list[Route], change: Change, inode: int) -> None:
        """Queue a change that the kernel has made through one of the routes of this volume."""
        # A route that may hang holds its directories' locks for as long.
        wait = None if through.executor.blocking else _Once(partial(self._wait_for_kernel, change, inode))
        self._emit(routes, change, "mount", self._watches, None, wait)

    def _wait_for_kernel(self, change: Change, inode: int) -> None:
        """Return when the kernel has applied the answer that carried a change."""
        if self._stopped:
            return
        if change.kind in ("modified", "attributes"):
            self._kernel.invalidate_inode(
                inode, attributes_only=True
            )  # it asks again: for the size, the mode, the times
        else:
            self._kernel.invalidate_entry(inode, NO_NAME)  # does nothing, as soon as it has the directory's lock

    def _changed_by_others(self, routes: list[Route], changes: Sequence[Change]) -> Callable[[], None] | None:
        """Queue changes that an agent, or another host, has made to the volume of these routes."""
        for change in changes:
            if change.moved_from is not None:
                self._names.adopt(routes, change.node, change.moved_from, change.path)
        watches = self._watches
        if not watches:
            return None
        gate = ChangeGate(watches)
        for change in changes:
            self._emit(routes, change, change.source, watches, gate)
        return gate.open

    def _emit(
        self,
        routes: list[Route],
        change: Change,
        source: EventSource,
        watches: tuple[Watch, ...],
        gate: ChangeGate | None,
        wait: Callable[[], None] | None = None,
    ) -> None:
        now = time.time_ns()
        for route in routes:
            for seen in visible(self._tree.table, route.prefix, change):
                event = FileEvent(seen.kind, seen.path, seen.path.endswith("/"), source, seen.moved_from, now)
                for watch in watches:
                    watch.put(Queued(event, gate, wait))


# -- changes by the kernel --------------------------------------------------------------------------------------


class WatchListener(ChangeListener):
    """Reports the changes of a route's door while a `Watch` is open.

    Whole-file volumes give two events: when the mount shows new bytes, and when they are stored, for only then the
    other face sees them.

    `tell` is called with the volume's lock held, with the change and the inode whose lock the kernel holds until the
    request is over: of the directory for a change of names, of the file for others. `unstored` holds the nodes with
    bytes that are not stored yet, for all routes of the volume.
    """

    name = "watchers"

    def __init__(self, route: Route, names: NodePaths, tell: Callable[[Change, int], None], unstored: set[int]) -> None:
        self._route = route
        self._volume = route.volume
        self._names = names
        self._tell = tell
        self._unstored = unstored

    def before(self, change: DoorChange) -> None:
        if change.kind == "rename":
            _ = change.attr, change.replaced
        elif change.kind == "remove":
            _ = change.attr

    def ordered(self, change: DoorChange) -> None:
        match change.kind:
            case "create" | "link":
                self._named(change, "created", change.result.is_dir)
                if change.kind == "create" and stat.S_ISREG(change.result.mode):
                    self._written(change.result.node)
            case "remove":
                self._named(change, "deleted", change.attr.is_dir)
            case "rename":
                self._renamed(change)
            case "content" if change.result != 0:
                self._changed(change, "modified", False)
                self._written(change.node)
            case "attributes":
                attr = change.result or self._volume.getattr(change.node)
                self._changed(change, "attributes", attr.is_dir)
            case "stored" if change.node in self._unstored:
                self._unstored.discard(change.node)
                self._changed(change, "modified", False)

    def _written(self, node: int) -> None:
        if not self._volume.features.random_writes:
            self._unstored.add(node)

    def _named(self, change: DoorChange, kind: EventKind, is_dir: bool) -> None:
        shown = Change(path="/") if change.path is None else Change(kind=kind, path=_shown(change.path, is_dir))
        self._tell(shown, self._names.inode(self._route, change.parent))

    def _renamed(self, change: DoorChange) -> None:
        if change.is_same_file:
            return
        moved, replaced, old, new = change.attr, change.replaced, change.path, change.to_path
        if old is None or new is None:
            shown = Change(path="/")
        elif change.flags & RENAME_EXCHANGE and replaced is not None:
            before = _shown(old, replaced.is_dir)
            shown = Change(kind="exchanged", path=_shown(new, moved.is_dir), moved_from=before)
        else:
            shown = Change(kind="moved", path=_shown(new, moved.is_dir), moved_from=_shown(old, moved.is_dir))
        self._tell(shown, self._names.inode(self._route, change.new_parent))

    def _changed(self, change: DoorChange, kind: EventKind, is_dir: bool) -> None:
        node, path = change.node, change.path
        inode = self._names.inode(self._route, node)
        if path is not None:
            self._tell(Change(kind=kind, path=_shown(path, is_dir)), inode)
        elif not is_dir and self._volume.getattr(node).nlink > 0:
            self._tell(Change(path="/"), inode)  # it has a name that is not known


def _shown(path: bytes, is_dir: bool) -> str:
    return to_text(path + b"/" if is_dir and path != b"/" else path)


# -- visibility ------------------------------------------------------------------------------------------------


def visible(table: PrefixTable, prefix: AgentPath, change: Change) -> Iterator[Change]:
    """Give a volume's change in paths of the mounted tree, as far as it is visible there.

    A path gets the prefix of its route. A path that another route covers is invisible. A directory on the way to
    another route exists with or without the volume's own: creating that changes nothing, and after deleting or moving
    it the whole directory has to be looked at again (`unknown`).
    """
    outer = "" if prefix == ROOT else prefix
    before = None if change.moved_from is None else outer + change.moved_from
    change = change._replace(path=outer + change.path, moved_from=before)
    place = _place(table, prefix, change.path)
    if before is None:
        if place == "way" and change.kind == "deleted":
            yield change._replace(kind="unknown")
        elif place == "open" or (place == "way" and change.kind != "created"):
            yield change
        return
    place_before = _place(table, prefix, before)
    if place == place_before == "open":
        yield change
        return
    for path, where in ((before, place_before), (change.path, place)):
        if where == "way" or (where == "open" and change.kind == "exchanged"):
            yield Change(path=path)
        elif where == "open":
            yield Change(kind="deleted" if path == before else "created", path=path)


def _place(table: PrefixTable, prefix: AgentPath, path: str) -> Literal["open", "covered", "way"]:
    bare = AgentPath(path.rstrip("/") or ROOT)
    if (table.route(bare)[0] or ROOT) != prefix:
        return "covered"
    return "way" if bare != ROOT and table.names_below(bare) else "open"
