"""Random operations on native volumes, against a dict.

On SQLite and PostgreSQL the machines take snapshots as well: `test_sqlite_snapshots.py`, `test_postgres_snapshots.py`.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import tempfile
from pathlib import Path
from typing import ClassVar

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule
from profiles import examples

from fusebackend.backends.directory.volume import DirectoryVolume
from fusebackend.backends.memory import InMemoryVolume
from fusebackend.backends.sqlite import flusher
from fusebackend.backends.sqlite.backend import SqliteVolume
from fusebackend.backends.sqlite.check import check
from fusebackend.protocol import ROOT_NODE, AttrChanges, Caller, Volume
from fusebackend.testing.model import VolumeMachine
from fusebackend.volumes.posix import TreeVolume
from fusebackend.volumes.storage import CHUNK_BYTES

SETTINGS = hypothesis.settings(max_examples=examples(40), stateful_step_count=50, deadline=None, database=None)


class MemoryMachine(VolumeMachine):
    def make_volume(self) -> Volume:
        return InMemoryVolume()


class DirectoryVolumeMachine(VolumeMachine):
    owners: ClassVar = ((0, 0), (1000, 1000)) if os.geteuid() == 0 else ((os.geteuid(), os.getegid()),)

    def make_volume(self) -> Volume:
        self.directory = tempfile.mkdtemp()
        self.path = f"{self.directory}/root"
        os.mkdir(self.path)
        return self.reopen_volume()

    def reopen_volume(self) -> Volume:
        return DirectoryVolume(self.path)

    @rule()
    def close_descriptors(self) -> None:
        """Each directory has to be found again by the names above it."""
        self.volume._nodes.forget_descriptors()

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(os.fsencode(self.directory))


for machine in (MemoryMachine, DirectoryVolumeMachine):
    case = machine.TestCase
    case.settings = SETTINGS
    globals()[f"Test{machine.__name__}"] = case
del machine, case


# -- one file against an array of bytes --------------------------------------------------------------------------------


BYTES_SETTINGS = hypothesis.settings(max_examples=examples(60), deadline=None, database=None)
ME = Caller(1000, 1000)
borders = st.sampled_from([0, 1, 4096, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES, 3 * CHUNK_BYTES])
spots = borders | st.integers(0, 4 * CHUNK_BYTES)
steps = st.one_of(
    st.tuples(st.just("write"), spots, borders | st.integers(1, 100_000)),
    st.tuples(st.just("append"), st.just(0), st.sampled_from([1, 100, 5000])),
    st.tuples(st.just("resize"), spots, st.just(0)),
    st.tuples(st.sampled_from(["flush", "evict", "reopen"]), st.just(0), st.just(0)),
)
NOISE = random.Random(3).randbytes(1 << 20)


GROWN_TWICE = [("write", 0, 200_000), ("flush", 0, 0), ("resize", 1, 0), ("resize", 200_000, 0), ("resize", 150_000, 0)]
APPENDED = [("write", 0, 50_000), ("flush", 0, 0), ("append", 0, 100), ("flush", 0, 0), ("append", 0, 100)]


def apply(volume: TreeVolume, node: int, model: bytearray, step: tuple[str, int, int], round_number: int) -> None:
    word, offset, size = step
    if word == "append":
        word, offset = "write", len(model)
    if word == "write":
        data = NOISE[round_number * 1001 :][:size]
        volume.write(node, offset, data)
        if data:
            model.extend(bytes(max(0, offset - len(model))))
            model[offset : offset + size] = data
    elif word == "resize":
        volume.setattr(node, AttrChanges(size=offset))
        del model[offset:]
        model.extend(bytes(offset - len(model)))
    assert volume.getattr(node).size == len(model)


def blocks(volume: TreeVolume, node: int, size: int) -> int:
    """What the volume's own chunks add up to, asked for one by one."""
    chunks = [volume._chunk(node, index) for index in range(size // CHUNK_BYTES + 1)]
    return sum(-(-len(chunk.data) // 4096) * 8 for chunk in chunks if chunk is not None)


class Stored:
    """A file in an SQLite volume that can be opened again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.volume = SqliteVolume(path)
        self.node = self.volume.create(ROOT_NODE, b"f", 0o644, os.O_RDWR, ME).node

    def reopen(self) -> None:
        self.close()
        self.volume = SqliteVolume(self.path)
        self.volume.open(self.node, os.O_RDWR)

    def close(self) -> None:
        self.volume.close()
        assert check(self.path) == []


@BYTES_SETTINGS
@hypothesis.given(script=st.lists(steps, max_size=16), look=st.booleans())
@hypothesis.example(GROWN_TWICE, False)
@hypothesis.example(APPENDED, False)
def test_one_file_in_sqlite_is_an_array_of_bytes(script: list[tuple[str, int, int]], look: bool) -> None:
    """Between flushes the truth is spread over the file, the overlay, its cuts and two caches; `look` fills those."""
    model = bytearray()
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(flusher, "FLUSH_AFTER_S", 3600)
        file = Stored(Path(directory) / "volume.db")
        with contextlib.closing(file):
            for number, step in enumerate(script):
                if step[0] == "reopen":
                    file.reopen()
                elif step[0] in ("flush", "evict"):
                    file.volume.write_back()
                if step[0] == "evict":
                    file.volume._chunks.clear()
                apply(file.volume, file.node, model, step, number)
                if look:
                    assert file.volume.read(file.node, 0, 1 << 20) == model
            assert file.volume.read(file.node, 0, 1 << 20) == model
            assert file.volume.getattr(file.node).blocks == blocks(file.volume, file.node, len(model))
