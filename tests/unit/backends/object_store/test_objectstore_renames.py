"""Renames in an object store that are cut short anywhere: nothing is lost, and nothing is there twice afterwards."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys

import pytest
from for_each import for_each
from objects import keys
from obstore.store import MemoryStore
from raising import raising

from fusebackend.backends.object_store import rename
from fusebackend.backends.object_store.bucket.requests import Bucket
from fusebackend.backends.object_store.remote import ObjectStoreBackend, S3Backend

REQUESTS = ("copy", "delete", "put_small")
"""What a rename is made of."""

FILES = {f"/from/{name}": f"content of {name}".encode() for name in ("a", "b", "sub/c", "sub/deep/d", "e")}


class Killed(BaseException):
    """The process ends here."""


class Fate:
    """Ends the process before or after the request with a number, counting from 0; None: never."""

    def __init__(self, monkeypatch, at, *, after, error=Killed):
        self.left = at
        for word in REQUESTS:
            monkeypatch.setattr(Bucket, word, self._wrapped(getattr(Bucket, word), after, error))

    def _wrapped(self, original, after, error):
        def request(bucket, *args):
            ends = self.left == 0
            if self.left is not None:
                self.left -= 1
            if ends and not after:
                raise error
            answer = original(bucket, *args)
            if ends:
                raise error
            return answer

        return request


def contents(backend):
    found = [info["path"] for info in backend.glob("**").matches]
    return {answer.path: answer.content for answer in backend.download_files(found)}


def renamed(files, old, new):
    return {new + path[len(old) :]: content for path, content in files.items()}


@pytest.fixture
def store():
    return MemoryStore()


def abandon(backend):
    """As if its process were gone: nothing is stored or told, and its session is no more."""
    rename._living.clear()
    backend.volume.remote.byte_cache.close()


@for_each("after", [False, True], ids=["before", "after"])
@for_each("at", range(12))
def test_a_directory_is_whole_in_one_place_after_a_crash(monkeypatch, at, after):
    store = MemoryStore()
    backend = ObjectStoreBackend(store)
    backend.upload_files(list(FILES.items()))
    with monkeypatch.context() as patch:
        fate = Fate(patch, at, after=after)
        # One request after the other, so that each number is one moment.
        patch.setattr(Bucket, "copy_all", lambda self, pairs: [self.copy(*pair) for pair in pairs])
        patch.setattr(Bucket, "delete_all", lambda self, keys: [self.delete(key) for key in keys])
        patch.setattr("fusebackend.backends.object_store.rename.Moves._end", killed_too(fate))
        with contextlib.suppress(Killed):
            backend.move("/from", "/to")
    abandon(backend)
    found = check_recovered(store, FILES, renamed(FILES, "/from", "/to"))
    with ObjectStoreBackend(store) as again:
        assert again.ls("/from" if "/to/a" in found else "/to").error, "an empty shell of it stayed"


def check_recovered(store, *possible):
    """Start anew; return the files, which are one of the possible trees, with nothing left of the rename."""
    with ObjectStoreBackend(store) as again:
        found = contents(again)
    assert found in possible
    assert [meta["path"] for meta in store.list(".fusebackend.renames").collect()] == []
    return found


def killed_too(fate):
    """A process that was killed does not tidy up on its way out."""
    original = rename.Moves._end

    def end(self, key):
        if fate.left is not None and fate.left < 0:
            raise Killed
        original(self, key)

    return end


@for_each("after", [False, True], ids=["before", "after"])
@for_each("replaces", [False, True], ids=["new", "replacing"])
@for_each("at", range(4))
def test_a_file_is_in_one_place_after_a_crash(monkeypatch, at, after, replaces):
    store = MemoryStore()
    backend = ObjectStoreBackend(store)
    backend.upload_files([("/d/old", b"content")])
    if replaces:
        backend.upload_files([("/d/new", b"replaced")])
    parent = backend.volume.lookup(1, b"d").node
    with monkeypatch.context() as patch:
        Fate(patch, at, after=after)
        with contextlib.suppress(Killed):
            backend.volume.rename(parent, b"old", parent, b"new")
    abandon(backend)
    undone = {"/d/old": b"content"} | ({"/d/new": b"replaced"} if replaces else {})
    check_recovered(store, undone, {"/d/new": b"content"})


def test_a_rename_that_fails_before_the_first_deletion_is_taken_back(store, monkeypatch):
    with ObjectStoreBackend(store) as backend:
        backend.upload_files(list(FILES.items()))
        with monkeypatch.context() as patch:
            Fate(patch, 3, after=False, error=OSError(errno.EIO, "Input/output error"))
            assert "Input/output error" in backend.move("/from", "/to").error
        assert not [key for key in keys(store) if key.startswith(".fusebackend.renames")], "a record stays"
        assert contents(backend) == FILES
        assert backend.move("/from", "/to").error is None
        assert contents(backend) == renamed(FILES, "/from", "/to")


def test_one_that_fails_later_is_carried_on(store, monkeypatch):
    with ObjectStoreBackend(store) as backend:
        backend.upload_files([("/d/a", b"1"), ("/d/b", b"2")])
        with monkeypatch.context() as patch:
            patch.setattr(Bucket, "delete_all", raising(OSError(errno.EIO, "Input/output error")))
            assert backend.move("/d", "/e").error
        backend.volume.sync()
        assert contents(backend) == {"/e/a": b"1", "/e/b": b"2"}


def test_what_others_put_in_both_places_meanwhile_stays(store, monkeypatch):
    backend = ObjectStoreBackend(store)
    backend.upload_files([("/d/a", b"1"), ("/d/b", b"2")])
    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "delete_all", raising(Killed))
        with pytest.raises(Killed):
            backend.move("/d", "/e")
    abandon(backend)
    store.put("e/a", b"theirs and longer")
    store.put("d/new", b"theirs too")
    with ObjectStoreBackend(store) as again:
        files = contents(again)
    assert files == {"/e/a": b"theirs and longer", "/d/a": b"1", "/e/new": b"theirs too", "/e/b": b"2"}


def test_the_rename_of_a_living_process_is_left_alone(store):
    with ObjectStoreBackend(store) as one, ObjectStoreBackend(store) as other:
        one.upload_files([("/d/a", b"1")])
        one.volume.remote._moves._begin("d/", "e/", None, None)
        other.volume.remote._moves.recover()
        with ObjectStoreBackend(store) as third:
            assert contents(third) == {"/d/a": b"1"}


_PROGRAM = """
import os, signal, sys
from fusebackend.backends import S3Backend
from fusebackend.backends.object_store.bucket.requests import Bucket
left = int(sys.argv[1])
options = dict(pair.split("=", 1) for pair in sys.argv[3:])
def dying(original):
    def request(*args):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args)
    return request
backend = S3Backend(sys.argv[2], "top", **options)
for word in ("copy", "delete"):
    setattr(Bucket, word, dying(getattr(Bucket, word)))
Bucket.delete_all = lambda self, keys: [self.delete(key) for key in keys]  # so that it ends between two
backend.move("/from", "/to")
"""


@pytest.mark.parametrize("requests", [3, 12])
def test_kill_9_in_the_middle_of_a_rename_on_a_real_server(bucket, requests):
    options = bucket.options()
    with S3Backend(bucket.name, "top", **options) as backend:
        backend.upload_files(list(FILES.items()))
    words = [f"{name}={value}" for name, value in options.items()]
    command = [sys.executable, "-c", _PROGRAM, str(requests), bucket.name, *words]
    ended = subprocess.run(command, timeout=60, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert ended.returncode == -signal.SIGKILL
    with S3Backend(bucket.name, "top", **options) as again:
        assert contents(again) in (FILES, renamed(FILES, "/from", "/to"))
    assert not [key for key in bucket.all_keys() if ".fusebackend.renames" in key]
