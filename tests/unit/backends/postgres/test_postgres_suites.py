"""The published suite on `PostgresBackend`, and random operations on a `PostgresVolume`, against a dict."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import ClassVar

import hypothesis
import pytest
from hypothesis.stateful import rule
from postgres_check import check
from profiles import examples

from fusebackend.backends import PostgresBackend
from fusebackend.backends.postgres.volume import PostgresVolume
from fusebackend.protocol import Volume
from fusebackend.testing.conformance import BackendConformance
from fusebackend.testing.model import VolumeMachine


class PostgresMachine(VolumeMachine):
    keeps_numbers = True
    dsn: ClassVar = ""

    def make_volume(self) -> Volume:
        self.name = uuid.uuid4().hex
        return self.reopen_volume()

    def reopen_volume(self) -> PostgresVolume:
        self.opened = PostgresVolume(self.dsn, self.name)
        return self.opened

    @rule()
    def check(self) -> None:
        assert check(self.dsn, self.opened.id) == []

    def teardown(self) -> None:
        super().teardown()
        assert check(self.dsn, self.opened.id) == []


@pytest.fixture(scope="module", autouse=True)
def machine_database(database: str) -> None:
    PostgresMachine.dsn = database


TestPostgresMachine = PostgresMachine.TestCase
TestPostgresMachine.settings = hypothesis.settings(
    max_examples=examples(12), stateful_step_count=50, deadline=None, database=None
)


@pytest.fixture(scope="module")
def opened(database: str) -> Iterator[PostgresBackend]:
    with PostgresBackend(database) as backend:
        yield backend


class TestPostgres(BackendConformance):
    @pytest.fixture
    def backend(self, opened: PostgresBackend) -> PostgresBackend:
        """One volume for all cases, emptied for each: opening one takes as long as three of them."""
        for entry in opened.ls("/").entries or []:
            assert opened.delete(entry["path"]).error is None
        return opened
