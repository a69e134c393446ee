"""`fusebackend grep` and `glob`, over a control server without a mount."""

from __future__ import annotations

import json

import pytest
from commands import MOUNT, commands

from fusebackend.backends import CompositeBackend, InMemoryBackend
from fusebackend.protocol import GlobResult, GrepResult


@pytest.fixture
def files():
    with InMemoryBackend() as files, InMemoryBackend() as notes:
        yield CompositeBackend(files, {"/notes": notes})


@pytest.fixture
def command(files, monkeypatch):
    with commands(files, monkeypatch) as command:
        files.upload_files([
            ("/a.md", b"one TODO\ntwo\nTODO TODO\n"),
            ("/dir/b.txt", b"TODO\r\n"),
            ("/binary", b"TODO\0"),
            ("/notes/c.md", "ä TODO\n".encode()),
        ])  # fmt: skip
        yield command


class TestGrep:
    def test_path_number_line(self, command):
        assert command("grep", "TODO", MOUNT).stdout_bytes.decode() == (
            f"{MOUNT}/a.md:1:one TODO\n{MOUNT}/a.md:3:TODO TODO\n{MOUNT}/dir/b.txt:1:TODO\r\n"
            f"{MOUNT}/notes/c.md:1:ä TODO\n"
        )

    def test_paths_as_they_were_given(self, command):
        assert command.ok("grep", "TODO", f"{MOUNT}/notes/") == f"{MOUNT}/notes/c.md:1:ä TODO\n"
        assert command.ok("grep", "--mount", MOUNT, "ä", "/") == "/notes/c.md:1:ä TODO\n"
        assert command.ok("grep", "--mount", MOUNT, "two", "a.md") == "a.md:2:two\n"
        assert command.ok("grep", "two") == f"{MOUNT}/a.md:2:two\n"

    def test_several_paths(self, command):
        assert command.ok("grep", "--mount", MOUNT, "TODO", "/notes", "/dir").splitlines() == [
            "/notes/c.md:1:ä TODO", "/dir/b.txt:1:TODO",
        ]  # fmt: skip

    def test_names_and_counts(self, command):
        assert command.ok("grep", "-l", "TODO", "--mount", MOUNT) == "/a.md\n/dir/b.txt\n/notes/c.md\n"
        assert command.ok("grep", "-l0", "TODO", "--mount", MOUNT) == "/a.md\0/dir/b.txt\0/notes/c.md\0"
        assert command.ok("grep", "-c", "TODO", "--mount", MOUNT) == "/a.md:2\n/dir/b.txt:1\n/notes/c.md:1\n"

    def test_only_some_files(self, command):
        assert command.ok("grep", "-g", "*.md", "-l", "TODO", "--mount", MOUNT) == "/a.md\n/notes/c.md\n"

    def test_a_string_and_no_regular_expression(self, command, files):
        files.write("/dots", "a.b\naxb\n-e\n")
        assert command.ok("grep", "--mount", MOUNT, "a.b") == "/dots:1:a.b\n"
        assert command.ok("grep", "--mount", MOUNT, "--", "-e") == "/dots:3:-e\n"

    def test_an_empty_pattern_is_in_every_line(self, command):
        assert command.ok("grep", "", f"{MOUNT}/a.md").count("\n") == 3

    def test_a_pattern_of_two_lines(self, command):
        assert "line break" in command.wrong("grep", "a\nb", MOUNT)

    def test_nothing_found(self, command):
        done = command("grep", "none", MOUNT)
        assert (done.exit_code, done.output) == (1, "")

    def test_what_can_not_be_searched(self, command):
        done = command("grep", "two", f"{MOUNT}/none", MOUNT)
        assert (done.exit_code, done.stdout) == (2, f"{MOUNT}/a.md:2:two\n")
        assert done.stderr == f"Error: '{MOUNT}/none': No such file or directory\n"
        assert "lies in no mount" in command.refused("grep", "two", "/none", status=2)
        assert "'..'" in command.refused("grep", "-g", "../x", "two", MOUNT, status=2)
        assert "-0 goes with -l" in command.wrong("grep", "-0", "two", MOUNT)

    def test_at_most_so_many(self, command):
        done = command("grep", "-m", "3", "TODO", "--mount", MOUNT)
        assert (done.exit_code, done.stdout.count("\n")) == (0, 3)
        assert done.stderr == "fusebackend: there are more matches than -m asked for\n"
        assert command.ok("grep", "-m", "4", "TODO", MOUNT).count("\n") == 4
        done = command("grep", "-m", "1", "TODO", "--mount", MOUNT, "/notes", "/dir")
        assert (done.stdout, "more matches" in done.stderr) == ("/notes/c.md:1:ä TODO\n", True)

    def test_not_everything_was_searched(self, command, monkeypatch):
        monkeypatch.setattr(CompositeBackend, "grep", lambda *words, **options: GrepResult(matches=[], truncated=True))
        done = command("grep", "two", MOUNT)
        assert (done.exit_code, done.stdout) == (1, "")
        assert done.stderr.startswith("fusebackend: not everything was searched")

    def test_json(self, command):
        assert command.json("grep", "two", MOUNT) == {
            "matches": [{"path": f"{MOUNT}/a.md", "line": 2, "text": "two"}],
            "truncated": False,
            "missing": None,
        }
        done = command("grep", "--json", "none", MOUNT)
        assert (done.exit_code, json.loads(done.stdout)) == (1, {"matches": [], "truncated": False, "missing": None})
        done = command("grep", "--json", "-m1", "TODO", MOUNT)
        assert (json.loads(done.stdout)["truncated"], done.stderr) == (True, "")

    def test_on_a_terminal(self, command, files, monkeypatch):
        files.upload_files([("/esc", b"\x1b[2J needle \xc2\x9b\tend\n")])
        command.on_a_terminal()
        assert command.ok("grep", "--mount", MOUNT, "needle") == "/esc:1:\\033[2J needle \\u009b\tend\n"
        monkeypatch.delenv("NO_COLOR")
        assert command.ok("grep", "--mount", MOUNT, "needle", "/esc").startswith(
            "\x1b[35m/esc\x1b[0m\x1b[36m:\x1b[0m\x1b[32m1\x1b[0m\x1b[36m:\x1b[0m\\033[2J \x1b[31m\x1b[1mneedle\x1b[0m "
        )


class TestGlob:
    def test_paths(self, command):
        assert command.ok("glob", "*.md", MOUNT) == f"{MOUNT}/a.md\n{MOUNT}/notes/c.md\n"
        assert command.ok("glob", "/*.md", "--mount", MOUNT) == "/a.md\n"
        assert command.ok("glob", "**/*.{md,txt}", "--mount", MOUNT) == "/a.md\n/dir/b.txt\n/notes/c.md\n"
        assert command.ok("glob", "*.md", "--mount", MOUNT, "notes") == "notes/c.md\n"
        assert command.ok("glob", "-0", "*.md", "--mount", MOUNT) == "/a.md\0/notes/c.md\0"

    def test_nothing_found_is_no_error(self, command):
        assert command.ok("glob", "*.none", MOUNT) == ""

    def test_names_of_any_bytes(self, command, files):
        files.upload_files([("/dir/\udcff.md", b"")])
        assert command("glob", "*.md", "--mount", MOUNT, "/dir").stdout_bytes == b"/dir/\xff.md\n"

    def test_what_can_not_be_searched(self, command):
        assert command.refused("glob", "*", f"{MOUNT}/none") == f"'{MOUNT}/none': No such file or directory"
        assert "'..'" in command.refused("glob", "../*", MOUNT)
        assert "empty" in command.refused("glob", "", MOUNT)
        assert "unexpected extra argument" in command.wrong("glob", "a.md", "b.md", "c.md")

    def test_not_everything_was_searched(self, command, monkeypatch):
        answer = GlobResult(matches=[], truncated=True, truncation_reason="budget")
        monkeypatch.setattr(CompositeBackend, "glob", lambda *words: answer)
        done = command("glob", "*", MOUNT)
        assert (done.exit_code, done.stderr) == (0, "fusebackend: not everything was searched (budget)\n")

    def test_json(self, command):
        found = command.json("glob", "a*", MOUNT)
        assert (found["truncated"], found["truncation_reason"]) == (False, None)
        (match,) = found["matches"]
        assert (match["path"], match["size"], match["is_dir"]) == (f"{MOUNT}/a.md", 23, False)
