"""The block cache: never a wrong byte, never more than its bound, nothing left behind."""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from profiles import examples

from fusebackend.backends.object_store.reading import disk_cache as blockcache
from fusebackend.backends.object_store.reading.disk_cache import BlockCache

BOUND = 256 << 10


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[BlockCache]:
    cache = BlockCache(str(tmp_path), BOUND)
    yield cache
    cache.close()


def files_of(cache: BlockCache) -> list[Path]:
    return sorted(path for path in Path(cache.directory).rglob("*") if path.is_file())


def disk_bytes(cache: BlockCache) -> int:
    return sum(-(-path.stat().st_size // 4096) * 4096 for path in files_of(cache))


def test_a_block_is_read_as_it_was_written(cache: BlockCache) -> None:
    tag = cache.tag("bucket", "key", "etag")
    cache.write(tag, 7, b"0123456789")
    assert cache.has(tag, 7)
    assert cache.read(tag, 7, 0, 100) == b"0123456789"
    assert cache.read(tag, 7, 3, 4) == b"3456"
    assert cache.read(tag, 8, 0, 1) is None
    assert not cache.has(tag, 8)


def test_another_store_key_or_etag_is_another_object(cache: BlockCache) -> None:
    parts = [("a", "bc", "d"), ("ab", "c", "d"), ("a", "b", "cd"), ("a", "bc", "e"), ("", "abc", "d")]
    assert len({cache.tag(*names) for names in parts}) == len(parts)


def test_no_text_of_a_key_is_on_the_disk_and_only_the_owner_may_look(cache: BlockCache) -> None:
    cache.write(cache.tag("bucket", "secret-plans.txt", "etag"), 0, b"x")
    for path in Path(cache.directory).rglob("*"):
        assert "secret" not in path.name and "bucket" not in path.name
        assert path.stat().st_mode & 0o077 == 0
    assert Path(cache.directory).stat().st_mode & 0o777 == 0o700


def test_the_blocks_of_another_process_are_found(cache: BlockCache, tmp_path: Path) -> None:
    tag = cache.tag("bucket", "key", "etag")
    cache.write(tag, 0, b"hello")
    other = BlockCache(str(tmp_path), BOUND)
    assert other.read(tag, 0, 1, 3) == b"ell"
    other.close()
    assert cache.read(tag, 0, 0, 5) == b"hello"  # a shared directory outlives each who uses it


@pytest.mark.parametrize("damage", ["empty", "short", "long", "flipped", "garbage", "another block"])
def test_what_a_crash_left_is_removed_and_not_believed(tmp_path: Path, damage: str) -> None:
    first = BlockCache(str(tmp_path), BOUND)
    tag = first.tag("bucket", "key", "etag")
    first.write(tag, 0, b"good data")
    path = files_of(first)[0]
    if damage == "another block":
        first.write(tag, 1, b"other one")
        content = next(other for other in files_of(first) if other != path).read_bytes()
    else:
        good = path.read_bytes()
        content = {
            "empty": b"",
            "short": good[:-1],
            "long": good + b"x",
            "flipped": good[:-1] + bytes([good[-1] ^ 1]),
            "garbage": os.urandom(len(good)),
        }[damage]
    path.write_bytes(content)
    second = BlockCache(str(tmp_path), BOUND)
    assert second.read(tag, 0, 0, 9) is None
    assert not path.exists()
    second.write(tag, 0, b"good data")
    assert second.read(tag, 0, 0, 9) == b"good data"


def test_files_that_a_crash_left_unfinished_are_removed_when_they_are_old(cache: BlockCache, tmp_path: Path) -> None:
    old, new = Path(cache.directory, "aa.tmp"), Path(cache.directory, "bb.tmp")
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    BlockCache(str(tmp_path), BOUND).close()
    assert not old.exists() and new.exists()


def test_the_bound_holds_and_what_was_used_lately_stays(cache: BlockCache) -> None:
    tag = cache.tag("bucket", "key", "etag")
    block = bytes(20_000)
    for number in range(100):
        cache.write(tag, number, block)
        assert cache.read(tag, 0, 0, 1) == b"\0", "a block that is used all the time was removed"
        assert disk_bytes(cache) <= BOUND
    assert cache.read(tag, 99, 0, 1) == b"\0"
    assert cache.read(tag, 1, 0, 1) is None


def test_processes_that_share_a_directory_keep_its_bound_together(tmp_path: Path) -> None:
    caches = [BlockCache(str(tmp_path), BOUND) for _ in range(3)]
    tag = caches[0].tag("bucket", "key", "etag")
    for number in range(60):
        caches[number % 3].write(tag, number, bytes(8_000))
        assert disk_bytes(caches[0]) <= BOUND + 3 * (BOUND // 16 + 8192)


def test_a_block_that_is_larger_than_the_cache_is_not_kept(cache: BlockCache) -> None:
    tag = cache.tag("bucket", "key", "etag")
    cache.write(tag, 0, bytes(100))
    cache.write(tag, 1, bytes(BOUND + 1))
    assert cache.read(tag, 1, 0, 1) is None
    assert cache.read(tag, 0, 0, 1) == b"\0"


def test_a_cache_of_no_bytes_keeps_nothing() -> None:
    cache = BlockCache(None, 0)
    cache.write(cache.tag("a", "b", "c"), 0, b"x")
    assert cache.read(cache.tag("a", "b", "c"), 0, 0, 1) is None
    cache.close()


def test_a_disk_that_fails_costs_nothing_but_a_line_in_the_log(
    cache: BlockCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(file: int, pieces: list[bytes]) -> int:
        raise OSError(28, "No space left on device")

    tag = cache.tag("bucket", "key", "etag")
    monkeypatch.setattr(os, "writev", full)
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            cache.write(tag, number, b"x")
    assert cache.read(tag, 0, 0, 1) is None
    assert [record.message for record in caplog.records] == [
        f"the block cache in {cache.directory} does not work: [Errno 28] No space left on device"
    ]
    assert files_of(cache) == []


def test_a_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "blocks").symlink_to("/tmp")
    with pytest.raises(PermissionError, match="no directory of this user"):
        BlockCache(str(tmp_path), BOUND)


def test_a_private_directory_is_removed_by_close() -> None:
    cache = BlockCache(None, BOUND)
    tag = cache.tag("bucket", "key", "etag")
    cache.write(tag, 0, b"x")
    directory = Path(cache.directory)
    assert directory.stat().st_mode & 0o777 == 0o700
    cache.close()
    assert not directory.exists()
    cache.write(tag, 0, b"x")
    assert cache.read(tag, 0, 0, 1) is None and not directory.exists()


def test_the_private_directory_of_a_killed_process_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "from fusebackend.backends.object_store.reading.disk_cache import BlockCache\n"
        "cache = BlockCache(None, 1000000)\n"
        "cache.write(cache.tag('a', 'b', 'c'), 0, b'x')\n"
        "print(cache.directory, flush=True)\n"
        "input()\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    with process:
        assert process.stdout is not None
        theirs = Path(process.stdout.readline().strip())
        assert theirs.parent == tmp_path
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        BlockCache(None, BOUND).close()
        assert theirs.exists(), "the directory of a live process was removed"
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    BlockCache(None, BOUND).close()
    assert list(tmp_path.iterdir()) == []


def test_threads_and_two_caches_on_one_directory_never_see_a_wrong_byte(tmp_path: Path) -> None:
    caches = [BlockCache(str(tmp_path), BOUND) for _ in range(2)]
    tag = caches[0].tag("bucket", "key", "etag")
    wrong: list[object] = []

    def work(number: int) -> None:
        chance = random.Random(number)
        cache = caches[number % 2]
        try:
            for _ in range(150):
                block = chance.randrange(40)
                content = bytes([block]) * (1000 + 300 * block)
                offset = chance.randrange(len(content))
                found = cache.read(tag, block, offset, 100)
                if found is None:
                    cache.write(tag, block, content)
                elif found != content[offset : offset + 100]:
                    wrong.append((block, offset, found))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []
    assert disk_bytes(caches[0]) <= BOUND + 8 * (BOUND // 16)


def test_a_block_that_is_offered_can_be_read_at_once_and_comes_to_the_disk(cache: BlockCache) -> None:
    tag = cache.tag("bucket", "key", "etag")
    assert not cache.has(tag, 0)
    cache.offer(tag, 0, memoryview(b"0123456789"))
    assert cache.has(tag, 0)
    assert cache.read(tag, 0, 2, 3) == b"234"
    deadline = time.monotonic() + 30
    while not files_of(cache):
        assert time.monotonic() < deadline
        time.sleep(0.002)
    assert cache.read(tag, 0, 2, 100) == b"23456789"


def test_what_the_disk_does_not_keep_up_with_is_not_kept(cache: BlockCache, monkeypatch: pytest.MonkeyPatch) -> None:
    tag = cache.tag("bucket", "key", "etag")
    disk = threading.Event()
    write = BlockCache.write

    def slow(self: BlockCache, tag: str, number: int, data: bytes) -> None:
        assert disk.wait(30)
        write(self, tag, number, data)

    monkeypatch.setattr(blockcache, "PENDING_BYTES", 25_000)
    monkeypatch.setattr(BlockCache, "write", slow)
    for number in range(4):
        cache.offer(tag, number, bytes(10_000))
    assert [cache.has(tag, number) for number in range(4)] == [True, True, False, False]
    disk.set()
    deadline = time.monotonic() + 30
    while len(files_of(cache)) < 2 or cache._pending:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    cache.offer(tag, 2, bytes(10_000))
    assert cache.has(tag, 2)


def test_blocks_that_wait_for_the_disk_go_with_the_cache() -> None:
    cache = BlockCache(None, BOUND)
    for number in range(200):
        cache.offer(cache.tag("bucket", "key", "etag"), number, bytes(100))
    cache.close()
    assert not Path(cache.directory).exists()
    assert cache._pending == {}


class CacheModel(RuleBasedStateMachine):
    """Any order of writes, reads, crashes that damage files, and restarts: what is read is what was written."""

    tags = st.sampled_from(["a", "b"])
    numbers = st.integers(0, 5)

    @initialize()
    def start(self) -> None:
        self.place = tempfile.TemporaryDirectory()
        self.cache = BlockCache(self.place.name, 40_000)
        self.written: dict[tuple[str, int], bytes] = {}

    def content(self, tag: str, number: int) -> bytes:
        return self.written.setdefault((tag, number), random.Random(f"{tag}{number}").randbytes(3000 * number + 5))

    @rule(tag=tags, number=numbers)
    def write(self, tag: str, number: int) -> None:
        content = self.content(tag, number)
        self.cache.write(self.cache.tag("s", tag, "1"), number, content)
        assert self.cache.read(self.cache.tag("s", tag, "1"), number, 0, len(content)) == content

    @rule(tag=tags, number=numbers, offset=st.integers(0, 20_000), size=st.integers(0, 20_000))
    def read(self, tag: str, number: int, offset: int, size: int) -> None:
        found = self.cache.read(self.cache.tag("s", tag, "1"), number, offset, size)
        assert found is None or found == self.written[tag, number][offset : offset + size]

    @rule(tag=tags, number=numbers)
    def read_what_another_version_has(self, tag: str, number: int) -> None:
        assert self.cache.read(self.cache.tag("s", tag, "2"), number, 0, 10) is None

    @rule(choice=st.randoms(use_true_random=False))
    def crash(self, choice: random.Random) -> None:
        for path in files_of(self.cache):
            if choice.random() < 0.5:
                content = path.read_bytes()
                path.write_bytes(content[: choice.randint(0, len(content))])
        self.cache = BlockCache(self.place.name, 40_000)

    @rule()
    def restart(self) -> None:
        self.cache.close()
        self.cache = BlockCache(self.place.name, 40_000)

    @invariant()
    def the_bound_holds(self) -> None:
        assert disk_bytes(self.cache) <= 40_000

    def teardown(self) -> None:
        if hasattr(self, "place"):
            self.cache.close()
            self.place.cleanup()


CacheModel.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=30, deadline=None)
TestCacheModel = CacheModel.TestCase
