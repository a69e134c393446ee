"""What a walk through all threads leaves behind once the kernel has forgotten it: next to nothing."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import Any

import bigthreads
import graphs
import pytest
from nodes import names, node_at

from fusebackend.backends import ThreadsBackend
from fusebackend.backends.threads.database.values import Message
from fusebackend.backends.threads.line import RECENT_CONVERSATION_BYTES
from fusebackend.backends.threads.nodes import Node
from fusebackend.backends.threads.tree import FEW_LINES
from fusebackend.backends.threads.volume import ThreadsVolume
from fusebackend.protocol import ROOT_NODE
from fusebackend.volumes.contents import opened

THREADS = 16
CHECKPOINTS = 12
FILES = 20


def walk(volume: Any) -> list[int]:
    """Everything, held as the kernel holds it: depth first, each entry of a listing is a reference."""
    held: list[int] = []
    left = [ROOT_NODE]
    while left:
        node, after = left.pop(), b""
        while page := volume.readdir(node, after, 100):
            for _, attr in page:
                volume.hold(attr.node)
                held.append(attr.node)
            left += [attr.node for _, attr in page if attr.is_dir]
            after = page[-1][0]
    return held


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("memory") / "threads.db"
    bigthreads.make(path, threads=THREADS, checkpoints=CHECKPOINTS, files=FILES)
    return path


def test_little_is_left_when_the_kernel_has_forgotten(path: Path) -> None:
    with ThreadsBackend.from_sqlite(str(path)) as backend:
        volume: Any = backend.volume
        assert isinstance(volume, ThreadsVolume)
        held = walk(volume)
        assert len(set(held)) > THREADS * (CHECKPOINTS + FILES)
        volume.forget(held)
        volume.tidy()
        gc.collect()
        tree = volume._tree
        few = 1 + THREADS + FEW_LINES * (CHECKPOINTS + 2 * FILES + 20)
        assert len(tree.nodes) <= few
        assert len(tree.records) <= FEW_LINES * FILES
        assert len(tree.lines) <= FEW_LINES
        alive = [found for found in gc.get_objects() if issubclass(type(found), Node)]  # isinstance() asks dead proxies
        assert len(alive) <= few
        assert sys.getsizeof(tree.nodes._held) < 10_000
        assert sys.getsizeof(tree.nodes._alive.data) < 100_000
        # A second walk finds the same names under other numbers, and what is held in between keeps its own.
        assert len(walk(volume)) == len(held)


def test_what_is_open_or_held_outlives_that(path: Path) -> None:
    with ThreadsBackend.from_sqlite(str(path)) as backend:
        volume: Any = backend.volume
        assert isinstance(volume, ThreadsVolume)
        checkpoint = sorted(names(volume, node_at(volume, "thread-0003/history")))[12].decode()
        kept = {name: node_at(volume, name) for name in (
            "thread-0003", "thread-0003/history", f"thread-0003/history/{checkpoint}/notes/1",
            f"thread-0003/history/{checkpoint}/notes/1/file-001.md", "thread-0005/head/notes/2/file-002.md",
            "thread-0007/messages.jsonl",
        )}  # fmt: skip
        for node in kept.values():
            volume.hold(node)
        file = kept[f"thread-0003/history/{checkpoint}/notes/1/file-001.md"]
        volume.open(file, os.O_RDONLY)
        volume.forget(set(walk(volume)) - set(kept.values()))
        volume.tidy()
        gc.collect()
        assert {name: node_at(volume, name) for name in kept} == kept
        assert b"version" in volume.read(file, 0, 1 << 20)
        volume.release(file, os.O_RDONLY)


def test_a_large_conversation_is_dropped_soon_after_it_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "threads.db")
    size = RECENT_CONVERSATION_BYTES + 1
    with graphs.sqlite_saver(path) as saver:
        graphs.deep_agent(saver, [graphs.say("x" * size)]).invoke(graphs.user("tell me"), graphs.thread("t"))
    with ThreadsBackend.from_sqlite(path) as backend:
        volume: Any = backend.volume
        answer = node_at(volume, "t/messages/0002-ai.md")
        volume.hold(answer)
        for _ in range(2):
            with opened(volume, answer, os.O_RDONLY):
                assert volume.read(answer, 0, 2 * size).strip() == b"x" * size
            volume.tidy()
            assert volume._tree.has_large_values  # the next file of it may be read now
            with monkeypatch.context() as later:
                later.setattr("fusebackend.backends.threads.volume.LARGE_S", 0.0)
                volume.tidy()
            assert not volume._tree.has_large_values
            assert not [found for found in gc.get_objects() if issubclass(type(found), Message)]
