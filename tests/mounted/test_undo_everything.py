"""`examples/undo_everything.py`, also with the store in PostgreSQL and the artifacts in a bucket."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import mounts
import pytest
from services.s3 import Bucket

pytestmark = pytest.mark.mounted

ROOT = Path(__file__).parents[2]
LIMIT_S = 180

MOST_S = 5.0
"""In which four calls over four kinds of storage are to be taken back."""


def demonstrated(tmp_path: Path, *words: str) -> str:
    mounts.require()
    (tmp_path / "mount").mkdir()
    done = subprocess.run(
        [sys.executable, ROOT / "examples/undo_everything.py", tmp_path / "mount", tmp_path / "kept", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done
    return done.stdout


def check(output: str) -> None:
    assert [line.split()[2] for line in output.splitlines() if re.match(r"c\d+ ", line)] == ["cleaner"] * 4
    assert "Bash: rm -rf repo/*" in output
    assert "12 files changed, 12 deletions(-)" in output
    found = re.search(r"^4 calls taken back in ([\d.]+) s; (\d+) files of the colleague", output, re.MULTILINE)
    assert found is not None, output
    assert float(found[1]) < MOST_S
    assert int(found[2]) > 10
    merges = [line for line in output.splitlines() if line.startswith("$ fusebackend branch merge")]
    assert [line.split()[4] for line in merges] == ["port", "tidy", "rival"]


def test_in_files(tmp_path: Path) -> None:
    check(demonstrated(tmp_path))


@pytest.mark.services
def test_in_a_bucket(tmp_path: Path, bucket: Bucket) -> None:
    check(demonstrated(tmp_path, "--artifacts", bucket.url("artifacts")))


@pytest.mark.services
def test_in_postgresql(tmp_path: Path, postgres_dsn: str) -> None:
    check(demonstrated(tmp_path, "--memories", f"store+postgres:{postgres_dsn}?ns=memories"))
