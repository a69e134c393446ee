"""`OtherThreads`, and the index that waits for them."""

from __future__ import annotations

import itertools
import threading
import time
from pathlib import Path

import pytest
from agentface import put

from fusebackend.backends.sqlite import flusher, index
from fusebackend.backends.sqlite.backend import SqliteBackend
from fusebackend.backends.sqlite.flusher import OtherThreads
from fusebackend.backends.sqlite.index import Indexer

PATIENCE_S = 30.0


def work_for(seconds: float) -> None:
    """Keep a processor busy for so long, however long that takes."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_what_other_threads_do_counts_and_what_one_does_oneself_does_not() -> None:
    others = OtherThreads()
    start = time.monotonic()
    work_for(0.1)
    mine_s = time.monotonic() - start
    assert others.share() * mine_s < 0.05
    start = time.monotonic()
    thread = threading.Thread(target=work_for, args=(0.1,))
    thread.start()
    thread.join()
    theirs_s = time.monotonic() - start
    assert others.share() * theirs_s > 0.09


@pytest.mark.alone
def test_each_question_is_about_the_time_since_the_one_before() -> None:
    others = OtherThreads()
    thread = threading.Thread(target=work_for, args=(0.05,))
    thread.start()
    thread.join()
    assert others.share() > 0
    start = time.monotonic()
    time.sleep(0.05)
    assert others.share() * (time.monotonic() - start) < 0.02


def test_the_index_is_made_beside_others_that_never_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A portion at a time, each after a pause."""
    monkeypatch.setattr(OtherThreads, "share", lambda self: 1.0)
    monkeypatch.setattr(flusher, "FLUSH_AFTER_S", 0.01)
    monkeypatch.setattr(flusher, "BUSY_PAUSE_S", 0.1)
    monkeypatch.setattr(index, "PORTION_S", 0.0)  # a file a portion
    monkeypatch.setattr(Indexer.work, "__defaults__", (0.0,))
    begun: list[float] = []
    portion = Indexer._portion

    def noted(self, db, until, quiet_ns):  # type: ignore[no-untyped-def]
        begun.append(time.monotonic())
        return portion(self, db, until, quiet_ns)

    with SqliteBackend(tmp_path / "volume.db") as backend:
        for number in range(5):
            put(backend, f"/{number}", b"some words")
        monkeypatch.setattr(Indexer, "_portion", noted)
        give_up = time.monotonic() + PATIENCE_S
        while len(begun) < 5 and time.monotonic() < give_up:
            time.sleep(0.01)
    pauses = [after - before for before, after in itertools.pairwise(begun)]
    assert len(pauses) >= 4
    assert min(pauses) >= 0.1
