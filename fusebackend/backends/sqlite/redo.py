"""Applies the records of the sync log to the tables when a volume is opened after a crash: `redo(…)`.

Each record is written as a flush writes the dirty buffer, in a transaction with its number. A crash meanwhile loses
nothing: the log stays until a later flush is on the disk.
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Callable

from fusebackend.backends.sqlite import sync_log
from fusebackend.backends.sqlite.old_rows import NewestRows
from fusebackend.backends.sqlite.stored_tree import DirtyBuffer, inode_of, stored_chunk
from fusebackend.backends.sqlite.unlogged import Changes, decode
from fusebackend.base.errors import oserror
from fusebackend.databases.sqlite import transaction
from fusebackend.volumes.damage import Damage
from fusebackend.volumes.storage import CHUNK_BYTES, Chunk, Inode

LOG_SALT = "log_salt"
LOG_NUMBER = "log_number"
"""Keys of `meta`: which log is this volume's, and the last number that the tables have."""

_RECORDED = "recorded {}"
"""The key of the last number of a history, see `SnapshotVolume.before_commit`."""


def state(db: sqlite3.Connection) -> tuple[int, int]:
    """The salt of the log, 0 for none, and the last number, as the tables have them."""
    found = dict(db.execute("SELECT key, value FROM meta WHERE key IN (?, ?)", (LOG_SALT, LOG_NUMBER)).fetchall())
    salt, number = found.get(LOG_SALT, 0), found.get(LOG_NUMBER, 0)
    return (salt, number) if type(salt) is type(number) is int else (0, 0)


def store(db: sqlite3.Connection, salt: int, number: int) -> None:
    """Write what `state` reads, inside the caller's transaction."""
    db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", [(LOG_SALT, salt), (LOG_NUMBER, number)])


def recorded(db: sqlite3.Connection, history: str) -> int:
    """Return the last number of a history that the tables have; 0 if they have none."""
    found = db.execute("SELECT value FROM meta WHERE key = ?", (_RECORDED.format(history),)).fetchone()
    return 0 if found is None else int(found[0])


def store_recorded(db: sqlite3.Connection, last: tuple[str, int] | None) -> None:
    """Write what `recorded` reads, inside the caller's transaction."""
    if last is not None:
        db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (_RECORDED.format(last[0]), last[1]))


def redo(db: sqlite3.Connection, path: str, damage: Damage, new_row: Callable[[], int], newest: NewestRows) -> int:
    """Apply the records that the tables lack. Returns the highest `next_node` of them, 0 where there was none.

    Args:
        path: the volume file.
        new_row: gives an unused number for a row of `chunk`.
        newest: which rows may be in a snapshot.

    Raises:
        OSError: EIO; rows that a record changes are damaged.
        sqlite3.Error: the file can't be written.
    """
    salt, number = state(db)
    next_node = 0
    for taken, record in sync_log.pending(path, salt, number) if salt else ():
        changes = decode(record)
        next_node = max(next_node, changes.next_node)
        with transaction(db):
            _buffer(db, changes, damage).write(db, new_row, newest)
            store(db, salt, taken)
            store_recorded(db, changes.recorded)
            db.execute("UPDATE meta SET value = max(value, ?) WHERE key = 'next_node'", (next_node,))
    return next_node


def _buffer(db: sqlite3.Connection, changes: Changes, damage: Damage) -> DirtyBuffer:
    buffer = DirtyBuffer()
    buffer.dead = set(changes.dead)
    buffer.cuts = changes.cuts
    buffer.names = changes.names
    buffer.inodes = {row[0]: inode_of(damage, row) for row in changes.inodes}
    for node, values in changes.xattrs.items():
        buffer.xattrs[node] = inode = buffer.inodes.get(node) or Inode(node, 0)
        inode.xattrs = values
    for node, index, offset, size, data in changes.pieces:
        if size > CHUNK_BYTES or offset + len(data) > size:
            damage.tell(f"a record of the sync log has bytes beyond chunk {index} of inode {node}")
            raise oserror(errno.EIO)
        chunk = buffer.chunks.get((node, index))
        if chunk is None:
            is_cut = index >= changes.cuts.get(node, index + 1)
            chunk = buffer.chunks[node, index] = (None if is_cut else stored_chunk(db, damage, node, index)) or Chunk()
        chunk.cut(size)
        chunk.put(offset, data)
    buffer.contents = {*buffer.inodes, *buffer.cuts, *(node for node, _ in buffer.chunks)}
    return buffer
