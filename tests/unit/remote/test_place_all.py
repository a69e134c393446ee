"""`RemoteVolume.place_all`: many new files, of which others have made some, over each kind of remote."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from typing import Any

import obstore
import pytest
from for_each import for_each
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.store.memory import InMemoryStore
from nodes import ME
from obstore.store import MemoryStore
from profiles import examples
from seed_backends import DuckBackend

from fusebackend.backends import ForeignVolume, StoreBackend
from fusebackend.backends.fsspec.remote import FsspecRemote
from fusebackend.backends.object_store.remote import BucketRemote
from fusebackend.protocol import ROOT_NODE, Attr, NewFile, State
from fusebackend.remote.volume import RemoteVolume
from fusebackend.testing.by_path import content, walk
from fusebackend.testing.posix.case import refused

MTIME_NS = 1_500_000_000_123_456_789
LONGEST_TTL_S = 3600.0

Put = Callable[[str, bytes], Any]


def bucket(ttl_s: float) -> tuple[RemoteVolume, Put]:
    store = MemoryStore()
    return RemoteVolume(BucketRemote(store), ttl_s=ttl_s), lambda key, data: obstore.put(store, key, data)


def store(ttl_s: float) -> tuple[RemoteVolume, Put]:
    held = InMemoryStore()
    one, other = (StoreBackend(held, namespace=("files",), ttl_s=ttl_s) for _ in range(2))
    return ForeignVolume(one), lambda key, data: other.upload_files([("/" + key, data)])


def duck(ttl_s: float) -> tuple[RemoteVolume, Put]:
    backend = DuckBackend()
    return ForeignVolume(backend, ttl_s=ttl_s), lambda key, data: backend.put("/" + key, data)


def fsspec(ttl_s: float) -> tuple[RemoteVolume, Put]:
    fs = MemoryFileSystem()
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]
    volume = RemoteVolume(FsspecRemote(fs, "/"), ttl_s=ttl_s)

    def put(key: str, data: bytes) -> None:
        fs.makedirs("/" + os.path.dirname(key), exist_ok=True)
        fs.pipe_file("/" + key, data)

    return volume, put


KINDS = {"bucket": bucket, "store": store, "duck": duck, "fsspec": fsspec}


def new(parent: int, name: str, data: bytes, mode: int = 0o640) -> NewFile:
    """A file whose bytes come in pieces, with a hole between them where it is long enough."""
    state = State(stat.S_IFREG | mode, 7, 8, 0, len(data), 1, 1, MTIME_NS, {}, b"")
    half = len(data) // 2
    pieces = [(0, data[:half]), (half, data[half:])] if half else [(0, data)]
    return NewFile(parent, name.encode(), state, [piece for piece in pieces if piece[1].strip(b"\0")])


def tree(volume: RemoteVolume) -> dict[str, bytes]:
    """What is in the remote now."""
    volume.expire()
    return {path.decode(): content(volume, attr) for path, attr in walk(volume) if not attr.is_dir}


NAMES = st.sampled_from(["a", "b", "c", "e", "d/a", "d/b", "d/c"])
FILES = st.lists(
    st.tuples(NAMES, st.sampled_from([b"", b"x", b"some bytes", bytes(10), b"a\0" * 5000])), max_size=8,
    unique_by=lambda file: file[0],
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(40))
@given(batches=st.lists(FILES, max_size=4), theirs=st.lists(FILES, max_size=4), is_known=st.booleans())
def test_others_keep_what_they_have_made(kind: str, batches: Any, theirs: Any, is_known: bool) -> None:
    """Each outcome says what there is, and after an error no further file is begun than those under way."""
    volume, put = KINDS[kind](0.0 if is_known else LONGEST_TTL_S)
    directory = volume.mkdir(ROOT_NODE, b"d", 0o755, ME).node
    there: dict[str, bytes] = {}
    for number, batch in enumerate(batches):
        for key, data in theirs[number] if number < len(theirs) else ():
            put(key, b"their " + data)
            there[key] = b"their " + data
        files = [
            new(directory if key.startswith("d/") else ROOT_NODE, key.rpartition("/")[2], data) for key, data in batch
        ]
        made = volume.place_all(files)
        assert len(made) == len(batch)
        for (key, data), outcome in zip(batch, made, strict=True):
            if isinstance(outcome, Attr):
                assert key not in there
                there[key] = data
                assert (outcome.size, outcome.mtime_ns, outcome.mode) == (len(data), MTIME_NS, stat.S_IFREG | 0o640)
                assert (outcome.uid, outcome.gid) == (7, 8)
            elif outcome.errno == errno.EEXIST:
                assert key in there
            else:
                assert outcome.errno == errno.ECANCELED
                assert any(isinstance(each, OSError) and each.errno == errno.EEXIST for each in made)
        if all(key not in there or isinstance(one, Attr) for (key, _), one in zip(batch, made, strict=True)):
            assert all(isinstance(one, Attr) for one in made)
        assert tree(volume) == there


def test_attributes_are_kept_where_the_remote_keeps_them() -> None:
    held = MemoryStore()
    volume = RemoteVolume(BucketRemote(held), ttl_s=0.0)
    volume.place_all([new(ROOT_NODE, str(number), b"%d" % number, mode=0o600 + number) for number in range(40)])
    again = RemoteVolume(BucketRemote(held), ttl_s=0.0)
    for number in range(40):
        attr = again.lookup(ROOT_NODE, b"%d" % number)
        assert (attr.mode, attr.uid, attr.gid, attr.mtime_ns) == (stat.S_IFREG | (0o600 + number), 7, 8, MTIME_NS)


@for_each("kind", KINDS)
def test_one_alone(kind: str) -> None:
    volume, put = KINDS[kind](LONGEST_TTL_S)
    file = new(ROOT_NODE, "file", b"bytes")
    assert volume.place(file).size == 5
    refused(errno.EEXIST, volume.place, file)
    put("other", b"theirs")
    refused(errno.EEXIST, volume.place, new(ROOT_NODE, "other", b"ours"))
    assert tree(volume) == {"file": b"bytes", "other": b"theirs"}


def test_what_is_too_large_is_refused() -> None:
    volume = RemoteVolume(BucketRemote(MemoryStore()))
    volume._max_file_bytes = 4
    refused(errno.EFBIG, volume.place, new(ROOT_NODE, "file", b"bytes"))
    assert tree(volume) == {}
