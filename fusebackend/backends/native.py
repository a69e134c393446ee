"""`NativeVolume`: what every volume of this package has in common, a lock and a change feed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from fusebackend.protocol import Change, Volume

log = logging.getLogger(__name__)


class NativeVolume(Volume):
    """A volume with a re-entrant `lock` and a list of subscribers to changes from the other face.

    `publish` is called by whoever changed something outside the kernel face, with no lock held: a subscriber may
    have to wait for the kernel, and the kernel for a request that needs the lock.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._subscribers: list[Callable[[Change], None]] = []

    def subscribe(self, callback: Callable[[Change], None]) -> Callable[[], None]:
        self._subscribers.append(callback)

        def unsubscribe() -> None:
            if callback in self._subscribers:
                self._subscribers.remove(callback)

        return unsubscribe

    def publish(self, *changes: Change) -> None:
        """Tell every subscriber of each change, in order. A subscriber that fails is logged and the rest still hear."""
        for callback in tuple(self._subscribers):
            for change in changes:
                try:
                    callback(change)
                except Exception:  # the change is made already; whoever made it can do nothing about a listener
                    log.exception("a subscriber failed on %r", change)
