"""The kernel face: `Volume`, and the records that cross it."""

# The decorator makes the bodies of changes that a volume may lack.
# mypy: disable-error-code="empty-body"

from __future__ import annotations

import abc
import contextlib
import contextvars
import errno
import functools
import logging
import os
import stat as stat_module
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypeAlias, TypeVar, runtime_checkable

from fusebackend.base.context import during
from fusebackend.base.errors import ERRNO_OF_LACK, UNREAD, VANISHED, oserror, unless
from fusebackend.base.paths import AgentPath
from fusebackend.protocol.commit_log import STEP
from fusebackend.protocol.events import Change, Changes

log = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])
Listener = TypeVar("Listener")
T = TypeVar("T")

# --------------------------------------------------------------------------------------------------------------
# Records of the kernel face
# --------------------------------------------------------------------------------------------------------------

__all__ = [
    "BLOCK_BYTES",
    "DEFAULT_TTL_S",
    "MAX_NODE",
    "NAME_MAX_BYTES",
    "RENAME_EXCHANGE",
    "RENAME_NOREPLACE",
    "ROOT_NODE",
    "WHOLE_FILES",
    "Attr",
    "AttrChanges",
    "Caller",
    "Features",
    "Guard",
    "KnowsXattrs",
    "Link",
    "NewFile",
    "Observer",
    "Routed",
    "StatFs",
    "State",
    "UncountedAttr",
    "Usage",
    "Volume",
    "WrongLinks",
    "unsupported",
]  # fmt: skip

DEFAULT_TTL_S = 1.0
"""Seconds for which names, attributes and listings are cached that others change without a change feed."""

ROOT_NODE = 1
"""The node of every volume's root directory."""

MAX_NODE = (1 << 48) - 1
"""The largest node a volume may choose; the mount keeps the 16 bits above it for the route."""

NAME_MAX_BYTES = 255
"""Longest name of a directory entry (Linux NAME_MAX)."""

BLOCK_BYTES = 512
"""The unit of `st_blocks`, independent of the volume's own block size."""

RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2


@dataclass(slots=True, eq=False)
class Attr:
    """The attributes of a node. A volume may hand out the object it keeps: read it at once, never change it."""

    node: int
    mode: int  # type and permission bits, as st_mode
    _: KW_ONLY
    nlink: int = 1
    uid: int = 0
    gid: int = 0
    rdev: int = 0
    size: int = 0  # bytes
    blocks: int = 0  # of BLOCK_BYTES
    atime_ns: int = 0  # since the epoch; negative before 1970
    mtime_ns: int = 0
    ctime_ns: int = 0
    # Of a shared volume: another one after every change of the node's attributes or data. Of others: after a change
    # of a file's data, or of the names in a directory, that may have left the times as they were.
    version: int = 0

    is_brief: ClassVar[bool] = False
    """True of attributes from a listing that does not tell all: mode and owner are defaults, the time may differ, and
    what looks like a regular file may be a symbolic link. `lookup` and `getattr` know."""

    @property
    def fingerprint(self) -> tuple[int, int, int, int]:
        """Another one after every change of a file's data, or of the names in a directory."""
        return self.mtime_ns, self.ctime_ns, self.size, self.version

    @property
    def is_dir(self) -> bool:
        return stat_module.S_ISDIR(self.mode)

    @property
    def shown_nlink(self) -> int:
        """The number of names that programs are told."""
        return self.nlink

    def take(self, other: Attr) -> None:
        """Get the attributes of another node, all but its number."""
        for name in _TAKEN:
            setattr(self, name, getattr(other, name))


_TAKEN = tuple(name for name in Attr.__slots__ if name != "node")


class UncountedAttr(Attr):
    """Of a file that may have hidden names: `stat` of programs counts one. `nlink` counts all, as the removal or the
    restore of a name needs it."""

    __slots__ = ()

    @property
    def shown_nlink(self) -> int:
        return min(self.nlink, 1)


class AttrChanges(NamedTuple):
    """The attributes that `setattr` changes; None leaves a field alone. `mode` holds permission bits only."""

    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    size: int | None = None
    atime_ns: int | None = None
    mtime_ns: int | None = None
    ctime_ns: int | None = None


class Caller(NamedTuple):
    """The process that makes a request: a new file gets its owner and group from it."""

    uid: int
    gid: int
    pid: int = 0
    umask: int = 0
    """Permissions that a new file shall not have. A volume without ACLs gets modes that it is applied to already."""


class State(NamedTuple):
    """The attributes of a file, without its bytes."""

    mode: int
    """Type and permissions, as st_mode."""
    uid: int
    gid: int
    rdev: int
    size: int
    nlink: int
    atime_ns: int
    mtime_ns: int
    xattrs: dict[bytes, bytes]
    target: bytes
    """Of a symbolic link."""


class NewFile(NamedTuple):
    """A regular file that is to be made, by `Volume.place`."""

    parent: int
    name: bytes
    state: State
    """All of it but the change time, which will be that of the making."""
    pieces: Iterable[tuple[int, bytes]]
    """Offset and bytes of each, in their order. They may all be in memory at once. They are read with the lock free:
    they may be of a volume whose readers wait for this one's, as a branch's do."""


class Link(NamedTuple):
    """A directory entry: in the directory `parent`, `name` leads to `node`."""

    parent: int
    name: bytes
    node: int


class WrongLinks(OSError):
    """ESTALE: these directory entries are not there."""

    def __init__(self, links: Sequence[Link]) -> None:
        super().__init__(errno.ESTALE, oserror(errno.ESTALE).strerror)
        self.links = links


class Usage(NamedTuple):
    """What a volume with limits holds, and what it may; None for no limit."""

    used_bytes: int
    limit_bytes: int | None
    used_files: int
    limit_files: int | None


class StatFs(NamedTuple):
    """The answer of `statvfs`. Counts of blocks are in units of `block_bytes`."""

    block_bytes: int
    blocks: int
    blocks_free: int
    files: int
    files_free: int
    name_max: int = NAME_MAX_BYTES

    def within(self, usage: Usage) -> StatFs:
        """The answer for a volume with limits: its size is the limit, and no more is free than there is."""
        blocks, free, files, files_free = self.blocks, self.blocks_free, self.files, self.files_free
        if usage.limit_bytes is not None:
            left = max(usage.limit_bytes - usage.used_bytes, 0) // self.block_bytes
            blocks, free = usage.limit_bytes // self.block_bytes, min(free, left)
        if usage.limit_files is not None:
            files, files_free = usage.limit_files, max(usage.limit_files - usage.used_files, 0)
        return self._replace(blocks=blocks, blocks_free=free, files=files, files_free=files_free)


@dataclass(frozen=True)
class Features:
    """The features of a volume. `fusebackend status` prints it for each route."""

    random_writes: bool = True
    """Writes go where they are told; False means whole files are buffered and stored when flushed."""
    rename: bool = True
    """Rename is atomic, also over an existing target."""
    links: bool = True
    symlinks: bool = True
    special_files: bool = True
    """FIFOs, sockets and device nodes."""
    xattrs: bool = True
    acls: bool = False
    """POSIX ACLs are kept, inherited, and agree with modes; where the mount is `-o acl`, the kernel checks them."""
    persistent_modes: bool = True
    """Modes, owners and times are kept."""
    change_feed: bool = True
    """Every change is made through this process or reported to `subscribe`, so caches never grow stale."""
    durable: bool = True
    """What `fsync` returned for outlives the process."""
    read_only: bool = False
    prunable: bool = False
    """Some directories of a read-only volume can be removed, with what is computed in them."""
    blocking: bool = False
    """Calls may wait for a network or a slow disk: the mount makes them in threads, under a deadline."""
    stores_at_close: bool = False
    """What was written may not be stored yet when a handle is closed: `flush` stores it, and returns its errors."""
    shared: bool = False
    """Other hosts have it mounted at the same time: `Attr.version` counts their changes, and each open asks for it."""


WHOLE_FILES = Features(
    random_writes=False,
    rename=False,
    links=False,
    symlinks=False,
    special_files=False,
    xattrs=False,
    persistent_modes=False,
    change_feed=False,
)
"""The features of a volume of files that are stored as a whole under their names, and of nothing else."""


# --------------------------------------------------------------------------------------------------------------
# The kernel face
# --------------------------------------------------------------------------------------------------------------


class ByteCache(Protocol):
    """Bytes of files that a volume keeps in memory."""

    @property
    def get(self) -> Callable[..., object]:
        """Look something up; None for what is not kept."""


_silent = contextvars.ContextVar("silent", default=False)


def silently() -> AbstractContextManager[object]:
    """Report no changes of this thread to observers meanwhile: they are steps of a change reported as a whole."""
    return during(_silent, True)


class _Later(threading.local):
    """What this thread is to tell of at the end of the block of `changing` that it is in; None outside of one."""

    changes: Changes | None = None


def _refused(change: F) -> F:
    """Decorate the declaration of a change: a volume without a method of its own refuses the change."""

    @functools.wraps(change)
    def refuse(self: Volume, *_: Any, **__: Any) -> Any:
        raise self._refusal(change.__name__)

    return refuse  # type: ignore[return-value]


class Volume(abc.ABC):
    """A tree of nodes, in the kernel's words.

    Contract:
    - Every method raises `OSError` with the errno POSIX gives it, and nothing else that is not a bug.
    - Names are bytes without `/` and NUL. The mount checks that they are 1 to 255 bytes and not `.` or `..`;
      a volume may rely on that, and on permissions having been checked (the kernel does, by `default_permissions`).
    - A node is an integer from 1 to `MAX_NODE`, the root is `ROOT_NODE`. It is valid while it has a name, and even
      without one from `hold` to `forget` and from `open` to `release`; it is never used again in a session.
    - Methods may be called from any thread; each is atomic. `lock` is held by each of them, is re-entrant, and may
      be held from outside to make several calls one. Of a volume that other hosts have as well (`Features.shared`) it
      is nothing to wait for, and joins nothing: there only what is read within `viewing` is of one state.
    - `read`, `write` and the like take a node that `open` was called for.
    """

    features: Features = Features()

    ttl_s: float | None = None
    """Entry and attribute timeout without a change feed; None: that of the mount."""

    unpublished: int = 0
    """How many changes by the agent face are not published yet. Read it with `lock` held."""

    at_once: frozenset[str] = frozenset()
    """Methods of a blocking volume that the mount tries on the event loop first. They call `will_wait`
    (`base/waiting.py`) before any side effect. If not empty, every read-only method is tried, too."""

    all_at_once: bool = False
    """Every call into a blocking volume is tried so, those of several methods with `lock` held as well: the lock is
    one of `base/waiting.py`."""

    most_nodes: int | None = None
    """Beyond so many inodes the mount has the kernel drop some that are not in use (`vfs/coherence/invalidation.py`):
    each node that the kernel holds takes memory here. None for any number."""

    byte_cache: ByteCache | None = None
    """What it keeps of files' bytes in memory; None if it keeps none. The metrics, where they are on, replace its `get`
    by one that counts."""

    directory_moves: int | None = None
    """How often a directory was moved or removed, under the lock. As long as the number is the same, each directory is
    where it was found. None where others than this object move them, or where it is not counted."""

    watched: bool = False
    """A `Watch` is open. Only then a backend without a change feed stats paths before it changes them."""

    places_together: bool = False
    """`place_all` takes much less time for many files than `place` for one after the other."""

    lock: AbstractContextManager[Any]

    _subscribers: list[Callable[[Change], None]]
    _observers: list[Observer]
    _guards: list[Guard]
    _changes: Changes
    """Of the block of `changing` that holds the lock, where that excludes others."""
    _later: _Later

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Make a lock, where the class has none, and the change feed. Not in `__init__`, which is a subclass's own: it
        may take another lock."""
        volume = super().__new__(cls)
        if not hasattr(cls, "lock"):
            volume.lock = threading.RLock()
        volume._subscribers, volume._observers, volume._guards = [], [], []
        volume._changes = []
        volume._later = _Later()
        return volume

    def observe_delays(self, callback: Callable[[float], None]) -> None:
        """From now on, call this with the seconds from each change by another host until it was told of here. By any
        thread; one callback at a time. A volume without a change feed never does."""

    @property
    def unstored(self) -> int:
        """How many files have bytes that are not in the backend yet, for `status` and for the end of a mount."""
        return 0

    @property
    def trouble(self) -> tuple[float, str] | None:
        """Return a failure of a volume that its calls don't show: its time (seconds since the epoch) and text, for
        `status`. Never waits."""
        return None

    @property
    def usage(self) -> Usage | None:
        """What counts towards the limits of this volume, for `status`; None for one without limits. Never waits."""
        return None

    def access_due(self, attr: Attr) -> bool:
        """Return True if a read of a file or directory with these attributes changes its access time. The kernel's own
        copy of it is then not enough. False of a volume that keeps no access times."""
        return False

    # -- names -------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def lookup(self, parent: int, name: bytes) -> Attr:
        """The node that `name` is in the directory `parent`. ENOENT, ENOTDIR."""

    @abc.abstractmethod
    def readdir(self, node: int, after: bytes, limit: int) -> Sequence[tuple[bytes, Attr]]:
        """Return up to `limit` entries with names greater than `after`, in the order of names, without `.` and `..`.

        An empty answer means the end. Entries that exist for the whole of a listing are seen exactly once, even if
        other names come and go; an entry that is gone is never returned. `after=b""` starts a listing.
        """

    def find(self, parent: int, name: bytes) -> Attr | None:
        """`lookup` for the server's own use: None for a name that is not there. The next change need not get a finer
        time for it (`base/stamps.py`): a caller that compares these attributes with later ones calls `CLOCK.saw`."""
        try:
            return self.lookup(parent, name)
        except FileNotFoundError:
            return None

    def lookup_brief(self, parent: int, name: bytes) -> Attr:
        """`lookup`, which may be answered with `Attr.is_brief`: the rest would be a request for each name."""
        return self.lookup(parent, name)

    def readdir_brief(self, node: int, after: bytes, limit: int) -> Sequence[tuple[bytes, Attr]]:
        """`readdir`, as `lookup_brief`."""
        return self.readdir(node, after, limit)

    @_refused
    def mknod(self, parent: int, name: bytes, mode: int, rdev: int, caller: Caller) -> Attr:
        """Make a regular file, FIFO, socket or device. EEXIST, ENOSPC."""

    @_refused
    def mkdir(self, parent: int, name: bytes, mode: int, caller: Caller) -> Attr:
        """Make a directory. EEXIST, EMLINK."""

    @_refused
    def symlink(self, parent: int, name: bytes, target: bytes, caller: Caller) -> Attr:
        """Make a symbolic link to `target` (any bytes). EEXIST."""

    @_refused
    def link(self, node: int, new_parent: int, new_name: bytes) -> Attr:
        """Give a node another name. EEXIST, EPERM for a directory, EMLINK, ENOENT when its last name is gone."""

    @_refused
    def unlink(self, parent: int, name: bytes) -> None:
        """Remove a name of something that is not a directory. ENOENT, EISDIR."""

    @_refused
    def rmdir(self, parent: int, name: bytes) -> None:
        """Remove an empty directory. ENOENT, ENOTDIR, ENOTEMPTY."""

    @_refused
    def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int = 0) -> None:
        """Move a name, replacing what is there. `flags` is 0, RENAME_NOREPLACE or RENAME_EXCHANGE.

        ENOENT, EEXIST, ENOTEMPTY, EISDIR, ENOTDIR, EINVAL (a directory into itself, an unknown flag).
        """

    def _refusal(self, what: str) -> OSError:
        """The error of a change that this volume can't make: EROFS if it is read-only, else as `unsupported`."""
        return oserror(errno.EROFS) if self.features.read_only else unsupported(what)

    def wrong_links(self, links: Sequence[Link]) -> Sequence[Link]:
        """Those of these directory entries that are not there, asked of a shared volume at each open."""
        return [link for link in links if self._find(link) != link.node]

    def through(self, links: Sequence[Link], call: Callable[[], T], *, absent: bool = False) -> T:
        """The result of a call of this volume, for a caller that has come to its node through these directory entries.

        A volume may compare them together with the first question of the call.

        Args:
            absent: the call looks a name up, and the entries matter only if it is absent.

        Raises:
            WrongLinks: some of them are not there. The call has changed nothing.
        """
        if not absent:
            self._require_links(links)
            return call()
        try:
            return call()
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                self._require_links(links)
            raise

    def _require_links(self, links: Sequence[Link]) -> None:
        if links and (wrong := self.wrong_links(links)):
            raise WrongLinks(wrong)

    def _find(self, link: Link) -> int | None:
        found = unless(VANISHED, self.lookup, link.parent, link.name)
        return None if found is None else found.node

    # -- attributes --------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def getattr(self, node: int) -> Attr:
        """The attributes of a node. ENOENT or ESTALE for a node that is not held."""

    def version_of(self, attr: Attr) -> str | None:
        """Return the version of a regular file whose attributes were just read (`protocol/versions.py`), under the same
        hold of the lock; None where they do not tell versions apart."""
        return None

    @_refused
    def setattr(self, node: int, changes: AttrChanges) -> Attr:
        """Change attributes and size; a new size truncates or extends with zeros."""

    def readlink(self, node: int) -> bytes:
        """The target of a symbolic link. EINVAL for anything else."""
        raise unsupported("readlink")

    def getxattr(self, node: int, name: bytes) -> bytes:
        """An extended attribute. ENODATA when there is none of that name."""
        raise unsupported("getxattr")

    @_refused
    def setxattr(self, node: int, name: bytes, value: bytes) -> None:
        """Set an extended attribute (the kernel has checked XATTR_CREATE and XATTR_REPLACE)."""

    def listxattr(self, node: int) -> Sequence[bytes]:
        """Names of the extended attributes of a node."""
        return ()

    def xattrs(self, node: int) -> Mapping[bytes, bytes]:
        """Return the extended attributes of a node that this process may read; not to be changed. A volume without them
        has none to show."""
        found: dict[bytes, bytes] = {}
        names = unless(UNREAD, self.listxattr, node) if self.features.xattrs else None
        for name in names or ():
            value = unless(UNREAD, self.getxattr, node, name)  # removed since, or not for this user
            if value is not None:
                found[name] = value
        return found

    @_refused
    def removexattr(self, node: int, name: bytes) -> None:
        """Remove an extended attribute. ENODATA."""

    # -- data --------------------------------------------------------------------------------------------------

    def create(self, parent: int, name: bytes, mode: int, flags: int, caller: Caller) -> Attr:
        """`mknod` of a regular file and `open`, in one step. EEXIST."""
        attr = self.mknod(parent, name, stat_module.S_IFREG | stat_module.S_IMODE(mode), 0, caller)
        self.open(attr.node, flags)
        return attr

    def open(self, node: int, flags: int) -> Attr | None:
        """Note one more open handle with these `open(2)` flags. `O_TRUNC` is done by `setattr`.

        A volume that had to ask for the attributes anyway returns them. Those of another node mean that this handle has
        a content of its own: that node is read, and released, and the kernel caches none of its pages.
        """
        return None

    @abc.abstractmethod
    def read(self, node: int, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset`; fewer only at the end of the file."""

    def peek(self, node: int, size: int) -> bytes:
        """Read up to `size` bytes from the begin of a file, for the server's own use. It need not be open, and its
        access time stays where the volume can do without it."""
        attr = self.open(node, os.O_RDONLY)
        handle = node if attr is None else attr.node
        try:
            return self.read(handle, 0, size)
        finally:
            self.release(handle, os.O_RDONLY)

    def next_data(self, node: int, offset: int) -> int | None:
        """Where the first byte at or behind an offset is that is in no hole, as SEEK_DATA of lseek(2); None when all
        the rest is one. A volume that can't tell says `offset`. For an open file."""
        return offset

    @_refused
    def write(self, node: int, offset: int, data: bytes) -> int:
        """Write all of `data` at `offset`; returns its length."""

    def append(self, node: int, data: bytes) -> int:
        """Write all of `data` at the end of the file, wherever that is by then; returns its length."""
        with self.lock:
            return self.write(node, self.getattr(node).size, data)

    def flush(self, node: int) -> None:
        """A handle is being closed: report errors of deferred writes. Called for `stores_at_close` and whole files."""

    def fsync(self, node: int, datasync: bool = False) -> None:
        """Return when everything written to `node`, and its names, is durable."""

    def release(self, node: int, flags: int) -> None:
        """One handle that was opened with `flags` is closed."""

    # -- life --------------------------------------------------------------------------------------------------

    def viewing(self) -> AbstractContextManager[object]:
        """Reads of this thread in the block see one state of the volume. It must change nothing meanwhile."""
        return self.lock

    def walking(self, names: Sequence[bytes]) -> AbstractContextManager[object]:
        """The lookups of this thread in the block go down these names from the root: it may fetch them at once."""
        return contextlib.nullcontext()

    def way_to(self, directory: int) -> bytes | None:
        """Return the names from the root to a directory, with `/` between them, as they are at this moment.

        None where they can't be told for less than looking each of them up. A directory that was removed may be told
        at any names.
        """
        return None

    def lasting(self, node: int) -> bytes | None:
        """Return what names a file for as long as it lives, also after the volume was opened again; None if nothing
        does. Volumes that keep snapshots need none: their nodes last."""
        return None

    def clone_to(self, node: int, descriptor: int) -> bool:
        """Make an open, empty file share the blocks of a regular one, until one of them is changed (FICLONE). Return
        False where they can't, as on different file systems."""
        return False

    @abc.abstractmethod
    def statfs(self) -> StatFs:
        """Size and free space, whatever the volume's limits are."""

    def hold(self, node: int) -> None:
        """The kernel knows this node from now on: keep its number, and its data even without a name."""

    def forget(self, nodes: Iterable[int]) -> None:
        """The kernel knows these nodes no longer: nodes without a name can go, and numbers need not be stable."""

    def expire(self) -> None:
        """Forget everything that is cached, because others have changed something."""

    def sync(self) -> None:
        """Make everything durable."""

    def close(self) -> None:
        """Make everything durable and let go of files and connections. Nothing may be called afterwards."""

    # -- changes by the agent face, and their listeners ----------------------------------------------------------

    def subscribe(self, callback: Callable[[Change], None]) -> Callable[[], None]:
        """Call `callback` after each change not made through the kernel face; returns the function that ends that.

        Called in the thread that made the change, with no lock held: it may have to wait for the kernel, and the kernel
        for a request that needs the lock.
        """
        return listening(self._subscribers, callback)

    def observe(self, callback: Observer) -> Callable[[], None]:
        """Call `callback` with changes of paths not made through the kernel face; returns the function that ends that.

        Called with the lock held, so in the order of the changes; it must not wait. Changes made elsewhere come without
        it (`publish`). The function that it returns, if any, is called after the subscribers, with no lock held: from
        then on both faces show the change.
        """
        return listening(self._observers, callback)

    def guard(self, callback: Guard) -> Callable[[], None]:
        """Have `callback` called before an agent changes the contents of a node; returns the function that ends that.

        `callback` is called with no lock held, and may wait a moment for open handles. The function that it returns is
        called after subscribers and observers have been called.
        """
        return listening(self._guards, callback)

    @property
    def is_guarded(self) -> bool:
        return bool(self._guards)

    @contextlib.contextmanager
    def rewriting(self, node: int) -> Iterator[None]:
        """Enclose an agent's whole change of the contents of a node in the guards. Call it with no lock held."""
        with contextlib.ExitStack() as ends:
            for guard in tuple(self._guards):
                ends.callback(guard(node))
            yield

    def require_room(self, attr: Attr, size_bytes: int) -> None:
        """Raise EDQUOT if the volume's limit has no room for so many bytes in place of those of a file."""

    @contextlib.contextmanager
    def changing(self) -> Iterator[Changes]:
        """Hold the lock for a change by the agent face. Changes put into the list are reported, also after an error."""
        changes: Changes = []
        later: Changes = []
        shown = contextlib.ExitStack().close
        try:
            with self.lock:
                self.unpublished += 1
                outer, self._changes = self._changes, changes
                above, self._later.changes = self._later.changes, later
                try:
                    yield changes
                finally:
                    self.note_step(changes)
                    self._changes, self._later.changes = outer, above
                    shown = self.report(changes)
        finally:
            self.tell([*changes, *later])
            with self.lock:
                self.unpublished -= 1
            shown()

    def note_step(self, changes: Changes) -> None:
        """Have the verb of this thread record what it has made: the lock is about to be free, or a commit has it."""
        note = STEP.get()
        if note is not None:
            note.rows(self, changes)

    def change_as_one(self, work: Callable[[Changes], T], *paths: str, removes: bool = False, reads: bool = False) -> T:
        """Return the result of `work`, called in `changing`.

        A volume that several hosts change at once may undo what `work` has done and call it again, so that changes of
        different files need not wait for each other.

        Args:
            paths: `work` resolves them, and changes what is there. A volume may fetch them at once.
            removes: it removes or moves the names at the ends of them.
            reads: it reads the files.
        """
        with self.changing() as changes:
            return work(changes)

    def place(self, file: NewFile) -> Attr | None:
        """Make a regular file with its bytes and attributes under a vacant name, as one change: no reader sees a part
        of it, and neither does a crash. None if the volume can't, and has made nothing.

        Raises:
            OSError: EEXIST; ENOSPC; from `file.pieces`. Nothing is made then.
        """
        return None

    def place_all(self, files: Sequence[NewFile]) -> list[Attr | OSError]:
        """`place` many files, each as a change of its own. Only where `places_together`.

        Returns:
            for each its attributes, or why it was not made: ECANCELED if it was not begun after the error of another.
        """
        raise NotImplementedError("files are made one by one")

    @property
    def without_rules(self) -> Volume:
        """The same files without the rules of a view or route: for what a verb does by itself after these have allowed
        the verb, such as to take back what it has made."""
        return self

    # A verb of several steps asks these before its first one. Paths are those of `Place.path`. What a volume can't know
    # before is no error here.

    def require_removable(self, path: str) -> None:
        """Raise why what is at a path, or something below it, can't be read and removed.

        Raises:
            OSError: ENOENT, ENOTDIR; EACCES, EPERM, EBUSY, EROFS. The text names nothing that rules hide.
        """

    def require_new(self, *paths: str, changed: bool = False) -> None:
        """Raise why nothing can be made at some paths.

        Args:
            changed: it is to be changed afterwards: its owner, its times, its name.

        Raises:
            OSError: EACCES, EROFS.
        """

    def require_rename(self, path: str, new: str) -> None:
        """Raise why a path can't be renamed to another one, whose directories may be missing.

        Raises:
            OSError: ENOENT, ENOTDIR; EACCES, EROFS; EXDEV, other rules apply there.
        """

    def change_at_once(self, work: Callable[[Changes], T]) -> T:
        """Do what `change_as_one` does, for names and attributes: of any number of them, a crash leaves all or none."""
        return self.change_as_one(work, removes=True)

    def publish(self, *changes: Change) -> None:
        """Report changes that were made behind this volume. Call it with no lock held.

        If none has a path, observers get `unknown` for the whole volume.
        """
        with_path = any(change.path for change in changes)
        shown = self.report(changes if with_path else [Change(path="/", source="elsewhere")])
        self.tell(changes)
        shown()

    def report(self, changes: Sequence[Change]) -> Callable[[], None]:
        """Call every observer with the changes that have a path. Call the function returned after `tell`."""
        seen = [change for change in changes if change.path]
        answers = contextlib.ExitStack()
        if seen and not _silent.get():
            for observer in tuple(self._observers):
                try:
                    if (shown := observer(seen)) is not None:
                        answers.callback(shown)
                except Exception:  # as in `tell`
                    log.exception("an observer failed on %r", seen[:3])
        return answers.close

    def tell(self, changes: Sequence[Change]) -> None:
        """Call every subscriber with each change for caches, in order: in a block of `changing` at its end, when this
        thread has let go of the lock. If one fails, that is logged."""
        if self._later.changes is not None:
            self._later.changes += changes
            return
        for callback in tuple(self._subscribers):
            for change in changes:
                if not change.is_for_caches:
                    continue
                try:
                    callback(change)
                except Exception:  # the change is made already
                    log.exception("a subscriber failed on %r", change)


class KnowsXattrs(Volume):
    """A volume that has the extended attributes of a node together: a single one, and their names, follow from them."""

    @abc.abstractmethod
    def xattrs(self, node: int) -> Mapping[bytes, bytes]: ...

    def getxattr(self, node: int, name: bytes) -> bytes:
        try:
            return self.xattrs(node)[name]
        except KeyError:
            raise oserror(errno.ENODATA, name) from None

    def listxattr(self, node: int) -> Sequence[bytes]:
        return sorted(self.xattrs(node))


@runtime_checkable
class Routed(Protocol):
    """A backend that consists of several, each with the path at which a mount shows it."""

    def mounts(self) -> dict[AgentPath, Any]:
        """Prefix → backend, the default at `/`."""


def unsupported(what: str) -> OSError:
    """The error of an operation that a volume can't do, ever: ENOTSUP, and EPERM where POSIX says so."""
    number = ERRNO_OF_LACK.get(what, errno.ENOTSUP)
    return OSError(number, f"{os.strerror(number)}: {what}")


# -- those who are told of changes ------------------------------------------------------------------------------


Observer: TypeAlias = Callable[[Sequence[Change]], Callable[[], None] | None]
"""See `Volume.observe`."""

Guard: TypeAlias = Callable[[int], Callable[[], None]]
"""See `Volume.guard`."""


def listening(listeners: list[Listener], callback: Listener) -> Callable[[], None]:
    """Add a listener; returns the function that removes it."""
    listeners.append(callback)

    def remove() -> None:
        if callback in listeners:
            listeners.remove(callback)

    return remove
