"""`DirectWrites`: writes through some handles pass the kernel's page cache by (FOPEN_DIRECT_IO).

Saves: a request for each write. Before a cached write the kernel asks for `security.capability`: for each, or, where
`mount/pyfuse3_patches/init_flags.py` has agreed on more, for the first after it has looked at the file's attributes.

Costs: nothing is in the page cache afterwards. A handle that can't read gains nothing from it: nobody can map it, and
the pages would be dropped anyway when the file's new time is seen. The kernel takes no capabilities for such writes:
`capabilities.py` does. Not for setuid and setgid files, whose bits a kernel before 5.12 clears only with a cached
write.

Only for a file that this opening has made or emptied, which nobody else is at work in yet, and for appending. Where one
process writes past the cache and another has the same page mapped, the other's page, written back as a whole, undoes
the write. Appending is the other way about: beside a mapping of the last page, a sync at the same moment has undone
what was appended through the cache (seen with Linux 6.18), so this part has no switch.

Switch: `direct_writes`.
"""

from __future__ import annotations

import os
import stat


class DirectWrites:
    """See the module's docstring."""

    def __init__(self, on: bool) -> None:
        self._on = on

    def are_for(self, flags: int, mode: int) -> bool:
        """Do the writes of a handle with these `open(2)` flags, of a file of this mode, pass the page cache by?"""
        fit = flags & (os.O_CREAT | os.O_TRUNC | os.O_APPEND if self._on else os.O_APPEND)
        return bool(fit) and flags & os.O_ACCMODE == os.O_WRONLY and not mode & (stat.S_ISUID | stat.S_ISGID)
