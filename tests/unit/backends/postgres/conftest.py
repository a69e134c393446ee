"""An empty database for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from services.postgres import Postgres


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> Iterator[str]:
    with postgres.database() as dsn:
        yield dsn
