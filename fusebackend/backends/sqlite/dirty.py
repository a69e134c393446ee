"""`Overlay`: the changes of an SQLite volume that its file does not have yet, and how they are written to it."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable

from fusebackend.volumes.chunks import Chunk
from fusebackend.volumes.storage import Inode


class Overlay:
    """What has changed and is not in the file yet. Let go of after a `write` that was committed, and not before."""

    def __init__(self) -> None:
        self.inodes: dict[int, Inode] = {}
        self.names: dict[int, dict[bytes, int | None]] = {}  # parent → name → node, None where the name is gone
        self.chunks: dict[tuple[int, int], Chunk] = {}
        self.cuts: dict[int, int] = {}  # node → first chunk index that the file still has and that is gone
        self.contents: set[int] = set()  # nodes whose bytes have changed, for the index
        self.xattrs: dict[int, Inode] = {}
        self.dead: set[int] = set()  # nodes that the file still has and that are gone
        self.bytes = 0
        self.items = 0

    def __bool__(self) -> bool:
        return bool(self.inodes or self.names or self.chunks or self.cuts or self.xattrs or self.dead)

    def write(self, db: sqlite3.Connection, new_row: Callable[[], int]) -> None:
        """Write everything, inside the caller's transaction. What goes is written before what takes its place."""
        for table in ("inode", "chunk", "xattr", "unindexed") if self.dead else ():
            db.executemany(f"DELETE FROM {table} WHERE node = ?", [(node,) for node in self.dead])
        if self.cuts:
            db.executemany("DELETE FROM chunk WHERE node = ? AND idx >= ?", list(self.cuts.items()))
        if self.names:
            self._write_names(db)
        if self.inodes:
            db.executemany(
                "INSERT OR REPLACE INTO inode VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [_row_of(inode) for inode in self.inodes.values()],
            )
        if self.chunks:
            self._write_chunks(db, new_row)
        if self.contents:
            now = time.time_ns()
            db.executemany("INSERT OR REPLACE INTO unindexed VALUES (?, ?)", [(node, now) for node in self.contents])
        for node, inode in self.xattrs.items():
            db.execute("DELETE FROM xattr WHERE node = ?", (node,))
            rows = [(node, name, value) for name, value in (inode.xattrs or {}).items()]
            db.executemany("INSERT INTO xattr VALUES (?, ?, ?)", rows)

    def _write_names(self, db: sqlite3.Connection) -> None:
        gone, here = [], []
        for parent, names in self.names.items():
            for name, node in names.items():
                if node is None:
                    gone.append((parent, name))
                else:
                    here.append((parent, name, node))
        db.executemany("DELETE FROM dentry WHERE parent = ? AND name = ?", gone)
        db.executemany("INSERT OR REPLACE INTO dentry VALUES (?, ?, ?)", here)

    def _write_chunks(self, db: sqlite3.Connection, new_row: Callable[[], int]) -> None:
        """Small changes of stored chunks are written in place; the rest as whole rows."""
        whole: list[tuple[int, int, int, bytes | bytearray]] = []
        for (node, index), chunk in self.chunks.items():
            size = len(chunk.data)
            if chunk.row and size == chunk.stored_bytes and chunk.high - chunk.low <= size // 2:
                with db.blobopen("chunk", "data", chunk.row) as blob:
                    blob.seek(chunk.low)
                    blob.write(chunk.data[chunk.low : chunk.high])
                continue
            if not chunk.row:
                # The number is spent even if this transaction fails: the chunk keeps it for the next one.
                chunk.row = new_row()
            whole.append((chunk.row, node, index, chunk.data))
        db.executemany("INSERT OR REPLACE INTO chunk VALUES (?, ?, ?, ?)", whole)


def _row_of(inode: Inode) -> tuple[int, ...]:
    return (
        inode.node, inode.mode, inode.nlink, inode.uid, inode.gid, inode.rdev, inode.size, inode.blocks,
        inode.atime_ns, inode.mtime_ns, inode.ctime_ns, inode.parent,
    )  # fmt: skip
