"""`write_back`: what was closed is put a while later; nothing is lost meanwhile that was not to be lost."""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import obstore
import pytest
from eventually import eventually
from objects import content, keys, names
from obstore.store import MemoryStore

from fusebackend.backends.object_store import conflicts as uploads
from fusebackend.backends.object_store import delayed_put as writeback
from fusebackend.backends.object_store.backend import ObjectStoreBackend
from fusebackend.backends.object_store.delayed_put import WriteBack
from fusebackend.backends.object_store.reading import fetchers
from fusebackend.backends.object_store.volume import ObjectStoreVolume
from fusebackend.base.waiting import WouldWait, at_once
from fusebackend.protocol import ROOT_NODE, AttrChanges, Caller

ME = Caller(os.geteuid(), os.getegid())
RW, READ = os.O_RDWR, os.O_RDONLY

LONG_S, SHORT_S = 3600.0, 0.05
"""Put by nobody unless it is asked for; put while the test looks on."""

LIMIT_S = 20.0


@pytest.fixture
def store():
    return MemoryStore()


@pytest.fixture
def volume(store):
    """One that puts nothing by itself while the test runs."""
    with contextlib.closing(ObjectStoreVolume(store, ttl_s=0.0, write_back_s=LONG_S)) as volume:
        yield volume


@pytest.fixture
def hasty(store):
    with contextlib.closing(ObjectStoreVolume(store, ttl_s=0.0, write_back_s=SHORT_S)) as volume:
        yield volume


def make(volume, name, content, parent=ROOT_NODE):
    node = volume.create(parent, name, 0o644, RW, ME).node
    volume.hold(node)
    volume.write(node, 0, content)
    volume.flush(node)
    volume.release(node, RW)
    return node


def change(volume, node, content):
    volume.open(node, RW)
    volume.write(node, 0, content)
    volume.flush(node)
    volume.release(node, RW)


def read(volume, node):
    volume.open(node, READ)
    try:
        return volume.read(node, 0, 1 << 20)
    finally:
        volume.release(node, READ)


def wait_until(condition):
    eventually(condition, LIMIT_S)


class Refusal:
    """Every put is refused while it is `on`."""

    def __init__(self):
        self.on = True
        self.asked = 0
        self._put = uploads.put

    def put(self, *args, **kwargs):
        self.asked += 1
        if self.on:
            raise OSError(errno.EACCES, "refused")
        return self._put(*args, **kwargs)


@pytest.fixture
def refusal(monkeypatch):
    refusal = Refusal()
    monkeypatch.setattr(uploads, "put", refusal.put)
    return refusal


# -- what is seen ----------------------------------------------------------------------------------------------


def test_a_closed_file_is_here_at_once_and_in_the_store_later(store, hasty):
    node = make(hasty, b"a", b"one")
    assert read(hasty, node) == b"one"
    wait_until(lambda: keys(store) == ["a"])
    assert content(store, "a") == b"one"
    wait_until(lambda: hasty.unstored == 0)
    change(hasty, node, b"two")
    wait_until(lambda: content(store, "a") == b"two")


def test_until_then_nothing_is_sent(store, volume):
    node = make(volume, b"a", b"one")
    change(volume, node, b"two")
    volume.setattr(node, AttrChanges(mode=0o600))
    assert volume.unstored == 1
    assert keys(store) == []
    assert names(volume) == [b"a"]
    assert read(volume, node) == b"two"
    assert volume.getattr(node).mode & 0o777 == 0o600
    volume.expire()
    assert volume.lookup(ROOT_NODE, b"a").size == 3


def test_fsync_puts_a_file_and_that_of_a_directory_what_waits_in_it(store, volume):
    directory = volume.mkdir(ROOT_NODE, b"d", 0o755, ME).node
    make(volume, b"x", b"x", directory)
    make(volume, b"y", b"y", directory)
    volume.fsync(make(volume, b"a", b"one"))
    assert "a" in keys(store)
    assert "d/x" not in keys(store)
    volume.fsync(directory)
    assert {"d/x", "d/y"} < set(keys(store))
    assert volume.unstored == 0


def test_sync_and_close_put_everything(store):
    volume = ObjectStoreVolume(store, ttl_s=0.0, write_back_s=LONG_S)
    for number in range(40):
        make(volume, b"s%02d" % number, b"x")
    volume.sync()
    assert len(keys(store)) == 40
    for number in range(40):
        make(volume, b"c%02d" % number, b"x")
    volume.close()
    assert len(keys(store)) == 80


def test_what_is_renamed_or_deleted_meanwhile_is_sent_once_or_never(volume, store):
    make(volume, b"temporary", b"kept")
    volume.rename(ROOT_NODE, b"temporary", ROOT_NODE, b"final")
    node = make(volume, b"gone", b"gone")
    volume.unlink(ROOT_NODE, b"gone")
    volume.forget([node])
    assert keys(store) == []
    assert volume.unstored == 1
    volume.sync()
    assert keys(store) == ["final"]
    assert content(store, "final") == b"kept"


def test_a_waiting_file_replaces_one_that_waits_and_one_that_is_stored(volume, store):
    make(volume, b"old", b"old")
    make(volume, b"new", b"new")
    volume.rename(ROOT_NODE, b"new", ROOT_NODE, b"old")
    assert names(volume) == [b"old"]
    volume.sync()
    assert keys(store) == ["old"]
    make(volume, b"newer", b"newer")
    volume.rename(ROOT_NODE, b"newer", ROOT_NODE, b"old")
    volume.sync()
    assert keys(store) == ["old"]
    assert content(store, "old") == b"newer"


def test_a_directory_moves_with_what_waits_in_it(volume, store):
    directory = volume.mkdir(ROOT_NODE, b"d", 0o755, ME).node
    make(volume, b"x", b"x", directory)
    volume.rename(ROOT_NODE, b"d", ROOT_NODE, b"e")
    volume.sync()
    assert content(store, "e/x") == b"x"
    assert not any(key.startswith("d/") for key in keys(store))


def test_a_directory_is_not_empty_while_a_file_waits_in_it(volume):
    directory = volume.mkdir(ROOT_NODE, b"d", 0o755, ME).node
    make(volume, b"x", b"x", directory)
    with pytest.raises(OSError, match="not empty"):
        volume.rmdir(ROOT_NODE, b"d")


def test_a_directory_of_others_stays_when_only_what_waits_is_left_in_it(store, volume):
    store.put("theirs/x", b"x")
    directory = volume.lookup(ROOT_NODE, b"theirs").node
    make(volume, b"waits", b"w", directory)
    volume.unlink(directory, b"x")
    volume.rename(directory, b"waits", ROOT_NODE, b"moved")
    assert names(volume) == [b"moved", b"theirs"]
    assert names(volume, directory) == []


def test_a_directory_that_others_emptied_stays_while_files_wait_in_it(store, volume):
    store.put("theirs/deep/x", b"x")
    above = volume.lookup(ROOT_NODE, b"theirs").node
    directory = volume.lookup(above, b"deep").node
    volume.lookup(directory, b"x")
    make(volume, b"waits", b"w", directory)
    store.delete("theirs/deep/x")
    assert names(volume) == [b"theirs"]
    assert names(volume, above) == [b"deep"]
    assert names(volume, directory) == [b"waits"]
    with pytest.raises(OSError, match="not empty"):
        volume.rmdir(ROOT_NODE, b"theirs")
    volume.sync()
    assert content(store, "theirs/deep/waits") == b"w"


def test_a_mode_that_is_set_while_the_file_is_put_is_kept(store, volume, monkeypatch):
    """The put ends between the look whether the change must wait and the change."""
    node = make(volume, b"a", b"x")

    class Gate:
        def passing(self):
            with ThreadPoolExecutor(1) as thread:
                thread.submit(volume.fsync, node).result()
            return contextlib.nullcontext()

    monkeypatch.setattr(volume, "_gate", Gate())
    with pytest.raises(WouldWait):
        at_once(functools.partial(volume.setattr, node, AttrChanges(mode=0o600)))
    volume.setattr(node, AttrChanges(mode=0o600))
    assert int(obstore.get(store, "a").attributes["mode"]) & 0o777 == 0o600


def test_a_file_that_is_being_written_again_is_put_when_that_is_closed(store, volume):
    node = make(volume, b"a", b"whole")
    entry = volume._tree.entry(node)
    closed = entry.version
    volume.open(node, RW)
    volume.write(node, 0, b"half")
    assert not volume._files._put_idle(entry, closed)
    assert keys(store) == [], "a version that nobody has closed"
    volume.flush(node)
    volume.release(node, RW)
    assert volume._files._put_idle(entry, entry.version)
    assert content(store, "a") == b"halfe"


def test_a_reader_keeps_nothing_from_being_put(store, hasty):
    node = make(hasty, b"a", b"whole")
    hasty.open(node, READ)
    wait_until(lambda: keys(store) == ["a"])
    assert hasty.read(node, 0, 10) == b"whole"
    hasty.release(node, READ)


def test_the_other_face_finds_it_and_puts_at_once(store):
    with ObjectStoreBackend(store, ttl=0, write_back=LONG_S) as backend:
        make(backend.volume, b"a", b"one two\n")
        assert "one two" in backend.read("/a")
        assert keys(store) == []
        assert backend.edit("/a", "two", "three").error is None
        assert content(store, "a") == b"one three\n"
        assert backend.write("/b", "b").error is None
        assert keys(store) == ["a", "b"]


def test_who_only_reads_puts_nothing_off(store):
    with contextlib.closing(ObjectStoreVolume(store, ttl_s=0.0, write_back_s=0.3)) as volume:
        node = make(volume, b"a", b"x")
        limit = time.monotonic() + LIMIT_S
        while not keys(store):
            assert time.monotonic() < limit, "readers keep it out of the store"
            volume.open(node, READ)
            volume.flush(node)
            volume.release(node, READ)
            time.sleep(0.05)


def test_a_file_that_is_cut_while_it_is_read_is_put(store, hasty):
    node = make(hasty, b"a", b"closed and due")
    hasty.open(node, READ)
    hasty.setattr(node, AttrChanges(size=6))
    wait_until(lambda: keys(store) == ["a"] and content(store, "a") == b"closed")
    hasty.release(node, READ)


def test_a_path_that_is_cut_waits_as_well(store, volume):
    node = make(volume, b"a", b"precious")
    volume.fsync(node)
    volume.setattr(node, AttrChanges(size=4))
    assert content(store, "a") == b"precious"
    assert read(volume, node) == b"prec"
    volume.sync()
    assert content(store, "a") == b"prec"


def test_what_is_written_while_a_put_waits_for_a_rename_is_not_put_with_it(store, volume):
    node = make(volume, b"a", b"whole")
    entry = volume._tree.entry(node)
    with ThreadPoolExecutor(1) as thread:
        with volume._gate.alone():
            put = thread.submit(volume._files._put_idle, entry, entry.version)
            volume.open(node, RW)
            volume.write(node, 0, b"ha")
        assert put.result() is False
    assert keys(store) == []
    volume.release(node, RW)
    volume.sync()
    assert content(store, "a") == b"haole"


def test_a_directory_moves_in_the_time_of_some_requests(store, volume, monkeypatch):
    """Not one after the other, for whoever else writes waits meanwhile."""
    directory = volume.mkdir(ROOT_NODE, b"d", 0o755, ME).node
    for number in range(40):
        make(volume, b"%d" % number, b"x", directory)
    at_once, most, guard, put = 0, 0, threading.Lock(), uploads.put

    def slow(*args, **kwargs):
        nonlocal at_once, most
        with guard:
            at_once += 1
            most = max(most, at_once)
        time.sleep(0.01)
        try:
            return put(*args, **kwargs)
        finally:
            with guard:
                at_once -= 1

    monkeypatch.setattr(uploads, "put", slow)
    volume.rename(ROOT_NODE, b"d", ROOT_NODE, b"e")
    assert most > 4
    assert len([key for key in keys(store) if key.startswith("e/")]) == 41


# -- bounds ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bound", "value"), [("MOST_FILES", 2), ("MOST_BYTES", 25)])
def test_beyond_the_bound_close_waits(store, volume, monkeypatch, bound, value):
    monkeypatch.setattr(writeback, bound, value)
    for name in (b"a", b"b", b"c"):
        make(volume, name, b"x" * 10)
    assert keys(store) == ["c"]
    assert volume.unstored == 2
    volume.sync()
    make(volume, b"d", b"x")
    assert volume.unstored <= 1


@pytest.mark.parametrize("end", ["unlink", "fsync"])
def test_what_was_deleted_or_synced_makes_room(store, volume, monkeypatch, end):
    monkeypatch.setattr(writeback, "MOST_FILES", 3)
    for number in range(9):
        node = make(volume, b"%d" % number, b"x")
        if end == "unlink":
            volume.unlink(ROOT_NODE, b"%d" % number)
        else:
            volume.fsync(node)
    before = keys(store)
    make(volume, b"last", b"x")
    assert keys(store) == before
    assert volume.unstored == 1


def test_a_put_that_fails_beyond_the_bound_is_tried_again(store, hasty, refusal, monkeypatch):
    monkeypatch.setattr(writeback, "MOST_FILES", 0)
    monkeypatch.setattr(writeback, "RETRY_S", SHORT_S)
    node = hasty.create(ROOT_NODE, b"a", 0o644, RW, ME).node
    hasty.hold(node)
    hasty.write(node, 0, b"one")
    with pytest.raises(PermissionError):
        hasty.flush(node)
    hasty.release(node, RW)
    assert hasty.unstored == 1
    refusal.on = False
    wait_until(lambda: keys(store) == ["a"])
    wait_until(lambda: hasty.unstored == 0)


def test_what_waits_no_more_makes_room(store, monkeypatch):
    monkeypatch.setattr(writeback, "MOST_BYTES", 25)
    with contextlib.closing(ObjectStoreVolume(store, ttl_s=0.0, write_back_s=SHORT_S)) as volume:
        for number in range(30):
            make(volume, b"%d" % number, b"x" * 10)
        wait_until(lambda: volume.unstored == 0)
        wait_until(lambda: volume._files._write_back._total_bytes == 0)
    assert len(keys(store)) == 30


# -- failures --------------------------------------------------------------------------------------------------


def test_a_put_that_fails_is_tried_again_and_said_once(store, hasty, refusal, monkeypatch, caplog):
    monkeypatch.setattr(writeback, "RETRY_S", SHORT_S)
    node = make(hasty, b"a", b"one")
    wait_until(lambda: refusal.asked > 3)
    assert hasty.unstored == 1
    assert read(hasty, node) == b"one"
    with pytest.raises(PermissionError):
        hasty.fsync(node)
    refusal.on = False
    wait_until(lambda: hasty.unstored == 0)
    assert content(store, "a") == b"one"
    assert len([record for record in caplog.records if "tried again" in record.message]) == 1


def test_a_conflict_keeps_both(store, hasty, caplog):
    node = make(hasty, b"a", b"first")
    wait_until(lambda: hasty.unstored == 0)
    heard = []
    hasty.subscribe(heard.append)
    with contextlib.closing(ObjectStoreVolume(store, ttl_s=0.0)) as other:
        hasty.open(node, RW)
        hasty.write(node, 0, b"ours!")
        change(other, other.lookup(ROOT_NODE, b"a").node, b"their")
        with caplog.at_level(logging.ERROR):
            hasty.flush(node)
            hasty.release(node, RW)
            wait_until(lambda: len(keys(store)) == 2)
    conflict = next(key for key in keys(store) if key != "a")
    assert conflict.startswith("a.conflict-")
    assert (content(store, "a"), content(store, conflict)) == (b"their", b"ours!")
    wait_until(lambda: hasty.unstored == 0)
    wait_until(lambda: [change.node for change in heard] == [node])
    assert read(hasty, hasty.lookup(ROOT_NODE, b"a").node) == b"their"


class Lost:
    """Puts arrive, and the answers of the next `count` are lost."""

    def __init__(self, count):
        self.count = count
        self._put = uploads.put

    def put(self, *args, **kwargs):
        answer = self._put(*args, **kwargs)
        if self.count:
            self.count -= 1
            raise OSError(errno.ETIMEDOUT, "lost")
        return answer


@pytest.fixture
def lost(monkeypatch, volume, store):
    """A file `a` that has arrived, and seems not to have."""
    lost = Lost(1)
    monkeypatch.setattr(uploads, "put", lost.put)
    node = make(volume, b"a", b"first\n")
    with pytest.raises(TimeoutError):
        volume.fsync(node)
    assert keys(store) == ["a"]
    return node


def test_after_a_lost_answer_a_rename_leaves_nothing_behind(store, volume, lost):
    volume.rename(ROOT_NODE, b"a", ROOT_NODE, b"b")
    volume.sync()
    assert keys(store) == ["b"]


def test_after_a_lost_answer_what_is_deleted_stays_so(store, volume, lost):
    volume.unlink(ROOT_NODE, b"a")
    volume.sync()
    assert keys(store) == []


def test_after_a_lost_answer_other_bytes_are_no_conflict(store, volume, lost):
    change(volume, lost, b"other\n")
    volume.sync()
    assert keys(store) == ["a"]
    assert content(store, "a") == b"other\n"


def test_after_a_lost_answer_nothing_is_appended_twice(store, volume, lost):
    volume.open(lost, os.O_WRONLY | os.O_APPEND)
    volume.append(lost, b"second\n")
    volume.flush(lost)
    volume.release(lost, os.O_WRONLY | os.O_APPEND)
    volume.sync()
    assert keys(store) == ["a"]
    assert content(store, "a") == b"first\nsecond\n"


def test_a_conflict_is_told_to_who_has_the_file_open(store, hasty, caplog):
    node = make(hasty, b"a", b"first")
    wait_until(lambda: hasty.unstored == 0)
    hasty.open(node, RW)
    hasty.write(node, 0, b"ours!")
    store.put("a", b"their")
    hasty.flush(node)  # of a descriptor that a child had
    wait_until(lambda: len(keys(store)) == 2)
    wait_until(lambda: hasty._tree.entry(node).poisoned)
    for told in (lambda: hasty.fsync(node), lambda: hasty.flush(node)):
        with pytest.raises(OSError) as caught:
            told()
        assert caught.value.errno == errno.ESTALE
    hasty.release(node, RW)


def test_closing_the_volume_says_what_could_not_be_stored(store, refusal, caplog):
    volume = ObjectStoreVolume(store, ttl_s=0.0, write_back_s=LONG_S)
    make(volume, b"a", b"one")
    with pytest.raises(PermissionError):
        volume.close()
    assert "a could not be stored" in caplog.text


# -- the queue -------------------------------------------------------------------------------------------------


class Waiting:
    """As much of an entry as the queue knows."""

    def __init__(self, key, size=1):
        self.key, self.size, self.version, self.dirty = key, size, 0, True


@contextlib.contextmanager
def queue_of(after_s, put):
    queue = WriteBack(after_s, put)
    try:
        yield queue
    finally:
        queue.stop()


def test_each_is_put_when_it_is_due_whatever_failed_before(monkeypatch):
    monkeypatch.setattr(writeback, "RETRY_S", LONG_S)
    put = []

    def attempt(entry, version):
        put.append((entry.key, version))
        if entry.key == "bad":
            raise OSError(errno.EIO, "no")
        entry.dirty = False
        return True

    with queue_of(SHORT_S, attempt) as queue:
        bad, good = Waiting("bad"), Waiting("good")
        assert queue.take(bad)
        wait_until(lambda: put == [("bad", 0)])
        good.version = 7
        assert queue.take(good)
        wait_until(lambda: ("good", 7) in put)
        wait_until(lambda: len(queue) == 1)
        assert queue.take(bad)
        wait_until(lambda: len(put) == 3)
    assert not queue.take(good)


@pytest.mark.slow
def test_who_writes_and_closes_again_waits_anew_but_not_for_ever():
    put = []
    with queue_of(0.5, lambda entry, version: bool(put.append(time.monotonic())) or True) as queue:
        entry = Waiting("a")
        began = time.monotonic()
        while not put:
            entry.version += 1
            queue.take(entry)
            time.sleep(0.02)
    assert put[0] - began >= writeback.POSTPONED * 0.5


def test_what_is_not_whole_is_asked_for_again():
    put = []
    with queue_of(SHORT_S, lambda entry, version: bool(put.append(version)) or len(put) > 2) as queue:
        queue.take(Waiting("a"))
        wait_until(lambda: len(put) == 3)
        wait_until(lambda: not queue._waiting)
    assert put == [0, 0, 0]
    assert queue._total_bytes == 0


def test_the_queue_does_not_grow_with_how_often_a_file_is_closed():
    with queue_of(LONG_S, lambda entry, version: True) as queue:
        entry = Waiting("a")
        for _ in range(1000):
            entry.version += 1
            queue.take(entry)
        assert len(queue._queue) < 100


def test_without_another_thread_whoever_closes_puts_it(monkeypatch):
    def start(self):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with queue_of(SHORT_S, lambda entry, version: True) as queue:
            assert not queue.take(Waiting("a"))


def test_without_threads_to_put_with_it_is_tried_again(monkeypatch):
    monkeypatch.setattr(writeback, "RETRY_S", SHORT_S)
    monkeypatch.setattr(fetchers.Fetchers, "_begin", lambda self: False)
    put = []
    with queue_of(SHORT_S, lambda entry, version: bool(put.append(version)) or True) as queue:
        queue.take(Waiting("a"))
        time.sleep(4 * SHORT_S)
        assert not put
        monkeypatch.undo()
        wait_until(lambda: put)
