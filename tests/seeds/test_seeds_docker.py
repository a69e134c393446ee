"""The seeds' samples of a Docker backend, with `deepagents.backends` replaced by `fusebackend.backends`.

The seeds keep the files in the memory of the agent and run the commands in a container that does not see them; here
they are in the container, which is what everybody expects who reads `cat` after `write`.
"""

from __future__ import annotations

import inspect
import re

import pytest

from fusebackend.backends import CompositeBackend, DockerBackend, StateBackend
from fusebackend.backends.protocol import ExecuteResponse, SandboxBackendProtocol


@pytest.fixture(scope="module")
def image(docker_engine):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", docker_engine.url)
        yield docker_engine.image


@pytest.fixture(scope="module")
def backend(image):
    with DockerBackend(image, timeout=30.0, max_output_bytes=1000) as backend:
        yield backend


def test_the_constructor_has_the_seeds_arguments_and_defaults():
    backend = DockerBackend()
    assert (backend.container.image, backend.timeout, backend.max_output_bytes) == ("python:3.11-slim", 120.0, 100_000)
    assert list(inspect.signature(DockerBackend).parameters)[:3] == ["image", "timeout", "max_output_bytes"]
    assert backend.container.id is None, "no container before it is needed"
    backend.close()


def test_docker_backend_execute(backend):
    result = backend.execute("echo 'Hello'")
    assert result.exit_code == 0
    assert "Hello" in result.output


def test_its_id(backend):
    assert re.fullmatch("docker-[0-9a-f]{8}", backend.id)
    assert isinstance(backend, SandboxBackendProtocol)


def test_one_container_for_all_commands(backend):
    backend.execute("echo kept > /tmp/kept")
    first = backend.container.id
    assert backend.execute("cat /tmp/kept").output == "kept\n"
    assert backend.container.id == first


def test_stderr_no_output_and_exit_codes(backend):
    assert backend.execute("echo out; echo err >&2").output == "out\n[stderr] err"
    assert backend.execute("true") == ExecuteResponse(output="<no output>", exit_code=0, truncated=False)
    assert backend.execute("exit 3").exit_code == 3


def test_output_beyond_the_limit(backend):
    result = backend.execute("head -c 5000 /dev/zero | tr '\\000' x")
    assert result.truncated
    assert result.output == "x" * 1000 + "\n\n... Output truncated at 1000 bytes."


def test_a_time_out_is_124(image):
    with DockerBackend(image, timeout=1.0) as backend:
        result = backend.execute("sleep 100")
        assert (result.exit_code, result.truncated) == (124, False)
        assert result.output == "Error: Command timed out after 1 seconds."


def test_the_files_of_the_verbs_are_those_of_the_commands(backend):
    backend.write("/src/main.txt", "Hello World")
    assert backend.edit("/src/main.txt", "World", "Universe").occurrences == 1
    assert backend.execute("cat /src/main.txt").output == "Hello Universe"
    assert "Universe" in backend.read("/src/main.txt")
    assert [info["path"] for info in backend.ls_info("/src")] == ["/src/main.txt"]
    assert backend.grep_raw("Universe", "/src") == [{"path": "/src/main.txt", "line": 1, "text": "Hello Universe"}]
    assert [info["path"] for info in backend.glob_info("*.txt", "/src")] == ["/src/main.txt"]


def test_it_is_the_default_that_executes(backend):
    composite = CompositeBackend(default=backend, routes={"/state/": StateBackend()})
    assert composite.execute("echo through").output == "through\n"


@pytest.mark.trio
async def test_the_async_forms(backend):
    assert (await backend.aexecute("echo a")).output == "a\n"
    assert (await backend.awrite("/async.txt", "x")).error is None
    assert "x" in await backend.aread("/async.txt")
