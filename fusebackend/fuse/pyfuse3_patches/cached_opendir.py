"""`CachedOpendir`: sets the flag in answers to `opendir` that lets the kernel keep the listing.

With FOPEN_CACHE_DIR the kernel keeps what `readdir` has said until the directory's time moves, or it changes the
directory itself, and the next listing is two requests instead of four or more (fs/fuse/readdir.c). pyfuse3 lets
`opendir` answer with a handle, and with nothing else.

So, as in `init_flags.py`, the descriptor that libfuse answers through is for a moment one end of a socket pair: from
the return of the handler, after which pyfuse3 answers with no turn for any other task between, until the same task
comes back for the next request. Then the flags are set in the answer, and it goes to the kernel. No notice may be
written in that moment: if one is on its way, the answer goes straight, and the listing is not kept this time.

The layouts are those of include/uapi/linux/fuse.h, which never change: `fuse_out_header`, `fuse_open_out`.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import struct

from fusebackend.fuse.notifier import Notifier

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
        self._descriptor = self._kernel = -1
        self._pair: tuple[socket.socket, socket.socket] | None = None

    def prepare(self, descriptor: int) -> None:
        """From now on it can begin. `descriptor` is libfuse's, of `/dev/fuse`."""
        self._descriptor, self._kernel = descriptor, os.dup(descriptor)
        self._pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # keeps messages apart
        for end in self._pair:
            end.setblocking(False)

    def begin(self) -> None:
        """Divert the next answer, of an `opendir`. Not if a notice might come before it."""
        if self._pair is None or not self._notices.hold():
            return
        os.dup2(self._pair[1].fileno(), self._descriptor, inheritable=False)
        self.is_on = True

    def end(self) -> None:
        """Pass the answer on to the kernel, which libfuse talks to again."""
        if not self.is_on or self._pair is None:
            return
        self.is_on = False
        os.dup2(self._kernel, self._descriptor, inheritable=False)
        self._notices.go_on()
        try:
            os.write(self._kernel, _allowing(self._pair[0].recv(_LONGEST_BYTES)))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):  # its process was killed, or the mount is gone
                log.error("an opendir could not be answered: %s", error)

    def close(self) -> None:
        """Close all descriptors after the mount: an open one would keep the kernel's side of it alive."""
        self.end()
        if self._pair is not None:
            os.close(self._kernel)
            for end in self._pair:
                end.close()
            self._pair = None


def _allowing(answer: bytes) -> bytes:
    """The answer to an `opendir` with the flags set. Any other message stays as it is, such as an error."""
    if len(answer) != _ANSWER.size:
        return answer
    length, error, unique, handle, flags = _ANSWER.unpack(answer)
    if length != len(answer) or error != 0:
        return answer
    return _ANSWER.pack(length, error, unique, handle, flags | FOPEN_KEEP_CACHE | FOPEN_CACHE_DIR)
