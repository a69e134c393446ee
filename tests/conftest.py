"""Fixtures for all tests. Mounts come from `mounts.py`, which lies beside this file and is imported as `mounts`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import mounts
import pytest
from mounts import Serve
from services import postgres as postgres_service

# The asserts of the published suites should say what they compared. This comes before anything imports them.
pytest.register_assert_rewrite("fusebackend.testing")


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
