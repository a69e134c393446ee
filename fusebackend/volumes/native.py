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

from fusebackend.protocol import Change, Changes, Guard, ObservableVolume, Observer

log = logging.getLogger(__name__)

_silent = contextvars.ContextVar("silent", default=False)


@contextlib.contextmanager
def silently() -> Iterator[None]:
    """What this thread changes meanwhile is not for observers: it is the inner work of a change told as a whole."""
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)


class NativeVolume(ObservableVolume):
    """A volume with a re-entrant `lock`, and lists of subscribers and observers."""

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
        changes: Changes = []
        shown = _nothing
        try:
            with self.lock:
                self.unpublished += 1
                try:
                    yield changes
                finally:
                    shown = self.report(changes)
        finally:
            self.tell(changes)
            with self.lock:
                self.unpublished -= 1
            shown()

    def publish(self, *changes: Change) -> None:
        with_path = any(change.path for change in changes)
        shown = self.report(changes if with_path else [Change(path="/", source="elsewhere")])
        self.tell(changes)
        shown()

    def report(self, changes: Sequence[Change]) -> Callable[[], None]:
        """Call every observer with the changes that have a path. Call the function returned after `tell`."""
        seen = [change for change in changes if change.path]
        answers: list[Callable[[], None]] = []
        if seen and not _silent.get():
            for observer in tuple(self._observers):
                try:
                    answers.append(observer(seen))
                except Exception:  # as in `tell`
                    log.exception("an observer failed on %r", seen[:3])

        def shown() -> None:
            for answer in answers:
                answer()

        return shown if answers else _nothing

    def tell(self, changes: Sequence[Change]) -> None:
        """Call every subscriber with each change for caches, in order. One that fails is logged; the others go on."""
        for callback in tuple(self._subscribers):
            for change in changes:
                if not change.is_for_caches:
                    continue
                try:
                    callback(change)
                except Exception:  # the change is made already; whoever made it can do nothing about a listener
                    log.exception("a subscriber failed on %r", change)


def _nothing() -> None:
    """Nobody waits to be told."""
