"""`Overtaken`: an answer that a change may have overtaken is given with a timeout of zero.

Race: a volume is asked for a name or for attributes, another face changes them, and the notice reaches the kernel
before the answer does. The kernel drops the notice of an inode that it has not instantiated
(`fuse_reverse_inval_inode`, fs/fuse/inode.c), and would then cache the old answer for an hour. With a timeout of zero
it asks again. Cost: a comparison of two numbers for each answer; a busy agent makes the kernel ask twice. Switch:
`overtaken`.

The answers to LINK and to a CREATE of an existing file are applied without a check for a newer notice
(`create_new_entry`, fs/fuse/dir.c), so they always have a timeout of zero. Cost: one GETATTR at the next use of the
file. Switch: `unordered_replies`.
"""

from __future__ import annotations

from fusebackend.vfs.inodes import Entry


class Overtaken:
    """See the module's docstring."""

    def __init__(self, on: bool, unordered: bool) -> None:
        self._on = on
        self._unordered = unordered
        self.generation = 0
        """Counts the changes by others."""

    def checked(self, entry: Entry, asked_at: int) -> Entry:
        """Return the entry, with a timeout of zero if anything was changed since the volume was asked.

        Args:
            asked_at: `generation` from before the volume was asked.
        """
        return entry if asked_at == self.generation or not self._on else entry._replace(timeout_s=0.0)

    def unordered(self, entry: Entry) -> Entry:
        """Return the entry for an answer that the kernel applies also after a newer notice."""
        return entry._replace(timeout_s=0.0) if self._unordered else entry
