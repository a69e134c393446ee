"""What a verb costs grows as what its caller sends: calls on the volume are counted, for the longest of paths."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from failing import CHANGES, READS
from live import live

from fusebackend.backends import FilesystemBackend, SqliteBackend
from fusebackend.backends.sqlite import flusher
from fusebackend.base.paths import ROOT
from fusebackend.history import undo as undo_module
from fusebackend.history.history_file import HistoryFile
from fusebackend.protocol import Actor
from fusebackend.testing.each import each

LEVELS = {"sqlite": 1_100, "dir": 300}
"""Directories of a path. Python's stack has 1,000 levels."""

DEPTHS = {"sqlite": (100, 300), "dir": (70, 200)}
"""Of two paths whose costs are compared."""

RULES = [
    {"operations": ["read", "write"], "paths": ["/hidden/**", "/**/secret"], "mode": "hide"},
    {"operations": ["write"], "paths": ["/**/kept", "/a/*/b"], "mode": "deny"},
]

CALLS_A_NAME = 12
"""On the volume, for each name that a verb is sent: some walks down the path, and those of the history."""

CALLS_A_LEVEL_GONE = 25
"""To delete a directory."""

CALLS_A_LEVEL_BACK = 150
"""Of an undo that frees the lock after each level: then it looks up the 64 directories above once more."""

PATHS = 50
"""In one batch."""


class Counted:
    """Counts the calls on a volume."""

    def __init__(self, volume: Any) -> None:
        self.calls = 0
        for name in {*READS, *CHANGES, "release"} - {"sync", "fsync"}:
            setattr(volume, name, functools.partial(self._count, getattr(volume, name)))

    def _count(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        self.calls += 1
        return call(*arguments, **options)


Verb = Callable[[Any, str], Any]

VERBS: dict[str, Verb] = {
    "write": lambda files, deep: files.write(f"{deep}/file", "text"),
    "read": lambda files, deep: files.read(f"{deep}/file"),
    "edit": lambda files, deep: files.edit(f"{deep}/file", "text", "other"),
    "ls": lambda files, deep: files.ls(deep),
    "glob": lambda files, deep: files.glob("*", deep),
    "grep": lambda files, deep: files.grep("other", deep),
    "move": lambda files, deep: files.move(f"{deep}/file", f"{deep}/moved"),
    "move to new directories": lambda files, deep: files.move(f"{deep}/moved", deep.replace("d", "e") + "/moved"),
    "a path without an end": lambda files, deep: files.write(deep.replace("d", "e") + "/moved/under/a/file", "text"),
}
BATCHES: dict[str, Verb] = {
    "upload_files": lambda files, deep: files.upload_files([(f"{deep}/{n}/file", b"x") for n in range(PATHS)])[0],
    "download_files": lambda files, deep: files.download_files([f"{deep}/{n}/file" for n in range(PATHS)])[0],
}


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each commit looks at what the verbs under way have made: on a slow machine there are more of them."""
    monkeypatch.setattr(flusher, "FLUSH_AFTER_S", 3600)


@contextlib.contextmanager
def served(directory: Path, kind: str, view: str | None) -> Iterator[tuple[Any, Any, Counted]]:
    """Give a server, a client of it, and the calls on its volume."""
    root = directory / "root"
    root.mkdir()
    default = SqliteBackend(directory / "volume.db") if kind == "sqlite" else FilesystemBackend(str(root))
    counted = Counted(default.volume)
    with live(directory, default, views={"agent": RULES}) as server, server.connect(view=view) as files:
        yield server, files, counted


@pytest.mark.parametrize(("kind", "view"), [("sqlite", None), ("dir", "agent")])
def test_no_verb_costs_more_than_it_is_sent(tmp_path: Path, kind: str, view: str | None) -> None:
    levels = LEVELS[kind]
    with served(tmp_path, kind, view) as (server, files, counted):
        deep, shallow = "/d" * levels, "/s" * (levels // PATHS)
        for case in each({name: (verb, deep, levels) for name, verb in VERBS.items()}
                         | {name: (verb, shallow, levels + 2 * PATHS) for name, verb in BATCHES.items()}):  # fmt: skip
            with case as (verb, path, names):
                counted.calls = 0
                error = verb(files, path).error
                assert (error is not None) == ("under" in (error or "")), error
                assert 0 < counted.calls < CALLS_A_NAME * names
        counted.calls = 0
        assert files.delete("/d").error is None
        assert counted.calls < CALLS_A_LEVEL_GONE * levels
        assert server.mount.status()["history"]["incomplete"] is None


@pytest.mark.parametrize(("kind", "view"), [("sqlite", "agent"), ("dir", None)])
def test_a_level_costs_the_same_at_any_depth(
    tmp_path: Path, kind: str, view: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(undo_module, "HELD_S", 0)  # else it depends on the machine how many levels it makes at a time

    def delete(files: Any, deep: str) -> Any:
        return files.delete("/d")

    def undo(files: Any, deep: str) -> Any:
        with server.connect() as all_files:
            return SimpleNamespace(error=all_files.undo().conflicts or None)

    write = VERBS["write"]
    verbs: dict[str, Verb] = {"write": write, "undo of the write": undo, "write again": write, "delete": delete}
    verbs |= {"undo of the delete": undo, "delete again": delete}
    costs: dict[str, list[float]] = {name: [] for name in verbs}
    with served(tmp_path, kind, view) as (server, files, counted):
        for levels in DEPTHS[kind]:
            for name, verb in verbs.items():
                counted.calls = 0
                assert verb(files, "/d" * levels).error is None
                costs[name].append(counted.calls / levels)
    for case in each(costs):
        with case as (less, more):
            assert more < (CALLS_A_LEVEL_BACK if case.name.startswith("undo") else less * 1.1)


def test_what_others_have_changed_since_is_found_in_as_many_steps_as_there_are_levels(tmp_path: Path) -> None:
    """One call has made directories in each other; another one has put something else in the place of each."""
    costs = []
    for levels in DEPTHS["sqlite"]:
        with contextlib.closing(HistoryFile(str(tmp_path / str(levels) / "history.db"))) as history:
            ours, theirs = (history.open_call("command", "make", Actor()) for _ in range(2))
            paths = [b"/d" * level for level in range(1, levels + 1)]
            numbers = [history.add(ours, ROOT, "create", path) for path in paths]
            others = [history.add(theirs, ROOT, "exchange", path + b"/new", to_path=path) for path in paths]
            steps: list[str] = []
            history._reader.set_progress_handler(functools.partial(steps.append, "a thousand of SQLite's"), 1000)
            sys.setprofile(lambda frame, event, argument, steps=steps: steps.append(event))
            try:
                found = history.overlaps([ours])
            finally:
                sys.setprofile(None)
            assert {number: last.number for number, (_, last) in found.items()} == dict.fromkeys(numbers, others[-1])
            costs.append(len(steps) / levels)
    less, more = costs
    assert more < less * 1.2
