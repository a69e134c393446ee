"""Undo of all calls of a conversation, and of all since a point, with undos of all kinds among them."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

from profiles import amount
from random_changes import change
from recorded import Recorded, recorded_of

from fusebackend.history.history_file import Filter
from fusebackend.protocol import Actor

ROUNDS = amount("UNDO_CHOSEN", day=40, night=1000)

NAMES = ["/a", "/b", "/d/c", "/d/e"]
WORDS = ["write", "write", "unlink", "rename", "chmod"]


def step(recorded: Recorded, rng: random.Random, names: list[str], *, thread: str) -> int:
    """Make a call of a thread with some changes; returns its number, 0 if it has changed nothing."""
    files = recorded.files
    with recorded.recorder.calls.inside("tool", "step", Actor(agent="a", thread=thread)) as call:
        for _ in range(rng.randrange(1, 4)):
            path, other = rng.choice(names), rng.choice(names)
            word, data = rng.choice(WORDS), b"%d\n" % rng.randrange(1000)
            with contextlib.suppress(FileNotFoundError, FileExistsError):
                change(files, word, path, other, data, rng.randrange(64))
    return call.number


def test_all_since_a_call_is_the_state_before_it(tmp_path: Path) -> None:
    for seed in range(ROUNDS):
        rng = random.Random(seed)
        with recorded_of("sqlite", tmp_path / str(seed)) as recorded:
            recorded.files.mkdir("/d")
            before = {}
            for _ in range(12):
                state = recorded.files.dump()
                if before and rng.random() < 0.4:
                    chosen = Filter(first=rng.choice([*before])) if rng.random() < 0.3 else Filter()
                    done = recorded.undoing.undo(wanted=chosen, every=chosen.first is not None)
                    number = recorded.last() if done.undo else 0
                else:
                    number = step(recorded, rng, NAMES, thread="t")
                if number:
                    before[number] = state
            if not before:
                continue
            first = rng.choice([*before])
            assert recorded.undoing.undo(wanted=Filter(first=first), every=True).conflicts == [], seed
            assert recorded.files.dump() == before[first], (seed, first)


def test_all_of_a_thread(tmp_path: Path) -> None:
    rng = random.Random(1)
    with recorded_of("sqlite", tmp_path / "volume") as recorded:
        recorded.files.mkdir("/d")
        empty = recorded.files.dump()
        calls: dict[str, list[str]] = {"one": [], "two": []}
        for _ in range(40):
            thread = rng.choice([*calls])
            number = step(recorded, rng, NAMES[:2] if thread == "one" else NAMES[2:], thread=thread)
            calls[thread] += [f"c{number}"] if number else []
        full = recorded.files.dump()
        of_two = {path: seen for path, seen in full.items() if path.startswith("/d")}
        done = recorded.undoing.undo(wanted=Filter(thread="one"), every=True)
        assert (done.calls, done.conflicts) == (calls["one"], [])
        assert recorded.files.dump() == {**empty, **of_two}
        assert recorded.undoing.undo(wanted=Filter(thread="one"), every=True).calls == [], "all is taken back already"
        assert done.undo is not None
        recorded.undoing.undo([int(done.undo[1:])])
        assert recorded.files.dump() == full, "an undo of many is undone in one step"


def test_what_another_thread_changed_since_is_named_before_anything_is_done(tmp_path: Path) -> None:
    with recorded_of("sqlite", tmp_path / "volume") as recorded:
        for thread, path in (("one", "/mine"), ("one", "/shared"), ("two", "/shared")):
            with recorded.recorder.calls.inside("tool", "write", Actor(thread=thread)):
                recorded.files.write(path, thread.encode())
        before = recorded.files.dump()
        done = recorded.undoing.undo(wanted=Filter(thread="one"), every=True)
        assert [conflict.path for conflict in done.conflicts] == ["/shared"]
        assert recorded.files.dump() == before
