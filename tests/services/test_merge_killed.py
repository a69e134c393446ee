"""A merge that is killed at each write of its journal, over `sqlite:`, `dir:`, a store and S3: resumed each time."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import mounts
import pytest
import warm
from profiles import amount

from services.s3 import Bucket

SCRIPT = Path(__file__).parents[1] / "unit" / "trees" / "merge" / "merge_killed.py"
EVERY = amount("FUSEBACKEND_MERGE_KILLS_EVERY", day=16, night=1)
"""Each write of so many is a kill: 1 takes several minutes."""

pytestmark = pytest.mark.timeout(2400)


MODULES = ("langgraph.store.sqlite", "merging", "fusebackend.urls", "fusebackend.backends.object_store")
"""What the process imports that the merges are forked from (`warm.python`)."""


def test_a_merge_is_resumed_after_a_kill_at_each_write(tmp_path: Path, bucket: Bucket) -> None:
    program = tmp_path / "python"
    warm.python(program, mounts.module_environment(), MODULES)

    def run(directory: Path, s3: str, point: int | str) -> tuple[int, list[str]]:
        directory.mkdir(exist_ok=True)
        words = [program, SCRIPT, directory, s3, str(point)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout.splitlines()

    run(tmp_path / "whole", bucket.url("whole/"), "fill")
    code, (merged, *wanted) = run(tmp_path / "whole", bucket.url("whole/"), -1)
    assert code == 0
    writes = int(merged.removeprefix("merged "))
    for point in range(0, writes, EVERY):
        directory, s3 = tmp_path / str(point), bucket.url(f"{point}/")
        run(directory, s3, "fill")
        code, lines = run(directory, s3, point)
        assert code == -9, lines
        code, (merged, *found) = run(directory, s3, -1)
        assert (code, merged.split()[0]) == (0, "merged"), (point, merged)
        assert found == wanted, point
        assert not (directory / "branches" / "b.merge").exists()
        shutil.rmtree(directory)
