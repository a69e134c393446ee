"""`DirectWrites`: writes through some handles pass the kernel's page cache (FOPEN_DIRECT_IO).

Saves: a request. Before a cached write the kernel asks for `security.capability`: for each, or, where
`mount/pyfuse3_patches/init_flags.py` has agreed on more, for the first after it has looked at the file's attributes.
Creating and writing 1,000 small files takes 5,003 requests instead of 6,003.

Costs: nothing is in the page cache afterwards, and writes of 1 MiB are two requests instead of one. A handle that can't
read loses nothing by that: it can't be mapped, and the pages would be dropped anyway when the kernel sees the new time.
The kernel removes no capabilities for such writes: `capabilities.py` does. Not for setuid and setgid files, whose bits
a kernel before 5.12 clears only with a cached write.

Only for a file that this open has created or emptied, where no other process is at work yet. If one process writes past
the cache and another has the same page mapped, the other's page, written back as a whole, undoes the write.
Switch: `direct_writes`.

Race: appends are the other way about. Beside a mapping of the last page, a sync at the same moment has undone a cached
append (seen with Linux 6.18). So appends always pass the cache. Switch: `direct_appends`.
"""

from __future__ import annotations

import os
import stat


class DirectWrites:
    """See the module's docstring."""

    def __init__(self, on: bool, appends: bool) -> None:
        self._flags = (os.O_CREAT | os.O_TRUNC if on else 0) | (os.O_APPEND if appends else 0)

    def are_for(self, flags: int, mode: int) -> bool:
        """True if writes of a handle with these `open(2)` flags, of a file of this mode, pass the page cache."""
        fits = flags & self._flags and flags & os.O_ACCMODE == os.O_WRONLY
        return bool(fits) and not mode & (stat.S_ISUID | stat.S_ISGID)
