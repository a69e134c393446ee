"""`ForeignFiles`: the half of a `ForeignVolume` that is about files: their attributes, and their bytes.

Files are whole, see `whole_files.py`. Whoever opens one for writing has it as it was then: a change by somebody else
since is ESTALE when it is stored. Whoever only appends (`O_APPEND`, and nobody writes elsewhere in the file) loses
nobody's bytes: over a backend that can compare, what was appended goes to the end of what is there then.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import threading
import time
from collections.abc import Callable
from typing import Any

from fusebackend.base.errors import oserror
from fusebackend.base.stamps import now_ns
from fusebackend.dialects.agent_face import AgentFace
from fusebackend.protocol import DEFAULT_TTL_S, Attr, AttrChanges, Change, Features, StatFs
from fusebackend.remote.tree import ForeignTree
from fusebackend.remote.whole_files import HOPELESS, WholeFiles
from fusebackend.volumes.native import NativeVolume

log = logging.getLogger(__name__)

MAX_FILE_BYTES = 2 << 30
"""Larger files are EFBIG: an upload takes the whole of one in memory."""

STATFS = StatFs(4096, 1 << 30, 1 << 30, 1 << 31, 1 << 31)
"""A backend doesn't tell; this says there is room."""


class ForeignFiles(NativeVolume):
    """See the module's docstring, and `ForeignVolume` for the arguments."""

    def __init__(
        self,
        backend: Any,
        *,
        exact_sizes: bool | None = None,
        ttl_s: float = DEFAULT_TTL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._backend = backend  # whose number in memory must not become another's, see `foreign_volume`
        self.ttl_s = getattr(backend, "ttl_s", None)
        ttl_s = ttl_s if self.ttl_s is None else self.ttl_s
        if callable(getattr(backend, "kernel_side", None)):
            backend = backend.kernel_side(ttl_s)
        self._face = AgentFace(backend, type(backend).__name__)
        self._face.require_mountable()
        self.features = Features(
            random_writes=False,
            rename=False,
            links=False,
            symlinks=False,
            special_files=False,
            xattrs=False,
            persistent_modes=False,
            change_feed=bool(getattr(backend, "change_feed", False)),
            durable=bool(getattr(backend, "durable", False)),
            read_only=not self._face.takes_bytes,
            blocking=bool(getattr(backend, "blocking", True)),
        )
        self._mutex = threading.RLock()
        self.lock = self._mutex
        exact = bool(getattr(backend, "exact_sizes", False)) if exact_sizes is None else exact_sizes
        self._tree = ForeignTree(self._face, exact, ttl_s, clock, getattr(backend, "token", lambda: None))
        self._files = WholeFiles(self._face, self._tree, clock)

    # -- attributes --------------------------------------------------------------------------------------------

    def getattr(self, node: int) -> Attr:
        with self.lock:
            entry = self._tree.entry(node)
            if entry.opens and not entry.is_dir:
                self._files.buffer(entry)  # the size of what is read and written, not of a later or earlier listing
            if entry.parent is None or entry.unlinked or entry.buffer is not None:
                return entry
            if entry.gone or self._tree.child(entry.parent, entry.name) is not entry:
                raise oserror(errno.ESTALE)
            self._files.measure([entry])
            return entry

    def setattr(self, node: int, changes: AttrChanges) -> Attr:
        with self.lock:
            entry = self._tree.entry(node)
            if changes.size is not None:
                entry.require_writable()
                self._files.require_replaceable(entry)
                if changes.size > MAX_FILE_BYTES:
                    raise oserror(errno.EFBIG)
                self._files.truncate(entry, changes.size)
            if changes.mode is not None:
                entry.mode = stat.S_IFMT(entry.mode) | stat.S_IMODE(changes.mode)
            for name in ("uid", "gid", "atime_ns", "mtime_ns"):
                value = getattr(changes, name)
                if value is not None:
                    setattr(entry, name, value)
            entry.ctime_ns = now_ns() if changes.ctime_ns is None else changes.ctime_ns
            entry.kept = entry.kept or changes.size is None
            return entry

    def statfs(self) -> StatFs:
        return STATFS

    # -- data --------------------------------------------------------------------------------------------------

    def open(self, node: int, flags: int) -> None:
        with self.lock:
            entry = self._tree.entry(node)
            if entry.poisoned:
                raise oserror(errno.ESTALE)
            if flags & (os.O_WRONLY | os.O_RDWR):
                entry.require_writable()
                self._files.require_replaceable(entry)
            if not entry.is_dir and not entry.dirty and not entry.unlinked:
                self._files.load(entry)
            entry.opens += 1
            self._files.admit(entry, flags)

    def read(self, node: int, offset: int, size: int) -> bytes:
        with self.lock:
            return self._files.buffer(self._tree.entry(node)).read(offset, size)

    def write(self, node: int, offset: int, data: bytes) -> int:
        with self.lock:
            entry = self._tree.entry(node)
            if offset + len(data) > MAX_FILE_BYTES:
                raise oserror(errno.EFBIG)
            self._files.write(entry, offset, data)
            return len(data)

    def flush(self, node: int) -> None:
        """Store a file when one of its descriptors is closed. A shell closes one before it starts what will write: if
        that stored an empty file, a backend without `upload_files` could often not fill it any more."""
        with self.lock:
            entry = self._tree.entry(node)
            if entry.dirty and entry.size == 0 and self._face.text_only:
                return
        self.fsync(node)

    def fsync(self, node: int, datasync: bool = False) -> None:
        entry = self._tree.entry(node)
        try:
            with self.lock:
                differs = self._files.store(entry)
        except OSError as error:
            if error.errno in HOPELESS:  # what was written is forgotten, and perhaps the name
                parent = entry.parent
                self.tell([Change(node, parent.node if parent is not None else None, entry.name)])
            raise
        if differs:
            self.tell([Change(node=node)])

    def release(self, node: int, flags: int) -> None:
        """What could not be stored stays, and is logged: an error here reaches nobody."""
        with self.lock:
            entry = self._tree.entry(node)
            assert entry.opens > 0, f"node {node} released more often than opened"
            entry.opens -= 1
            self._files.dismiss(entry, flags)
            if entry.opens:
                return
            try:
                self._files.store(entry)
            except OSError as error:
                log.error("%s: %s was closed unsaved: %s", self._face.name, self._tree.path(entry), error)
            entry.poisoned = False
            self._files.drop(entry)
            self._tree.reap(entry)

    def sync(self) -> None:
        """Store all that is not stored. Each is tried; the first error is raised in the end."""
        first: OSError | None = None
        with self.lock:
            for entry in self._tree.entries():
                try:
                    self._files.store(entry)
                    self._files.drop(entry)
                except OSError as error:
                    log.error("%s: %s could not be stored: %s", self._face.name, self._tree.path(entry), error)
                    first = first or error
        if first is not None:
            raise first
