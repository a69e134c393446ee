"""`Recorder`: records of the kernel's changes, taken back over a reference."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import pytest
from backend_kinds import opened_backend
from hypothesis import example, given, settings
from profiles import examples
from recorded_place import STEPS, Place, make
from replayed import Replay, shown, tree_of

from fusebackend.base.paths import ROOT
from fusebackend.protocol import (
    Actor,
)


@pytest.fixture(params=["memory", "dir"])
def place(request, tmp_path):
    with (
        opened_backend(request.param, tmp_path) as backend,
        contextlib.closing(Place(backend.volume, str(tmp_path))) as place,
    ):
        yield place


@pytest.mark.parametrize("kind", ["memory", "dir"])
@settings(max_examples=examples(100))
@given(before=STEPS, steps=STEPS)
# Another file takes the place of one that has lost its second name in the call.
@example(
    before=[("create", "X", 0, 0, 0), ("link", "X", 0, 1, 0)],
    steps=[("write", "X", 0, 0, 1), ("unlink", "X", 0, 1, 0), ("create", "X", 0, 1, 0), ("rename", "X", 0, 1, 0)],
)
def test_records_taken_back_give_what_was_there(kind, before, steps):
    with (
        tempfile.TemporaryDirectory() as directory,
        opened_backend(kind, Path(directory)) as backend,
        contextlib.closing(Place(backend.volume, directory)) as place,
    ):
        make(place, before)
        place.recorder.calls.close()
        first = place.history.add(place.history.open_call("verb", "mark", Actor()), ROOT, "create", b"/")
        earlier = shown(tree_of(place.volume)[0])
        make(place, steps)
        replay = Replay(place.volume, place.history, place.images.path)
        replay.back(record for record in place.records() if record.number > first)
        assert shown(replay.tree) == earlier
        assert place.recorder.incomplete is None
