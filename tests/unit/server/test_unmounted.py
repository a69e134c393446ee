"""Composites that are served without a mount: by `fusebackend serve`, where there is no /dev/fuse."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mounts
import programs
import pytest
import served
from for_each import for_each

import fusebackend
from fusebackend.config import MountPlan
from fusebackend.control import rendezvous
from fusebackend.control.client.client import Client
from fusebackend.linux.mount_table import MountError
from fusebackend.server import assemble
from fusebackend.server.assemble import Unmounted

CONFIG = """
default = "sqlite:agent.db"
[routes]
"/mem/" = "memory:"
"/project/" = "dir:project"
[[views.reader.rules]]
operations = ["write"]
paths = ["/**"]
mode = "deny"
"""


def can_unshare() -> bool:
    return subprocess.run([*served.WITHOUT_FUSE, "true"], capture_output=True).returncode == 0


pytestmark = pytest.mark.skipif(not can_unshare(), reason="only root has a mount namespace of its own here")


@pytest.fixture(scope="module", autouse=True)
def homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Directories of this module's own for sockets and state."""
    with pytest.MonkeyPatch.context() as patch:
        served.homes(patch, tmp_path_factory.mktemp("x"))
        yield


def configured(directory: Path, text: str = CONFIG) -> str:
    (directory / "project").mkdir(exist_ok=True)
    path = directory / "agent.toml"
    path.write_text(text)
    return str(path)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> str:
    return configured(tmp_path_factory.mktemp("config"))


@pytest.fixture(scope="module")
def server(config: str) -> Iterator[rendezvous.Served]:
    with served.served("--config", config, place=config, wrapper=served.WITHOUT_FUSE) as found:
        yield found
        assert "libfuse" not in Path(f"/proc/{found.pid}/maps").read_text(), "no verb has imported pyfuse3"


@pytest.fixture
def files(server: rendezvous.Served) -> Iterator[Client]:
    with fusebackend.connect(server.socket) as client:
        yield client


def test_the_server_has_no_fuse(server: rendezvous.Served) -> None:
    assert not Path(f"/proc/{server.pid}/root/dev/fuse").exists()
    assert "fuse" not in {line.split()[2] for line in Path(f"/proc/{server.pid}/mounts").read_text().splitlines()} or (
        os.path.exists("/dev/fuse")  # mounts of other tests are copied into its namespace
    )


def test_connect_by_configuration_socket_and_environment(
    config: str, server: rendezvous.Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSEBACKEND_MOUNT", config)
    for path in (config, server.socket, None):
        with fusebackend.connect(path) as client:
            assert not client.is_mounted
            assert client.hello()["pid"] == server.pid
            assert client.hello()["mountpoint"] is client.status()["mountpoint"] is None


def test_verbs_of_every_route(files: Client, config: str) -> None:
    for directory in ("/", "/mem/", "/project/"):
        assert files.write(f"{directory}verbs.txt", "sunday\n").error is None
        assert files.edit(f"{directory}verbs.txt", "sunday", "monday").error is None
        assert files.download_files([f"{directory}verbs.txt"])[0].content == b"monday\n"
    found = files.grep("monday", "/", "verbs.txt").matches or []
    assert [each["path"] for each in found] == ["/mem/verbs.txt", "/project/verbs.txt", "/verbs.txt"]
    assert (Path(config).parent / "project/verbs.txt").read_text() == "monday\n"


def test_a_view_binds(server: rendezvous.Served) -> None:
    with fusebackend.connect(server.socket, view="reader") as viewed:
        assert viewed.write("/viewed.txt", "no").error is not None
        assert viewed.ls("/").error is None
        assert viewed.status()["mountpoint"] is None


def test_watch(files: Client) -> None:
    with files.watch("/project") as changes:
        files.write("/project/watched.txt", "x")
        event = changes.get(10)
        assert event is not None and (event.kind, event.path) == ("created", "/project/watched.txt")


def test_commands_say_why_there_are_none(files: Client) -> None:
    answer = files.execute("true")
    assert answer.exit_code == 126
    assert answer.output.startswith(
        "Error: nothing is mounted here, so commands run in the default backend, and sqlite:"
    )


def test_the_command_line(config: str, server: rendezvous.Served, tmp_path: Path) -> None:
    by = ("--mount", config)
    served.run("write", *by, "--text", "hello\n", "/cli.txt")
    assert served.run("read", "--mount", server.socket, "/cli.txt") == "hello\n"
    assert served.run("branch", "create", *by, "cli-branch").startswith("/.fusebackend/branches/cli-branch\n")
    assert "serves" not in served.run("view", "list", *by)
    assert "not mounted" in served.run("status", config)
    (state,) = json.loads(served.run("status", "--json", server.socket))
    assert (state["mountpoint"], state["place"], state["state"]) == (None, config, "alive")
    assert "fusebackend_mount_info" in served.run("metrics", config)
    assert "is no mount point: give --mount the directory of the mount" in served.run("shell", *by, status=1)
    said = served.run("exec", *by, "--branch", "cli-branch", "--", "true", status=126)
    assert said.startswith("Error: nothing is mounted here") and said.count("\n") == 1


def test_there_is_one_server_of_a_place(config: str, server: rendezvous.Served) -> None:
    said = served.run("serve", "--config", config, status=1)
    assert f"'{config}' is served already by process {server.pid}, on {server.socket}" in said


def test_a_mount_of_its_place_is_refused(tmp_path: Path) -> None:
    mounts.require()
    (tmp_path / "mnt").mkdir()
    config = configured(tmp_path, f'mountpoint = "{tmp_path}/mnt"\ndefault = "memory:"\n')
    with served.served("--config", config, place=f"{tmp_path}/mnt") as found:
        said = served.run("mount", "--config", config, status=1)
        assert f"is served already, without a mount, by process {found.pid}" in said
        with fusebackend.connect(config) as files:
            assert files.ls("/").error is None


def test_what_is_kept_is_there_again(tmp_path: Path) -> None:
    """For a client, too, that outlives its server and finds the next one."""
    config = configured(tmp_path, 'default = "sqlite:agent.db"')  # what is in memory ends with its server
    with served.served("--config", config, place=config):
        files = fusebackend.connect(config)
        files.write("/kept.txt", "kept")
        files.create_branch("kept")
        files.write("/.fusebackend/branches/kept/inside.txt", "b")
        assert not files.has_ended()
    assert files.has_ended()
    assert "is not served" in str(files.ls("/").error)
    with served.served("--config", config, place=config), files:
        assert str(files.read("/.fusebackend/branches/kept/inside.txt")).endswith("b")
        assert files.log()[0].title == "write /kept.txt"
        files.undo()
        assert files.stat("/kept.txt").code == "file_not_found"


def test_commands_run_in_a_default_that_has_a_shell(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    with (
        served.served("--default", f"shell:{tmp_path}", "--route", "/mem/=memory:", place=str(tmp_path)) as found,
        fusebackend.connect(found.socket) as files,
    ):
        assert files.execute("pwd").output.strip() == str(tmp_path)
        assert files.run("pwd", cwd="/sub").output.strip() == f"{tmp_path}/sub"
        assert files.status()["execute"]["unseen_routes"] == {"/mem/": "nothing is mounted"}
        files.create_branch("b")
        answer = files.run("pwd", cwd="/.fusebackend/branches/b")
        assert (answer.exit_code, "nothing is mounted" in answer.output) == (126, True)


def test_another_socket_and_the_background(tmp_path: Path) -> None:
    config, address = configured(tmp_path), str(tmp_path / "agent.sock")
    said = served.run("serve", "--config", config, "--socket", address, "--background")
    try:
        assert said.startswith(f"serving {address} (process ")
        for path in (address, config):
            with fusebackend.connect(path) as files:
                assert files.ls("/").error is None
    finally:
        assert served.run("umount", config) == f"ended {address}\n"
    assert not os.path.exists(address)
    with pytest.raises(MountError, match="is not served; 'fusebackend serve --config"):
        fusebackend.connect(config)


class TestMessages:
    @for_each(
        ("words", "says"),
        [
            ([], "give --config FILE, or --default URL"),
            (["--default", "sqlit:x"], "sqlit"),
            (["--config", "missing.toml"], "missing.toml"),
            (
                ["--default", "memory:", "--socket", "/nowhere/x.sock"],
                "there is no directory '/nowhere' for the socket",
            ),
            (["--default", "memory:", "--socket", "/etc/hostname"], "'/etc/hostname' is a file, and no socket"),
            (["--default", "memory:", "--socket", "/tmp/" + 120 * "x"], "has more than 107 bytes"),
        ],
    )
    def test_what_can_not_be_served(self, words: list[str], says: str) -> None:
        done = programs.command("serve", *words)
        assert done.returncode in (1, 2) and says in done.stderr and "Traceback" not in done.stderr
        assert done.stderr.splitlines()[-1].startswith("Error: ")

    def test_a_socket_on_which_another_listens(self, tmp_path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(tmp_path / "s"))
            other.listen()
            said = served.run("serve", "--default", "memory:", "--socket", str(tmp_path / "s"), status=1)
        assert "a server listens on" in said

    def test_a_file_that_is_no_configuration(self, tmp_path: Path) -> None:
        (tmp_path / "x.toml").write_text("nonsense = 1\n")
        with pytest.raises(MountError, match="no mount, no socket and no configuration"):
            fusebackend.connect(tmp_path / "x.toml")
        assert "no configuration" in served.run("ls", "--mount", str(tmp_path / "x.toml"), "/", status=1)


def is_ended_by_signal(spins: int) -> bool:
    """Send a signal so many turns of a loop after the server was ready."""
    tree: Any = SimpleNamespace(attach=lambda kernel: None, detach=lambda: None, close=lambda: None)
    server = Unmounted(tree, MountPlan(mountpoint="/place"), before_end=lambda: None)
    ready, ended, late = threading.Event(), threading.Event(), threading.Event()

    def kill() -> None:
        ready.wait()
        sum(range(spins))
        os.kill(os.getpid(), signal.SIGTERM)
        if not ended.wait(10):
            late.set()
            server.stop()

    killing = threading.Thread(target=kill)
    killing.start()
    before = signal.signal(signal.SIGTERM, lambda number, frame: server.stop())
    server.run(ready.set)
    ended.set()
    killing.join()
    signal.signal(signal.SIGTERM, before)
    return not late.is_set()


def test_a_signal_ends_it_that_comes_as_it_begins_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assemble, "LOOK_S", 0.01)
    assert all(map(is_ended_by_signal, range(500)))


@pytest.mark.parametrize(
    ("call", "number"),
    [
        (lambda files: files.read_range("/none", 0, 1), errno.ENOENT),
        (lambda files: files.append("/mem", [b"x"]), errno.EISDIR),
        (lambda files: files.make_directory("/mem/a/b"), errno.ENOENT),
        (lambda files: files.remove_directory("/mem"), errno.EBUSY),
        (lambda files: files.blame("/none"), errno.ENOENT),
    ],
    ids=["read_range", "append", "make_directory", "remove_directory", "blame"],
)
def test_an_error_has_the_path_that_it_is_about(files: Client, call: Callable[[Client], object], number: int) -> None:
    with pytest.raises(OSError) as failure:
        call(files)
    assert failure.value.errno == number
    assert str(failure.value.filename) in ("/none", "/mem", "/mem/a/b")
    assert failure.value.filename in str(failure.value)
