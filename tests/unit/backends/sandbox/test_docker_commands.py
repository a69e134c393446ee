"""Commands in a container: what they print, how they end, and what they leave."""

from __future__ import annotations

import contextlib
import os
import re
import time
from functools import partial

import anyio
import pytest
from command_cases import CommandCases
from eventually import eventually
from for_each import for_each
from together import beside, together

from fusebackend.backends import DockerBackend
from fusebackend.backends.sandbox.docker_exec import connect, engine_errors


@pytest.fixture(scope="module")
def box(docker_engine):
    with docker_engine.container() as container:
        yield container


@pytest.fixture
def backend(docker_engine, box):
    with DockerBackend(container=box.id, root="/tmp", base_url=docker_engine.url, timeout=60) as backend:
        yield backend


class TestCommands(CommandCases):
    id_form = r"docker-[0-9a-f]{8}"
    flood = 60_000_000

    @pytest.fixture
    def made(self, docker_engine, box):
        return partial(DockerBackend, container=box.id, base_url=docker_engine.url)

    @pytest.fixture
    def backend(self, backend):
        return backend

    def test_a_time_out_in_a_flood(self, backend):
        super().test_a_time_out_in_a_flood(backend)
        assert not re.search(r"\byes$", processes(backend), re.MULTILINE)


@for_each(
    ("command", "output", "code"),
    [
        ("kill -9 $$", "<no output>\n\nExit code: 137", 137),
        ("pwd; echo $0; (exit 7)", "/tmp\nsh\n\nExit code: 7", 7),
        ('if true; then echo "it\'s"; fi # \')"`$(', "it's\n", 0),
        ("echo $((1+1)); cat <<EOF\nhere\nEOF\n", "2\nhere\n", 0),
        ("syntax error (", None, 2),
        ("no-such-command", None, 127),
    ],
)
def test_output_and_exit_code(backend, command, output, code):
    response = backend.execute(command)
    assert (response.exit_code, response.truncated) == (code, False)
    assert output is None or response.output == output


def test_every_byte_goes_through(backend):
    backend.upload_files([("/bytes", bytes(range(256)) * 1000)])
    response = backend.execute("cat bytes; cat bytes >&2; rm bytes", timeout=60)
    assert response.truncated and response.exit_code == 0
    assert backend.execute("printf 'a\\000b'").output == "a\0b"


# -- time --------------------------------------------------------------------------------------------------------------


def processes(backend) -> str:
    return backend.execute("ps -o pid,args").output


def pid_of(shown: str, command: str) -> int:
    (pid,) = re.findall(rf"^ *(\d+) {command}$", shown, re.MULTILINE)
    return int(pid)


def test_a_time_out_ends_all_that_belongs_to_the_command(backend):
    assert backend.execute("sleep 4321 & echo left").output == "left\n"
    response = backend.execute("sleep 8765 & echo one; trap '' TERM INT; (sleep 8766); sleep 8767", timeout=1)
    assert (response.exit_code, response.output) == (124, "Error: Command timed out after 1 seconds.\n\none\n")
    shown = processes(backend)
    assert "876" not in shown
    assert "sleep 4321" in shown, "what an earlier command has left goes on"
    assert backend.execute(f"kill -9 {pid_of(shown, 'sleep 4321')}").exit_code == 0


def test_a_command_that_ends_or_stops_its_shell(backend):
    """Whatever a command does to the shell that runs it, it is told, and the next one has another."""
    response = backend.execute("kill -9 $PPID; sleep 1")
    assert (response.exit_code, response.output) == (1, "Error executing command: The container's shell has ended")
    response = backend.execute("echo $$; kill -STOP $$; sleep 1", timeout=1)
    assert response.exit_code == 124
    pid = re.search(r"^\d+$", response.output, re.MULTILINE)[0]
    eventually(lambda: backend.execute(f"kill -0 {pid}").exit_code != 0, 10)
    assert backend.execute("echo on").output == "on\n"


@pytest.mark.parametrize("background", ["sleep 1000", "yes", "yes >&2"])
def test_a_background_process_that_holds_the_pipes_is_not_waited_for(backend, background):
    begin = time.monotonic()
    response = backend.execute(f"{background} & echo $!; sleep 0.1")
    assert time.monotonic() - begin < 30
    assert response.exit_code == 0
    pid = int(re.search(r"^\d+$", response.output, re.MULTILINE)[0]) if background != "yes" else None
    assert backend.execute("echo next").output == "next\n", "nothing of it comes later"
    if background == "sleep 1000":
        assert backend.execute(f"kill -9 {pid}").exit_code == 0, "it goes on"
    else:
        eventually(lambda: not re.search(r"\byes$", processes(backend), re.MULTILINE), 30)


@for_each("command", ["", "  \n", None, 5, "a\0b", "x" * 200_000, "\ud800"])
def test_what_is_no_command(backend, command):
    response = backend.execute(command)
    assert response.exit_code in (1, 126)
    assert backend.execute("echo on").output == "on\n"


def test_commands_and_verbs_at_the_same_time(backend):
    """A long command holds up nobody else."""
    results = {}

    def run(number):
        results[number] = backend.execute(f"sleep 1; echo {number}").output

    with beside(lambda: together(*(partial(run, number) for number in range(4)))):
        for number in range(10):
            assert backend.write(f"/{number}.txt", "x").error is None
    assert results == {number: f"{number}\n" for number in range(4)}
    assert backend.execute("rm *.txt; ls").output == "<no output>"


def test_all_requests_share_their_connections(docker_engine):
    """The SDK's own pools, one for each URL, hold one each, and are closed while they are in use."""
    with contextlib.closing(connect(docker_engine.url)) as client:
        before = len(os.listdir("/proc/self/fd"))
        for number in range(20):
            with pytest.raises(FileNotFoundError), engine_errors():
                client.api.inspect_container(f"none-{number}")
        assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_scripts_leave_no_trace_in_the_environment(backend):
    shown = backend.execute("env; ls -A /tmp | grep -v fusebackend-").output
    assert "fb_" not in shown and "LC_ALL" not in shown and "TZ" not in shown


@pytest.mark.parametrize("library", ["asyncio", "trio"])
def test_a_cancelled_command_is_killed(backend, library):
    command = "echo $$ >begun; sleep 86400; echo >changed"

    async def main():
        async with anyio.create_task_group() as group:
            group.start_soon(backend.aexecute, command)
            with anyio.fail_after(30):
                while (await backend.adownload_files(["/begun"]))[0].error:
                    await anyio.sleep(0.02)
            began = time.monotonic()
            group.cancel_scope.cancel()
        return time.monotonic() - began

    assert anyio.run(main, backend=library) < 30
    pid = backend.download_files(["/begun"])[0].content.decode().strip()
    eventually(lambda: backend.execute(f"kill -0 {pid}").exit_code != 0, 10)
    assert backend.execute("ls").output.split() == ["begun"]
    backend.delete("/begun")
