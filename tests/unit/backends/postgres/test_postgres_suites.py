"""The published suite on `PostgresBackend`. Random operations, against a dict: `test_postgres_snapshots.py`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fusebackend.backends import PostgresBackend
from fusebackend.testing.conformance import BackendConformance


@pytest.fixture(scope="module")
def opened(shared_dsn: str) -> Iterator[PostgresBackend]:
    with PostgresBackend(shared_dsn) as backend:
        yield backend


class TestPostgres(BackendConformance):
    @pytest.fixture
    def backend(self, opened: PostgresBackend) -> PostgresBackend:
        """One volume for all cases, emptied for each: opening one takes as long as three of them."""
        for entry in opened.ls("/").entries or []:
            assert opened.delete(entry["path"]).error is None
        return opened
