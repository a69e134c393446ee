"""`Overtaken`: an answer that a change has overtaken is given with a timeout of zero.

Race: a volume is asked for a name or for attributes, another face changes them, and the kernel is told of that before
it has the answer. It drops the notice of what it does not know yet (`fuse_reverse_inval_inode`, fs/fuse/inode.c), and
would then believe an answer from before the change for an hour. With no time to live it asks again when it needs to.

Cost: a comparison of two numbers for each answer; a busy agent makes the kernel ask twice. Switch: `overtaken`.
"""

from __future__ import annotations

from fusebackend.vfs.inodes import Entry


class Overtaken:
    """See the module's docstring."""

    def __init__(self, on: bool) -> None:
        self._on = on
        self.heard = 0
        """How many changes by others were heard of."""

    def checked(self, entry: Entry, asked_at: int) -> Entry:
        """The entry, to be believed only if nothing was heard of since it was asked for.

        Args:
            asked_at: `heard` from before the volume was asked.
        """
        return entry if asked_at == self.heard or not self._on else entry._replace(timeout_s=0.0)
