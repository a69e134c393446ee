"""Random operations on volumes that store whole files, against a dict: no links to directories, renames by copies."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule

from fusebackend.protocol import RENAME_NOREPLACE
from fusebackend.testing.model import VolumeMachine


class WholeFileMachine(VolumeMachine):
    directory_links = False

    def draw_node(self, data, wanted=lambda node: True):
        # Only the bytes of open files outlive their name: to keep those the kernel merely knows, every unlink would
        # have to download the file first.
        return super().draw_node(data, lambda node: wanted(node) and (node.links > 0 or node in self.handles))

    @rule(data=st.data(), flags=st.sampled_from((0, RENAME_NOREPLACE)))
    def rename_by_copy(self, data, flags):
        parent, new_parent = self.draw_directory(data), self.draw_directory(data)
        self.move(parent, self.draw_name(data, parent), new_parent, self.draw_name(data, new_parent), flags)
