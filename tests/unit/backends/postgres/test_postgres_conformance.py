"""The published suite on `PostgresBackend`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from services.postgres import Postgres

from fusebackend.backends import PostgresBackend
from fusebackend.testing.conformance import BackendConformance

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def opened(postgres: Postgres) -> Iterator[PostgresBackend]:
    with postgres.database() as dsn, PostgresBackend(dsn) as backend:
        yield backend


class TestPostgres(BackendConformance):
    @pytest.fixture
    def backend(self, opened: PostgresBackend) -> PostgresBackend:
        """One volume for all cases, emptied for each: opening one takes as long as three of them."""
        for entry in opened.ls("/").entries or []:
            assert opened.delete(entry["path"]).error is None
        return opened
