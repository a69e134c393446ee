"""A server that is killed while it makes a branch that begins with a state before the present, or restores one."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import served
from profiles import amount

import fusebackend
from fusebackend.control.client.client import Client

SCRIPT = Path(__file__).with_name("branch_killed.py")
EVERY = amount("FUSEBACKEND_BRANCH_KILLS_EVERY", day=7, night=1)
"""Each step of so many is a kill: 1 takes several minutes."""

pytestmark = pytest.mark.timeout(1800)

CONFIG = """
default = "sqlite:agent.db"
history = "on"
snapshots = "manual"
[routes]
"/live/" = "dir:live"
"""
BEFORE = {"/plan": "one", "/live/plan": "one", "/live/gone": "gone", "/live/old": "moved"}


@contextlib.contextmanager
def serving(place: Path, point: int = -1) -> Iterator[Client]:
    """Serve a composite whose server kills itself at a step of `create_branch`; -1 for never."""
    config = str(place / "agent.toml")
    line = [sys.executable, str(SCRIPT), str(point), str(place / "steps"), "serve", "--config", config]
    with served.started(line, config) as (process, _):
        with fusebackend.connect(config) as files:
            yield files
        if point < 0:
            served.end(process)
        else:
            assert process.wait(served.LIMIT_S) == -signal.SIGKILL


def fill(files: Client) -> str:
    """Make files, and change them in one call; returns its name."""
    for path, text in BEFORE.items():
        files.write(path, text)
    with fusebackend.acting(fusebackend.Actor(agent="a", call="t1")):
        for path in ("/plan", "/live/plan"):
            assert files.edit(path, "one", "two").error is None
        files.delete("/live/gone")
        files.move("/live/old", "/live/new")
        files.write("/live/more", "more")
    return next(each.call for each in files.log() if each.actor.call == "t1")


def shown(files: Client, at: str = "/.fusebackend/branches/past") -> dict[str, str]:
    paths = [each["path"] for each in files.glob("**/*", at).matches or [] if not each.get("is_dir")]
    found = files.download_files(paths)
    return {each.path[len(at) :]: (each.content or b"").decode() for each in found}


def require_whole(place: Path, call: str) -> None:
    """The next server shows nothing half, has cleaned up, and the same command works."""
    with serving(place) as files:
        there = [each.name for each in files.branches() if each.error is None]
        assert there in ([], ["past"])
        if not there:
            assert (left(place), [each.name for each in files.snapshots()]) == ([], [])
            files.create_branch("past", call)
        assert shown(files) == BEFORE
        assert files.download_files(["/live/plan"])[0].content == b"two"
        files.delete_branches("past")
        assert (left(place), [each.name for each in files.snapshots()]) == ([], [])


def left(place: Path) -> list[str]:
    """Return the files of branches that there are."""
    return sorted(each.name for each in (place / "XDG_DATA_HOME").rglob("*.branches/*"))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a composite that was filled: its history belongs to the path of the configuration."""
    place = tmp_path / "place"
    (place / "live").mkdir(parents=True)
    (place / "agent.toml").write_text(CONFIG)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for name in ("XDG_DATA_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(place / name))
    return place


def steps_of(place: Path) -> list[str]:
    return (place / "steps").read_text().splitlines()


def test_a_branch_is_whole_or_not_there_after_a_kill(place: Path, tmp_path: Path) -> None:
    filled = tmp_path / "filled"
    with serving(place) as files:
        call = fill(files)
    shutil.copytree(place, filled)
    require_whole(place, call)
    steps = steps_of(place)
    assert {"after take", "after _make", "after sync", "a line", "after _attach"} <= set(steps)
    for point in range(0, len(steps), EVERY):
        shutil.rmtree(place)
        shutil.copytree(filled, place)
        with serving(place, point) as files, pytest.raises(OSError):
            files.create_branch("past", call)
        require_whole(place, call)


def test_a_restore_that_was_killed_does_the_rest(place: Path, tmp_path: Path) -> None:
    """Also where the kill has taken the last records: no file has changed without what it was before."""
    filled = tmp_path / "filled"
    with serving(place) as files:
        call = fill(files)
    shutil.copytree(place, filled)
    wanted = {path.removeprefix("/live"): text for path, text in BEFORE.items() if path.startswith("/live")}
    with serving(place) as files:
        assert not files.restore(["/live"], call).conflicts
        assert shown(files, "/live") == wanted
    steps = steps_of(place)
    assert {"after add", "a line"} <= set(steps)
    removed = [point for point, word in enumerate(steps) if word == "after unlink"]
    for point in range(len(steps)) if EVERY == 1 else removed:
        shutil.rmtree(place)
        shutil.copytree(filled, place)
        with serving(place, point) as files, pytest.raises(OSError):
            files.restore(["/live"], call)
        with serving(place) as files:
            assert not files.restore(["/live"], call).conflicts, (point, steps[point])
            assert shown(files, "/live") == wanted, (point, steps[point])
            assert [each for each in (place / "live").iterdir() if each.name.startswith(".")] == []
