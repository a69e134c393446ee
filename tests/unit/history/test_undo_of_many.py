"""Ten agents at work in the same directories, one undone: what the others have done stays, byte by byte."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from profiles import amount
from random_changes import change
from recorded import Agent, Files, Recorded, recorded_of

AGENTS = 10
STEPS = 25
RUNS = {
    "memory": amount("UNDO_RUNS", day=30, night=350),
    "sqlite": amount("UNDO_RUNS", day=15, night=150),
}
"""Together 500 at night."""


@pytest.fixture(params=["memory", "sqlite"])
def recorded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Recorded]:
    with recorded_of(request.param, tmp_path) as found:
        yield found


DIRECTORIES = ["/a", "/a/b", "/c"]
NAMES = [f"{directory}/{name}" for directory in DIRECTORIES for name in ("one", "two", "three", "deep")]

WORDS = ["write", "write", "write", "append", "unlink", "rename", "link", "chmod", "exchange", "replace"]


class Worker:
    """An agent that makes random steps. What it writes names it."""

    def __init__(self, recorded: Recorded, number: int, rng: random.Random) -> None:
        self.files: Files = recorded.files
        self.number = number
        self.rng = rng
        self.agent = Agent(recorded, f"agent {number}", str(number))

    def step(self) -> None:
        self.agent.do(self._step)

    def _step(self) -> None:
        rng, files = self.rng, self.files
        path, other = rng.choice(NAMES), rng.choice(NAMES)
        text = b"%d wrote %d\n" % (self.number, rng.randrange(1000)) * rng.randrange(1, 4)
        with contextlib.suppress(OSError):  # the name is not there, or is
            change(files, rng.choice(WORDS), path, other, text, rng.randrange(64))


def plant(files: Files) -> None:
    for directory in DIRECTORIES:
        if not files.exists(directory):
            files.mkdir(directory)


def world(recorded: Recorded, seed: int) -> tuple[list[int], Any]:
    """Let agents work, each in a call of its own; returns the calls."""
    rng = random.Random(seed)
    files = recorded.files
    if files.exists("/a"):
        for name in ("/a", "/c"):
            with recorded.call("clear"):
                files.remove_tree(name)
    with recorded.call("plant"):
        plant(files)
        for name in NAMES[::2]:
            files.write(name, b"planted\n")
    workers = [Worker(recorded, number, rng) for number in range(AGENTS)]
    for _ in range(STEPS):
        rng.choice(workers).step()
    numbers = [worker.agent.end() for worker in workers]
    return [number for number in numbers if number], rng


def last_by(recorded: Recorded, calls: list[int]) -> dict[str, int]:
    """Return the call that has touched each path last."""
    records = sorted(record for call in calls for record in recorded.history.records(call))
    return {os.fsdecode(path): each.call for each in records for path in (each.path, each.to_path) if path}


def test_the_others_keep_their_bytes(recorded: Recorded, request: pytest.FixtureRequest) -> None:
    """An undo that is refused changes nothing. With `keep_newer`, each path that another call has touched last is as
    before, with all attributes."""
    runs = RUNS[request.node.callspec.params["recorded"]]
    outcomes = {"whole": 0, "part": 0}
    kept = 0
    for seed in range(runs):
        numbers, rng = world(recorded, seed)
        chosen = rng.choice(numbers)
        before = recorded.files.dump()
        refused = recorded.undoing.undo([chosen])
        if refused.conflicts:
            assert recorded.files.dump() == before
            result = recorded.undoing.undo([chosen], keep_newer=True)
            outcomes["part"] += 1
        else:
            result = refused
            outcomes["whole"] += 1
        after = recorded.files.dump()
        last = last_by(recorded, numbers)
        for path in before.keys() | after.keys() | last.keys():
            if last.get(path) == chosen or any(len(tree[path].names) > 1 for tree in (before, after) if path in tree):
                continue  # of a file with several names, another one may be the call's
            assert (path in after) == (path in before), f"run {seed}: '{path}' is another's"
            assert path not in after or after[path][:2] == before[path][:2], f"run {seed}: '{path}' is another's"
            kept += 1
        if result.undo is not None:
            again = recorded.undoing.undo([int(result.undo[1:])])
            assert again.conflicts == [], f"run {seed}"
            assert recorded.files.dump() == before, f"run {seed}: the undo of the undo"
    assert min(outcomes.values()) > runs // 20, outcomes
    assert kept > runs * 5
