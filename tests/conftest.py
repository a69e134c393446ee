"""Fixtures for all tests. Their parts are in `support/` and `services/`, imported by name."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import mounts
import pytest
import skips
from mounts import Serve
from services import docker as docker_service
from services import shared
from services.postgres import Postgres
from services.s3 import Bucket, Service

pytest_plugins = ["switched", "tiers"]

# A shell starts its background jobs with SIGINT ignored, and every command of a test would ignore it, too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Servers that tests run are where a plain user's shell does not look.
os.environ["PATH"] += ":/usr/sbin:/sbin"

# NumPy comes with LangChain, and would have a thread for each core in every worker and command.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# As `fusebackend mount` does: some tests have thousands of files and connections, and a shell of Debian allows 1,024.
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

# The asserts of the published suites should say what they compared. This comes before anything imports them.
pytest.register_assert_rewrite("fusebackend.testing")


SERVERS = frozenset({"postgres", "seaweedfs", "docker_engine"})


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark a test by its folder and its fixtures. Others that need a mount, or a server of their own, say so."""
    if item.nodeid.startswith("tests/mounted/"):
        item.add_marker("mounted")
    if not SERVERS.isdisjoint(getattr(item, "fixturenames", ())):
        item.add_marker("services")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("mounted") is not None:
        mounts.require()


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
def anyio_backend() -> str:
    """The loop of tests that are marked `anyio`."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def users_directories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give tests and their servers a cache, data and state of their own, in place of the user's."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("cache", "data", "state"):
            patch.setenv(f"XDG_{name.upper()}_HOME", str(tmp_path_factory.mktemp(name)))
        yield


@pytest.fixture(scope="session")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The temporary directory of this run, the same one for all of its workers."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def postgres(run_directory: Path) -> Iterator[Postgres]:
    """A real PostgreSQL for the run; `with postgres.database() as dsn:` gives an empty database in it."""
    with shared.postgres(run_directory) as server:
        yield server


@pytest.fixture
def postgres_dsn(postgres: Postgres) -> Iterator[str]:
    """The DSN of an empty database, which is dropped after the test."""
    with postgres.database() as dsn:
        yield dsn


@pytest.fixture(scope="module")
def shared_dsn(postgres: Postgres) -> Iterator[str]:
    """The DSN of a database that the tests of a module share."""
    with postgres.database() as dsn:
        yield dsn


@pytest.fixture(scope="session")
def seaweedfs(run_directory: Path) -> Iterator[Service]:
    """A real object store for the run; `with seaweedfs.bucket() as bucket:` gives an empty bucket in it."""
    with shared.seaweedfs(run_directory) as server:
        yield server


@pytest.fixture
def bucket(seaweedfs: Service) -> Iterator[Bucket]:
    """An empty bucket of SeaweedFS, which is dropped after the test."""
    with seaweedfs.bucket() as bucket:
        yield bucket


@pytest.fixture(scope="session")
def docker_engine() -> Iterator[docker_service.DockerEngine]:
    """A real Docker engine for the session, with an image that has busybox in it.

    It is not shared, for its tests look at all of its containers. `tiers.py` keeps them on one worker.
    """
    with docker_service.running() as engine:
        yield engine
