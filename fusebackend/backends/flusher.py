"""`Flusher`: the thread beside an SQLite volume that writes changes to the file and moves the WAL on.

It flushes half a second after a change, so that this is the most a killed server loses of what nobody synced, and
checkpoints on a connection of its own, without the volume's lock for all but the last of it.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from fusebackend.backends import schema

log = logging.getLogger(__name__)

FLUSH_AFTER_S = 0.5
"""How long a change may wait in memory."""

CHECKPOINT_BYTES = schema.WAL_KEPT_BYTES
"""A WAL longer than this is moved into the file in the background."""

CHECKPOINT_PASSES = 4
CHECKPOINT_REST_PAGES = 512
"""It is moved in a few passes beside the writers, until this little is left to be moved while they wait."""


class Flusher:
    """Owns its thread and connection; everything else is the volume's."""

    def __init__(
        self,
        path: str,
        lock: AbstractContextManager[Any],
        flush: Callable[[], None],
        wal_bytes: Callable[[], int],
    ) -> None:
        self._path = path
        self._lock = lock
        self._flush = flush
        self._wal_bytes = wal_bytes
        self._changes_waiting = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fusebackend-flush", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Something is waiting to be written."""
        if not self._changes_waiting.is_set():  # cheaper than setting it again, and asked for at every change
            self._changes_waiting.set()

    def rest(self) -> None:
        """Nothing is waiting any more."""
        self._changes_waiting.clear()

    def stop(self) -> None:
        """End the thread; what is waiting then is left to the caller."""
        self._stopping.set()
        self._changes_waiting.set()
        self._thread.join()

    def _run(self) -> None:
        connection = sqlite3.connect(self._path, isolation_level=None, timeout=0)
        failing = False
        try:
            while not self._stopping.is_set():
                self._changes_waiting.wait()
                self._stopping.wait(FLUSH_AFTER_S)
                try:
                    self._flush()
                    if self._wal_bytes() > CHECKPOINT_BYTES:
                        self._checkpoint(connection)
                except Exception as error:  # the thread goes on: without it nothing would ever be written again
                    if not failing:
                        log.error("changes wait in memory, the volume file can't take them: %s", error)
                    failing = True
                else:
                    failing = False
        finally:
            connection.close()

    def _checkpoint(self, connection: sqlite3.Connection) -> None:
        """Move the WAL into the file while others write on, then the rest under the lock, so that it starts anew.

        A WAL that is never reset grows, and every read gets slower: its index is searched for each page.
        """
        for _ in range(CHECKPOINT_PASSES):
            _, written, moved = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            if written - moved < CHECKPOINT_REST_PAGES:
                break
        with self._lock:
            connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
