"""`ObjectFiles`: the contents of files: ranges read from the store, and what is written kept until it is put.

A file that is only read has a `RangedReader` of the version it had when it was opened. The first write loads it into a
`WriteBuffer`; the whole is put when the file is flushed, synced or closed for the last time (`conflicts.py`). A put
that fails is tried again at the next flush, at `sync` and at the end.

An entry's own lock is held around all that is done to its content, requests included: one file never waits for another.
Whatever puts something passes the gate first.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterable
from contextlib import closing
from functools import partial

from fusebackend.backends.object_store.bucket.parallel import each
from fusebackend.backends.object_store.bucket.requests import Bucket
from fusebackend.backends.object_store.conflicts import ATTEMPTS, Uploads
from fusebackend.backends.object_store.entry import Entry
from fusebackend.backends.object_store.gate import Gate
from fusebackend.backends.object_store.looks import Looks
from fusebackend.backends.object_store.put import WriteBuffer
from fusebackend.backends.object_store.ranged_reader import BlockCache, RangedReader
from fusebackend.backends.object_store.tree import ObjectTree
from fusebackend.base.errors import oserror
from fusebackend.base.stamps import now_ns
from fusebackend.base.waiting import will_wait

log = logging.getLogger(__name__)


class ObjectFiles:
    """See the module's docstring."""

    def __init__(self, bucket: Bucket, tree: ObjectTree, looks: Looks, gate: Gate, cache: BlockCache) -> None:
        self._bucket = bucket
        self._tree = tree
        self._looks = looks
        self._gate = gate
        self._cache = cache
        self.uploads = Uploads(bucket, tree, looks, cache)

    # -- handles -----------------------------------------------------------------------------------------------

    def open(self, entry: Entry, flags: int) -> None:
        """One more handle with these `open(2)` flags. ESTALE when the file is gone."""
        only_reads = flags & os.O_ACCMODE == os.O_RDONLY
        with entry.lock:
            if not entry.is_dir and not entry.dirty and not entry.unlinked:
                self._looks.look(entry, fetch=only_reads)
            with self._tree.lock:
                entry.opens += 1
            self.admit(entry, flags)

    def admit(self, entry: Entry, flags: int) -> None:
        if _writes_anywhere(flags):
            if entry.writers == 0:
                entry.base = entry.etag
            entry.writers += 1

    def release(self, entry: Entry, flags: int) -> None:
        """One handle less. What could not be stored stays, and is logged: an error here reaches nobody."""
        with self._gate.passing(), entry.lock:
            assert entry.opens > 0, f"node {entry.node} released more often than opened"
            is_last = entry.opens == 1
            if is_last and entry.dirty:
                will_wait()
            entry.writers -= _writes_anywhere(flags)
            if is_last:
                try:
                    self.uploads.store(entry)
                except OSError as error:
                    log.error("%s was closed unsaved: %s", entry.key, error)
                entry.poisoned = False
            with self._tree.lock:
                entry.opens -= 1
            if not entry.busy:
                entry.drop_content()
                self._tree.reap(entry)

    # -- reading -----------------------------------------------------------------------------------------------

    def read(self, entry: Entry, offset: int, size: int) -> bytes:
        """EISDIR; ESTALE when the version that was opened is gone."""
        if entry.is_dir:
            raise oserror(errno.EISDIR)
        while True:
            reader = entry.reader
            if reader is None or entry.buffer is not None:
                with entry.lock:
                    if entry.poisoned:
                        raise oserror(errno.ESTALE, entry.key)
                    if entry.buffer is not None:
                        return entry.buffer.read(offset, size)
                    if offset >= entry.size:
                        return b""
                    reader = entry.reader = entry.reader or self._reader(entry)
            try:
                return reader.read(offset, size)
            except OSError:
                if entry.reader is reader:
                    raise  # else the file was renamed or written to meanwhile

    def _reader(self, entry: Entry) -> RangedReader:
        return RangedReader(self._bucket.store, entry.key, etag=entry.etag, size=entry.size, cache=self._cache)

    # -- writing -----------------------------------------------------------------------------------------------

    def create(self, entry: Entry, flags: int) -> None:
        """Open a new file, which is in this volume alone until it is flushed."""
        entry.buffer, entry.dirty, entry.opens = WriteBuffer(), True, 1
        self.admit(entry, flags)

    def write(self, entry: Entry, offset: int, data: bytes) -> None:
        with entry.lock:
            buffer = self.load(entry)
            if not data:
                return
            only_appended = not entry.writers and offset == buffer.size
            if not entry.dirty:
                entry.tail_from = buffer.size if only_appended else None
            elif not only_appended:
                entry.tail_from = None
            buffer.write(offset, data)
            self._changed(entry, buffer)

    def load(self, entry: Entry) -> WriteBuffer:
        """The buffer of a file, filled now if it is not. EISDIR; ESTALE as `read`."""
        if entry.is_dir:
            raise oserror(errno.EISDIR)
        if entry.poisoned:
            raise oserror(errno.ESTALE, entry.key)
        if entry.buffer is None:
            entry.buffer = self.uploads.loaded(entry.key, entry.etag) if entry.size else WriteBuffer()
        return entry.buffer

    def _changed(self, entry: Entry, buffer: WriteBuffer) -> None:
        """The buffer has other bytes now. Those of a file that was unlinked here go when it is closed."""
        with self._tree.lock:
            entry.dirty = not entry.unlinked
            entry.resize(buffer.size)
            entry.touch()

    def truncate(self, entry: Entry, size: int) -> None:
        """Cut or extend a file; at once where nobody has it open, else with what is written next."""
        with self._gate.passing(), entry.lock:
            if not entry.busy and not entry.unlinked:
                self._looks.look(entry)
            before, was_dirty = (entry.size, entry.mtime_ns), entry.dirty
            if size == 0 and entry.buffer is None and not entry.is_dir and not entry.poisoned:
                entry.buffer = WriteBuffer()
            buffer = self.load(entry)
            buffer.truncate(size)
            entry.tail_from = None
            self._changed(entry, buffer)
            if entry.opens:
                return
            try:
                self.uploads.store(entry)
            except OSError:
                if not was_dirty:
                    entry.dirty = False
                    entry.resize(before[0])
                    entry.mtime_ns = before[1]
                    entry.drop_content()
                raise
            entry.drop_content()

    def keep_open(self, entry: Entry) -> None:
        """The object is about to go: have its content here, if somebody has the file open."""
        with entry.lock:
            if entry.opens and not entry.poisoned:
                self.load(entry)

    def relocate(self, entry: Entry, key: str) -> None:
        """The object is at another key as well, and will be there alone. The entry's lock is held."""
        head = self._bucket.head(key)
        if head is None or head.size != entry.size:
            raise OSError(errno.EIO, "The copy is not what was copied", key)
        with self._tree.lock:
            if entry.base == entry.etag:
                entry.base = head.etag
            entry.etag, entry.modified_ns = head.etag, head.modified_ns
            reader, entry.reader = entry.reader, None
            if entry.opens and entry.buffer is None:
                entry.reader = RangedReader(
                    self._bucket.store, key, etag=entry.etag, size=entry.size, cache=self._cache
                )
        if reader is not None:
            reader.close()

    # -- whole files -------------------------------------------------------------------------------------------

    def put_new(self, entry: Entry, data: bytes) -> None:
        """Put a new file that has no name yet. EEXIST."""
        with closing(WriteBuffer()) as buffer:
            buffer.write(0, data)
            try:
                entry.etag = self.uploads.put(entry.key, entry, buffer, None)
            except OSError as error:
                raise oserror(errno.EEXIST, entry.key) if error.errno == errno.ESTALE else error from None
        entry.local = False
        entry.resize(len(data))

    def rewrite(self, entry: Entry, change: Callable[[Callable[[], bytes]], bytes]) -> None:
        """Give a file other bytes in one step.

        Args:
            change: gives them, and is given what reads those that are there. It is called again when somebody else was
                faster, and what it raises leaves the file as it is.
        """
        with self._gate.passing(), entry.lock:
            if entry.poisoned:
                raise oserror(errno.ESTALE, entry.key)
            for _ in range(ATTEMPTS):
                if not entry.dirty:
                    self._looks.look(entry)
                before = entry.mtime_ns
                try:
                    data = change(partial(self._bytes, entry))
                    entry.mtime_ns = now_ns()
                    with closing(WriteBuffer()) as buffer:
                        buffer.write(0, data)
                        etag = self.uploads.put(entry.key, entry, buffer, entry.etag)
                except OSError as error:
                    entry.mtime_ns = before
                    if error.errno != errno.ESTALE or entry.dirty:
                        raise
                    continue
                with self._tree.lock:
                    entry.drop_content()
                    entry.resize(len(data))
                    entry.ctime_ns = entry.mtime_ns
                    entry.version += 1
                    self.uploads.is_stored(entry, etag)
                return
        raise oserror(errno.EAGAIN, entry.key)

    def _bytes(self, entry: Entry) -> bytes:
        if entry.buffer is not None:
            return entry.buffer.read(0, entry.buffer.size)
        return b"".join(self._bucket.pieces(entry.key, entry.etag)) if entry.size else b""

    # -- storing -----------------------------------------------------------------------------------------------

    def fsync(self, entry: Entry) -> bool:
        """As `store`; ESTALE as long as a handle is open that has met a conflict."""
        differs = self.store(entry)
        if entry.poisoned:
            raise oserror(errno.ESTALE, entry.key)
        return differs

    def store(self, entry: Entry) -> bool:
        """Put a buffer that was written to; passes the gate. Returns and raises as `Uploads.store`."""
        if not entry.dirty:
            return False
        will_wait()
        with self._gate.passing(), entry.lock:
            return self.uploads.store(entry)

    def _put_idle(self, entry: Entry) -> None:
        """Put a file that nobody is waiting for, and let go of it if nobody has it open."""
        with self._gate.passing(), entry.lock:
            try:
                self.uploads.store(entry)
            finally:
                if not entry.busy:
                    entry.drop_content()
                    self._tree.reap(entry)

    def store_below(self, directory: Entry) -> None:
        """Store what waits in a directory; raises as `store_all`."""
        with self._tree.lock:
            files = list(directory.children.values())
        self.store_all(files)

    def store_all(self, entries: Iterable[Entry]) -> None:
        """Store those that are not stored, several at a time. Each is tried; the first error is raised in the end."""

        def attempt(entry: Entry) -> OSError | None:
            try:
                self._put_idle(entry)
            except OSError as error:
                log.error("%s could not be stored: %s", entry.key, error)
                return error
            return None

        waiting = [entry for entry in entries if entry.dirty]
        for error in each(attempt, waiting) if waiting else ():
            if error is not None:
                raise error

    def sync(self) -> None:
        """Store all that is not stored; raises as `store_all`."""
        self.store_all(self._tree.entries())


def _writes_anywhere(flags: int) -> bool:
    return flags & os.O_ACCMODE != os.O_RDONLY and not flags & os.O_APPEND
