"""`fusebackend ls` and `stat`, over a control server without a mount."""

from __future__ import annotations

import os
import pwd
import stat

import pytest
from commands import MOUNT, commands

from fusebackend.backends import CompositeBackend, InMemoryBackend
from fusebackend.protocol import ROOT_NODE, Caller

ME = Caller(os.geteuid(), os.getegid())


@pytest.fixture
def files():
    with InMemoryBackend() as files:
        yield files


@pytest.fixture
def command(files, monkeypatch):
    with InMemoryBackend() as notes, commands(CompositeBackend(files, {"/notes": notes}), monkeypatch) as command:
        files.upload_files([("/b.txt", b"12345"), ("/dir/a", b""), ("/dir/sub/c", b"1"), ("/.hidden", b"")])
        yield command


class TestLs:
    def test_command_lines(self, command):
        command.answers(
            # Names with directories marked.
            ("ok", "b.txt\ndir/\nnotes/\n", "ls", MOUNT),
            ("ok", ".hidden\nb.txt\ndir/\nnotes/\n", "ls", "-a", MOUNT),
            ("ok", "a\nsub/\n", "ls", f"{MOUNT}/dir/"),
            ("ok", "", "ls", f"{MOUNT}/notes"),
            # Without a path.
            ("ok", "b.txt\ndir/\nnotes/\n", "ls"),
            # Paths of agents.
            ("ok", "/b.txt\n\n/dir:\na\nsub/\n", "ls", "--mount", MOUNT, "/dir", "/b.txt"),
            # All below.
            ("ok", "/dir:\na\nsub/\n\n/dir/sub:\nc\n", "ls", "-R", "--mount", MOUNT, "/dir"),
            # A file that was named.
            ("ok", f"… {MOUNT}/b.txt\n", "ls", "-l", f"{MOUNT}/b.txt"),
        )

    def test_files_come_first_and_directories_have_headings(self, command):
        done = command("ls", f"{MOUNT}/dir", f"{MOUNT}/none", f"{MOUNT}/b.txt")
        assert done.stdout == f"{MOUNT}/b.txt\n\n{MOUNT}/dir:\na\nsub/\n"
        assert done.stderr == f"Error: '{MOUNT}/none': No such file or directory\n"
        assert done.exit_code == 1

    def test_a_link_to_a_directory_is_not_entered(self, command, files):
        with files.volume.changing():
            files.volume.symlink(ROOT_NODE, b"loop", b".", ME)
        out = command.ok("ls", "-R", "--mount", MOUNT, "/")
        assert out.splitlines()[:5] == ["/:", "b.txt", "dir/", "loop/", "notes/"]
        assert "/loop:" not in out

    def test_long(self, command, files):
        with files.volume.changing():
            files.volume.symlink(ROOT_NODE, b"link", b"dir/a", ME)
            files.volume.mknod(ROOT_NODE, b"fifo", stat.S_IFIFO | 0o600, 0, ME)
        lines = command.ok("ls", "-l", MOUNT).splitlines()
        user = pwd.getpwuid(os.geteuid()).pw_name
        assert [line.split()[0] for line in lines] == [
            "-rw-r--r--", "drwxr-xr-x", "prw-------", "lrwxrwxrwx", "drwxr-xr-x",
        ]  # fmt: skip
        words = lines[0].split()
        assert (words[1:3], words[4], words[-1]) == (["1", user], "5", "b.txt")
        assert lines[3].endswith(" link -> dir/a")
        assert len({line.index(" 20") for line in lines}) == 1, "columns are aligned"

    def test_times_that_no_calendar_has(self, command, files):
        from fusebackend.protocol import AttrChanges

        with files.volume.changing():
            node = files.volume.lookup(ROOT_NODE, b"b.txt").node
            files.volume.setattr(node, AttrChanges(mtime_ns=(1 << 63) - 1))
        assert "22" in command.ok("ls", "-l", f"{MOUNT}/b.txt")
        assert command.ok("stat", f"{MOUNT}/b.txt")

    def test_json(self, command):
        found = command.json("ls", MOUNT)
        assert [(entry["path"], entry["is_dir"]) for entry in found] == [
            (f"{MOUNT}/b.txt", False), (f"{MOUNT}/dir/", True), (f"{MOUNT}/notes/", True),
        ]  # fmt: skip
        assert found[0]["size"] == 5
        assert set(found[0]) == {"path", "is_dir", "size", "modified_at", "version"}
        (entry,) = command.json("ls", f"{MOUNT}/b.txt")
        assert entry == found[0]

    def test_json_of_long(self, command):
        found = command.json("ls", "-l", MOUNT)
        assert found == command.json("stat", *(f"{MOUNT}/{name}" for name in ("b.txt", "dir", "notes")))

    def test_names_of_any_bytes(self, command, files):
        files.upload_files([("/\udcff\n\x1b", b"")])
        assert b"\n\xff\n\x1b\n" in b"\n" + command("ls", MOUNT).stdout_bytes
        assert f"{MOUNT}/\udcff\n\x1b" in [entry["path"] for entry in command.json("ls", MOUNT)]

    def test_on_a_terminal_there_are_columns_and_no_control_characters(self, command, files):
        command.on_a_terminal()
        files.upload_files([("/\udcff\n\x1b", b"")])
        command.answers(
            ("ok", "b.txt  dir/  notes/  \\377\\n\\033\n", "ls", MOUNT),
            ("ok", "b.txt\ndir/\nnotes/\n\\377\\n\\033\n", "ls", "-1", MOUNT),
        )

    def test_a_directory_that_can_not_be_listed(self, command, files, monkeypatch):
        from fusebackend.protocol import LsResult

        monkeypatch.setattr(type(files), "ls", lambda self, path: LsResult(error=f"Path '{path}': permission_denied"))
        done = command("ls", "--mount", MOUNT, "/", "/notes")
        assert done.exit_code == 1
        assert "Error: Path '/': Permission denied" in done.stderr


class TestStat:
    def test_what_is_told(self, command):
        out = command.ok("stat", f"{MOUNT}/b.txt")
        assert out.startswith(f"    path: {MOUNT}/b.txt\n    type: file\n    size: 5 bytes\n")
        assert "\n    mode: 0644 (-rw-r--r--)\n   links: 1\n" in out
        assert "\n   route: /\n version: " in out

    def test_several(self, command):
        out = command.ok("stat", "--mount", MOUNT, "/b.txt", "/notes")
        first, second = out.split("\n\n")
        assert first.startswith("    path: /b.txt\n")
        assert second.endswith("   route: /notes/\n"), "a directory has no version"

    def test_links(self, command, files):
        with files.volume.changing():
            files.volume.symlink(ROOT_NODE, b"link", b"b.txt", ME)
        (found,) = command.json("stat", f"{MOUNT}/link")
        assert (found["type"], found["target"]) == ("symlink", "b.txt")
        (found,) = command.json("stat", "-L", f"{MOUNT}/link")
        assert (found["type"], found["size"], found["target"]) == ("file", 5, None)

    def test_json(self, command):
        (found,) = command.json("stat", f"{MOUNT}/b.txt")
        assert list(found) == [
            "path", "type", "size", "mode", "nlink", "uid", "gid", "atime_ns", "mtime_ns", "ctime_ns", "target",
            "route", "version",
        ]  # fmt: skip

    def test_what_is_not_there(self, command):
        command.answers(
            ("refused", f"'{MOUNT}/none': No such file or directory", "stat", f"{MOUNT}/none"),
            ("refused", f"File '{MOUNT}/b.txt/x': Not a directory", "stat", f"{MOUNT}/b.txt/x"),
            ("wrong", "…PATH…", "stat"),
        )
        done = command("stat", "--json", f"{MOUNT}/none", f"{MOUNT}/b.txt")
        assert (done.exit_code, done.stdout.count('"path"')) == (1, 1)
