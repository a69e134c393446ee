"""The published suites on object stores, and random operations against a dict: with cached listings, and with none.

obstore's own store in memory, and a real server where it can be started.
"""

from __future__ import annotations

import errno
import itertools

import hypothesis
import pytest
from obstore.store import MemoryStore
from profiles import examples
from whole_files import WholeFileMachine

from fusebackend.backends.object_store.bucket import object_keys as names
from fusebackend.backends.object_store.remote import BucketRemote, ObjectStoreBackend, S3Backend
from fusebackend.remote.volume import RemoteVolume
from fusebackend.testing.conformance import BackendConformance


class Objects(BackendConformance):
    any_name = False  # a key is UTF-8, without control characters


@pytest.mark.configuration
class TestMemory(Objects):
    @pytest.fixture
    def backend(self):
        with ObjectStoreBackend(MemoryStore()) as backend:
            yield backend


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


class ObjectMachine(WholeFileMachine):
    ttl_s = 0.0

    def make_volume(self):
        self.store = MemoryStore()
        return self.reopen_volume()

    def reopen_volume(self):
        return RemoteVolume(BucketRemote(self.store), ttl_s=self.ttl_s)

    def attempt(self, refusals, call, *arguments, **options):
        """A name that no key can hold is refused where it would be made."""
        given = [argument for argument in arguments if isinstance(argument, bytes)]
        making = dict.fromkeys(("create", "mkdir", "mknod", "symlink"), given[:1])
        new = {**making, "rename": given[1:2]}.get(call.__name__, [])
        if any(names.segment_of(name) is None for name in new):
            refusals = refusals | {errno.EILSEQ}
        return super().attempt(refusals, call, *arguments, **options)


class BelievingMachine(ObjectMachine):
    ttl_s = 3600.0


SETTINGS = hypothesis.settings(max_examples=examples(12), stateful_step_count=50, deadline=None, database=None)

TestNeverBelieved = ObjectMachine.TestCase
TestNeverBelieved.settings = SETTINGS
TestBelieved = BelievingMachine.TestCase
TestBelieved.settings = SETTINGS
