"""`fusebackend read`, `write`, `edit`, `rm` and `mv`, over a control server without a mount."""

from __future__ import annotations

import pytest
from commands import MOUNT, commands

from fusebackend.backends import CompositeBackend, InMemoryBackend

TEXT = "one\r\ntwo\nthree\n"


@pytest.fixture
def files():
    with InMemoryBackend() as files, InMemoryBackend() as notes:
        yield CompositeBackend(files, {"/notes": notes})


@pytest.fixture
def command(files, monkeypatch):
    with commands(files, monkeypatch) as command:
        files.upload_files([("/text", TEXT.encode()), ("/binary", b"\0\xff"), ("/empty", b"")])
        yield command


def content(files, path: str) -> bytes | None:
    return files.download_files([path])[0].content


class TestRead:
    def test_byte_for_byte(self, command):
        assert command("read", f"{MOUNT}/text").stdout_bytes == TEXT.encode()
        assert command("read", f"{MOUNT}/binary").stdout_bytes == b"\0\xff"
        assert command.ok("read", f"{MOUNT}/empty") == ""

    def test_command_lines(self, command):
        command.answers(
            # Lines.
            ("ok", "two\nthree\n", "read", "--offset", 1, f"{MOUNT}/text"),
            ("ok", "one\ntwo\n", "read", "--limit", 2, f"{MOUNT}/text"),
            ("ok", "two\n", "read", "--offset", 1, "--limit", 1, f"{MOUNT}/text"),
            ("ok", "     1\tone\n     2\ttwo\n     3\tthree\n", "read", "-n", f"{MOUNT}/text"),
            ("ok", "     3\tthree\n", "read", "-n", "--offset", 2, f"{MOUNT}/text"),
            # What can not be read.
            ("refused", f"'{MOUNT}/none': No such file or directory", "read", f"{MOUNT}/none"),
            ("refused", f"File '{MOUNT}/none' not found", "read", "-n", f"{MOUNT}/none"),
            ("refused", f"'{MOUNT}': Is a directory", "read", MOUNT),
            ("refused", "…exceeds file length (3 lines)…", "read", "--offset", "9", f"{MOUNT}/text"),
            ("wrong", "…0…", "read", "--limit", "0", f"{MOUNT}/text"),
        )

    def test_more_lines_than_an_agent_is_shown(self, command, files):
        files.write("/long", "line\n" * 5000)
        assert command.ok("read", "-n", f"{MOUNT}/long").count("\n") == 5000
        assert command.ok("read", f"{MOUNT}/long") == "line\n" * 5000
        assert command.json("read", f"{MOUNT}/long")["next_offset"] == 2000
        assert command.json("read", "--limit", "3", f"{MOUNT}/long")["next_offset"] == 3

    def test_json(self, command):
        found = command.json("read", "--offset", "1", "--mount", MOUNT, "/text")
        assert found.pop("modified_at")
        assert found.pop("version")
        assert found == {
            "path": "/text", "content": "two\nthree\n", "encoding": "utf-8",
            "start_line": 2, "end_line": 3, "total_lines": 3, "next_offset": None,
        }  # fmt: skip
        found = command.json("read", f"{MOUNT}/binary")
        assert (found["content"], found["encoding"]) == ("AP8=", "base64")

    def test_a_binary_file_has_no_lines_and_is_not_for_a_terminal(self, command):
        assert "is binary and has no lines" in command.refused("read", "-n", f"{MOUNT}/binary")
        command.on_a_terminal()
        assert command.refused("read", f"{MOUNT}/binary") == (
            f"'{MOUNT}/binary' is a binary file of 2 bytes: not printed on a terminal"
        )

    def test_on_a_terminal_control_characters_are_escaped(self, command, files):
        command.on_a_terminal()
        files.upload_files([("/text", b"a\tb\x1b[2J\xff\n")])
        assert command.ok("read", f"{MOUNT}/text") == "a\tb\\033[2J\\377\n"


class TestWrite:
    @pytest.mark.parametrize("words", [(), ("-",)])
    def test_standard_input(self, command, files, words):
        assert command.ok("write", f"{MOUNT}/a/b", *words, stdin="ä\n") == ""
        assert content(files, "/a/b") == "ä\n".encode()

    def test_text(self, command, files):
        assert command.ok("write", "--mount", MOUNT, "/a", "--text", "no newline") == ""
        assert content(files, "/a") == b"no newline"
        assert command.json("write", f"{MOUNT}/b", "--text", "ä") == {"path": f"{MOUNT}/b", "size": 2}

    def test_a_file_that_is_there(self, command, files):
        assert command.refused("write", f"{MOUNT}/text", "--text", "x") == (
            f"'{MOUNT}/text' exists; --replace writes over it"
        )
        assert content(files, "/text") == TEXT.encode()
        assert command.ok("write", f"{MOUNT}/text", "--replace", "--text", "x") == ""
        assert content(files, "/text") == b"x"
        assert command.ok("write", f"{MOUNT}/new", "--replace", stdin=b"\xff") == ""
        assert content(files, "/new") == b"\xff"

    def test_also_where_the_backend_would_replace_it(self, monkeypatch):
        with InMemoryBackend(on_exists="replace") as files, commands(files, monkeypatch) as command:
            files.write("/a", "old")
            assert "exists" in command.refused("write", f"{MOUNT}/a", "--text", "new")
            assert content(files, "/a") == b"old"

    def test_what_can_not_be_written(self, command, files):
        assert command.refused("write", f"{MOUNT}/notes", "--text", "x") == f"'{MOUNT}/notes' is a directory"
        assert command.refused("write", f"{MOUNT}/new", stdin=b"a\xff") == (
            "this is no UTF-8 text (at byte 1); 'upload' stores files of any bytes"
        )
        command.answers(
            ("refused", "…Not a directory…", "write", f"{MOUNT}/text/below", "--text", "x"),
            ("wrong", "…not both…", "write", f"{MOUNT}/new", "-", "--text", "x"),
        )
        assert files.ls("/").entries == command.files.ls("/").entries

    def test_nothing_is_typed_by_accident(self, command, monkeypatch):
        import click.testing

        monkeypatch.setattr(click.testing._NamedTextIOWrapper, "isatty", lambda stream: True)
        assert "nothing to write" in command.wrong("write", f"{MOUNT}/new")


class TestEdit:
    def test_one(self, command, files):
        assert command.ok("edit", f"{MOUNT}/text", "two", "2") == "1 replacement\n"
        assert content(files, "/text") == TEXT.replace("two", "2").encode()

    def test_all(self, command, files):
        command.answers(
            ("ok", "3 replacements\n", "edit", f"{MOUNT}/text", "e", "E", "--all"),
            ("json", {"path": "/text", "occurrences": 3}, "edit", "--mount", MOUNT, "/text", "E", "e", "--all"),
        )
        assert content(files, "/text") == TEXT.encode()

    def test_strings_that_look_like_options(self, command, files):
        files.write("/options", "--all -x\n")
        assert command.ok("edit", f"{MOUNT}/options", "--", "--all", "-y") == "1 replacement\n"
        assert content(files, "/options") == b"-y -x\n"

    def test_what_can_not_be_edited(self, command, files):
        command.answers(
            (
                "refused",
                f"'{MOUNT}/text': String 'e' appears 3 times in file. Use --all to replace all instances…",
                "edit",
                f"{MOUNT}/text",
                "e",
                "E",
            ),
            ("refused", f"'{MOUNT}/text': String not found in file: 'a\\nb'", "edit", f"{MOUNT}/text", "a\nb", "x"),
            ("refused", f"'{MOUNT}/text': OLD is empty; give the text to replace", "edit", f"{MOUNT}/text", "", "x"),
            ("refused", f"File '{MOUNT}/none' not found", "edit", f"{MOUNT}/none", "a", "b"),
            ("refused", "…not UTF-8…", "edit", f"{MOUNT}/binary", "a", "b"),
            ("refused", "…s a directory…", "edit", f"{MOUNT}/notes", "a", "b"),
        )
        assert content(files, "/text") == TEXT.encode()


class TestRm:
    def test_files(self, command, files):
        assert command.ok("rm", f"{MOUNT}/text", f"{MOUNT}/empty") == ""
        assert [entry["path"] for entry in files.ls("/").entries] == ["/binary", "/notes/"]

    def test_a_directory_only_with_all_below(self, command, files):
        files.write("/dir/a", "")
        command.answers(
            ("refused", f"'{MOUNT}/dir' is a directory; -r deletes it with all below it", "rm", f"{MOUNT}/dir"),
            ("json", [f"{MOUNT}/dir"], "rm", "-r", f"{MOUNT}/dir"),
        )
        assert "/dir/" not in [entry["path"] for entry in files.ls("/").entries]

    def test_what_is_not_there(self, command):
        done = command("rm", f"{MOUNT}/none", f"{MOUNT}/text")
        assert (done.exit_code, done.stderr) == (1, f"Error: '{MOUNT}/none': No such file or directory\n")
        command.answers(
            ("refused", f"'{MOUNT}/text': No such file or directory", "rm", f"{MOUNT}/text"),
            ("json", [f"{MOUNT}/empty"], "rm", "-f", f"{MOUNT}/none", f"{MOUNT}/empty"),
            # --force is for what is not there alone.
            ("refused", "…is a directory…", "rm", "-f", f"{MOUNT}/notes"),
            ("refused", "…Not a directory…", "rm", "-f", f"{MOUNT}/binary/below"),
            # Mount points stay.
            ("refused", "…busy…", "rm", "-rf", MOUNT),
            ("refused", "…busy…", "rm", "-rf", f"{MOUNT}/notes"),
        )


class TestMv:
    def test_rename(self, command, files):
        assert command.ok("mv", f"{MOUNT}/text", f"{MOUNT}/new/name") == ""
        assert content(files, "/new/name") == TEXT.encode()
        assert content(files, "/text") is None

    def test_into_a_directory(self, command, files):
        moved = command.json("mv", "--mount", MOUNT, "/text", "/binary", "/notes")
        assert moved == [
            {"source": "/text", "path": "/notes/text"},
            {"source": "/binary", "path": "/notes/binary"},
        ]
        assert content(files, "/notes/binary") == b"\0\xff"
        assert command.ok("mv", f"{MOUNT}/empty", f"{MOUNT}/notes/") == ""

    def test_what_can_not_be_moved(self, command, files):
        there = f"'{MOUNT}/text': can't move to '{MOUNT}/binary' because it already exists."
        command.answers(
            ("refused", there, "mv", f"{MOUNT}/text", f"{MOUNT}/binary"),
            ("refused", f"File '{MOUNT}/none' not found", "mv", f"{MOUNT}/none", f"{MOUNT}/new"),
            ("refused", f"'{MOUNT}/new/' is not a directory", "mv", f"{MOUNT}/text", f"{MOUNT}/new/"),
            ("refused", f"'{MOUNT}/new' is not a directory", "mv", f"{MOUNT}/text", f"{MOUNT}/empty", f"{MOUNT}/new"),
            ("refused", "…busy…", "mv", f"{MOUNT}/notes", f"{MOUNT}/new"),
            ("wrong", "…SOURCE…", "mv"),
        )
        assert (content(files, "/text"), content(files, "/binary")) == (TEXT.encode(), b"\0\xff")

    def test_what_is_moved_besides_what_is_not(self, command, files):
        done = command("mv", "--json", "--mount", MOUNT, "/none", "/text", "/notes")
        assert (done.exit_code, done.stderr) == (1, "Error: File '/none' not found\n")
        assert content(files, "/notes/text") == TEXT.encode()


@pytest.mark.parametrize(
    "words",
    [
        ("write", f"{MOUNT}/new", "--text", "x"),
        ("write", f"{MOUNT}/text", "--replace", "--text", "x"),
        ("edit", f"{MOUNT}/text", "a", "b"),
        ("rm", f"{MOUNT}/text"),
        ("mv", f"{MOUNT}/text", f"{MOUNT}/new"),
    ],
)
def test_a_read_only_mount(words, files, monkeypatch):
    files.write("/text", "a")
    with commands(files, monkeypatch, read_only=True) as command:
        assert "Read-only file system" in command.refused(*words)
    assert content(files, "/text") == b"a"


def test_on_condition_of_a_version(command, files):
    (held,) = (entry["version"] for entry in command.json("stat", f"{MOUNT}/text"))
    assert command.json("ls", f"{MOUNT}/text")[0]["version"] == held
    files.upload_files([("/text", b"other")])
    for words in (
        ["write", "--text", "lost", f"{MOUNT}/text"],
        ["write", "--replace", "--text", "lost", f"{MOUNT}/text"],
        ["edit", f"{MOUNT}/text", "other", "lost"],
        ["mv", f"{MOUNT}/text", f"{MOUNT}/moved"],
        ["rm", f"{MOUNT}/text"],
    ):
        assert command.refused(words[0], "--if-version", held, *words[1:]).startswith(f"changed: '{MOUNT}/text' has")
    assert content(files, "/text") == b"other"
    (held,) = (entry["version"] for entry in command.json("stat", f"{MOUNT}/text"))
    assert command.ok("write", "--if-version", held, "--text", "new", f"{MOUNT}/text") == ""
    assert content(files, "/text") == b"new"
    assert "of one file" in command.wrong("rm", "--if-version", held, f"{MOUNT}/text", f"{MOUNT}/empty")
