"""Calls of processes on real mounts: named calls, `log -f`, and `hook`. What the commands print is tested without a
mount, in `tests/unit/cli/test_cli_history.py` and `test_cli_states.py`."""

from __future__ import annotations

import csv
import json
import os
import stat
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from mounts import Mounted, Serve
from programs import Beside, ok

import fusebackend
from fusebackend import Actor
from fusebackend.protocol import CallInfo

ROOT = Path(__file__).parents[2]
LIMIT_S = 60


@pytest.fixture
def mounted(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mounted:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "live").mkdir()
    return serve(f"sqlite:{tmp_path}/volume.db", routes={"/notes": "memory:", "/src": f"dir:{tmp_path}/live"})


def logged(mounted: Mounted, **options: Any) -> list[CallInfo]:
    with fusebackend.connect(mounted.path) as files:
        return files.log(**options)


# -- who acts ----------------------------------------------------------------------------------------------------------


def test_commands_of_one_client_have_the_actor_that_each_was_made_by(mounted: Mounted) -> None:
    import anyio

    async def work(files: fusebackend.Client) -> None:
        async def one(name: str) -> None:
            with fusebackend.acting(Actor(agent=name)):
                answer = await files.aexecute(f"echo {name} > /{name}; sleep 0.1")
                assert answer.exit_code == 0, answer

        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(one, f"agent{number}")

    with fusebackend.connect(mounted.path) as files:
        anyio.run(work, files)
    found = logged(mounted)
    assert sorted((each.actor.agent, each.changes, each.kind) for each in found) == [
        (f"agent{number}", 1, "command") for number in range(8)
    ]


def test_a_named_call_is_by_the_actor_of_the_client_or_the_block(mounted: Mounted) -> None:
    with fusebackend.connect(mounted.path, actor=Actor(agent="planner", thread="t1")) as files:
        first = files.begin_call("first")
        (mounted.path / "one").write_text("1")
        files.end_call(first)
        with fusebackend.acting(Actor(agent="coder", call="toolu_8")):
            assert files.begin_call("second") == "toolu_8"
            (mounted.path / "two").write_text("2")
            files.end_call("toolu_8")
            files.end_call(files.begin_call("third", agent="other", id="mine"))
        found = files.log(limit=2)
    assert [(each.title, each.actor.agent, each.actor.thread, each.actor.call) for each in found] == [
        ("second", "coder", "", "toolu_8"), ("first", "planner", "t1", ""),
    ]  # fmt: skip


def test_log_follows_changes_of_calls_that_go_on(mounted: Mounted) -> None:
    with fusebackend.connect(mounted.path, actor=Actor(agent="planner")) as files:
        files.write("/notes/before", "1")
        asked = ["--changes", "--by", "planner", mounted.path / "notes", mounted.path / "src"]
        with Beside("log", "-f", *asked, "--json") as following:
            assert json.loads(following.line())["title"] == "write /notes/before"
            name = files.begin_call("work", agent="planner")
            (mounted.path / "other").write_text("1")
            (mounted.path / "notes/one").write_text("1")
            change = json.loads(following.line())
            assert (change["change"], change["path"]) == ("create", f"{mounted.path}/notes/one")
            files.end_call(name)
            with fusebackend.acting(Actor(agent="coder")):
                files.write("/notes/by-another", "1")
            files.write("/src/two", "1")
            assert json.loads(following.line())["path"] == f"{mounted.path}/src/two"


def test_following_ends_with_the_mount(serve: Serve, tmp_path: Path) -> None:
    mounted = serve(f"sqlite:{tmp_path}/volume.db")
    with fusebackend.connect(mounted.path) as files:
        files.write("/one", "1")
    with Beside("log", "-f", mounted.path) as calls, Beside("log", "-f", mounted.path, "--changes") as changes:
        assert "write /one" in calls.line() and "write /one" in changes.line()
        mounted.stop()
        assert (calls.output.read(), calls.end(), changes.end()) == ("", (0, ""), (0, ""))


# -- hooks -------------------------------------------------------------------------------------------------------------

AGENT = r"""
import json, subprocess, sys
settings, cwd = json.load(open(sys.argv[1])), sys.argv[2]

def hooks(event, told):
    for group in settings["hooks"].get(event, []):
        for each in group["hooks"]:
            done = subprocess.run(each["command"], shell=True, input=json.dumps(told), text=True,
                                  capture_output=True, timeout=each["timeout"], cwd=cwd)
            assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done

def tool(number, name, given, work):
    told = {"session_id": "abc123", "transcript_path": "/t.jsonl", "cwd": cwd, "permission_mode": "default",
            "tool_name": name, "tool_input": given, "tool_use_id": f"toolu_{number}"}
    hooks("PreToolUse", {**told, "hook_event_name": "PreToolUse"})
    work()
    hooks("PostToolUse", {**told, "hook_event_name": "PostToolUse", "tool_response": {}})

def bash(number, command):
    def work():
        subprocess.run(["bash", "-c", command], cwd=cwd, check=True, start_new_session=True)
    tool(number, "Bash", {"command": command, "description": "x"}, work)

bash(1, "for each in 1 2 3; do (setsid sh -c 'echo more >> file'); done; mkdir d")
bash(2, "cat file")
tool(3, "Write", {"file_path": cwd + "/written", "content": "x"}, lambda: open(cwd + "/written", "w").write("x"))
bash(4, "rm -rf d file")
"""


@pytest.mark.parametrize("agent", ["claude-code", pytest.param("codex", marks=pytest.mark.night)])
def test_tool_calls_of_a_coding_agent_are_calls(
    mounted: Mounted, tmp_path: Path, agent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for variable in ("CLAUDE_CONFIG_DIR", "CODEX_HOME"):
        monkeypatch.delenv(variable, raising=False)
    words = [sys.executable, "-m", "fusebackend", "hook", agent, "--install"]  # it installs what it was called by
    subprocess.run(words, check=True, capture_output=True, timeout=LIMIT_S)
    (settings,) = home.rglob("*.json")
    program = tmp_path / "agent.py"
    program.write_text(AGENT)
    subprocess.run([sys.executable, program, settings, mounted.path], check=True, timeout=LIMIT_S)
    found = list(reversed(logged(mounted)))
    assert [(each.kind, each.actor.agent, each.actor.thread, each.actor.call) for each in found] == [
        ("tool", agent, "abc123", f"toolu_{number}") for number in (1, 3, 4)
    ]
    assert [each.title for each in found][1:] == [f"Write: {mounted.path}/written", "Bash: rm -rf d file"]
    assert not (mounted.path / "file").exists()
    ok("undo", "--by", "toolu_4", cwd=mounted.path)
    assert (mounted.path / "file").read_text() == "more\n" * 3
    assert (mounted.path / "written").read_text() == "x"


# --------------------------------------------------------------------------------------------------------------
# The log as files in `/.fusebackend/log`
# --------------------------------------------------------------------------------------------------------------


def test_calls_are_lines_of_files(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    logging = serve(f"sqlite:{tmp_path}/volume.db")
    directory = logging.path / ".fusebackend/log"
    day = f"{date.today().isoformat()}.jsonl"
    assert sorted(os.listdir(directory)) == [day, "calls.tsv", "today.jsonl"]
    assert (directory / day).read_text() == ""
    with (
        fusebackend.connect(logging.path, actor=Actor(agent="planner")) as files,
        open(directory / "today.jsonl") as following,
    ):
        files.write("/a\tb", "1")
        first = json.loads(following.read())
        files.move("/a\tb", "/c")
        second = json.loads(following.read())
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
    # What agents say steers no terminal.
    with fusebackend.connect(logging.path, actor=Actor(agent="eve\x1b]0;x\x07\nc9\u2028")) as files:
        files.write("/\x1b[2J\x9b\udcff", "1")
    for name in ("calls.tsv", "today.jsonl"):
        text = (directory / name).read_text(encoding="utf-8")
        assert not {"\x1b", "\x07", "\x9b"} & set(text), name
    *_, row = csv.DictReader((directory / "calls.tsv").read_text().splitlines(), dialect="excel-tab")
    assert (row["agent"], row["title"]) == ("eve\\033]0;x\\007\\nc9\\u2028", "write /\\033[2J\\u009b\\377")
    with fusebackend.connect(logging.path) as files:
        files.prune()
    assert (directory / "today.jsonl").read_text() == ""


@pytest.mark.parametrize("option", ["trees=off", "history=off"])
def test_without_trees_or_history_there_is_no_log(option: str, serve: Serve) -> None:
    logging = serve("memory:", options=[option])
    (logging.path / "file").write_text("x")
    assert not (logging.path / ".fusebackend/log").exists()
    found = [str(path.relative_to(logging.path)) for path in logging.path.rglob("*")]
    assert found == ["file"]
    with fusebackend.connect(logging.path) as files:
        assert files.ls("/.fusebackend/log").error is not None


def test_listings_of_visible_trees_do_not_search_the_log(serve: Serve) -> None:
    logging = serve("memory:", options=["trees=visible"])
    with fusebackend.connect(logging.path) as files:
        files.write("/secret-plan", "x")
        found = subprocess.run(
            ["grep", "-rl", "secret-plan", "."], cwd=logging.path, capture_output=True, text=True, check=False
        )
        assert found.stdout == ""
        assert files.grep("secret-plan").matches == []
    assert "secret-plan" in (logging.path / ".fusebackend/log/today.jsonl").read_text()
