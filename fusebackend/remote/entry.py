"""`Entry`: a file or directory that a volume of remote files has shown; `Listing`: the names in a directory.

Plain records; `tree.py` keeps them in order. A file's content is in one of three states:

    clean ──write──▶ dirty ──stored──▶ clean
                       │ └──unlinked──▶ clean          its bytes go with the last handle
                       └──conflict, given up──▶ lost ──last close──▶ clean

and its name in one of three: it has one; it is gone, as a listing has shown; it is gone, unlinked by this volume.

Two locks guard an entry. The tree's guards names, attributes and versions, and is never held over a request. The
entry's own (`lock`) guards the content, and is held while the file is loaded or stored. The entry's is taken first.
"""

from __future__ import annotations

import bisect
import errno
import os
import stat
import threading
from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from fusebackend.base.errors import oserror
from fusebackend.base.stamps import now_ns
from fusebackend.base.waiting import Lock
from fusebackend.protocol import BLOCK_BYTES, Attr
from fusebackend.protocol.remote import Abilities, Etag, Info, Reader, Stamp

if TYPE_CHECKING:
    from fusebackend.remote.buffer import Buffer

NEVER = float("-inf")

OWN = object()
"""The version of a file that this volume has stored itself, whatever the next listing calls it."""

FILE_MODE = stat.S_IFREG | 0o644
DIRECTORY_MODE = stat.S_IFDIR | 0o755


class Listing:
    """The names in a directory, in the order of their bytes, and how old they are."""

    __slots__ = (
        "_sorted", "ahead", "changes", "descended", "ghosts", "infos", "large", "listed_at", "looked_to", "marker",
        "token", "took_s",
    )  # fmt: skip

    def __init__(self) -> None:
        self.infos: dict[bytes, Info] = {}
        self.listed_at = NEVER  # by the tree's clock
        self.took_s = 0.0
        self.token: Hashable = None  # the remote's, from before it was listed
        self.large = False  # listing it takes more than one request
        self.marker = False  # the sign of the directory itself is stored
        self.changes: dict[bytes, int] = {}  # names that were made or taken away here, and when, by the tree's count
        self.ghosts: set[str] = set()  # directories removed here, and still listed for a while
        self.looked_to: bytes | None = None  # up to this name, attributes were asked for one name after the other, …
        self.ahead = 1  # … and four times how many the last time
        self.descended = False  # a directory in it was read since the last one was looked at
        self._sorted: list[bytes] | None = None

    def clear(self) -> None:
        """Keep no names: the next question lists the directory."""
        self.replace({})
        self.listed_at = NEVER

    def replace(self, infos: dict[bytes, Info]) -> None:
        self.infos = infos
        self._sorted = None

    def put(self, name: bytes, info: Info) -> None:
        if name not in self.infos:
            self._sorted = None
        self.infos[name] = info

    def remove(self, name: bytes) -> None:
        if self.infos.pop(name, None) is not None:
            self._sorted = None

    def after(self, name: bytes, limit: int) -> list[bytes]:
        if self._sorted is None:
            self._sorted = sorted(self.infos)
        start = bisect.bisect_right(self._sorted, name) if name else 0
        return self._sorted[start : start + limit]

    def ahead_of(self, name: bytes, limit: int) -> list[bytes]:
        """The names to ask attributes for with this one: the next ones, and more each time, while they are asked for in
        the order of names, as `ls -l` does, which waits for each."""
        is_next = self.looked_to is not None and self.after(self.looked_to, 1) == [name]
        self.ahead = min(2 * self.ahead, 4 * limit) if is_next else 1  # three names in order may be chance
        following = self.after(name, max(0, self.ahead // 4 - 1))
        self.looked_to = following[-1] if following else name
        return following


class Entry(Attr):
    """See the module's docstring. `parent`, `name` and `segment` stay when it is gone; they say where it was."""

    __slots__ = (
        "base", "buffer", "checked_at", "children", "dirty", "doubted", "etag", "extra", "forgotten_at", "gone",
        "held", "keeps_attributes", "kept", "listing", "local", "lock", "lost", "name", "opens", "parent", "queued",
        "read_only", "reader", "seen", "segment", "stamped", "target", "tried", "unlinked", "writers",
    )  # fmt: skip

    def __init__(
        self, node: int, parent: Entry | None, name: bytes, segment: str, abilities: Abilities, *, is_dir: bool
    ) -> None:
        super().__init__(node, DIRECTORY_MODE if is_dir else FILE_MODE, uid=os.geteuid(), gid=os.getegid())
        self.parent = parent
        self.name = name
        self.segment = segment  # the last part of its key
        self.lock: AbstractContextManager[Any] = Lock() if abilities.concurrent else threading.RLock()
        self.gone = False  # it has lost its name …
        self.unlinked = False  # … through this volume
        self.dirty = False  # the buffer holds what the remote does not
        self.lost = 0  # why what was written is not stored: each close and fsync gets this errno, other calls ESTALE

        # In the kernel.
        self.held = False
        self.forgotten_at = NEVER  # when it was shown or forgotten last
        self.queued = False  # it is in the tree's queue of entries that may go

        # In the remote.
        self.keeps_attributes = abilities.keeps_attributes
        self.local = False  # nothing, for all we know: it is in this volume alone
        self.tried = False  # an upload of it failed, and may have arrived all the same
        self.etag: Etag | None = None  # the version known last; of a directory, that of its sign
        self.doubted = False  # a listing has another version than `etag`, and does not name it
        self.seen: Hashable = None  # the version in the listing that this was taken from
        self.stamped = False  # the size is true, and mode, owner and time are those that are stored with it
        self.extra: dict[str, str] = {}  # attributes of other tools
        self.kept = False  # mode, owner or times are other ones than the remote's, and in this volume alone
        self.read_only = False  # the remote says that it can never be written
        self.checked_at = NEVER  # by the tree's clock: when the remote last showed it

        # Of a directory.
        self.children: dict[bytes, Entry] = {}
        self.listing = Listing() if is_dir else _NO_LISTING

        # Of a file.
        self.opens = self.writers = 0  # handles; and those that write where they like, so without O_APPEND
        self.base: Etag | None = None  # for those: the version that the first of them has opened
        self.buffer: Buffer | None = None
        self.reader: Reader | None = None
        self.target: tuple[Etag, bytes] | None = None  # of a symbolic link: the version, and where it leads

    @property
    def key(self) -> str:
        """Where it is, or was; that of a directory ends with `/`, and the root's is empty."""
        parts: list[str] = []
        entry = self
        while entry.parent is not None:
            parts.append(entry.segment + "/" if entry.is_dir else entry.segment)
            entry = entry.parent
        return "".join(reversed(parts))

    @property
    def is_gone(self) -> bool:
        """True once it, or a directory above it, has lost its name."""
        entry: Entry | None = self
        while entry is not None and not entry.gone:
            entry = entry.parent
        return entry is not None

    @property
    def busy(self) -> bool:
        """Its content is in use: a newer version in the remote must wait."""
        return self.opens > 0 or self.dirty

    @property
    def is_brief(self) -> bool:  # type: ignore[override]  # most volumes have no such attributes
        return self.keeps_attributes and not self.stamped and not self.busy and not self.gone

    @property
    def is_ahead(self) -> bool:
        """It, or something below it, is not stored yet."""
        return any(entry.local or entry.dirty for entry in self.tree())

    @property
    def idle(self) -> bool:
        """Nothing needs it: not the kernel, no handle, no unsaved byte."""
        if self.held or self.busy or self.children or self.parent is None:
            return False
        return self.gone or not self.local

    @property
    def stamp(self) -> Stamp:
        return Stamp(self.mode, self.uid, self.gid, self.mtime_ns, self.extra)

    def restamp(self, stamp: Stamp) -> None:
        self.mode, self.uid, self.gid, self.mtime_ns, extra = stamp
        self.extra = dict(extra)
        self.stamped = True

    def resize(self, size: int) -> None:
        self.size = size
        self.blocks = -(-size // BLOCK_BYTES)

    def touch(self) -> None:
        """The content has changed."""
        self.mtime_ns = self.ctime_ns = now_ns()
        self.version += 1
        self.kept = True

    def require_writable(self) -> None:
        """EACCES for a file that the remote never lets be written, of any mode."""
        if self.read_only:
            raise oserror(errno.EACCES, self.name)

    def is_at(self, directory: Entry, name: bytes) -> bool:
        """True while it has this name."""
        return not self.gone and self.parent is directory and self.name == name

    def is_within(self, directory: Entry) -> bool:
        """True for the directory and everything below it."""
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
            left += list(entry.children.values())

    def topmost_local(self) -> Entry:
        """The highest directory above this one, or itself, from which on the remote may have nothing."""
        entry = self
        while entry.parent is not None and entry.parent.local:
            entry = entry.parent
        return entry

    def info(self) -> Info:
        """Its line in a listing."""
        return Info(self.segment, self.is_dir, self.size, self.mtime_ns, self.seen, self.etag, self.read_only)

    def drop_content(self) -> None:
        """Let go of the buffer and the reader."""
        buffer, self.buffer = self.buffer, None
        reader, self.reader = self.reader, None
        if buffer is not None:
            buffer.close()
        if reader is not None:
            reader.close()


_NO_LISTING = Listing()
"""That of each file."""
