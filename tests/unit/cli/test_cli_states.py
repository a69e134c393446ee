"""`snapshot`, `branch`, `log`, `blame`, `diff`, `undo`, `restore`, `df` and `prune`, over a server without a mount."""

from __future__ import annotations

import contextlib
import errno
import json
import re
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import Command
from live import Live, live

import fusebackend
from fusebackend import Actor, Client
from fusebackend.backends import FilesystemBackend, InMemoryBackend
from fusebackend.testing.each import each
from fusebackend.testing.posix.case import fails, refused

BRANCHES = "/.fusebackend/branches"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Two routes that keep snapshots, and one that keeps none."""
    tmp = tmp_path_factory.mktemp("states")
    (tmp / "live").mkdir()
    routes = {"/notes": InMemoryBackend(), "/live": FilesystemBackend(tmp / "live")}
    with live(tmp, InMemoryBackend(), routes) as server:
        yield server


@pytest.fixture
def files(shared: Live) -> Iterator[Client]:
    """A client of a server that is as if new."""
    with shared.connect() as client:
        yield client
        client.delete_branches(*(found.name for found in client.branches()))
        client.delete_snapshots(*(found.name for found in client.snapshots()))
        for found in client.ls("/").entries or ():
            if found["path"] not in ("/notes/", "/live/"):
                client.delete(found["path"])
        client.prune()


@pytest.fixture
def command(shared: Live, files: Client, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setenv("FUSEBACKEND_MOUNT", shared.mount.status()["control"]["socket"])
    return Command(files, monkeypatch)


def by(files: Client, agent: str, path: str, text: str) -> str:
    """Write a file as an agent; return the name of the call."""
    with fusebackend.acting(Actor(agent=agent)):
        assert files.upload_files([(path, text.encode())])[0].error is None
    return files.log(by=agent, limit=1, branch="idea" if path.startswith(BRANCHES) else None)[0].call


def test_snapshots(command: Command, files: Client) -> None:
    files.write("/d/file", "before")
    taken = command("snapshot", "create", "one")
    assert taken.stdout == "/.fusebackend/snapshots/one\n"
    assert taken.stderr == "fusebackend: not in it, for they keep no snapshots: /live/\n"
    second = command.json("snapshot", "create")
    assert second["routes"] == ["/", "/notes/"] and second["path"] == f"/.fusebackend/snapshots/{second['name']}"
    odd = command.json("snapshot", "create", "\x1b[31m new\nline \udcff")
    assert command.json("snapshot", "list")[1:] == [second, odd]
    command.on_a_terminal()
    lines = command.ok("snapshot", "list").splitlines()
    assert [line.split()[0] for line in lines] == ["one", second["name"], "\\033[31m"]
    assert lines[0].endswith("  / /notes/") and "new\\nline \\377" in lines[2]
    assert command.ok("read", "/.fusebackend/snapshots/one/d/file") == "before"
    asked = command("snapshot", "delete", "one", stdin="n\n")
    assert (asked.exit_code, "Delete snapshot 'one'? [y/N]" in asked.output) == (1, True)
    assert command("snapshot", "delete", "one", stdin="y\n").exit_code == 0
    command.ok("snapshot", "delete", odd["name"], "--yes")
    assert [found.name for found in files.snapshots()] == [second["name"]]


def test_branches(command: Command, files: Client) -> None:
    assert command("branch", "list").stderr == "fusebackend: no branches\n"
    made = command("branch", "create", "work")
    assert made.stdout == f"{BRANCHES}/work\n" == command.ok("branch", "path", "work")
    assert "live, for they keep no snapshots: /live/" in made.stderr
    files.write(f"{BRANCHES}/work/new", "new")
    (found,) = command.json("branch", "list")
    assert (found["name"], found["changes"], found["error"]) == ("work", 1, None)
    assert found["path"] == f"{BRANCHES}/work" and found["size_bytes"] > 0
    command.answers(
        ("ok", "…1 change …", "branch", "list"),
        ("refused", "…add --yes…", "branch", "delete", "work"),
    )
    command("branch", "merge", "work")
    assert "merged" in command.ok("branch", "list") and command.ok("read", "/new") == "new"
    assert "everything of 'work' already" in command("branch", "merge", "work").stderr
    command.ok("branch", "delete", "work", "--yes")
    assert files.branches() == []
    for name in ("", "..", "a/b", "-x", "@x", "10m", "main", "c42", "a..b", "x" * 250):
        with pytest.raises(ValueError, match="branch name"):
            files.create_branch(name)


def test_calls_in_a_branch(command: Command, files: Client) -> None:
    files.write("/plan", "one\n")
    files.create_branch("idea")
    first = by(files, "coder", f"{BRANCHES}/idea/other", "x")
    second = by(files, "planner", f"{BRANCHES}/idea/plan", "one\ntwo\n")
    lines = command.ok("log", "--branch", "idea", "--changes").splitlines()
    assert [line.split()[0] for line in lines[::2]] == [second, first]
    assert [line.split() for line in lines[1::2]] == [["content", "/plan"], ["create", "/other"]]
    (found,) = map(json.loads, command.ok("log", "--branch", "idea", "/other", "--json").splitlines())
    assert (found["call"], found["changes"], found["actor"]["agent"]) == (first, 1, "coder")
    command.answers(
        ("ok", "…+two\n…", "diff", second),
        ("ok", "M\tplan\n", "diff", f"{second}..idea", "--name-status"),
    )
    would = command.json("undo", "--branch", "idea", "-n")
    assert would["calls"] == [second] and would["undo"] is None
    assert re.search(rf"took back {second}; 'fusebackend undo c\d+'", command.ok("undo", second))
    assert files.download_files([f"{BRANCHES}/idea/plan"])[0].content == b"one\n"
    with pytest.raises(ValueError, match="is no call"):
        files.changes("a1", branch="idea")
    for call in ("c1", "c999"):
        refused(errno.ENOENT, files.changes, call, branch="idea")


def test_a_conversation_is_taken_back(command: Command, files: Client) -> None:
    calls = []
    for thread, path in (("one", "/a"), ("two", "/b"), ("one", "/c"), ("one", "/d")):
        with fusebackend.acting(Actor("coder", thread)):
            files.write(path, "x")
        calls.append(files.log(limit=1)[0].call)
    for case in each([
        ([calls[0], calls[2], calls[3]], ["--thread", "one"]),
        (calls[2:], ["--thread", "one", "--since", calls[1]]),
        (calls[1:], ["--since", calls[1]]),
        (calls, ["--since", "10m", "--by", "coder"]),
        ([], ["--thread", "three"]),
        ([calls[3]], ["--by", "coder"]),
    ]):  # fmt: skip
        with case as (wanted, options):
            assert command.json("undo", "-n", *options)["calls"] == wanted
    assert f"took back {' '.join(calls[2:])}; " in command.ok("undo", "--thread", "one", "--since", calls[1])
    assert [name for name in ("/a", "/b", "/c", "/d") if files.stat(name).error is None] == ["/a", "/b"]


def test_no_state_is_before_a_call_in_two_branches(files: Client) -> None:
    branches = ("idea", "other")
    for name in branches:
        files.create_branch(name)
    files.upload_files([(f"{BRANCHES}/{name}/a", b"1") for name in branches])
    call = files.log(branch="idea")[0].call
    for ask in (
        lambda: files.restore(["/a"], call),
        lambda: files.create_branch("third", call),
        lambda: files.diff(f"{call}..main"),
    ):
        with fails(errno.ENOTSUP, match=f"branches idea, other and nothing else.*undo {call}"):
            ask()
    assert not files.undo(call).conflicts
    assert all(each.error for each in files.download_files([f"{BRANCHES}/{name}/a" for name in branches]))


def test_what_is_forgotten_in_a_branch_cannot_be_taken_back(files: Client) -> None:
    files.upload_files([("/a", b"one\n"), ("/b", b"two\n")])
    files.create_branch("idea")
    by(files, "first", f"{BRANCHES}/idea/a", "hunter2\n")
    last = by(files, "other", f"{BRANCHES}/idea/a", "clean\n")
    with fusebackend.acting(Actor(agent="third", call="toolu_1")):
        files.move(f"{BRANCHES}/idea/b", f"{BRANCHES}/idea/moved")
        files.upload_files([(f"{BRANCHES}/idea/moved", b"other\n")])
    of_below = files.log(by="third", branch="idea")[0].call
    files.forget("/a", "/b")
    assert "hunter2" not in files.diff(last) and "two" not in files.diff(of_below)
    assert files.undo(last).conflicts and files.undo(of_below).conflicts


def test_what_both_changed_is_refused_and_decided(command: Command, files: Client) -> None:
    lines = "".join(f"line {number}\n" for number in range(20))
    ours, theirs = lines.replace("line 3\n", "branch\n"), lines.replace("line 15\n", "main\n")
    files.upload_files([("/plan", lines.encode()), ("/old", b"old"), ("/live/old", b"old")])
    files.create_branch("work")
    files.upload_files([(f"{BRANCHES}/work{path}", b"branch") for path in ("/old", "/live/old")])
    files.upload_files([(f"{BRANCHES}/work/plan", ours.encode()), ("/plan", theirs.encode()), ("/old", b"the mount")])
    refused = command("branch", "merge", "work")
    assert refused.exit_code == 1 and "/old': changed in both" in refused.output and "--keep-main" in refused.output
    assert files.download_files(["/live/old"])[0].content == b"old"
    assert [found["conflicts"] for found in command.json("branch", "list")] == [2]
    decided = ("branch", "merge", "work", "--merge-lines", "--keep-main")
    assert "would replace /live/old" in command(*decided, "-n").stdout
    assert files.download_files(["/live/old"])[0].content == b"old"
    assert re.search(r"'fusebackend undo c\d+'", command(*decided).stdout)
    found = [answer.content for answer in files.download_files(["/old", "/live/old", "/plan"])]
    assert found == [b"the mount", b"branch", ours.replace("line 15\n", "main\n").encode()]
    files.delete("/live/old")


def test_what_there_is_none_of_and_what_does_not_go_together(command: Command, files: Client) -> None:
    files.upload_files([("/f", b""), ("/f2", b""), ("/d/f", b"")])
    files.create_snapshot("before")
    files.create_branch("idea")
    call = by(files, "me", "/f3", "x")
    no_call = "there is no call 'c999'"
    for case in each([
        (1, "there is a snapshot 'before' already; choose another", ["snapshot", "create", "before"]),
        (1, "snapshot name 'a/b' holds a slash; give another one, such as", ["snapshot", "create", "a/b"]),
        (1, "a deleted snapshot can't be had back", ["snapshot", "delete", "before"]),
        (1, "there is no snapshot 'two', and nothing was deleted", ["snapshot", "delete", "before", "two", "--yes"]),
        (1, "there is a branch 'idea' already", ["branch", "create", "idea"]),
        (1, "there is no branch 'two'", ["branch", "delete", "idea", "two", "--yes"]),
        (1, "there is no branch 'two'", ["branch", "path", "two"]),
        (1, "there is no branch 'none'", ["log", "--branch", "none"]),
        (1, "there is no branch 'none'", ["undo", "--branch", "none"]),
        (2, "give no --branch with it", ["log", "--branch", "idea", "-f"]),
        (2, "or --branch with it", ["log", "--branch", "idea", "--verify"]),
        (2, "--verify", ["log", "--verify", "--by", "me"]),
        (2, "give no CALL, PATH, ", ["log", "--verify", "nope"]),
        (2, "--branch chooses the call", ["undo", call, "--branch", "idea"]),
        (1, "there is no call 'c999'", ["undo", "--since", "c999"]),
        (1, "'soon' is no time", ["undo", "--since", "soon"]),
        (2, "a CALL or --by, not both: --by chooses the call", ["undo", call, "--by", "nobody"]),
        (2, "a CALL or --since, not both", ["undo", call, "--since", "10m"]),
        (2, "--by is empty; without it, the newest call by anybody is taken back", ["undo", "--by", ""]),
        (2, "a CALL is shown as it is", ["log", call, "/f"]),
        (2, "a CALL is shown as it is", ["log", call, "--by", "me"]),
        (2, "a CALL is shown as it is", ["log", call, "--branch", "idea"]),
        (1, "--since: 'noon' is no time", ["log", "--since", "noon"]),
        (1, no_call, ["undo", "c999"]),
        (1, "'monday' is no call; calls have names such as 'c42'", ["undo", "monday"]),
        (1, no_call, ["log", "c999"]),
        (1, no_call, ["diff", "c999"]),
        (1, f"{call} has not changed '/f'", ["diff", call, "--", "/f"]),
        (1, no_call, ["restore", "/f", "--from", "c999"]),
        (1, "no snapshot 'gone'; there are: before", ["diff", "gone"]),
        (1, "'/gone' is neither in 'before' nor in 'main'", ["diff", "before", "--", "/gone"]),
        (1, "no snapshot is as old as '10d'; the oldest is before of ", ["diff", "10d"]),
        (1, "'/live' lies in a route of which 'before' holds nothing: ", ["diff", "before", "--", "/live"]),
        (1, "lies in the trees directory", ["diff", "before", "--", "/.fusebackend/snapshots"]),
        (1, "'/gone' is not in 'before'", ["restore", "/gone", "--from", "before"]),
        (1, "no snapshot 'after'; there are: before", ["restore", "/f", "--from", "after"]),
        (1, "everything is as in 'main' already", ["restore", "/f", "--from", "main"]),
        (1, "there is no directory '/no'", ["restore", "/f", "--from", "before", "--to", "/no/where"]),
        (1, "'/f' is not a directory", ["restore", "/f", "/f2", "--from", "before", "--to", "/f"]),
        (1, "would both become '/d/f'", ["restore", "/f", "/d/f", "--from", "before", "--to", "/d"]),
        (1, "'/d': Is a directory", ["blame", "/d"]),
        (1, "'/none': No such file or directory", ["blame", "/none"]),
        (1, "what is pruned can't be had back", ["prune"]),
    ]):  # fmt: skip
        with case as (status, error, words):
            done = command(*words)
            assert (done.exit_code, done.stdout) == (status, "")
            line = done.stderr.splitlines()[-1]
            assert line.startswith("Error: ") and error in line
            assert status == 2 or done.stderr.count("\n") == 1
    assert [found.name for found in files.snapshots() if found.name == "before"] == ["before"]
    assert files.ls("/d").entries and files.download_files(["/f3"])[0].content == b"x"


def test_a_change_of_the_log_past_the_server_is_found(command: Command, files: Client, shared: Live) -> None:
    calls = [by(files, "me", path, "x") for path in ("/one", "/two")]
    found = command.json("log", "--verify")
    assert (command.ok("log", "--verify"), found["problems"]) == ("the log is as it was written\n", [])
    with contextlib.closing(sqlite3.connect(shared.history / "history.db")) as connection, connection:
        connection.execute("UPDATE events SET kind = 'command' WHERE event = 'call' AND call = ?", (calls[1][1:],))
    done = command("log", "--verify")
    assert (done.exit_code, done.stdout) == (1, f"call {calls[1]} was changed\n")
    assert json.loads(command("log", "--verify", "--json").stdout)["problems"] == [f"call {calls[1]} was changed"]


def test_each_line_of_a_file_has_its_call(command: Command, files: Client) -> None:
    first = by(files, "planner", "/text", "one\ntwo\n")
    second = by(files, "coder", "/text", "one\nTWO\nthree\n")
    found = files.blame("/text")
    assert [(line.text, line.calls, line.others) for line in found.lines or ()] == [
        ("one", [first], False), ("TWO", [second], False), ("three", [second], False),
    ]  # fmt: skip
    head, *lines = command.ok("blame", "/text").splitlines()
    assert re.fullmatch(rf"{first} +planner +[\d:]{{8}}  1\) one", head)
    assert [line.split(") ")[1] for line in lines] == ["TWO", "three"]
    shown = command.json("blame", "/text")
    assert (shown["path"], shown["lines"][0]["calls"]) == ("/text", [first])
    files.upload_files([("/binary", b"\0")])
    assert command.ok("blame", "/binary").split()[3] == "/binary:"


def test_what_is_gone_is_restored(command: Command, files: Client) -> None:
    files.upload_files([("/d/one", b"one\n"), ("/two", b"two\n"), ("/stays", b"")])
    files.create_snapshot("before")
    for path in ("/d", "/two"):
        files.delete(path)
    files.write("/new", "new")
    shown = command("diff", "before", "--name-status").stdout.splitlines()
    assert {"D\td/one", "D\ttwo", "A\tnew"} <= set(shown)
    assert (
        "two" in command("diff", "before", "--stat").stdout
        and "-two\n" in command("diff", "before", "--", "/two").stdout
    )
    missing = ("restore", "/d/one", "/two", "--from", "before")
    assert "create     /two\n" in command.ok(*missing, "-n") and files.download_files(["/two"])[0].error
    done = command.ok(*missing)
    assert re.match(r"restored \d paths, removed 0; 'fusebackend undo c\d+' takes that back\n", done)
    assert "everything was as it is to be already" in command(*missing).stderr
    command.ok("restore", "/two", "--from", "before", "--to", "/copy")
    command.ok("restore", "/two", "/d/one", "--from", "before", "--to", "/notes/")
    paths = ["/d/one", "/two", "/copy", "/notes/two", "/notes/one"]
    found = [answer.content for answer in files.download_files(paths)]
    assert found == [b"one\n", b"two\n", b"two\n", b"two\n", b"one\n"]
    files.delete("/notes/two")
    files.delete("/notes/one")


def test_log_in_pages(files: Client) -> None:
    for number in range(5):
        files.write(f"/{number}", "x")
    newest = files.log(limit=2)
    rest = files.log(before=newest[-1].call)
    assert [found.title for found in newest + rest] == [f"write /{number}" for number in (4, 3, 2, 1, 0)]
    assert files.log(since=time.time_ns() + 10**9) == []
    assert len(files.log(since="1h")) == len(files.log(since="today")) == 5
    assert [found.title for found in files.log(paths=["/3", "/1"])] == ["write /3", "write /1"]
    with pytest.raises(ValueError, match="'noon' is no time"):
        files.log(since="noon")
    with pytest.raises(ValueError, match="is no call"):
        files.log(before="yesterday")
    files.upload_files([(f"/many/{number}", b"") for number in range(5)])
    first = files.changes(files.log(limit=1)[0].call, limit=4)
    assert [found.path for found in first] == ["/many", "/many/0", "/many/1", "/many/2"]
    more = files.changes(first[0].call, after=first[-1].number)
    assert [found.path for found in more] == ["/many/3", "/many/4"]


def test_an_actor_is_that_of_a_client_and_of_a_block(command: Command, shared: Live, files: Client) -> None:
    with shared.connect(actor=Actor(agent="planner", thread="t1")) as agent:
        agent.write("/a", "1")
        with fusebackend.acting(Actor(agent="coder", call="toolu_1")):
            agent.write("/b", "1")
            agent.write("/c", "1")
        agent.write("/d", "1")
    files.write("/e", "1")
    found = files.log()
    assert [(one.actor.agent, one.actor.thread, one.actor.call, one.changes) for one in reversed(found)] == [
        ("planner", "t1", "", 1), ("coder", "", "toolu_1", 2), ("planner", "t1", "", 1), ("", "", "", 1),
    ]  # fmt: skip
    assert [one.call for one in files.log(by="planner")] == [found[1].call, found[3].call]
    assert "toolu_1" not in command.ok("log", "--by", "planner")
    command.ok("undo", "--by", "coder")
    assert [one["path"] for one in files.ls("/").entries or ()] == ["/a", "/d", "/e", "/live/", "/notes/"]
    with pytest.raises(ValueError, match="not both"):
        files.undo(keep_newer=True, merge_lines=True)


def test_df_and_prune(command: Command, files: Client) -> None:
    files.upload_files([("/live/file", bytes(300_000))])
    files.delete("/live/file")
    taken = files.create_snapshot("mine")
    space = files.df()
    assert space.images is not None and space.log is not None and space.reclaimable is not None
    assert space.reclaimable >= space.images >= 300_000
    assert command.json("prune", "-n")["calls"] == len(files.log()) == 2
    command.ok("prune", "--yes")
    assert (files.log(), files.df().images) == ([], 0)
    assert [found.name for found in files.snapshots()] == [taken.name]
    files.write("/after", "x")
    assert files.undo().changes[0].path == "/after"
    refused(errno.ENOENT, files.log, ["c1"])


def test_a_mount_that_keeps_none_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plain").mkdir()
    history = "this mount keeps no history of calls: mount it without '-o history=off', from Python with history=\"on\""
    no_history, no_trees = {"history": False}, {"trees": "off"}
    for case in each([
        (InMemoryBackend(), no_trees, "mount without '-o trees=off'", ["snapshot", "create"]),
        (InMemoryBackend(), no_trees, "mount without '-o trees=off'", ["branch", "create", "work"]),
        (InMemoryBackend(), no_history, history, ["log"]),
        (InMemoryBackend(), no_history, history, ["undo"]),
        (InMemoryBackend(), no_history, history, ["undo", "--branch", "idea"]),
        (InMemoryBackend(), no_history, history, ["diff", "c1"]),
        (FilesystemBackend(tmp_path / "plain"), {}, "no route of this mount keeps snapshots", ["snapshot", "create"]),
    ]):  # fmt: skip
        with (
            case as (backend, options, error, words),
            live(tmp_path, backend, **options) as server,
            server.connect() as files,
        ):
            monkeypatch.setenv("FUSEBACKEND_MOUNT", server.mount.status()["control"]["socket"])
            if words[0] == "undo":
                files.create_branch("idea")
            assert error in Command(files, monkeypatch).refused(*words)
            assert files.snapshots() == [] or words[0] == "undo"
            if files.branches():
                files.delete_branches("idea")
