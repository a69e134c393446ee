"""`ObjectFiles`: the contents of files: ranges read from the store, and what is written kept until it is put.

A file that is only read has a `RangedReader` of the version it had when it was opened. The first write loads it into a
`WriteBuffer`; the whole is put when the file is flushed, synced or closed for the last time, on the condition that the
store still has the version that was opened, or nothing where the file is new. When it has something else, that stays,
ours is put beside it as `name.conflict-<time>`, and `store` raises ESTALE. A put that fails leaves the buffer and its
`dirty` mark, so that it is tried again at the next flush, at `sync` and at the end.

An entry's own lock is held around all that is done to its content, requests included: one file never waits for another.
Whatever puts something passes the gate first.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial

from fusebackend.backends.buffer import MEMORY_BYTES
from fusebackend.backends.objectstore import attributes
from fusebackend.backends.objectstore.blockcache import BlockCache
from fusebackend.backends.objectstore.bucket import Bucket, Head
from fusebackend.backends.objectstore.entry import Entry
from fusebackend.backends.objectstore.gate import Gate
from fusebackend.backends.objectstore.reading import WHOLE_BYTES, RangedReader, is_kept, keep
from fusebackend.backends.objectstore.s3extras import COPY_BYTES
from fusebackend.backends.objectstore.tree import ObjectTree
from fusebackend.backends.objectstore.upload import WriteBuffer, put
from fusebackend.backends.wholefiles import conflict_path
from fusebackend.errors import oserror
from fusebackend.paths import AgentPath
from fusebackend.waiting import will_wait

log = logging.getLogger(__name__)

ATTEMPTS = 20
"""How often an append, or a change of attributes, is tried on a file that others change all the time."""


class ObjectFiles:
    """See the module's docstring."""

    def __init__(self, bucket: Bucket, tree: ObjectTree, gate: Gate, cache: BlockCache) -> None:
        self._bucket = bucket
        self._tree = tree
        self._gate = gate
        self._cache = cache

    # -- handles -----------------------------------------------------------------------------------------------

    def open(self, entry: Entry, flags: int) -> None:
        """One more handle with these `open(2)` flags. ESTALE when the file is gone."""
        with entry.lock:
            if not entry.is_dir and not entry.dirty and not entry.unlinked:
                self._look(entry, fetch=flags & os.O_ACCMODE == os.O_RDONLY)
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
        if entry.dirty:
            will_wait()
        with self._gate.passing(), entry.lock:
            assert entry.opens > 0, f"node {entry.node} released more often than opened"
            if _writes_anywhere(flags):
                entry.writers -= 1
            if entry.opens == 1:
                try:
                    self.store_now(entry)
                except OSError as error:
                    log.error("%s was closed unsaved: %s", entry.key, error)
                entry.poisoned = False
            with self._tree.lock:
                entry.opens -= 1
            if not entry.busy:
                entry.drop_content()
                self._tree.reap(entry)

    def _look(self, entry: Entry, *, fetch: bool = False) -> None:
        """See which version the store has now. ESTALE when it has none.

        Args:
            fetch: the content is wanted next. That of a small file comes with the same request, if it is not here.
        """
        head = self._fetched(entry) if fetch and 0 < entry.size <= WHOLE_BYTES else self._bucket.head(entry.key)
        if head is None:
            if not entry.opens:
                self._tree.detach(entry)
            raise oserror(errno.ESTALE, entry.key)
        if head.etag != entry.etag:
            entry.drop_content()
        self._tree.know(entry, head)

    def _fetched(self, entry: Entry) -> Head | None:
        store = self._bucket.store
        if entry.etag is None or is_kept(self._cache, store, entry.key, entry.etag):
            return self._bucket.head(entry.key)
        found = self._bucket.fetch(entry.key, WHOLE_BYTES)
        if found is None:
            return None
        head, content = found
        if content is not None and head.etag is not None:
            keep(self._cache, store, entry.key, head.etag, content)
        return head

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
            entry.buffer = self._loaded(entry.key, entry.etag) if entry.size else WriteBuffer()
        return entry.buffer

    def _loaded(self, key: str, etag: str | None) -> WriteBuffer:
        buffer = WriteBuffer()
        try:
            for piece in self._bucket.pieces(key, etag):
                buffer.write(buffer.size, piece)
        except BaseException as error:
            buffer.close()
            if isinstance(error, FileNotFoundError):
                raise oserror(errno.ESTALE, key) from None
            raise
        return buffer

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
                self._look(entry)
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
                self.store_now(entry)
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
                entry.etag = self._put(entry.key, entry, buffer, None)
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
                    self._look(entry)
                before = entry.mtime_ns
                try:
                    data = change(partial(self._bytes, entry))
                    entry.mtime_ns = time.time_ns()
                    with closing(WriteBuffer()) as buffer:
                        buffer.write(0, data)
                        etag = self._put(entry.key, entry, buffer, entry.etag)
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
                    self._is_stored(entry, etag)
                return
        raise oserror(errno.EAGAIN, entry.key)

    def _bytes(self, entry: Entry) -> bytes:
        if entry.buffer is not None:
            return entry.buffer.read(0, entry.buffer.size)
        return b"".join(self._bucket.pieces(entry.key, entry.etag)) if entry.size else b""

    def _is_stored(self, entry: Entry, etag: str | None) -> None:
        entry.etag = entry.base = etag
        entry.modified_ns = None
        entry.dirty = entry.local = False
        entry.stamped = True
        entry.tail_from = None
        self._tree.changed(entry)

    # -- storing -----------------------------------------------------------------------------------------------

    def store(self, entry: Entry) -> bool:
        """Put a buffer that was written to; passes the gate. Returns and raises as `store_now`."""
        if not entry.dirty:
            return False
        will_wait()
        with self._gate.passing(), entry.lock:
            return self.store_now(entry)

    def store_now(self, entry: Entry) -> bool:
        """Put a buffer that was written to; the gate has been passed, and the entry's lock is held.

        Returns:
            Does the file differ now from what was written here? What others have put before an append is there as well.

        Raises:
            OSError: ESTALE after a conflict, which is settled then; another errno, and the buffer is still dirty.
        """
        if not entry.dirty:
            return False
        assert entry.buffer is not None, f"node {entry.node} has nothing to store"
        key, differs = entry.key, False
        base = entry.base if entry.writers and not entry.local else entry.etag
        try:
            if entry.gone:
                raise oserror(errno.ESTALE, key)
            etag = self._put(key, entry, entry.buffer, base)
        except OSError as error:
            if error.errno not in (errno.ESTALE, errno.EEXIST):
                raise
            found = self._same_already(entry, key)
            if found is None:
                found = self._append_again(entry, key)
                differs = found is not None
            if found is None:
                self._keep_beside(entry, key)
                raise oserror(errno.ESTALE, key) from None
            etag = found
        with self._tree.lock:
            self._is_stored(entry, etag)
        return differs

    def _put(self, key: str, entry: Entry, buffer: WriteBuffer, base: str | None) -> str | None:
        store = self._bucket.store
        etag = put(
            store,
            key,
            buffer,
            if_match=base,
            create=entry.local,
            attributes=attributes.written(entry.stamp, entry.extra),
        ).etag
        if etag is not None and 0 < buffer.size <= MEMORY_BYTES:  # who has written a file will often read it
            keep(self._cache, store, key, etag, buffer.read(0, buffer.size))
        return etag

    def _same_already(self, entry: Entry, key: str) -> str | None:
        """The ETag of what is there, if it is what we have: then a put whose answer was lost has succeeded."""
        head = None if entry.gone else self._bucket.head(key)
        buffer = entry.buffer
        assert buffer is not None
        if head is None or head.size != buffer.size or head.attributes.get("mtime") != self._mtime(entry):
            return None
        offset = 0
        for piece in self._bucket.pieces(key, head.etag):
            if buffer.read(offset, len(piece)) != piece:
                return None
            offset += len(piece)
        return head.etag

    def _mtime(self, entry: Entry) -> str:
        return attributes.written(entry.stamp, {})["mtime"]

    def _append_again(self, entry: Entry, key: str) -> str | None:
        """Append to what is there now what was appended to the buffer, if that is all that was done to it."""
        buffer = entry.buffer
        assert buffer is not None
        if entry.tail_from is None or entry.local or entry.gone:
            return None
        for _ in range(ATTEMPTS):
            head = self._bucket.head(key)
            if head is None:
                return None
            theirs = None
            try:
                theirs = self._loaded(key, head.etag)
                offset = entry.tail_from
                while piece := buffer.read(offset, 1 << 20):
                    theirs.write(theirs.size, piece)
                    offset += len(piece)
                etag = self._put(key, entry, theirs, head.etag)
            except OSError as error:
                if theirs is not None:
                    theirs.close()
                if error.errno != errno.ESTALE:
                    raise
                continue
            entry.drop_content()
            entry.buffer = theirs
            with self._tree.lock:
                entry.resize(theirs.size)
                entry.touch()
            return etag
        return None

    def _keep_beside(self, entry: Entry, key: str) -> None:
        assert entry.buffer is not None
        if entry.buffer.size:
            beside = conflict_path(AgentPath("/" + key))[1:]
            put(
                self._bucket.store,
                beside,
                entry.buffer,
                if_match=None,
                create=True,
                attributes=attributes.written(entry.stamp, entry.extra),
            )
            log.error("%s was changed by others; what was written here is in %s", key, beside)
        with self._tree.lock:
            entry.dirty = entry.stamped = False
            if entry.local and not entry.gone:
                self._tree.detach(entry)
            entry.etag = None
            entry.poisoned = entry.opens > 0
            entry.drop_content()
            self._tree.expire()

    # -- attributes --------------------------------------------------------------------------------------------

    def keep_stamp(self, entry: Entry) -> None:
        """Put the attributes of a file that has new ones: with its content where that is waiting to be put, else alone.

        The gate has been passed, and the entry's lock is held.
        """
        if entry.dirty or entry.unlinked:
            return
        wanted = entry.stamp
        for _ in range(ATTEMPTS):
            written = attributes.written(wanted, entry.extra)
            try:
                etag = self._restamped(entry, written)
            except OSError as error:
                if error.errno != errno.ESTALE:
                    entry.stamped = False
                    raise
                self._look(entry)
                continue
            with self._tree.lock:
                entry.restamp(wanted)
                if entry.base == entry.etag:
                    entry.base = etag
                entry.etag, entry.modified_ns = etag, None
                self._tree.changed(entry)
            return
        raise oserror(errno.EAGAIN, entry.key)

    def _restamped(self, entry: Entry, written: dict[str, str]) -> str | None:
        """Put an object again with other attributes; its ETag. ESTALE when it is not the version we know."""
        extras = self._bucket.extras
        if extras is not None and entry.size <= COPY_BYTES:
            return extras.restamp(entry.key, entry.etag, written)
        buffer = self._loaded(entry.key, entry.etag)
        try:
            return put(
                self._bucket.store, entry.key, buffer, if_match=entry.etag, create=False, attributes=written
            ).etag
        finally:
            buffer.close()

    # -- the end -----------------------------------------------------------------------------------------------

    def sync(self, entries: Callable[[], list[Entry]]) -> None:
        """Store all that is not stored. Each is tried; the first error is raised in the end."""
        first: OSError | None = None
        for entry in entries():
            if not entry.dirty:
                continue
            try:
                self.store(entry)
            except OSError as error:
                log.error("%s could not be stored: %s", entry.key, error)
                first = first or error
            with entry.lock:
                if not entry.busy:
                    entry.drop_content()
                    self._tree.reap(entry)
        if first is not None:
            raise first


def _writes_anywhere(flags: int) -> bool:
    return bool(flags & (os.O_WRONLY | os.O_RDWR)) and not flags & os.O_APPEND
