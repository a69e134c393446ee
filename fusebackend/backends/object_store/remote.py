"""`BucketRemote`: a bucket, or a prefix in one, as a `Remote`.

`bucket/object_keys.py` maps keys to names, `metadata.py` modes, owners, times and links to attributes; `put.py` stores
an object, and `rename.py` moves it.

An upload that seems to fail may have arrived, its answer lost. Its name is remembered (each has one of its own, in the
object's attributes): a later put of the same file that finds the object of such an upload replaces it.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from obstore.store import LocalStore

from fusebackend.backends.object_store import metadata
from fusebackend.backends.object_store.bucket import object_keys
from fusebackend.backends.object_store.bucket.object_keys import MARKER, info_of
from fusebackend.backends.object_store.bucket.requests import Bucket, Object, ObjectVersion
from fusebackend.backends.object_store.bucket.s3_extras import COPY_BYTES, S3Extras
from fusebackend.backends.object_store.put import Upload
from fusebackend.backends.object_store.rename import Moves
from fusebackend.base.recent import Recent
from fusebackend.protocol.remote import Abilities, Bytes, Contents, Etag, Head, Info, Reader, Remote, Stamp, begins_with
from fusebackend.remote.buffer import MEMORY_BYTES, Buffer
from fusebackend.remote.parallel import each
from fusebackend.remote.ranges import WHOLE_BYTES, BlockCache, Pace, RangedReader

CACHE_BYTES = 64 << 20
"""Blocks of objects that were read, in memory."""

PACE = Pace(part_bytes=4 << 20, window_bytes=64 << 20, threads=64)
"""64 MiB every 50 ms are more than the network of one host. 1 GiB from SeaweedFS on the same machine took 2.0 s in
requests of 4 MiB, of 8 MiB each 2.1, of 2 MiB each 2.5."""

TRIED = 16
"""So many uploads that failed are remembered for a key, …"""

TRIED_KEYS = 1024
"""… and for so many keys; the oldest go first."""


class BucketRemote(Remote):
    """See the module's docstring.

    Args:
        store: an obstore store; its prefix is where the tree begins.
        extras: does what obstore can't; None where there is no other way.
        cache_bytes: so many bytes of objects that were read stay in memory.
        attributes: modes, owners, times and links are those that are stored with objects.

    Raises:
        OSError: ENOTSUP for a `LocalStore`: each put would be refused, for every object has the name of its upload.
    """

    name = "bucket"
    at_once = frozenset({"write", "flush", "setattr", "release"})
    abilities = Abilities(
        ranges=True,
        exact_sizes=True,
        keeps_attributes=True,
        keeps_directories=True,
        flat_keys=True,
        concurrent=True,
        durable=True,
    )

    def __init__(
        self, store: Any, extras: S3Extras | None = None, cache_bytes: int = CACHE_BYTES, attributes: bool = True
    ) -> None:
        if isinstance(store, LocalStore):
            raise OSError(
                errno.ENOTSUP, "a LocalStore keeps no attributes, which every upload has; use FilesystemBackend"
            )
        self.abilities = replace(self.abilities, keeps_attributes=attributes)
        self.bucket = Bucket(store, extras)
        self.byte_cache = BlockCache(cache_bytes, PACE)
        self._moves = Moves(self.bucket)
        self._tried: Recent[str, tuple[str, ...]] = Recent(TRIED_KEYS)
        self._moves.recover()

    # -- names -------------------------------------------------------------------------------------------------

    def contents(self, directory: str) -> Contents:
        return self.bucket.contents(directory)

    def find(self, directory: str, segment: str) -> tuple[Info, Head | None] | None:
        key = directory + segment
        if not self.bucket.is_empty(key + "/"):
            return Info(segment, is_dir=True), None
        found = self.bucket.head(key)
        if found is None:
            return None
        return info_of(segment, found.size, found.etag, found.modified_ns), self._head(found, is_dir=False)

    def has(self, key: str) -> bool:
        return not self.bucket.is_empty(key) if key.endswith("/") else self.bucket.head(key) is not None

    def holds_only(self, directory: str) -> bool:
        return self.bucket.is_empty(directory, frozenset([directory + MARKER]))

    def admit(self, name: bytes, directory: str, *, is_dir: bool) -> str:
        return object_keys.new_segment(name, directory)

    def segment(self, name: bytes) -> str | None:
        # SeaweedFS takes a backslash for a slash: only a listing tells what there is.
        return None if name.endswith(object_keys.FILE_MARK) or b"\\" in name else object_keys.segment_of(name)

    def make_directory(self, directory: str, stamp: Stamp, *, replace: bool) -> Etag | None:
        return self.bucket.put_small(directory + MARKER, b"", metadata.written(stamp), not replace)

    def delete(self, key: str) -> None:
        if key.endswith("/"):
            self.bucket.delete_directory(key)
        else:
            self.bucket.delete(key)
            self._tried.pop(key, None)

    def rename(
        self, old: str, new: str, etag: Etag | None, replaced: tuple[Etag | None] | None, copied: Callable[[], None]
    ) -> Sequence[str]:
        if old.endswith("/"):
            self._moves.directory(old, new, copied)
        else:
            self._moves.file(old, new, _text(etag), _text(replaced[0]) if replaced is not None else None, copied)
        return ()

    # -- files -------------------------------------------------------------------------------------------------

    def head(self, key: str, known: Etag | None = None, fetch_bytes: int = 0) -> Head | None:
        etag = _text(known)
        if etag is None or not 0 < fetch_bytes <= WHOLE_BYTES or self.byte_cache.has(key, etag, 0):
            found = self.bucket.head(key)
            return None if found is None else self._head(found, is_dir=False)
        fetched = self.bucket.fetch(key, WHOLE_BYTES)
        if fetched is None:
            return None
        found, content = fetched
        if content is not None and found.etag is not None:
            self.byte_cache.put_whole(key, found.etag, content)
        return self._head(found, is_dir=False)

    def _head(self, found: Object, *, is_dir: bool) -> Head:
        is_shown = self.abilities.keeps_attributes
        stamp = metadata.read(found.attributes, found.modified_ns, is_dir=is_dir, is_shown=is_shown)
        return Head(found.size, found.etag, (found.etag, found.modified_ns), found.modified_ns, stamp)

    def heads(self, wanted: Iterable[tuple[str, int]]) -> Sequence[Head | OSError | None]:
        def ask(key: str) -> Head | None:
            is_dir = not key or key.endswith("/")
            found = self.bucket.head(key + MARKER if is_dir else key)
            return None if found is None else self._head(found, is_dir=is_dir)

        return each(ask, [key for key, _ in wanted])

    def reader(self, key: str, etag: Etag | None, size: int) -> Reader:
        version = ObjectVersion(self.bucket.store, key, _text(etag))
        return RangedReader(key, version, etag=version.etag, size=size, cache=self.byte_cache)

    def load(self, key: str, etag: Etag | None) -> Iterable[bytes]:
        return self.bucket.pieces(key, _text(etag))

    def put(self, key: str, data: Bytes, stamp: Stamp, *, over: Etag | None, create: bool) -> Etag | None:
        tried = self._tried.get(key, ())
        upload = Upload(self.bucket, key, metadata.written(stamp), _text(over), create, tried)
        try:
            etag = upload.put(data)
        except OSError as error:
            if error.errno != errno.ESTALE:
                self._tried[key] = (*tried[1 - TRIED :], upload.name)
            raise
        self._tried.pop(key, None)
        if etag is not None and 0 < data.size <= MEMORY_BYTES:  # a file that was written is often read next
            self.byte_cache.put_whole(key, etag, data.read(0, data.size))
        return etag

    def same(self, key: str, data: Bytes, stamp: Stamp) -> Etag | None:
        found = self.bucket.head(key)
        mtime = metadata.written(stamp)["mtime"]
        if found is None or found.size != data.size or found.attributes.get("mtime") != mtime:
            return None
        return found.etag if begins_with(data, self.bucket.pieces(key, found.etag)) else None

    def restamp(self, key: str, etag: Etag | None, size: int, stamp: Stamp) -> Etag | None:
        extras, written = self.bucket.extras, metadata.written(stamp)
        if extras is not None and size <= COPY_BYTES:
            return extras.restamp(key, _text(etag), written)
        with closing(Buffer.of(self.bucket.pieces(key, _text(etag)))) as buffer:
            return Upload(self.bucket, key, written, _text(etag)).put(buffer)

    # -- life --------------------------------------------------------------------------------------------------

    @property
    def unfinished(self) -> bool:
        return self._moves.unfinished

    def finish(self) -> None:
        self._moves.finish()

    def close(self) -> None:
        self._moves.close()
        self.byte_cache.close()
        if self.bucket.extras is not None:
            self.bucket.extras.close()


def _text(etag: Etag | None) -> str | None:
    assert not isinstance(etag, bytes), "a bucket's ETags are text"
    return etag
