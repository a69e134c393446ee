"""Where the commands of a mount run: in the default backend, if it runs commands itself, and else in the sandbox."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import executing
import guests
import mounts
import pytest
from executing import commands

from fusebackend.backends import FilesystemBackend, InMemoryBackend, LocalShellBackend
from fusebackend.server.assemble import runs_commands

pytestmark = pytest.mark.mounted

MARKER = guests.MARKER


@pytest.mark.parametrize("kind", [guests.Marked, guests.Bare])
def test_any_object_with_execute_runs_commands(kind) -> None:
    assert runs_commands(kind())


def test_a_plain_shell_of_this_machine_does_not(tmp_path: Path) -> None:
    assert not runs_commands(LocalShellBackend(tmp_path))
    assert runs_commands(guests.OtherShell(tmp_path))
    assert not runs_commands(FilesystemBackend(tmp_path))
    assert not runs_commands(InMemoryBackend())


def test_a_plain_shell_of_deepagents_does_not_either(tmp_path: Path) -> None:
    theirs = pytest.importorskip("deepagents.backends")
    assert not runs_commands(theirs.LocalShellBackend(tmp_path))


def test_the_defaults_own_execute_ran(tmp_path: Path) -> None:
    with commands(tmp_path / "mnt", "python:guests:marked", "/notes=memory:") as shell:
        answer = shell.run("touch /x", timeout=1.5)
        assert answer == {"output": f"{MARKER}: 'touch /x' 2", "exit_code": 7, "truncated": False}
        assert shell.path.joinpath("left.txt").read_text() == "touch /x", "what it did shows on the mount at once"
        assert not shell.path.joinpath("x").exists()
        assert shell.run("pwd", cwd="/a b")["output"] == MARKER + ": \"cd '/a b' || exit 126\\npwd\" None"
        described = shell.describe()
        assert described["where"] == "Marked marked-1"
        assert described["unseen_routes"] == {"/notes/": "it has files of its own only"}


@pytest.mark.parametrize("url", ["shell:{tmp}", "dir:{tmp}", "memory:"])
def test_without_one_it_is_the_sandbox(tmp_path: Path, url: str) -> None:
    (tmp_path / "files").mkdir()
    with commands(tmp_path / "mnt", url.format(tmp=tmp_path / "files"), "/notes=memory:") as shell:
        shell.upload("/notes/n", b"a note")
        assert shell.output("cat /notes/n; cat /etc/passwd | wc -l") == "a note2\n"
        described = shell.describe()
        assert (described["where"], described["unseen_routes"]) == ("bubblewrap sandbox", {})


def test_what_it_can_not_do_is_said(tmp_path: Path) -> None:
    with commands(tmp_path / "mnt", "python:guests:bare", max_output_bytes=100) as shell:
        refused = shell.run("cat", stdin=b"x")
        assert refused["exit_code"] == 126
        assert refused["output"].startswith("Error: commands run in Bare, whose execute takes no standard input: ")
        assert shell.run("cat", cwd="a/../..")["exit_code"] == 126
        cut = shell.run("200")
        assert cut["truncated"] and cut["output"].startswith("x" * 100 + "\n\n... Output truncated at 100 bytes.")
        streamed = shell.start("echo", stream=True)
        assert streamed.result()["output"] == MARKER
        assert streamed.pieces == [("stdout", MARKER.encode())], "all of it, when the command has ended"


def test_one_that_can_not_be_ended_is_left_behind(tmp_path: Path) -> None:
    with commands(tmp_path / "mnt", "python:guests:bare") as shell:
        late = shell.run("wait", timeout=0.2)
        assert late["exit_code"] == 124
        assert late["output"] == (
            "Error: Command took too long. Bare can't be told to end it, so it may still run there."
        )
        pending = shell.start("wait")
        shell.cancel(pending)
        assert pending.result()["exit_code"] == 130
        assert "a command in Bare was stopped; it can't be ended there" in shell.mounted.log_text()
        ending = shell.start("wait")
        shell.close_shell()
        assert ending.result()["exit_code"] == 130
        assert shell.run("x")["output"] == "Error: the mount is ending, and takes no more commands"


def test_one_that_fails_says_how(tmp_path: Path) -> None:
    with commands(tmp_path / "mnt", "python:guests:marked") as shell:
        shell.mounted.expected_log = "Traceback|RuntimeError"
        answer = shell.run("raise")
        assert answer == {
            "output": "Error executing command: RuntimeError: the SDK has failed", "exit_code": 1, "truncated": False
        }  # fmt: skip


def test_a_read_only_mount_runs_none(tmp_path: Path) -> None:
    with commands(tmp_path / "mnt", "python:guests:marked", read_only=True) as shell:
        answer = shell.run("touch /x")
        assert answer["exit_code"] == 126
        assert answer["output"].startswith("Error: this mount is read-only, and a command in Marked marked-1 could ")


def fusebackend(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fusebackend.cli.main", *words]
    environment = {**executing.os.environ, "PYTHONPATH": executing.os.pathsep.join(mounts._module_path())}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_mount_and_status_say_where(tmp_path: Path) -> None:
    mounts.require()
    point = tmp_path / "mnt"
    point.mkdir()
    done = fusebackend("mount", str(point), "--default", "python:guests:marked", "--route", "/notes=memory:")
    assert done.returncode == 0, done.stderr
    try:
        warning = "commands run in Marked marked-1 and don't see /notes/: it has files of its own only"
        assert done.stderr == f"Warning: {warning}\n"
        (state,) = json.loads(fusebackend("status", "--json", str(point)).stdout)
        assert state["execute"]["where"] == "Marked marked-1"
        assert state["execute"]["unseen_routes"] == {"/notes/": "it has files of its own only"}
        lines = [line.strip() for line in fusebackend("status", str(point)).stdout.splitlines()]
        assert "execute: Marked marked-1" in lines
        assert "commands don't see /notes/: it has files of its own only" in lines
        ran = fusebackend("exec", "--mount", str(point), "--", "echo hello")
        assert (ran.returncode, ran.stdout) == (7, f"{MARKER}: 'echo hello' None")
    finally:
        assert fusebackend("umount", str(point)).returncode == 0
