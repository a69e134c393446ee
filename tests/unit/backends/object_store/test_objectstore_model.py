"""Random operations on a bucket in memory, against a dict: with cached listings, and with none."""

from __future__ import annotations

import errno

import hypothesis
from obstore.store import MemoryStore
from profiles import examples
from whole_files import WholeFileMachine

from fusebackend.backends.object_store.bucket import object_keys as names
from fusebackend.backends.object_store.volume import ObjectStoreVolume


class ObjectMachine(WholeFileMachine):
    ttl_s = 0.0

    def make_volume(self):
        self.store = MemoryStore()
        return self.reopen_volume()

    def reopen_volume(self):
        return ObjectStoreVolume(self.store, ttl_s=self.ttl_s)

    def attempt(self, refusals, call, *arguments):
        """A name that no key can hold is refused where it would be made."""
        given = [argument for argument in arguments if isinstance(argument, bytes)]
        new = {"do_create": given[:1], "do_make": given[:1], "do_rename": given[1:2]}.get(call.__name__, [])
        if any(names.segment_of(name) is None for name in new):
            refusals = refusals | {errno.EILSEQ}
        return super().attempt(refusals, call, *arguments)


class BelievingMachine(ObjectMachine):
    ttl_s = 3600.0


SETTINGS = hypothesis.settings(max_examples=examples(12), stateful_step_count=50, deadline=None, database=None)

TestNeverBelieved = ObjectMachine.TestCase
TestNeverBelieved.settings = SETTINGS
TestBelieved = BelievingMachine.TestCase
TestBelieved.settings = SETTINGS
