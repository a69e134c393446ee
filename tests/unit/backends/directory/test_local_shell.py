"""`LocalShellBackend`: what a command prints, how it ends, and what it may leave behind."""

from __future__ import annotations

import os
import re
import signal
import time
from functools import partial
from pathlib import Path

import pytest
from command_cases import CommandCases
from eventually import eventually
from for_each import for_each
from together import together

from fusebackend.backends.directory.backend import LocalShellBackend
from fusebackend.protocol import Change


@pytest.fixture
def shell(tmp_path):
    with LocalShellBackend(tmp_path) as shell:
        yield shell


def gone(pid: int) -> bool:
    """Is the process gone, or a zombie that waits for its parent?"""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


class TestCommands(CommandCases):
    id_form = r"local-[0-9a-f]{8}"

    @pytest.fixture
    def made(self, tmp_path):
        return partial(LocalShellBackend, tmp_path)

    @pytest.fixture
    def backend(self, shell):
        return shell


# -- output ------------------------------------------------------------------------------------------------------------


def test_standard_error_counts_with_its_prefix(tmp_path):
    with LocalShellBackend(tmp_path, max_output_bytes=10) as shell:
        assert shell.execute("printf 01234; printf 56 >&2").output == "01234\n[std\n\n... Output truncated at 10 bytes."


def test_commands_run_in_the_root_and_see_the_files(shell, tmp_path):
    shell.write("/dir/file.txt", "abc")
    assert shell.execute("pwd").output == f"{tmp_path}\n"
    assert shell.execute("cat dir/file.txt; printf def > dir/new").output == "abc"
    assert "def" in shell.read("/dir/new")


def test_a_command_may_have_changed_anything(shell):
    changes = []
    stop = shell.volume.subscribe(changes.append)
    shell.execute("touch x")
    stop()
    assert changes == [Change()]


@for_each(
    ("command", "words"),
    [
        *((none, "Error: ") for none in ("", "  \n", None, 5)),
        *((impossible, "Error executing command: ") for impossible in ("a\0b", "x" * 200_000, "\ud800")),
    ],
)
def test_what_is_no_command_or_can_not_be_started(shell, command, words):
    response = shell.execute(command)
    assert response.output.startswith(words)
    assert response.exit_code == 1


def test_a_root_that_is_gone(shell, tmp_path):
    tmp_path.rmdir()
    assert shell.execute("true").output.startswith("Error executing command: ")
    tmp_path.mkdir()


# -- time --------------------------------------------------------------------------------------------------------------


def test_a_time_out_ends_the_whole_group(tmp_path):
    with LocalShellBackend(tmp_path, timeout=1) as shell:
        response = shell.execute("sleep 1000 & echo $!; echo $$; trap '' TERM; wait; sleep 1000")
    assert response.exit_code == 124
    assert response.output.startswith("Error: Command timed out after 1 seconds.")
    pids = [int(word) for word in re.findall(r"^\d+$", response.output, re.MULTILINE)]
    assert len(pids) == 2, "what it printed before is shown"
    eventually(lambda: all(gone(pid) for pid in pids), 10)


@pytest.mark.parametrize("background", ["sleep 1000", "yes", "yes >&2"])
def test_a_background_child_that_holds_the_pipe_is_not_waited_for(shell, background):
    begin = time.monotonic()
    response = shell.execute(f"{background} & echo $!; sleep 0.1")
    assert time.monotonic() - begin < 30
    assert response.exit_code == 0
    pid = int(re.search(r"^\d+$", response.output, re.MULTILINE)[0])
    if background == "sleep 1000":
        os.kill(pid, 0)  # it goes on
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: gone(pid), 10, "it writes on, though nobody reads it: it did not end")


def test_commands_in_two_threads(shell):
    results = {}

    def run(number):
        results[number] = shell.execute(f"sleep 0.2; echo {number}").output

    together(*(partial(run, number) for number in range(5)))
    assert results == {number: f"{number}\n" for number in range(5)}


def test_nothing_is_left_open(shell):
    before = len(os.listdir("/proc/self/fd"))
    shell.execute("echo x")
    shell.execute("sleep 1000", timeout=1)
    assert len(os.listdir("/proc/self/fd")) == before


# -- environment -------------------------------------------------------------------------------------------------------


def test_the_environment_is_empty_unless_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("API_KEY", "secret")
    with LocalShellBackend(tmp_path) as shell:
        assert shell.execute("echo ${API_KEY-none}").output == "none\n"
    with LocalShellBackend(tmp_path, env={"MINE": "1"}) as shell:
        assert shell.execute("echo ${API_KEY-none} $MINE").output == "none 1\n"
    with LocalShellBackend(tmp_path, env={"MINE": "1", "API_KEY": "other"}, inherit_env=True) as shell:
        assert shell.execute("echo $API_KEY $MINE").output == "other 1\n"
    with LocalShellBackend(tmp_path, inherit_env=True) as shell:
        assert shell.execute("echo $API_KEY").output == "secret\n"


def test_it_has_file_verbs(tmp_path):
    first, second = LocalShellBackend(tmp_path), LocalShellBackend(tmp_path, virtual_mode=False)
    assert first.write("/file", "x").error is None
    assert "traversal" in first.read("/../file").error
    assert "x" in second.read("file")
    first.close()
    second.close()


def test_the_options_of_the_file_verbs(tmp_path):
    with LocalShellBackend(tmp_path, max_file_size_mb=1, on_exists="replace") as shell:
        assert shell.max_file_size_bytes == 1 << 20
        shell.write("/file", "1")
        assert shell.write("/file", "2").error is None
    with pytest.raises(ValueError, match="max_output_bytes"):
        LocalShellBackend(tmp_path, max_output_bytes=-1)
