"""`SqliteBackend`: a whole POSIX volume in one SQLite file, the embedded default.

How writing works. Changes gather in memory, in the `Overlay`: inodes, names, chunks, extended attributes. A flush
writes all of them in one transaction and empties the overlay, so what the file holds is at every moment a consistent
prefix of what was done (DESIGN 3.3). Flushes happen half a second after a change, when the overlay passes its bounds,
and at fsync, which then syncs the WAL: only an fsync waits for the disk. A flush that fails (disk full) is rolled back
and loses nothing: the overlay stays, and whoever writes next, or syncs, gets the error.

`schema.py` documents the tables. One connection, used under `lock` from any thread; a second one, in the thread that
also flushes, moves the WAL into the file (checkpoint) and indexes what has changed (`indexer.py`) without the lock; and
one for each `grep`, which asks the index (`indexwalk.py`).
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import logging
import os
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Iterator
from typing import Literal

from fusebackend.backends import schema
from fusebackend.backends.chunks import CHUNK_BYTES, CHUNK_SHIFT, Chunk, allocated_blocks
from fusebackend.backends.flusher import Flusher
from fusebackend.backends.indexer import Indexer
from fusebackend.backends.indexwalk import IndexWalk
from fusebackend.backends.overlay import Overlay
from fusebackend.backends.search import grep_files
from fusebackend.backends.storage import Inode
from fusebackend.backends.tree import TreeVolume
from fusebackend.backends.volume import VolumeBackend
from fusebackend.errors import oserror
from fusebackend.protocol import Features, GrepResult, StatFs

log = logging.getLogger(__name__)

MAX_DIRTY_BYTES = 16 << 20
MAX_DIRTY_ITEMS = 4000
"""Bounds of the overlay: more than this and the operation that passed it flushes. A flush of so many takes ~50 ms."""

CACHE_INODES = 20_000
CACHE_CHUNKS = 256
"""Bounds of what is kept in memory though the file has it: some 10 MiB of inodes and 16 MiB of chunks."""

MAX_WAL_BYTES = 512 << 20
"""A WAL longer than this makes writers wait until all of it has been moved."""

RESERVE_BYTES = 8 << 20
"""Kept free on the disk under the file, so that deleting, which writes too, still works when it is full."""

CHECKPOINT_RETRY_S = 5.0
"""How long a checkpoint that writers wait for is not tried again after a reader from outside was in its way."""

FULL_RETRY_S = 0.2
"""After a failed flush, how long writes are refused before the next one tries again."""

_INODE_FIELDS = "node, mode, nlink, uid, gid, rdev, size, blocks, atime_ns, mtime_ns, ctime_ns, parent"
_ERRNO_OF_SQLITE = {sqlite3.SQLITE_FULL: errno.ENOSPC, sqlite3.SQLITE_READONLY: errno.EROFS}


@contextlib.contextmanager
def _sqlite_errors() -> Iterator[None]:
    """A database error becomes an `OSError`: ENOSPC and EROFS where they are meant, EIO for all else, logged."""
    try:
        yield
    except sqlite3.Error as error:
        number = _ERRNO_OF_SQLITE.get(getattr(error, "sqlite_errorcode", 0) & 0xFF, errno.EIO)
        log.error("the volume file failed: %s (%s)", error, getattr(error, "sqlite_errorname", "no code"))
        raise oserror(number) from error


class SqliteVolume(TreeVolume):
    """The kernel face of `SqliteBackend`."""

    features = Features()

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self.path = os.path.realpath(path)  # SQLite puts the WAL beside the file, not beside a link to it
        self._claim = schema.FileClaim(self.path)
        try:
            self._db = schema.connect(self.path)
        except BaseException:
            self._claim.release()
            raise
        self._overlay = Overlay()
        self._inodes: OrderedDict[int, Inode] = OrderedDict()
        self._chunks: OrderedDict[tuple[int, int], Chunk] = OrderedDict()
        self._unstored: set[int] = set()  # nodes the file has no row for yet
        self._room_bytes = 0
        self._failed: OSError | None = None
        self._failed_at = 0.0
        self._checkpoint_after = 0.0
        self._wal_fd = -1
        self._closed = False
        self._flusher = Flusher(self.path, self.lock, self.write_back, self._wal_bytes, Indexer(self.path))
        try:
            # A number that is in use already would overwrite what has it, so the table has a say as well.
            self._stored_next_node = self._scalar("SELECT value FROM meta WHERE key = 'next_node'")
            self._next_node = max(self._stored_next_node, self._scalar("SELECT max(node) FROM inode") + 1)
            self._rows = itertools.count(self._scalar("SELECT max(id) FROM chunk") + 1)
            self._free_orphans()
        except OSError as error:
            self._db.close()
            self._claim.release()
            reason = error.__cause__ or error.strerror
            raise schema.VolumeFileError(error.errno, f"'{self.path}' can't be opened as a volume: {reason}") from None
        self._flusher.start()

    # -- storage: inodes ---------------------------------------------------------------------------------------

    def _inode(self, node: int) -> Inode:
        inode = self._inodes.get(node)
        if inode is not None:
            self._inodes.move_to_end(node)  # what an operation has in hand is never let go of by `_shrink_inodes`
        else:
            with _sqlite_errors():
                row = self._db.execute(f"SELECT {_INODE_FIELDS} FROM inode WHERE node = ?", (node,)).fetchone()
            if row is None or node in self._overlay.dead:
                raise oserror(errno.ESTALE)
            inode = self._inodes[node] = _inode_from(row)
            if len(self._inodes) > CACHE_INODES:
                self._shrink_inodes()
        return inode

    def _new_inode(self, mode: int, parent: int) -> Inode:
        node = self._next_node
        self._next_node += 1
        inode = self._inodes[node] = Inode(node, mode, parent=parent)
        inode.xattrs = {}
        self._unstored.add(node)
        return inode

    def _changed(self, inode: Inode) -> None:
        if inode.node not in self._overlay.inodes:
            # Also where it is looked for: a walk up a very deep tree may have let go of what a rename has in hand.
            self._overlay.inodes[inode.node] = self._inodes[inode.node] = inode
            self._note(1, 0)

    def _let_go(self, node: int) -> None:
        inode = self._inodes.get(node)
        overlay = self._overlay
        if inode is not None and inode.opens == 0 and node not in overlay.inodes and node not in overlay.xattrs:
            del self._inodes[node]

    def _drop(self, inode: Inode) -> None:
        node, overlay = inode.node, self._overlay
        overlay.inodes.pop(node, None)
        overlay.xattrs.pop(node, None)
        overlay.cuts.pop(node, None)
        overlay.contents.discard(node)
        self._pop_chunks(node, 0, inode.size)
        self._inodes.pop(node, None)
        if node in self._unstored:
            self._unstored.discard(node)
            overlay.names.pop(node, None)
        else:
            overlay.dead.add(node)
            self._note(1, 0)

    # -- storage: names ----------------------------------------------------------------------------------------

    def _child(self, parent: int, name: bytes) -> int | None:
        names = self._overlay.names.get(parent)
        if names is not None and name in names:
            return names[name]
        if parent in self._unstored:
            return None
        with _sqlite_errors():
            row = self._db.execute("SELECT node FROM dentry WHERE parent = ? AND name = ?", (parent, name)).fetchone()
        return None if row is None else int(row[0])

    def _set_child(self, parent: int, name: bytes, node: int | None) -> None:
        names = self._overlay.names.setdefault(parent, {})
        if node is None and parent in self._unstored:
            names.pop(name, None)  # the file never had it
            return
        if name not in names:
            self._note(1, 0)
        names[name] = node

    def _children(self, parent: int, after: bytes, limit: int) -> list[tuple[bytes, int]]:
        self._directory(parent)
        changed = {name: node for name, node in self._overlay.names.get(parent, {}).items() if name > after}
        # The file still has the removed names: so many rows hold `limit` that stay, or reach the end.
        rows = limit + sum(node is None for node in changed.values())
        with _sqlite_errors():
            stored = self._db.execute(
                "SELECT name, node FROM dentry WHERE parent = ? AND name > ? ORDER BY name LIMIT ?",
                (parent, after, rows),
            ).fetchall()
        if not changed:
            return stored
        merged = dict(stored) | changed
        if len(stored) == rows:  # the file has more: only names up to the last one are known to be complete
            last = stored[-1][0]
            merged = {name: node for name, node in merged.items() if name <= last}
        return sorted((name, node) for name, node in merged.items() if node is not None)[:limit]

    # -- storage: chunks ---------------------------------------------------------------------------------------

    def _chunk(self, node: int, index: int) -> Chunk | None:
        key = (node, index)
        chunk = self._overlay.chunks.get(key)
        if chunk is not None:
            return chunk
        chunk = self._chunks.get(key)
        if chunk is not None:
            self._chunks.move_to_end(key)
            return chunk
        cut = self._overlay.cuts.get(node)
        if (cut is not None and index >= cut) or node in self._unstored:
            return None
        with _sqlite_errors():
            row = self._db.execute("SELECT id, data FROM chunk WHERE node = ? AND idx = ?", key).fetchone()
        if row is None:
            return None
        chunk = self._chunks[key] = Chunk(row[1], row[0])
        if len(self._chunks) > CACHE_CHUNKS:
            self._chunks.popitem(last=False)
        return chunk

    def _new_chunk(self, node: int, index: int) -> Chunk:
        return Chunk()

    def _chunk_changed(self, node: int, index: int, chunk: Chunk) -> None:
        key = (node, index)
        if key not in self._overlay.chunks:
            self._overlay.chunks[key] = chunk
            self._overlay.contents.add(node)
            self._chunks.pop(key, None)
            chunk.counted_bytes = 0
            self._note(1, 0)
        if len(chunk.data) > chunk.counted_bytes:  # a chunk that is appended to grows while it is here
            self._overlay.bytes += len(chunk.data) - chunk.counted_bytes
            chunk.counted_bytes = len(chunk.data)

    def _resize(self, inode: Inode, size: int) -> None:
        super()._resize(inode, size)
        self._overlay.contents.add(inode.node)  # also where no chunk has changed: zeros make it no text, or text again

    def _drop_chunks(self, node: int, first: int) -> int:
        """See `TreeVolume`. Chunks that only the file knows are counted there."""
        popped = self._pop_chunks(node, first, self._inodes[node].size)
        freed = sum(map(allocated_blocks, popped.values()))
        if node not in self._unstored:
            cut = self._overlay.cuts.get(node)
            with _sqlite_errors():
                rows = self._db.execute(
                    "SELECT idx, length(data) FROM chunk WHERE node = ? AND idx >= ?", (node, first)
                )
                freed += sum(
                    allocated_blocks(size)
                    for index, size in rows
                    if index not in popped and (cut is None or index < cut)
                )
            self._overlay.cuts[node] = first if cut is None else min(cut, first)
            self._note(1, 0)
        return freed

    def _pop_chunks(self, node: int, first: int, size: int) -> dict[int, int]:
        """Take the chunks of a file of `size` bytes from index `first` on out of memory; gives index → bytes."""
        last = max(size - 1, 0) >> CHUNK_SHIFT
        popped = {}
        for table in (self._overlay.chunks, self._chunks):
            if last - first < 64:
                keys = [(node, index) for index in range(first, last + 1) if (node, index) in table]
            else:
                keys = [key for key in table if key[0] == node and key[1] >= first]
            for key in keys:
                popped[key[1]] = len(table.pop(key).data)
        return popped

    # -- storage: extended attributes --------------------------------------------------------------------------

    def _xattrs(self, inode: Inode) -> dict[bytes, bytes]:
        if inode.xattrs is None:
            with _sqlite_errors():
                rows = self._db.execute("SELECT name, value FROM xattr WHERE node = ?", (inode.node,)).fetchall()
            inode.xattrs = dict(rows)
        return inode.xattrs

    def _xattrs_changed(self, inode: Inode) -> None:
        self._overlay.xattrs[inode.node] = inode
        self._note(1, sum(map(len, (inode.xattrs or {}).values())))

    # -- writing back ------------------------------------------------------------------------------------------

    def _note(self, items: int, size: int) -> None:
        """The overlay has grown. Whoever passes its bounds flushes it, once the operation is complete (`_admit`)."""
        self._overlay.items += items
        self._overlay.bytes += size
        self._flusher.wake()

    def _admit(self, size: int) -> None:
        """Called before anything is added: the place to flush, and to refuse what a full disk can't take."""
        overlay = self._overlay
        if self._failed is not None:
            if time.monotonic() - self._failed_at < FULL_RETRY_S:
                raise oserror(self._failed.errno or errno.EIO)
            self.write_back()
        elif overlay.bytes >= MAX_DIRTY_BYTES or overlay.items >= MAX_DIRTY_ITEMS:
            self.write_back()
        if self._overlay.bytes + size > self._room_bytes:
            self._find_room(size)

    def _find_room(self, size: int) -> None:
        """Look how much the disk can take; when it seems too little, after giving it all that can be freed."""
        self._room_bytes = self._room()
        if self._overlay.bytes + size <= self._room_bytes:
            return
        self.write_back()
        self._checkpoint("TRUNCATE")
        free_pages = self._scalar("PRAGMA freelist_count") * schema.PAGE_BYTES
        # Free pages take data that only the WAL needs room for, and only until the next of these checkpoints.
        passing = self._spare(os.statvfs(self.path), RESERVE_BYTES // 2)
        self._room_bytes = max(self._room(), min(free_pages, passing) * 4 // 5)
        if size > self._room_bytes:
            raise oserror(errno.ENOSPC)

    def _room(self) -> int:
        """Bytes of data the disk can take: each is written twice, to the WAL and to the file, in pages a fifth empty.

        What the WAL holds is still to be written to the file, for which there must be room as well.
        """
        return max(self._spare(os.statvfs(self.path)) - self._wal_bytes(), 0) * 2 // 5

    @staticmethod
    def _spare(disk: os.statvfs_result, reserve_bytes: int = RESERVE_BYTES) -> int:
        return max(disk.f_bavail * disk.f_frsize - reserve_bytes, 0)

    def write_back(self) -> None:
        """Write the overlay to the file in one transaction. On an error nothing is written and nothing is lost."""
        with self.lock:
            if not self._overlay:
                self._failed = None
                return
            try:
                with _sqlite_errors():
                    self._write_overlay()
            except OSError as error:
                self._failed, self._failed_at = error, time.monotonic()
                raise
            self._failed = None
            self._room_bytes = 0  # look again before the next write
            self._settle()
            if self._wal_bytes() > MAX_WAL_BYTES:
                self._checkpoint("RESTART")

    def _checkpoint(self, mode: str) -> None:
        """Move all of the WAL into the file now, with the lock held; if a reader from outside is in the way, later."""
        if time.monotonic() < self._checkpoint_after:
            return
        with _sqlite_errors():
            self._db.execute("PRAGMA busy_timeout = 50")
            try:
                busy = self._db.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()[0]
            finally:
                self._db.execute(f"PRAGMA busy_timeout = {schema.BUSY_TIMEOUT_MS}")
        if busy:
            self._checkpoint_after = time.monotonic() + CHECKPOINT_RETRY_S

    def _write_overlay(self) -> None:
        """One transaction, all or nothing."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._overlay.write(self._db, self._rows.__next__)
            if self._next_node != self._stored_next_node:
                self._db.execute("UPDATE meta SET value = ? WHERE key = 'next_node'", (self._next_node,))
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def _settle(self) -> None:
        """The overlay is in the file: what it held is now clean, and kept only as far as the caches go."""
        overlay = self._overlay
        for key, chunk in overlay.chunks.items():
            chunk.low, chunk.high, chunk.stored_bytes = CHUNK_BYTES, 0, len(chunk.data)
            self._chunks[key] = chunk
        while len(self._chunks) > CACHE_CHUNKS:
            self._chunks.popitem(last=False)
        self._unstored.clear()
        self._stored_next_node = self._next_node
        self._overlay = Overlay()
        self._flusher.rest()
        if len(self._inodes) > CACHE_INODES:
            self._shrink_inodes()

    def _shrink_inodes(self) -> None:
        """Let go of the oldest half of the inodes that the file has and nobody has open.

        One that the kernel holds may go too, unless it has no name left: then its row alone can't say who holds it.
        """
        keep = self._overlay.inodes, self._overlay.xattrs
        for inode in list(self._inodes.values())[: CACHE_INODES // 2]:
            if inode.opens == 0 and inode.nlink > 0 and not any(inode.node in table for table in keep):
                del self._inodes[inode.node]

    def _wal_bytes(self) -> int:
        try:
            return os.stat(self.path + "-wal").st_size
        except FileNotFoundError:
            return 0

    # -- durability and life -----------------------------------------------------------------------------------

    def fsync(self, node: int, datasync: bool = False) -> None:
        """Flush everything, then sync the WAL: SQLite's NORMAL commits don't, and a FULL one would hold the lock.

        All of the volume is synced, as by a journal: a name is as durable as the file under it.
        """
        self.write_back()
        if self._wal_fd < 0:
            with self.lock:
                if self._wal_fd < 0:
                    self._wal_fd = os.open(self.path + "-wal", os.O_RDWR | os.O_CLOEXEC)
        os.fdatasync(self._wal_fd)

    def sync(self) -> None:
        self.fsync(0)

    def close(self) -> None:
        with self.lock:
            if self._closed:
                return
            self._closed = True
        self._flusher.stop()
        with self.lock:
            try:
                self.fsync(0)
                with _sqlite_errors():
                    self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            finally:
                self._db.close()
                if self._wal_fd >= 0:
                    os.close(self._wal_fd)
                self._claim.release()

    def statfs(self) -> StatFs:
        disk = os.statvfs(self.path)
        with self.lock:
            free_pages = self._scalar("PRAGMA freelist_count") * schema.PAGE_BYTES
            used = (os.stat(self.path).st_size + self._overlay.bytes - free_pages) // disk.f_frsize
        free = (self._spare(disk) + free_pages) // disk.f_frsize
        # Counting the inodes would read the whole table; no volume has more than the numbers it gave out.
        return StatFs(disk.f_frsize, used + free, free, self._next_node + 2**31, 2**31)

    def _scalar(self, query: str) -> int:
        """The one number a query gives; 0 for NULL and for no row."""
        with _sqlite_errors():
            row = self._db.execute(query).fetchone()
        return int(row[0] or 0) if row is not None else 0

    def _free_orphans(self) -> None:
        """Nodes that were open without a name when the last server ended: nobody can reach them any more."""
        with _sqlite_errors():
            self._overlay.dead = {row[0] for row in self._db.execute("SELECT node FROM inode WHERE nlink = 0")}
        self.write_back()


def _inode_from(row: tuple[int, ...]) -> Inode:
    inode = Inode(row[0], row[1], parent=row[11])
    (
        inode.nlink, inode.uid, inode.gid, inode.rdev, inode.size, inode.blocks,
        inode.atime_ns, inode.mtime_ns, inode.ctime_ns,
    ) = row[2:11]  # fmt: skip
    return inode


class SqliteBackend(VolumeBackend):
    """Files in one SQLite file, on both faces.

    Args:
        path: the file; made when it is missing (its directory must exist).
        on_exists: what `write` does to an existing file, `"error"` (the seeds) or `"replace"` (deepagents 0.7).

    Raises:
        VolumeFileError: the file is in use by another `SqliteBackend`, is no volume, or can't be opened.
    """

    def __init__(self, path: str | os.PathLike[str], *, on_exists: Literal["error", "replace"] = "error") -> None:
        super().__init__(SqliteVolume(path), on_exists=on_exists)

    def _grep_files(
        self, pattern: str, path: str, glob: str | None, max_count: int | None, max_bytes: int
    ) -> GrepResult:
        walk = functools.partial(IndexWalk, pattern)
        return grep_files(self.volume, pattern, path, glob, max_count, max_bytes, walk)
