"""`MoveJournal`: the hidden names that moves between routes give for a while, in a file beside the branches.

A killed server has left files under them, which nobody would find: `.NAME.moving-…`. The next one removes these. The
source is whole, or else the copy (`composite/transfer.py`). What can't be removed is named in the server's log, and
tried again by each server.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial

from fusebackend.base.paths import AgentPath
from fusebackend.composite.backend import CompositeBackend
from fusebackend.trees.merge.run import Journal

log = logging.getLogger(__name__)

JOURNAL = "@move"
"""The name of the file, in place of a branch's: no branch can have it."""


class MoveJournal:
    """See the module's docstring. Thread-safe.

    Args:
        backend: of the mount.
        journal: the path of the file.
    """

    def __init__(self, backend: CompositeBackend, journal: str) -> None:
        self._backend = backend
        self._journal = Journal(journal)
        self._guard = threading.Lock()
        self._noted: list[Sequence[AgentPath]] = []
        """Those that something may have: of moves that are under way, and what could not be removed."""

    def note(self, names: Sequence[AgentPath]) -> Callable[[], None]:
        """Note names before they are given. Call what is returned when nothing has them any more."""
        with self._guard:
            try:
                if self._noted:
                    self._journal.note({"hidden": list(names)})
                else:
                    os.makedirs(os.path.dirname(self._journal.path), 0o700, exist_ok=True)
                    self._journal.begin({"hidden": list(names)})
            except OSError as error:  # the move is made all the same
                log.warning(
                    "what a kill would leave of a move can't be noted: %s: %s", self._journal.path, error.strerror
                )
            self._noted.append(names)
        return partial(self._end, names)

    def _end(self, names: Sequence[AgentPath]) -> None:
        with self._guard:
            self._noted.remove(names)
            if not self._noted:
                self._journal.end()

    def tidy(self) -> None:
        """Remove what a killed server has left."""
        for line in self._journal.read():
            names = line["hidden"]
            left = [name for name in names if not self._is_removed(name)]
            if left:
                self._noted.append(left)
        if not self._noted:
            self._journal.end()

    def _is_removed(self, name: str) -> bool:
        try:
            why = self._backend.remove_hidden(name)
        except OSError as error:
            why = error.strerror or str(error)
        if why is not None:
            log.warning("'%s', which an interrupted move has left, can't be removed: %s", name, why)
        return why is None
