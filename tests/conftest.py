"""Fixtures for all tests. Mounts come from `mounts.py`, which lies beside this file and is imported as `mounts`."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import mounts
import pytest
import skips
from mounts import Serve
from services import docker as docker_service
from services import moto as moto_service
from services import postgres as postgres_service
from services import seaweedfs as seaweedfs_service
from services.s3 import Bucket
from switched import pytest_generate_tests, pytest_pyfunc_call, turned_off  # noqa: F401 - hooks and a fixture

# The asserts of the published suites should say what they compared. This comes before anything imports them.
pytest.register_assert_rewrite("fusebackend.testing")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    return skips.judged((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, Any]:
    return skips.judged((yield))


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """A function that mounts: `serve("memory:", routes={"/notes": "dir:/x"}, options=["allow_other"])`.

    Each call gets a mount point of its own below `tmp_path`. At the end of the test all are stopped, in reverse order,
    and the test fails if one had anything to complain about. A test may stop or kill a server itself before that.
    """
    servers: list[mounts.Mounted] = []

    def mount(default: str, *, at: str | None = None, **options: object) -> mounts.Mounted:
        mountpoint = tmp_path / (at or f"mnt{len(servers)}")
        server = mounts.start(mountpoint, default, **options)  # type: ignore[arg-type]
        servers.append(server)
        return server

    yield mount
    failures = []
    for server in reversed(servers):
        if server.process.returncode is None:
            try:
                server.stop()
            except AssertionError as error:
                failures.append(str(error))
        else:
            server.kill()
    assert not failures, "\n".join(failures)


@pytest.fixture(scope="session")
def postgres() -> Iterator[postgres_service.Postgres]:
    """A real PostgreSQL for the session; `with postgres.database() as dsn:` gives an empty database in it."""
    with postgres_service.running() as server:
        yield server


@pytest.fixture
def postgres_dsn(postgres: postgres_service.Postgres) -> Iterator[str]:
    """The DSN of an empty database, which is dropped after the test."""
    with postgres.database() as dsn:
        yield dsn


@pytest.fixture(scope="session")
def seaweedfs() -> Iterator[seaweedfs_service.SeaweedFS]:
    """A real object store for the session; `with seaweedfs.bucket() as bucket:` gives an empty bucket in it."""
    with seaweedfs_service.running() as server:
        yield server


@pytest.fixture
def bucket(seaweedfs: seaweedfs_service.SeaweedFS) -> Iterator[Bucket]:
    """An empty bucket of SeaweedFS, which is dropped after the test."""
    with seaweedfs.bucket() as bucket:
        yield bucket


@pytest.fixture(scope="session")
def moto() -> Iterator[moto_service.Moto]:
    """moto's S3 for the session, with flat keys as in AWS."""
    with moto_service.running() as server:
        yield server


@pytest.fixture
def flat_bucket(moto: moto_service.Moto) -> Iterator[Bucket]:
    """An empty bucket of moto's, which is dropped after the test."""
    with moto.bucket() as bucket:
        yield bucket


@pytest.fixture(scope="session")
def docker_engine() -> Iterator[docker_service.DockerEngine]:
    """A real Docker engine for the session, with an image that has busybox in it."""
    with docker_service.running() as engine:
        yield engine
