"""What a `ForeignVolume` knows: `Entry`, a file or directory it has shown to somebody, and `Listing`, what `ls` said.

Plain records; `tree.py` keeps them in order.
"""

from __future__ import annotations

import bisect
import datetime
import errno
import os
from collections.abc import Hashable, Iterator
from typing import NamedTuple

from fusebackend.base import paths
from fusebackend.base.errors import oserror
from fusebackend.base.stamps import now_ns
from fusebackend.protocol import BLOCK_BYTES, Attr, FileInfo
from fusebackend.remote.buffer import Buffer


class Info:
    """What a listing says about one name."""

    __slots__ = ("is_dir", "mtime_ns", "read_only", "size", "version")

    def __init__(
        self, is_dir: bool, size: int | None, mtime_ns: int | None, version: object, read_only: bool = False
    ) -> None:
        self.is_dir = is_dir
        self.size = size  # as the backend has it: bytes, characters, or not known
        self.mtime_ns = mtime_ns
        self.version = version  # differs when the file has changed; may differ when it has not
        self.read_only = read_only  # the backend says that it can never be written


class Listing:
    """The names in a directory, in the order of their bytes."""

    __slots__ = ("_sorted", "infos", "read_at", "token", "took_s")

    def __init__(self, infos: dict[bytes, Info], read_at: float, token: Hashable = None, took_s: float = 0.0) -> None:
        self.infos = infos
        self.read_at = read_at
        self.token = token  # the backend's, from before it was read
        self.took_s = took_s
        self._sorted: list[bytes] | None = None

    def put(self, name: bytes, info: Info) -> None:
        if name not in self.infos:
            self._sorted = None
        self.infos[name] = info

    def remove(self, name: bytes) -> None:
        if self.infos.pop(name, None) is not None:
            self._sorted = None

    def expire(self) -> None:
        """Believe it no longer."""
        self.read_at = float("-inf")
        self.token = None

    def after(self, name: bytes, limit: int) -> list[bytes]:
        if self._sorted is None:
            self._sorted = sorted(self.infos)
        start = bisect.bisect_right(self._sorted, name) if name else 0
        return self._sorted[start : start + limit]


class Kept(NamedTuple):
    """Attributes that only this volume has, of the file in this version."""

    version: object
    size: int
    mode: int
    uid: int
    gid: int
    atime_ns: int
    mtime_ns: int
    ctime_ns: int


class Entry(Attr):
    """A file or directory. `parent` and `name` stay when it is gone; they say where it was."""

    __slots__ = (
        "appended_from", "baseline", "buffer", "children", "digest", "dirty", "forgotten", "gone", "held", "kept",
        "listing", "local", "measured", "name", "opens", "parent", "pinned", "poisoned", "read_only", "stamp",
        "unlinked", "writers",
    )  # fmt: skip

    def __init__(self, node: int, mode: int, parent: Entry | None, name: bytes) -> None:
        super().__init__(node, mode, uid=os.geteuid(), gid=os.getegid())
        self.parent = parent
        self.name = name
        self.children: dict[bytes, Entry] = {}
        self.listing: Listing | None = None
        self.held = False  # known to the kernel
        self.forgotten = False  # was held: the number need not be stable any more
        self.opens = 0
        self.gone = False  # it has no name any more
        self.unlinked = False  # because it was taken away through this volume
        self.local = False  # the backend may not have it
        self.kept = False  # mode, owner or times are other ones than the backend's
        self.measured = False  # `size` is the true one
        self.read_only = False  # the backend says that it can never be written
        self.stamp: object = None  # the version in the backend's listing that this was taken from
        self.buffer: Buffer | None = None
        self.dirty = False  # the buffer holds what the backend does not
        self.baseline: bytes | None = None  # digest of what the backend held when the buffer was filled; None: nothing
        self.digest: bytes | None = None  # of the bytes last seen
        self.writers = 0  # open handles that write where they like, so without O_APPEND
        self.pinned: bytes | None = None  # the baseline for those: digest of what the first of them has opened
        self.appended_from: int | None = None  # if the dirty buffer was only appended to: from this size on
        self.poisoned = False  # a conflict: handles opened before see ESTALE

    def attributes(self) -> Kept:
        """What is to be remembered of an entry that goes."""
        return Kept(self.stamp, self.size, self.mode, self.uid, self.gid, self.atime_ns, self.mtime_ns, self.ctime_ns)

    def restore(self, kept: Kept) -> None:
        self.stamp, size, self.mode, self.uid, self.gid, self.atime_ns, self.mtime_ns, self.ctime_ns = kept
        self.resize(size)
        self.kept = True

    def is_within(self, directory: Entry) -> bool:
        """Is this the directory, or something below it?"""
        entry: Entry | None = self
        while entry is not None and entry is not directory:
            entry = entry.parent
        return entry is not None

    def tree(self) -> Iterator[Entry]:
        """This entry and all that is known below it."""
        left = [self]
        while left:
            entry = left.pop()
            yield entry
            left += entry.children.values()

    def topmost_local(self) -> Entry:
        """The highest directory above this one, or itself, from which on the backend may have nothing."""
        entry = self
        while entry.parent is not None and entry.parent.local:
            entry = entry.parent
        return entry

    def resize(self, size: int) -> None:
        self.size = size
        self.blocks = -(-size // BLOCK_BYTES)

    def require_writable(self) -> None:
        """EACCES for what can be read only, whatever its mode is."""
        if self.read_only:
            raise oserror(errno.EACCES, self.name)

    def drop_buffer(self) -> None:
        if self.buffer is not None:
            self.buffer.close()
            self.buffer = None

    def touch(self, mtime_ns: int | None = None) -> None:
        """The contents have changed."""
        self.kept = True
        self.version += 1
        self.ctime_ns = now_ns()
        self.mtime_ns = self.ctime_ns if mtime_ns is None else mtime_ns

    @property
    def idle(self) -> bool:
        """Does nobody need this entry?"""
        if self.held or self.opens or self.dirty or self.children or self.parent is None:
            return False
        return self.gone or (self.forgotten and not self.local)


def info_of(entry: Entry) -> Info:
    """What a listing says of an entry."""
    return Info(entry.is_dir, entry.size, entry.mtime_ns, entry.stamp)


def name_of(info: FileInfo) -> bytes:
    """The name under which a backend lists something."""
    return paths.to_name(info["path"].removesuffix("/").rpartition("/")[2])


def require_text(name: bytes) -> None:
    """EILSEQ for a name that is not UTF-8: what a backend makes of it, nobody knows."""
    try:
        name.decode("utf-8")
    except UnicodeDecodeError:
        raise oserror(errno.EILSEQ, name) from None


def time_ns(modified_at: str) -> int | None:
    """Nanoseconds since the epoch; without an offset it is local time, as deepagents' FilesystemBackend gives it."""
    try:
        when = datetime.datetime.fromisoformat(modified_at).astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        return None
    return (when - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // datetime.timedelta(microseconds=1) * 1000
