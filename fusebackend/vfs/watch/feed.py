"""`ChangeFeed`: every change of the mounted tree, from either face, for those who watch.

What the kernel does is told by `ReportingVolume`s, which stand before the volumes while somebody watches; what agents
do is told by the volumes themselves (`Volume.observe`). Both tell with the volume's lock held, so `ChangeFeed` and
`Watch` never wait: they put an event into queues, each of which has a bound.

Whoever reacts to an event through the mount must not be shown what was there before. So an event of the agent face gets
its place in the queues at once, and is given out when the kernel has been told to forget what it knew. The kernel's own
are told while it waits for its answer; it still has to note that, which is done when it lets go of the directory or
file: whoever takes the event waits for that (`Watch.get`).
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from fusebackend.base import paths
from fusebackend.protocol import EventSource, FileEvent, ObservableVolume, Report, Volume
from fusebackend.vfs.coherence.kernel_cache import KernelCache
from fusebackend.vfs.junctions import MountTree, Route
from fusebackend.vfs.watch.emitting import ReportingVolume
from fusebackend.vfs.watch.node_paths import Names
from fusebackend.vfs.watch.queue import Gate, Queued, Watch
from fusebackend.vfs.watch.visibility import Sight

NO_NAME = b"/"
"""A name that no directory has."""


class _Once:
    """Does something for the first who asks; the others wait until it is done, and not at all later. Without it, each
    of 512 watchers asked the kernel of each change."""

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
    """See the module's docstring. One for each mounted tree; `start` and `stop` come from the `FileSystem`."""

    def __init__(self, tree: MountTree, names: Names) -> None:
        self._tree = tree
        self._names = names
        self._sight = Sight(tree)
        self._kernel: KernelCache | None = None
        self._watches: tuple[Watch, ...] = ()  # replaced as a whole: it is read with no lock
        self._guard = threading.Lock()
        self._unobserve: list[Callable[[], None]] = []
        self._stopped = False

    def watch(self, path: str = "/") -> Watch:
        """Watch the changes at and below a path, from now on.

        Raises:
            PathError: the path is malformed.
            OSError: ENOTCONN, the mount has ended.
        """
        watch = Watch(paths.normalise(path), self._remove)
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
            self._report(volume, routes)
            if isinstance(volume, ObservableVolume):
                volume.watched = bool(watches)

    def follow(self) -> None:
        """Routes have been attached, in other trees: what is changed there is told like the rest. In any thread."""
        with self._guard:
            for volume, routes in self._tree.volumes():
                self._report(volume, routes)

    def _report(self, volume: Volume, routes: list[Route]) -> None:
        """Whoever watches is told of what the kernel changes in a volume, once for each prefix that it has."""
        unstored: set[int] = set()
        for route in routes:
            for each in (route, *route.twins):
                tell = partial(self._told, each, routes)
                each.changing = ReportingVolume(each, self._names, tell, unstored) if self._watches else volume

    def start(self, kernel: KernelCache) -> None:
        """Follow what agents do, also while nobody watches: names must be right when somebody does."""
        with self._guard:
            self._kernel = kernel
            self._observe()

    def _observe(self) -> None:
        if self._unobserve:
            return
        self._unobserve = [volume.observe(partial(self._observed, routes)) for volume, routes in self._tree.volumes()]

    def stop(self) -> None:
        """The mount has ended, and with it every watch."""
        with self._guard:
            self._stopped = True
            for unobserve in self._unobserve:
                unobserve()
            watches = self._watches
            self._set(())
        for watch in watches:
            watch.end()

    # -- what is told ------------------------------------------------------------------------------------------

    def _told(self, through: Route, routes: list[Route], report: Report, inode: int) -> None:
        """The kernel has changed something, through one of the routes that have this volume."""
        # A route that may hang holds its directories' locks for as long.
        settle = None if through.offload.blocking else _Once(partial(self._settle, report, inode))
        self._emit(routes, report, "mount", self._watches, None, settle)

    def _settle(self, report: Report, inode: int) -> None:
        kernel = self._kernel
        if kernel is None or self._stopped:
            return
        if report.kind in ("modified", "attributes"):
            kernel.invalidate_inode(inode, attributes_only=True)  # it asks again: for the size, the mode, the times
        else:
            kernel.invalidate_entry(inode, NO_NAME)  # does nothing, as soon as it has the directory's lock

    def _observed(self, routes: list[Route], reports: Sequence[Report]) -> Callable[[], None]:
        """An agent, or somebody elsewhere, has changed something of the volume that these routes have."""
        watches = self._watches
        gate = Gate(watches)
        for report in reports:
            if report.moved_from is not None:
                self._names.adopt(routes, report.node, report.moved_from, report.path)
            if watches:
                self._emit(routes, report, report.source, watches, gate)
        return gate.open

    def _emit(
        self,
        routes: list[Route],
        report: Report,
        source: EventSource,
        watches: tuple[Watch, ...],
        gate: Gate | None,
        settle: Callable[[], None] | None = None,
    ) -> None:
        now = time.time_ns()
        for route in routes:
            for seen in self._sight.of(route, report):
                event = FileEvent(seen.kind, seen.path, seen.path.endswith("/"), source, seen.moved_from, now)
                for watch in watches:
                    watch.put(Queued(event, gate, settle))
