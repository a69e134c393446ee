"""A container's life: when it is started, who removes it, and what is said when it, or the engine, is not there."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from agentface import get
from eventually import eventually

from fusebackend.backends import DockerBackend
from fusebackend.backends.sandbox import docker as owner
from fusebackend.backends.sandbox.docker import remove_left
from fusebackend.urls import UrlError, open_backend

QUIET = {"network_mode": "none"}


@pytest.fixture
def engine(docker_engine):
    """The engine, which has no containers when a test begins, and none when it ends."""
    assert docker_engine.containers() == []
    yield docker_engine
    eventually(lambda: docker_engine.containers() == [])


def started(engine, **options) -> DockerBackend:
    return DockerBackend(engine.image, base_url=engine.url, options=QUIET, **options)


# -- its own container -------------------------------------------------------------------------------------------------


def test_it_is_started_when_it_is_needed_and_removed_at_close(engine):
    backend = started(engine)
    assert engine.containers() == []
    assert backend.write("/a.txt", "x").error is None
    (container,) = engine.containers()
    assert container == backend.container.id
    for _ in range(2):
        backend.close()
    assert engine.containers() == []
    assert backend.read("/a.txt").error == "File '/a.txt': The backend is closed"
    assert backend.execute("true").output == "Error executing command: The backend is closed"


def test_it_goes_when_nobody_has_the_backend_any_more(engine):
    backend = started(engine)
    backend.execute("true")
    assert len(engine.containers()) == 1
    del backend
    gc.collect()
    eventually(lambda: engine.containers() == [])


def test_its_labels_say_whose_it_is_and_a_child_of_the_process_does_not_remove_it(engine):
    with started(engine) as backend, contextlib.closing(engine.client()) as client:
        backend.execute("true")
        pid = os.fork()
        if pid == 0:
            backend.container.close()
            os._exit(0)
        os.waitpid(pid, 0)
        assert engine.containers() == [backend.container.id]
        found = client.containers.get(backend.container.id)
        assert found.labels == owner.labels()
        assert found.attrs["HostConfig"]["AutoRemove"] and found.attrs["HostConfig"]["Init"]
        assert backend.execute("(sleep 0.1 & exec true) & wait; sleep 0.5; ps -o stat").output.count("Z") == 0


def test_an_image_with_an_entrypoint_of_its_own(engine):
    with contextlib.closing(engine.client()) as client, engine.container() as container:
        container.commit(
            "fusebackend-test", "odd", conf={"Entrypoint": ["/bin/false"], "User": "agent", "WorkingDir": "/home/agent"}
        )
        try:
            with DockerBackend("fusebackend-test:odd", base_url=engine.url, options=QUIET) as backend:
                assert backend.execute("id -un").output == "agent\n"
                assert backend.write("/home/agent/mine", "x").error is None
                for place, error in (("/home/agent", None), ("/etc", "permission_denied")):
                    big = [(f"{place}/{number}", b"x" * 100_000) for number in range(2)]
                    assert [response.error for response in backend.upload_files(big)] == [error] * 2
                shown = backend.execute("stat -c '%U %a' /home/agent/mine /home/agent/0").output
                assert shown == "agent 644\nagent 644\n"
                for refused in (
                    backend.write("/etc/mine", "x"),
                    backend.delete("/etc/passwd"),
                    backend.move("/etc/passwd", "/tmp/passwd"),
                ):
                    assert refused.error.endswith(": Permission denied")
                assert get(backend, "/root/x") == "permission_denied"
        finally:
            client.images.remove("fusebackend-test:odd", force=True)


def test_a_container_that_is_gone_is_told_and_followed_by_another(engine):
    with started(engine) as backend, contextlib.closing(engine.client()) as client:
        backend.write("/a.txt", "x")
        first = backend.container.id
        client.api.remove_container(first, force=True)
        error = backend.read("/a.txt").error
        gone = f"Container '{first[:12]}' is gone, and its files with it; the next call starts another"
        assert error == f"File '/a.txt': {gone}"
        assert backend.execute("ls /a.txt").exit_code == 1
        assert backend.write("/a.txt", "new").error is None
        assert backend.container.id != first


def test_one_that_is_killed_in_the_middle_of_a_command(engine):
    with started(engine) as backend, contextlib.closing(engine.client()) as client:
        backend.write("/a.txt", "x")
        first = backend.container.id
        threading.Timer(0.3, lambda: client.api.kill(first)).start()
        said = [backend.execute("sleep 60")]
        eventually(lambda: said.append(backend.execute("echo on")) or said[-1].exit_code == 0)
        assert all(response.output.startswith("Error executing command: ") for response in said[:-1])
        assert f"Container '{first[:12]}' is gone" in said[-2].output
        assert said[-1].output == "on\n"
        assert backend.read("/a.txt").error == "File '/a.txt' not found"


# -- somebody else's ---------------------------------------------------------------------------------------------------


def test_somebody_elses_container_is_left_alone_and_may_stop_and_start_again(engine):
    with engine.container() as container, DockerBackend(container=container.name, base_url=engine.url) as backend:
        with DockerBackend(container=container.id, base_url=engine.url) as other:
            assert other.write("/a.txt", "kept").error is None
            assert "kept" in backend.read("/a.txt")
        assert backend.execute("cat /a.txt").output == "kept", "who has closed it has not ended it"
        container.stop(timeout=0)
        assert backend.read("/a.txt").error == f"File '/a.txt': Container '{container.name}' does not run any more"
        error = f"Container '{container.name}' does not run; start it with 'docker start {container.name}'"
        assert backend.read("/a.txt").error == f"File '/a.txt': {error}"
        assert backend.execute("true").output == f"Error executing command: {error}"
        container.start()
        assert "kept" in backend.read("/a.txt")


def test_a_container_that_is_paused_is_told(engine):
    with engine.container() as container, DockerBackend(container=container.name, base_url=engine.url) as backend:
        backend.script_timeout_s = 1.0
        backend.write("/a.txt", "x")
        container.pause()
        assert backend.read("/a.txt").error == f"File '/a.txt': Container '{container.name}' is paused"
        assert backend.ls("/").error == f"Path '/': Container '{container.name}' is paused"
        response = backend.execute("true", timeout=1)
        assert response.exit_code in (1, 124)
        container.unpause()
        assert "x" in backend.read("/a.txt")
        assert backend.execute("echo on").output == "on\n"


# -- what is not there -------------------------------------------------------------------------------------------------


def test_no_engine(tmp_path):
    backend = DockerBackend(base_url=f"unix://{tmp_path}/none.sock")
    said = f"There is no Docker engine at unix://{tmp_path}/none.sock: No such file or directory"
    assert [backend.read("/a.txt").error, backend.execute("true").output, backend.grep("x").error] == [
        f"File '/a.txt': {said}", f"Error executing command: {said}", f"Error searching '/': {said}",
    ]  # fmt: skip
    assert [response.error for response in backend.download_files(["/a", "/../b"])] == [
        "Connection refused", "invalid_path",
    ]  # fmt: skip
    backend.close()


def test_no_sdk(tmp_path):
    code = """
        import sys
        sys.modules["docker"] = None
        from fusebackend.backends import DockerBackend
        backend = DockerBackend()
        print(backend.read("/x").error, backend.download_files(["/x"])[0].error, sep="\\n")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60)
    words = "File '/x': The Docker SDK is not installed: pip install 'fusebackend[docker]'"
    assert done.stdout.splitlines() == [words, "Package not installed"], done.stderr


def test_no_such_image_and_no_such_container(engine, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", engine.url)
    with DockerBackend("localhost:1/none", base_url=engine.url) as backend:
        said = "Path '/': There is no image 'localhost:1/none' here, and it can't be pulled: "
        assert re.fullmatch(f"{said}[^\n]+", backend.ls("/").error)
    with DockerBackend(container="none", base_url=engine.url) as backend:
        assert backend.ls("/").error == "Path '/': There is no container 'none'"


# The SDK leaves a socket open that it could not connect.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_engine_that_ends_and_is_there_again(engine):
    with started(engine) as backend:
        backend.execute("true")
        engine.stop()
        try:
            response = backend.execute("true")
        finally:
            engine.start()
        assert response.exit_code == 1
        assert "Docker engine" in response.output or "container" in response.output.lower()
        eventually(lambda: backend.execute("echo on").output == "on\n")
    gc.collect()  # here, where it is expected, and not in some test that follows


# -- URLs --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def at(engine, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", engine.url)
    return engine


def test_the_url_of_an_image(at):
    options = "timeout=5&max_output_bytes=99&root=/work&network=none&on_exists=replace"
    with open_backend(f"docker:{at.image}?{options}") as b:
        assert (b.timeout, b.max_output_bytes, b.root, b.on_exists) == (5, 99, "/work", "replace")
        assert b.execute("pwd; ls /sys/class/net").output == "/work\nlo\n"
        assert b.container.is_ours and not b.durable


def test_the_url_of_a_container(at):
    with at.container(name="box") as container:
        with open_backend("docker:box") as backend:
            assert backend.container.name == "box" and backend.durable
            assert backend.execute("hostname").output.strip() == container.id[:12]
        with pytest.raises(UrlError, match=r"^'docker:box\?network=none': container 'box' runs already"):
            open_backend("docker:box?network=none")
        container.stop(timeout=0)
        with pytest.raises(UrlError, match=r"^'docker:box': Container 'box' does not run; start it with"):
            open_backend("docker:box")


def test_urls_that_can_not_be_opened(at, monkeypatch, tmp_path):
    for url, said in [
        ("docker:", "is incomplete"),
        ("docker:x?timeout=0", "must be a whole number above 0"),
        ("docker:x?root=/../x", "must be the path of a directory"),
        ("docker:localhost:1/none", "There is no image 'localhost:1/none' here"),
        ("docker:Not An Image", "Not An Image"),
    ]:
        with pytest.raises(UrlError, match=said) as raised:
            open_backend(url)
        assert "\n" not in str(raised.value)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(UrlError, match=rf"^'docker:x': There is no Docker engine at unix://{tmp_path}/none"):
        open_backend("docker:x")


# -- what a killed server leaves ---------------------------------------------------------------------------------------

SERVER = """
import sys, time
from fusebackend.backends import DockerBackend
backend = DockerBackend(sys.argv[1], base_url=sys.argv[2], options={"network_mode": "none"})
backend.execute("sleep 1000 &")
print(backend.container.id, flush=True)
time.sleep(float(sys.argv[3]))
"""


@contextlib.contextmanager
def server(engine, seconds: float):
    command = [sys.executable, "-c", SERVER, engine.image, engine.url, str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[4]) as process:
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def test_a_killed_servers_container_goes_when_the_next_one_starts(engine):
    with server(engine, 600) as (living, theirs), server(engine, 600) as (killed, left):
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert sorted(engine.containers()) == sorted([theirs, left])
        with started(engine) as backend:
            backend.execute("true")
            eventually(lambda: sorted(engine.containers()) == sorted([theirs, backend.container.id]))
        assert living.poll() is None
        assert engine.containers() == [theirs], "the container of a server that lives is left alone"
        living.kill()
        living.wait()
        with contextlib.closing(engine.client()) as client:
            remove_left(client)
        eventually(lambda: engine.containers() == [])


def test_it_goes_at_the_end_of_the_process(engine):
    with server(engine, 0) as (process, container):
        assert container
        assert process.wait(60) == 0
        assert engine.containers() == []


def test_whose_a_container_is():
    mine = owner.labels()
    assert not owner.is_left(mine, running=True)
    namespace, pid, began = mine[owner.OWNER].split("-")
    for other in (f"{namespace}-{pid}-{int(began) - 1}", f"{namespace}-4194305-{began}"):
        assert owner.is_left({**mine, owner.OWNER: other}, running=True)
    elsewhere = {**mine, owner.OWNER: f"1-{pid}-{began}"}
    before = {**mine, owner.BOOT: "another", owner.OWNER: f"{namespace}-4194305-{began}"}
    for found in (elsewhere, before):
        assert not owner.is_left(found, running=True), "nobody can see from here whether its owner lives"
        assert owner.is_left(found, running=False)
    for found in ({}, {owner.OWNER: "x-y-z"}, {owner.OWNER: ""}):
        assert not owner.is_left(found, running=False)
