"""A server that is killed while it makes a branch that begins with a state before the present, restores one, or moves
files between routes."""

from __future__ import annotations

import contextlib
import errno
import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import served
from live import live
from profiles import amount
from raising import raising

import fusebackend
from fusebackend.backends import FilesystemBackend
from fusebackend.backends.directory.volume import DirectoryVolume
from fusebackend.control.client.client import Client

SCRIPT = Path(__file__).with_name("branch_killed.py")
AT_EACH = bool(amount("FUSEBACKEND_BRANCH_KILLS_AT_EACH", day=0, night=1))
"""Kill at each step, which takes several minutes; by day at the first of each kind."""

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
    line = ["-c", SCRIPT.read_text(), str(point), str(place / "steps"), "serve", "--config", config]
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
    words = [word for word in dict.fromkeys(steps) if not word.startswith("before")]
    assert {"after take", "after _make", "after sync", "a line", "half a line", "after _attach"} <= set(words)
    chosen = [*map(steps.index, words), len(steps) - 1 - steps[::-1].index("after _make")]
    for point in range(len(steps)) if AT_EACH else chosen:
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
    for point in range(len(steps)) if AT_EACH else removed:
        shutil.rmtree(place)
        shutil.copytree(filled, place)
        with serving(place, point) as files, pytest.raises(OSError):
            files.restore(["/live"], call)
        with serving(place) as files:
            assert not files.restore(["/live"], call).conflicts, (point, steps[point])
            assert shown(files, "/live") == wanted, (point, steps[point])
            assert [each for each in (place / "live").iterdir() if each.name.startswith(".")] == []


def test_a_branch_goes_with_what_its_merge_has_left(tmp_path: Path) -> None:
    """Nobody would remove it afterwards. Where that can't be done the branch stays."""
    (tmp_path / "files").mkdir()
    left = tmp_path / "files/.fusebackend-merge-idea"
    with (
        live(tmp_path, FilesystemBackend(tmp_path / "files", virtual_mode=True)) as server,
        server.connect() as files,
    ):
        files.create_branch("idea")
        branches = server.mount.parts.branches
        assert branches is not None
        line = {"id": 1, "routes": ["/"]}
        Path(branches.journal("idea")).write_text(json.dumps(line) + "\n")
        left.mkdir()
        (left / "1").write_text("half")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(DirectoryVolume, "rmdir", raising(OSError(errno.EIO, "the disk fails")))
            with pytest.raises(OSError, match="what a merge of branch 'idea' has left can't be"):
                files.delete_branches("idea")
        assert [each.name for each in files.branches()] == ["idea"]
        files.delete_branches("idea")
        assert (files.branches(), list((tmp_path / "files").iterdir())) == ([], [])


TREE = {"/a": "a", "/d/b": "b" * 100_000}


@pytest.mark.parametrize(("old", "new"), [("/live/tree", "/tree"), ("/tree", "/live/tree")])
def test_a_move_between_routes_that_was_killed_leaves_the_source_or_the_copy(
    place: Path, tmp_path: Path, old: str, new: str
) -> None:
    """And nothing under the hidden names that a move gives meanwhile."""
    filled = tmp_path / "filled"
    with serving(place) as files:
        assert [each.error for each in files.upload_files([(old + path, TREE[path].encode()) for path in TREE])] == [
            None,
            None,
        ]
    shutil.copytree(place, filled)
    with serving(place) as files:
        assert files.move(old, new).error is None
        assert (shown(files, new), shown(files, old)) == (TREE, {})
        assert list((place / "XDG_DATA_HOME").rglob("@move*")) == []
    steps = steps_of(place)
    chosen = [steps.index(word) for word in ("half a line", "after mkdir", "after rename", "before unlink")]
    hidden = 0
    for point in range(len(steps)) if AT_EACH else chosen:
        shutil.rmtree(place)
        shutil.copytree(filled, place)
        with serving(place, point) as files:
            files.move(old, new)
        hidden += any(".moving-" in each.name for each in (place / "live").iterdir())
        with serving(place) as files:
            found = shown(files, new), shown(files, old)
            assert TREE in found and all(set(each) in (set(), set(TREE)) for each in found), (point, steps[point])
            assert not [
                each for at in ("/", "/live") for each in files.ls(at).entries or [] if ".moving-" in each["path"]
            ]
            assert list((place / "XDG_DATA_HOME").rglob("@move*")) == []
    assert hidden
