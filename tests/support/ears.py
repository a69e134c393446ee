"""`Ear`: records calls of any thread, and waits for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Ear(Generic[T]):
    """A subscriber, as `volume.subscribe` takes one, that keeps what it was told in `heard`."""

    def __init__(self) -> None:
        self.heard: list[T] = []
        self._condition = threading.Condition()

    def __call__(self, told: T) -> None:
        with self._condition:
            self.heard.append(told)
            self._condition.notify_all()

    def wait(self, holds: Callable[[list[T]], object], limit_s: float = 60.0) -> None:
        """Wait until `holds` is true of all that was heard."""
        with self._condition:
            assert self._condition.wait_for(lambda: holds(self.heard), limit_s), self.heard

    def until(self, wanted: T, limit_s: float = 60.0) -> list[T]:
        """Wait until `wanted` is heard. Return what was heard before it; both are not heard any more."""
        self.wait(lambda heard: wanted in heard, limit_s)
        with self._condition:
            place = self.heard.index(wanted)
            before = self.heard[:place]
            del self.heard[: place + 1]
        return before

    def take(self) -> list[T]:
        """Return what was heard, which is not heard any more."""
        with self._condition:
            heard, self.heard = self.heard, []
        return heard
