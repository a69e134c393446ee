"""Ranged reads of objects: the right bytes of the right version, each fetched once, far ahead of who reads in order."""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import obstore
import pytest
from eventually import eventually
from hypothesis import given, settings
from hypothesis import strategies as st
from obstore.store import LocalStore, MemoryStore
from profiles import examples

from fusebackend.backends.object_store.bucket.requests import ObjectVersion
from fusebackend.backends.object_store.remote import PACE
from fusebackend.remote.ranges import BLOCK_BYTES, WHOLE_BYTES, Allowance, BlockCache, Part, RangedReader
from fusebackend.testing.posix.case import refused

MIB = 1 << 20
DATA = random.Random(1).randbytes(20 * MIB + 77)


@pytest.fixture
def cache() -> Iterator[BlockCache]:
    cache = BlockCache(1 << 30, PACE)
    yield cache
    assert cache.allowance.total == 0, "a reader that was closed holds what was read ahead"
    cache.close()


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    obstore.put(store, "key", DATA)
    return store


class Requests:
    """The ranges that were asked for. `gate` is waited for in each request, `before` called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ranges: list[tuple[int, int]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.before: Callable[[tuple[int, int]], None] = lambda _: None
        self._get = obstore.get
        self._lock = threading.Lock()
        monkeypatch.setattr(obstore, "get", self.get)

    def get(self, store: Any, key: str, *, options: Any) -> Any:
        with self._lock:
            self.ranges.append(options["range"])
        assert self.gate.wait(30)
        self.before(options["range"])
        return self._get(store, key, options=options)

    @property
    def bytes(self) -> int:
        with self._lock:
            return sum(end - start for start, end in self.ranges)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Requests:
    return Requests(monkeypatch)


def reader_of(store: Any, cache: BlockCache, key: str = "key") -> RangedReader:
    head = obstore.head(store, key)
    etag = head["e_tag"]
    return RangedReader(key, ObjectVersion(store, key, etag), etag=etag, size=head["size"], cache=cache)


# -- the right bytes ----------------------------------------------------------------------------------------------

PLACES = st.one_of(
    st.integers(0, len(DATA) + 10),
    st.integers(0, len(DATA) // BLOCK_BYTES + 1).map(lambda block: block * BLOCK_BYTES),
    st.integers(len(DATA) - 10, len(DATA) + 10),
)
SIZES = st.one_of(st.integers(0, 5000), st.integers(0, 3 * MIB), st.just(BLOCK_BYTES))


@settings(max_examples=examples(60), deadline=None)
@given(
    reads=st.lists(st.tuples(PLACES, SIZES, st.booleans()), max_size=20), bound=st.sampled_from([0, 3 * MIB, 1 << 30])
)
def test_any_reads_give_the_bytes_of_the_object(reads: list[tuple[int, int, bool]], bound: int) -> None:
    store = MemoryStore()
    obstore.put(store, "key", DATA)
    cache = BlockCache(bound, PACE)
    reader = reader_of(store, cache)
    after = 0
    try:
        for offset, size, goes_on in reads:
            start = after if goes_on else offset
            assert reader.read(start, size) == DATA[start : start + size]
            after = start + size
    finally:
        reader.close()
        assert cache.allowance.total == 0
        cache.close()


def test_threads_that_read_at_random_and_in_order_at_once(store: MemoryStore, cache: BlockCache) -> None:
    reader = reader_of(store, cache)

    def read(number: int) -> bool:
        chance, size = random.Random(number), 128 << 10
        offsets = [chance.randrange(len(DATA)) if number % 2 else turn * size for turn in range(60)]
        return all(reader.read(offset, size) == DATA[offset : offset + size] for offset in offsets)

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(read, range(8)))
    reader.close()


def test_of_a_store_without_etags_a_reader_caches_for_itself_alone(store: MemoryStore, cache: BlockCache) -> None:
    for data in (DATA, DATA[::-1]):
        obstore.put(store, "key", data)
        reader = RangedReader("key", ObjectVersion(store, "key", None), etag=None, size=len(DATA), cache=cache)
        assert reader.read(5 * MIB, 1000) == data[5 * MIB : 5 * MIB + 1000]
        reader.close()
        assert len(cache) == 0


# -- the right version --------------------------------------------------------------------------------------------


def test_an_object_that_is_gone_is_stale(store: MemoryStore, cache: BlockCache) -> None:
    reader = reader_of(store, cache)
    obstore.delete(store, "key")
    refused(errno.ESTALE, reader.read, 0, 100)


def test_an_answer_of_another_version_is_stale_when_the_store_ignores_conditions(
    store: MemoryStore, cache: BlockCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = reader_of(store, cache)
    obstore.put(store, "key", DATA[::-1])
    get = obstore.get

    def careless(store: Any, key: str, *, options: Any) -> Any:
        return get(store, key, options={"range": options["range"]})

    monkeypatch.setattr(obstore, "get", careless)
    refused(errno.ESTALE, reader.read, 0, 100)


def test_an_error_is_told_once_and_the_next_read_tries_again(
    store: MemoryStore, cache: BlockCache, requests: Requests
) -> None:
    def fail(_: tuple[int, int]) -> None:
        raise obstore.exceptions.GenericError("HTTP error: error sending request\n\nDebug source: kind: Timeout")

    requests.before = fail
    reader = reader_of(store, cache)
    for _ in range(2):
        refused(errno.ETIMEDOUT, reader.read, 9 * MIB, 100)
    requests.before = lambda _: None
    assert reader.read(9 * MIB, 100) == DATA[9 * MIB : 9 * MIB + 100]


def test_an_error_of_what_was_read_ahead_is_forgotten(
    store: MemoryStore, cache: BlockCache, requests: Requests
) -> None:
    reader = reader_of(store, cache)
    failed = threading.Event()

    def fail_ahead(range_: tuple[int, int]) -> None:
        if range_[0]:
            failed.set()
            raise obstore.exceptions.GenericError("HTTP error: error sending request")

    requests.before = fail_ahead
    assert reader.read(0, 256 << 10) == DATA[: 256 << 10]
    assert failed.wait(30)
    eventually(lambda: not reader._ahead)
    requests.before = lambda _: None
    assert reader.read(256 << 10, 256 << 10) == DATA[256 << 10 : 512 << 10]
    reader.close()


# -- each byte once -----------------------------------------------------------------------------------------------


def test_a_small_read_fetches_its_block_and_the_next_one_there_nothing(
    store: MemoryStore, cache: BlockCache, requests: Requests
) -> None:
    reader = reader_of(store, cache)
    reader.read(5 * MIB + 4096, 4096)
    assert requests.ranges == [(5 * MIB, 5 * MIB + BLOCK_BYTES)]
    reader.read(5 * MIB + 100_000, 4096)
    assert len(requests.ranges) == 1


def test_a_small_object_is_one_request(cache: BlockCache, requests: Requests) -> None:
    store = MemoryStore()
    obstore.put(store, "small", DATA[:WHOLE_BYTES])
    reader = reader_of(store, cache, "small")
    assert b"".join(reader.read(offset, 64 << 10) for offset in range(0, WHOLE_BYTES, 64 << 10)) == DATA[:WHOLE_BYTES]
    assert requests.ranges == [(0, WHOLE_BYTES)]


def test_readers_of_one_bucket_share_what_is_cached(tmp_path: Path, cache: BlockCache, requests: Requests) -> None:
    stores = [LocalStore(tmp_path), LocalStore(tmp_path)]
    obstore.put(stores[0], "key", DATA[:MIB])
    for store in stores:
        assert reader_of(store, cache).read(MIB // 2, 100) == DATA[MIB // 2 : MIB // 2 + 100]
    assert len(requests.ranges) == 1


def test_the_cache_keeps_to_its_bound_and_lets_go_of_what_was_used_longest_ago() -> None:
    cache = BlockCache(4 * BLOCK_BYTES, PACE)
    for number in range(4):
        cache.put("key", "etag", number, b"x" * BLOCK_BYTES)
    assert cache.get("key", "etag", 0) == b"x" * BLOCK_BYTES
    cache.put("key", "etag", 4, b"y" * BLOCK_BYTES)
    assert [cache.has("key", "etag", number) for number in range(5)] == [True, False, True, True, True]
    cache.put("key", "etag", 4, b"z")
    assert len(cache) == 3 * BLOCK_BYTES + 1
    assert cache.has("key", "etag", 2), "a block was put out though the new one is smaller than the old"
    cache.put("key", "other", 0, b"x" * (4 * BLOCK_BYTES + 1))
    assert len(cache) == 3 * BLOCK_BYTES + 1, "a block larger than the cache is not kept"
    cache.close()
    assert (len(cache), cache.get("key", "etag", 0)) == (0, None)


class _ShortSource:
    """Its file has become shorter: it has two bytes of any range."""

    def fetch(self, offset: int, size: int, add: Callable[[memoryview], None]) -> None:
        add(memoryview(b"ab"))

    def close(self) -> None: ...


def test_fewer_bytes_than_were_asked_for_are_another_version() -> None:
    part = Part(0, 3, _ShortSource(), lambda part, is_whole: None)
    assert part.joined(0, 2) == b"ab"
    refused(errno.ESTALE, part.at, 2, 3)


def test_threads_that_want_one_block_at_once_fetch_it_once(
    store: MemoryStore, cache: BlockCache, requests: Requests
) -> None:
    reader = reader_of(store, cache)
    requests.gate.clear()
    with ThreadPoolExecutor(8) as threads:
        reads = [threads.submit(reader.read, 7 * MIB + 100 * number, 100) for number in range(8)]
        eventually(lambda: bool(requests.ranges))
        requests.gate.set()
        for number, read in enumerate(reads):
            assert read.result(30) == DATA[7 * MIB + 100 * number :][:100]
    assert len(requests.ranges) == 1


@pytest.mark.parametrize("size", [4 << 10, 128 << 10, MIB])
def test_a_whole_file_in_order_is_fetched_once(
    store: MemoryStore, cache: BlockCache, requests: Requests, size: int
) -> None:
    reader = reader_of(store, cache)
    for offset in range(0, len(DATA), size):
        assert reader.read(offset, size) == DATA[offset : offset + size]
    reader.close()
    eventually(lambda: requests.bytes >= len(DATA))
    assert requests.bytes <= len(DATA) + 2 * PACE.part_bytes


def test_requests_that_arrive_in_another_order_are_one_reader(
    store: MemoryStore, cache: BlockCache, requests: Requests
) -> None:
    reader = reader_of(store, cache)
    offsets = list(range(0, len(DATA), 128 << 10))
    for first in range(0, len(offsets), 4):
        group = offsets[first : first + 4]
        random.Random(first).shuffle(group)
        for offset in group:
            assert reader.read(offset, 128 << 10) == DATA[offset : offset + (128 << 10)]
    reader.close()
    largest = max(end - start for start, end in requests.ranges)
    assert largest >= 2 * MIB, "these reads were not recognised as one that goes on"
    assert requests.bytes <= len(DATA) + 2 * PACE.part_bytes


# -- ahead --------------------------------------------------------------------------------------------------------


def test_who_reads_in_order_finds_the_next_parts_under_way_at_once(
    store: MemoryStore, cache: BlockCache, requests: Requests
) -> None:
    reader = reader_of(store, cache)
    for offset in range(0, 3 * MIB, 256 << 10):
        reader.read(offset, 256 << 10)
    eventually(lambda: max(end for _, end in requests.ranges) >= 8 * MIB)
    reader.close()


def test_reads_at_random_fetch_nothing_ahead(store: MemoryStore, cache: BlockCache, requests: Requests) -> None:
    reader = reader_of(store, cache)
    offsets = random.Random(5).sample(range(1, len(DATA) // BLOCK_BYTES), 40)
    for block in offsets:
        reader.read(block * BLOCK_BYTES + 5000, 4096)
    reader.close()
    assert requests.bytes == 40 * BLOCK_BYTES


def test_one_reader_that_hangs_does_not_keep_another_from_reading(
    store: MemoryStore, cache: BlockCache, requests: Requests
) -> None:
    def hang(range_: tuple[int, int]) -> None:
        if range_[0] == 4 * MIB:
            assert released.wait(30)

    released = threading.Event()
    requests.before = hang
    reader = reader_of(store, cache)
    with ThreadPoolExecutor(1) as threads:
        hung = threads.submit(reader.read, 4 * MIB, 100)
        eventually(lambda: bool(requests.ranges))
        assert reader.read(11 * MIB, 100) == DATA[11 * MIB : 11 * MIB + 100]
        released.set()
        assert hung.result(30) == DATA[4 * MIB : 4 * MIB + 100]


def test_a_file_too_long_for_the_cache_leaves_it_alone(store: MemoryStore, requests: Requests) -> None:
    cache = BlockCache(8 * len(DATA) - 8, PACE)
    reader = reader_of(store, cache)
    for offset in range(0, len(DATA), MIB):
        assert reader.read(offset, MIB) == DATA[offset : offset + MIB]
    assert len(cache) <= BLOCK_BYTES + MIB  # what was read before it was clear that this goes on
    reader.close()
    cache.close()


def test_close_ends_what_is_fetched_ahead(store: MemoryStore, cache: BlockCache, requests: Requests) -> None:
    reader = reader_of(store, cache)
    reader.read(0, MIB)
    reader.close()
    assert cache.allowance.total == 0
    assert reader.read(MIB, 10) == DATA[MIB : MIB + 10]
    assert cache.allowance.total == 0, "a closed reader reads ahead"


def test_readers_together_keep_to_their_allowance(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, cache: BlockCache
) -> None:
    cache.allowance = Allowance(4 * MIB)
    idle, busy = reader_of(store, cache), reader_of(store, cache)
    for offset in range(0, 2 * MIB, 256 << 10):
        idle.read(offset, 256 << 10)
    held = cache.allowance.total
    assert 0 < held <= 4 * MIB
    for offset in range(0, len(DATA), 256 << 10):
        assert busy.read(offset, 256 << 10) == DATA[offset : offset + (256 << 10)]
        assert cache.allowance.total <= 4 * MIB
    assert idle._ahead == {}, "who reads no more keeps the memory of who does"
    idle.close()
    busy.close()


def test_what_is_given_up_is_read_again(store: MemoryStore, cache: BlockCache) -> None:
    reader = reader_of(store, cache)
    for offset in range(0, len(DATA), 256 << 10):
        assert reader.read(offset, 256 << 10) == DATA[offset : offset + (256 << 10)]
        if offset % MIB == 0:
            reader.drop_ahead()
    reader.close()


def test_content_that_came_in_another_way_is_not_fetched_again(cache: BlockCache, requests: Requests) -> None:
    store = MemoryStore()
    obstore.put(store, "key", DATA[:MIB])
    cache.put_whole("key", obstore.head(store, "key")["e_tag"], DATA[:MIB])
    assert reader_of(store, cache).read(300_000, MIB) == DATA[300_000:MIB]
    assert requests.ranges == []
