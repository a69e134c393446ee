"""`RemoteVolume`: the kernel face of files behind an API, over a `Remote`; `ForeignVolume`, that of any agent backend.

    volume.py     lookup, create, unlink …        tree.py        names and nodes, over cached listings
    files.py      handles, buffers, conflicts     agent_remote.py, object_store/   two remotes

What a remote can't hold:
- directories without a file (`Abilities.keeps_directories`): they are kept in the volume, and so is a directory that
  was emptied through it, until a file appears in them. They don't outlive it;
- modes, owners and times (`keeps_attributes`): kept in the volume as well, for tools that set them;
- hard links, special files, extended attributes: ENOTSUP;
- an atomic rename: copy and delete, or the remote's own. RENAME_EXCHANGE is EINVAL.

A remote that is not `concurrent` is called with `lock` held. For any other one `lock` excludes nobody: a request holds
only the lock of its file or directory, and an atomic step is one conditional request. `hold` and `forget` never wait.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from fusebackend.base import paths
from fusebackend.base.errors import oserror
from fusebackend.base.paths import AgentPath
from fusebackend.base.stamps import now_ns
from fusebackend.base.waiting import Lock, will_wait
from fusebackend.protocol import (
    DEFAULT_TTL_S,
    RENAME_NOREPLACE,
    ROOT_NODE,
    WHOLE_FILES,
    Attr,
    AttrChanges,
    Caller,
    Change,
    NewFile,
    StatFs,
    Volume,
    unsupported,
    version_of_etag,
)
from fusebackend.protocol.remote import Remote
from fusebackend.remote.agent_remote import AgentRemote, FilesRemote
from fusebackend.remote.agent_verbs import FileVerbs
from fusebackend.remote.buffer import Buffer
from fusebackend.remote.entry import OWN, Entry
from fusebackend.remote.files import RemoteFiles
from fusebackend.remote.parallel import Gate
from fusebackend.remote.tree import Tree

MAX_FILE_BYTES = 5 << 40
"""Larger files are EFBIG: S3 takes no larger object."""

MAX_WHOLE_BYTES = 2 << 30
"""The same where an upload takes the whole of a file in memory, for there are no ranges."""

TRUSTED_BYTES = 1 << 20
"""In a page of a listing, a size claimed to be larger is shown as it is: to download such files for a plain `ls` would
be worse. `lookup` and `getattr` know better."""

MAX_TARGET_BYTES = 4095

MAX_ABSENT = 10_000
"""Names that are remembered as absent. One beyond that is told as changed, so that the kernel forgets it too."""

STATFS = StatFs(4096, 1 << 30, 1 << 30, 1 << 31, 1 << 31)
"""A remote doesn't tell; this says there is room."""


class RemoteVolume(Volume):
    """See the module's docstring.

    Args:
        remote: where the files are.
        ttl_s: for how many seconds a listing is valid.
        clock: seconds that only grow.
        first_node: see `Tree`.
    """

    places_together = True

    def __init__(
        self,
        remote: Remote,
        *,
        ttl_s: float = DEFAULT_TTL_S,
        clock: Callable[[], float] = time.monotonic,
        first_node: int = ROOT_NODE,
    ) -> None:
        self.remote = remote
        self.at_once = remote.at_once
        self.byte_cache = remote.byte_cache
        abilities = self._abilities = remote.abilities
        self.features = replace(
            WHOLE_FILES,
            symlinks=abilities.keeps_attributes,
            persistent_modes=abilities.keeps_attributes,
            change_feed=abilities.change_feed,
            durable=abilities.durable,
            read_only=abilities.read_only,
            blocking=abilities.blocking,
        )
        self.lock: AbstractContextManager[Any] = contextlib.nullcontext()
        if not abilities.concurrent:
            self.lock = Lock() if self.at_once else threading.RLock()
        self._ranges = abilities.ranges
        self._max_file_bytes = MAX_FILE_BYTES if abilities.ranges else MAX_WHOLE_BYTES
        self.ttl_s = ttl_s
        self._gate = Gate()
        self._tree = Tree(remote, ttl_s, clock, first_node)
        self._files = RemoteFiles(remote, self._tree, self._gate)

    # -- names -------------------------------------------------------------------------------------------------

    def lookup(self, parent: int, name: bytes) -> Attr:
        with self.lock:
            while True:
                entry = self._named(parent, name)
                together = self._tree.looked_at(entry)
                try:
                    self._files.stamp(together)
                except OSError:
                    if len(together) == 1:
                        raise
                    self._files.stamp([entry])  # the error may be that of another one
                if not entry.gone:
                    return entry

    def lookup_brief(self, parent: int, name: bytes) -> Attr:
        if not self._abilities.keeps_attributes:
            return self.lookup(parent, name)
        with self.lock:
            return self._named(parent, name)

    def walking(self, names: Sequence[bytes]) -> AbstractContextManager[object]:
        if self._abilities.flat_keys and self._tree.ttl_s:
            self._tree.list_ahead(names[:-1])
        return contextlib.nullcontext()

    def readdir(self, node: int, after: bytes, limit: int) -> Sequence[tuple[bytes, Attr]]:
        return self._page(node, after, limit)

    def readdir_brief(self, node: int, after: bytes, limit: int) -> Sequence[tuple[bytes, Attr]]:
        return self._page(node, after, limit, is_brief=self._abilities.keeps_attributes)

    def _page(self, node: int, after: bytes, limit: int, is_brief: bool = False) -> Sequence[tuple[bytes, Attr]]:
        with self.lock:
            while True:
                entries = self._tree.page(self._tree.entry(node), after, limit)
                trusts = not self._abilities.keeps_attributes
                if not is_brief:
                    self._files.stamp(entry for entry in entries if not (trusts and entry.size > TRUSTED_BYTES))
                page = [(entry.name, entry) for entry in entries if not entry.gone]
                if page or not entries:
                    return page
                after = entries[-1].name

    def mknod(self, parent: int, name: bytes, mode: int, rdev: int, caller: Caller) -> Attr:
        if not stat.S_ISREG(mode):
            raise unsupported("mknod")
        return self.make_file(parent, name, mode, b"", caller)

    def mkdir(self, parent: int, name: bytes, mode: int, caller: Caller) -> Attr:
        return self._make(parent, name, stat.S_IFDIR | stat.S_IMODE(mode), b"", caller)

    def symlink(self, parent: int, name: bytes, target: bytes, caller: Caller) -> Attr:
        if not self.features.symlinks:
            return super().symlink(parent, name, target, caller)
        if len(target) > MAX_TARGET_BYTES:
            raise oserror(errno.ENAMETOOLONG, name)
        return self._make(parent, name, stat.S_IFLNK | 0o777, target, caller)

    def make_file(self, parent: int, name: bytes, mode: int, content: bytes, caller: Caller) -> Attr:
        """A new file with its content, in one step. EEXIST."""
        return self._make(parent, name, stat.S_IFREG | stat.S_IMODE(mode), content, caller)

    def version_of(self, attr: Attr) -> str | None:
        assert isinstance(attr, Entry), "attributes of this volume"
        return None if attr.dirty or attr.doubted or attr.etag is None else version_of_etag(attr.etag)

    def rewrite(self, node: int, change: Callable[[Callable[[], bytes]], bytes], *, reads: bool = False) -> None:
        """See `RemoteFiles.rewrite`."""
        with self.lock:
            self._files.rewrite(self._tree.entry(node), change, reads=reads)

    def _make(self, parent: int, name: bytes, mode: int, content: bytes, caller: Caller) -> Attr:
        """Something new, in the remote at once."""
        directory = self._tree.entry(parent)
        # A thread that finds a directory made by another one wants to use it: then it must have an entry.
        one_by_one = directory.lock if stat.S_ISDIR(mode) else contextlib.nullcontext()
        with self.lock, self._gate.passing(), one_by_one:
            entry = self._tree.make(directory, name, mode, caller)
            try:
                if not entry.is_dir:
                    self._files.put_new(entry, content)
                elif self._abilities.keeps_directories:
                    self._put_marker(entry, replace=False)
                    entry.local = False
            except FileExistsError:
                self._tree.distrust(directory)
                raise
            return self._linked(entry)

    def _linked(self, entry: Entry) -> Entry:
        """Give something new its name; the entry that has it. ENOENT when its directory is gone, EEXIST for a directory
        of the name of a file, or the other way round, which others have made meanwhile."""
        try:
            made = self._tree.link(entry)
        except (FileNotFoundError, FileExistsError):
            if not entry.local:
                self.remote.delete(entry.key)
            raise
        if not made.local:
            self._tree.stored(made)
        return made

    def place(self, file: NewFile) -> Attr:
        (made,) = self.place_all([file])
        if isinstance(made, OSError):
            raise made
        return made

    def place_all(self, files: Sequence[NewFile]) -> list[Attr | OSError]:
        """Attributes that the remote does not keep stay in the volume, but for extended ones, which it can't hold."""
        made: list[Attr | OSError] = [oserror(errno.ECANCELED, file.name) for file in files]
        new: list[tuple[Entry, Buffer]] = []
        with contextlib.ExitStack() as stack:
            buffers = [stack.enter_context(contextlib.closing(Buffer())) for _ in files]
            number = 0
            try:
                for number, file in enumerate(files):
                    self._fill(buffers[number], file)
                stack.enter_context(self.lock)
                stack.enter_context(self._gate.passing())
                for number, file in enumerate(files):
                    new.append((self._new_entry(file), buffers[number]))
            except OSError as error:
                made[number] = error
                return made
            for number, (entry, failed) in enumerate(self._files.put_all(new)):
                try:
                    if failed is not None:
                        raise failed
                    made[number] = self._linked(entry)
                except OSError as error:
                    made[number] = error
                    if error.errno != errno.ECANCELED:  # it is another's, or has arrived
                        self._tree.distrust(self._tree.entry(files[number].parent))
        return made

    def _fill(self, buffer: Buffer, file: NewFile) -> None:
        """Read a new file into a buffer, with the lock free."""
        size = file.state.size
        if size > self._max_file_bytes:
            raise oserror(errno.EFBIG, file.name)
        for offset, piece in file.pieces:
            buffer.write(offset, piece)
        buffer.resize(size)

    def _new_entry(self, file: NewFile) -> Entry:
        state = file.state
        entry = self._tree.make(self._tree.entry(file.parent), file.name, stat.S_IFREG, Caller(state.uid, state.gid))
        entry.mode, entry.gid = stat.S_IFREG | stat.S_IMODE(state.mode), state.gid
        entry.atime_ns, entry.mtime_ns = state.atime_ns, state.mtime_ns
        return entry

    def create(self, parent: int, name: bytes, mode: int, flags: int, caller: Caller) -> Attr:
        """The file is in this volume alone until it is flushed."""
        with self.lock:
            entry = self._tree.make(self._tree.entry(parent), name, stat.S_IFREG | stat.S_IMODE(mode), caller)
            self._files.create(entry, flags)
            self._tree.link(entry)
            return entry

    def unlink(self, parent: int, name: bytes) -> None:
        with self.lock, self._gate.passing():
            directory, entry = self._tree.entry(parent), self._named(parent, name)
            if entry.is_dir:
                raise oserror(errno.EISDIR, name)
            with entry.lock:
                if not entry.is_at(directory, name):
                    raise oserror(errno.ENOENT, name)  # another thread was faster
                self._files.keep_open(entry)
                self._keep_directory(entry)
                if not entry.local or entry.tried:
                    self._delete(entry)
                self._tree.unlinked(entry)

    def rmdir(self, parent: int, name: bytes) -> None:
        with self.lock, self._gate.passing():
            entry = self._named(parent, name)
            if not entry.is_dir:
                raise oserror(errno.ENOTDIR, name)
            self._require_empty(entry)
            self._keep_directory(entry)
            if self._abilities.keeps_directories or self.remote.has(entry.key):
                self._delete(entry)
            self._tree.unlinked(entry)

    def _named(self, parent: int, name: bytes) -> Entry:
        entry = self._tree.child(self._tree.entry(parent), name)
        if entry is None:
            raise oserror(errno.ENOENT, name)
        return entry

    def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int = 0) -> None:
        """A file moves with its own lock held and its target's, a directory alone: a file stored below its old name
        meanwhile would be left behind. Dirty buffers are stored first. EINVAL for RENAME_EXCHANGE."""
        if flags not in (0, RENAME_NOREPLACE):
            raise oserror(errno.EINVAL, new_name)
        with self.lock:
            old, directory, entry = self._tree.entry(parent), self._tree.entry(new_parent), self._named(parent, name)
            self._finish_renames()
            if entry.is_dir:
                self._files.store_all(entry.tree())  # most of them before the others have to wait
            with self._gate.alone() if entry.is_dir else self._gate.passing(), contextlib.ExitStack() as locks:
                target = self._tree.child(directory, new_name)
                # Always in the same order, for two files may change places.
                for one in sorted({entry, *([target] if target is not None else [])}, key=lambda one: one.node):
                    locks.enter_context(one.lock)
                if not entry.is_at(old, name):
                    raise oserror(errno.ENOENT, name)  # another thread was faster
                if target is not None and not target.is_at(directory, new_name):
                    raise oserror(errno.ESTALE, new_name)
                if target is not None and flags == RENAME_NOREPLACE:
                    raise oserror(errno.EEXIST, new_name)
                if target is entry:
                    return
                self._require_possible(entry, target, directory, new_name)
                segment = self.remote.admit(new_name, directory.key, is_dir=entry.is_dir)
                if target is not None and not target.is_dir:
                    self._files.keep_open(target)
                self._keep_directory(entry)
                empty = self._move(entry, target, directory.key + segment)
                if target is not None:
                    self._tree.unlinked(target)
                self._tree.relink(entry, directory, new_name, segment)
            if not self._abilities.keeps_directories:
                self._tree.expire()
                for key in empty:
                    self._tree.make_directories(key)
                self.remote.expire()

    def _require_possible(self, entry: Entry, target: Entry | None, directory: Entry, name: bytes) -> None:
        if entry.is_gone or directory.is_gone:
            raise oserror(errno.ENOENT, name)
        entry.require_writable()
        if entry.is_dir and directory.is_within(entry):
            raise oserror(errno.EINVAL, name)
        if target is None:
            return
        target.require_writable()
        if target.is_dir and not entry.is_dir:
            raise oserror(errno.EISDIR, name)
        if entry.is_dir:
            if not target.is_dir:
                raise oserror(errno.ENOTDIR, name)
            self._require_empty(target)

    def _require_empty(self, directory: Entry) -> None:
        """ENOTEMPTY when there is something in a directory, here or in the remote."""
        with self._tree.lock:
            local = any(child.is_ahead for child in directory.children.values())
        if local or not self.remote.holds_only(directory.key):
            raise oserror(errno.ENOTEMPTY, directory.name)

    def _finish_renames(self) -> None:
        """Carry on renames that have failed half-way."""
        if self.remote.unfinished:
            with self._gate.alone():
                self.remote.finish()
            self._tree.expire()

    def _delete(self, entry: Entry) -> None:
        """Delete a file or an empty directory in the remote. ENOTSUP, EACCES."""
        if not self._abilities.can_delete:
            raise OSError(errno.ENOTSUP, f"{self.remote.name} has no delete")
        entry.require_writable()
        self.remote.delete(entry.key)

    def _keep_directory(self, entry: Entry) -> None:
        """See that the directory stays when this is taken out of it: it may have been there because of this alone."""
        directory = entry.parent
        assert directory is not None
        if not self._abilities.keeps_directories or (entry.local and not entry.tried):
            return
        if directory.parent is None or directory.listing.marker:
            return
        with self._tree.lock:
            children = directory.children
            others = (name for name in directory.listing.infos if name != entry.name)
            stays = any(name not in children or not children[name].local for name in others)
        if not stays:
            self._put_marker(directory, replace=True)

    def _put_marker(self, directory: Entry, *, replace: bool) -> None:
        """Store the sign of a directory, with its attributes. EEXIST unless `replace`."""
        directory.etag = self.remote.make_directory(directory.key, directory.stamp, replace=replace)
        directory.seen, directory.listing.marker = OWN, True

    def _move(self, entry: Entry, target: Entry | None, new: str) -> list[str]:
        """Move in the remote what it has; keys of empty directories that it could not move."""
        old = entry.key
        for below in entry.tree():
            if below.dirty:
                with below.lock:
                    self._files.upload(below)
        keeps_directories = self._abilities.keeps_directories
        if not keeps_directories and not self.remote.has(old):
            return []
        if entry.is_dir:
            new += "/"
            if target is not None and not keeps_directories and self.remote.has(target.key):
                self._delete(target)

        def copied() -> None:
            for below in entry.tree():
                is_moved = self._abilities.ranges and not below.is_dir
                if is_moved and (below.opens or below is entry):
                    with below.lock:
                        self._files.relocate(below, new + below.key[len(old) :])

        replaced = (target.etag,) if target is not None and not target.is_dir and not target.local else None
        return list(self.remote.rename(old, new, entry.etag, replaced, copied))

    # -- attributes --------------------------------------------------------------------------------------------

    def getattr(self, node: int) -> Attr:
        with self.lock:
            entry = self._tree.entry(node)
            if entry.parent is None:
                self._files.stamp([entry])
                return entry
            if entry.opens and not self._ranges and entry.buffer is None and not entry.is_dir:
                self._files.buffer(entry)  # reads and writes see its size
            if entry.busy or entry.unlinked:
                return entry
            if entry.gone or self._tree.child(entry.parent, entry.name) is not entry:
                raise oserror(errno.ESTALE)
            self._files.stamp([entry])
            return entry

    def setattr(self, node: int, changes: AttrChanges) -> Attr:
        entry = self._tree.entry(node)
        stores = self._abilities.keeps_attributes
        if (stores and not entry.dirty) or (changes.size is not None and not entry.opens):
            will_wait()  # new attributes are stored at once, unless with the content
        with self.lock:
            if changes.size is not None:
                self._require_replaceable(entry)
                if changes.size > self._max_file_bytes:
                    raise oserror(errno.EFBIG)
                self._files.truncate(entry, changes.size)
            if stores and not entry.busy:
                self._files.stamp([entry])
            with self._gate.passing(), entry.lock:
                if stores and not entry.dirty:
                    will_wait()  # it has been stored meanwhile
                before = entry.stamp
                with self._tree.lock:
                    if changes.mode is not None:
                        entry.mode = stat.S_IFMT(entry.mode) | stat.S_IMODE(changes.mode)
                    for word in ("uid", "gid", "atime_ns", "mtime_ns"):
                        value = getattr(changes, word)
                        if value is not None:
                            setattr(entry, word, value)
                    entry.ctime_ns = now_ns() if changes.ctime_ns is None else changes.ctime_ns
                    entry.kept = entry.kept or changes.size is None
                if stores and entry.stamp != before:
                    try:
                        if not entry.is_dir:
                            self._files.restamp(entry)
                        elif not entry.is_gone:
                            self._put_marker(entry, replace=True)
                    except OSError:
                        with self._tree.lock:
                            entry.restamp(before)
                            entry.stamped = False  # it may have arrived
                        raise
            return entry

    def readlink(self, node: int) -> bytes:
        entry = self._tree.entry(node)
        if not stat.S_ISLNK(entry.mode):
            raise oserror(errno.EINVAL)
        known = entry.target
        if known is None or known[0] != entry.etag:
            try:
                target = b"".join(self.remote.load(entry.key, None))
            except FileNotFoundError:
                raise oserror(errno.ESTALE) from None
            if entry.etag is None:
                return target
            known = entry.target = (entry.etag, target)
        return known[1]

    def statfs(self) -> StatFs:
        return STATFS

    # -- data --------------------------------------------------------------------------------------------------

    def open(self, node: int, flags: int) -> None:
        with self.lock:
            entry = self._tree.entry(node)
            if flags & (os.O_WRONLY | os.O_RDWR):
                self._require_replaceable(entry)
            self._files.open(entry, flags)

    def _require_replaceable(self, entry: Entry) -> None:
        """EACCES, or EEXIST for a file that the remote has and, as is known by now, can't put another in its place."""
        entry.require_writable()
        if self.remote.write_once and not entry.local and not entry.is_dir:
            raise oserror(errno.EEXIST, entry.name)

    def read(self, node: int, offset: int, size: int) -> bytes:
        with self.lock:
            return self._files.read(self._tree.entry(node), offset, size)

    def write(self, node: int, offset: int, data: bytes) -> int:
        if offset + len(data) > self._max_file_bytes:
            raise oserror(errno.EFBIG)
        with self.lock:
            self._files.write(self._tree.entry(node), offset, data)
            return len(data)

    def append(self, node: int, data: bytes) -> int:
        entry = self._tree.entry(node)
        with self.lock, entry.lock:
            return self.write(node, self.getattr(node).size, data)

    def flush(self, node: int) -> None:
        self._store(self._tree.entry(node))

    def fsync(self, node: int, datasync: bool = False) -> None:
        entry = self._tree.entry(node)
        if not entry.is_dir:
            self._store(entry)
            return
        with self._tree.lock:
            files = list(entry.children.values())
        with self.lock:
            self._files.store_all(files)

    def _store(self, entry: Entry) -> None:
        try:
            with self.lock:
                differs = self._files.store(entry)
        except OSError as error:
            if error.errno in self.remote.hopeless:  # the buffer is dropped, and perhaps the name
                parent = entry.parent
                self.tell([Change(entry.node, parent.node if parent is not None else None, entry.name)])
            raise
        if differs:
            self.tell([Change(node=entry.node)])

    def release(self, node: int, flags: int) -> None:
        with self.lock:
            self._files.release(self._tree.entry(node), flags)

    # -- life --------------------------------------------------------------------------------------------------

    def hold(self, node: int) -> None:
        self._tree.hold(node)

    def forget(self, nodes: Iterable[int]) -> None:
        self._tree.forget(nodes)

    def expire(self) -> None:
        with self.lock:
            self._tree.expire()
            self.remote.expire()

    def told(self, *changed: AgentPath, reports: Sequence[Change] = ()) -> list[Change]:
        """These paths were changed past this volume: drop what was cached, and tell of it. Returns what was told."""
        with self.changing() as changes:
            self.expire()
            for path in changed:
                changes += _changes_at(self._tree, path)
            changes += reports
        return changes

    @property
    def trouble(self) -> tuple[float, str] | None:
        return self.remote.trouble

    @property
    def unstored(self) -> int:
        return sum(entry.dirty for entry in self._tree.entries())

    def sync(self) -> None:
        with self.lock:
            self._files.store_all(self._tree.entries())
            self._finish_renames()

    def close(self) -> None:
        try:
            self.sync()
        finally:
            self.remote.close()


# --------------------------------------------------------------------------------------------------------------
# Agent backends
# --------------------------------------------------------------------------------------------------------------

_volumes: weakref.WeakValueDictionary[int, ForeignVolume] = weakref.WeakValueDictionary()


def volume_of(backend: Any) -> Volume:
    """The kernel face of a backend: its own volume, or the one `ForeignVolume` of it that there is in this process.

    Raises:
        TypeError: it is a factory, or can't list a directory.
    """
    own = getattr(backend, "volume", None)
    if isinstance(own, Volume):
        return own
    return foreign_volume(backend) or _volumes.setdefault(id(backend), ForeignVolume(backend))


def foreign_volume(backend: Any) -> ForeignVolume | None:
    """The `ForeignVolume` of a backend, if there is one in use."""
    return _volumes.get(id(backend))  # a volume keeps its backend alive, so ids are unique


class ForeignVolume(RemoteVolume):
    """The kernel face of any object that has the agent face alone, ours or another package's.

    Files are whole: one is downloaded when it is opened, and uploaded when it was written to and is flushed, synced or
    closed for the last time. A composite calls `told` after each change by the other face. docs/backends.md
    lists the hooks of a backend; `agent_remote.py` reads them.

    Args:
        backend: the object.
        ttl_s: for how many seconds a listing is valid, unless the backend says so.
        clock: seconds that only grow.
    """

    remote: AgentRemote

    def __init__(
        self,
        backend: Any,
        *,
        ttl_s: float = DEFAULT_TTL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backend = backend  # alive as long as its id is in the table of `foreign_volume`
        kind: type[AgentRemote] = FilesRemote if isinstance(backend, FileVerbs) else AgentRemote
        remote = kind(backend, ttl_s=ttl_s, clock=clock)
        super().__init__(remote, ttl_s=remote.ttl_s, clock=clock)
        self.ttl_s = remote.abilities.ttl_s
        self._absent: OrderedDict[tuple[int, bytes], None] = OrderedDict()
        """Names that were asked for and are not there, by the directory's node: the kernel caches those as well."""
        self._unfollow: Callable[[], None] | None = None

    def lookup(self, parent: int, name: bytes) -> Attr:
        try:
            return super().lookup(parent, name)
        except FileNotFoundError:
            if self.features.change_feed:
                self._absent[parent, name] = None
                self._absent.move_to_end((parent, name))
                if len(self._absent) > MAX_ABSENT:
                    (directory, forgotten), _ = self._absent.popitem(last=False)
                    self.tell([Change(parent=directory, name=forgotten)])
            raise

    def flush(self, node: int) -> None:
        """Store a file when one of its descriptors is closed. A shell closes one before it starts what will write: if
        that stored an empty file, a backend without `upload_files` could often not fill it any more."""
        entry = self._tree.entry(node)
        if not (entry.dirty and entry.size == 0 and self.remote.text_only):
            super().flush(node)

    # -- changes -----------------------------------------------------------------------------------------------

    def subscribe(self, callback: Callable[[Change], None]) -> Callable[[], None]:
        """While there are subscribers, this volume follows the changes of its backend, if that tells of them."""
        end = super().subscribe(callback)
        if self._unfollow is None:
            self._unfollow = self.remote.follow(self._heard)

        def unsubscribe() -> None:
            end()
            if not self._subscribers and self._unfollow is not None:
                unfollow, self._unfollow = self._unfollow, None
                unfollow()

        return unsubscribe

    def _heard(self, *changed: AgentPath, elsewhere: bool) -> None:
        """The backend tells of changes, without paths when they may be anywhere. Of those made by this process's own
        agents the observers hear from the agents' face."""
        with self.lock:
            self.expire()
            changes = [change for path in changed for change in _changes_at(self._tree, path)]
            if not changed:
                absent, self._absent = self._absent, OrderedDict()
                changes = list(_changes_everywhere(self._tree))
                changes += [Change(parent=parent, name=name) for parent, name in absent]
        if elsewhere:
            self.publish(*changes, *(Change(path=path, source="elsewhere") for path in changed))
        else:
            self.tell(changes)


def _changes_at(tree: Tree, path: AgentPath) -> Iterator[Change]:
    """A file or directory at a path was changed, made or removed, and with it perhaps every directory on the way. Its
    buffer goes, if nothing is lost with it."""
    entry = tree.root
    for name in paths.split(path):
        child = entry.children.get(name)
        yield Change(node=entry.node)
        yield Change(node=child.node if child is not None else None, parent=entry.node, name=name)
        if child is None:
            return
        entry = child
    if not entry.dirty and not entry.gone:
        entry.drop_content()  # handles read what is there now


def _changes_everywhere(tree: Tree) -> Iterator[Change]:
    """Anything may have changed."""
    for entry in tree.entries():
        parent = entry.parent
        yield Change(entry.node, parent.node if parent is not None else None, entry.name)
        if not entry.dirty and not entry.gone:  # of one without a name the buffer is all there is
            entry.drop_content()
