"""`ObservableVolume`: a volume that reports changes by its agent face and by others to caches and watchers."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TypeAlias

from fusebackend.protocol.events import Change, Changes
from fusebackend.protocol.volume import Volume

__all__ = [
    "Guard", "ObservableVolume", "Observer",
]  # fmt: skip

Observer: TypeAlias = Callable[[Sequence[Change]], Callable[[], None]]
"""See `Volume.observe`."""

Guard: TypeAlias = Callable[[int], Callable[[], None]]
"""See `ObservableVolume.guard`."""


class ObservableVolume(Volume):
    """A volume that reports each change of its agent face, before and after it is made."""

    watched: bool = False
    """True while a `Watch` is open. Only then a backend without a change feed stats paths before it changes them."""

    @abc.abstractmethod
    def guard(self, callback: Guard) -> Callable[[], None]:
        """Have `callback` called before an agent changes the contents of a node; returns the function that ends that.

        `callback` is called with no lock held, and may wait a moment for open handles. The function that it returns is
        called after subscribers and observers have been called.
        """

    @abc.abstractmethod
    def rewriting(self, node: int) -> AbstractContextManager[None]:
        """Enclose an agent's whole change of the contents of a node in the guards. Call it with no lock held."""

    @abc.abstractmethod
    def changing(self) -> AbstractContextManager[Changes]:
        """Hold the lock for a change by the agent face. Changes put into the list are reported, also after an error."""

    @abc.abstractmethod
    def publish(self, *changes: Change) -> None:
        """Report changes that were made behind this volume. Call it with no lock held.

        If none has a path, observers get `unknown` for the whole volume.
        """
