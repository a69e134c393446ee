"""Random operations on a bucket in memory, against a dict: with cached listings, and with none."""

from __future__ import annotations

import errno

import hypothesis
from hypothesis import strategies as st
from hypothesis.stateful import rule
from obstore.store import MemoryStore
from profiles import examples

from fusebackend.backends.object_store.bucket import object_keys as names
from fusebackend.backends.object_store.volume import ObjectStoreVolume
from fusebackend.protocol import RENAME_NOREPLACE
from fusebackend.testing.model import VolumeMachine


class ObjectMachine(VolumeMachine):
    """Files that are closed and nobody can reach by a name are not kept, as with all whole-file volumes."""

    directory_links = False
    ttl_s = 0.0

    def make_volume(self):
        self.store = MemoryStore()
        return self.reopen_volume()

    def reopen_volume(self):
        return ObjectStoreVolume(self.store, ttl_s=self.ttl_s)

    def draw_node(self, data, wanted=lambda node: True):
        return super().draw_node(data, lambda node: wanted(node) and (node.links > 0 or self.is_open(node)))

    def attempt(self, refusals, call, *arguments):
        """A name that no key can hold is refused where it would be made."""
        given = [argument for argument in arguments if isinstance(argument, bytes)]
        new = {"do_create": given[:1], "do_make": given[:1], "do_rename": given[1:2]}.get(call.__name__, [])
        if any(names.segment_of(name) is None for name in new):
            refusals = refusals | {errno.EILSEQ}
        return super().attempt(refusals, call, *arguments)

    @rule(data=st.data(), flags=st.sampled_from((0, RENAME_NOREPLACE)))
    def rename_by_copy(self, data, flags):
        parent, new_parent = self.draw_directory(data), self.draw_directory(data)
        move = parent, self.draw_name(data, parent), new_parent, self.draw_name(data, new_parent), flags
        if self.attempt(self.tree.may_rename(*move), self.do_rename, *move):
            replaced = self.tree.rename(*move)
            if replaced is not None:
                self.lost_name(replaced)


class BelievingMachine(ObjectMachine):
    ttl_s = 3600.0


SETTINGS = hypothesis.settings(max_examples=examples(12), stateful_step_count=50, deadline=None, database=None)

TestNeverBelieved = ObjectMachine.TestCase
TestNeverBelieved.settings = SETTINGS
TestBelieved = BelievingMachine.TestCase
TestBelieved.settings = SETTINGS
