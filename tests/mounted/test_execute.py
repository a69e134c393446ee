"""Commands in a mount: the files they see, their output, their end, and nothing left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import executing
import guests
import pytest
from eventually import eventually
from executing import Commands, commands
from programs import command, processes_with

import fusebackend
from fusebackend.backends import FilesystemBackend, InMemoryBackend, LocalShellBackend
from fusebackend.server.assemble import runs_commands

DEFAULTS = [
    pytest.param("memory:", id="memory"),
    pytest.param("sqlite:{tmp}/default.db", id="sqlite", marks=pytest.mark.night),
]
LONG = str(1_000_000_000 + os.getpid())
"""The argument of `sleep` in seconds, unique so that its process is found by it."""


@pytest.fixture(scope="module", params=DEFAULTS)
def shell(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """Serve a mount with a default and two routes, shared by tests."""
    tmp = tmp_path_factory.mktemp("execute")
    routes = ["/memories/=memory:", f"/work/deep/=sqlite:{tmp}/deep.db"]
    with commands(tmp / "mnt", request.param.format(tmp=tmp), *routes, max_output_bytes=1000) as shell:
        yield shell


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Commands]:
    """Serve a mount for one test, which may break it."""
    with commands(tmp_path / "mnt", "memory:", "/memories/=memory:") as shell:
        yield shell


def wait_for(pending: executing.Pending) -> None:
    """Wait until a streaming command has printed something."""
    assert pending.piece_came.wait(60), "it printed nothing"


def wait_for_sleepers(number: int) -> None:
    eventually(lambda: len(processes_with(LONG)) >= number)


# -- files of a command ------------------------------------------------------------------------------------------------


def test_every_route_is_where_the_verbs_have_it(shell: Commands) -> None:
    for path in ("/top", "/memories/one", "/work/deep/two"):
        shell.files.upload_files([(path, b"by the api")])
        assert shell.output(f"cat {path}; printf 'by the shell' > {path}") == "by the api"
        assert shell.download(path) == b"by the shell"
        assert shell.path.joinpath(path[1:]).read_bytes() == b"by the shell"


def test_what_is_changed_while_it_runs_is_seen_at_once(shell: Commands) -> None:
    pending = shell.start(
        "cat /memories/late; echo asked; until grep -s . /memories/late; do sleep 0.01; done", stream=True
    )
    wait_for(pending)
    shell.files.write("/memories/late", "here\n")
    assert "here\n" in pending.result()["output"]


def test_its_own_tmp_is_empty_and_goes(shell: Commands) -> None:
    assert shell.output("ls -A /tmp; echo x > /tmp/file; cat $TMPDIR/file $HOME/file") == "x\nx\n"
    assert shell.output("ls -A /tmp /dev/shm") == "/dev/shm:\n\n/tmp:\n"


def test_it_has_devices_a_clock_and_its_processes(shell: Commands) -> None:
    assert shell.output("head -c 3 /dev/zero | wc -c; head -c 5 /dev/urandom | wc -c; echo x > /dev/null") == "3\n5\n"
    own = shell.output("ls /proc | grep -c '^[0-9]'")
    assert int(own) < 10
    assert shell.output("hostname") == "sandbox\n"


def test_the_environment_is_a_list_of_its_own(shell: Commands, tmp_path: Path) -> None:
    names = {line.partition("=")[0] for line in shell.output("env").splitlines()}
    assert names == {"PATH", "HOME", "TMPDIR", "LANG", "TERM", "SHELL", "USER", "LOGNAME", "PWD"}
    assert "in the clear" not in shell.run("cat /proc/*/environ")["output"]
    with commands(tmp_path / "mnt", "memory:", env={"TOKEN": "a b", "HOME": "/"}) as other:
        assert other.output("echo $TOKEN $HOME") == "a b /\n"


def test_no_descriptor_is_left_to_it(shell: Commands) -> None:
    assert shell.output("ls /proc/self/fd; ls -l /proc/[0-9]*/fd | grep -c fuse; true") == "0\n1\n2\n3\n0\n"


def test_where_it_starts(shell: Commands) -> None:
    shell.output("mkdir -p /memories/dir")
    assert shell.output("pwd; echo $PWD") == "/\n/\n"
    assert shell.output("pwd; echo $PWD", cwd="/memories/dir") == "/memories/dir\n/memories/dir\n"
    assert shell.output("pwd", cwd="memories/./dir/../") == "/memories\n"
    refused = shell.run("pwd", cwd="/nowhere")
    assert (refused["exit_code"], "No such file or directory" in refused["output"]) == (126, True)
    assert shell.run("pwd", cwd="/../x") == {
        "output": "Error: Path traversal not allowed: '/../x' climbs above the root",
        "exit_code": 126,
        "truncated": False,
    }


def test_trees_are_seen_as_far_as_they_are_granted(tmp_path: Path) -> None:
    """Nothing of the trees directory without a grant (`one`), and with one what it names: no other tree, no file."""
    for granted in ((), ("snapshots",), ("branches",)):
        with commands(tmp_path / "-".join(("mnt", *granted)), "memory:", "/notes/=memory:", trees=granted) as shell:
            shell.files.upload_files([("/notes/file", b"before")])
            with fusebackend.connect(shell.path) as client:
                client.create_snapshot("kept")
                client.create_branch("work")
            shell.files.upload_files([("/notes/file", b"after")])
            assert ".fusebackend" not in shell.output("ls -A /")
            assert shell.run("mkdir /.fusebackend; echo x > /.fusebackend")["exit_code"] != 0
            listed = shell.run("ls -A /.fusebackend")
            assert (listed["exit_code"] == 0) == bool(granted)
            assert not granted or listed["output"].split() == sorted(granted)
            for tree in ("private", "status.json", "snapshots", "branches"):
                assert (shell.run(f"test -e /.fusebackend/{tree}")["exit_code"] == 0) == (tree in granted), tree
            assert shell.describe()["trees"] == list(granted)
            if "snapshots" in granted:
                assert shell.output("cat /.fusebackend/snapshots/kept/notes/file") == "before"
                assert shell.output("pwd; ls", cwd="/.fusebackend/snapshots/kept").endswith("kept\nnotes\n")
                refused = shell.run("echo x > /.fusebackend/snapshots/kept/notes/file")
                assert refused["exit_code"] != 0 and "Read-only file system" in refused["output"]
            else:
                assert shell.run("ls", cwd="/.fusebackend/snapshots/kept")["exit_code"] == 126
            if "branches" in granted:
                assert shell.output("cd /.fusebackend/branches/work; printf by-command > notes/new; ls notes") == (
                    "file\nnew\n"
                )
                assert (shell.path / ".fusebackend/branches/work/notes/new").read_text() == "by-command"
                assert not (shell.path / "notes/new").exists()
            assert shell.run("touch /.fusebackend/x; mkdir /.fusebackend/private")["exit_code"] != 0
            inside = shell.run("ls -A; ls -A /.fusebackend", cwd="/.fusebackend/branches/work")
            assert inside["output"].split()[0] == "notes" and (inside["exit_code"] == 0) == bool(granted)
            assert not granted or inside["output"].split()[1:] == sorted(granted)


# -- output ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "output", "code"),
    [
        ("echo hello", "hello\n", 0),
        ("true", "<no output>", 0),
        ("false", "<no output>\n\nExit code: 1", 1),
        ("echo out; echo err >&2; echo more >&2", "out\n[stderr] err\n[stderr] more", 0),
        ("echo out; exit 255", "out\n\nExit code: 255", 255),
        ("kill -TERM $$", "<no output>\n\nExit code: 143", 143),
        ("exit 126", "<no output>\n\nExit code: 126", 126),
        ("cat; echo end of input", "end of input\n", 0),
        ("exec >&-; exec 2>&-; exit 4", "<no output>\n\nExit code: 4", 4),
        ("printf '\\303\\274 \\377'", "ü �", 0),
        ("nonesuch 2>/dev/null", "<no output>\n\nExit code: 127", 127),
    ],
)
def test_output_and_exit_code(shell: Commands, command: str, output: str, code: int) -> None:
    assert shell.run(command) == {"output": output, "exit_code": code, "truncated": False}


@pytest.mark.parametrize("command", ["", " \n"])
def test_no_command(shell: Commands, command: str) -> None:
    assert shell.run(command)["output"] == "Error: Command must be a non-empty string."


@pytest.mark.parametrize("command", ["a\0b", "x" * 200_000, "\ud800"])
def test_a_command_that_can_not_be_started(shell: Commands, command: str) -> None:
    result = shell.run(command)
    assert result["output"].startswith("Error: the command can't be started: ")
    assert result["exit_code"] == 126


def test_output_is_cut_at_its_limit(shell: Commands) -> None:
    result = shell.run("yes | head -c 5000; exit 3")
    assert result["truncated"]
    assert result["output"] == "y\n" * 500 + "\n\n... Output truncated at 1000 bytes.\n\nExit code: 3"


def test_input(shell: Commands) -> None:
    assert shell.output("cat", stdin=b"given\n") == "given\n"
    assert shell.output("wc -c", stdin=b"x" * 5_000_000) == "5000000\n"
    assert shell.output("head -c 3", stdin=b"x" * 5_000_000) == "xxx"
    assert shell.output("true", stdin=b"x" * 5_000_000) == "<no output>"
    assert shell.output("exec <&-; sleep 0.1; echo on", stdin=b"x" * 5_000_000) == "on\n"
    assert shell.output("wc -c", stdin=b"") == "0\n"


def test_output_is_told_as_it_comes(shell: Commands) -> None:
    pending = shell.start(f"echo first; echo second >&2; sleep {LONG}", stream=True)
    eventually(lambda: len(pending.pieces) == 2, 60)
    assert not pending.is_answered
    shell.cancel(pending)
    result = pending.result()
    assert sorted(pending.pieces) == [("stderr", b"second\n"), ("stdout", b"first\n")]
    assert result["output"] == "Error: Command was stopped.\n\nfirst\n[stderr] second"
    flood = shell.start("yes | head -c 100000", stream=True)
    flood.result()
    assert b"".join(piece for _, piece in flood.pieces) == b"y\n" * 500, "what is kept, and no more"


def test_whoever_is_told_may_end_it(shell: Commands) -> None:
    pending = shell.start(f"echo first; sleep {LONG}", stream=True, fail=True)
    assert pending.result() == {"raised": "RuntimeError('enough')"}
    assert processes_with(LONG) == []


# -- end of a command --------------------------------------------------------------------------------------------------

TREE = f"echo begun; sleep {LONG} & setsid sleep {LONG} & (trap '' TERM INT HUP; sleep {LONG}) & nohup sleep {LONG}"


def test_a_time_out_ends_the_whole_tree(shell: Commands) -> None:
    begin = time.monotonic()
    result = shell.run(TREE, timeout=0.5)
    assert time.monotonic() - begin < 20
    assert result["exit_code"] == 124
    assert result["output"].startswith("Error: Command timed out after 0.5 seconds.\n\nbegun")
    assert processes_with(LONG) == []


def test_a_time_out_that_passes_before_it_begins(shell: Commands) -> None:
    for timeout in (1e-6, 1e-3, 5e-3, 1e-2):
        assert shell.run(f"sleep {LONG}", timeout=timeout)["exit_code"] == 124
        assert processes_with(LONG) == []


def test_a_time_out_has_a_maximum(tmp_path: Path) -> None:
    """The maximum holds on every face, so that an agent can't ask for an endless command."""
    with commands(tmp_path / "mnt", "memory:", max_timeout_s=7) as shell:
        assert shell.describe()["max_timeout_s"] == shell.describe()["timeout_s"] == 7
        assert shell.output("echo on", timeout=7) == "on\n"
        said = "timeout must be at most 7 seconds (max_timeout in the configuration's [execute]), but is 1e+308"
        assert shell.start("true", timeout=1e308).result() == {"raised": f"ValueError({said!r})"}
        with fusebackend.connect(shell.path) as client:
            for verb in (client.execute, client.run):
                with pytest.raises(ValueError, match=re.escape(said)):
                    verb("true", timeout=1e308)
        done = command("exec", "--mount", shell.path, "--timeout", "1e308", "x")
        assert (done.returncode != 0, said in done.stderr) == (True, True), done


def test_cancelling_ends_the_whole_tree(shell: Commands) -> None:
    pending = shell.start(TREE, stream=True)
    wait_for_sleepers(4)
    shell.cancel(pending)
    result = pending.result()
    assert (result["exit_code"], result["output"].splitlines()[0]) == (130, "Error: Command was stopped.")
    assert processes_with(LONG) == []


def test_a_background_process_ends_with_its_command(shell: Commands) -> None:
    for line in (
        f"sleep {LONG} &",
        f"setsid sleep {LONG} >/dev/null 2>&1 </dev/null &",
        f"nohup sleep {LONG} >/dev/null 2>&1 &",
        f"(setsid sh -c '(setsid sleep {LONG} &)' &)",
        f'python3 -c \'import os; os.fork() or (os.setsid(), os.fork() or os.execlp("sleep", "sleep", "{LONG}"))\'',
    ):
        begin = time.monotonic()
        assert shell.run(line)["exit_code"] == 0
        assert time.monotonic() - begin < 20
        assert processes_with(LONG) == [], line


def test_many_after_and_beside_each_other(shell: Commands) -> None:
    """Commands end while others start and use the same pinned names of the sandbox."""
    for _ in range(5):
        pending = [shell.start(f"sleep 0.0{delay}; ls /usr/bin/env /proc/self/stat") for delay in range(6)]
        assert {one.result()["output"] for one in pending} == {"/proc/self/stat\n/usr/bin/env\n"}


def test_no_descriptor_thread_or_child_is_left_in_the_server(shell: Commands) -> None:
    def census() -> tuple[int, str]:
        proc = Path(f"/proc/{shell.mounted.pid}")
        return len(os.listdir(proc / "fd")), (proc / f"task/{shell.mounted.pid}/children").read_text()

    def run_some() -> None:
        shell.run("true")
        shell.run("cat", stdin=b"x" * 100_000)
        shell.run("sleep 100", timeout=0.05)
        shell.run("true", cwd="/nowhere")
        shell.run("a\0b")

    run_some()
    before = census()
    run_some()
    eventually(lambda: census() == before, 10)  # the thread that answered may not have ended yet


# -- nothing is left in the mount --------------------------------------------------------------------------------------


@pytest.fixture
def running(one: Commands) -> Iterator[tuple[Commands, executing.Pending]]:
    """Start a command that waits for the file `go-on`, and then looks at the system's files again."""
    go_on = one.path / "memories/go-on"
    pending = one.start(
        "echo begun; until test -e /memories/go-on; do sleep 0.01; done; ls /usr/bin/env /etc/passwd /proc/self/stat",
        stream=True,
    )
    wait_for(pending)
    yield one, pending
    go_on.touch()
    assert pending.result()["output"] == "begun\n/etc/passwd\n/proc/self/stat\n/usr/bin/env\n"


def names(shell: Commands) -> set[str]:
    listed = set(os.listdir(shell.path))
    assert listed == {entry["path"].strip("/") for entry in shell.files.ls("/").entries}
    return listed


def test_a_name_that_becomes_real_meanwhile_is_the_mounts_alone(running: tuple[Commands, executing.Pending]) -> None:
    shell, _ = running
    shell.files.write("/usr/by-the-api", "x")
    shell.files.write("/etc", "a file")
    assert names(shell) == {"memories", "usr", "etc"}
    assert (shell.path / "usr/by-the-api").read_text() == "x"
    (shell.path / "usr/by-the-mount").write_text("y")
    assert sorted(os.listdir(shell.path / "usr")) == ["by-the-api", "by-the-mount"]
    assert (shell.path / "etc").read_text() == "a file"
    assert shell.output("test -d /etc && ls /usr/bin/env; ls /") == "/usr/bin/env\nmemories\n"


def test_a_directory_of_that_name_is_covered_for_the_command_alone(one: Commands) -> None:
    for name in ("usr", "tmp"):
        one.files.write(f"/{name}/mine", "mine")
    assert one.output(
        "ls /usr/mine /tmp/mine 2>/dev/null; ls /usr/bin/env; ls -A /tmp; rmdir /usr 2>/dev/null; true"
    ) == ("/usr/bin/env\n")
    assert (one.path / "usr/mine").read_text() == "mine"
    assert (one.path / "tmp/mine").read_text() == "mine"
    for make in (lambda path: path.write_text("x"), lambda path: path.symlink_to("memories")):
        (one.path / "bin").unlink(missing_ok=True)
        make(one.path / "bin")
        assert one.output("test -x /bin/sh && echo on") == "on\n"
        assert not (one.path / "bin").is_dir() or (one.path / "bin").is_symlink()


# -- mounts of all kinds -----------------------------------------------------------------------------------------------


def test_a_read_only_mount(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files/file").write_text("x")
    with commands(tmp_path / "mnt", "memory:", f"/memories/=dir:{tmp_path}/files", read_only=True) as shell:
        assert shell.output("cat /memories/file; echo x > /tmp/y; cat /tmp/y") == "xx\n"
        for path in ("/new", "/memories/new", "/memories/file"):
            assert "Read-only file system" in shell.run(f"echo x > {path}")["output"]
        assert names(shell) == {"memories"}


def test_routes_below_directories_of_the_sandbox_at_any_mount_point(tmp_path: Path) -> None:
    name = '-a space,\na line\'s "quotes",b:c=d\\ünï'
    routes = ["/tmp/shared/=memory:", "/tmp/shared/deep/=memory:", "/etc/mine/=memory:", "/dev/mine/=memory:",
              "/usr/lib/=memory:", "/usr/nonesuch/=memory:", "/proc/mine/=memory:"]  # fmt: skip
    with commands(tmp_path / name, "memory:", *routes) as shell:
        for path in ("/tmp/shared", "/tmp/shared/deep", "/etc/mine", "/dev/mine", "/usr/lib"):
            assert shell.output(f"echo x > {path}/file; cat {path}/file") == "x\n"
            assert shell.download(f"{path}/file") == b"x\n"
        assert shell.output("echo x > /tmp/own; ls /tmp") == "own\nshared\n"
        assert shell.describe()["covered_routes"] == ["/proc/mine/", "/usr/nonesuch/"]
        assert names(shell) == {"tmp", "etc", "dev", "usr", "proc"}
        assert [entry["path"] for entry in shell.files.ls("/tmp").entries] == ["/tmp/shared/"]


def test_a_change_seen_only_by_its_ttl(tmp_path: Path) -> None:
    """Names of such a default expire while a command runs; the system's names do not."""
    (tmp_path / "files").mkdir()
    with commands(tmp_path / "mnt", f"dir:{tmp_path}/files") as shell:
        pending = shell.start("echo begun; sleep 1.5; ls /usr/bin/env; cat /behind", stream=True)
        wait_for(pending)
        (tmp_path / "files/behind").write_text("x")
        (tmp_path / "files/usr").mkdir()
        os.listdir(shell.path)
        assert pending.result()["output"] == "begun\n/usr/bin/env\nx"
        assert sorted(os.listdir(shell.path)) == ["behind", "usr"]


# -- the end of the mount ----------------------------------------------------------------------------------------------


def test_unmounting_ends_the_commands(tmp_path: Path) -> None:
    with commands(tmp_path / "mnt", "memory:") as shell:
        pending = shell.start(f"echo begun; sleep {LONG}", stream=True)
        wait_for(pending)
        subprocess.run(["fusermount3", "-u", shell.path], check=True)
        assert pending.result()["exit_code"] == 130
        assert processes_with(LONG) == []
        assert shell.run("true")["exit_code"] == 126


def test_stopping_the_server_ends_the_commands(tmp_path: Path) -> None:
    with commands(tmp_path / "mnt", "memory:") as shell:
        pending = shell.start(TREE)
        wait_for_sleepers(4)
        shell.close_shell()
        assert pending.result()["exit_code"] == 130
        assert processes_with(LONG) == []
        refused = shell.run("true")
        assert refused["output"] == "Error: the mount is ending, and takes no more commands"


def test_a_killed_server_takes_its_commands_along(tmp_path: Path) -> None:
    with commands(tmp_path / "mnt", "memory:") as killed:
        killed.start(TREE)
        wait_for_sleepers(4)
        killed.mounted.process.kill()
        killed.status = -signal.SIGKILL
        eventually(lambda: processes_with(LONG) == [], 10)
    with commands(tmp_path / "other", "memory:") as next_one:
        next_one.run("true")
        assert executing.own_groups(killed.mounted.pid) == set(), "the next one tidies up"
        assert not [name for name in os.listdir("/dev") if f"-{killed.mounted.pid}-" in name]


def test_a_hung_route_does_not_keep_its_command_for_ever(tmp_path: Path) -> None:
    with commands(tmp_path / "mnt", "memory:", "/hung/=python:hanging:backend", deadline_s=1.5) as shell:
        begin = time.monotonic()
        result = shell.run("echo begun; ls /hung", timeout=1)
        assert (result["exit_code"], time.monotonic() - begin < 20) == (124, True)
        assert shell.output("echo on") == "on\n"
        shell.status = 1  # the route hangs when it is to be made durable, too
        shell.mounted.expected_log = "could not close route /hung|Timeout|Traceback"


# -- without a sandbox -------------------------------------------------------------------------------------------------


def test_unconfined(tmp_path: Path) -> None:
    with commands(tmp_path / "mnt", "memory:", "/memories/=memory:", sandbox="none", env={"MINE": "1"}) as shell:
        assert shell.output("pwd; echo x > memories/file; cat memories/file; echo $MINE") == f"{shell.path}\nx\n1\n"
        assert shell.download("/memories/file") == b"x\n"
        assert shell.output("pwd; cat", cwd="/memories", stdin=b"given\nmore") == f"{shell.path}/memories\ngiven\nmore"
        assert shell.output("cat", stdin=b"") == "<no output>"
        assert shell.run("cat; exit 3") == {
            "output": "<no output>\n\nExit code: 3", "exit_code": 3, "truncated": False
        }  # fmt: skip
        assert "can't cd to" in shell.run("true", cwd="/nowhere")["output"]
        assert "SERVER_SECRET" not in shell.output("env")
        grouped = shell.describe()["processes_limited_by"].startswith("cgroup")
        leaving = "setsid " if grouped else ""  # without control groups, it is its process group that is ended
        assert shell.run(f"sleep {LONG} & {leaving}sleep {LONG}", timeout=0.5)["exit_code"] == 124
        assert processes_with(LONG) == []
        shell.run(f"sleep {LONG} & {leaving}sleep {LONG} &")
        eventually(lambda: processes_with(LONG) == [])  # killed ones take a moment to end
        assert names(shell) == {"memories"}


def test_what_it_says_of_itself(shell: Commands) -> None:
    shell.run("true")
    described = shell.describe()
    limited = {name: described.pop(name) for name in ("memory_limited_by", "processes_limited_by")}
    assert all(isinstance(words, str) and words for words in limited.values())
    together = [described.pop(name) for name in ("total_memory_bytes", "total_processes", "total_cpus")]
    if all(words.startswith("cgroup") for words in limited.values()):
        machine_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        assert together[:2] == [max(machine_bytes // 2, 1 << 30), 4 * 256]
        assert together[2] in (None, round(0.9 * len(os.sched_getaffinity(0)), 2))
    else:
        assert None in together[:2], "nothing limits all commands together"
    assert described == {
        "where": "bubblewrap sandbox",
        "unseen_routes": {},
        "sandbox": "bubblewrap",
        "bubblewrap": "/usr/bin/bwrap",
        "network": False,
        "seccomp": True,
        "inotify_limited_by": "user namespace, 1/4 of the user's",
        "covered_routes": [],
        "trees": [],
        "timeout_s": 120,
        "max_timeout_s": 3600,
        "max_output_bytes": 1000,
        "memory_bytes": 1 << 30,
        "max_processes": 256,
        "running": 0,
    }


# --------------------------------------------------------------------------------------------------------------
# Where the commands of a mount run: in the default backend, if it runs commands itself, and else in the sandbox
# --------------------------------------------------------------------------------------------------------------

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
        shell.mounted.expected_log = "Traceback|RuntimeError"
        assert shell.run("raise") == {
            "output": "Error executing command: RuntimeError: the SDK has failed", "exit_code": 1, "truncated": False
        }  # fmt: skip


def test_without_one_it_is_the_sandbox(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    with commands(tmp_path / "mnt", f"shell:{tmp_path}/files", "/notes=memory:") as shell:
        shell.files.upload_files([("/notes/n", b"a note")])
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
        # What can't be ended is left behind.
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


def test_a_read_only_mount_runs_none(tmp_path: Path) -> None:
    with commands(tmp_path / "mnt", "python:guests:marked", read_only=True) as shell:
        answer = shell.run("touch /x")
        assert answer["exit_code"] == 126
        assert answer["output"].startswith("Error: this mount is read-only, and a command in Marked marked-1 could ")


def test_mount_and_status_say_where(tmp_path: Path) -> None:
    point = tmp_path / "mnt"
    point.mkdir()
    done = command("mount", str(point), "--default", "python:guests:marked", "--route", "/notes=memory:")
    assert done.returncode == 0, done.stderr
    try:
        warning = "commands run in Marked marked-1 and don't see /notes/: it has files of its own only"
        assert done.stderr == f"Warning: {warning}\n"
        (state,) = json.loads(command("status", "--json", str(point)).stdout)
        assert state["execute"]["where"] == "Marked marked-1"
        assert state["execute"]["unseen_routes"] == {"/notes/": "it has files of its own only"}
        lines = [line.strip() for line in command("status", str(point)).stdout.splitlines()]
        assert "commands: Marked marked-1" in lines and "execute: Marked marked-1" in lines
        assert "commands don't see /notes/: it has files of its own only" in lines
        ran = command("exec", "--mount", str(point), "--", "echo hello")
        assert (ran.returncode, ran.stdout) == (7, f"{MARKER}: 'echo hello' None")
    finally:
        assert command("umount", str(point)).returncode == 0
