"""`ObjectStoreVolume`: the kernel face of a bucket, or of a prefix in one.

`bucket/object_keys.py` says which objects are shown as what, `metadata.py` where modes, owners, times and links are
kept, `tree.py` for how long what was listed is believed, `looks.py` what is asked beyond that, `files.py` when what is
written is stored and what a conflict is, and `rename.py` what a rename is made of. Hard links, special files and
extended attributes are ENOTSUP.

No lock is held over a request but those of the file or the directory it is about, so that a hundred files can be read
at once, and `lock` excludes nobody: what has to be one step is one conditional request. The rename of a directory waits
until nobody puts anything, and has those who would wait.
"""

from __future__ import annotations

import contextlib
import errno
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fusebackend.backends.object_store import metadata as attributes
from fusebackend.backends.object_store.bucket.object_keys import MARKER
from fusebackend.backends.object_store.bucket.requests import Bucket
from fusebackend.backends.object_store.bucket.s3_extras import S3Extras
from fusebackend.backends.object_store.entry import Entry
from fusebackend.backends.object_store.files import ObjectFiles
from fusebackend.backends.object_store.gate import Gate
from fusebackend.backends.object_store.looks import Looks
from fusebackend.backends.object_store.reading.disk_cache import BlockCache
from fusebackend.backends.object_store.rename import Renames
from fusebackend.backends.object_store.tree import ObjectTree
from fusebackend.base.errors import oserror
from fusebackend.base.stamps import now_ns
from fusebackend.base.waiting import will_wait
from fusebackend.protocol import DEFAULT_TTL_S, Attr, AttrChanges, Caller, Change, Features, StatFs
from fusebackend.remote.files import STATFS
from fusebackend.volumes.native import NativeVolume

CACHE_BYTES = 1 << 30

MAX_FILE_BYTES = 5 << 40
"""Larger files are EFBIG: S3 takes no larger object."""

MAX_TARGET_BYTES = 4095

FEATURES = Features(
    random_writes=False,
    rename=False,
    links=False,
    special_files=False,
    xattrs=False,
    change_feed=False,
    blocking=True,
)


class ObjectStoreVolume(NativeVolume):
    """See the module's docstring.

    Args:
        store: an obstore store; its prefix is where the tree begins.
        ttl_s: for how many seconds a listing is believed.
        cache_directory: where blocks of objects are kept; None: a temporary directory, removed by `close`.
        cache_bytes: at most so many.
        write_back_s: so many seconds after it was closed a file is put; 0: before `close` returns.
        extras: does what obstore can't, where there is such a thing.
        clock: seconds that only grow.
    """

    features = FEATURES
    at_once = frozenset({"write", "flush", "setattr", "release"})

    def __init__(
        self,
        store: Any,
        *,
        ttl_s: float = DEFAULT_TTL_S,
        cache_directory: str | None = None,
        cache_bytes: int = CACHE_BYTES,
        write_back_s: float = 0.0,
        extras: S3Extras | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.lock: AbstractContextManager[Any] = contextlib.nullcontext()
        self.ttl_s = ttl_s
        self._gate = Gate()
        self._cache = BlockCache(cache_directory, cache_bytes)
        self.bucket = Bucket(store, extras)
        self._tree = ObjectTree(self.bucket, ttl_s, clock, self._cache.fetchers)
        self._looks = Looks(self.bucket, self._tree, self._cache)
        self._files = ObjectFiles(
            self.bucket, self._tree, self._looks, self._gate, self._cache, write_back_s, self._stored_later
        )
        self._renames = Renames(self.bucket, self._tree, self._files, self._gate)
        try:
            self._renames.recover()
        except BaseException:
            self._cache.close()
            raise

    # -- names -------------------------------------------------------------------------------------------------

    def lookup(self, parent: int, name: bytes) -> Attr:
        while True:
            entry = self._tree.child(self._tree.entry(parent), name)
            if entry is None:
                raise oserror(errno.ENOENT, name)
            self._looks.stamp([entry])
            if not entry.gone:
                return entry

    def readdir(self, node: int, after: bytes, limit: int) -> Sequence[tuple[bytes, Attr]]:
        while True:
            entries = self._tree.page(self._tree.entry(node), after, limit)
            self._looks.stamp(entries)
            page = [(entry.name, entry) for entry in entries if not entry.gone]
            if page or not entries:
                return page
            after = entries[-1].name

    def mknod(self, parent: int, name: bytes, mode: int, rdev: int, caller: Caller) -> Attr:
        if not stat.S_ISREG(mode):
            raise oserror(errno.ENOTSUP, name)
        return self.make_file(parent, name, mode, b"", caller)

    def mkdir(self, parent: int, name: bytes, mode: int, caller: Caller) -> Attr:
        return self._make(parent, name, stat.S_IFDIR | stat.S_IMODE(mode), b"", caller)

    def symlink(self, parent: int, name: bytes, target: bytes, caller: Caller) -> Attr:
        if len(target) > MAX_TARGET_BYTES:
            raise oserror(errno.ENAMETOOLONG, name)
        return self._make(parent, name, stat.S_IFLNK | 0o777, target, caller)

    def make_file(self, parent: int, name: bytes, mode: int, content: bytes, caller: Caller) -> Attr:
        """A new file with its content, in one step. EEXIST."""
        return self._make(parent, name, stat.S_IFREG | stat.S_IMODE(mode), content, caller)

    def rewrite(self, node: int, change: Callable[[Callable[[], bytes]], bytes]) -> None:
        """See `ObjectFiles.rewrite`."""
        self._files.rewrite(self._tree.entry(node), change)

    def _make(self, parent: int, name: bytes, mode: int, content: bytes, caller: Caller) -> Attr:
        """Something new, in the store at once."""
        directory = self._tree.entry(parent)
        # Who finds a directory made by another thread wants to use it: then it must have an entry.
        one_by_one = directory.lock if stat.S_ISDIR(mode) else contextlib.nullcontext()
        with self._gate.passing(), one_by_one:
            entry = self._new(directory, name, mode, caller)
            key = entry.key + MARKER if entry.is_dir else entry.key
            try:
                if entry.is_dir:
                    entry.etag = self.bucket.make(key, b"", attributes.written(entry.stamp, {}))
                    entry.marker, entry.local = True, False
                else:
                    self._files.put_new(entry, content)
            except FileExistsError:
                self._tree.distrust(directory)
                raise
            try:
                return self._tree.link(entry)
            except FileNotFoundError:
                self.bucket.delete(key)
                raise

    def _new(self, directory: Entry, name: bytes, mode: int, caller: Caller) -> Entry:
        if self._tree.child(directory, name) is not None:
            raise oserror(errno.EEXIST, name)
        if directory.is_gone:
            raise oserror(errno.ENOENT, name)
        return self._tree.make(directory, name, mode, caller)

    def create(self, parent: int, name: bytes, mode: int, flags: int, caller: Caller) -> Attr:
        """The file is in this volume alone until it is flushed."""
        entry = self._new(self._tree.entry(parent), name, stat.S_IFREG | stat.S_IMODE(mode), caller)
        self._files.create(entry, flags)
        self._tree.link(entry)
        return entry

    def unlink(self, parent: int, name: bytes) -> None:
        with self._gate.passing():
            entry = self._named(parent, name)
            if entry.is_dir:
                raise oserror(errno.EISDIR, name)
            with entry.lock:
                self._files.keep_open(entry)
                self._keep(entry)
                if not entry.unsent:
                    self.bucket.delete(entry.key)
                self._tree.unlinked(entry)

    def rmdir(self, parent: int, name: bytes) -> None:
        with self._gate.passing():
            entry = self._named(parent, name)
            if not entry.is_dir:
                raise oserror(errno.ENOTDIR, name)
            self._renames.require_empty(entry)
            self._keep(entry)
            self.bucket.delete_directory(entry.key)
            self._tree.unlinked(entry)

    def _keep(self, entry: Entry) -> None:
        """See that the directory stays when this is taken out of it: it may have been there because of this alone."""
        directory = entry.parent
        assert directory is not None
        if entry.unsent or directory.parent is None or directory.marker:
            return
        with self._tree.lock:
            others = any(child is not entry and not child.local for child in directory.children.values())
        if not others:
            self._put_marker(directory)

    def _put_marker(self, directory: Entry) -> None:
        directory.etag = self.bucket.put_small(
            directory.key + MARKER, b"", attributes.written(directory.stamp, directory.extra)
        )
        directory.modified_ns, directory.marker = None, True

    def _named(self, parent: int, name: bytes) -> Entry:
        entry = self._tree.child(self._tree.entry(parent), name)
        if entry is None:
            raise oserror(errno.ENOENT, name)
        return entry

    def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int = 0) -> None:
        entry, directory = self._named(parent, name), self._tree.entry(new_parent)
        self._renames.rename(entry, directory, new_name, flags, self._keep)

    # -- attributes --------------------------------------------------------------------------------------------

    def getattr(self, node: int) -> Attr:
        entry = self._tree.entry(node)
        if entry.parent is None:
            self._looks.stamp([entry])
            return entry
        if entry.unlinked or entry.busy:
            return entry
        if entry.gone or self._tree.child(entry.parent, entry.name) is not entry:
            raise oserror(errno.ESTALE)
        self._looks.stamp([entry])
        return entry

    def setattr(self, node: int, changes: AttrChanges) -> Attr:
        entry = self._tree.entry(node)
        if not entry.dirty or (changes.size is not None and not entry.opens):
            will_wait()  # what is not put with the content is put at once
        if changes.size is not None:
            if changes.size > MAX_FILE_BYTES:
                raise oserror(errno.EFBIG)
            self._files.truncate(entry, changes.size)
        if not entry.busy:
            self._looks.stamp([entry])
        with self._gate.passing(), entry.lock:
            if not entry.dirty:
                will_wait()  # it has been put meanwhile
            before = entry.stamp
            with self._tree.lock:
                if changes.mode is not None:
                    entry.mode = stat.S_IFMT(entry.mode) | stat.S_IMODE(changes.mode)
                for word in ("uid", "gid", "atime_ns", "mtime_ns"):
                    value = getattr(changes, word)
                    if value is not None:
                        setattr(entry, word, value)
                entry.ctime_ns = now_ns() if changes.ctime_ns is None else changes.ctime_ns
            if entry.stamp != before:
                self._keep_stamp(entry)
        return entry

    def _keep_stamp(self, entry: Entry) -> None:
        if not entry.is_dir:
            self._files.uploads.keep_stamp(entry)
        elif not entry.is_gone:
            self._put_marker(entry)

    def readlink(self, node: int) -> bytes:
        entry = self._tree.entry(node)
        if not stat.S_ISLNK(entry.mode):
            raise oserror(errno.EINVAL)
        known = entry.target
        if known is None or known[0] != entry.etag or entry.etag is None:
            try:
                known = entry.target = (entry.etag, self.bucket.get_small(entry.key))
            except FileNotFoundError:
                raise oserror(errno.ESTALE) from None
        return known[1]

    def statfs(self) -> StatFs:
        return STATFS

    # -- data --------------------------------------------------------------------------------------------------

    def open(self, node: int, flags: int) -> None:
        self._files.open(self._tree.entry(node), flags)

    def read(self, node: int, offset: int, size: int) -> bytes:
        return self._files.read(self._tree.entry(node), offset, size)

    def write(self, node: int, offset: int, data: bytes) -> int:
        if offset + len(data) > MAX_FILE_BYTES:
            raise oserror(errno.EFBIG)
        self._files.write(self._tree.entry(node), offset, data)
        return len(data)

    def append(self, node: int, data: bytes) -> int:
        entry = self._tree.entry(node)
        with entry.lock:
            return self.write(node, entry.size, data)

    def flush(self, node: int) -> None:
        if self._files.flush(self._tree.entry(node)):
            self.tell([Change(node=node)])

    def fsync(self, node: int, datasync: bool = False) -> None:
        entry = self._tree.entry(node)
        if entry.is_dir:
            self._files.store_below(entry)
        elif self._files.fsync(entry):
            self.tell([Change(node=node)])

    def _stored_later(self, entry: Entry) -> None:
        self.tell([Change(node=entry.node)])

    @property
    def unstored(self) -> int:
        return self._files.waiting

    def release(self, node: int, flags: int) -> None:
        self._files.release(self._tree.entry(node), flags)

    # -- life --------------------------------------------------------------------------------------------------

    def hold(self, node: int) -> None:
        self._tree.hold(node)

    def forget(self, nodes: Iterable[int]) -> None:
        self._tree.forget(nodes)

    def expire(self) -> None:
        self._tree.expire()

    def sync(self) -> None:
        self._files.sync()
        self._renames.finish()

    def close(self) -> None:
        self._files.close()
        try:
            self.sync()
        finally:
            self._renames.close()
            self._cache.close()
            if self.bucket.extras is not None:
                self.bucket.extras.close()
