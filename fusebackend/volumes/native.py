"""`NativeVolume`: what every volume of this package has in common, a lock and a change feed.

The feed has two kinds of listeners. Subscribers keep caches: they are told nodes and names, after the change and with
no lock held, for they may have to wait for the kernel, and the kernel for a request that needs the lock. Observers
keep account: they are told paths, in the order of the changes, and so with the lock held.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from fusebackend.protocol import Change, EventKind, Report, Volume

log = logging.getLogger(__name__)

Observer: TypeAlias = Callable[[Sequence[Report]], Callable[[], None]]
"""See `Volume.observe`."""

Guard: TypeAlias = Callable[[int], Callable[[], None]]
"""See `NativeVolume.guard`."""

_silent = contextvars.ContextVar("silent", default=False)


@contextlib.contextmanager
def silently() -> Iterator[None]:
    """What this thread changes meanwhile is not for observers: it is the inner work of a change told as a whole."""
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)


class Changes(list[Change]):
    """What is being changed: as a list, for subscribers, and in `reports` for observers."""

    def __init__(self) -> None:
        super().__init__()
        self.reports: list[Report] = []

    def report(self, kind: EventKind, path: str, moved_from: str | None = None, node: int | None = None) -> None:
        self.reports.append(Report(kind, path, moved_from, node))


class NativeVolume(Volume):
    """A volume with a re-entrant `lock`, and lists of subscribers and observers."""

    watched = False
    """Somebody wants to know of every change: what a backend does not tell of itself is worth a question."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._subscribers: list[Callable[[Change], None]] = []
        self._observers: list[Observer] = []
        self._guards: list[Guard] = []

    def subscribe(self, callback: Callable[[Change], None]) -> Callable[[], None]:
        self._subscribers.append(callback)

        def unsubscribe() -> None:
            if callback in self._subscribers:
                self._subscribers.remove(callback)

        return unsubscribe

    def observe(self, callback: Observer) -> Callable[[], None]:
        self._observers.append(callback)

        def unobserve() -> None:
            if callback in self._observers:
                self._observers.remove(callback)

        return unobserve

    def guard(self, callback: Guard) -> Callable[[], None]:
        """Have `callback` called before an agent changes the contents of a node; returns what ends that.

        No lock is held then, and it may wait a moment for who is reading them. What it returns is called after the
        change has been told.
        """
        self._guards.append(callback)

        def unguard() -> None:
            if callback in self._guards:
                self._guards.remove(callback)

        return unguard

    @property
    def is_guarded(self) -> bool:
        return bool(self._guards)

    @contextlib.contextmanager
    def rewriting(self, node: int) -> Iterator[None]:
        """Around all of an agent's change of the contents of a node. Call it with no lock held."""
        ends: list[Callable[[], None]] = []
        try:
            for guard in tuple(self._guards):
                ends.append(guard(node))
            yield
        finally:
            for end in ends:
                end()

    @contextlib.contextmanager
    def changing(self) -> Iterator[Changes]:
        """Hold the lock for a change by the agent face. What is put into `Changes` is told, after an error too."""
        changes = Changes()
        shown = _nothing
        try:
            with self.lock:
                self.untold += 1
                try:
                    yield changes
                finally:
                    shown = self.report(changes.reports)
        finally:
            self.tell(changes)
            with self.lock:
                self.untold -= 1
            shown()

    def publish(self, *changes: Change, reports: Sequence[Report] = ()) -> None:
        """Tell of changes that somebody else has made to what is behind this volume. Call it with no lock held.

        Without a report of what it was, observers know only that it may have been anything.
        """
        shown = self.report(reports or [Report("unknown", "/", source="elsewhere")])
        self.tell(changes)
        shown()

    def report(self, reports: Sequence[Report]) -> Callable[[], None]:
        """Tell every observer; what this returns is to be called when the subscribers have been told as well."""
        answers: list[Callable[[], None]] = []
        if reports and not _silent.get():
            for observer in tuple(self._observers):
                try:
                    answers.append(observer(reports))
                except Exception:  # as in `tell`
                    log.exception("an observer failed on %r", reports[:3])

        def shown() -> None:
            for answer in answers:
                answer()

        return shown if answers else _nothing

    def tell(self, changes: Sequence[Change]) -> None:
        """Tell every subscriber of each change, in order. A subscriber that fails is logged and the rest still hear."""
        for callback in tuple(self._subscribers):
            for change in changes:
                try:
                    callback(change)
                except Exception:  # the change is made already; whoever made it can do nothing about a listener
                    log.exception("a subscriber failed on %r", change)


def _nothing() -> None:
    """Nobody waits to be told."""
