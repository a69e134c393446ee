"""`ObservableVolume`: a volume of which kernel caches and watchers hear what its agent face and others change."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TypeAlias

from fusebackend.protocol.events import EventKind, Report
from fusebackend.protocol.volume import Change, Volume

__all__ = [
    "Changes", "Guard", "ObservableVolume", "Observer",
]  # fmt: skip

Observer: TypeAlias = Callable[[Sequence[Report]], Callable[[], None]]
"""See `Volume.observe`."""

Guard: TypeAlias = Callable[[int], Callable[[], None]]
"""See `ObservableVolume.guard`."""


class Changes(list[Change]):
    """What is being changed: as a list, for subscribers, and in `reports` for observers."""

    def __init__(self) -> None:
        super().__init__()
        self.reports: list[Report] = []

    def report(self, kind: EventKind, path: str, moved_from: str | None = None, node: int | None = None) -> None:
        self.reports.append(Report(kind, path, moved_from, node))


class ObservableVolume(Volume):
    """A volume that says before and after each change by its agent face what is changed."""

    watched: bool = False
    """Somebody wants to know of every change: what a backend does not tell of itself is worth a question."""

    @abc.abstractmethod
    def guard(self, callback: Guard) -> Callable[[], None]:
        """Have `callback` called before an agent changes the contents of a node; returns what ends that.

        No lock is held then, and it may wait a moment for who is reading them. What it returns is called after the
        change has been told.
        """

    @abc.abstractmethod
    def rewriting(self, node: int) -> AbstractContextManager[None]:
        """Around all of an agent's change of the contents of a node. Call it with no lock held."""

    @abc.abstractmethod
    def changing(self) -> AbstractContextManager[Changes]:
        """Hold the lock for a change by the agent face. What is put into `Changes` is told, after an error too."""

    @abc.abstractmethod
    def publish(self, *changes: Change, reports: Sequence[Report] = ()) -> None:
        """Tell of changes that somebody else has made to what is behind this volume. Call it with no lock held.

        Without a report of what it was, observers know only that it may have been anything.
        """
