"""The log as files in `/.fusebackend/log`, on a real mount."""

from __future__ import annotations

import csv
import json
import os
import stat
import subprocess
from datetime import date
from pathlib import Path

import pytest
from mounts import Mounted, Serve

import fusebackend
from fusebackend import Actor

pytestmark = pytest.mark.mounted


@pytest.fixture
def mounted(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mounted:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return serve(f"sqlite:{tmp_path}/volume.db")


def test_calls_are_lines_of_files(mounted: Mounted) -> None:
    directory = mounted.path / ".fusebackend/log"
    day = f"{date.today().isoformat()}.jsonl"
    assert sorted(os.listdir(directory)) == [day, "calls.tsv", "today.jsonl"]
    assert (directory / day).read_text() == ""
    with fusebackend.connect(mounted.path, actor=Actor(agent="planner")) as files:
        files.write("/a\tb", "1")
        files.move("/a\tb", "/c")
        first, second = map(json.loads, (directory / "today.jsonl").read_text().splitlines())
        (call,) = files.log(limit=1)
        table = files.read("/.fusebackend/log/calls.tsv")
    assert (first["title"], first["actor"]["agent"], first["changes"]) == ("write /a b", "planner", 1)
    assert (second["call"], second["ended_ns"]) == (call.call, call.ended_ns)
    assert second["changed"] == [{"change": "rename", "path": "/a\tb", "to_path": "/c"}]
    assert (directory / day).read_bytes() == (directory / "today.jsonl").read_bytes()
    rows = list(csv.DictReader(str(table).splitlines(), dialect="excel-tab"))
    assert [row["title"] for row in rows] == ["write /a b", "move /a b /c"]
    for name in (day, "calls.tsv", "today.jsonl"):
        found = (directory / name).stat()
        assert found.st_size == len((directory / name).read_bytes())
        assert stat.S_IMODE(found.st_mode) == 0o400
    assert stat.S_IMODE(directory.stat().st_mode) == 0o500
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC):
        with pytest.raises(OSError, match=r"Read-only|Permission"):
            os.open(directory / "calls.tsv", flags)
    with pytest.raises(OSError, match=r"Read-only|Permission"):
        (directory / "new").write_text("x")


def test_what_agents_say_steers_no_terminal(mounted: Mounted) -> None:
    directory = mounted.path / ".fusebackend/log"
    with fusebackend.connect(mounted.path, actor=Actor(agent="eve\x1b]0;x\x07\nc9\u2028")) as files:
        files.write("/\x1b[2J\x9b\udcff", "1")
    for name in ("calls.tsv", "today.jsonl"):
        text = (directory / name).read_text(encoding="utf-8")
        assert not {"\x1b", "\x07", "\x9b"} & set(text), name
    (row,) = csv.DictReader((directory / "calls.tsv").read_text().splitlines(), dialect="excel-tab")
    assert (row["agent"], row["title"]) == ("eve\\033]0;x\\007\\nc9\\u2028", "write /\\033[2J\\u009b\\377")


def test_tail_follows_a_file_and_sees_each_call_once(mounted: Mounted) -> None:
    directory = mounted.path / ".fusebackend/log"
    tail = subprocess.Popen(
        ["tail", "-n", "+1", "-s", "0.05", "-f", directory / "today.jsonl"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert tail.stdout is not None
        with fusebackend.connect(mounted.path) as files:
            for number in range(20):
                files.write(f"/{number}", "x")
                assert json.loads(tail.stdout.readline())["title"] == f"write /{number}"
    finally:
        tail.kill()
        tail.communicate()


@pytest.mark.parametrize("option", ["trees=off", "history=off"])
def test_without_trees_or_history_there_is_no_log(option: str, serve: Serve) -> None:
    mounted = serve("memory:", options=[option])
    (mounted.path / "file").write_text("x")
    assert not (mounted.path / ".fusebackend/log").exists()
    found = [str(path.relative_to(mounted.path)) for path in mounted.path.rglob("*")]
    assert found == ["file"]
    with fusebackend.connect(mounted.path) as files:
        assert files.ls("/.fusebackend/log").error is not None


def test_listings_of_visible_trees_do_not_search_the_log(serve: Serve) -> None:
    mounted = serve("memory:", options=["trees=visible"])
    with fusebackend.connect(mounted.path) as files:
        files.write("/secret-plan", "x")
        found = subprocess.run(
            ["grep", "-rl", "secret-plan", "."], cwd=mounted.path, capture_output=True, text=True, check=False
        )
        assert found.stdout == ""
        assert files.grep("secret-plan").matches == []
    assert "secret-plan" in (mounted.path / ".fusebackend/log/today.jsonl").read_text()
