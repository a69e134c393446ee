"""The published suite on a `DockerBackend`: one container for all cases, emptied for each.

A command in a container costs 70 ms. The scripts are those of `BaseSandbox`, which `test_sandbox_conformance.py` puts
to the whole suite with the same tools; by day the container is asked for its own part, the transfers, and
`test_docker_commands.py` has verbs beside commands.
"""

from __future__ import annotations

import pytest

from fusebackend.backends import DockerBackend
from fusebackend.testing.conformance import BackendConformance, BatchCases


@pytest.fixture(scope="module")
def container_backend(docker_engine):
    with DockerBackend(
        docker_engine.image, root="/work", base_url=docker_engine.url, options={"network_mode": "none"}
    ) as backend:
        yield backend


class Contained:
    big_file_bytes = (1 << 20) + 5

    @pytest.fixture
    def backend(self, container_backend):
        assert container_backend.execute("cd / && rm -rf /work && mkdir /work").exit_code == 0
        return container_backend


class TestTransfers(Contained, BatchCases):
    pass


@pytest.mark.night
class TestDocker(Contained, BackendConformance):
    cancelled_s = 8.0  # those that had begun are an `exec` each; all hundred of the crowd would take longer
