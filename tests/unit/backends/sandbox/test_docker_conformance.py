"""The published suite on a `DockerBackend`: one container for all cases, emptied for each."""

from __future__ import annotations

import pytest

from fusebackend.backends import DockerBackend
from fusebackend.testing.conformance import BackendConformance


@pytest.fixture(scope="module")
def container_backend(docker_engine):
    with DockerBackend(
        docker_engine.image, root="/work", base_url=docker_engine.url, options={"network_mode": "none"}
    ) as backend:
        yield backend


class TestDocker(BackendConformance):
    cancelled_s = 8.0  # those that had begun are an `exec` each; all hundred of the crowd would take longer

    @pytest.fixture
    def backend(self, container_backend):
        assert container_backend.execute("cd / && rm -rf /work && mkdir /work").exit_code == 0
        return container_backend
