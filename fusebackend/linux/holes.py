"""Where the holes of a file are, as lseek(2) tells."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from fusebackend.base.errors import unless

_UNKNOWN = (errno.EINVAL, errno.ENOTSUP, errno.ENXIO)


def data_ranges(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """Return the ranges of a file that hold data, as (start, end); the rest are holes (lseek(2), SEEK_DATA)."""
    end = 0
    while (start := next_data(fd, end, size)) < size:
        hole = unless(_UNKNOWN, os.lseek, fd, start, os.SEEK_HOLE)
        end = size if hole is None else min(hole, size)  # None: a file system that knows no holes
        yield start, end


def next_data(fd: int, offset: int, size: int) -> int:
    """Return the first offset of data at or after one; `size` if a hole reaches to the end."""
    try:
        return min(os.lseek(fd, offset, os.SEEK_DATA), size) if offset < size else size
    except OSError as error:
        if error.errno not in _UNKNOWN:
            raise
        return size if error.errno == errno.ENXIO else offset
