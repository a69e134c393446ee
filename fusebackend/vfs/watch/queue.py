"""`Watch`: the queue of events between the mounted tree and one watcher, which may be slow and in any thread.

`feed.py` puts events in while a volume's lock is held, so `put` never waits: the queue has a bound. An event may have
to wait in its place for a `ChangeGate`, and those behind it with it.
"""

from __future__ import annotations

import threading
import typing
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import NamedTuple, Self

from fusebackend.base import paths
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.protocol import EventSource, FileEvent

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


class Watch:
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
