"""`Flusher`: the thread of an SQLite volume that writes changes to the file, checkpoints the WAL, and has workers.

It flushes half a second after a change, so a killed server loses at most that of changes that were not synced. It
checkpoints on a connection of its own, and takes the volume's lock only for the end of that. On the same connection its
workers bring the index up to date and free old rows, in portions with pauses between. While the other threads of the
process are busy, which mostly means with answers to the kernel, a portion is due only every `BUSY_PAUSE_S`: each takes
Python's lock from them.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from fusebackend.backends.sqlite import schema
from fusebackend.backends.sqlite.index import QUIET_S

log = logging.getLogger(__name__)

FLUSH_AFTER_S = 0.5
"""How long a change may wait in memory."""

WORK_AFTER_S = QUIET_S
"""The workers are due so long after a flush: the index takes no file before that. After the deletion of a snapshot they
are due at once, for its rows are room on a full disk."""

CHECKPOINT_BYTES = schema.WAL_KEPT_BYTES
"""A longer WAL is moved into the file in the background."""

CHECKPOINT_PASSES = 4
CHECKPOINT_REST_PAGES = 512
"""It is moved in a few passes beside the writers, until so few pages are left to be moved while they wait."""

INDEX_CACHE_KIB = 4096
"""Of the connection that indexes, which reads each page once."""

BUSY_SHARE = 0.1
BUSY_PAUSE_S = 0.5
BUSY_LOOK_S = 0.05
"""While other threads keep this share of a processor busy, portions are so far apart; how often that is measured."""

RETRY_S = 10.0
"""The pause of a worker after a failure."""


class Worker(Protocol):
    """Work in the background of a volume."""

    failure: str
    """What the log says of the file when it fails."""

    def work(self, db: sqlite3.Connection) -> float | None:
        """Do a portion, in transactions of a few ms; gives the seconds to the next, None when nothing is left."""


class OtherThreads:
    """Measures how busy the rest of the process is, from the kernel's processor times. Used by one thread."""

    def __init__(self) -> None:
        self._looked_s = self._spent_s = 0.0  # so the first share says nothing; the first portion does not wait for it

    def share(self) -> float:
        """Processors that the others have kept busy since the last call: 0 for none, 1 for one all the time."""
        now_s, spent_s = time.monotonic(), time.process_time() - time.thread_time()
        share = (spent_s - self._spent_s) / max(now_s - self._looked_s, 1e-6)
        self._looked_s, self._spent_s = now_s, spent_s
        return share


class Flusher:
    """Owns its thread and connection; everything else is the volume's."""

    def __init__(
        self,
        path: str,
        lock: AbstractContextManager[Any],
        flush: Callable[[], None],
        wal_fd: int,
        workers: Sequence[Worker],
    ) -> None:
        self._path = path
        self._lock = lock
        self._flush = flush
        self._wal_fd = wal_fd
        self._workers = workers
        self._told: str | None = None
        """What is wrong: said once."""
        self._is_work_due = False
        self._connection: sqlite3.Connection | None = None
        self.changes_waiting = threading.Event()
        """To be set by the first change that waits to be written; to have the thread look at once, by anybody."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fusebackend-flush", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake_workers(self) -> None:
        """The workers have something to do, without the pause after a flush."""
        self._is_work_due = True
        self.changes_waiting.set()

    def stop(self) -> None:
        """End the thread; the caller flushes changes that are left."""
        self._stopping.set()
        self.changes_waiting.set()
        self._thread.join()

    def _run(self) -> None:
        flush_at: float | None = None
        work_at: float | None = time.monotonic() + FLUSH_AFTER_S
        work_by = 0.0
        others = OtherThreads()
        try:
            while not self._stopping.is_set():
                if flush_at is None:
                    if self.changes_waiting.wait(None if work_at is None else work_at - time.monotonic()):
                        flush_at = time.monotonic() + FLUSH_AFTER_S
                else:
                    self._stopping.wait(min(flush_at, work_at or flush_at) - time.monotonic())
                if flush_at is not None and time.monotonic() >= flush_at:
                    self._write_on()
                    flush_at = None
                    if self._is_work_due:
                        self._is_work_due = False
                        work_at = time.monotonic()
                    work_at = work_at or time.monotonic() + WORK_AFTER_S
                if work_at is not None and time.monotonic() >= work_at:
                    if others.share() > BUSY_SHARE and time.monotonic() < work_by:
                        work_at = time.monotonic() + BUSY_LOOK_S
                    else:
                        work_at = self._work()
                        work_by = time.monotonic() + BUSY_PAUSE_S
        finally:
            if self._connection is not None:
                self._connection.close()

    def _connected(self) -> sqlite3.Connection:
        """The thread's own connection, made when it is first needed: a file that can't be opened ends no thread."""
        if self._connection is None:
            self._connection = schema.connect_again(self._path, INDEX_CACHE_KIB)
            self._connection.execute("PRAGMA busy_timeout = 0")
        return self._connection

    def _write_on(self) -> None:
        """Flush, and keep the WAL short."""
        self.changes_waiting.clear()  # first: what is changed during the flush waits for the next one
        try:
            self._flush()
        except Exception as error:  # the thread goes on, or nothing would be written again
            self._tell("changes wait in memory, the volume file can't take them", error)
            self.changes_waiting.set()
            return
        try:
            self._keep_short()
        except Exception as error:  # tried again after the next flush
            self._tell("the volume file can't take what is in its WAL", error)
        else:
            self._told = None

    def _tell(self, what: str, error: Exception) -> None:
        if self._told != what:
            log.error("%s: %s", what, error)
        self._told = what

    def _work(self) -> float | None:
        """Have each worker do a portion; gives when the next ones are due."""
        moments: list[float] = []
        for worker in self._workers:
            start = time.monotonic()
            try:
                pause_s = worker.work(self._connected())
                self._keep_short()
            except Exception as error:  # changes must still be flushed, and neither face needs what the workers do
                if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
                    pause_s = FLUSH_AFTER_S / 10
                else:
                    log.error("%s %s: %s", self._path, worker.failure, error)
                    pause_s = RETRY_S
            if pause_s is not None:
                end = time.monotonic()
                moments.append(end + max(pause_s, (end - start) / 2))
        return min(moments, default=None)

    def _keep_short(self) -> None:
        """Move a long WAL into the file while others write on, then the rest under the lock, so that it starts anew.

        A WAL that is never reset grows, and every read gets slower: its index is searched for each page.
        """
        if os.fstat(self._wal_fd).st_size <= CHECKPOINT_BYTES:
            return
        connection = self._connected()
        for _ in range(CHECKPOINT_PASSES):
            _, written, moved = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            if written - moved < CHECKPOINT_REST_PAGES:
                break
        with self._lock:
            connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
