"""`Reading`: what a database holds of one channel in one line, read ahead when checkpoints are asked for in order.

Going through a history costs a few statements for each checkpoint, which is much where each is a round trip. So when
one checkpoint is asked for after the one before it, the next ones are read along with it, twice as many each time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from typing import Final

from fusebackend.backends.threads.database.rows import Database, Link, Place, Write

MOST_AHEAD: Final = 32
"""Checkpoints read at once; an old thread's hold all of its files."""


class Reading:
    """See the module's docstring."""

    def __init__(self, database: Database, place: Place, channel: str) -> None:
        self._database = database
        self._place = place
        self._channel = channel
        self._links: dict[str, Link] = {}
        self._writes: dict[str, list[Write]] = {}
        self._next: str | None = None  # what would be asked for next, in order …
        self._ahead = 1  # … and how many are read then

    def forget(self) -> None:
        self._links.clear()
        self._writes.clear()
        self._next = None

    def expect(self, checkpoint: str, order: Sequence[str], index: int) -> None:
        """This checkpoint, which is at this place in the order, will be asked for now."""
        if checkpoint not in self._links:
            self._ahead = min(self._ahead * 2, MOST_AHEAD) if checkpoint == self._next else 1
            self._links.clear()
            self._writes.clear()
            if self._ahead > 1:
                some = order[index : index + self._ahead]
                self._links = {link.id: link for link in self._database.links(self._place, some, self._channel)}
                written = self._database.writes(self._place, some, self._channel)
                self._writes = {found: written.get(found, []) for found in some}
        self._next = order[index + 1] if index + 1 < len(order) else None

    def ancestry(self, checkpoint: str) -> Generator[Link, None, None]:
        """As `Database.ancestry`."""
        met = set()
        following: str | None = checkpoint
        while following is not None and following not in met and (link := self._links.get(following)) is not None:
            met.add(following)
            following = link.parent
            yield link
        if following is not None and following not in met:
            with contextlib.closing(self._database.ancestry(self._place, following, self._channel)) as links:
                yield from links

    def writes(self, checkpoints: Sequence[str]) -> dict[str, list[Write]]:
        """As `Database.writes`."""
        found = {checkpoint: self._writes[checkpoint] for checkpoint in checkpoints if checkpoint in self._writes}
        missing = [checkpoint for checkpoint in checkpoints if checkpoint not in found]
        if missing:
            found |= self._database.writes(self._place, missing, self._channel)
        return found
