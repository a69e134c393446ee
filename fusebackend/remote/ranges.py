"""`RangedReader`: reads any part of one version of a file, in ranges that are fetched ahead, far enough and once.

- Small reads fetch the block around them (`BLOCK_BYTES`). For sequential reads the next bytes are fetched ahead, in
  parallel where the service takes that (`Pace`), and in ever larger parts. Both go to the `BlockCache`, except long
  sequential reads, which would sweep it out.
- Each byte is fetched once, however many threads ask for it at the same time. A part arrives in pieces, and a read
  waits for its own only.
- Every answer is of the version that the reader was made for: the `RangeSource` sees to it. Once the file is another,
  or gone, reads beyond the cache raise ESTALE.
- Thread-safe. The lock is never held during a request; offsets are decided under it, bytes are waited for without it.

The kernel's reads may overtake each other, so a reader knows several sequential reads (`Run`) and how near is in order.
"""

from __future__ import annotations

import bisect
import errno
import itertools
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from fusebackend.base.errors import oserror
from fusebackend.base.recent import RecentBytes
from fusebackend.base.waiting import will_wait
from fusebackend.remote.parallel import Fetchers

BLOCK_BYTES = 256 << 10
"""What is fetched for one small read, and the unit of the cache.

From SeaweedFS on the same machine 4 KiB take 1.45 ms, 128 KiB 1.54, 256 KiB 1.75 and 1 MiB 5.5; over a network with
50 ms the difference vanishes. So this is the most that a small read gets at nearly no price.
"""

WHOLE_BYTES = 512 << 10
"""A file of up to this size is fetched with one request, whatever is read of it."""

RUNS = 4
"""So many processes may read one file sequentially, each with its own window."""

CACHE_BYTES = 64 << 20
"""Blocks of files that were read, in memory, where nothing else is asked for."""

KEPT_SHARE = 8
"""What is read ahead is cached when the file is at most this part of the cache: 1/8."""

ALLOWANCE_BYTES = 256 << 20
"""What all readers of a cache may have in memory that was not asked for yet."""

GROWTH = 4
"""The window is so many times what was read in one go, so what may have been read in vain is in proportion."""

SLOW_S = 1.0
"""After a part that took so long of a single connection the next are no larger: other files wait for all of it."""

_numbers = itertools.count()

_NEAR_READS = 4
"""Requests of one reader arrive in any order; so many sizes beside the expected offset is still the same reader."""


class Pace(NamedTuple):
    """How much of a service is asked for at a time."""

    part_bytes: int
    """The largest request."""
    window_bytes: int
    """The farthest that one reader is ahead."""
    threads: int
    """So many requests are under way at once, for all readers of a cache. 1: one connection, which is asked in order;
    0: none is begun before a reader comes to it."""
    parts: int = 4
    """A window is so many requests, so that there are always several."""


class RangeSource(Protocol):
    """Where one version of a file is fetched from."""

    def fetch(self, offset: int, size: int, add: Callable[[memoryview], None]) -> None:
        """Hand on these bytes, in pieces. OSError: ESTALE when that version is gone. Fewer bytes are ESTALE, too."""

    def close(self) -> None: ...


class Part:
    """`size` bytes at `offset`. Thread-safe.

    A thread of the pool and the readers may all come to it: one of them fetches, the others wait. So a part that waits
    in a full queue is fetched by its first reader instead, unless it is `queued`: then its turn comes.
    """

    __slots__ = (
        "_arrived", "_changed", "_claimed", "_done", "_error", "_got", "_pieces", "_source", "_starts",
        "dropped", "end", "offset", "queued", "served", "size",
    )  # fmt: skip

    def __init__(self, offset: int, size: int, source: RangeSource, arrived: Callable[[Part, bool], None]) -> None:
        self.offset = offset
        self.size = size
        self.end = offset + size
        self.served = 0
        """Bytes that were read from it: for its reader, to know when it is used up."""
        self.dropped = False
        """Nobody is going to read it: not worth fetching ahead any more."""
        self.queued = False
        """The thread of a single connection comes to it after what is before it."""
        self._source = source
        self._arrived = arrived
        self._changed = threading.Condition(threading.Lock())
        self._claimed = self._done = False
        self._got = offset  # up to where it has arrived
        self._pieces: list[memoryview] = []
        self._starts: list[int] = []
        self._error: OSError | None = None

    def at(self, offset: int, end: int) -> memoryview:
        """The piece at `offset`: its bytes from there, up to `end` at most. The first caller fetches the part."""
        while self._got <= offset:
            if not self._done:
                will_wait()
            if self._claim():
                self._run()
            elif self._done:
                assert self._error is not None
                # A new one each time: an exception that several threads raise would gather all their tracebacks.
                raise oserror(self._error.errno or errno.EIO, self._error.filename)
            else:
                with self._changed:
                    self._changed.wait_for(
                        lambda: self._got > offset or self._done or not (self._claimed or self.queued)
                    )
        number = bisect.bisect(self._starts, offset) - 1
        return self._pieces[number][offset - self._starts[number] : end - self._starts[number]]

    def joined(self, offset: int, end: int) -> bytes:
        """Bytes that have arrived."""
        pieces = []
        while offset < end:
            pieces.append(self.at(offset, end))
            offset += len(pieces[-1])
        return b"".join(pieces)

    def fetch_ahead(self) -> None:
        """Fetch it in a thread of the pool: an error is raised in the readers only."""
        if self.dropped:
            self.drop()  # it was queued after that
        elif self._claim(in_turn=True):
            self._run()

    def drop(self) -> None:
        """No thread fetches it ahead any more; a reader that waits for it may."""
        with self._changed:
            self.dropped, self.queued = True, False
            self._changed.notify_all()

    def _claim(self, *, in_turn: bool = False) -> bool:
        with self._changed:
            claims = not self._claimed and (in_turn or not self.queued)
            self._claimed = self._claimed or claims
            return claims

    def _add(self, piece: memoryview) -> None:
        with self._changed:
            if piece:
                self._pieces.append(piece)
                self._starts.append(self._got)
                self._got += len(piece)
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            self._source.fetch(self.offset, self.size, self._add)
            if self._got != self.end:
                raise oserror(errno.ESTALE)
        except OSError as error:
            self._error = error
        except BaseException as error:
            self._error = OSError(errno.EIO, f"{type(error).__name__}: {error}")
            raise
        finally:
            with self._changed:
                self._done = True
                self._changed.notify_all()
        self._arrived(self, self._error is None)


class Run:
    """Reads that follow each other. Offsets in bytes; `ahead` is the end of the last request."""

    __slots__ = ("ahead", "frontier", "got")

    def __init__(self, offset: int, end: int) -> None:
        self.frontier = end
        """The end of the highest read."""
        self.got = end - offset if offset == 0 else 0  # a read at the beginning counts as sequential
        self.ahead = 0

    def follows(self, offset: int, end: int) -> bool:
        """Whether this read goes on with the run."""
        near = _NEAR_READS * (end - offset)
        return self.frontier - near <= offset <= self.frontier + near

    def advance(self, offset: int, end: int) -> None:
        self.got += end - offset
        self.frontier = max(self.frontier, end)

    def next_part(self, size: int, pace: Pace) -> tuple[int, int] | None:
        """The next (offset, size) to ask for of a file of `size` bytes, or None when enough is under way. Requests are
        whole blocks."""
        window = min(GROWTH * self.got, pace.window_bytes)
        part = min(window // pace.parts, pace.part_bytes) // BLOCK_BYTES * BLOCK_BYTES
        self.ahead = max(self.ahead, -(-self.frontier // BLOCK_BYTES) * BLOCK_BYTES)
        if not part or self.ahead >= size or self.ahead + part > self.frontier + window:
            return None
        return self.ahead, min(part, size - self.ahead)


class Allowance:
    """The bytes that are held for reads to come. Thread-safe.

    When there is no room the request is refused. The refused reader then has the one with the oldest request drop its
    parts, with no lock held.
    """

    def __init__(self, limit: int = ALLOWANCE_BYTES) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._held: dict[RangedReader, int] = {}  # in the order of the latest request

    @property
    def total(self) -> int:
        return sum(self._held.values())

    def take(self, reader: RangedReader, size: int) -> bool:
        """Whether `reader` may hold `size` bytes more."""
        with self._lock:
            if self.total + size > self._limit:
                return False
            self._held[reader] = self._held.pop(reader, 0) + size
            return True

    def give_back(self, reader: RangedReader, size: int) -> None:
        with self._lock:
            left = self._held[reader] - size
            assert left >= 0, "more was given back than was taken"
            if left:
                self._held[reader] = left
            else:
                del self._held[reader]

    def idlest(self, other_than: RangedReader) -> RangedReader | None:
        """The reader with the oldest latest request."""
        with self._lock:
            return next((reader for reader in self._held if reader is not other_than), None)


class BlockCache:
    """Blocks of files in memory, at most `max_bytes`; the least recently used go first. Thread-safe.

    A block is named by (key, version, number): a file that changes gets new names, so a block is never stale.
    """

    def __init__(self, max_bytes: int, pace: Pace) -> None:
        self.max_bytes = max_bytes
        self.pace = pace
        self.fetchers = Fetchers(pace.threads)
        self.allowance = Allowance()
        self._lock = threading.Lock()
        self._blocks: RecentBytes[tuple[str, str, int], bytes] = RecentBytes(max_bytes)

    def __len__(self) -> int:
        """How many bytes are cached."""
        return self._blocks.bytes

    def get(self, key: str, etag: str, number: int) -> bytes | None:
        with self._lock:
            return self._blocks.get((key, etag, number))

    def has(self, key: str, etag: str, number: int) -> bool:
        return (key, etag, number) in self._blocks.kept

    def put(self, key: str, etag: str, number: int, data: bytes | memoryview) -> None:
        if len(data) > self.max_bytes:
            return
        with self._lock:
            self._blocks.put((key, etag, number), bytes(data), len(data))

    def put_whole(self, key: str, etag: str, content: bytes | memoryview) -> None:
        """Keep all blocks of a version."""
        view = memoryview(content)
        for offset in range(0, len(view), BLOCK_BYTES):
            self.put(key, etag, offset // BLOCK_BYTES, view[offset : offset + BLOCK_BYTES])

    def drop(self, key: str, etag: str) -> None:
        """Let go of the blocks of a version."""
        with self._lock:
            for name in [name for name in self._blocks.kept if name[:2] == (key, etag)]:
                self._blocks.pop(name)

    def close(self) -> None:
        """End the read-ahead, and let go of the blocks."""
        self.fetchers.close()
        with self._lock:
            self._blocks.clear()


class RangedReader:
    """See the module's docstring.

    Args:
        key: of the file.
        source: where its bytes are fetched from. It is closed with the reader.
        etag: names the version, and its blocks in the cache, for readers to come as well. None where nothing names it
            surely: what is cached is this reader's alone.
        size: in bytes.
        cache: that of the remote.
    """

    def __init__(self, key: str, source: RangeSource, *, etag: str | None, size: int, cache: BlockCache) -> None:
        self.key = key
        self.size = size
        self._is_named = etag is not None
        self._version = etag or f"reader {next(_numbers)}"
        self._source = source
        self._cache = cache
        self._pace = cache.pace
        self._keeps_ahead = size <= cache.max_bytes // KEPT_SHARE
        self._lock = threading.Lock()
        self._parts: dict[int, Part] = {}  # by block: parts under way or held in memory
        self._ahead: dict[Part, Run] = {}  # of these, the ones fetched ahead, and their runs
        self._runs: list[Run] = []  # the latest first
        self._closed = False

    def read(self, offset: int, size: int) -> bytes:
        """The bytes there; fewer than `size` only at the end of the file. OSError: ESTALE, and those of the source."""
        end = min(offset + size, self.size)
        if offset >= end:
            return b""
        in_order = self._pace.threads <= 1  # what is read now comes before what is read next
        if self.size > WHOLE_BYTES and not in_order:
            self._read_ahead(offset, end)
        pieces: list[bytes | memoryview] = []
        at = offset
        while at < end:
            pieces.append(self._piece(at, end))
            at += len(pieces[-1])
        if self.size > WHOLE_BYTES and in_order:
            self._read_ahead(offset, end)
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
        self._source.close()
        if not self._is_named:
            self._cache.drop(self.key, self._version)

    # -- what is asked for ---------------------------------------------------------------------------------------

    def _piece(self, offset: int, end: int) -> bytes | memoryview:
        """The next bytes from `offset`, up to `end`: held here, cached, or from the source."""
        block = offset // BLOCK_BYTES
        with self._lock:
            part = self._parts.get(block)
        if part is None:
            cached = self._cache.get(self.key, self._version, block)
            if cached is not None:
                start = block * BLOCK_BYTES
                return memoryview(cached)[offset - start : end - start]
            part = self._part_for(block, end)
        piece = part.at(offset, min(end, part.end))
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
            part = self._part(first, max(last, block + 1), block)
            self._hold(part)
            return part

    def _part(self, first: int, last: int, block: int) -> Part:
        """A part of the blocks from `first` up to `last`, or to the next one after `block` that is held or cached."""
        until = block + 1
        while until < last and not self._has(until):
            until += 1
        offset = first * BLOCK_BYTES
        return Part(offset, min(until * BLOCK_BYTES, self.size) - offset, self._source, self._arrived)

    def _arrived(self, part: Part, is_whole: bool) -> None:
        """A part was fetched: cache it, and hold here only what was fetched ahead, and no error."""
        if is_whole and part in self._ahead and not self._keeps_ahead:
            return
        if is_whole:
            for offset in range(part.offset, part.end, BLOCK_BYTES):
                block = part.joined(offset, min(offset + BLOCK_BYTES, part.end))
                self._cache.put(self.key, self._version, offset // BLOCK_BYTES, block)
        with self._lock:
            if not is_whole or part not in self._ahead:
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
            while (wanted := run.next_part(self.size, self._pace)) is not None:
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
            part.queued = self._pace.threads == 1
            if self._pace.threads and not self._cache.fetchers.submit(partial(self._fetch_ahead, part)):
                part.drop()
        if refused and (idlest := self._cache.allowance.idlest(other_than=self)) is not None:
            idlest.drop_ahead()

    def _fetch_ahead(self, part: Part) -> None:
        began = time.monotonic()
        part.fetch_ahead()
        if self._pace.threads == 1 and time.monotonic() - began > SLOW_S:
            self._pace = self._pace._replace(part_bytes=part.size)

    def _run_of(self, offset: int, end: int) -> Run:
        """The run that this read is part of, moved on; a new one takes the place of the one unused for longest."""
        for number, run in enumerate(self._runs):
            if run.follows(offset, end):
                self._runs.insert(0, self._runs.pop(number))
                run.advance(offset, end)
                for part, owner in list(self._ahead.items()):
                    if owner is run and part.end + self._pace.part_bytes < run.frontier:
                        self._drop(part)  # it was skipped
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
        if self._has(block):
            return None
        return self._part(block, -(-(offset + size) // BLOCK_BYTES), block)

    # -- parts in memory; the lock is held -----------------------------------------------------------------------

    def _has(self, block: int) -> bool:
        return block in self._parts or self._cache.has(self.key, self._version, block)

    def _hold(self, part: Part) -> None:
        for block in range(part.offset // BLOCK_BYTES, -(-part.end // BLOCK_BYTES)):
            self._parts[block] = part

    def _drop(self, part: Part) -> None:
        if self._ahead.pop(part, None) is not None:
            part.drop()
            self._cache.allowance.give_back(self, part.size)
        for block in range(part.offset // BLOCK_BYTES, -(-part.end // BLOCK_BYTES)):
            if self._parts.get(block) is part:
                del self._parts[block]
