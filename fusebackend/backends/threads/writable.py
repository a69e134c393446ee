"""`WritableThreadsVolume`: the same tree, with heads that can be written to.

The head of each thread is a `ForeignVolume` over `HeadFiles`, which has buffers, conflicts and renames. Its nodes are
shown under numbers of their own: one bit says that it is one of these, then comes which head, then the node in it.
Everything else stays read-only. What others write is believed for a TTL, as of every backend of whole files.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from fusebackend.backends.threads.database.activity import QUIET_S, RunWatch
from fusebackend.backends.threads.database.rows import Database
from fusebackend.backends.threads.folders import Head
from fusebackend.backends.threads.head import HeadFiles
from fusebackend.backends.threads.line_view import HEAD, Line
from fusebackend.backends.threads.tree import LineDirectory
from fusebackend.backends.threads.volume import ThreadsVolume
from fusebackend.base import errors, paths
from fusebackend.base.errors import oserror
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.protocol import MAX_NODE, ROOT_NODE, Attr, AttrChanges, Caller, Change, StatFs
from fusebackend.remote.volume import ForeignVolume

NODE_BITS: Final = 25
"""For the nodes of one head, as many as are shown in the life of the volume."""

FIRST: Final = 1 << (MAX_NODE.bit_length() - 1)
"""The lowest number that belongs to a head."""

MAX_HEADS: Final = (MAX_NODE - FIRST) >> NODE_BITS

STATFS: Final = StatFs(4096, 1 << 30, 1 << 30, 1 << 31, 1 << 31)


class WritableHead:
    """One thread's head."""

    def __init__(self, volume: WritableThreadsVolume, index: int, directory: LineDirectory, quiet_s: float) -> None:
        self._volume = volume
        self._directory = directory
        self._base = FIRST + (index << NODE_BITS)
        self._version = -1
        self.files = HeadFiles(volume.database, self.line, RunWatch(quiet_s), volume.poll)
        self.tree = ForeignVolume(self.files)

    def told(self, changed: Sequence[AgentPath]) -> list[Change]:
        """These paths were written to past the tree: bring it up to date; what caches are to be told."""
        heard: list[Change] = []
        end = self.tree.subscribe(heard.append)
        try:
            self.tree.told(*changed)
        finally:
            end()
        return [
            Change(
                node=None if change.node is None else self._base + change.node,
                parent=None if change.parent is None else self._base + change.parent,
                name=change.name,
            )
            for change in heard
        ]

    def line(self) -> Line:
        return self._volume.line(self._directory)

    def fresh(self) -> WritableHead:
        """Believe nothing that is older than the database."""
        line = self.line()
        if line.version != self._version:
            self._version = line.version
            self.tree.expire()
            line.head.entries()  # nobody sees that one here, and watchers are told how it changes
        return self

    def shown(self, attr: Attr) -> Attr:
        """Attributes under the number that this volume shows."""
        if attr.node >= 1 << NODE_BITS:
            raise oserror(errno.EOVERFLOW)
        return Attr(
            self._base + attr.node,
            attr.mode,
            nlink=attr.nlink,
            uid=attr.uid,
            gid=attr.gid,
            size=attr.size,
            blocks=attr.blocks,
            atime_ns=attr.atime_ns,
            mtime_ns=attr.mtime_ns,
            ctime_ns=attr.ctime_ns,
        )


class Inner(NamedTuple):
    """A node of a head."""

    head: WritableHead
    node: int


class WritableThreadsVolume(ThreadsVolume):
    """See the module's docstring.

    Args:
        quiet_s: after how many seconds without a sign of life a run counts as ended.
    """

    def __init__(self, database: Database, quiet_s: float = QUIET_S) -> None:
        super().__init__(database)
        self.database = database
        self.features = replace(self.features, random_writes=False, change_feed=False, read_only=False)
        self._quiet_s = quiet_s
        self._heads: list[WritableHead] = []
        self._head_of: dict[LineDirectory, WritableHead] = {}

    def line(self, directory: LineDirectory) -> Line:
        return self._tree.line(directory)

    def poll(self) -> None:
        self._tree.poll(now=True)

    # -- looking -----------------------------------------------------------------------------------------------

    def lookup(self, parent: int, name: bytes) -> Attr:
        with self._asked():
            inner = self._inner(parent)
            if inner is not None:
                return inner.head.shown(inner.head.fresh().tree.lookup(inner.node, name))
            return self._shown(super().lookup(parent, name))

    def readdir(self, node: int, after: bytes, limit: int) -> Sequence[tuple[bytes, Attr]]:
        with self._asked():
            inner = self._inner(node)
            if inner is not None:
                page = inner.head.fresh().tree.readdir(inner.node, after, limit)
                return [(name, inner.head.shown(attr)) for name, attr in page]
            return [(name, self._shown(attr)) for name, attr in super().readdir(node, after, limit)]

    def getattr(self, node: int) -> Attr:
        with self._asked():
            inner = self._inner(node)
            return super().getattr(node) if inner is None else inner.head.shown(inner.head.tree.getattr(inner.node))

    def getxattr(self, node: int, name: bytes) -> bytes:
        if self._inner(node) is not None:
            raise oserror(errno.ENODATA, name)
        return super().getxattr(node, name)

    def listxattr(self, node: int) -> Sequence[bytes]:
        return () if self._inner(node) is not None else super().listxattr(node)

    def _shown(self, attr: Attr) -> Attr:
        """The writable head in the place of a thread's read-only one."""
        if not isinstance(attr, Head) or attr.line.lineage.place.namespace:
            return attr
        assert isinstance(attr.parent, LineDirectory)
        head = self._head_of.get(attr.parent)
        if head is None:
            if len(self._heads) > MAX_HEADS:
                raise oserror(errno.EOVERFLOW)
            head = self._head_of[attr.parent] = WritableHead(self, len(self._heads), attr.parent, self._quiet_s)
            self._heads.append(head)
        if head.files.is_damaged:
            return attr  # there it says what is wrong
        return head.shown(head.tree.getattr(ROOT_NODE))

    def _inner(self, number: int) -> Inner | None:
        """Which node of which head a number means, if it does."""
        if number < FIRST:
            return None
        index, node = divmod(number - FIRST, 1 << NODE_BITS)
        if index >= len(self._heads):
            raise oserror(errno.ESTALE)
        return Inner(self._heads[index], node)

    # -- changing ----------------------------------------------------------------------------------------------

    def _writable(self, number: int, name: bytes | None = None) -> Inner:
        """A node in a head that may be written to. EROFS, EBUSY, ENOTSUP."""
        inner = self._inner(number)
        if inner is None:
            raise oserror(errno.EROFS, name)
        self.poll()
        inner.head.fresh().files.require_idle()
        return inner

    def mknod(self, parent: int, name: bytes, mode: int, rdev: int, caller: Caller) -> Attr:
        with self._asked():
            head, node = self._writable(parent, name)
            return head.shown(head.tree.mknod(node, name, mode, rdev, caller))

    def mkdir(self, parent: int, name: bytes, mode: int, caller: Caller) -> Attr:
        with self._asked():
            head, node = self._writable(parent, name)
            return head.shown(head.tree.mkdir(node, name, mode, caller))

    def create(self, parent: int, name: bytes, mode: int, flags: int, caller: Caller) -> Attr:
        with self._asked():
            head, node = self._writable(parent, name)
            return head.shown(head.tree.create(node, name, mode, flags, caller))

    def symlink(self, parent: int, name: bytes, target: bytes, caller: Caller) -> Attr:
        with self._asked():
            head, node = self._writable(parent, name)
            return head.tree.symlink(node, name, target, caller)

    def link(self, node: int, new_parent: int, new_name: bytes) -> Attr:
        with self._asked():
            head, parent = self._writable(new_parent, new_name)
            return head.tree.link(node, parent, new_name)

    def unlink(self, parent: int, name: bytes) -> None:
        with self._asked():
            head, node = self._writable(parent, name)
            head.tree.unlink(node, name)

    def rmdir(self, parent: int, name: bytes) -> None:
        with self._asked():
            head, node = self._writable(parent, name)
            head.tree.rmdir(node, name)

    def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int = 0) -> None:
        with self._asked():
            head, node = self._writable(parent, name)
            other, new_node = self._writable(new_parent, new_name)
            if other is not head:
                raise oserror(errno.EXDEV, new_name)
            head.tree.rename(node, name, new_node, new_name, flags)

    def setattr(self, node: int, changes: AttrChanges) -> Attr:
        with self._asked():
            head, inner = self._writable(node)
            return head.shown(head.tree.setattr(inner, changes))

    def setxattr(self, node: int, name: bytes, value: bytes) -> None:
        with self._asked():
            head, inner = self._writable(node)
            head.tree.setxattr(inner, name, value)

    def removexattr(self, node: int, name: bytes) -> None:
        with self._asked():
            self._writable(node)
            raise oserror(errno.ENODATA, name)

    # -- many at once ------------------------------------------------------------------------------------------

    def store(self, thread: bytes, files: Sequence[tuple[AgentPath, bytes]]) -> list[str | None]:
        """Store files, by their paths below the head of a thread, as one pending write. An error for each, or None.

        Raises:
            OSError: ENOENT where there is no such thread, EBUSY, ENOTSUP.
        """
        with self.changing() as changes, self._asked():
            root = self.lookup(self.lookup(ROOT_NODE, thread).node, HEAD)
            head, _ = self._writable(root.node)
            replaced = {path for path, _ in files if head.files.is_file(path)}
            found = [answer.error for answer in head.files.upload_files(list(files))]
            changes += head.told([path for path, _ in files])
            above = paths.join(paths.join(ROOT, paths.to_text(thread)), paths.to_text(HEAD))
            for (path, _), error in zip(files, found, strict=True):
                if error is None:
                    changes.append(Change(kind="modified" if path in replaced else "created", path=above + path))
            return [None if error is None else errors.code_of(oserror(errors.errno_of(error))) for error in found]

    # -- data --------------------------------------------------------------------------------------------------

    def open(self, node: int, flags: int) -> None:
        with self._asked():
            writes = flags & os.O_ACCMODE != os.O_RDONLY
            inner = self._writable(node) if writes else self._inner(node)
            if inner is None:
                super().open(node, flags)
            else:
                inner.head.fresh().tree.open(inner.node, flags)

    def read(self, node: int, offset: int, size: int) -> bytes:
        with self._locked():
            inner = self._inner(node)
            return super().read(node, offset, size) if inner is None else inner.head.tree.read(inner.node, offset, size)

    def write(self, node: int, offset: int, data: bytes) -> int:
        with self._locked():
            inner = self._inner(node)
            if inner is None:
                raise oserror(errno.EROFS)
            return inner.head.tree.write(inner.node, offset, data)

    def flush(self, node: int) -> None:
        with self._asked():
            inner = self._inner(node)
            if inner is not None:
                self.poll()
                inner.head.fresh().tree.flush(inner.node)

    def fsync(self, node: int, datasync: bool = False) -> None:
        self.flush(node)

    def release(self, node: int, flags: int) -> None:
        with self._locked():
            inner = self._inner(node)
            if inner is None:
                super().release(node, flags)
            else:
                inner.head.tree.release(inner.node, flags)

    # -- life --------------------------------------------------------------------------------------------------

    def hold(self, node: int) -> None:
        inner = self._inner(node)
        if inner is None:
            super().hold(node)
        else:
            inner.head.tree.hold(inner.node)

    def forget(self, nodes: Iterable[int]) -> None:
        gone: dict[WritableHead | None, list[int]] = {}
        for number in nodes:
            inner = self._inner(number)
            head, node = (None, number) if inner is None else inner
            gone.setdefault(head, []).append(node)
        for head, numbers in gone.items():
            if head is None:
                super().forget(numbers)
            else:
                head.tree.forget(numbers)

    def statfs(self) -> StatFs:
        return STATFS

    def sync(self) -> None:
        """Store all that is not stored. Each head is tried; the first error is raised in the end."""
        first: OSError | None = None
        with self._locked():
            for head in self._heads:
                try:
                    head.tree.sync()
                except OSError as error:
                    first = first or error
        if first is not None:
            raise first

    def close(self) -> None:
        try:
            self.sync()
        finally:
            super().close()
