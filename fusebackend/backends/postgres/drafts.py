"""`Drafts`: the files that this host has made and still has open, and the changes of each that are not in the tables.

A program that makes a file creates it, writes it, sets its mode, owner and times, and closes it. `create` is a
transaction: the name is there for every host. The changes that follow are made in memory, and are one transaction when
the file is closed, for other hosts are promised what was closed. `tar xf` took five transactions for a file before.

This host sees the changes at once: `getattr` answers from the draft, and what else asks the tables about the file has
it stored first. Otherwise it is stored at `close` and `fsync`, `DRAFT_S` after the first change, or when it grows over
`DRAFT_BYTES`. From then on each change is a transaction of its own, as it is for all other files. So it is when
another host changes the file. An error of storing is that of each `close` and `fsync` until the file is closed: the
first `close` may be that of a forked child that executes another program, which nobody hears of.

The changes are those of a `Transaction` that has no connection yet, made on the inode as `create` has left it. If its
row has another version by the time they are stored, they are repeated, on that row.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import threading
import time
from collections.abc import Callable, Collection
from typing import Final, TypeAlias, TypeVar

from fusebackend.backends.postgres.statements import StoredInode
from fusebackend.backends.postgres.transaction import Transaction, Wanted
from fusebackend.base import waiting

log = logging.getLogger(__name__)

T = TypeVar("T")

Step: TypeAlias = tuple[Wanted, Callable[[], object]]
"""A change, to be repeated on a row that another host has changed."""

DRAFT_S = 0.02
"""After its first change a draft is stored at the latest: most files are closed sooner."""

DRAFT_BYTES: Final = 1 << 20
"""A larger file is stored as it is written."""

MAX_BYTES: Final = 16 << 20
"""Of all drafts together."""

MAX_DRAFTS: Final = 1_000


class Draft:
    """One file. All but `is_doubtful` under its lock.

    Args:
        inode: as it has been created.
        name: the directory and the name in it.
        transaction: gathers the changes, and is begun when they are stored.
    """

    def __init__(self, inode: StoredInode, name: tuple[int, bytes], transaction: Transaction) -> None:
        self.lock = waiting.Lock()
        self.shown = copy.copy(inode)
        self.created = copy.copy(inode)
        self.name = name
        self.transaction = transaction
        transaction.add(self.shown)
        self.steps: list[Step] = []
        self.size_bytes = 0  # of what was written
        self.due_at = 0.0  # when it is stored, once there is a change
        self.is_over = False
        self.is_doubtful = False  # another host has changed the file

    @property
    def attr(self) -> StoredInode:
        """The attributes, as they will be stored."""
        attr = copy.copy(self.shown)
        attr.version = self.transaction.version
        return attr


class Drafts:
    """See the module's docstring. Any thread may call any method, but in no transaction.

    Args:
        store: makes a draft's changes one transaction. Called with the draft's lock.
    """

    def __init__(self, store: Callable[[Draft], None]) -> None:
        self._store = store
        self._guard = threading.Lock()  # of what is below
        self._drafts: dict[int, Draft] = {}
        self._pending: dict[int, Draft] = {}  # those with changes, by the time of the first
        self._bytes = 0  # of all drafts
        self._failed: dict[int, OSError] = {}
        self._keeps_time = False  # a thread does
        self._ended = threading.Event()

    def __contains__(self, node: int) -> bool:
        return node in self._drafts

    def begin(self, inode: StoredInode, name: tuple[int, bytes], transaction: Transaction) -> None:
        """This host has created a file and has it open."""
        with self._guard:
            if len(self._drafts) < MAX_DRAFTS and not self._ended.is_set():
                self._drafts[inode.node] = Draft(inode, name, transaction)

    def pending(self) -> Collection[int]:
        """The nodes of files with changes that are not stored."""
        if not self._pending:
            return ()
        with self._guard:
            return frozenset(self._pending)

    def attr(self, node: int) -> StoredInode | None:
        """The attributes of a file with changes that are not stored; None for any other."""
        draft = self._pending.get(node)
        if draft is None or draft.is_doubtful:
            return None
        with draft.lock:
            return None if draft.is_over else draft.attr

    def change(self, node: int, size: int, step: Step, make: Callable[[Draft], T]) -> tuple[T] | None:
        """Make a change of a draft; returns its result, or None if the change is to be a transaction.

        Args:
            size: bytes that it writes.
            make: runs the step's rule.

        Raises:
            OSError: the rule's, or what was gathered before can't be stored.
        """
        draft = self._drafts.get(node)
        if draft is None:
            return None
        with draft.lock:
            if draft.is_over:
                return None
            larger = draft.size_bytes + size > DRAFT_BYTES or self._bytes + size > MAX_BYTES
            if larger or draft.is_doubtful:
                self._end(draft)
                return None
            result = make(draft)
            draft.steps.append(step)
            draft.size_bytes += size
            with self._guard:
                self._bytes += size
                if len(draft.steps) == 1:
                    self._drafts[node] = draft  # the last handle may have been closed meanwhile
                    self._pending[node] = draft
                    draft.due_at = time.monotonic() + DRAFT_S
                    if not self._keeps_time:
                        threading.Thread(target=self._keep_time, name="fusebackend-drafts", daemon=True).start()
                        self._keeps_time = True
            return (result,)

    def settle(self, node: int) -> None:
        """Store the changes of a file, if there are any. OSError if that fails."""
        if node in self._pending:
            self.end(node)

    def end(self, *files: int | tuple[int, bytes]) -> None:
        """Store the changes of files, by their nodes, or the names they were created with; each change that follows is
        a transaction."""
        if not self._drafts:
            return
        with self._guard:
            ended = [draft for node in files if isinstance(node, int) and (draft := self._drafts.get(node))]
            names = [name for name in files if isinstance(name, tuple)]
            if names:
                ended += [draft for draft in self._drafts.values() if draft.name in names]
        for draft in ended:
            with draft.lock:
                if not draft.is_over:
                    self._end(draft)

    def settle_all(self) -> None:
        """Store the changes of all files. The first error is raised, after all have been tried."""
        error = None
        for node in self.pending():
            try:
                self.settle(node)
            except OSError as failed:
                error = error or failed
        if error is not None:
            raise error

    def doubt(self, node: int | None) -> None:
        """Another host has changed a file; None stands for any. Does not wait."""
        if not self._drafts:
            return
        with self._guard:
            for draft in [self._drafts.get(node)] if node is not None else list(self._drafts.values()):
                if draft is not None:
                    draft.is_doubtful = True

    def require_stored(self, node: int) -> None:
        """Store the changes of a file. Its error, or that of an earlier attempt, is raised until `forget`."""
        with contextlib.suppress(OSError):  # it is in `_failed`
            self.settle(node)
        error = self._failed.get(node)
        if error is not None:
            raise OSError(error.errno, error.strerror) from error

    def forget(self, node: int) -> None:
        """The last handle of the file has been closed, and each `close` was told of its error."""
        with self._guard:
            if node not in self._pending:  # else it is stored in time
                self._drafts.pop(node, None)
            self._failed.pop(node, None)

    def close(self) -> None:
        """Store everything, and begin nothing more."""
        with self._guard:
            self._ended.set()
        self.settle_all()

    def _end(self, draft: Draft) -> None:
        node = draft.shown.node
        if draft.steps:
            waiting.will_wait()
        try:
            if draft.steps:
                self._store(draft)
        except OSError as error:
            self._failed[node] = error
            raise
        finally:
            draft.is_over = True
            with self._guard:  # not before: others wait for the lock
                self._bytes -= draft.size_bytes
                self._pending.pop(node, None)
                self._drafts.pop(node, None)

    # -- in time -----------------------------------------------------------------------------------------------

    def _keep_time(self) -> None:
        """Store each draft when it is due, in the order of their first changes, until there is none."""
        while True:
            with self._guard:
                oldest = next(iter(self._pending.values()), None)
                if oldest is None:
                    self._keeps_time = False
                    return
            if self._ended.wait(max(0.0, oldest.due_at - time.monotonic())):  # most are stored meanwhile, by a close
                return  # `close` stores the rest, and its caller hears of an error
            try:
                self.settle(oldest.shown.node)
            except OSError as error:
                log.warning("what was written to a new file can't be stored; its close will fail: %s", error)
