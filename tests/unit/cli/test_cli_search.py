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
            ("/dots", b"a.b\naxb\n-e\n"),
        ])  # fmt: skip
        yield command


class TestGrep:
    def test_path_number_line(self, command):
        assert command("grep", "TODO", MOUNT).stdout_bytes.decode() == (
            f"{MOUNT}/a.md:1:one TODO\n{MOUNT}/a.md:3:TODO TODO\n{MOUNT}/dir/b.txt:1:TODO\r\n"
            f"{MOUNT}/notes/c.md:1:ä TODO\n"
        )

    def test_command_lines(self, command):
        command.answers(
            # Paths as they were given.
            ("ok", f"{MOUNT}/notes/c.md:1:ä TODO\n", "grep", "TODO", f"{MOUNT}/notes/"),
            ("ok", "/notes/c.md:1:ä TODO\n", "grep", "--mount", MOUNT, "ä", "/"),
            ("ok", "a.md:2:two\n", "grep", "--mount", MOUNT, "two", "a.md"),
            ("ok", f"{MOUNT}/a.md:2:two\n", "grep", "two"),
            # Names and counts.
            ("ok", "/a.md\n/dir/b.txt\n/notes/c.md\n", "grep", "-l", "TODO", "--mount", MOUNT),
            ("ok", "/a.md\0/dir/b.txt\0/notes/c.md\0", "grep", "-l0", "TODO", "--mount", MOUNT),
            ("ok", "/a.md:2\n/dir/b.txt:1\n/notes/c.md:1\n", "grep", "-c", "TODO", "--mount", MOUNT),
            # Only some files.
            ("ok", "/a.md\n/notes/c.md\n", "grep", "-g", "*.md", "-l", "TODO", "--mount", MOUNT),
            # Several paths.
            ("ok", "/notes/c.md:1:ä TODO\n/dir/b.txt:1:TODO\n", "grep", "--mount", MOUNT, "TODO", "/notes", "/dir"),
            # A string, and no regular expression.
            ("ok", "/dots:1:a.b\n", "grep", "--mount", MOUNT, "a.b"),
            ("ok", "/dots:3:-e\n", "grep", "--mount", MOUNT, "--", "-e"),
            # An empty pattern is in every line.
            ("ok", "a.md:1:one TODO\na.md:2:two\na.md:3:TODO TODO\n", "grep", "--mount", MOUNT, "", "a.md"),
            # A pattern of two lines.
            ("wrong", "…line break…", "grep", "a\nb", MOUNT),
        )

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
    def test_command_lines(self, command):
        command.answers(
            # Paths.
            ("ok", f"{MOUNT}/a.md\n{MOUNT}/notes/c.md\n", "glob", "*.md", MOUNT),
            ("ok", "/a.md\n", "glob", "/*.md", "--mount", MOUNT),
            ("ok", "/a.md\n/dir/b.txt\n/notes/c.md\n", "glob", "**/*.{md,txt}", "--mount", MOUNT),
            ("ok", "notes/c.md\n", "glob", "*.md", "--mount", MOUNT, "notes"),
            ("ok", "/a.md\0/notes/c.md\0", "glob", "-0", "*.md", "--mount", MOUNT),
            # Nothing found is no error.
            ("ok", "", "glob", "*.none", MOUNT),
            # What can not be searched.
            ("refused", f"'{MOUNT}/none': No such file or directory", "glob", "*", f"{MOUNT}/none"),
            ("refused", "…'..'…", "glob", "../*", MOUNT),
            ("refused", "…empty…", "glob", "", MOUNT),
            ("wrong", "…unexpected extra argument…", "glob", "a.md", "b.md", "c.md"),
        )

    def test_names_of_any_bytes(self, command, files):
        files.upload_files([("/dir/\udcff.md", b"")])
        assert command("glob", "*.md", "--mount", MOUNT, "/dir").stdout_bytes == b"/dir/\xff.md\n"

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
