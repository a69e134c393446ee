"""The published suites on object stores: obstore's own in memory here, real servers where they can be started."""

from __future__ import annotations

import pytest
from obstore.store import MemoryStore

from fusebackend.backends.objectstore.backend import ObjectStoreBackend
from fusebackend.testing.conformance import BackendConformance


class Objects(BackendConformance):
    any_name = False  # a key is UTF-8, without control characters


class TestMemory(Objects):
    @pytest.fixture
    def backend(self):
        with ObjectStoreBackend(MemoryStore()) as backend:
            yield backend
