"""The published suites on object stores: obstore's own in memory here, real servers where they can be started."""

from __future__ import annotations

import itertools

import pytest
from obstore.store import MemoryStore

from fusebackend.backends.object_store.backend import ObjectStoreBackend, S3Backend
from fusebackend.testing.conformance import BackendConformance


class Objects(BackendConformance):
    any_name = False  # a key is UTF-8, without control characters


@pytest.mark.configuration
class TestMemory(Objects):
    @pytest.fixture
    def backend(self):
        with ObjectStoreBackend(MemoryStore()) as backend:
            yield backend


@pytest.mark.services
class TestSeaweedFS(Objects):
    many_entries = 50  # each is several requests; `test_objectstore_volume.py` has a flat bucket with pages of them

    @pytest.fixture(scope="class")
    @classmethod
    def places(cls, seaweedfs):
        with seaweedfs.bucket() as bucket:
            yield (S3Backend(bucket.name, f"some/prefix{number}", **bucket.options()) for number in itertools.count())

    @pytest.fixture
    def backend(self, places):
        with next(places) as backend:
            yield backend
