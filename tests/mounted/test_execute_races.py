"""Renames against the start of commands: nothing of this machine is touched, no command is refused, and none hangs.

Each takes two seconds; with `pytest --night`, a minute. `races.py` explains the races.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import mounts
import pytest
import races

pytestmark = pytest.mark.mounted

SECONDS = pytest.mark.parametrize("seconds", [2.0, pytest.param(60.0, marks=pytest.mark.night)])

DEFAULTS = [
    pytest.param("memory:", marks=pytest.mark.night),
    "sqlite:{files}/default.db",
    "dir:{files}",
    pytest.param("state:", marks=pytest.mark.night),
]


def check(outcome: races.Outcome) -> None:
    assert outcome.hits == []
    assert (outcome.refused, outcome.refusals) == (0, []), "whatever the root has under the system's names"
    assert outcome.commands > 0


@pytest.fixture
def place() -> Iterator[Path]:
    """Make a directory that other users can reach, unlike pytest's."""
    mounts.require()
    if shutil.which("bwrap") is None:
        message = "bwrap is missing (Debian: bubblewrap)"
        pytest.fail(message, pytrace=False) if os.environ.get("CI") else pytest.skip(message)
    with tempfile.TemporaryDirectory(prefix="fusebackend-race-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def race(place: Path, default: str, actor: str, seconds: float) -> None:
    if actor == "another user" and os.geteuid() != 0:
        pytest.skip("needs root, to be another user")
    (place / "race").mkdir()
    check(races.race(place / "race", default, actor, seconds))


def race_as_plain_user(place: Path, default: str, actor: str, seconds: float) -> None:
    if os.geteuid() != 0:
        pytest.skip("this is a plain user already")
    check(races.as_plain_user(place, default, actor, seconds))


@SECONDS
@pytest.mark.parametrize("default", DEFAULTS)
@pytest.mark.parametrize("actor", ["verbs", "mount"])
def test_renames_while_commands_start(place: Path, default: str, actor: str, seconds: float) -> None:
    race(place, default, actor, seconds)


@SECONDS
@pytest.mark.parametrize("actor", ["verbs", "mount"])
def test_renames_on_postgres(place: Path, postgres_dsn: str, actor: str, seconds: float) -> None:
    race(place, f"postgres:{postgres_dsn}?volume=race", actor, seconds)


@SECONDS
@pytest.mark.parametrize("actor", ["another user", "directory", "command"])
def test_renames_by_others(place: Path, actor: str, seconds: float) -> None:
    race(place, "dir:{files}", actor, seconds)


@SECONDS
@pytest.mark.parametrize("actor", ["mount", "directory"])
def test_a_server_without_privileges(place: Path, actor: str, seconds: float) -> None:
    race_as_plain_user(place, "dir:{files}", actor, seconds)
