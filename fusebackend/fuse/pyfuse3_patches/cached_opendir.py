"""`CachedOpendir`: sets the flag in answers to `opendir` that lets the kernel keep the listing.

With FOPEN_CACHE_DIR the kernel keeps what `readdir` has said until the directory's time moves, or it changes the
directory itself, and the next listing is two requests instead of four or more (fs/fuse/readdir.c). pyfuse3 lets
`opendir` answer with a handle, and with nothing else.

So libfuse is diverted (`diversion.py`) from the return of the handler, after which pyfuse3 answers with no turn for any
other task between, until the same task comes back for the next request. Then the flags are set in the answer, and it
goes to the kernel. No notice may be written in that moment: if one is on its way, the answer goes straight, and the
listing is not kept this time.

The layouts are those of include/uapi/linux/fuse.h, which never change: `fuse_out_header`, `fuse_open_out`.
"""

from __future__ import annotations

import errno
import logging
import os
import struct

from fusebackend.fuse.notifier import Notifier
from fusebackend.fuse.pyfuse3_patches.diversion import Diversion

log = logging.getLogger(__name__)

FOPEN_KEEP_CACHE = 1 << 1
FOPEN_CACHE_DIR = 1 << 3

_ANSWER = struct.Struct("=IiQ QI4x")  # len, error, unique; fh, open_flags
_LONGEST_BYTES = 4096


class CachedOpendir:
    """See the module's docstring. All is called by the loop's thread."""

    def __init__(self, notices: Notifier) -> None:
        self.is_on = False
        self._notices = notices
        self._diversion: Diversion | None = None

    def prepare(self, diversion: Diversion) -> None:
        """From now on it can begin."""
        self._diversion = diversion

    def begin(self) -> None:
        """Divert the next answer, of an `opendir`. Not if a notice might come before it."""
        if self._diversion is None or not self._notices.hold():
            return
        self._diversion.begin()
        self.is_on = True

    def end(self) -> None:
        """Pass the answer on to the kernel, which libfuse talks to again."""
        if not self.is_on or self._diversion is None:
            return
        self.is_on = False
        self._diversion.end()
        self._notices.go_on()
        try:
            os.write(self._diversion.kernel, _allowing(self._diversion.ours.recv(_LONGEST_BYTES)))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):  # its process was killed, or the mount is gone
                log.error("an opendir could not be answered: %s", error)

    def close(self) -> None:
        """The mount has ended: give an answer that waits, and begin no more."""
        self.end()
        self._diversion = None


def _allowing(answer: bytes) -> bytes:
    """The answer to an `opendir` with the flags set. Any other message stays as it is, such as an error."""
    if len(answer) != _ANSWER.size:
        return answer
    length, error, unique, handle, flags = _ANSWER.unpack(answer)
    if length != len(answer) or error != 0:
        return answer
    return _ANSWER.pack(length, error, unique, handle, flags | FOPEN_KEEP_CACHE | FOPEN_CACHE_DIR)
