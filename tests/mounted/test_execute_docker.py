"""Commands of a mount with a container as its default: they run in it, and see the other routes there."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from pathlib import Path

import mounts
import pytest
import warm
from eventually import eventually
from programs import Beside, command, python
from together import beside, over_and_over

import fusebackend
from fusebackend.backends import DockerBackend

OPEN = ["allow_other"]


@pytest.fixture
def engine(docker_engine, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", docker_engine.url)
    yield docker_engine
    assert docker_engine.containers() == []


def client_of(server: mounts.Mounted):
    return contextlib.closing(fusebackend.connect(server.path))


def output(client, command: str, **options) -> str:
    answer = client.run(command, **{"timeout": 60, **options})
    assert answer.exit_code == 0, answer
    return "" if answer.output == "<no output>" else answer.output


def test_the_containers_programs_and_every_route(engine, serve) -> None:
    routes = {"/memories": "memory:", "/memories/deep": "memory:", "/a/b": "memory:"}
    server = serve(f"docker:{engine.image}", routes=routes, options=OPEN)
    with client_of(server) as client:
        assert "BusyBox" in output(client, "readlink -f /proc/self/exe; busybox | head -1")
        assert output(client, "cat /etc/passwd | tail -1") == "agent:x:1000:1000:agent:/home/agent:/bin/sh\n"
        for directory in ("/memories", "/memories/deep", "/a/b"):
            there = server.path / directory[1:]
            assert client.write(f"{directory}/verb", "by a verb").error is None
            (there / "kernel").write_text("by the kernel")
            seen = output(client, f"cd {directory}; cat verb kernel; printf 'by a command' > command; mkdir sub")
            assert seen == "by a verbby the kernel"
            assert (there / "command").read_text() == "by a command"
            assert "by a command" in client.read(f"{directory}/command")
            assert (there / "sub").is_dir()
        assert output(client, "pwd; ls", cwd="/memories").split() == ["/memories", "command", "deep", "kernel", "sub",
                                                                      "verb"]  # fmt: skip
        status = client.status()["execute"]
        assert status["where"] == f"container {engine.image} (docker)"
        assert (status["routes"], status["unseen_routes"]) == ("bound", {})


def test_the_containers_own_files_are_the_default(engine, serve) -> None:
    server = serve(f"docker:{engine.image}", routes={"/memories": "memory:"}, options=OPEN)
    (server.path / "memories/note").write_text("needle in a note\n")
    with client_of(server) as client:
        output(client, "echo needle > /root/made; mkdir /srv; echo needle > /srv/x")
        assert (server.path / "root/made").read_text() == "needle\n", "it shows at once"
        (server.path / "srv/y").write_text("by the kernel")
        assert output(client, "cat /srv/y") == "by the kernel"
        found = [match["path"] for match in client.grep("needle").matches]
        assert found == ["/memories/note", "/root/made", "/srv/x"]
        assert [entry["path"] for entry in client.ls("/").entries if "mem" in entry["path"]] == ["/memories/"]
        assert sorted(os.listdir(server.path / "memories")) == ["note"]
        assert ".fusebackend" not in output(client, "ls -a /")


def test_a_client_that_goes_ends_its_command(engine, serve) -> None:
    server = serve(f"docker:{engine.image}", routes={"/memories": "memory:"}, options=OPEN)
    marker = str(1_000_000_000 + os.getpid())
    client = Beside("exec", "--mount", server.path, "--", f"echo began; exec sleep {marker}")
    with client, client_of(server) as other:
        assert client.line() == "began"
        assert marker in output(other, "ps -o args")
        client.process.kill()
        eventually(lambda: marker not in output(other, "ps -o args"), 30)


def _ended(client, command: str, words: dict) -> None:
    with contextlib.suppress(Exception):  # its connection is closed under it
        client.run(command, **words)


def test_a_container_that_ran_before_sees_none(engine, tmp_path: Path) -> None:
    point = tmp_path / "mnt"
    point.mkdir()
    with engine.container(name="box"):
        done = command("mount", str(point), "-o", "allow_other", "--default", "docker:box", "--route", "/notes=memory:")
        assert done.returncode == 0, done.stderr
        try:
            why = "it ran before the mount, and what is mounted in a container can't be changed"
            assert done.stderr == f"Warning: commands run in container box (docker) and don't see /notes/: {why}\n"
            (state,) = json.loads(command("status", "--json", str(point)).stdout)
            assert state["execute"]["unseen_routes"] == {"/notes/": why}
            assert f"commands don't see /notes/: {why}" in command("status", str(point)).stdout
            ran = command("exec", "--mount", str(point), "--", "hostname; ls /notes")
            assert ran.returncode != 0 and "/notes" in ran.stderr
        finally:
            assert command("umount", str(point)).returncode == 0


def test_without_allow_other_mount_says_so(engine, tmp_path: Path) -> None:
    """The engine and the container's first user are root, as this server is, so they have access and others do not."""
    point = tmp_path / "mnt"
    point.mkdir()
    done = command("mount", str(point), "--default", f"docker:{engine.image}", "--route", "/notes=memory:")
    assert done.returncode == 0, done.stderr
    try:
        assert done.stderr == (
            "Warning: only root sees the other routes in the container; for its other users, mount with "
            "-o allow_other\n"
        )
        (point / "notes/n").write_text("a note")
        assert command("exec", "--mount", str(point), "--", "cat /notes/n").stdout == "a note"
    finally:
        assert command("umount", str(point)).returncode == 0


def test_umount_ends_the_server_and_the_container(engine, serve) -> None:
    server = serve(f"docker:{engine.image}", routes={"/memories": "memory:"}, options=OPEN)
    with client_of(server) as client:
        output(client, "sleep 1000 > /memories/held & echo")
    subprocess.run(["fusermount3", "-u", server.path], check=True, timeout=30)
    assert server.process.wait(30) == 0, server.log_text()
    server.check_log()


def test_stopping_ends_a_command_and_the_container(engine, serve) -> None:
    server = serve(f"docker:{engine.image}", routes={"/memories": "memory:"}, options=OPEN)
    with client_of(server) as client:
        began = threading.Event()
        words = {"timeout": 600, "on_output": lambda stream, piece: began.set()}
        command = "exec 5> /memories/held; echo began; sleep 1000"
        with beside(lambda: _ended(client, command, words), limit_s=30):
            assert began.wait(60)
            server.stop()


def test_a_killed_servers_container_goes_with_the_next_mount(engine, serve) -> None:
    first = serve(f"docker:{engine.image}", routes={"/memories": "memory:"}, options=OPEN, at="mnt")
    with client_of(first) as client:
        assert output(client, "true") == ""
    (left,) = engine.containers()
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()
    first.kill()
    second = serve(f"docker:{engine.image}", routes={"/memories": "memory:"}, options=OPEN, at="mnt")
    (second.path / "memories/x").write_text("x")
    with client_of(second) as client:
        assert output(client, "cat /memories/x") == "x"
    assert left not in engine.containers()


def test_a_container_that_is_lost_comes_back_with_its_routes(engine, serve) -> None:
    """This holds too for a route with directories of the default above it, where lookups wait for the container."""
    server = serve(f"docker:{engine.image}", routes={"/memories": "memory:", "/a/b": "memory:"}, options=OPEN)
    (server.path / "a/b/x").write_text("x")
    with contextlib.closing(engine.client()) as docker, client_of(server) as client:
        assert output(client, "true") == ""
        docker.containers.get(engine.containers()[0]).remove(force=True)
        gone = client.run("true")
        assert gone.exit_code == 1 and "the next call starts another" in gone.output
        assert "etc" in os.listdir(server.path)
        assert output(client, "cat /a/b/x") == "x"


def test_many_look_while_it_starts(engine, tmp_path: Path) -> None:
    """Lookups in the default wait for the container; they must not keep the engine from the mount."""
    point = tmp_path / "mnt"
    point.mkdir()

    def look() -> None:
        subprocess.run(["ls", "-l", point, point / "a", point / "a/b"], capture_output=True, check=False)

    routes = {"/a/b": "memory:", "/memories": "memory:"}
    with contextlib.ExitStack() as serving, over_and_over(look, threads=3):
        server = serving.enter_context(mounts.mounted(point, f"docker:{engine.image}", routes=routes, options=OPEN))
        client = serving.enter_context(client_of(server))
        assert output(client, "ls -d /a/b /memories").split() == ["/a/b", "/memories"]


def test_the_python_api_keeps_its_container(engine, tmp_path: Path) -> None:
    """The caller owns the backend: the container goes on after the mount, with its files."""
    code = """
import sys
import fusebackend
from fusebackend.backends import CompositeBackend, DockerBackend, InMemoryBackend
image, point = sys.argv[1:]
with DockerBackend(image) as box:
    with fusebackend.mount(CompositeBackend(box, {"/memories/": InMemoryBackend()}), point, allow_other=True) as files:
        files.write("/memories/x", "a note")
        print(files.execute("cat /memories/x; echo made > /root/made").output)
    print(box.execute("cat /root/made").output)
"""
    point = tmp_path / "mnt"
    point.mkdir()
    done = python(code, engine.image, point, limit_s=120)
    assert (done.returncode, done.stdout) == (0, "a note\nmade\n\n"), done.stderr


def test_verbs_of_a_backend_that_leaves_out_what_is_not_its_own(engine) -> None:
    with engine.container() as container, DockerBackend(container=container.id, base_url=engine.url) as box:
        box.execute(
            "mkdir -p /mine /theirs/below /deep/theirs; "
            "for d in mine theirs/below deep/theirs; do echo needle > /$d/x; done"
        )
        box.leave_out(["/theirs", "/deep/theirs"])
        assert [match["path"] for match in box.grep("needle").matches] == ["/mine/x"]
        assert [info["path"] for info in box.glob("**/x").matches] == ["/mine/x"]
        assert [info["path"] for info in box.glob("*/x", "/deep").matches] == []
        assert "/theirs/" not in [entry["path"] for entry in box.ls("/").entries]
        assert box.ls("/deep").entries == []


def test_an_engine_that_does_not_see_the_mount_gets_the_files(engine, tmp_path: Path) -> None:
    """The server has a mount namespace of its own, so the engine can't see the mount, like one on another host."""
    point = tmp_path / "mnt"
    point.mkdir()
    script = """
    set -e
    "$3" mount "$1" -o allow_other --default "docker:$2" --route /memories=memory: >&2
    trap '"$3" umount "$1" >&2' EXIT
    echo note > "$1/memories/n"
    "$3" exec --mount "$1" -- 'cat /memories/n; echo made > /memories/made; grep -c /memories /proc/self/mountinfo || :'
    cat "$1/memories/made"
    "$3" status "$1" | grep execute:
    """
    program = tmp_path / "fusebackend"
    warm.command(program, mounts.module_environment())
    words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", point, engine.image, program]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "note", "0", "made", f"  execute: container {engine.image} (docker), routes carried"
    ]  # fmt: skip
    assert "Warning" not in done.stderr
