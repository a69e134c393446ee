"""The published suite on `PostgresBackend`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from services.postgres import Postgres

from fusebackend.backends import PostgresBackend
from fusebackend.testing.conformance import BackendConformance


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> Iterator[str]:
    with postgres.database() as dsn:
        yield dsn


class TestPostgres(BackendConformance):
    @pytest.fixture
    def backend(self, database: str, request: pytest.FixtureRequest) -> Iterator[PostgresBackend]:
        with PostgresBackend(database, request.node.nodeid[-100:]) as backend:
            yield backend
