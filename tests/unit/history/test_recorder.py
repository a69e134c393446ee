"""`Recorder`: records of the kernel's changes, taken back over a reference."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from profiles import examples
from random_changes import STEPS, make
from recorded import recorded_of
from replayed import Replay, shown, tree_of

from fusebackend.base.paths import ROOT
from fusebackend.protocol import Actor


@pytest.mark.parametrize("kind", ["memory", "dir"])
@settings(max_examples=examples(100))
@given(before=STEPS, steps=STEPS)
# Another file takes the place of one that has lost its second name in the call.
@example(
    before=[("create", "X", 0, 0, 0), ("link", "X", 0, 1, 0)],
    steps=[("write", "X", 0, 0, 1), ("unlink", "X", 0, 1, 0), ("create", "X", 0, 1, 0), ("rename", "X", 0, 1, 0)],
)
def test_records_taken_back_give_what_was_there(kind, before, steps):
    with tempfile.TemporaryDirectory() as directory, recorded_of(kind, Path(directory)) as recorded:
        volume, history = recorded.files.volume, recorded.history
        make(recorded, before)
        recorded.recorder.calls.close()
        first = history.add(history.open_call("verb", "mark", Actor()), ROOT, "create", b"/")
        earlier = shown(tree_of(volume)[0])
        make(recorded, steps)
        replay = Replay(volume, history, recorded.images.path)
        replay.back(record for record in recorded.records() if record.number > first)
        assert shown(replay.tree) == earlier
        assert recorded.recorder.incomplete is None
