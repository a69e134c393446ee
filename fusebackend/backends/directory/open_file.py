"""`OpenFile`: how one file of the system is open, whatever the number of handles.

One descriptor serves all readers and another all writers. Calls are made with the volume's lock held.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import TypeAlias

from fusebackend.backends.directory.dirfd import Descriptor
from fusebackend.base.errors import oserror

Open: TypeAlias = Callable[[int], Descriptor]
"""Opens the file with an access mode; flags such as O_APPEND or O_TRUNC have no meaning where offsets are given."""


class OpenFile:
    """`readers` and `writers` count the handles; a descriptor is open while its count is above 0."""

    __slots__ = ("_reading", "_writing", "readers", "writers")

    def __init__(self) -> None:
        self.readers = 0
        self.writers = 0
        self._reading: Descriptor | None = None
        self._writing: Descriptor | None = None

    @classmethod
    def created(cls, descriptor: Descriptor, flags: int) -> OpenFile:
        """A file that has just been made, open for reading and writing, with its first handle."""
        opened = cls()
        opened.acquire(flags, lambda _: descriptor)
        return opened

    @property
    def descriptor(self) -> Descriptor:
        """Any descriptor of the file."""
        found = self._reading or self._writing
        assert found is not None, "an open file without a handle"
        return found

    def next_data(self, offset: int) -> int | None:
        """As in `Volume`."""
        try:
            return os.lseek(self.descriptor.fd, offset, os.SEEK_DATA)  # every read and write gives its own offset
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            raise

    @property
    def writing(self) -> Descriptor:
        """EBADF when no handle is for writing."""
        if self._writing is None:
            raise oserror(errno.EBADF)
        return self._writing

    @property
    def idle(self) -> bool:
        return self.readers == self.writers == 0

    def acquire(self, flags: int, open_file: Open) -> None:
        """One more handle, with these `open(2)` flags."""
        if flags & os.O_ACCMODE == os.O_RDONLY:
            self._reading = self._reading or open_file(os.O_RDONLY)
            self.readers += 1
        else:
            self._writing = self._writing or _open_for_writing(flags, open_file)
            self.writers += 1

    def release(self, flags: int) -> None:
        """One handle less. A descriptor for writing goes with the last writer, not with the last reader: a file that
        is open for writing can't be executed (ETXTBSY)."""
        if flags & os.O_ACCMODE == os.O_RDONLY:
            self.readers -= 1
            assert self.readers >= 0, "more handles for reading were released than opened"
            if self.readers == 0:
                self._reading = None
        else:
            self.writers -= 1
            assert self.writers >= 0, "more handles for writing were released than opened"
            if self.writers == 0:
                self._writing = None

    def read(self, offset: int, size: int) -> bytes:
        return os.pread(self.descriptor.fd, size, offset)

    def write(self, offset: int, data: bytes) -> int:
        """All of it; a short write is tried again, which tells why it was short."""
        fd = self.writing.fd
        written = os.pwrite(fd, data, offset)
        while written < len(data):
            written += os.pwrite(fd, memoryview(data)[written:], offset + written)
        return written


def _open_for_writing(flags: int, open_file: Open) -> Descriptor:
    """A handle for writing can read as well: the kernel reads a page before it changes a part of it."""
    try:
        return open_file(os.O_RDWR)
    except PermissionError:
        if flags & os.O_ACCMODE == os.O_RDWR:
            raise
        return open_file(os.O_WRONLY)  # a file that we may write and not read
