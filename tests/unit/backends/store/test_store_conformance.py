"""The published suite on a `StoreBackend` over each of the three stores."""

from __future__ import annotations

import contextlib

import pytest
import stores
from langgraph.store.memory import InMemoryStore

from fusebackend.backends import StoreBackend
from fusebackend.testing.conformance import BackendConformance, Probe


@pytest.fixture(scope="module")
def backend_of(request, tmp_path_factory):
    """A backend over a kind of store, made once; each call moves its namespace on, so that it is empty."""
    made = {}
    places = {}
    with contextlib.ExitStack() as stack:

        def backend(kind):
            if kind not in made:
                server = request.getfixturevalue("postgres") if kind == "postgres" else None
                dsn = stack.enter_context(server.database()) if server is not None else None
                store = stack.enter_context(stores.opened(kind, tmp_path_factory.mktemp(kind), dsn))
                made[kind] = stack.enter_context(StoreBackend(store, namespace=lambda _: places[kind]))
            places[kind] = stores.fresh_namespace()
            return made[kind]

        yield backend


class StoreConformance(BackendConformance):
    keeps_empty_directories = False
    kind = ""

    @pytest.fixture
    def backend(self, backend_of):
        return backend_of(self.kind)


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
