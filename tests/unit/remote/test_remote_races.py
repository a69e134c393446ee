"""Answers that are lost, and threads that meet, in volumes of remote files: no bytes are lost or taken for others."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import obstore
import pytest
from langgraph.store.memory import InMemoryStore
from nodes import ME, node_at, put, whole
from obstore.exceptions import GenericError
from obstore.store import MemoryStore
from raising import raising
from seed_backends import DuckBackend
from together import together

from fusebackend.backends import ForeignVolume, StoreBackend
from fusebackend.backends.object_store.remote import BucketRemote, Upload
from fusebackend.protocol import ROOT_NODE, AttrChanges, Change, Volume
from fusebackend.remote import tree as tree_module
from fusebackend.remote.entry import NEVER
from fusebackend.remote.volume import RemoteVolume
from fusebackend.testing.posix.case import refused
from fusebackend.volumes.contents import opened

APPENDING = os.O_WRONLY | os.O_APPEND
LIMIT_S = 20.0


def bucket(objects: dict[str, bytes], ttl_s: float = 0.0) -> tuple[MemoryStore, RemoteVolume]:
    store = MemoryStore()
    for key, data in objects.items():
        obstore.put(store, key, data)
    return store, RemoteVolume(BucketRemote(store), ttl_s=ttl_s)


def held(store: MemoryStore) -> dict[str, bytes]:
    """The objects, but for the server's own."""
    found = {
        meta["path"]: bytes(obstore.get(store, meta["path"]).bytes()) for page in obstore.list(store) for meta in page
    }
    return {key: data for key, data in found.items() if ".fusebackend." not in key}


def duck(files: dict[str, bytes], backend: DuckBackend | None = None) -> tuple[DuckBackend, ForeignVolume]:
    backend = backend or DuckBackend()
    for path, data in files.items():
        backend.put(path, data)
    return backend, ForeignVolume(backend, ttl_s=0.0)


@contextlib.contextmanager
def waiting(work: Callable[[], Any], volume: Any, node: int) -> Iterator[list[int | None]]:
    """Have a thread wait for a file's lock during the block; gives the errno it ended with."""
    ended: list[int | None] = []

    def run() -> None:
        try:
            work()
            ended.append(None)
        except OSError as error:
            ended.append(error.errno)

    thread = threading.Thread(target=run)
    with volume._tree.entry(node).lock:
        thread.start()
        time.sleep(0.1)  # until it waits; were it slower, the test would pass without the race
        yield ended
    thread.join(LIMIT_S)
    assert not thread.is_alive()


class Cut(DuckBackend):
    """Deletes a file, loses the answer, and the next download fails too."""

    def __init__(self, cut_at: int) -> None:
        super().__init__()
        self.deletions, self.cut_at, self.is_cut = 0, cut_at, False

    def delete(self, file_path: str) -> Any:
        self.deletions += 1
        answer = super().delete(file_path)
        if self.deletions == self.cut_at:
            self.is_cut = True
            raise ConnectionError("cut")
        return answer

    def download_files(self, paths: list[str]) -> Any:
        if self.is_cut:
            self.is_cut = False
            raise ConnectionError("cut")
        return super().download_files(paths)


@pytest.mark.parametrize(("name", "cut_at"), [("d", 1), ("d", 2), ("d", 3), ("a", 1)])
def test_a_rename_whose_deletion_has_no_answer_keeps_every_byte(name: str, cut_at: int) -> None:
    backend, volume = duck({"/a": b"A", "/d/a": b"1", "/d/b": b"2", "/d/c": b"3"}, Cut(cut_at))
    with pytest.raises(OSError):
        volume.rename(ROOT_NODE, name.encode(), ROOT_NODE, b"new")
    assert set(backend.files.values()) == {b"A", b"1", b"2", b"3"}


def test_an_append_that_is_merged_twice_keeps_the_bytes_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    store, volume = bucket({"log": b"base\n"})
    node = volume.lookup(ROOT_NODE, b"log").node
    volume.open(node, APPENDING)
    volume.append(node, b"ours\n")
    obstore.put(store, "log", b"base\ntheirs\n")
    real, calls = Upload.put, 0

    def lossy(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        answer = real(*args, **kwargs)  # the first one fails by itself: the object has changed
        if calls == 2:
            raise OSError(errno.ETIMEDOUT, "cut")
        return answer

    monkeypatch.setattr(Upload, "put", lossy)
    refused(errno.ETIMEDOUT, volume.flush, node)
    volume.flush(node)
    volume.release(node, APPENDING)
    assert held(store) == {"log": b"base\ntheirs\nours\n"}


@pytest.mark.parametrize("kind", ["bucket", "store"])
def test_of_two_that_append_the_same_both_are_kept(kind: str) -> None:
    kept: Any = MemoryStore() if kind == "bucket" else InMemoryStore()

    def opened_anew() -> Volume:
        if kind == "bucket":
            return RemoteVolume(BucketRemote(kept))
        return ForeignVolume(StoreBackend(kept, namespace=("memories",)))

    one, other = opened_anew(), opened_anew()
    put(one, b"log", b"start\n")
    appending = [(volume, volume.lookup(ROOT_NODE, b"log").node) for volume in (one, other)]
    for volume, node in appending:
        volume.open(node, APPENDING)
        volume.append(node, b"x\n")
    for volume, node in appending:
        volume.flush(node)
        volume.release(node, APPENDING)
    after = opened_anew()
    assert whole(after, node_at(after, "/log")) == b"start\nx\nx\n"


def test_an_unlink_that_waited_for_a_rename_deletes_nothing_else() -> None:
    store, volume = bucket({"a": b"A"})
    node = volume.lookup(ROOT_NODE, b"a").node
    with waiting(lambda: volume.unlink(ROOT_NODE, b"a"), volume, node) as ended:
        volume.rename(ROOT_NODE, b"a", ROOT_NODE, b"b")
    assert (held(store), ended) == ({"b": b"A"}, [errno.ENOENT])


def test_a_rename_that_waited_for_its_target_does_not_take_that_from_elsewhere() -> None:
    store, volume = bucket({"a": b"A", "b": b"B"})
    node = volume.lookup(ROOT_NODE, b"b").node
    volume.lookup(ROOT_NODE, b"a")
    volume.hold(node)
    with waiting(lambda: volume.rename(ROOT_NODE, b"a", ROOT_NODE, b"b"), volume, node) as ended:
        volume.rename(ROOT_NODE, b"b", ROOT_NODE, b"z")
        volume.open(node, os.O_WRONLY)
        volume.write(node, 0, b"PRECIOUS")
    volume.flush(node)
    volume.release(node, os.O_WRONLY)
    assert ended == [errno.ESTALE]
    assert held(store) == {"a": b"A", "z": b"PRECIOUS"}


@pytest.mark.parametrize("name", ["a", "d"])
def test_a_listing_between_the_deletion_and_the_new_name_leaves_a_name_that_is_found(name: str) -> None:
    _, volume = bucket({"a": b"A", "d/x": b"A"})
    volume.lookup(ROOT_NODE, name.encode())
    real = volume.remote.bucket.delete

    def delete(key: str) -> Any:
        answer = real(key)
        if key in ("a", "d/x"):
            thread = threading.Thread(target=volume.readdir, args=(ROOT_NODE, b"", 10), daemon=True)
            thread.start()
            thread.join(1.0)
        return answer

    volume.remote.bucket.delete = delete  # type: ignore[method-assign]
    volume.rename(ROOT_NODE, name.encode(), ROOT_NODE, b"new")
    together(lambda: volume.lookup(ROOT_NODE, b"new"))  # which would go round for ever


def test_a_directory_is_renamed_while_a_file_in_it_is_written() -> None:
    store, volume = bucket({"d/log": b"x"})
    node = node_at(volume, "/d/log")
    real = volume.remote.bucket.copy_all

    def copy_all(pairs: Any) -> None:
        real(pairs)
        volume.append(node, b"2")

    volume.remote.bucket.copy_all = copy_all  # type: ignore[method-assign]
    with opened(volume, node, APPENDING):
        volume.append(node, b"1")
        volume.rename(ROOT_NODE, b"d", ROOT_NODE, b"e")
        volume.flush(node)
    assert held(store) == {"e/log": b"x12"}


@pytest.mark.parametrize("is_open", [True, False])
def test_a_file_that_others_have_replaced_can_be_renamed(is_open: bool) -> None:
    store, volume = bucket({"f": b"x"}, ttl_s=0.0 if is_open else 600.0)
    node = volume.lookup(ROOT_NODE, b"f").node
    if is_open:
        volume.open(node, os.O_RDONLY)
    obstore.put(store, "f", b"changed by another host")
    volume.rename(ROOT_NODE, b"f", ROOT_NODE, b"g")
    assert held(store) == {"g": b"changed by another host"}


def test_a_file_that_others_have_replaced_can_be_unlinked_while_it_is_open() -> None:
    store, volume = bucket({"f": b"x" * 2_000_000})
    node = volume.lookup(ROOT_NODE, b"f").node
    volume.open(node, os.O_RDONLY)
    obstore.put(store, "f", b"new")
    volume.unlink(ROOT_NODE, b"f")
    assert held(store) == {}


@pytest.mark.parametrize("change", ["told", "heard"])
def test_an_open_file_keeps_its_bytes_through_a_notice_and_its_unlink(change: str) -> None:
    _, volume = duck({"/a": b"bytes"})
    node = volume.lookup(ROOT_NODE, b"a").node
    volume.hold(node)
    volume.open(node, os.O_RDONLY)
    if change == "told":
        volume.told("/a")
    volume.unlink(ROOT_NODE, b"a")
    if change == "heard":
        volume._heard(elsewhere=True)
    assert volume.read(node, 0, 10) == b"bytes"


def test_a_mode_that_could_not_be_stored_is_not_shown() -> None:
    _store, volume = bucket({"d/.fusebackend.directory": b"", "d/f": b"x"})
    node = volume.lookup(ROOT_NODE, b"d").node
    before = volume.getattr(node).mode

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(volume.remote, "make_directory", raising(OSError(errno.EIO, "cut")))
        refused(errno.EIO, volume.setattr, node, AttrChanges(mode=0o700))
    assert volume.getattr(node).mode == before


def test_names_that_come_and_go_in_a_large_directory_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_module, "MAX_CHANGES", 100)
    _, volume = bucket({f"d/f{number}": b"x" for number in range(10)})
    directory = volume.lookup(ROOT_NODE, b"d").node
    listing = volume._tree.entry(directory).listing
    for number in range(300):
        listing.large, listing.listed_at = True, NEVER  # so that each name is asked for by itself
        volume.make_file(directory, b"t%d" % number, 0o644, b"", ME)
        volume.unlink(directory, b"t%d" % number)
    assert len(listing.changes) <= 100


def test_the_kernel_is_told_of_what_a_verb_stores_when_the_lock_is_free() -> None:
    """A notice waits for the kernel, and the kernel for an answer to a request that needs the lock."""
    store = InMemoryStore()
    one, other = (StoreBackend(store, namespace=("files",)) for _ in range(2))
    other.upload_files([("/f", b"one\n")])
    volume = ForeignVolume(one, ttl_s=0.0)
    node = node_at(volume, "f")
    answered: list[bool] = []

    def tell(change: Change) -> None:
        asked = threading.Thread(target=volume.getattr, args=(node,))
        asked.start()
        asked.join(2)
        answered.append(not asked.is_alive())

    volume.subscribe(tell)
    with volume.changing(), opened(volume, node, APPENDING):
        volume.append(node, b"three\n")
        other.edit("/f", "one\n", "one\ntwo\n")
        volume.flush(node)
        assert not answered
    assert answered and all(answered)
    assert other.download_files(["/f"])[0].content == b"one\ntwo\nthree\n"


def test_an_fsync_that_waits_while_what_was_written_is_lost_says_so() -> None:
    store, volume = bucket({"a": b"A"})
    node = volume.lookup(ROOT_NODE, b"a").node
    volume.open(node, os.O_WRONLY)
    volume.write(node, 0, b"ours")
    obstore.put(store, "a", b"theirs")
    with waiting(lambda: volume.fsync(node), volume, node) as ended:
        refused(errno.ESTALE, volume._files.upload, volume._tree.entry(node))
    assert ended == [errno.ESTALE]


def test_an_own_upload_is_known_though_the_service_refuses_to_say_what_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, volume = bucket({"a": b"A"})
    put, get, faults = obstore.put, obstore.get, ["error sending request", "error sending request"]

    def lossy(*args: Any, **options: Any) -> Any:
        answer = put(*args, **options)
        if faults:
            raise GenericError(faults.pop())
        return answer

    def failing(*args: Any, **options: Any) -> Any:
        if faults:
            raise GenericError(faults.pop())
        return get(*args, **options)

    node = volume.lookup(ROOT_NODE, b"a").node
    volume.open(node, os.O_WRONLY)
    volume.write(node, 0, b"first")
    with monkeypatch.context() as patched:
        patched.setattr(obstore, "put", lossy)
        patched.setattr(obstore, "get", failing)
        refused(errno.EIO, volume.flush, node)  # it has arrived, and nobody says so
        patched.setattr(obstore, "put", put)
        faults.append("Server returned non-2xx status code: 503 Service Unavailable: <Code>SlowDown</Code>")
        volume.write(node, 0, b"second")
        volume.flush(node)
        assert not faults
    assert held(store) == {"a": b"second"}
