"""`SqliteBackend`: a whole POSIX volume in one SQLite file, the embedded default.

Changes gather in memory, in the `DirtyBuffer`: inodes, names, chunks, extended attributes. A flush writes all of them
in one transaction and empties the buffer, so the file is at every moment a consistent prefix of the changes. Flushes
happen half a second after a change, when the buffer passes its bounds, and at the fsync of many changes, which then
syncs the WAL. Few changes are appended to the sync log instead (`sync_log.py`), and flushed later. Only an fsync waits
for the disk. A flush that fails (disk full) is rolled back and loses nothing: the buffer stays, and the next write or
sync gets the error.

`schema.py` documents the tables. One connection is used under `lock` from any thread. A second one, in the flusher's
thread, moves the WAL into the file (checkpoint) and brings the index up to date (`index.py`), without the lock. Each
`grep` opens one to query the index.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from typing import ClassVar, TypeVar

from fusebackend.backends.sqlite import old_rows, schema, sync_log
from fusebackend.backends.sqlite.flusher import Flusher, Worker
from fusebackend.backends.sqlite.index import Indexer, IndexWalk
from fusebackend.backends.sqlite.old_rows import SqlitePruner
from fusebackend.backends.sqlite.snapshots import SqliteSnapshots
from fusebackend.backends.sqlite.stored_tree import Delta, SqliteTree, sqlite_errors
from fusebackend.base.at_path import AtPath
from fusebackend.base.errors import oserror
from fusebackend.base.globs import Matcher
from fusebackend.databases.sqlite import transaction
from fusebackend.protocol import (
    ROOT_NODE,
    Changes,
    Features,
    OnExists,
    Snapshot,
    SnapshotVolume,
    StatFs,
    Volume,
)
from fusebackend.protocol.scheme import LIMITS, ON_EXISTS, Scheme, Url, UrlError
from fusebackend.volumes.agent_face import VolumeBackend
from fusebackend.volumes.quota import Limits, Quota, bytes_of_blocks
from fusebackend.volumes.search import FileSearch, MakeWalk, Search
from fusebackend.volumes.walk import FileWalk

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_DIRTY_BYTES = 16 << 20
MAX_DIRTY_ITEMS = 4000
"""Bounds of the dirty buffer: the operation that passes them flushes. A flush of so many items takes ~50 ms."""

MAX_WAL_BYTES = 512 << 20
"""With a longer WAL, writers wait until all of it has been moved into the file."""

RESERVE_BYTES = 8 << 20
"""Kept free on the disk under the file, so that deleting, which writes too, still works when it is full."""

CHECKPOINT_RETRY_S = 5.0
"""The pause before the next checkpoint that writers wait for, after another program's reader prevented one."""

FULL_RETRY_S = 0.2
"""After a failed flush, how long writes are refused before the next one tries again."""


class SqliteVolume(SqliteTree, SnapshotVolume):
    """The kernel face of `SqliteBackend`."""

    features = Features(acls=True)

    identity = schema.APPLICATION_ID
    """The application id of its file."""
    has_sync_log = True
    """Whether small syncs go to the sync log. A subclass whose dirty buffer has more than a volume's has none."""

    def __init__(self, path: str | os.PathLike[str], limits: Limits | None = None) -> None:
        name = os.path.realpath(path)  # SQLite puts the WAL beside the file, not beside a link to it
        self._claim = schema.FileClaim(name)
        self._at = AtPath(name, self._claim.key)
        self._room_bytes = 0
        self._failed: OSError | None = None
        self._failed_at = 0.0
        self._checkpoint_after = 0.0
        self._commits, self._synced = 1, 0  # transactions that were committed; and how many of them a sync has followed
        self._closed = False
        self._indexer: Indexer | None = None
        self._recorded: tuple[str, int] | None = None  # what `before_commit` has returned last
        self._is_at_once = False  # the dirty buffer grows beyond its bounds, and is flushed as a whole
        self._unsnapped = True
        """Whether the file has changes since the newest snapshot; not known when it is opened."""
        with contextlib.ExitStack() as opened:
            opened.callback(self._claim.close)
            db = opened.enter_context(contextlib.closing(schema.connect(name, self.identity)))
            try:
                super().__init__(db, name)
                self.directory_moves = 0
                self._snapshots = SqliteSnapshots(db, name)
                self._log = self._redo()
                self._wal_fd = os.open(name + "-wal", os.O_RDWR | os.O_CLOEXEC)
                opened.callback(os.close, self._wal_fd)
                self._flusher = Flusher(name, self.lock, self._flush_behind, self._wal_fd, self._workers())
                self._free_orphans()
                if limits is not None:
                    self._quota = self._counted(limits)
            except OSError as error:
                reason = error.__cause__ or error.strerror
                text = f"'{name}' can't be opened as a volume: {reason}"
                raise schema.VolumeFileError(error.errno, text) from None
            self._opened = opened.pop_all()
        self._flusher.start()

    def _workers(self) -> Sequence[Worker]:
        """Work in the background, on the flusher's connection."""
        self._indexer = Indexer(self.path)
        return SqlitePruner(), self._indexer

    # -- writing back ------------------------------------------------------------------------------------------

    def _note(self, items: int, size: int) -> None:
        """The dirty buffer has grown. The next operation flushes it if it is over its bounds (`_admit`)."""
        if not self._dirty.items:
            self._flusher.changes_waiting.set()
        self._dirty.items += items
        self._dirty.bytes += size

    def _admit(self, size: int) -> None:
        """Called before a change: flushes where that is due, and refuses bytes that a full disk can't take."""
        dirty = self._dirty
        if self._failed is not None:
            if time.monotonic() - self._failed_at < FULL_RETRY_S:
                raise oserror(self._failed.errno or errno.EIO)
            self.write_back()
        elif (dirty.bytes >= MAX_DIRTY_BYTES or dirty.items >= MAX_DIRTY_ITEMS) and not self._is_at_once:
            self.write_back()
        if self._dirty.bytes + size > self._room_bytes:
            self._find_room(size)

    def change_at_once(self, work: Callable[[Changes], T]) -> T:
        def at_once(changes: Changes) -> T:
            self.write_back()
            self._is_at_once = True
            try:
                return work(changes)
            finally:
                self._is_at_once = False

        return super().change_at_once(at_once)

    def _find_room(self, size: int) -> None:
        """Measure the room on the disk; as long as that is too little, once more after freeing something.

        Each byte is written twice, to the WAL and to the file, in pages a fifth empty. The WAL's contents are still to
        be written to the file, so they need room as well.
        """
        free_pages, is_first = 0, True
        while True:
            disk, wal = os.fstatvfs(self._claim.fd), os.fstat(self._wal_fd)
            room = disk.f_bavail * disk.f_frsize - RESERVE_BYTES
            # Free pages take data that only the WAL needs room for, and only until the next of these checkpoints.
            passing = min(free_pages, room + RESERVE_BYTES // 2)
            self._room_bytes = max((room - wal.st_size) * 2 // 5, passing * 4 // 5, 0)
            if self._dirty.bytes + size <= self._room_bytes:
                return
            if not is_first and not self._give_up_snapshot():
                raise oserror(errno.ENOSPC)
            self.write_back()
            self._checkpoint("TRUNCATE")
            free_pages = self._scalar("PRAGMA freelist_count") * schema.PAGE_BYTES
            is_first = False

    def write_back(self) -> None:
        """Write the dirty buffer to the file in one transaction. After an error nothing is written and nothing lost."""
        with self.lock:
            try:
                if self._dirty.items:
                    self._before_commit()
                    number = self._log.number + 1
                    with sqlite_errors(), transaction(self._db):
                        self._unsnapped = self._unsnapped or self._dirty.is_change(self._snapshots.newest_ns)
                        self._dirty.write(self._db, self._new_row, self._snapshots.newest)
                        if self._next_node != self._stored_next_node:
                            self._db.execute("UPDATE meta SET value = ? WHERE key = 'next_node'", (self._next_node,))
                        sync_log.store(self._db, self._log.salt, number, self._recorded)
                    self._log.number = number
                    self._commits += 1
                    self._room_bytes = 0  # look again before the next write
                    self._flushed()
                    if os.fstat(self._wal_fd).st_size > MAX_WAL_BYTES:
                        self._checkpoint("RESTART")
                if self._at.trouble is not None:  # the file has another name now, or none
                    raise oserror(errno.EIO)
            except OSError as error:
                self._failed, self._failed_at = error, time.monotonic()
                raise
            self._failed = None

    def _before_commit(self) -> None:
        self.note_step(self._changes)
        if self.before_commit is not None:
            self._recorded = self.before_commit()

    def committed(self, history: str) -> int | None:
        with self.lock, sqlite_errors():
            return sync_log.recorded(self._db, history)

    @property
    def trouble(self) -> tuple[float, str] | None:
        """Set when the file was moved or deleted: SQLite goes on with it, and the next mount would miss its changes."""
        return self._at.trouble

    def _checkpoint(self, mode: str) -> None:
        """Move all of the WAL into the file, with the lock held; later if another program's reader prevents it."""
        if time.monotonic() < self._checkpoint_after:
            return
        with sqlite_errors():
            self._db.execute("PRAGMA busy_timeout = 50")
            try:
                busy = self._db.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()[0]
            finally:
                self._db.execute(f"PRAGMA busy_timeout = {schema.BUSY_TIMEOUT_MS}")
        if busy:
            self._checkpoint_after = time.monotonic() + CHECKPOINT_RETRY_S

    # -- durability and life -----------------------------------------------------------------------------------

    def fsync(self, node: int, datasync: bool = False) -> None:
        """Make all changes durable: a few of them in the sync log, many with a flush.

        All of the volume is synced, as by a journal: a name is as durable as the file under it. So of many files that
        are synced one after another, the first waits for the disk.
        """
        number = self._log_changes()
        if number is None or not self._log.sync(number):
            self.sync()

    def _log_changes(self) -> int | None:
        """Append what was changed since the last record. Returns the number to be synced; None if a flush is due."""
        with self.lock:
            log, unlogged = self._log, self._unlogged
            # A record is of use on top of the tables that it was made for: those must be on the disk before it.
            if not log.is_open or self._synced < self._commits or self._failed is not None or self._at.trouble:
                return None
            if not unlogged:
                return log.number
            if not unlogged.is_small(sync_log.RECORD_BYTES):
                return None
            self._before_commit()
            if not log.append(unlogged.encode(self._next_node, self._recorded)):
                return None
            self._dirty.were_logged(unlogged)
            self._unlogged = Delta()
            return log.number

    def sync(self) -> None:
        """Flush everything, then sync the WAL: SQLite's NORMAL commits don't, and a FULL one would hold the lock."""
        with self.lock:
            if self.has_sync_log and not self._closed and self._dirty.items:
                self._log.salt = self._log.salt or secrets.randbits(62) + 1
            self.write_back()
        commits = self._commits
        if self._synced < commits:
            os.fdatasync(self._wal_fd)
            self._synced = max(self._synced, commits)
        with self.lock:
            if self._log.salt and self._synced == self._commits and not self._dirty.items:
                self._log.restart()

    def _flush_behind(self) -> None:
        """Flush in the background. Where the log is in use, sync as well, so that the next `fsync` need not."""
        if self._log.offset:
            self.sync()
        else:
            self.write_back()

    def _redo(self) -> sync_log.SyncLog:
        """Apply the records of a log that a crash has left."""
        with sqlite_errors():
            next_node = sync_log.redo(self._db, self.path, self._damage, self._new_row, self._snapshots.newest)
            self._next_node = max(self._next_node, next_node)
            return sync_log.SyncLog(self.path, sync_log.state(self._db)[1])

    def close(self) -> None:
        with self.lock:
            if self._closed:
                return
            self._closed = True
        self._flusher.stop()
        with self.lock:
            try:
                try:
                    self.sync()
                    self._log.remove()
                finally:
                    with sqlite_errors():
                        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            finally:
                self._snapshots.close()
                self._log.close()
                self._opened.close()

    def statfs(self) -> StatFs:
        disk = os.fstatvfs(self._claim.fd)
        with self.lock:
            free_bytes = self._scalar("PRAGMA freelist_count") * schema.PAGE_BYTES
            # Not the size of the file, which lacks the pages that are only in the WAL.
            used_bytes = self._scalar("PRAGMA page_count") * schema.PAGE_BYTES - free_bytes + self._dirty.bytes
        spare_bytes = max(disk.f_bavail * disk.f_frsize - RESERVE_BYTES, 0)
        used, free = used_bytes // disk.f_frsize, (spare_bytes + free_bytes) // disk.f_frsize
        # Counting the inodes would read the whole table; no volume has more than the numbers it gave out.
        return StatFs(disk.f_frsize, used + free, free, self._next_node + 2**31, 2**31)

    def _counted(self, limits: Limits) -> Quota:
        """Count what is there. A million inodes take 0.2 to 0.6 s."""
        with sqlite_errors():
            blocks, files = self._db.execute(
                "SELECT CAST(total(blocks) AS INTEGER), count(*) FROM inode WHERE node != ?", (ROOT_NODE,)
            ).fetchone()
            xattr_bytes = self._scalar("SELECT sum(length(name) + length(value)) FROM xattr")
        return Quota(limits, bytes_of_blocks(blocks) + xattr_bytes, files)

    def _free_orphans(self) -> None:
        """Free the nodes that were open without a name when the last server ended: no path leads to them."""
        with sqlite_errors():
            orphans = "SELECT node FROM inode WHERE nlink = 0 AND node NOT IN (SELECT node FROM dentry)"
            self._dirty.dead = {node for (node,) in self._db.execute(orphans)}
        self._dirty.items = len(self._dirty.dead)
        self.write_back()

    # -- snapshots ---------------------------------------------------------------------------------------------

    @property
    def is_changed(self) -> bool:
        return self._unsnapped or self._dirty.is_change(self._snapshots.newest_ns)

    def snapshot_bytes(self) -> int:
        return self._snapshots.kept_bytes()

    def snapshots(self) -> Sequence[Snapshot]:
        return self._snapshots.listed

    def take_snapshot(self, name: str) -> Snapshot:
        with self.lock:
            self.write_back()
            with sqlite_errors():
                taken = self._snapshots.take(name, self._next_node, self._next_row)
            self._commits += 1
            self._unsnapped = False
            return taken

    def delete_snapshot(self, name: str) -> None:
        with self.lock:
            with contextlib.suppress(OSError):  # a full disk can't take what came before, and needs what this frees
                self.write_back()
            with sqlite_errors():
                self._snapshots.delete(name)
            self._commits += 1
        self._flusher.wake_workers()

    def snapshot(self, name: str) -> Volume:
        with self.lock:
            return self._snapshots.view(name)

    def forget_versions(self, nodes: Collection[int]) -> list[str]:
        with self.lock:
            self.sync()
            with sqlite_errors():
                with transaction(self._db):
                    old_rows.forget(self._db, self._snapshots.newest, nodes, self._new_row)
                    if self._indexer is not None:
                        self._indexer.clear(self._db)
                self._commits += 1
                old_rows.prune_all(self._db)
            self._chunks.clear()  # some have other rows now
            self._snapshots.forget_cached()
            self.sync()
            schema.rewrite(self.path)
            self._log.erase()
        self._flusher.changes_waiting.set()
        return []

    def _give_up_snapshot(self) -> bool:
        """Delete the oldest snapshot that may go, and free at once what it alone needs. False if there is none."""
        names = (each.name for each in self._snapshots.listed)
        name = next(filter(self.may_go, names), None) if self.may_go is not None else None
        if name is None:
            return False
        log.warning("the disk under %s is full: snapshot '%s' goes", self.path, name)
        with sqlite_errors():
            self._snapshots.delete(name)
            old_rows.prune_all(self._db)
        return True


def _of_url(url: Url) -> SqliteBackend:
    parent = os.path.dirname(url.rest)
    if not os.path.isdir(parent):
        raise UrlError(f"'{url.masked}': there is no directory '{parent}'")
    return SqliteBackend(url.rest, **url.parameters)


class SqliteBackend(VolumeBackend):
    """Files in one SQLite file, on both faces.

    Args:
        path: the file; made when it is missing (its directory must exist).
        on_exists: `write` over an existing file is an `"error"` (the seeds) or a `"replace"` (deepagents 0.7).
        limit_bytes, limit_files: how much it may hold; more is EDQUOT (`volumes/quota.py`). None for no limit.

    Raises:
        VolumeFileError: the file is in use by another `SqliteBackend`, is no volume, or can't be opened.
    """

    schemes: ClassVar = {
        "sqlite": Scheme(
            "sqlite:PATH",
            "all files in one SQLite file; the default",
            _of_url,
            takes="path",
            parameters={**LIMITS, **ON_EXISTS},
            features=SqliteVolume.features,
            snapshots=True,
        )
    }

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        on_exists: OnExists = "error",
        limit_bytes: int | None = None,
        limit_files: int | None = None,
    ) -> None:
        super().__init__(SqliteVolume(path, Limits.of(limit_bytes, limit_files)), on_exists=on_exists)

    volume: SqliteVolume

    def _where(self) -> str:
        return repr(self.volume.path)

    def _search(self, path: str, matcher: Matcher | None, pattern: str | None = None) -> Search:
        walk: MakeWalk = FileWalk if pattern is None else functools.partial(IndexWalk, pattern)
        return FileSearch(self.volume, path, matcher, self.max_search_bytes, walk)
