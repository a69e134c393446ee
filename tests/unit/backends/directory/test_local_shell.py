"""`LocalShellBackend`: what a command prints, how it ends, and what it may leave behind."""

from __future__ import annotations

import os
import re
import resource
import signal
import threading
import time

import pytest
from for_each import for_each

from fusebackend.backends.directory.backend import LocalShellBackend
from fusebackend.protocol import Change, SandboxBackendProtocol


@pytest.fixture
def shell(tmp_path):
    with LocalShellBackend(tmp_path) as shell:
        yield shell


def gone(pid: int, within_s: float = 10.0) -> bool:
    """Is the process gone, or a zombie that waits for its parent?"""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.01)
    return False


# -- output ------------------------------------------------------------------------------------------------------------


@for_each(
    ("command", "output", "code"),
    [
        ("echo hello", "hello\n", 0),
        ("printf hello", "hello", 0),
        ("true", "<no output>", 0),
        ("false", "<no output>\n\nExit code: 1", 1),
        ("echo out; echo err >&2; echo more >&2", "out\n[stderr] err\n[stderr] more", 0),
        ("printf out; echo err >&2", "out\n[stderr] err", 0),
        ("printf 'one\\n\\ntwo\\n' >&2; exit 3", "[stderr] one\n[stderr] \n[stderr] two\n\nExit code: 3", 3),
        ("echo out; exit 255", "out\n\nExit code: 255", 255),
        ("kill -TERM $$", "<no output>\n\nExit code: 143", 143),
        ("printf '\\303\\274 \\377'", "ü �", 0),
        ("cat; echo end of input", "end of input\n", 0),
        ("exec >&-; exec 2>&-; exit 4", "<no output>\n\nExit code: 4", 4),
    ],
)
def test_output_and_exit_code(shell, command, output, code):
    response = shell.execute(command)
    assert (response.output, response.exit_code, response.truncated) == (output, code, False)


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


@for_each("command", ["", "  \n", None, 5])
def test_no_command(shell, command):
    response = shell.execute(command)
    assert response.output.startswith("Error: ")
    assert response.exit_code == 1


@pytest.mark.parametrize("command", ["a\0b", "x" * 200_000, "\ud800"])
def test_a_command_that_can_not_be_started(shell, command):
    response = shell.execute(command)
    assert response.output.startswith("Error executing command: ")
    assert response.exit_code == 1


def test_a_root_that_is_gone(shell, tmp_path):
    tmp_path.rmdir()
    assert shell.execute("true").output.startswith("Error executing command: ")
    tmp_path.mkdir()


def test_output_is_cut_at_its_limit(tmp_path):
    with LocalShellBackend(tmp_path, max_output_bytes=10) as shell:
        response = shell.execute("printf 0123456789abc; exit 2")
        assert response.output == "0123456789\n\n... Output truncated at 10 bytes.\n\nExit code: 2"
        assert response.truncated
        assert shell.execute("printf 0123456789").output == "0123456789"
        assert shell.execute("printf 01234; printf 56 >&2").output == "01234\n[std\n\n... Output truncated at 10 bytes."
        assert shell.execute("printf '123456789ü'").output == "123456789\n\n... Output truncated at 10 bytes."


def test_a_flood_does_not_fill_the_memory(tmp_path):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with LocalShellBackend(tmp_path, max_output_bytes=1000) as shell:
        response = shell.execute("head -c 300000000 /dev/zero | tr '\\0' y; head -c 100000000 /dev/zero >&2; echo")
    assert (response.exit_code, response.truncated, len(response.output)) == (0, True, 1000 + 37)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 50_000


# -- time --------------------------------------------------------------------------------------------------------------


def test_a_time_out_ends_the_whole_group(tmp_path):
    with LocalShellBackend(tmp_path, timeout=1) as shell:
        response = shell.execute("sleep 1000 & echo $!; echo $$; trap '' TERM; wait; sleep 1000")
    assert response.exit_code == 124
    assert response.output.startswith("Error: Command timed out after 1 seconds.")
    pids = [int(word) for word in re.findall(r"^\d+$", response.output, re.MULTILINE)]
    assert len(pids) == 2, "what it printed before is shown"
    assert all(gone(pid) for pid in pids)


def test_a_time_out_for_one_command(shell):
    begin = time.monotonic()
    response = shell.execute("yes", timeout=1)
    assert time.monotonic() - begin < 30
    assert (response.exit_code, response.truncated) == (124, True)
    assert response.output.startswith("Error: Command timed out after 1 seconds.\n\ny\ny\n")
    assert shell.execute("sleep 1000", timeout=1).output == "Error: Command timed out after 1 seconds."


@pytest.mark.parametrize("seconds", [0, -1])
def test_a_time_out_must_be_above_0(tmp_path, shell, seconds):
    with pytest.raises(ValueError, match="above 0"):
        LocalShellBackend(tmp_path, timeout=seconds)
    with pytest.raises(ValueError, match="above 0"):
        shell.execute("true", timeout=seconds)


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
    assert gone(pid), "nobody reads what it writes"


def test_commands_in_two_threads(shell):
    results = {}

    def run(number):
        results[number] = shell.execute(f"sleep 0.2; echo {number}").output

    threads = [threading.Thread(target=run, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
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


def test_it_is_a_sandbox_with_an_id_and_file_verbs(tmp_path):
    first, second = LocalShellBackend(tmp_path), LocalShellBackend(tmp_path, virtual_mode=False)
    assert isinstance(first, SandboxBackendProtocol)
    assert re.fullmatch(r"local-[0-9a-f]{8}", first.id)
    assert first.id == first.id != second.id
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


@pytest.mark.trio
async def test_aexecute_under_trio(shell):
    assert (await shell.aexecute("echo x", timeout=10)).output == "x\n"
