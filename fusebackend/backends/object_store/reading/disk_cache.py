"""`BlockCache`: blocks of objects on the local disk, so that what was fetched once is not fetched again.

- A block is named by (object tag, number), and the tag by (store, key, ETag): an object that changes gets new names, so
  nothing in the cache is ever wrong, only unused. No text of a key shows in a file name.
- One file for each block, written under another name and renamed. A file is checked (length, CRC-32 over name and
  data) when this process first reads it: what a crash or a bad disk left is removed, and fetched again.
- The bound holds for the directory: who has written a sixteenth of it looks at what is there, and removes the blocks
  that were used longest ago, as the times of the files tell. So several processes that share a directory exceed the
  bound by a sixteenth each, at most.
- `offer` is what readers use: the block can be read at once, and is written by a thread of the cache; when that is
  behind by `PENDING_BYTES` the block is not kept. So a busy disk slows nobody who reads from the network.
- Thread-safe; nothing is locked during input and output. An error of the disk costs speed and nothing else: it is
  logged once, and the block is not kept.
- A private directory is removed by `close`; one whose process was killed, by the next process that makes one.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import secrets
import shutil
import stat
import struct
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from fusebackend.backends.object_store.reading.fetchers import Fetchers
from fusebackend.backends.object_store.reading.read_ahead import Allowance

log = logging.getLogger(__name__)

FETCHERS = 64
"""Threads that read ahead, for all readers of a cache: so many requests are under way at once."""

PENDING_BYTES = 32 << 20
"""Blocks that wait for the disk, in memory."""

_HEADER = struct.Struct("<4sII")  # magic, bytes of data, CRC-32 of name and data
_MAGIC = b"fbk1"
_PAGE_BYTES = 4096
"""What a file takes is rounded up to this."""

_FULL_SHARE = 0.9
"""How full the cache is after blocks were removed, so that not every write has to look again."""

_CHECKED_NAMES = 1 << 16
"""How many names of checked files are remembered."""

_UNFINISHED_S = 3600.0
"""A temporary file that is older is no longer being written."""

_PRIVATE_PREFIX = "fusebackend-blocks-"
_OWNER_FILE = "owner"
_UNFINISHED = ".tmp"


class _File(NamedTuple):
    used_ns: int
    bytes: int
    path: str


class BlockCache:
    """Up to `max_bytes` of blocks in `directory`; None makes a private temporary one. 0 bytes keep nothing."""

    def __init__(self, directory: str | None, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.fetchers = Fetchers(FETCHERS)
        self.allowance = Allowance()
        self._owner: int | None = None  # holds the lock that says whose a private directory is
        if directory is None:
            _sweep()
            self.directory, self._owner = _private_directory()
        else:
            self.directory = _shared_directory(directory)
        self._writer = Fetchers(1)
        self._writing = threading.Lock()  # held by the writer, and by `close`, which removes what is being written
        self._pending: dict[str, bytes] = {}
        self._pending_bytes = 0
        self._lock = threading.Lock()
        self._checked: dict[str, None] = {}
        self._complained = False
        self._held = sum(file.bytes for file in self._files())  # bytes, as far as this process knows
        self._since_look = 0  # bytes written since `_held` was true

    def tag(self, store: str, key: str, etag: str) -> str:
        """The first part of the names of an object's blocks. `store` tells the bucket from all others."""
        digest = hashlib.blake2b(digest_size=20)
        for part in (store, key, etag):
            data = part.encode(errors="surrogateescape")
            digest.update(b"%d:" % len(data) + data)
        return digest.hexdigest()

    def read(self, tag: str, number: int, offset: int, size: int) -> bytes | None:
        """Up to `size` bytes at `offset` of a block, or None when it is not here."""
        name = f"{tag}-{number:x}"
        pending = self._pending.get(name)
        if pending is not None:
            return pending[offset : offset + size]
        path = self._path(name)
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._complain(error)
            return None
        try:
            if name not in self._checked:
                data = _checked(file, name)
                if data is None:
                    os.unlink(path)
                    return None
                self._remember(name)
                piece = data[offset : offset + size]
            else:
                piece = os.pread(file, size, _HEADER.size + offset)
            now = time.time_ns()
            os.utime(file, ns=(now, now))
        except FileNotFoundError:  # somebody else has removed the bad file
            return None
        except OSError as error:
            self._complain(error)
            return None
        finally:
            os.close(file)
        return piece

    def has(self, tag: str, number: int) -> bool:
        """Whether a block seems to be here. A `read` may still find that it is not."""
        name = f"{tag}-{number:x}"
        return name in self._pending or os.access(self._path(name), os.F_OK)

    def offer(self, tag: str, number: int, data: bytes | memoryview) -> None:
        """Keep a block if there is room for it and the disk keeps up; without waiting for it."""
        name = f"{tag}-{number:x}"
        with self._lock:
            if name in self._pending or self._pending_bytes + len(data) > PENDING_BYTES or not self.max_bytes:
                return
            self._pending_bytes += len(data)
            self._pending[name] = bytes(data)
        self._writer.submit(lambda: self._write_pending(tag, number, name))

    def _write_pending(self, tag: str, number: int, name: str) -> None:
        try:
            with self._writing:
                data = self._pending.get(name)
                if data is None:
                    return  # closed meanwhile
                self.write(tag, number, data)
        finally:
            with self._lock:
                self._pending_bytes -= len(self._pending.pop(name, b""))

    def write(self, tag: str, number: int, data: bytes | memoryview) -> None:
        """Keep a block, if there is room for it."""
        taken = _taken(_HEADER.size + len(data))
        if taken > self.max_bytes:
            return
        name = f"{tag}-{number:x}"
        with self._lock:
            self._held += taken
            self._since_look += taken
            look = self._held > self.max_bytes or self._since_look > self.max_bytes // 16
            if look:
                self._since_look = 0
        if look:
            self._make_room(taken)
        try:
            self._store(name, data)
        except OSError as error:
            self._complain(error)
        else:
            self._remember(name)

    def close(self) -> None:
        """Forget what is to be fetched; remove a private directory. Reads and writes find nothing from now on."""
        self.fetchers.close()
        self._writer.close()
        with self._lock:
            self._pending.clear()
            self._pending_bytes = 0
        if self._owner is not None:
            with self._writing:
                shutil.rmtree(self.directory, ignore_errors=True)
            os.close(self._owner)
            self._owner = None

    # -- files -------------------------------------------------------------------------------------------------

    def _path(self, name: str) -> str:
        return f"{self.directory}/{name[:2]}/{name}"

    def _store(self, name: str, data: bytes | memoryview) -> None:
        path = self._path(name)
        unfinished = f"{self.directory}/{secrets.token_hex(8)}{_UNFINISHED}"
        file = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            try:
                header = _HEADER.pack(_MAGIC, len(data), zlib.crc32(data, zlib.crc32(name.encode())))
                written = os.writev(file, [header, data])
                if written != len(header) + len(data):
                    raise OSError(f"only {written} bytes of a block could be written")
            finally:
                os.close(file)
            try:
                os.rename(unfinished, path)
            except FileNotFoundError:
                with suppress(FileExistsError):
                    os.mkdir(os.path.dirname(path), 0o700)
                os.rename(unfinished, path)
        except OSError:
            with suppress(FileNotFoundError):
                os.unlink(unfinished)
            raise

    def _remember(self, name: str) -> None:
        with self._lock:
            self._checked[name] = None
            if len(self._checked) > _CHECKED_NAMES:
                del self._checked[next(iter(self._checked))]

    def _complain(self, error: OSError) -> None:
        if self._owner is None and not os.path.isdir(self.directory):
            return  # closed
        if not self._complained:
            self._complained = True
            log.warning("the block cache in %s does not work: %s", self.directory, error)

    # -- the bound ---------------------------------------------------------------------------------------------

    def _files(self) -> Iterator[_File]:
        """The blocks that are here; temporary files that nobody writes any more are removed on the way."""
        for entry in _entries(self.directory):
            if entry.name.endswith(_UNFINISHED):
                with suppress(FileNotFoundError):
                    if time.time() - entry.stat(follow_symlinks=False).st_mtime > _UNFINISHED_S:
                        os.unlink(entry.path)
            elif entry.is_dir(follow_symlinks=False):
                for block in _entries(entry.path):
                    with suppress(FileNotFoundError):
                        status = block.stat(follow_symlinks=False)
                        yield _File(status.st_mtime_ns, _taken(status.st_size), block.path)

    def _make_room(self, taken: int) -> None:
        """Look at what is here and, when there is too much of it with `taken` bytes more, remove the least used."""
        with _locked(self.directory):
            files = list(self._files())
            held = taken + sum(file.bytes for file in files)
            if held > self.max_bytes:
                goal = max(int(self.max_bytes * _FULL_SHARE), taken)
                for file in sorted(files):
                    if held <= goal:
                        break
                    with suppress(FileNotFoundError):
                        os.unlink(file.path)
                    held -= file.bytes
        with self._lock:
            self._held = held


def _taken(size: int) -> int:
    return -(-size // _PAGE_BYTES) * _PAGE_BYTES


def _entries(directory: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except FileNotFoundError:
        return []


def _checked(file: int, name: str) -> bytes | None:
    """The data of a block, or None when it is not what was written under that name."""
    with open(file, "rb", buffering=0, closefd=False) as whole:
        content = whole.readall()
    if len(content) < _HEADER.size:
        return None
    magic, size, crc = _HEADER.unpack_from(content)
    data = content[_HEADER.size :]
    if magic != _MAGIC or size != len(data) or crc != zlib.crc32(data, zlib.crc32(name.encode())):
        return None
    return data


@contextmanager
def _locked(directory: str) -> Iterator[None]:
    """One process at a time makes room."""
    file = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


# -- directories ------------------------------------------------------------------------------------------------


def _shared_directory(directory: str) -> str:
    """`blocks` in a directory of the user's, which may hold other things too. PermissionError if it is another's."""
    path = os.path.join(directory, "blocks")
    os.makedirs(directory, 0o700, exist_ok=True)
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise PermissionError(f"{path} is no directory of this user: a cache of others could show wrong data")
    if stat.S_IMODE(status.st_mode) & 0o077:
        os.chmod(path, 0o700)
    return path


def _private_directory() -> tuple[str, int]:
    """A directory of this process alone, and the descriptor that says so while it is open."""
    made = tempfile.mkdtemp(prefix="fusebackend-new-")
    owner = os.open(os.path.join(made, _OWNER_FILE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(owner, fcntl.LOCK_EX)
    # Renamed when it is locked, so that `_sweep` of another process never sees it without its lock.
    directory = os.path.join(os.path.dirname(made), _PRIVATE_PREFIX + made.rsplit("-", 1)[1])
    os.rename(made, directory)
    return directory, owner


def _sweep() -> None:
    """Remove private directories whose process was killed: those whose lock nobody holds."""
    for entry in _entries(tempfile.gettempdir()):
        if not entry.name.startswith(_PRIVATE_PREFIX):
            continue
        try:
            if entry.stat(follow_symlinks=False).st_uid != os.geteuid():
                continue
            owner = os.open(os.path.join(entry.path, _OWNER_FILE), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:  # removed meanwhile, or not one of ours
            continue
        try:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            shutil.rmtree(entry.path, ignore_errors=True)
        finally:
            os.close(owner)
