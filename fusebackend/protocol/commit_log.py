"""`Note`: what a change adds to the log of a history, in the transaction that makes the change.

A volume whose transactions are a server's can be asked to keep rows with them (`SnapshotVolume.keep_log`): a change
that is there has its row, and one that is not has none, whenever this process was killed. The rows are a copy, until
the history has them in its own file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol, TypeAlias

from fusebackend.protocol.events import Changes

__all__ = ["NOTE", "STEP", "CommitLog", "LogRow", "Note", "StepNote"]

LogRow: TypeAlias = tuple[int, bytes]
"""The number of a record, and what it says."""


class Note(Protocol):
    """What the next change of a thread, or of those that work for it, adds to the log."""

    def rows(self, result: Any) -> Sequence[LogRow]:
        """Return the rows for a change with this result, which holds its locks, and is about to be committed.

        Called once more where the change is repeated: the rows of the call before are void.
        """


NOTE: ContextVar[Note | None] = ContextVar("fusebackend_note", default=None)
"""Set around one call of a volume that keeps a log."""


class StepNote(Protocol):
    """What the changes of several operations (`Volume.changing`, `change_as_one`) add to the log, as those of a
    verb. A step may take several of them."""

    def rows(self, volume: Any, changes: Changes) -> Sequence[LogRow]:
        """Return the rows for what is made so far, as `Note.rows`. With the volume's lock held, or in the transaction,
        before anybody else sees it or it is durable."""

    def committed(self) -> None:
        """The change with the last rows was made."""


STEP: ContextVar[StepNote | None] = ContextVar("fusebackend_step", default=None)
"""Set around the work of a verb."""


class CommitLog(NamedTuple):
    """A history, as a volume that keeps rows for it sees it."""

    history: str
    """A UUID: the rows are those of one file."""
    written: Callable[[], int]
    """Returns a number: rows with lower ones are not needed any more."""
    doubtful: Callable[[], Sequence[int]]
    """Returns the numbers of rows that may be there or not: the answer to their commit was lost."""
    settle: Callable[[Sequence[int]], None]
    """Called with those of them that are there."""
    pending: Callable[[], Collection[int]]
    """Returns the numbers of rows that wait for the outcome of their commit."""
    lost: Callable[[Sequence[int]], None]
    """Called with the numbers of rows that are gone together with their changes: the database has crashed. May raise
    OSError; it is called again then."""
