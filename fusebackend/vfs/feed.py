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
import typing
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import NamedTuple, Self

from fusebackend import paths
from fusebackend.backends.native import NativeVolume
from fusebackend.paths import ROOT, AgentPath
from fusebackend.protocol import EventSource, FileEvent, Report
from fusebackend.vfs.invalidation import KernelCache
from fusebackend.vfs.mounttree import MountTree, Route
from fusebackend.vfs.names import Names
from fusebackend.vfs.reporting import ReportingVolume
from fusebackend.vfs.sight import Sight

QUEUE_EVENTS = 10_000
"""What is kept for a watcher that does not keep up. Beyond that there is one `overflow`, and the rest is dropped."""

NO_NAME = b"/"
"""A name that no directory has."""

_REPEATED = frozenset({"modified", "attributes", "unknown"})
"""Told once, however often they happen before a watcher takes them."""

_SOURCES = typing.get_args(EventSource)

_WHOLE_TREES = frozenset({"deleted", "moved", "exchanged", "unknown"})
"""Told of a directory, these are of everything below it too."""


class Gate:
    """Shut from the moment of a change until both faces show it."""

    __slots__ = ("_watches", "is_open")

    def __init__(self, watches: tuple[Watch, ...]) -> None:
        self.is_open = False
        self._watches = watches

    def open(self) -> None:
        self.is_open = True
        for watch in self._watches:
            watch.wake()


class _Queued(NamedTuple):
    event: FileEvent
    gate: Gate | None
    settle: Callable[[], None] | None = None
    """Called without any lock when the event is taken; returns when the kernel has noted what it has been answered."""


class Watch:
    """The changes at and below one path, from its making on. Take them with `get` or by iterating; thread-safe.

    It ends with `close`, from any thread, or with the mount: then what is left can still be taken. A path need not
    exist, and a watch stays with its path when what was there moves away. What moves in or out is told as `moved`, with
    one of its paths outside.
    """

    def __init__(self, path: AgentPath, on_close: Callable[[Watch], None]) -> None:
        self.path = path
        self._on_close = on_close
        self._queue: deque[_Queued] = deque()
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
            event, _, settle = self._queue.popleft()
            self._repeated.discard((event.kind, event.path, event.source))
            if len(self._queue) < QUEUE_EVENTS:
                self._overflowed = False
        if settle is not None:
            settle()
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

    def __iter__(self) -> Iterator[FileEvent]:
        return self

    def __next__(self) -> FileEvent:
        event = self.get()
        if event is None:
            raise StopIteration
        return event

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _is_ready(self) -> bool:
        return self._ended if not self._queue else self._may_go(self._queue[0])

    def _may_go(self, queued: _Queued) -> bool:
        return queued.gate is None or queued.gate.is_open or self._ended

    # -- for the feed ------------------------------------------------------------------------------------------

    def put(self, queued: _Queued) -> None:
        """Queue an event if it is of something watched here. Never waits."""
        event = queued.event
        if not self._concerns(event):
            return
        with self._changed:
            if self._ended or (event.kind, event.path, event.source) in self._repeated:
                return
            if len(self._queue) < QUEUE_EVENTS:
                self._note(event)
                self._queue.append(queued)
            elif not self._overflowed:
                self._overflowed = True
                path = self.path if self.path == ROOT else self.path + "/"
                self._queue.append(_Queued(FileEvent("overflow", path, True, event.source, None, event.time_ns), None))
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
        """Nothing more will be put; what was can be taken."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()


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
            for route in routes:
                tell = partial(self._told, route, routes)
                route.changing = ReportingVolume(route, self._names, tell) if watches else volume
            if isinstance(volume, NativeVolume):
                volume.watched = bool(watches)

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
        settle = None if through.offload.blocking else partial(self._settle, report, inode)
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
                    watch.put(_Queued(event, gate, settle))
