"""`RangedReader`: reads any part of one version of an object.

- Small reads fetch the block around them (`BLOCK_BYTES`). For sequential reads the next bytes are fetched ahead, in
  parallel and ever larger parts. Both go to the `BlockCache`, except long sequential reads, which would sweep it out.
- Each byte is fetched once, however many threads ask for it at the same time.
- Every answer is of the version that the reader was made for: requests carry `If-Match`, and the ETag of each answer is
  compared. Once the object is another, or gone, reads beyond the cache raise ESTALE.
- Thread-safe. The lock is never held during a request; offsets are decided under it, bytes are waited for without it.
"""

from __future__ import annotations

import errno
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from fusebackend.backends.object_store.bucket.errors import object_errors
from fusebackend.backends.object_store.bucket.throttling import patiently
from fusebackend.backends.object_store.read_ahead import BLOCK_BYTES, PART_BYTES, Allowance, Run
from fusebackend.base.errors import oserror
from fusebackend.base.waiting import will_wait
from fusebackend.remote.fetchers import Fetchers

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ObjectStore

WHOLE_BYTES = 512 << 10
"""An object of up to this size is fetched with one request, whatever is read of it."""

RUNS = 4
"""So many processes may read one file sequentially, each with its own window."""

KEPT_SHARE = 8
"""What is read ahead is cached when the object is at most this part of the cache: 1/8."""

FETCHERS = 64
"""Threads that read ahead, for all readers of a cache: so many requests are under way at once."""

_BEHIND_BYTES = PART_BYTES
"""What was read ahead and lies so far behind its reader was skipped, and is let go."""

Fetch = Callable[[int, int], memoryview]
"""Gives the bytes (offset, size) of the object, or raises OSError."""

Arrived = Callable[["Part", memoryview | None], None]
"""Told of the bytes of a part, or None for an error, in the thread that fetched; waiting readers have it by then."""


class Part:
    """`size` bytes at `offset`. Thread-safe.

    A thread of the pool and the readers may all call `data`: one of them fetches, the others wait. So a
    part that waits in a full queue is fetched by its first reader instead.
    """

    __slots__ = (
        "_arrived", "_claimed", "_data", "_done", "_error", "_fetch", "_lock",
        "dropped", "end", "offset", "served", "size",
    )  # fmt: skip

    def __init__(self, offset: int, size: int, fetch: Fetch, arrived: Arrived) -> None:
        self.offset = offset
        self.size = size
        self.end = offset + size
        self.served = 0
        """Bytes that were read from it: for its reader, to know when it is used up."""
        self.dropped = False
        """Nobody is going to read it: not worth fetching ahead any more."""
        self._fetch = fetch
        self._arrived = arrived
        self._lock = threading.Lock()
        self._claimed = False
        self._done = threading.Event()
        self._data: memoryview | None = None
        self._error: OSError | None = None

    def data(self) -> memoryview:
        """The bytes. The first caller fetches them."""
        if not self._done.is_set():
            will_wait()
        if self._claim():
            self._run()
        else:
            self._done.wait()
        if self._data is None:
            assert self._error is not None
            # A new one each time: an exception that several threads raise would gather all their tracebacks.
            raise oserror(self._error.errno or errno.EIO, self._error.filename)
        return self._data

    def fetch_ahead(self) -> None:
        """The same in a thread of the pool: an error is raised in the readers only."""
        if not self.dropped and self._claim():
            self._run()

    def _claim(self) -> bool:
        with self._lock:
            claimed, self._claimed = self._claimed, True
            return not claimed

    def _run(self) -> None:
        try:
            self._data = self._fetch(self.offset, self.size)
        except OSError as error:
            self._error = error
        except BaseException as error:
            self._error = OSError(errno.EIO, f"{type(error).__name__}: {error}")
            raise
        finally:
            self._done.set()
        self._arrived(self, self._data)


class BlockCache:
    """Blocks of objects in memory, at most `max_bytes`; the least recently used go first. Thread-safe.

    A block is named by (key, ETag, number): an object that changes gets new names, so a block is never stale.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.fetchers = Fetchers(FETCHERS)
        self.allowance = Allowance()
        self._lock = threading.Lock()
        self._blocks: OrderedDict[tuple[str, str, int], bytes] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        """How many bytes are cached."""
        return self._bytes

    def get(self, key: str, etag: str, number: int) -> bytes | None:
        name = (key, etag, number)
        with self._lock:
            block = self._blocks.get(name)
            if block is not None:
                self._blocks.move_to_end(name)
            return block

    def has(self, key: str, etag: str, number: int) -> bool:
        return (key, etag, number) in self._blocks

    def put(self, key: str, etag: str, number: int, data: bytes | memoryview) -> None:
        if len(data) > self.max_bytes:
            return
        name = (key, etag, number)
        with self._lock:
            self._bytes += len(data) - len(self._blocks.pop(name, b""))
            self._blocks[name] = bytes(data)
            while self._bytes > self.max_bytes:
                _, gone = self._blocks.popitem(last=False)
                self._bytes -= len(gone)

    def put_whole(self, key: str, etag: str, content: bytes | memoryview) -> None:
        """Keep all blocks of a version."""
        view = memoryview(content)
        for offset in range(0, len(view), BLOCK_BYTES):
            self.put(key, etag, offset // BLOCK_BYTES, view[offset : offset + BLOCK_BYTES])

    def close(self) -> None:
        """End the read-ahead, and let go of the blocks."""
        self.fetchers.close()
        with self._lock:
            self._blocks.clear()
            self._bytes = 0


class RangedReader:
    """One version of the object `key`: `size` bytes, named by `etag`. None: the store has no ETags; nothing is kept."""

    def __init__(self, store: ObjectStore, key: str, *, etag: str | None, size: int, cache: BlockCache) -> None:
        self.key = key
        self.etag = etag
        self.size = size
        self._store = store
        self._cache = cache
        self._keeps_ahead = size <= cache.max_bytes // KEPT_SHARE
        self._lock = threading.Lock()
        self._parts: dict[int, Part] = {}  # by block: parts under way or held in memory
        self._ahead: dict[Part, Run] = {}  # of these, the ones fetched ahead, and their runs
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
        """The next bytes from `offset`, up to `end`: held here, cached, or from the store."""
        block = offset // BLOCK_BYTES
        with self._lock:
            part = self._parts.get(block)
        if part is None:
            cached = None if self.etag is None else self._cache.get(self.key, self.etag, block)
            if cached is not None:
                start = block * BLOCK_BYTES
                return memoryview(cached)[offset - start : end - start]
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
                answer = patiently(lambda: obstore.get(self._store, self.key, options=options))
                data = memoryview(answer.bytes())
        except OSError as error:
            if error.errno == errno.ENOENT:
                raise oserror(errno.ESTALE, self.key) from None
            raise
        if len(data) != size or (self.etag is not None and answer.meta["e_tag"] != self.etag):
            raise oserror(errno.ESTALE, self.key)
        return data

    def _arrived(self, part: Part, data: memoryview | None) -> None:
        """A part was fetched: cache it, and hold here only what was fetched ahead, and no error."""
        if data is not None and part in self._ahead and not self._keeps_ahead:
            return
        if data is not None and self.etag is not None:
            for offset in range(0, part.size, BLOCK_BYTES):
                number = (part.offset + offset) // BLOCK_BYTES
                self._cache.put(self.key, self.etag, number, data[offset : offset + BLOCK_BYTES])
        with self._lock:
            if data is None or part not in self._ahead:
                self._drop(part)

    # -- what is fetched ahead -----------------------------------------------------------------------------------

    def _read_ahead(self, offset: int, end: int) -> None:
        """Note the read, and fetch the next parts ahead."""
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
        """A part at the beginning of this range; None when its first block is under way or cached already."""
        block = offset // BLOCK_BYTES
        if block in self._parts or (self.etag is not None and self._cache.has(self.key, self.etag, block)):
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
