"""`SyncLog`: the file beside a volume file that makes an `fsync` of a few changes durable: `FILE-log`.

A record has the changes since the last record, or since the last flush (`stored_tree.py`). It is appended and synced,
and the changes stay in the dirty buffer, from which the flusher writes them to the tables later. Without the log each
`fsync` would rewrite whole pages of several tables: 130 KiB for 4 KiB at the end of a file, and 50 to 160 KiB for each
of the four syncs of a database's commit. When the volume is opened after a crash, the records that are not in the
tables yet are applied (`redo`). An orderly close removes the log.

Records and flushes take their numbers from one sequence, and each flush writes its number to the tables. A record is
only appended when all commits to the tables are on the disk. So a record counts if the number of the tables, or of the
record before it, is one less than its own; what else is in the file is of an earlier lap, or was cut short. The salt is
another one each time the volume is opened, so that no record of another copy of the volume counts.

The volume calls every method but `sync` with its lock held.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sqlite3
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Final

from fusebackend.backends.sqlite.old_rows import NewestRows
from fusebackend.backends.sqlite.stored_tree import Changes, DirtyBuffer, decode, inode_of, stored_chunk
from fusebackend.base.durable import sync_directory
from fusebackend.base.errors import oserror
from fusebackend.databases.sqlite import transaction
from fusebackend.volumes.damage import Damage
from fusebackend.volumes.storage import CHUNK_BYTES, Chunk, Inode

log = logging.getLogger(__name__)

LOG_BYTES: Final = 32 << 20
"""The size of a full log: the next `fsync` flushes, and the log starts anew."""

STEP_BYTES: Final = 1 << 20
"""The log grows by so many zeros at a time. A sync of bytes inside a file takes half as long as one of bytes at its
end, for that writes the file's size as well."""

RECORD_BYTES: Final = 1 << 20
"""A larger change is flushed: its bytes would be written once more than that."""

SPARE_BYTES: Final = 64 << 20
"""The log does not grow on a disk with less room than this."""

_MAGIC: Final = 0x676F6C67
_HEAD: Final = struct.Struct("<IIqqQ")  # magic, checksum of the rest, salt, number, bytes that follow
_SUMMED: Final = struct.Struct("<qqQ")


class SyncLog:
    """Owns the file, which is made by the first `restart`.

    Args:
        path: the volume file.
        number: of the last record or flush that the tables have.
    """

    def __init__(self, path: str, number: int) -> None:
        self.path = log_path(path)
        self.number = number
        """Of the last record or flush."""
        self.offset = 0
        """Where the next record goes: 0 until there is one since the log started anew."""
        self.salt = 0
        """0 until the volume is about to start the log."""
        self._synced = number
        self._allocated = 0
        self._fd = -1
        self._was_begun = False
        self.is_open = False
        """False after a failure, too. The file stays open then: another thread may be syncing it."""

    def restart(self) -> None:
        """Start anew: the tables have all changes on the disk, and the salt. The first time, the file is made. Where
        that fails, the volume does without the log."""
        if not self._was_begun:
            self._was_begun = True
            try:
                self._make()
                self.is_open = True
            except OSError as error:
                log.warning("each fsync writes to the tables of the volume, which has no log %s: %s", self.path, error)
        self.offset = 0
        self._synced = self.number

    def _make(self) -> None:
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._allocated = os.fstat(self._fd).st_size
        if not self._grow(0):
            raise oserror(errno.ENOSPC)
        os.fsync(self._fd)
        sync_directory(os.path.dirname(self.path))

    def append(self, changes: bytes) -> bool:
        """Write a record; False if it does not fit, and the changes must be flushed."""
        size = _HEAD.size + len(changes)
        if self.offset + size > LOG_BYTES or not self._grow(self.offset + size):
            return False
        number = self.number + 1
        summed = _SUMMED.pack(self.salt, number, len(changes))
        checksum = zlib.crc32(changes, zlib.crc32(summed))
        record = b"".join((_HEAD.pack(_MAGIC, checksum, self.salt, number, len(changes)), changes))
        try:
            whole = os.pwrite(self._fd, record, self.offset) == size
        except OSError:
            whole = False
        if not whole:
            self.is_open = False
            return False
        self.offset += size
        self.number = number
        return True

    def sync(self, number: int) -> bool:
        """Make the records up to a number durable; False if the disk failed, and the changes must be flushed."""
        if self._synced >= number:
            return True
        written, fd = self.number, self._fd
        try:
            os.fdatasync(fd)
        except OSError:  # what of it is on the disk is not known, and no later sync would tell (fsyncgate)
            self.is_open = False
            return False
        self._synced = max(self._synced, written)
        return True

    def erase(self) -> None:
        """Start anew, as `restart`, and leave none of the bytes that were in the file."""
        if self._fd >= 0:
            os.ftruncate(self._fd, 0)
            self._allocated = 0
            if not self._grow(0):
                self.is_open = False
            os.fsync(self._fd)
        self.offset = 0

    def remove(self) -> None:
        """Remove the file: the tables have all changes on the disk."""
        self.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self.is_open = False

    def _grow(self, end: int) -> bool:
        """Fill the file with zeros up to a step beyond `end`; False if there is no room."""
        while self._allocated <= end:
            disk = os.fstatvfs(self._fd)
            if disk.f_bavail * disk.f_frsize < SPARE_BYTES:
                return False
            try:
                self._allocated += os.pwrite(self._fd, bytes(STEP_BYTES), self._allocated)
            except OSError:
                return False
        return True


def log_path(path: str) -> str:
    """The log of a volume file."""
    return f"{path}-log"


def pending(path: str, salt: int, number: int) -> Iterator[tuple[int, bytes]]:
    """The number and the changes of each record that the tables lack.

    Args:
        path: the volume file.
        salt: that the tables have.
        number: of the last record or flush that the tables have.
    """
    if not os.path.exists(log_path(path)):
        return
    with open(log_path(path), "rb") as file:
        last = 0
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            magic, checksum, own_salt, own_number, size = _HEAD.unpack(head)
            if magic != _MAGIC or own_salt != salt or own_number <= last or size > LOG_BYTES:
                return
            changes = file.read(size)
            if len(changes) < size or zlib.crc32(changes, zlib.crc32(head[-_SUMMED.size :])) != checksum:
                return
            last = own_number
            if own_number == number + 1:
                number = own_number
                yield own_number, changes
            elif own_number > number:
                return


# -- redo --------------------------------------------------------------------------------------------------------
#
# `redo` applies the records to the tables when a volume is opened after a crash. Each is written as a flush writes the
# dirty buffer, in a transaction with its number. A crash meanwhile loses nothing: the log stays until a later flush is
# on the disk.


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


def recorded(db: sqlite3.Connection, history: str) -> int:
    """Return the last number of a history that the tables have; 0 if they have none."""
    found = db.execute("SELECT value FROM meta WHERE key = ?", (_RECORDED.format(history),)).fetchone()
    return 0 if found is None else int(found[0])


def store(db: sqlite3.Connection, salt: int, number: int, last: tuple[str, int] | None) -> None:
    """Write what `state` reads, unless there is no log, and what `recorded` reads of a history, inside the caller's
    transaction."""
    rows = [(LOG_SALT, salt), (LOG_NUMBER, number)] if salt else []
    if last is not None:
        rows.append((_RECORDED.format(last[0]), last[1]))
    db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", rows)


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
    for taken, record in pending(path, salt, number) if salt else ():
        changes = decode(record)
        next_node = max(next_node, changes.next_node)
        with transaction(db):
            _buffer(db, changes, damage).write(db, new_row, newest)
            store(db, salt, taken, changes.recorded)
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
