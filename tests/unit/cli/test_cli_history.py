"""`log`, `undo`, `df` and `prune`: what they ask, and how they show the answers. On mounts they are tested in
`tests/mounted/test_history_cli.py`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click
import pytest
from commands import MOUNT, Command, split
from for_each import for_each

from fusebackend.cli import log, space, target, view
from fusebackend.cli.show import Output
from fusebackend.control import rendezvous
from fusebackend.protocol import (
    Actor,
    ApprovalInfo,
    CallInfo,
    ChangeInfo,
    LimitInfo,
    PruneResult,
    SpaceInfo,
    UndoConflict,
    UndoneChange,
    UndoResult,
)

SECOND_NS = 10**9


class Files:
    """Stands in for the client of a mount: answers, and notes what it was asked."""

    mountpoint = MOUNT

    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.calls: list[CallInfo] = []
        self.coming: list[CallInfo] = []
        self.listed: list[ChangeInfo] = []
        self.of: list[str | None] = []
        """The branches whose changes were asked for."""
        self.undone = UndoResult([])
        self.requests: list[ApprovalInfo] = []
        self.going = PruneResult(["@1", "@2"], 3, 5 << 20)

    def log(self, calls: Any = (), **options: Any) -> list[CallInfo]:
        self.asked.append(("log", tuple(calls), options))
        if calls:
            return [each for each in self.calls if each.call in calls]
        return self.calls[: options["limit"]]

    def changes(
        self, call: str | None = None, *, after: int = 0, limit: int = 0, branch: str | None = None
    ) -> list[ChangeInfo]:
        self.of.append(branch)
        return [each for each in self.listed if call in (None, each.call) and each.number > after][:2]

    def follow_log(self, **options: Any) -> Iterator[CallInfo]:
        yield from self.coming
        raise KeyboardInterrupt

    def has_ended(self) -> bool:
        return False

    def approvals(self) -> list[ApprovalInfo]:
        return self.requests

    def undo(self, *calls: str, **options: Any) -> UndoResult:
        self.asked.append(("undo", calls, options))
        return self.undone

    def df(self) -> SpaceInfo:
        limits = [
            LimitInfo("/", 4096, 1 << 20, (1 << 20) - 4096, 1, None, None),
            LimitInfo("/m/", 0, None, None, 9, 8, 0),
        ]
        return SpaceInfo(None, 3 << 30, 1500, 0, 12 << 20, (3 << 30) + 1500, limits)

    def prune(self, *, dry_run: bool = False) -> PruneResult:
        self.asked.append(("prune", (), {"dry_run": dry_run}))
        return self.going

    def close(self) -> None: ...


@pytest.fixture
def files() -> Files:
    return Files()


@pytest.fixture
def command(files: Files, monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    monkeypatch.setattr(rendezvous, "split", split)
    monkeypatch.setattr(target, "open_client", lambda mountpoint: files)
    monkeypatch.setattr(target, "mountpoints", lambda: [MOUNT])
    return Command(files, monkeypatch)


def call(number: int, title: str = "rm -rf /repo", **fields: Any) -> CallInfo:
    began_ns = 1_000_000_000 * SECOND_NS + number
    given = {"actor": Actor(command="/usr/bin/bash -c x", uid=0), "ended_ns": began_ns, "changes": 3, **fields}
    return CallInfo(f"c{number}", str(given.pop("kind", "session")), title, began_ns=began_ns, **given)


def day(number: int) -> str:
    return log.moment(1_000_000_000 * SECOND_NS + number)


def test_log_is_a_table(command: Command, files: Files) -> None:
    files.calls = [
        call(12, "undo c9", kind="undo", actor=Actor(agent="planner"), undoes=["c9"], changes=312),
        call(9, undone_by="c12", changes=312),
        call(8, "write /a", actor=Actor(thread="t-1"), ended_ns=None),
    ]
    assert command.ok("log").splitlines() == [
        f"c12  {day(12)}  planner  312  undo c9",
        f"c9   {day(9)}  bash     312  undone by c12  rm -rf /repo",
        f"c8   {day(8)}  t-1        3  going on  write /a",
    ]
    asked = {"by": None, "since": None, "paths": [], "limit": log.SHOWN, "branch": None}
    assert files.asked == [("log", (), asked)]


def test_log_on_a_terminal_fits_it(command: Command, files: Files) -> None:
    command.on_a_terminal()
    files.calls = [call(1, "a title that is longer than any terminal is wide\x1b[2J", undone_by="c2")]
    (line,) = command.ok("log").splitlines()
    assert "…" in line
    assert line.endswith("3  undone by c2")
    assert "\x1b" not in line


def test_log_without_calls(command: Command) -> None:
    done = command("log")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "no call has changed anything" in done.stderr


def test_log_asks_for_what_is_named(command: Command, files: Files) -> None:
    files.calls = [call(2), call(1)]
    command.ok("log", "c1", "c2")
    command.ok("log", "--mount", MOUNT, "/notes", "/x", "--by", "planner", "--since", "2001-01-01T00:00Z", "-n", 5)
    asked = {"by": "planner", "since": 978307200 * SECOND_NS, "paths": ["/notes", "/x"], "limit": 5, "branch": None}
    assert files.asked == [("log", ("c1", "c2"), {}), ("log", (), asked)]


def test_log_with_changes(command: Command, files: Files) -> None:
    files.calls = [call(1)]
    files.listed = [
        ChangeInfo(1, "c1", 0, "remove", "/repo/a", type="file", size=3, kept="file"),
        ChangeInfo(2, "c1", 0, "rename", "/b", "/c"),
        ChangeInfo(3, "c1", 0, "exchange", "/d", "/e"),
        ChangeInfo(4, "c1", 0, "content", "/big", type="file", size=1 << 30, kept="lost", why_lost="above 64 MiB"),
    ]
    lines = command.ok("log", "--changes", "--mount", MOUNT).splitlines()
    assert lines[1:] == [
        "    remove     /repo/a",
        "    rename     /b -> /c",
        "    exchange   /d <-> /e",
        "    content    /big  (its bytes are lost: above 64 MiB)",
    ]
    (value,) = map(json.loads, command.ok("log", "--changes", "--json", "--mount", MOUNT).splitlines())
    assert value["call"] == "c1"
    assert value["actor"]["command"] == "/usr/bin/bash -c x"
    assert [each["path"] for each in value["changes"]] == ["/repo/a", "/b", "/d", "/big"]
    assert set(files.of) == {None}


def test_what_an_agent_says_of_itself_is_no_line_of_the_log(command: Command, files: Files) -> None:
    """Nor steers it the terminal of a pager: the output of this is a pipe."""
    files.calls = [call(1, "write /a\x1b[2J\nc7  forged", actor=Actor(agent="eve\nc8  \x1b]0;x\x07forged"))]
    files.listed = [ChangeInfo(1, "c1", 0, "rename", "/a\n    remove     /kept", "/b\x1b[2J")]
    lines = command.ok("log", "--changes", "--mount", MOUNT).splitlines()
    assert len(lines) == 2 and lines[0].startswith("c1  ")
    assert "\\nc7 \\040forged" in lines[0] and "eve\\nc8" in lines[0]
    blanks = " \\040\\040\\040"
    assert lines[1] == f"    rename     /a\\n{blanks}remove{blanks}\\040/kept -> /b\\033[2J"
    assert "\x1b" not in "".join(lines)
    info = ApprovalInfo(1, "pending", "write", ["/a"], "v", files.calls[0].actor, 0, 0, "write /a\nx\x1b")
    shown = view._request_line(Output(), info)
    assert "\n" not in shown and "\x1b" not in shown and "eve\\nc8" in shown


def test_a_request_has_one_row_on_a_terminal(command: Command, files: Files) -> None:
    """A name that fills a line, and goes on as the next row would."""
    forged = f"{'x' * 60}   2  10:00:00  alice         write /harmless\u2028\u200b"
    files.requests = [ApprovalInfo(1, "pending", "write", ["/a"], "v", call(1).actor, 0, 0, f"write /{forged}")]
    (line,) = command.ok("approval", "list").splitlines()
    assert "write /x" in line and "  2  " not in line and line.endswith("\\u2028\\u200b")
    command.on_a_terminal()
    (line,) = command.ok("approval", "list").splitlines()
    assert len(line) <= 40 and line.endswith("…")


def test_log_follows_calls_until_it_is_ended(command: Command, files: Files) -> None:
    files.calls = [call(3, "third", ended_ns=None), call(1, "first")]
    files.coming = [call(2, "second")]
    done = command("log", "-f")
    assert done.exit_code == 130
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["c1", "c2"]
    assert "give no PATH, --by, --since, -f or --branch" in command.wrong("log", "-f", "c1")


def test_undo_says_what_it_did(command: Command, files: Files) -> None:
    files.undone = UndoResult(
        ["c9"],
        "c12",
        [UndoneChange("create", "/repo/a"), UndoneChange("rename", "/b", "/c"), UndoneChange("replace", "/d")],
    )
    assert command.ok("undo", "--mount", MOUNT).splitlines() == [
        "brought back /repo/a",
        "renamed /c -> /b",
        "put back /d",
        "took back c9; 'fusebackend undo c12' takes that back",
    ]
    chosen = {"by": None, "thread": None, "since": None, "branch": None}
    options = {**chosen, "keep_newer": False, "merge_lines": False, "dry_run": False}
    assert files.asked == [("undo", (), options)]


def test_undo_lists_some_paths_of_many(command: Command, files: Files) -> None:
    files.undone = UndoResult(["c9"], "c12", [UndoneChange("create", f"/{number}") for number in range(10_000)])
    lines = command.ok("undo", "c9").splitlines()
    assert len(lines) == 22
    assert lines[-2] == "and 9980 paths more (fusebackend log c12 --changes)"


def test_a_dry_run_of_undo(command: Command, files: Files) -> None:
    files.undone = UndoResult(["c9"], None, [UndoneChange("remove", "/made")])
    done = command("undo", "-n", "c9", "--mount", MOUNT)
    assert done.exit_code == 0
    assert done.stdout == "would remove /made\n"
    assert done.stderr == "fusebackend: nothing was changed; without -n c9 is taken back\n"
    assert files.asked[0][2]["dry_run"]


def test_undo_that_has_nothing_to_do(command: Command, files: Files) -> None:
    assert command("undo").stderr == "fusebackend: there is no call to take back\n"
    files.undone = UndoResult(["c9"])
    assert command("undo", "c9").stderr == "fusebackend: everything is as it was before c9 already\n"


def test_undo_names_what_others_have_changed_and_refuses(command: Command, files: Files) -> None:
    files.undone = UndoResult(
        ["c9"], conflicts=[UndoConflict("/a", "was changed since", "c11"), UndoConflict("/b", "is open", None)]
    )
    done = command("undo", "c9", "--mount", MOUNT)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.splitlines() == [
        "Error: '/a' was changed since by c11",
        "Error: '/b' is open",
        "Error: nothing was taken back; --keep-newer leaves these as they are, and takes back the rest; --merge-lines "
        "takes only the call's own lines out of text files",
    ]
    done = command("undo", "c9", "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["conflicts"][0] == {"path": "/a", "reason": "was changed since", "call": "c11"}


def test_undo_says_what_it_left(command: Command, files: Files) -> None:
    files.undone = UndoResult(
        ["c9"], "c12", [UndoneChange("create", "/a")], [UndoConflict("/b", "was changed since", "c11")],
        partly=["the owner of '/a' could not be set"],
    )  # fmt: skip
    done = command("undo", "c9", "--keep-newer", "--mount", MOUNT)
    assert done.exit_code == 0
    assert done.stderr.splitlines() == [
        "fusebackend: left as it is: '/b' was changed since by c11",
        "fusebackend: the owner of '/a' could not be set",
    ]
    assert files.asked[0][2]["keep_newer"]


def test_undo_keeps_or_merges(command: Command) -> None:
    assert command.wrong("undo", "--keep-newer", "--merge-lines") == "--keep-newer or --merge-lines, not both"


def test_df(command: Command) -> None:
    assert command.ok("df").splitlines() == [
        "live                  ?  files as they are",
        "snapshots         3 GiB  bytes that only snapshots have",
        "images         1.46 KiB  bytes that calls replaced",
        "branches        0 bytes  files of branches",
        "log              12 MiB  calls and their records",
        "reclaimable       3 GiB  of all this, 'fusebackend prune' frees",
        "/ holds 4 KiB of 1 MiB (0.996 MiB left), 1 files and directories",
        "/m/ holds 0 bytes, 9 of 8 files and directories (0 left)",
    ]
    assert command.json("df")["live"] is None


def test_prune_asks_and_needs_yes_without_a_terminal(command: Command, files: Files) -> None:
    assert command.refused("prune").startswith("what is pruned can't be had back")
    assert [each[2]["dry_run"] for each in files.asked] == [True]
    assert command.ok("prune", "-n") == (
        "would delete 2 automatic snapshots, 3 calls of the log, and 5 MiB that undo needs\n"
    )
    files.asked.clear()
    assert command.ok("prune", "--yes").startswith("deleted 2 automatic snapshots")
    assert [each[2]["dry_run"] for each in files.asked] == [True, False]
    assert command.json("prune", "-n") == {"snapshots": ["@1", "@2"], "calls": 3, "bytes": 5 << 20}


def test_names_of_calls_are_completed(command: Command, files: Files) -> None:
    files.calls = [call(12), call(9)]
    context = click.Context(log.log, info_name="log")
    parameter = log.log.params[0]
    assert [each.value for each in log.complete_call(context, parameter, "c")] == ["c12", "c9"]
    assert [each.value for each in log.complete_call(context, parameter, "c1")] == ["c12"]


@for_each(
    ("size", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "0.977 KiB"), (1 << 20, "1 MiB"), (5 << 40, "5 TiB")],
)
def test_sizes_for_people(size: int, text: str) -> None:
    assert space.size_text(size) == text
