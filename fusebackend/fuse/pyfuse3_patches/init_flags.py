"""`InitFlags`: the first two messages of a mount, with a capability agreed on that libfuse 3.14 does not know.

Before a write through the page cache the kernel asks for the extended attribute `security.capability`, each time, since
a file of a FUSE mount may have got one behind its back: two requests for each write of a database (2,000 writes of a
page: 2,206 requests with this, 4,206 without; 200 commits of SQLite: 5,027 and 6,635). A server that says
FUSE_HANDLE_KILLPRIV_V2 (Linux 5.12) takes over clearing the set-user-ID bits (`vfs/setid.py`), and is asked once for
each file. FUSE_PARALLEL_DIROPS lets several look into one directory at a time, as routes that wait for a network need.
libfuse offers neither to pyfuse3, and pyfuse3 neither to us. For `-o acl` there are two more (`WANTED_FOR_ACLS`):
pyfuse3 can set the one for ACLs, but not the one for the umask, without which a default ACL would come too late.

So until it has answered FUSE_INIT, libfuse is diverted (`diversion.py`). The kernel's question goes to it as it is; in
its answer the two flags are set if the kernel has offered them; then it talks to the kernel itself. A message that is
not what is expected here goes through unchanged: then nothing is agreed on beyond what libfuse knows.

The layouts are those of include/uapi/linux/fuse.h, which never change: `fuse_in_header` and `fuse_init_in` of the
request, `fuse_out_header` and `fuse_init_out` of the answer. Switch: `init_flags`.
"""

from __future__ import annotations

import logging
import os
import struct

import trio

from fusebackend.fuse.pyfuse3_patches.diversion import Diversion

log = logging.getLogger(__name__)

FUSE_DONT_MASK = 1 << 6
FUSE_PARALLEL_DIROPS = 1 << 18
FUSE_POSIX_ACL = 1 << 20
FUSE_HANDLE_KILLPRIV_V2 = 1 << 28
WANTED = FUSE_PARALLEL_DIROPS | FUSE_HANDLE_KILLPRIV_V2
WANTED_FOR_ACLS = FUSE_POSIX_ACL | FUSE_DONT_MASK
"""Only with `-o acl`: the kernel then asks for the ACL of each file of which somebody else than its owner wants
something, and leaves the umask to us, since a default ACL takes its place."""

_INIT = 26
_QUESTION = struct.Struct("=II 32x 3I I")  # len, opcode, …; major, minor, max_readahead, flags
_ANSWER = struct.Struct("=IiQ 3I I")  # len, error, unique; major, minor, max_readahead, flags
_MESSAGE_BYTES = 1 << 20
"""More than any first message has, and what the kernel wants a reader to have room for."""


class InitFlags:
    """Stands between the kernel and libfuse from the moment it is made until `is_over`.

    Args:
        descriptor: libfuse's, of `/dev/fuse`, from which nothing has been read yet.
        acls: the kernel is to check POSIX ACLs.

    Attributes:
        diversion: of that descriptor, to be closed when the mount has ended.
    """

    def __init__(self, descriptor: int, *, acls: bool = False) -> None:
        self._wanted = WANTED | (WANTED_FOR_ACLS if acls else 0)
        self.is_over = False
        self.agreed = 0
        """The flags that were added to libfuse's answer."""
        self.minor = 0
        """The kernel's version of the protocol, 7 being the major one; 0 if it is not known."""
        self.diversion = Diversion(descriptor)
        self.diversion.begin()
        self._offered: int | None = None

    async def go_on(self) -> None:
        """Called before libfuse reads: first for the kernel's question, then when it has been answered."""
        kernel, libfuse = self.diversion.kernel, self.diversion.ours
        try:
            if self._offered is None:
                await trio.lowlevel.wait_readable(kernel)
                question = os.read(kernel, _MESSAGE_BYTES)
                self.minor, self._offered = _offered_by(question)
                libfuse.send(question)
                return
            await trio.lowlevel.wait_readable(libfuse)
            answer = bytearray(libfuse.recv(_MESSAGE_BYTES))
            self.agreed = _agree(answer, self._offered & self._wanted)
            os.write(kernel, answer)
        except OSError:
            log.debug("FUSE_INIT failed", exc_info=True)  # unmounted already: libfuse will find out as well
        self.is_over = True
        self.diversion.end()


def _offered_by(question: bytes) -> tuple[int, int]:
    """The minor version of the protocol, and the flags, which the kernel offers."""
    if len(question) < _QUESTION.size:
        return 0, 0
    _, opcode, _, minor, _, flags = _QUESTION.unpack_from(question)
    return (int(minor), int(flags)) if opcode == _INIT else (0, 0)


def _agree(answer: bytearray, wanted: int) -> int:
    """Set flags in libfuse's answer; gives what was set."""
    if len(answer) < _ANSWER.size or not wanted:
        return 0
    *head, flags = _ANSWER.unpack_from(answer)
    if head[0] != len(answer) or head[1] != 0:  # an error, which has nothing to add to
        return 0
    _ANSWER.pack_into(answer, 0, *head, flags | wanted)
    return wanted
