"""The contents of a regular file over the kernel face, as a whole.

A reader sees one version of a file: up to `LOCKED_BYTES` are read in one go under the volume's lock; a larger file is
read piece by piece with the lock free, so that a mount is not held up, and again when it changed meanwhile. A writer
calls with the lock held.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from typing import IO, TypeVar

from fusebackend.base import budget
from fusebackend.base.errors import oserror
from fusebackend.protocol import Attr, AttrChanges, Volume, version_of_bytes
from fusebackend.volumes.storage import ALLOCATION_BYTES

log = logging.getLogger(__name__)

PIECE_BYTES = 1 << 20
"""Read or written by one call of the kernel face."""

LOCKED_BYTES = 8 << 20
"""Read under the lock in one go: a few milliseconds."""

ATTEMPTS = 3
"""So often a larger file is read without the lock; if it changes each time, the lock is held for the next."""

T = TypeVar("T")


def require_regular(attr: Attr) -> None:
    """EISDIR for a directory, EINVAL for a FIFO, socket or device: opening one of those could wait for ever."""
    if attr.is_dir:
        raise oserror(errno.EISDIR)
    if not stat.S_ISREG(attr.mode):
        raise OSError(errno.EINVAL, "Not a regular file")


@contextlib.contextmanager
def opened(volume: Volume, node: int, flags: int) -> Iterator[int]:
    """Open a node, and yield the node to read and write; see `Volume.open`."""
    attr = volume.open(node, flags)
    handle = node if attr is None else attr.node
    try:
        yield handle
    finally:
        volume.release(handle, flags)


def read_with(
    volume: Volume,
    attr: Attr,
    max_bytes: int,
    take: Callable[[Iterable[bytes]], T],
    seen: Callable[[Attr], object] | None = None,
) -> T:
    """Return the result of `take` for the file's bytes, given in pieces; it may be called more than once.

    Args:
        seen: called with the attributes of the bytes before each call of `take`, with the volume's lock held.

    Raises:
        OSError: as `require_regular`; EFBIG when the file is larger than `max_bytes`; from the volume.
        Spent: the caller may not hold so much in memory (`Budget.hold`).
    """
    require_regular(attr)
    left = budget.current()
    with opened(volume, attr.node, os.O_RDONLY) as node:
        for _ in range(ATTEMPTS):
            with volume.viewing():
                attr = volume.getattr(node)
                size, before = attr.size, attr.fingerprint  # at once: the volume may change what it gave
                if seen is not None:
                    seen(attr)
                if size > max_bytes:
                    raise oserror(errno.EFBIG)
                if size <= LOCKED_BYTES:
                    left.hold(size)
                data = list(_pieces(volume, node, size)) if size <= LOCKED_BYTES else None
            if data is not None:
                outcome = take(data)
                left.hold(-size)
                return outcome
            outcome = take(_pieces(volume, node))
            if volume.getattr(node).fingerprint == before:
                return outcome
        with volume.viewing():
            if seen is not None:
                seen(volume.getattr(node))
            return take(_pieces(volume, node))


def version_of(volume: Volume, attr: Attr) -> str | None:
    """Return the version of a regular file; None where it would take more than `LOCKED_BYTES` of reading, and for one
    that can't be read."""
    with volume.viewing():
        found = volume.version_of(attr)
        if found is not None or attr.size > LOCKED_BYTES:
            return found
        try:
            return version_of_bytes(read_with(volume, attr, LOCKED_BYTES, joined))
        except OSError:
            return None


def joined(pieces: Iterable[bytes]) -> bytes:
    """Join pieces of a file, as `read_with` gives them. The caller's budget counts both them and the whole, while they
    are there."""
    left = budget.current()
    found = [*left.kept(pieces, len)]
    size = sum(map(len, found))
    left.hold(size)
    whole = b"".join(found)
    left.hold(-size)
    return whole


def _pieces(volume: Volume, node: int, size: int = 0) -> Iterator[bytes]:
    """Read a file to its end. A `size` that can't change meanwhile saves the last read; a file with size 0 may have
    bytes (proc(5))."""
    offset = 0
    while piece := volume.read(node, offset, PIECE_BYTES):
        yield piece
        offset += len(piece)
        if offset == size:
            return


def data_pieces(volume: Volume, node: int, size: int = 0) -> Iterator[tuple[int, bytes]]:
    """Read a file without its holes: each piece with its offset. The last one ends where the file does.

    A `size` that it is known to have saves the look for holes where there can be none, in a file of one block.

    ECANCELED when the caller is gone or has cancelled (`base/budget.py`): a file may be 4 TiB."""
    left, offset = budget.current(), 0
    with opened(volume, node, os.O_RDONLY) as node:
        if 0 < size <= ALLOCATION_BYTES:
            piece = volume.read(node, 0, PIECE_BYTES)
            if len(piece) <= ALLOCATION_BYTES:
                yield 0, piece
                return
        while (data := volume.next_data(node, offset)) is not None:
            if left.spent:
                raise OSError(errno.ECANCELED, "Cancelled; what was copied has been removed")
            offset = max(offset, data - data % PIECE_BYTES)
            piece = volume.read(node, offset, PIECE_BYTES)
            if not piece:
                return
            yield offset, piece
            offset += len(piece)
        yield volume.getattr(node).size, b""


_END = (1 << 63, b"")


def same_pieces(one: Iterator[tuple[int, bytes]], other: Iterator[tuple[int, bytes]]) -> bool:
    """Compare two files of one size, given in pieces with their offsets. Holes are zeros; those of both are skipped."""
    left, right = next(one, _END), next(other, _END)
    while left != right or left != _END:
        if left[0] > right[0]:
            one, other, left, right = other, one, right, left
        (at, mine), (there, theirs) = left, right
        size = min(len(mine), len(theirs) if at == there else there - at)
        if mine[:size] != (theirs[:size] if at == there else bytes(size)):
            return False
        left = (at + size, mine[size:]) if size < len(mine) else next(one, _END)
        if at == there:
            right = (there + size, theirs[size:]) if size < len(theirs) else next(other, _END)
    return True


def filled(pieces: Iterator[tuple[int, bytes]]) -> Iterator[bytes]:
    """Return the bytes of a file from the begin, holes as zeros."""
    end = 0
    for offset, piece in pieces:
        for hole in range(end, offset, PIECE_BYTES):
            yield bytes(min(PIECE_BYTES, offset - hole))
        yield piece
        end = offset + len(piece)


class FileContents:
    """Contents that are in a file and not in memory, for `write_pieces` and `overwrite`."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._size = file.seek(0, os.SEEK_END)

    def __len__(self) -> int:
        return self._size

    def piece(self, offset: int) -> bytes:
        self._file.seek(offset)
        return self._file.read(PIECE_BYTES)


def write_pieces(volume: Volume, node: int, data: bytes | FileContents, start: int = 0, end: int | None = None) -> None:
    """Write `data[start:end]` where it belongs, to a node that is open."""
    view = data if isinstance(data, FileContents) else memoryview(data)
    end = len(data) if end is None else end
    for offset in range(start, end, PIECE_BYTES):
        piece = view.piece(offset) if isinstance(view, FileContents) else view[offset : offset + PIECE_BYTES]
        volume.write(node, offset, bytes(piece[: end - offset]))
    if not volume.features.random_writes:
        volume.flush(node)


def overwrite(volume: Volume, node: int, data: bytes | FileContents) -> None:
    """Replace the contents of a file by `data`. In place: links and open handles see it."""
    with opened(volume, node, os.O_WRONLY):
        _overwrite(volume, node, data)


def _overwrite(volume: Volume, node: int, data: bytes | FileContents, start: int = 0) -> None:
    """`start`: the file has the bytes before this already."""
    size = volume.getattr(node).size
    if size > len(data):
        volume.setattr(node, AttrChanges(size=len(data)))
    if -size % ALLOCATION_BYTES >= len(data) - size or start >= size or not volume.features.random_writes:
        write_pieces(volume, node, data, start)
        return
    try:
        write_pieces(volume, node, data, size)  # first what needs more room: without it, the old contents stay
    except OSError:
        with contextlib.suppress(OSError):  # the first error is the one to tell
            volume.setattr(node, AttrChanges(size=size))
        raise
    write_pieces(volume, node, data, start, size)


def rewrite(volume: Volume, node: int, old: bytes, new: bytes) -> None:
    """`overwrite` of known contents: writes from the first difference, and puts the old ones back when that fails."""
    start = _common_length(old, new)
    with opened(volume, node, os.O_WRONLY):  # a file that can't be opened needs nothing put back
        try:
            _overwrite(volume, node, new, start)
        except OSError as error:
            if error.errno == errno.EACCES:
                raise  # rules that let it grow at its end alone: nothing has been written
            try:
                _overwrite(volume, node, old, start)
            except OSError:
                log.exception("node %d is left half written: its old contents could not be put back", node)
            raise


def _common_length(old: bytes, new: bytes) -> int:
    limit, block = min(len(old), len(new)), 1 << 16
    for start in range(0, limit, block):
        end = min(start + block, limit)
        if old[start:end] != new[start:end]:
            pairs = zip(old[start:end], new[start:end], strict=True)
            return start + next(index for index, (one, other) in enumerate(pairs) if one != other)
    return limit
