"""Calls as users see them, on real mounts: `log`, `diff`, `undo`, `df`, `prune`, `hook`, and the same in Python."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mounts import Mounted, Serve
from programs import command, ok, session
from trees import Entry, snapshot

import fusebackend
from fusebackend import Actor
from fusebackend.protocol import CallInfo

pytestmark = pytest.mark.mounted

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


SCENE = (
    "mkdir repo; for each in 1 2 3; do echo line $each > repo/f$each; echo $each > src/s$each; done; echo n > notes/n"
)
DAMAGE = "rm -rf repo; sed -i s/1/one/ src/s1; mv src/s2 src/moved; : > notes/n; echo new > made"


def state(mounted: Mounted) -> dict[bytes, Entry]:
    return snapshot(mounted.path, directory_times=False)


def test_what_a_session_did_is_logged_shown_and_taken_back(mounted: Mounted) -> None:
    session(SCENE, mounted.path)
    before = state(mounted)
    session(DAMAGE, mounted.path)
    damaged = state(mounted)
    newest, first = ok("log", cwd=mounted.path).splitlines()
    call = newest.split()[0]
    assert "rm -rf repo" in newest
    assert call != first.split()[0]
    names = ok("diff", "--name-status", cwd=mounted.path).splitlines()
    assert names == [
        "A\tmade", "M\tnotes/n", "D\trepo/f1", "D\trepo/f2", "D\trepo/f3", "R100\tsrc/s2\tsrc/moved", "M\tsrc/s1",
    ]  # fmt: skip
    assert ok("diff", call, "--name-status", "--", "src", cwd=mounted.path).splitlines() == names[5:]
    (lost,) = [json.loads(line) for line in ok("diff", call, "--json", "repo/f1", cwd=mounted.path).splitlines()]
    assert (lost["change"], lost["path"]) == ("deleted", "repo/f1")
    assert (
        command("diff", call, "--", "src/s3", cwd=mounted.path).stderr == f"Error: {call} has not changed '/src/s3'\n"
    )

    would = ok("undo", "-n", cwd=mounted.path)
    assert "would bring back repo/f1" in would
    assert state(mounted) == damaged
    done = ok("undo", cwd=mounted.path).splitlines()
    assert state(mounted) == before
    undo = done[-1].split("'fusebackend undo ")[1].split("'")[0]
    assert done[-1] == f"took back {call}; 'fusebackend undo {undo}' takes that back"
    assert f"undone by {undo}" in ok("log", call, cwd=mounted.path)
    ok("undo", undo, cwd=mounted.path)
    assert state(mounted) == damaged


def test_the_patch_of_a_call_is_one_that_git_takes(mounted: Mounted, tmp_path: Path) -> None:
    session(SCENE, mounted.path)
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-a", mounted.path, copy], check=True)
    session(DAMAGE, mounted.path)
    patch = ok("diff", cwd=mounted.path)
    session("echo later >> src/s1; rm made", mounted.path)
    assert ok("diff", logged(mounted)[1].call, cwd=mounted.path) == patch
    subprocess.run(["git", "apply", "--check", "-"], input=patch, text=True, cwd=copy, check=True)
    subprocess.run(["git", "apply", "-"], input=patch, text=True, cwd=copy, check=True)
    assert (copy / "src/s1").read_text() == "one\n"
    assert (copy / "made").read_text() == "new\n"
    assert not (copy / "repo").exists()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["undo", "c999"], "there is no call 'c999'"),
        (["undo", "monday"], "'monday' is no call; calls have names such as 'c42'"),
        (["log", "c999"], "there is no call 'c999'"),
        (["diff", "c999"], "there is no call 'c999'"),
        (["restore", "x", "--from", "c999"], "there is no call 'c999'"),
    ],
)
def test_a_call_that_is_not_there(mounted: Mounted, words: list[str], error: str) -> None:
    done = command(*words, cwd=mounted.path)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"Error: {error}")


def test_a_call_and_an_actor_choose_one_call_alone(mounted: Mounted) -> None:
    session("echo 1 > a", mounted.path)
    call = logged(mounted)[0].call
    for words, error in (
        ([call, "--by", "nobody"], "a CALL or --by, not both: --by chooses the call"),
        (["--by", ""], "--by is empty; without it, the newest call by anybody is taken back"),
    ):
        done = command("undo", *words, cwd=mounted.path)
        assert (done.returncode, done.stderr.splitlines()[-1]) == (2, f"Error: {error}")
    assert (mounted.path / "a").read_text() == "1\n"


def test_without_a_history(serve: Serve) -> None:
    mounted = serve("memory:", options=["history=off"])
    for words in (["log"], ["undo"], ["diff", "c1"]):
        done = command(*words, cwd=mounted.path)
        assert done.returncode == 1
        how = "mount it without '-o history=off', from Python with history=\"on\""
        assert done.stderr == f"Error: this mount keeps no history of calls: {how}\n"
    assert command("df", cwd=mounted.path).returncode == 0


# -- who acts ----------------------------------------------------------------------------------------------------------


def test_an_actor_is_that_of_a_client_and_of_a_block(mounted: Mounted) -> None:
    with fusebackend.connect(mounted.path, actor=Actor(agent="planner", thread="t1")) as files:
        files.write("/a", "1")
        with fusebackend.acting(Actor(agent="coder", call="toolu_1")):
            files.write("/b", "1")
            files.write("/c", "1")
        files.write("/d", "1")
    with fusebackend.connect(mounted.path) as files:
        files.write("/e", "1")
    found = logged(mounted)
    assert [(each.actor.agent, each.actor.thread, each.actor.call, each.changes) for each in reversed(found)] == [
        ("planner", "t1", "", 1), ("coder", "", "toolu_1", 2), ("planner", "t1", "", 1), ("", "", "", 1),
    ]  # fmt: skip
    assert {(each.actor.uid, each.actor.pid) for each in found} == {(os.geteuid(), os.getpid())}
    assert [each.call for each in logged(mounted, by="planner")] == [found[1].call, found[3].call]
    assert "toolu_1" not in ok("log", "--by", "planner", cwd=mounted.path)
    ok("undo", "--by", "coder", cwd=mounted.path)
    assert sorted(os.listdir(mounted.path)) == ["a", "d", "e", "notes", "src"]


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


def test_a_call_is_named_for_a_process_and_its_descendants(mounted: Mounted) -> None:
    with fusebackend.connect(mounted.path) as files:
        name = files.begin_call("tidy up", id="toolu_7", agent="me", thread="t")
        assert name == "toolu_7"
        (mounted.path / "one").write_text("1")
        subprocess.run(["bash", "-c", "setsid sh -c 'echo 2 > two'"], cwd=mounted.path, check=True)
        call = files.end_call(name)
        (mounted.path / "three").write_text("3")
        assert files.end_call(name) is None
        assert files.end_call(files.begin_call("nothing")) is None
        (found,) = files.log([str(call)])
        assert (found.title, found.kind, found.actor.agent, found.actor.call) == ("tidy up", "tool", "me", "toolu_7")
        assert [each.path for each in files.changes(found.call)] == ["/one", "/two"]
        files.undo(found.call)
        assert sorted(os.listdir(mounted.path)) == ["notes", "src", "three"]
        with pytest.raises(ProcessLookupError, match="there is no process"):
            files.begin_call("x", pid=2**22 + 1)


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


def test_log_in_pages(mounted: Mounted) -> None:
    with fusebackend.connect(mounted.path) as files:
        for number in range(5):
            files.write(f"/{number}", "x")
        newest = files.log(limit=2)
        rest = files.log(before=newest[-1].call)
        assert len(rest) == 3
        assert [each.title for each in newest + rest] == [f"write /{number}" for number in (4, 3, 2, 1, 0)]
        assert files.log(paths=["/3"])[0].title == "write /3"
        assert files.log(since=time.time_ns() + 10**9) == []
        assert len(files.log(since="1h")) == len(files.log(since="today")) == 5
        assert [each.title for each in files.log(paths=["/3", "/1"])] == ["write /3", "write /1"]
        with pytest.raises(ValueError, match="'noon' is no time"):
            files.log(since="noon")
        with pytest.raises(ValueError, match="is no call"):
            files.log(before="yesterday")
        files.upload_files([(f"/many/{number}", b"") for number in range(5)])
        first = files.changes(files.log(limit=1)[0].call, limit=4)
        assert [each.path for each in first] == ["/many", "/many/0", "/many/1", "/many/2"]
        more = files.changes(first[0].call, after=first[-1].number)
        assert [each.path for each in more] == ["/many/3", "/many/4"]


@contextlib.contextmanager
def following(*words: object, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "fusebackend", "log", "-f", *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=cwd, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_log_follows_changes_of_calls_that_go_on(mounted: Mounted) -> None:
    with fusebackend.connect(mounted.path, actor=Actor(agent="planner")) as files:
        files.write("/notes/before", "1")
        asked = ["--changes", "--by", "planner", mounted.path / "notes", mounted.path / "src"]
        with following(*asked, "--json", cwd=mounted.path.parent) as process:
            assert json.loads(line_of(process))["title"] == "write /notes/before"
            name = files.begin_call("work", agent="planner")
            (mounted.path / "other").write_text("1")
            (mounted.path / "notes/one").write_text("1")
            change = json.loads(line_of(process))
            assert (change["change"], change["path"]) == ("create", f"{mounted.path}/notes/one")
            files.end_call(name)
            with fusebackend.acting(Actor(agent="coder")):
                files.write("/notes/by-another", "1")
            files.write("/src/two", "1")
            assert json.loads(line_of(process))["path"] == f"{mounted.path}/src/two"


def test_following_ends_with_the_mount(serve: Serve, tmp_path: Path) -> None:
    mounted = serve(f"sqlite:{tmp_path}/volume.db")
    with fusebackend.connect(mounted.path) as files:
        files.write("/one", "1")
    with following(mounted.path, cwd=tmp_path) as process, following(mounted.path, "--changes", cwd=tmp_path) as other:
        assert "write /one" in line_of(process)
        assert "write /one" in line_of(other)
        mounted.stop()
        assert process.communicate(timeout=LIMIT_S) == ("", "")
        rest = other.communicate(timeout=LIMIT_S)
        assert (process.returncode, other.returncode, rest[1]) == (0, 0, "")


def test_calls_of_several_paths(mounted: Mounted) -> None:
    session("echo 1 > a", mounted.path)
    session("echo 1 > src/b", mounted.path)
    session("echo 1 > notes/c", mounted.path)
    listed = ok("log", mounted.path / "src", mounted.path / "notes/c", cwd=mounted.path.parent).splitlines()
    assert [line.rpartition("> ")[2] for line in listed] == ["notes/c", "src/b"]
    for words in (["c1", "a"], ["c1", "-f"], ["c1", "--by", "me"]):
        done = command("log", *words, cwd=mounted.path)
        assert (done.returncode, done.stdout) == (2, "")
        assert "a CALL is shown as it is" in done.stderr
    assert "'noon' is no time" in command("log", "--since", "noon", cwd=mounted.path).stderr


def test_a_change_of_the_log_past_the_server_is_found(mounted: Mounted) -> None:
    with fusebackend.connect(mounted.path) as files:
        files.write("/one", "1")
        files.write("/two", "2")
        directory = files.status()["history"]["path"]
    assert ok("log", "--verify", cwd=mounted.path) == "the log is as it was written\n"
    found = json.loads(ok("log", "--verify", "--json", cwd=mounted.path))
    assert found["last"] >= 4  # two calls, a change of each
    assert found == {"first": 1, "last": found["last"], "problems": []}
    connection = sqlite3.connect(f"{directory}/history.db")
    with connection:
        connection.execute("UPDATE calls SET title = 'write /three' WHERE number = 2")
    connection.close()
    done = command("log", "--verify", cwd=mounted.path)
    assert (done.returncode, done.stdout) == (1, "call c2 was changed\n")
    found = json.loads(command("log", "--verify", "--json", cwd=mounted.path).stdout)
    assert found["problems"] == ["call c2 was changed"]
    assert command("log", "--verify", "--by", "me", cwd=mounted.path).returncode == 2


def test_each_line_of_a_file_has_its_call(mounted: Mounted) -> None:
    with fusebackend.connect(mounted.path, actor=Actor(agent="planner")) as files:
        files.write("/text", "one\ntwo\n")
        files.execute("sed -i s/two/TWO/ /text; echo three >> /text")
        found = files.blame("/text")
        first, second = (call.call for call in reversed(files.log()))
        assert [(line.text, line.calls, line.others) for line in found.lines or ()] == [
            ("one", [first], False), ("TWO", [second], False), ("three", [second], False),
        ]  # fmt: skip
        assert (found.last, found.calls[second].actor.agent) == (second, "planner")
    head, *lines = ok("blame", "text", cwd=mounted.path).splitlines()
    assert re.fullmatch(rf"{first} +planner +[\d:]{{8}}  1\) one", head)
    assert [line.split(") ")[1] for line in lines] == ["TWO", "three"]
    shown = json.loads(ok("blame", "--json", mounted.path / "text", cwd=mounted.path))
    assert (shown["path"], shown["lines"][0]["calls"]) == (f"{mounted.path}/text", [first])
    (mounted.path / "src/binary").write_bytes(b"\0")
    assert ok("blame", "src/binary", cwd=mounted.path).split()[3] == "src/binary:"
    assert command("blame", "src", cwd=mounted.path).stderr == "Error: 'src': Is a directory\n"
    assert command("blame", "none", cwd=mounted.path).stderr == "Error: 'none': No such file or directory\n"


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


@pytest.mark.parametrize("agent", ["claude-code", "codex"])
def test_tool_calls_of_a_coding_agent_are_calls(
    mounted: Mounted, tmp_path: Path, agent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for variable in ("CLAUDE_CONFIG_DIR", "CODEX_HOME"):
        monkeypatch.delenv(variable, raising=False)
    ok("hook", agent, "--install", cwd=tmp_path)
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


# -- in this process, and space ----------------------------------------------------------------------------------------


def test_a_mount_of_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fusebackend.backends import InMemoryBackend

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    place = tmp_path / "mount"
    place.mkdir()
    with InMemoryBackend() as backend, fusebackend.mount(backend, place, history="on") as files:
        with fusebackend.acting(Actor(agent="planner")):
            files.write("/plan.md", "monday\n")
        (call,) = files.log(by="planner")
        assert (call.title, call.changes, call.actor.agent) == ("write /plan.md", 1, "planner")
        assert "+monday" in files.diff(call.call)
        undone = files.undo(call.call)
        assert undone.undo is not None
        assert files.ls("/").entries == []
        assert files.undo(undone.undo, dry_run=True).changes[0].path == "/plan.md"
        with pytest.raises(ValueError, match="not both"):
            files.undo(keep_newer=True, merge_lines=True)


def test_a_langgraph_tool_is_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("langgraph")
    from langchain_core.messages import AIMessage
    from langchain_core.tools import tool
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode

    from fusebackend.backends import InMemoryBackend

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    place = tmp_path / "mount"
    place.mkdir()
    with InMemoryBackend() as backend, fusebackend.mount(backend, place, history="on") as files:

        @tool
        def note(word: str) -> str:
            """Write two files."""
            files.write(f"/{word}1", word)
            files.write(f"/{word}2", word)
            return word

        graph: Any = StateGraph(MessagesState)
        graph.add_node("tools", ToolNode([note]))
        graph.add_edge(START, "tools")
        calls = [{"name": "note", "args": {"word": word}, "id": f"call_{word}"} for word in "ab"]
        config = {"configurable": {"thread_id": "t1"}, "metadata": {"lc_agent_name": "planner"}}
        graph.compile().invoke({"messages": [AIMessage("", tool_calls=calls)]}, config)
        found = files.log()
        assert [(each.kind, each.actor.agent, each.actor.thread, each.changes) for each in found] == [
            ("tool", "planner", "t1", 2), ("tool", "planner", "t1", 2),
        ]  # fmt: skip
        assert len({each.actor.call for each in found}) == 2
        files.undo(*(each.call for each in found))
        assert files.ls("/").entries == []


def test_df_and_prune(mounted: Mounted) -> None:
    session("head -c 300000 /dev/urandom > src/file", mounted.path)
    session("rm src/file", mounted.path)
    with fusebackend.connect(mounted.path) as files:
        taken = files.create_snapshot("mine")
        space = files.df()
        assert space.images is not None
        assert space.images >= 300_000
        assert space.log is not None
        assert space.reclaimable is not None
        assert space.reclaimable >= space.images
        would = json.loads(ok("prune", "-n", "--json", cwd=mounted.path))
        assert would["calls"] == len(files.log()) == 2
        assert command("prune", cwd=mounted.path).stderr.startswith("Error: what is pruned can't be had back")
        assert len(files.log()) == 2
        ok("prune", "--yes", cwd=mounted.path)
        assert files.log() == []
        assert files.df().images == 0
        assert [each.name for each in files.snapshots()] == [taken.name]
        files.write("/after", "x")
        assert files.undo().changes[0].path == "/after"
