"""`Images`: the bytes of files as they were before a change.

Where the volume has an automatic snapshot that is newer than the last change of the file, that one has them, and none
are copied (`Image.place` is `snapshot`); so it is with a file of a branch that has the bytes of a snapshot below. Else
they are copied. Those of a small file are in its record: a file for them would take 100 us, ten times as long as the
change itself. Those of another one are in a file of the history's directory, holes left out: up to `MAX_FILE_BYTES`,
which the caller waits for. Of a larger file a volume with snapshots takes a snapshot now. Any other volume keeps it
where the history is on the same file system, and that shares blocks (Btrfs, XFS). Else it is lost, and the image says
so. All copies together have a bound (`MAX_BYTES`).

Thread-safe.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from fusebackend.base.context import closing_fd
from fusebackend.base.waiting import will_wait
from fusebackend.history.history_file import HistoryFile
from fusebackend.history.records import Image, Record, State
from fusebackend.protocol import Attr, SnapshotVolume, Volume
from fusebackend.volumes.contents import data_pieces
from fusebackend.volumes.placing import KeptSource, NodeSource, Source

log = logging.getLogger(__name__)

DIRECTORY: Final = "images"
"""In the directory of the history."""

RECORD_BYTES: Final = 16 << 10
"""A file up to this size has its bytes in its record."""

MAX_FILE_BYTES: Final = 64 << 20
"""A larger file is not copied: 64 MiB take some 50 ms."""

COPIED_BYTES: Final = 4 << 20
"""Of a larger file, a volume with snapshots takes one rather than have it copied: that costs a flush."""

AT_ONCE_BYTES: Final = 1 << 20
"""Of a volume that may wait, a larger file is copied in a thread, and not by the mount's loop: that takes 1 ms."""

PATIENCE_S: Final = 5.0
"""Copying a file takes so long at most: the change waits for it, and has a deadline where a network is asked."""

MAX_BYTES: Final = 10 << 30
MAX_SHARE: Final = 0.10
"""All copies together: so many bytes, and this share of the disk, at most."""

FREE_SHARE: Final = 0.05
"""With less of the disk free, nothing more is copied."""

LOOK_S: Final = 1.0
"""How often the disk is asked for its room."""


class _RecordSource(NamedTuple):
    """A state whose bytes are in a record."""

    state: State
    history: HistoryFile
    number: int

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        yield 0, self.history.image_data(self.number)


class Images:
    """See the module's docstring.

    Args:
        directory: of the history; `DIRECTORY` is made in it.
        snapshot_name: gives a name for a snapshot that is taken for an image, as automatic ones have; None if the mount
            keeps no automatic snapshots.
        is_automatic: says whether a snapshot has such a name. Others may be deleted by their owner, and their names
            given to others.
    """

    def __init__(
        self,
        directory: str,
        snapshot_name: Callable[[], str] | None = None,
        is_automatic: Callable[[str], bool] = lambda name: False,
    ) -> None:
        self.directory = os.path.join(directory, DIRECTORY)
        self._snapshot_name = snapshot_name
        self._is_automatic = is_automatic
        os.makedirs(self.directory, 0o700, exist_ok=True)
        names = [name for name in os.listdir(self.directory) if name.isdecimal()]
        self._numbers = itertools.count(max(map(int, names), default=0) + 1)
        self._guard = threading.Lock()
        self.size_bytes = sum(self._allocated(name) for name in names)
        """Of all copies. Those in records are counted by `clean`, and from then on."""
        self._room = ""
        self._look_at_s = 0.0
        self._limit_bytes = 0

    def path(self, image: Image) -> str:
        """Return the path of the file with the bytes of an image, for the place `file`."""
        return os.path.join(self.directory, image.name)

    def source(self, history: HistoryFile, volume: Volume, record: Record) -> Source | None:
        """Return the earlier state of a record's file with its bytes; None if these are lost, or gone since.

        Args:
            volume: of the record's route.
        """
        state, image = record.before, record.image
        if state is None or image is None:
            return None
        if image.place == "file":
            if not image.name:
                return _RecordSource(state, history, record.number)
            path = self.path(image)
            return KeptSource(state, path) if os.path.exists(path) else None
        if image.place != "snapshot" or not isinstance(volume, SnapshotVolume):
            return None
        with contextlib.suppress(OSError):
            frozen, node = volume.snapshot(image.name), volume.node_in(image.name, image.node)
            frozen.getattr(node)
            return NodeSource(frozen, node, state)
        return None

    # -- keeping ---------------------------------------------------------------------------------------------------

    def keep(self, volume: Volume, attr: Attr) -> Image:
        """Keep the bytes of a regular file, before it changes. An error is in the image, which is `lost` then."""
        node, size = attr.node, attr.size
        try:
            if size == 0:
                return Image("file", "", node, b"")
            name = self._in_snapshot(volume, attr) if isinstance(volume, SnapshotVolume) else None
            if name is not None:
                return Image("snapshot", name, node)
            room = self._why_no_room()
            if room:
                return Image("lost", room, node)
            if size > MAX_FILE_BYTES:
                why = f"larger than {MAX_FILE_BYTES >> 20} MiB"
                return self._cloned(volume, node, size) or Image("lost", why, node)
            if size <= RECORD_BYTES:
                data = volume.peek(node, RECORD_BYTES + 1)
                if len(data) <= RECORD_BYTES:  # it has not grown
                    self.size_bytes += len(data)
                    return Image("file", "", node, data)
            return self._copied(volume, node, size)
        except OSError as error:
            return Image("lost", error.strerror or str(error), node)

    def _in_snapshot(self, volume: SnapshotVolume, attr: Attr) -> str | None:
        """Return the name of the snapshot that has a file as it is now; None if there is none."""
        if not volume.takes_snapshots:
            return volume.kept_below(attr.node)
        taken = volume.snapshots()
        # A change after a snapshot has a later ctime than that (`take_snapshot` of the volumes): the clock of both is
        # `base/stamps.py`. Not if the host's clock was set back since.
        if taken and attr.ctime_ns < taken[-1].time_ns:
            newest = next((each for each in reversed(taken) if self._is_automatic(each.name)), None)
            if newest is not None and attr.ctime_ns < newest.time_ns <= time.time_ns():
                return newest.name
        if attr.size > COPIED_BYTES and self._snapshot_name is not None:
            name = self._snapshot_name()
            with contextlib.suppress(FileExistsError):
                volume.take_snapshot(name)
                return name
        return None

    def _cloned(self, volume: Volume, node: int, size: int) -> Image | None:
        if self._why_no_room(size):  # though the bytes are shared for now
            return None
        will_wait()  # for what of it is not on the disk yet
        with self._new_file(node) as (image, descriptor):
            if volume.clone_to(node, descriptor):
                return image
        self.remove(image)
        return None

    def _copied(self, volume: Volume, node: int, size: int) -> Image:
        if size > AT_ONCE_BYTES:
            will_wait()
        with self._new_file(node) as (image, descriptor):
            end = written = 0
            give_up_at_s = time.monotonic() + PATIENCE_S
            for offset, piece in data_pieces(volume, node, size):
                end = offset + len(piece)
                if piece:
                    os.pwrite(descriptor, piece, offset)
                    written = end
                if end > MAX_FILE_BYTES:
                    raise OSError(errno.EFBIG, f"larger than {MAX_FILE_BYTES >> 20} MiB")
                if time.monotonic() > give_up_at_s:
                    raise OSError(errno.ETIMEDOUT, f"not read within {PATIENCE_S:g} s")
            if written < end:
                os.ftruncate(descriptor, end)
        return image

    @contextlib.contextmanager
    def _new_file(self, node: int) -> Iterator[tuple[Image, int]]:
        """An image of a node in a new file, and a descriptor of that, which an error removes."""
        image = Image("file", str(next(self._numbers)), node)
        path = self.path(image)
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            with closing_fd(descriptor):
                yield image, descriptor
                allocated = os.fstat(descriptor).st_blocks * 512
        except BaseException:
            os.unlink(path)
            raise
        with self._guard:
            self.size_bytes += allocated

    def _why_no_room(self, more_bytes: int = 0) -> str:
        """Return why there can be no copies with so many bytes more; empty if they can. They have a bound together."""
        now_s = time.monotonic()
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + LOOK_S
            disk = os.statvfs(self.directory)
            short = disk.f_bavail < FREE_SHARE * disk.f_blocks
            self._room = "the disk of the history is nearly full" if short else ""
            self._limit_bytes = int(min(MAX_BYTES, MAX_SHARE * disk.f_blocks * disk.f_frsize))
        if not self._room and self.size_bytes + more_bytes > self._limit_bytes:
            return "the history has as many bytes as it may"
        return self._room

    def is_too_much(self) -> bool:
        """Return True if there are more bytes than the bound, or if the disk is nearly full."""
        self._look_at_s = 0.0
        return bool(self._why_no_room()) and self.size_bytes > 0

    # -- removing --------------------------------------------------------------------------------------------------

    def remove(self, image: Image | None) -> None:
        """Remove the bytes of an image that no record has any more."""
        if image is not None and image.data is not None:
            self.size_bytes -= len(image.data)
        elif image is not None and image.place == "file" and image.name.isdecimal():
            self._remove(image.name)

    def clean(self, history: HistoryFile, below: int | None = None) -> None:
        """Remove the files that no record needs, and count anew.

        Args:
            below: leave files from this number on alone: they may get a record yet. See `next_number`.
        """
        needed = history.images("file")
        for name in os.listdir(self.directory):
            if name not in needed and not (below is not None and name.isdecimal() and int(name) >= below):
                self._remove(name)
        self.size_bytes = history.image_bytes + sum(map(self._allocated, os.listdir(self.directory)))

    def next_number(self) -> int:
        """Return a number that no file has: those of later files are higher."""
        return next(self._numbers)

    def _remove(self, name: str) -> None:
        size = self._allocated(name)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.directory, name))
            with self._guard:
                self.size_bytes = max(0, self.size_bytes - size)

    def _allocated(self, name: str) -> int:
        try:
            return os.stat(os.path.join(self.directory, name)).st_blocks * 512
        except FileNotFoundError:
            return 0
