"""`SharedQuota`: the limits of a volume that other hosts change as well. Each host with limits keeps them by itself.

No commit waits for a common sum, and none is written. A host counts the inodes of the volume (a million take half a
second), and adds what its own changes add. What other hosts do shows in the next count. There is one before a change if
another host has changed something and the last count is older than `FRESH_S`, and than `SHARE` times as long as it
took; and one before a change is refused. So the limit is overrun at most by what other hosts write in that time.

What is not committed yet counts from the moment it is accepted: a change under way, and a draft, whose storing is never
refused. An unlinked file counts on the hosts that have it open, as long as they have.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from fusebackend.protocol import Usage
from fusebackend.volumes.quota import Limits, Quota

if TYPE_CHECKING:
    from fusebackend.backends.postgres.feed import VolumeFeed
    from fusebackend.backends.postgres.stored_tree import Scope
    from fusebackend.backends.postgres.transaction import Transaction

FRESH_S: Final = 0.05
SHARE: Final = 20
"""A count takes a twentieth of the time at most."""

RECOUNT_SHARE: Final = 5
"""Before a change is refused, the count may be this many times as old as it took."""


class SharedQuota(Quota):
    """See the module's docstring. Any thread may call any method.

    Args:
        limits: without any, nothing is counted.
        count: counts the bytes and files of the volume as committed. May raise OSError.
        scope: where the changes of the calling thread gather.
        feed: says whether changes of other hosts are told to `doubt`.
    """

    def __init__(
        self,
        limits: Limits,
        count: Callable[[], tuple[int, int]],
        scope: Scope,
        feed: VolumeFeed,
    ) -> None:
        super().__init__(limits)
        self._count = count
        self._scope = scope
        self._feed = feed
        self._lock = threading.Lock()
        self._pending_bytes = self._pending_files = 0  # of all scopes
        self._is_doubtful = True
        self._counted_at = 0.0
        self._took_s = 0.0
        self._begun = self._ended = self._stored = 0  # counts; the newest one whose sums were taken

    def doubt(self) -> None:
        """The sums may be others than the last count and this host's changes tell. Does not wait."""
        self._is_doubtful = True

    def freed(self) -> None:
        """This host has freed what it can't tell the size of. No count from before refuses a change."""
        self._is_doubtful = True
        self._counted_at = 0.0

    def refresh(self) -> None:
        """Count again if it is due."""
        if time.monotonic() - self._counted_at > max(FRESH_S, SHARE * self._took_s):
            self._recount()

    def _recount(self) -> None:
        """Count again, unless nothing can have changed."""
        if self.limits == Limits() or (self._feed.live and not self._is_doubtful):
            return
        began = time.monotonic()
        with self._lock:
            self._is_doubtful = False
            self._begun += 1
            number = self._begun
        try:
            used_bytes, used_files = self._count()
        except BaseException:
            self._is_doubtful = True
            raise
        else:
            with self._lock:
                if number > self._stored:  # else another thread's count has seen more
                    self.used_bytes, self.used_files, self._stored = used_bytes, used_files, number
                    self._counted_at = time.monotonic()
                    self._took_s = self._counted_at - began
        finally:
            with self._lock:
                self._ended += 1

    def admits(self, more_bytes: int) -> bool:
        if more_bytes > 0:
            self.refresh()
        return self._scope.is_repeating or super().admits(more_bytes)

    def require(self, more_bytes: int, more_files: int = 0) -> None:
        if self._scope.is_repeating:
            return
        self.refresh()
        is_old = time.monotonic() - self._counted_at > RECOUNT_SHARE * self._took_s
        if is_old and self._passed(more_bytes, more_files):
            self._recount()
        super().require(more_bytes, more_files)

    def add(self, more_bytes: int, more_files: int = 0) -> None:
        growing = self._scope.transaction
        assert growing is not None, "a rule runs in a transaction"
        growing.grown_bytes += more_bytes
        growing.grown_files += more_files
        with self._lock:
            self._pending_bytes += more_bytes
            self._pending_files += more_files

    def commits(self, growing: Transaction) -> None:
        """A transaction begins to commit: a count that ends from now on may have what it adds."""
        growing.counts = self._ended

    def settle(self, growing: Transaction, *, committed: bool) -> None:
        """A transaction or draft has ended."""
        more_bytes, more_files = growing.grown_bytes, growing.grown_files
        growing.grown_bytes = growing.grown_files = 0
        with self._lock:
            self._pending_bytes -= more_bytes
            self._pending_files -= more_files
            if committed:
                self.used_bytes += more_bytes
                self.used_files += more_files
            # With a count since the commit began, or at this moment, nobody can tell whether that has it.
            is_exact = committed and growing.counts == self._begun == self._ended
            if (more_bytes or more_files) and not is_exact:
                self._is_doubtful = True

    @property
    def usage(self) -> Usage:
        with self._lock:
            used_bytes, used_files = self.used_bytes + self._pending_bytes, self.used_files + self._pending_files
        return Usage(used_bytes, self.limits.limit_bytes, used_files, self.limits.limit_files)
