"""`Uploads`: how what was written to a file, or is to be kept with it, becomes an object; and what a conflict is.

A buffer is put on the condition that the store still has the version that was opened, or nothing where the file is new.
Where it has something else: if that came with an upload of ours that seemed to fail, it is replaced; if it is what we
have, a put whose answer was lost has succeeded; if the buffer was only
appended to, the same is appended to what is there now; else theirs stays, ours is put beside it as
`name.conflict-<time>`, and `store` raises ESTALE. Any other error leaves the buffer and its `dirty` mark.

Whoever calls has passed the gate, and holds the entry's lock.
"""

from __future__ import annotations

import errno
import logging

from fusebackend.backends.object_store import metadata as attributes
from fusebackend.backends.object_store.bucket.requests import Bucket
from fusebackend.backends.object_store.bucket.s3_extras import COPY_BYTES
from fusebackend.backends.object_store.entry import Entry
from fusebackend.backends.object_store.looks import Looks
from fusebackend.backends.object_store.put import UPLOAD_ATTRIBUTE, WriteBuffer, new_name, put
from fusebackend.backends.object_store.ranged_reader import BlockCache
from fusebackend.backends.object_store.tree import ObjectTree
from fusebackend.base.errors import oserror
from fusebackend.base.paths import AgentPath
from fusebackend.remote.buffer import MEMORY_BYTES
from fusebackend.remote.whole_files import conflict_path

log = logging.getLogger(__name__)

ATTEMPTS = 20
"""How often something is tried on a file that others change all the time."""

TRIED = 16
"""So many uploads that failed are remembered for a file."""

_CONFLICTS = frozenset({errno.ESTALE, errno.EEXIST})
"""The store has something else than the condition of a put says."""


class Uploads:
    """See the module's docstring."""

    def __init__(self, bucket: Bucket, tree: ObjectTree, looks: Looks, cache: BlockCache) -> None:
        self._bucket = bucket
        self._tree = tree
        self._looks = looks
        self._cache = cache

    def store(self, entry: Entry) -> bool:
        """Put a buffer that was written to.

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
            etag = self._put_once_more(key, entry, entry.buffer, base)
        except OSError as error:
            if error.errno not in _CONFLICTS:
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
            self.is_stored(entry, etag)
        return differs

    def _put_once_more(self, key: str, entry: Entry, buffer: WriteBuffer, base: str | None) -> str | None:
        """`put`, and again over what an upload of ours has brought that seemed to fail."""
        try:
            return self.put(key, entry, buffer, base)
        except OSError as error:
            if error.errno not in _CONFLICTS or not self._has_arrived(entry, key):
                raise
        return self.put(key, entry, buffer, entry.etag)

    def put(self, key: str, entry: Entry, buffer: WriteBuffer, base: str | None) -> str | None:
        store, name = self._bucket.store, new_name()
        try:
            etag = put(
                store,
                key,
                buffer,
                if_match=base,
                create=entry.local,
                attributes=attributes.written(entry.stamp, entry.extra),
                extras=self._bucket.extras,
                name=name,
            ).etag
        except OSError as error:
            if error.errno != errno.ESTALE:
                entry.tried = (*entry.tried[1 - TRIED :], name)
            raise
        if etag is not None and 0 < buffer.size <= MEMORY_BYTES:  # who has written a file will often read it
            self._cache.put_whole(key, etag, buffer.read(0, buffer.size))
        return etag

    def is_stored(self, entry: Entry, etag: str | None) -> None:
        entry.etag = entry.base = etag
        entry.modified_ns = None
        entry.dirty = entry.local = False
        entry.stamped = True
        entry.tail_from = None
        entry.tried = ()
        self._tree.changed(entry)

    def _has_arrived(self, entry: Entry, key: str) -> bool:
        """Did an upload that seemed to fail bring what is there? Then that is the version we know."""
        head = self._bucket.head(key) if entry.tried else None
        if head is None or head.attributes.get(UPLOAD_ATTRIBUTE) not in entry.tried:
            return False
        with self._tree.lock:
            entry.etag = entry.base = head.etag
            entry.local, entry.tried = False, ()
        return True

    def _same_already(self, entry: Entry, key: str) -> str | None:
        """The ETag of what is there, if it is what we have: then a put whose answer was lost has succeeded."""
        head = None if entry.gone else self._bucket.head(key)
        buffer = entry.buffer
        assert buffer is not None
        if head is None or head.size != buffer.size or head.attributes.get("mtime") != self.mtime_of(entry):
            return None
        offset = 0
        for piece in self._bucket.pieces(key, head.etag):
            if buffer.read(offset, len(piece)) != piece:
                return None
            offset += len(piece)
        return head.etag

    def mtime_of(self, entry: Entry) -> str:
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
                theirs = self.loaded(key, head.etag)
                offset = entry.tail_from
                while piece := buffer.read(offset, 1 << 20):
                    theirs.write(theirs.size, piece)
                    offset += len(piece)
                etag = self.put(key, entry, theirs, head.etag)
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
                extras=self._bucket.extras,
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

    def keep_stamp(self, entry: Entry) -> None:
        """Put the new attributes of a file: with its content where that is waiting to be put, else alone."""
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
                self._looks.look(entry)
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
        buffer = self.loaded(entry.key, entry.etag)
        try:
            return put(
                self._bucket.store, entry.key, buffer, if_match=entry.etag, attributes=written, extras=extras
            ).etag
        finally:
            buffer.close()

    def loaded(self, key: str, etag: str | None) -> WriteBuffer:
        """All of a version of an object. ESTALE when it is another by now."""
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
