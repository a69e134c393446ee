"""`fusebackend exec` and `watch`, over a control server whose shell repeats what it is given."""

from __future__ import annotations

import json
import os

import pytest
from commands import MOUNT, commands
from controlled import NoShell

from fusebackend.backends import InMemoryBackend
from fusebackend.control.client.client_connection import Pool, ServerLost
from fusebackend.protocol import ExecuteResponse, FileEvent


@pytest.fixture
def command(monkeypatch):
    with InMemoryBackend() as files, commands(files, monkeypatch) as command:
        files.write("/dir/file", "text")
        yield command


class Shell:
    """Stands in for the mount's: remembers what it was given, prints and answers what it was told."""

    def __init__(self, monkeypatch) -> None:
        self.asked: dict = {}
        self.printed: list[tuple[str, bytes]] = []
        self.answer: ExecuteResponse | Exception = ExecuteResponse("<no output>", 0)
        monkeypatch.setattr(NoShell, "execute", self.execute)

    def execute(self, command):
        self.asked = {
            "command": command.text, "timeout": command.timeout_s, "stdin": command.stdin, "cwd": command.cwd,
        }  # fmt: skip
        for stream, data in self.printed:
            command.on_output(stream, data)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def shell(monkeypatch):
    return Shell(monkeypatch)


class TestExec:
    def test_one_word_is_a_line_for_the_shell(self, command, shell):
        command.ok("exec", "--", "ls -l | sort > '/a b'")
        assert shell.asked == {"command": "ls -l | sort > '/a b'", "timeout": None, "stdin": None, "cwd": "/"}

    def test_several_are_a_command_and_its_arguments(self, command, shell):
        command.ok("exec", "--timeout", "1.5", "grep", "-r", "--timeout", "a b;", "/x")
        assert shell.asked["command"] == "grep -r --timeout 'a b;' /x"
        assert shell.asked["timeout"] == 1.5

    def test_where_it_starts(self, command, shell, monkeypatch):
        command.ok("exec", "--cwd", f"{MOUNT}/dir", "true")
        assert shell.asked["cwd"] == "/dir"
        command.ok("exec", "--mount", MOUNT, "--cwd", "dir", "true")
        assert shell.asked["cwd"] == "/dir"
        monkeypatch.setattr(os, "getcwd", lambda: f"{MOUNT}/dir")
        command.ok("exec", "true")
        assert shell.asked["cwd"] == "/dir"
        command.ok("exec", "--mount", MOUNT, "true")
        assert shell.asked["cwd"] == "/"
        command.answers(
            ("refused", "…is not a directory…", "exec", "--cwd", f"{MOUNT}/dir/file", "true"),
            ("refused", "…No such file…", "exec", "--cwd", f"{MOUNT}/none", "true"),
        )

    def test_standard_input(self, command, shell):
        command("exec", "-i", "cat", stdin=b"\0\xff")
        assert shell.asked["stdin"] == b"\0\xff"
        command("exec", "cat", stdin=b"\0\xff")
        assert shell.asked["stdin"] is None

    def test_too_much_of_it(self, command, shell, monkeypatch):
        monkeypatch.setattr("fusebackend.control.verbs.MAX_INPUT_BYTES", 10)
        assert "more than 0 MiB" in command.refused("exec", "-i", "cat", stdin=b"x" * 11)
        command.ok("exec", "-i", "cat", stdin=b"x" * 10)

    def test_output_and_exit_status_are_the_commands(self, command, shell):
        shell.printed = [("stdout", b"\xc3"), ("stderr", b"bad\n"), ("stdout", b"\xa4\xff")]
        shell.answer = ExecuteResponse("whatever\n\nExit code: 3", 3)
        done = command("exec", "x")
        assert (done.exit_code, done.stdout_bytes, done.stderr_bytes) == (3, b"\xc3\xa4\xff", b"bad\n")

    @pytest.mark.parametrize("code, message", [(124, "Command timed out after 1 seconds."), (1, "no bubblewrap here")])
    def test_what_the_server_says_of_it(self, command, shell, code, message):
        shell.printed = [("stdout", b"some\n")]
        shell.answer = ExecuteResponse(f"Error: {message}\n\nsome", code)
        done = command("exec", "x")
        assert (done.exit_code, done.stdout, done.stderr) == (code, "some\n", f"Error: {message}\n")

    def test_what_the_command_says_is_not_repeated(self, command, shell):
        shell.printed = [("stdout", b"Error: own\n")]
        shell.answer = ExecuteResponse("Error: own\n\nExit code: 1", 1)
        done = command("exec", "x")
        assert (done.stdout, done.stderr) == ("Error: own\n", "")

    def test_output_that_was_dropped(self, command, shell):
        shell.answer = ExecuteResponse("x\n\n... Output truncated at 1 bytes.", 0, True)
        assert "the rest was dropped" in command("exec", "x").stderr

    def test_what_can_not_be_run(self, command, shell):
        shell.answer = NotImplementedError("this mount runs no commands")
        assert command.refused("exec", "x") == "this mount runs no commands"
        shell.answer = ValueError("timeout must be less")
        assert command.refused("exec", "x") == "the command can't be run: timeout must be less"
        shell.answer = OSError(28, "No space left on device")
        command.answers(
            ("refused", "No space left on device", "exec", "x"),
            ("wrong", "…COMMAND…", "exec"),
            ("wrong", "…timeout…", "exec", "--timeout", "0", "x"),
        )

    @pytest.mark.parametrize("verb, message", [("stat", "'/': gone"), ("execute", "gone")])
    def test_a_server_that_is_lost(self, command, shell, monkeypatch, verb, message):
        ask = Pool.ask

        def lost(pool, kind, asked, *words):
            if asked == verb:
                raise ServerLost("gone")
            return ask(pool, kind, asked, *words)

        monkeypatch.setattr(Pool, "ask", lost)
        assert command.refused("exec", "--mount", MOUNT, "x") == message

    def test_json(self, command, shell):
        shell.printed = [("stdout", b"\xc3"), ("stderr", b"\xff"), ("stdout", b"\xa4")]
        shell.answer = ExecuteResponse("Error: Command timed out after 1 seconds.", 124, True)
        done = command("exec", "--json", "x")
        assert (done.exit_code, done.stderr) == (124, "")
        assert [json.loads(line) for line in done.stdout.splitlines()] == [
            {"stream": "stderr", "text": "\udcff"},
            {"stream": "stdout", "text": "ä"},
            {"exit_code": 124, "truncated": True, "message": "Command timed out after 1 seconds."},
        ]


class Changes:
    """Stands in for a watch: some events, then Ctrl-C."""

    def __init__(self, events: list[FileEvent | BaseException]) -> None:
        self.events = events
        self.closed = False

    def __iter__(self):
        for event in self.events:
            if isinstance(event, BaseException):
                raise event
            yield event

    def close(self) -> None:
        self.closed = True


EVENTS = [
    FileEvent("created", "/dir/\udcff", False, "api", time_ns=1_000_000_000),
    FileEvent("moved", "/dir/b/", True, "mount", "/a/", 1_000_000_000),
    FileEvent("exchanged", "/dir/b", False, "mount", "/dir/c", 1_000_000_000),
    FileEvent("unknown", "/", True, "elsewhere", None, 1_000_000_000),
]


class TestWatch:
    @pytest.fixture
    def changes(self, monkeypatch):
        changes = Changes([*EVENTS, ServerLost("the server is gone")])
        monkeypatch.setattr("fusebackend.control.client.client.Client.watch", lambda client, path: changes)
        monkeypatch.setenv("TZ", "UTC")
        import time

        time.tzset()
        yield changes
        monkeypatch.undo()
        time.tzset()

    def test_lines(self, command, changes):
        done = command("watch", f"{MOUNT}/dir")
        assert done.stdout_bytes.decode("utf-8", "surrogateescape").splitlines() == [
            f"00:00:01 created    {MOUNT}/dir/\udcff",
            f"00:00:01 moved      {MOUNT}/a/ -> {MOUNT}/dir/b/",
            f"00:00:01 exchanged  {MOUNT}/dir/c <-> {MOUNT}/dir/b",
            f"00:00:01 unknown    {MOUNT}/",
        ]
        assert (done.exit_code, done.stderr, changes.closed) == (1, "Error: the server is gone\n", True)

    def test_json(self, command, changes):
        done = command("watch", "--json", "--mount", MOUNT, "/dir")
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert lines[0] == {"kind": "watching", "path": "/dir"}
        assert lines[2] == {
            "kind": "moved", "path": "/dir/b/", "is_dir": True, "source": "mount", "moved_from": "/a/",
            "time_ns": 1_000_000_000,
        }  # fmt: skip
        assert [line["path"] for line in lines[1:]] == ["/dir/\udcff", "/dir/b/", "/dir/b", "/"]

    def test_on_a_terminal(self, command, changes):
        command.on_a_terminal()
        done = command("watch")
        assert done.stdout.splitlines()[0] == f"00:00:01 created    {MOUNT}/dir/\\377"
        assert f"fusebackend: watching '{MOUNT}'; Ctrl-C ends it\n" in done.stderr

    def test_ctrl_c(self, command, changes, monkeypatch):
        def interrupted(*words):
            raise KeyboardInterrupt

        monkeypatch.setattr("fusebackend.cli.watch._print", interrupted)
        done = command("watch", f"{MOUNT}/dir")
        assert (done.exit_code, done.output, changes.closed) == (130, "", True)

    def test_what_is_not_there_yet(self, command, changes):
        changes.events = changes.events[-1:]
        assert command("watch", f"{MOUNT}/none").stderr.splitlines()[0] == (
            f"fusebackend: '{MOUNT}/none' is not there yet"
        )

    def test_what_can_not_be_watched(self, command):
        command.answers(
            ("refused", "…lies in no mount…", "watch", "/none"),
            ("refused", "…climbs above the root…", "watch", "--mount", MOUNT, "/.."),
        )
