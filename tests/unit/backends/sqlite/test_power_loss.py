"""The power goes at any moment: the volume opens, is sound, and holds what was promised, in its snapshots as well.

A program works on a volume while a library loaded before it (`power/recorder.c`) writes down every write and sync of
the volume's files. Any number of power losses are then played from that: at each record, with what was not synced
missing, torn or there. What the volume then holds must be what it held after one of the steps, from the last promised
one on: a consistent prefix, byte for byte.

    FUSEBACKEND_CRASH_POINTS=1000 pytest tests/unit/backends/sqlite/test_power_loss.py      plays so many
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from power.disk import Disk, records
from power.work import Tree, steps
from profiles import amount

from fusebackend.backends.sqlite.backend import SqliteVolume
from fusebackend.backends.sqlite.check import check
from fusebackend.protocol import Volume
from fusebackend.testing.by_path import content, walk

HOME = Path(__file__).parents[3] / "support"
STEPS = 150
POINTS = amount("FUSEBACKEND_CRASH_POINTS", day=40, night=400)
POINTS_PER_RUN = 100


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        reason = "no C compiler here (Debian: gcc)"
        pytest.skip(reason)
    library = tmp_path_factory.mktemp("recorder") / "recorder.so"
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([compiler, *flags, "-o", library, HOME / "power" / "recorder.c", "-ldl", "-lpthread"], check=True)
    return library


@pytest.mark.parametrize("run", range(-(-POINTS // POINTS_PER_RUN)))
def test_the_power_goes(recorder: Path, tmp_path: Path, run: int) -> None:
    seed = random.Random(run).randrange(1 << 32) if run else 20
    print(f"seed {seed}")
    log = _record(recorder, tmp_path, seed)
    everything = list(records(log))
    assert {record.kind for record in everything} == set("CUWTBESP"), "the recorder has missed some kind of call"
    states = [_digest({}, {}), *(_digest(step.tree, step.snapshots) for step in steps(seed, STEPS))]
    chance = random.Random(seed)
    points = sorted(chance.sample(range(len(everything)), min(POINTS - run * POINTS_PER_RUN, POINTS_PER_RUN)))
    disk, promised, begun = Disk(), 0, 0
    path = tmp_path / "after" / "volume.db"
    path.parent.mkdir()
    for number, record in enumerate(everything):
        if record.kind == "P":
            promised = record.offset
        elif record.kind == "S":
            begun = record.offset
        else:
            disk.take(record)
        while points and points[0] == number:
            points.pop(0)
            disk.lose_power(path, chance)
            where = f"seed {seed}, record {number} of {len(everything)}, steps {promised} to {begun}"
            _judge(path, states[promised : begun + 1], promised == 0, where)
    assert not points


def _record(recorder: Path, tmp_path: Path, seed: int) -> Path:
    """Do the work; gives the records of what was done to the disk for it."""
    home = tmp_path / "before"
    home.mkdir()
    log = tmp_path / "log"
    file = home / "volume.db"
    environment = {
        **os.environ,
        "PYTHONPATH": str(HOME.parents[1]),
        "LD_PRELOAD": str(recorder),
        "RECORDER_FILE": str(file),
        "RECORDER_LOG": str(log),
    }
    command = [sys.executable, str(HOME / "power" / "work.py"), str(file), str(log), str(seed), str(STEPS)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert check(file) == []
    return log


def _judge(path: Path, allowed: list[bytes], new: bool, where: str) -> None:
    """Opening comes first where nothing was promised yet: the power may have gone while the volume was being made."""
    if not new:
        assert check(path) == [], where
    volume = SqliteVolume(path)
    try:
        kept = {taken.name: _tree(volume.snapshot(taken.name)) for taken in volume.snapshots()}
        found = _digest(_tree(volume), kept)
    finally:
        volume.close()
    assert found in allowed, f"{where}: what is there is none of what was there"
    assert check(path) == [], where


def _tree(volume: Volume) -> Tree:
    return {path.decode() + "/" * attr.is_dir: content(volume, attr) for path, attr in walk(volume)}


def _digest(tree: Tree, snapshots: dict[str, Tree]) -> bytes:
    digest = hashlib.sha256()
    for of, files in [("", tree), *sorted(snapshots.items())]:
        digest.update(f"{of}: {len(files)}\n".encode())
        for name in sorted(files):
            digest.update(f"{name} {len(files[name])}\n".encode())
            digest.update(files[name])
    return digest.digest()
