"""What commands print: names of any bytes, columns, errors one by one."""

from __future__ import annotations

import io
import logging

import click
import click.testing
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusebackend.base.shown import one_line, shown
from fusebackend.cli import files, serve, status
from fusebackend.cli.show import Complaints, Failed, Output, announce, encode, write_all
from fusebackend.linux.mount_table import MountState


@given(st.binary())
def test_names_are_printed_as_the_bytes_they_are(name):
    assert encode(name.decode("utf-8", "surrogateescape")) == name


def test_what_stands_for_no_bytes_is_shown():
    assert encode("a\ud800b") == b"a\\ud800b"


@given(st.binary())
def test_names_steer_no_terminal(name):
    text = shown(name.decode("utf-8", "surrogateescape")).encode()
    assert not any(byte < 0x20 or byte == 0x7F for byte in text)
    assert not any(0x80 <= ord(character) < 0xA0 for character in text.decode())


def test_names_are_escaped_as_ls_does():
    assert shown("\u202etxt\u2066.exe\u202c ‏עברית") == "\\u202etxt\\u2066.exe\\u202c \\u200fעברית"
    assert shown("a\n\t\x1b[31m\udc80\udcff ä😀") == "a\\n\\t\\033[31m\\200\\377 ä😀"


def test_errors_are_one_line():
    assert one_line(OSError(2, "No such file or directory", "a\x1bb")) == "No such file or directory: 'a\\033b'"
    assert one_line(ValueError("a\n  b")) == "a b"
    assert one_line(ValueError()) == "ValueError"
    assert Failed("a\n\x1bb").message == "a\\n\\033b"


class Reluctant(io.RawIOBase):
    """Takes three bytes at a time, as a pipe may."""

    def __init__(self) -> None:
        self.taken = b""

    def write(self, data) -> int:
        self.taken += bytes(data[:3])
        return len(data[:3])


def test_a_stream_that_takes_a_part():
    stream = Reluctant()
    write_all(stream, b"0123456789")
    assert stream.taken == b"0123456789"


def complaining(exit_code: int, *errors: Exception | None) -> click.Command:
    @click.command()
    def command():
        complaints = Complaints(exit_code)
        for error in errors:
            with complaints:
                if error is not None:
                    raise error
        complaints.finish(7)

    return command


def test_complaints_are_lines_and_the_exit_status():
    errors = (Failed("one"), None, OSError(13, "Permission denied", "x"))
    done = click.testing.CliRunner().invoke(complaining(2, *errors))
    assert (done.exit_code, done.stderr) == (2, "Error: one\nError: Permission denied: 'x'\n")
    assert click.testing.CliRunner().invoke(complaining(2, None)).exit_code == 7


@pytest.mark.parametrize("error", [BrokenPipeError(), KeyError("bug")])
def test_what_is_no_complaint_ends_the_command(error):
    with pytest.raises(type(error)):
        click.testing.CliRunner().invoke(complaining(1, error), catch_exceptions=False, standalone_mode=False)


class TestColumns:
    def columns(self, names: list[str], width: int) -> list[str]:
        return ["".join(row) for row in files.in_columns(names, width)]

    def test_as_ls_sorts_them(self):
        assert self.columns(["a", "bb", "c", "dddd", "e"], 10) == ["a   dddd", "bb  e", "c"]
        assert self.columns(["a", "bb", "c", "dddd", "e"], 80) == ["a  bb  c  dddd  e"]
        assert self.columns(["a", "b"], 1) == ["a", "b"]
        assert self.columns([], 80) == []

    def test_wide_characters_take_two_columns(self):
        assert self.columns(["日本", "a", "b"], 7) == ["日本  b", "a"]

    @given(st.lists(st.text("ab日", min_size=1, max_size=12), max_size=40), st.integers(1, 60))
    def test_each_name_once_and_none_too_wide(self, names, width):
        from rich.cells import cell_len

        rows = list(files.in_columns(names, width))
        assert sorted(cell.rstrip() for row in rows for cell in row) == sorted(names)
        if len(rows) < len(names):
            assert all(cell_len("".join(row).rstrip()) <= width for row in rows)


def test_colours_are_for_terminals_that_want_them(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")

    class Terminal:
        buffer = io.BytesIO()
        isatty = staticmethod(lambda: True)

    monkeypatch.setattr("sys.stdout", Terminal)
    assert Output().paint("x", "red") == "\x1b[31mx\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert Output().paint("x", "red") == "x"
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert Output().paint("x", "red") == "x"


def test_one_mount_point_that_is_no_utf8_hides_no_mount(capsys):
    status._print(Output(), [MountState("/mnt/odd\udcff\n", "dead"), MountState("/mnt/plain", "dead")])
    printed = capsys.readouterr().out
    assert "/mnt/odd\\377\\n  " in printed and "/mnt/plain  " in printed


def test_what_is_announced_has_the_bytes_of_names(capsysbinary):
    announce(["mounted /mnt/\udcff", "  /  memory:"])
    assert capsysbinary.readouterr().out == b"mounted /mnt/\xff\n  /  memory:\n"


def test_a_record_of_the_log_is_one_line_whatever_the_names_in_it():
    formatter = serve._OneLine(serve.LOG_FORMAT)
    record = logging.LogRecord(
        "fusebackend", logging.WARNING, "", 0, "'%s' is lost", ("/a\n2026 ERROR \x1b\udcff",), None
    )
    text = formatter.format(record)
    assert text.endswith("WARNING fusebackend: '/a\\n2026 ERROR \\033\\377' is lost")
    text.encode()
