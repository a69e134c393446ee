"""`RangedReader`: reads any part of one version of an object.

- Small reads fetch the block around them (`BLOCK_BYTES`), what reads that follow each other will want is fetched ahead
  in parallel and ever larger parts. Both go to the `BlockCache`, except long sequential reads, that would sweep it out.
- Each byte is fetched once, however many threads ask for it at the same time.
- Every answer is of the version that the reader was made for: requests carry `If-Match`, and the ETag of each answer is
  compared. Once the object is another, or gone, reads of what is not cached raise ESTALE.
- Thread-safe. The lock is never held during a request; offsets are decided under it, bytes are waited for without it.
"""

from __future__ import annotations

import json
import secrets
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from obstore.store import ObjectStore

import errno
import threading
from typing import TYPE_CHECKING

from fusebackend.backends.object_store.bucket.errors import object_errors
from fusebackend.backends.object_store.reading.disk_cache import BlockCache
from fusebackend.backends.object_store.reading.parts import Part
from fusebackend.backends.object_store.reading.read_ahead import BLOCK_BYTES, PART_BYTES, Run
from fusebackend.base.errors import oserror

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ObjectStore

WHOLE_BYTES = 512 << 10
"""An object of up to this size is fetched with one request, whatever is read of it."""

RUNS = 4
"""So many processes may read one file sequentially, each with its own window."""

KEPT_SHARE = 8
"""What is read ahead is kept on disk when the object is at most this part of the cache: 1/8."""

_BEHIND_BYTES = PART_BYTES
"""What was read ahead and lies so far behind its reader was skipped, and is let go."""


_PLACE = ("account_name", "bucket", "container_name", "endpoint", "region", "url")
"""The settings that say where a bucket is. No other one: credentials stay out of what is hashed and kept."""

_known: dict[int, tuple[weakref.ref[Any], str]] = {}
"""By `id`, for a store has equals and so no hash."""


def identity_of(store: ObjectStore) -> str:
    """The same for two stores of one bucket and prefix; a store that lives in this process is like no other."""
    number = id(store)
    found = _known.get(number)
    if found is not None and found[0]() is store:
        return found[1]
    identity = _identity(store)
    _known[number] = (weakref.ref(store, lambda gone: _forget(number, gone)), identity)
    return identity


def _forget(number: int, gone: weakref.ref[Any]) -> None:
    if (found := _known.get(number)) is not None and found[0] is gone:
        del _known[number]


def _identity(store: Any) -> str:
    config = getattr(store, "config", None)
    prefix = getattr(store, "prefix", None)
    if config is None and prefix is None:
        return secrets.token_hex(16)
    place = {str(name): str(value) for name, value in dict(config or {}).items() if str(name) in _PLACE}
    return json.dumps([type(store).__name__, place, str(prefix or "")], sort_keys=True)


def is_kept(cache: BlockCache, store: ObjectStore, key: str, etag: str) -> bool:
    """Is the beginning of this version in the cache?"""
    return cache.has(cache.tag(identity_of(store), key, etag), 0)


def keep(cache: BlockCache, store: ObjectStore, key: str, etag: str, content: bytes | memoryview) -> None:
    """Have a version in the cache whose content came in another way."""
    tag, view = cache.tag(identity_of(store), key, etag), memoryview(content)
    for offset in range(0, len(view), BLOCK_BYTES):
        cache.offer(tag, offset // BLOCK_BYTES, view[offset : offset + BLOCK_BYTES])


class RangedReader:
    """One version of the object `key`: `size` bytes, named by `etag`. None: the store has no ETags; nothing is kept."""

    def __init__(self, store: ObjectStore, key: str, *, etag: str | None, size: int, cache: BlockCache) -> None:
        self.key = key
        self.etag = etag
        self.size = size
        self._store = store
        self._cache = cache
        self._tag = None if etag is None else cache.tag(identity_of(store), key, etag)
        self._keeps_ahead = size <= cache.max_bytes // KEPT_SHARE
        self._lock = threading.Lock()
        self._parts: dict[int, Part] = {}  # by block: what is under way or held in memory
        self._ahead: dict[Part, Run] = {}  # of these, what was fetched ahead, and for whom
        self._runs: list[Run] = []  # the latest first
        self._closed = False

    def read(self, offset: int, size: int) -> bytes:
        """The bytes there; fewer than `size` only at the end of the object. OSError: ESTALE, and `object_errors`."""
        end = min(offset + size, self.size)
        if offset >= end:
            return b""
        if self.size > WHOLE_BYTES:
            self._read_ahead(offset, end)
        pieces: list[bytes | memoryview] = []
        while offset < end:
            piece = self._piece(offset, end)
            pieces.append(piece)
            offset += len(piece)
        return bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)

    def drop_ahead(self) -> None:
        """Let go of everything that was fetched ahead."""
        with self._lock:
            for part in list(self._ahead):
                self._drop(part)
            for run in self._runs:
                run.ahead = 0

    def close(self) -> None:
        """Fetch nothing any more. Reads under way end as they would."""
        with self._lock:
            self._closed = True
        self.drop_ahead()

    # -- what is asked for ---------------------------------------------------------------------------------------

    def _piece(self, offset: int, end: int) -> bytes | memoryview:
        """The next bytes from `offset`, up to `end`: from memory, from the disk, or from the store."""
        block = offset // BLOCK_BYTES
        with self._lock:
            part = self._parts.get(block)
        if part is None:
            start = block * BLOCK_BYTES
            size = min(end, start + BLOCK_BYTES) - offset
            cached = None if self._tag is None else self._cache.read(self._tag, block, offset - start, size)
            if cached is not None and len(cached) == size:
                return cached
            part = self._part_for(block, end)
        data = part.data()
        piece = data[offset - part.offset : min(end, part.end) - part.offset]
        with self._lock:
            part.served += len(piece)
            if part in self._ahead and part.served >= part.size:
                self._drop(part)
        return piece

    def _part_for(self, block: int, end: int) -> Part:
        """The part with this block, which is in no cache: with the blocks after it that are not there, up to `end`."""
        with self._lock:
            part = self._parts.get(block)
            if part is not None:
                return part
            first, last = block, -(-end // BLOCK_BYTES)
            if self.size <= WHOLE_BYTES:
                first, last = 0, -(-self.size // BLOCK_BYTES)
            until = block + 1
            while until < last and until not in self._parts:
                until += 1
            offset = first * BLOCK_BYTES
            part = Part(offset, min(until * BLOCK_BYTES, self.size) - offset, self._get, self._arrived)
            self._hold(part)
            return part

    def _get(self, offset: int, size: int) -> memoryview:
        """Fetch a range, of this version or not at all."""
        import obstore

        options: GetOptions = {"range": (offset, offset + size)}
        if self.etag is not None and not self.etag.startswith("W/"):  # If-Match never matches a weak one
            options["if_match"] = self.etag
        try:
            with object_errors(self.key):
                answer = obstore.get(self._store, self.key, options=options)
                data = memoryview(answer.bytes())
        except OSError as error:
            if error.errno == errno.ENOENT:
                raise oserror(errno.ESTALE, self.key) from None
            raise
        if len(data) != size or (self.etag is not None and answer.meta["e_tag"] != self.etag):
            raise oserror(errno.ESTALE, self.key)
        return data

    def _arrived(self, part: Part, data: memoryview | None) -> None:
        """A part was fetched: keep it on disk; in memory only what was fetched ahead, and no error."""
        if data is not None and part in self._ahead and not self._keeps_ahead:
            return
        if data is not None and self._tag is not None:
            for offset in range(0, part.size, BLOCK_BYTES):
                number = (part.offset + offset) // BLOCK_BYTES
                self._cache.offer(self._tag, number, data[offset : offset + BLOCK_BYTES])
        with self._lock:
            if data is None or part not in self._ahead:
                self._drop(part)

    # -- what is fetched ahead -----------------------------------------------------------------------------------

    def _read_ahead(self, offset: int, end: int) -> None:
        """Note the read, and ask for what its reader will want next."""
        refused = False
        planned = []
        with self._lock:
            if self._closed:
                return
            run = self._run_of(offset, end)
            while (wanted := run.next_part(self.size)) is not None:
                part = self._part_ahead(*wanted)
                if part is not None:
                    refused = not self._cache.allowance.take(self, part.size)
                    if refused:
                        break
                    self._hold(part)
                    self._ahead[part] = run
                    planned.append(part)
                run.ahead = part.end if part is not None else wanted[0] + BLOCK_BYTES
        for part in planned:
            self._cache.fetchers.submit(part.fetch_ahead)
        if refused and (idlest := self._cache.allowance.idlest(other_than=self)) is not None:
            idlest.drop_ahead()

    def _run_of(self, offset: int, end: int) -> Run:
        """The run that this read is part of, moved on; a new one takes the place of the one unused for longest."""
        for number, run in enumerate(self._runs):
            if run.follows(offset, end):
                self._runs.insert(0, self._runs.pop(number))
                run.advance(offset, end)
                for part, owner in list(self._ahead.items()):
                    if owner is run and part.end + _BEHIND_BYTES < run.frontier:
                        self._drop(part)
                return run
        run = Run(offset, end)
        self._runs.insert(0, run)
        if len(self._runs) > RUNS:
            gone = self._runs.pop()
            for part, owner in list(self._ahead.items()):
                if owner is gone:
                    self._drop(part)
        return run

    def _part_ahead(self, offset: int, size: int) -> Part | None:
        """A part at the beginning of this range; None when its first block is under way or kept already.

        Only the first one is looked for on disk: to look for 32 of them took a tenth of the time of a long read.
        """
        block = offset // BLOCK_BYTES
        if block in self._parts or (self._tag is not None and self._cache.has(self._tag, block)):
            return None
        until = block + 1
        while until * BLOCK_BYTES < offset + size and until not in self._parts:
            until += 1
        return Part(offset, min(until * BLOCK_BYTES, offset + size) - offset, self._get, self._arrived)

    # -- parts in memory; the lock is held -----------------------------------------------------------------------

    def _hold(self, part: Part) -> None:
        for block in range(part.offset // BLOCK_BYTES, -(-part.end // BLOCK_BYTES)):
            self._parts[block] = part

    def _drop(self, part: Part) -> None:
        if self._ahead.pop(part, None) is not None:
            part.dropped = True
            self._cache.allowance.give_back(self, part.size)
        for block in range(part.offset // BLOCK_BYTES, -(-part.end // BLOCK_BYTES)):
            if self._parts.get(block) is part:
                del self._parts[block]
