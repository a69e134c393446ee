"""`Diversion`: libfuse's descriptor of /dev/fuse, which for a moment is one end of a socket pair.

libfuse and pyfuse3 leave no other way to what passes between them and the kernel: `init_flags.py` diverts the first two
messages of a mount, `cached_opendir.py` single answers. `kernel` is a descriptor of our own, which always leads there.
"""

from __future__ import annotations

import os
import socket


class Diversion:
    """See the module's docstring.

    Args:
        descriptor: libfuse's.

    Attributes:
        kernel: of the kernel; -1 once it is closed.
        ours: the other end of the pair, which keeps messages apart.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.kernel = os.dup(descriptor)
        self.ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.ours.setblocking(False)
        self._theirs.setblocking(False)

    def begin(self) -> None:
        """From now on, libfuse talks to us."""
        os.dup2(self._theirs.fileno(), self._descriptor, inheritable=False)

    def end(self) -> None:
        """libfuse talks to the kernel again."""
        os.dup2(self.kernel, self._descriptor, inheritable=False)

    def close(self) -> None:
        """Close all descriptors after the mount: an open one would keep the kernel's side of it alive."""
        if self.kernel >= 0:
            self.end()
            os.close(self.kernel)
            self.kernel = -1
        self.ours.close()
        self._theirs.close()
