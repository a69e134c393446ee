"""The published suite on a `StoreBackend` over each of the three stores."""

from __future__ import annotations

import pytest
from langgraph.store.memory import InMemoryStore

from fusebackend.backends import StoreBackend
from fusebackend.testing.conformance import BackendConformance, Probe


class StoreConformance(BackendConformance):
    keeps_empty_directories = False
    big_file_bytes = (1 << 20) + 5  # one value, whatever its size
    kind = ""

    @pytest.fixture
    def backend(self, store_of):
        store, namespace = store_of(self.kind)
        with StoreBackend(store, namespace=namespace) as backend:
            yield backend


class SqlConformance(StoreConformance):
    """Keys are UTF-8 there, so a name must be."""

    def test_a_name_may_be_bytes_that_are_no_text(self, b: Probe) -> None:
        (response,) = b.upload_files([("/dir/\udcff", b"x")])
        assert response.error == "Invalid or incomplete multibyte or wide character"
        assert b.write("/\udcff", "x").error == "Error writing file '/\udcff': " + response.error
        assert b.read("/\udcff").error == "File '/\udcff' not found"
        assert b.names() == []


class TestInMemoryStore(StoreConformance):
    kind = "memory"


class TestSqliteStore(SqlConformance):
    kind = "sqlite"


@pytest.mark.configuration
@pytest.mark.services
class TestPostgresStore(SqlConformance):
    kind = "postgres"


@pytest.mark.configuration
class TestTheSeedsFormat(StoreConformance):
    @pytest.fixture
    def backend(self):
        return StoreBackend(InMemoryStore(), file_format="v1")


@pytest.mark.configuration
class TestReplacing(StoreConformance):
    replaces_existing = True

    @pytest.fixture
    def backend(self):
        return StoreBackend(InMemoryStore(), on_exists="replace")
