"""The SQLite file of `SqliteBackend`: its tables, how it is opened, and the lock on it.

    sqlite3 FILE "SELECT * FROM tree"        lists every path with type, size and times
    sqlite3 FILE "SELECT * FROM inode"       is the volume as `stat` sees it

Schema, version 1 (`PRAGMA user_version`; `application_id` is 0x66626b64, "fbkd"):

| table         | one row for                | columns                                                              |
|---------------|----------------------------|----------------------------------------------------------------------|
| `inode`       | a file, directory, link …  | node, mode (as st_mode), nlink, uid, gid, rdev, size (bytes),         |
|               |                            | blocks (of 512 bytes), atime_ns, mtime_ns, ctime_ns, parent (of a     |
|               |                            | directory; 0 elsewhere)                                              |
| `dentry`      | a name                     | parent (node), name (bytes), node                                    |
| `place`       | up to 64 KiB of a file     | node, idx (offset / 65536), chunk; what is missing reads as zeros    |
| `chunk`       | their bytes                | id, data; node and idx, for which they were written (for a repair)   |
| `xattr`       | an extended attribute      | node, name (bytes), value (bytes)                                    |
| `meta`        | a fact about the volume    | key, value: `next_node`; `indexed`, the entries made in `trigram`;    |
|               |                            | `snapshot`, the number of the newest one that there ever was;        |
|               |                            | `log_salt` and `log_number` (`sync_log.py`)                          |
| `unindexed`   | a node whose contents have | node, changed_ns (when that was flushed, since the epoch; 0: unknown) |
|               | changed since its entry    |                                                                      |
| `trigram`     | the trigrams of a file's   | FTS5 without contents: rowid is the node, words are mapped by         |
|               | words (`trigram.py`)       | `trigram.shown`. Old entries of a node stay and do no harm           |
| `snapshot`    | a snapshot                 | number, name (bytes), time_ns; next_node and next_chunk: what has    |
|               |                            | lower numbers may be in it                                           |
| `old_inode`,  | what was replaced since    | as without `old_`, and `until`: the last snapshot that has it so. A   |
| `old_dentry`, | a snapshot (`old_rows.py`) | name or place that was not there has NULL as its node or chunk.      |
| `old_place`,  |                            | `old_xattr` goes with the row of `old_inode`; `old_place` has the    |
| `old_xattr`   |                            | size of its chunk in bytes                                           |
| `pruning`     | deleted snapshots of which | first, last (numbers)                                                |
|               | rows are still to be freed |                                                                      |

The target of a symbolic link is its place 0. A node with `nlink = 0` was open when the server ended; it is freed at
the next opening.

The file is in WAL mode and may be read with other tools while it is mounted; they see what was flushed, up to half a
second ago. What was synced since is in the log beside it (`sync_log.py`). An exclusive `flock` keeps a second
`SqliteBackend` from opening it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import sqlite3
import stat
import threading
from collections.abc import Callable
from typing import ClassVar

from fusebackend.base.at_path import state_at
from fusebackend.base.durable import sync_directory
from fusebackend.base.stamps import now_ns
from fusebackend.databases.sqlite import open_file, transaction, translate_errors
from fusebackend.protocol import MAX_NODE, ROOT_NODE

APPLICATION_ID = 0x66626B64

WRITABLE = "its locks and its log need a disk that can be written to, also with '-o ro': copy it to one"
VERSION = 1
PAGE_BYTES = 16384
"""Measured: writing 256 MiB takes half as long as with 4 KiB, and a small commit no longer."""

LAST_NODE = MAX_NODE >> 1
"""Nodes are numbered up to this, which at 100,000 a second takes 44 years. Higher numbers are damage; a volume that
continued from them would have none left."""

BUSY_TIMEOUT_MS = 10_000
"""How long a flush waits for another program's transaction on the file."""

CACHE_KIB = 16384
"""The cache of pages of a connection that writes."""

WAL_KEPT_BYTES = 32 << 20
"""A WAL that starts anew is cut to this, so the file's size tells how much of it is in use beyond."""

INDEXED_BYTES = 1 << 20
"""Larger files have no entry in the trigram index: every search reads them."""

HASH_BYTES = 4 << 20
"""Bytes that FTS5 gathers before it writes, even in a transaction. Random words take half as long as with 1 MiB."""

MERGED_SEGMENTS = 16
"""Segments of the index, one for each portion, that are merged at a time. With the usual 4, random words are merged
twice as often; a search in 60 segments takes half a millisecond."""

_MAGIC = b"SQLite format 3\0"
_FORMAT, _WAL = slice(18, 20), b"\2\2"
"""Where the header says that the file is in WAL mode (https://sqlite.org/fileformat2.html#file_format_version_numbers).
A file in memory can't be."""

_TABLES = """
CREATE TABLE inode (
    node INTEGER PRIMARY KEY, mode INTEGER NOT NULL, nlink INTEGER NOT NULL, uid INTEGER NOT NULL,
    gid INTEGER NOT NULL, rdev INTEGER NOT NULL, size INTEGER NOT NULL, blocks INTEGER NOT NULL,
    atime_ns INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, ctime_ns INTEGER NOT NULL, parent INTEGER NOT NULL
);
CREATE INDEX inode_orphan ON inode (node) WHERE nlink = 0;
CREATE TABLE dentry (
    parent INTEGER NOT NULL, name BLOB NOT NULL, node INTEGER NOT NULL, PRIMARY KEY (parent, name)
) WITHOUT ROWID;
CREATE TABLE chunk (id INTEGER PRIMARY KEY, node INTEGER NOT NULL, idx INTEGER NOT NULL, data BLOB NOT NULL);
CREATE TABLE place (
    node INTEGER NOT NULL, idx INTEGER NOT NULL, chunk INTEGER NOT NULL, PRIMARY KEY (node, idx)
) WITHOUT ROWID;
CREATE TABLE xattr (
    node INTEGER NOT NULL, name BLOB NOT NULL, value BLOB NOT NULL, PRIMARY KEY (node, name)
) WITHOUT ROWID;
CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE VIEW tree AS
    WITH RECURSIVE walk (path, node) AS (
        SELECT '', 1
        UNION ALL
        SELECT walk.path || '/' || CAST(dentry.name AS TEXT), dentry.node
        FROM walk JOIN dentry ON dentry.parent = walk.node
    )
    SELECT CASE path WHEN '' THEN '/' ELSE path END AS path, inode.node AS node,
           CASE mode & 61440 WHEN 32768 THEN 'file' WHEN 16384 THEN 'directory' WHEN 40960 THEN 'link'
                             ELSE 'special' END AS type,
           size, datetime(mtime_ns / 1000000000, 'unixepoch') AS modified_utc
    FROM walk JOIN inode ON inode.node = walk.node;
"""

TRIGRAMS = "USING fts5(words, content='', detail=none, columnsize=0, tokenize='trigram case_sensitive 1')"

_INDEX_TABLES = f"""
CREATE INDEX dentry_node ON dentry (node);
CREATE INDEX inode_large ON inode (node) WHERE size > {INDEXED_BYTES};
CREATE TABLE unindexed (node INTEGER PRIMARY KEY, changed_ns INTEGER NOT NULL);
CREATE VIRTUAL TABLE trigram {TRIGRAMS};
INSERT INTO trigram (trigram, rank) VALUES ('hashsize', {HASH_BYTES});
INSERT INTO trigram (trigram, rank) VALUES ('automerge', {MERGED_SEGMENTS});
INSERT INTO meta VALUES ('indexed', 0)
"""

_SNAPSHOT_TABLES = """
CREATE TABLE snapshot (
    number INTEGER PRIMARY KEY, name BLOB NOT NULL UNIQUE, time_ns INTEGER NOT NULL,
    next_node INTEGER NOT NULL, next_chunk INTEGER NOT NULL
);
CREATE TABLE old_inode (
    node INTEGER NOT NULL, until INTEGER NOT NULL, mode INTEGER NOT NULL, nlink INTEGER NOT NULL, uid INTEGER NOT NULL,
    gid INTEGER NOT NULL, rdev INTEGER NOT NULL, size INTEGER NOT NULL, blocks INTEGER NOT NULL,
    atime_ns INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, ctime_ns INTEGER NOT NULL, parent INTEGER NOT NULL,
    PRIMARY KEY (node, until)
) WITHOUT ROWID;
CREATE TABLE old_dentry (
    parent INTEGER NOT NULL, name BLOB NOT NULL, until INTEGER NOT NULL, node INTEGER, PRIMARY KEY (parent, name, until)
) WITHOUT ROWID;
CREATE TABLE old_place (
    node INTEGER NOT NULL, idx INTEGER NOT NULL, until INTEGER NOT NULL, chunk INTEGER, bytes INTEGER NOT NULL,
    PRIMARY KEY (node, idx, until)
) WITHOUT ROWID;
CREATE TABLE old_xattr (
    node INTEGER NOT NULL, until INTEGER NOT NULL, name BLOB NOT NULL, value BLOB NOT NULL,
    PRIMARY KEY (node, until, name)
) WITHOUT ROWID;
CREATE INDEX old_inode_until ON old_inode (until);
CREATE INDEX old_dentry_until ON old_dentry (until);
CREATE INDEX old_place_until ON old_place (until);
CREATE TABLE pruning (first INTEGER PRIMARY KEY, last INTEGER NOT NULL);
INSERT INTO meta VALUES ('snapshot', 0)
"""

ALL_TABLES = [*_TABLES.split(";\n"), *_INDEX_TABLES.split(";\n"), *_SNAPSHOT_TABLES.split(";\n")]
"""The statements that make an empty volume's tables."""


class VolumeFileError(OSError):
    """The file can't be opened as a volume; its text is one line with the reason and the remedy."""


class FileClaim:
    """This process's exclusive claim on one volume file.

    `flock` keeps other processes out. A second claim in *this* process is refused before the file is opened at all:
    closing any descriptor of it would drop the POSIX locks that SQLite has on it (fcntl(2)).
    """

    _claimed: ClassVar[set[tuple[int, int]]] = set()
    _guard = threading.Lock()

    def __init__(self, path: str) -> None:
        with self._guard:
            if os.path.exists(path):
                status = os.stat(path)
                if not stat.S_ISREG(status.st_mode):
                    raise VolumeFileError(errno.EINVAL, f"'{path}' is not a regular file")
                if (status.st_dev, status.st_ino) in self._claimed:
                    taken = f"'{path}' is in use by another route, or another backend of this program: it can have one"
                    raise VolumeFileError(errno.EBUSY, taken)
            try:
                self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                how = f"; {WRITABLE}" if error.errno == errno.EROFS else ""
                raise VolumeFileError(error.errno, f"cannot open '{path}': {error.strerror}{how}") from None
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(self.fd)
                taken = f"'{path}' is in use by another fusebackend; unmount or close that one first"
                raise VolumeFileError(errno.EBUSY, taken) from None
            head = os.pread(self.fd, len(_MAGIC), 0)
            if head and head != _MAGIC:  # SQLite would take a file of a few bytes for an empty one, and overwrite it
                os.close(self.fd)
                raise VolumeFileError(errno.EINVAL, f"'{path}' is not an SQLite file, so no fusebackend volume")
            status = os.fstat(self.fd)
            self.key = (status.st_dev, status.st_ino)
            self._claimed.add(self.key)

    def close(self) -> None:
        with self._guard:
            self._claimed.discard(self.key)
            os.close(self.fd)

    @classmethod
    def require(cls, path: str) -> None:
        """EIO where another file than one of this process's volumes is at the path."""
        found = state_at(path)
        if found is None or found.key not in cls._claimed:
            raise VolumeFileError(errno.EIO, f"the volume '{path}' was moved or deleted")


def connect_again(path: str, cache_kib: int = 0) -> sqlite3.Connection:
    """One more connection to a volume that is open. EIO, and no new file, where that one has been moved away.

    Args:
        cache_kib: of a connection that writes.
    """
    connection = open_file(path, "mode=rw")
    try:
        FileClaim.require(path)  # else this reads, or frees, the rows of another volume
        if cache_kib:
            set_up(connection, cache_kib)
    except BaseException:
        connection.close()
        raise
    return connection


def connect(path: str, identity: int = APPLICATION_ID) -> sqlite3.Connection:
    """Open the file, making a new volume in an empty one.

    Args:
        identity: the application id of the file: another one for a file with more than a volume's own tables.

    Raises:
        VolumeFileError: it is not a database, not a volume, of another version, or damaged.
    """
    connection = open_file(path, "mode=rwc", busy_s=BUSY_TIMEOUT_MS / 1000)
    try:
        _prepare(connection, path, identity)
    except sqlite3.DatabaseError as error:
        connection.close()
        raise VolumeFileError(errno.EIO, f"'{path}' can't be opened as a volume: {error}") from None
    except BaseException:
        connection.close()
        raise
    return connection


def new_file(identity: int, tables: tuple[str, ...], fill: Callable[[sqlite3.Connection], None]) -> bytes:
    """Return the bytes of a new volume file. SQLite makes one in place with some thirty writes and seven syncs, to be
    whole after a crash; these bytes need one sync, and then the file its name.

    Args:
        identity: as in `connect`.
        tables: statements that make tables beside a volume's own.
        fill: writes rows.
    """
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.deserialize(_empty(identity, tables))
        with transaction(connection):
            fill(connection)
        found = bytearray(connection.serialize())
    found[_FORMAT] = _WAL
    return bytes(found)


@functools.lru_cache(maxsize=4)
def _empty(identity: int, tables: tuple[str, ...]) -> bytes:
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        _create(connection, identity)
        for statement in tables:
            connection.execute(statement)
        return connection.serialize()


def rewrite(path: str) -> None:
    """Rewrite a volume file with VACUUM: no page, and no part of one, has bytes of deleted rows afterwards, and free
    pages are given back to the disk. For that time nobody may write to it. The WAL is empty at the end.

    It takes as much room on the disk as the file for the WAL, and once more in SQLite's directory for temporary files.
    A kill leaves the old file or the new one, for it is one transaction.

    Raises:
        OSError: ENOSPC and others, the file is as it was; EBUSY, another program reads it.
    """
    with translate_errors(f"'{path}' can't be rewritten"), contextlib.closing(connect_again(path, CACHE_KIB)) as db:
        db.execute("PRAGMA temp_store = FILE")  # the new file is gathered there
        db.execute("VACUUM")
        if db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
            raise OSError(errno.EBUSY, f"'{path}' is rewritten, but another program reads the old state of it")


def set_up(connection: sqlite3.Connection, cache_kib: int = CACHE_KIB) -> None:
    """Set up a connection that writes; the file stores none of these settings."""
    # A commit is made durable by syncing the WAL ourselves where it is due (`SqliteVolume.fsync`), see there.
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute(f"PRAGMA journal_size_limit = {WAL_KEPT_BYTES}")
    connection.execute(f"PRAGMA cache_size = -{cache_kib}")
    connection.execute("PRAGMA temp_store = MEMORY")
    # Debian builds SQLite to overwrite deleted bytes, which writes each once more, to the WAL.
    connection.execute("PRAGMA secure_delete = OFF")


def _prepare(connection: sqlite3.Connection, path: str, wanted: int) -> None:
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    fresh = _identity(connection) == 0 and tables == 0
    if fresh:
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    else:
        require_volume(connection, path, wanted)
    connection.execute("PRAGMA journal_mode = WAL")
    set_up(connection)
    if fresh:
        _create(connection, wanted)
        sync_directory(os.path.dirname(os.path.abspath(path)))  # the file's own name must survive, too
    else:
        _require_root(connection, path)
        _index_common_words(connection)


def _index_common_words(connection: sqlite3.Connection) -> None:
    """Have the files indexed anew whose index was made without the words that are in many files."""
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'common_word'").fetchone() is not None:
        with transaction(connection):
            clear_index(connection)
            connection.execute("DROP TABLE common_word")


def clear_index(connection: sqlite3.Connection) -> None:
    """Have all files indexed anew, inside the caller's transaction."""
    connection.execute("INSERT INTO trigram (trigram) VALUES ('delete-all')")
    connection.execute("INSERT OR REPLACE INTO unindexed SELECT node, 0 FROM inode WHERE size > 0")
    connection.execute("UPDATE meta SET value = 0 WHERE key = 'indexed'")


def _identity(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA application_id").fetchone()[0])


def require_volume(connection: sqlite3.Connection, path: str, identity: int = APPLICATION_ID) -> None:
    """Raise for a file that is no volume, and for a volume with other tables than those above."""
    if _identity(connection) != identity:
        what = "is an SQLite file of something else, not a fusebackend volume"
        raise VolumeFileError(errno.EINVAL, f"'{path}' {what}")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    query = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name IN ('place', 'unindexed', 'pruning')"
    if version != VERSION or connection.execute(query).fetchone()[0] < 3:
        words = f"has tables of another version ({version}, and this fusebackend knows {VERSION} alone)"
        raise VolumeFileError(errno.EINVAL, f"'{path}' {words}; open it with the fusebackend that made it")


def _require_root(connection: sqlite3.Connection, path: str) -> None:
    """Raise for a volume without a root: the kernel's INIT would have no answer."""
    query = f"SELECT (mode & 61440) = {stat.S_IFDIR} AND parent = node AND nlink > 0 FROM inode WHERE node = ?"
    row = connection.execute(query, (ROOT_NODE,)).fetchone()
    if row is None or not row[0]:
        what = "it has no root directory" if row is None else "its root is no directory, or not its own parent"
        raise VolumeFileError(errno.EIO, f"'{path}' is damaged: {what}; `fusebackend check --repair {path}` mends it")


def _create(connection: sqlite3.Connection, identity: int) -> None:
    now = now_ns()
    with transaction(connection):
        for statement in ALL_TABLES:
            connection.execute(statement)
        connection.execute(
            "INSERT INTO inode VALUES (?, ?, 2, ?, ?, 0, 4096, 8, ?, ?, ?, ?)",
            (ROOT_NODE, stat.S_IFDIR | 0o755, os.geteuid(), os.getegid(), now, now, now, ROOT_NODE),
        )
        connection.execute("INSERT INTO meta VALUES ('next_node', ?)", (ROOT_NODE + 1,))
        connection.execute(f"PRAGMA application_id = {identity}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
