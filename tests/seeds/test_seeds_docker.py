"""The seeds' samples of a Docker backend, with `deepagents.backends` replaced by `fusebackend.backends`.

The seeds keep the files in the memory of the agent and run the commands in a container that does not see them; here
they are in the container, which is what everybody expects who reads `cat` after `write`.
"""

from __future__ import annotations

import inspect
import re

import pytest

from fusebackend.backends import DockerBackend
from fusebackend.backends.protocol import SandboxBackendProtocol


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


def test_its_id(backend):
    assert re.fullmatch("docker-[0-9a-f]{8}", backend.id)
    assert isinstance(backend, SandboxBackendProtocol)


def test_one_container_for_all_commands(backend):
    backend.execute("echo kept > /tmp/kept")
    first = backend.container.id
    assert backend.execute("cat /tmp/kept").output == "kept\n"
    assert backend.container.id == first


def test_the_files_of_the_verbs_are_those_of_the_commands(backend):
    backend.write("/src/main.txt", "Hello World")
    assert backend.edit("/src/main.txt", "World", "Universe").occurrences == 1
    assert backend.execute("cat /src/main.txt").output == "Hello Universe"
    assert "Universe" in backend.read("/src/main.txt")
    assert [info["path"] for info in backend.ls_info("/src")] == ["/src/main.txt"]
    assert backend.grep_raw("Universe", "/src") == [{"path": "/src/main.txt", "line": 1, "text": "Hello Universe"}]
    assert [info["path"] for info in backend.glob_info("*.txt", "/src")] == ["/src/main.txt"]
