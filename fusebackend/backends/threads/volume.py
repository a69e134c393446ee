"""`ThreadsVolume`: the kernel face of a checkpoint database.

A thread queries the database for news while there are caches or watchers, and publishes the changes.

The files of a head that can be written to (`WritableHead`) are those of a `RemoteVolume` over `HeadFiles`, which has
buffers, conflicts and renames. Its nodes have numbers of their own: one bit marks them, then comes the head, then the
node in it. So each verb is that of a head, or of the tree, which stays read-only. A head is cached for a TTL, as every
backend of whole files.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, TypeVar, cast

from fusebackend.backends.threads.computed import Link
from fusebackend.backends.threads.database.activity import QUIET_S
from fusebackend.backends.threads.database.rows import Damaged, Database
from fusebackend.backends.threads.database.sql import SaverTables
from fusebackend.backends.threads.head import HeadFiles
from fusebackend.backends.threads.line import HEAD, FilesDirectory
from fusebackend.backends.threads.nodes import Node, Nodes, blocks_of
from fusebackend.backends.threads.prune import remove
from fusebackend.backends.threads.tree import LineDirectory, Tree
from fusebackend.base import errors, heap, paths, waiting
from fusebackend.base.errors import oserror
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.protocol import (
    MAX_NODE,
    ROOT_NODE,
    Attr,
    AttrChanges,
    Caller,
    Change,
    Features,
    KnowsXattrs,
    Observer,
    StatFs,
)
from fusebackend.remote.volume import STATFS as STATFS_OF_HEADS
from fusebackend.remote.volume import RemoteVolume
from fusebackend.volumes.walk import names_of

log = logging.getLogger(__name__)

T = TypeVar("T")

FEED_INTERVAL_S: Final = 0.25
"""How often the database is queried for news while there are caches or watchers."""

LARGE_S: Final = 5.0
"""How long a large conversation is cached after the last request. One of 108 MB kept 460 MiB."""

MOST_NODES: Final = 30_000
"""Each takes 500 bytes here, and 400 in the mount."""

MANY_FORGOTTEN: Final = 20_000
"""After so many forgotten nodes, garbage is collected: lines and what is in them refer to each other."""

STATFS: Final = StatFs(4096, 1 << 30, 0, 1 << 31, 0)
"""Counting the contents of a checkpoint database takes too long; nothing can be added."""

NODE_BITS: Final = 25
"""For the nodes of one head, in the life of the volume."""

FIRST: Final = 1 << (MAX_NODE.bit_length() - 1)
"""The lowest number that belongs to a head."""

MAX_HEADS: Final = (MAX_NODE - FIRST) >> NODE_BITS


class WritableHead:
    """One thread's head, the `index`th of its volume."""

    def __init__(self, tree: Tree, index: int, directory: LineDirectory, quiet_s: float) -> None:
        self._version = -1
        self.root = FIRST + (index << NODE_BITS)
        self.files = HeadFiles(tree, directory, quiet_s)
        self.tree = RemoteVolume(self.files, first_node=self.root)

    def fresh(self) -> WritableHead:
        """Expire the tree if the database is newer."""
        line = self.files.line()
        if line.version != self._version:
            self._version = line.version
            self.tree.expire()
            line.head.entries()  # not shown here, but its changes are reported to watchers
        return self

    def shown(self, attr: Attr) -> Attr:
        """Attributes with the blocks that files of this volume have."""
        if attr.node >= self.root + (1 << NODE_BITS):
            raise oserror(errno.EOVERFLOW)
        attr.blocks = 0 if attr.is_dir else blocks_of(attr.size)
        return attr


class ThreadsVolume(KnowsXattrs):
    """See the module's docstring. `close` closes the database.

    Calls that read more than a few rows of a local database are made in threads: the others say `will_wait`.

    Args:
        cache, blobs: see `Tree`.
        may_prune: threads and checkpoints can be removed.
        may_write: heads can be written to.
        quiet_s: after how many seconds without a sign of life a run counts as ended.
    """

    at_once = frozenset({"flush", "open", "release"})
    most_nodes = MOST_NODES

    def __init__(
        self,
        database: Database,
        *,
        cache: bool = True,
        blobs: bytes | None = None,
        may_prune: bool = False,
        may_write: bool = False,
        quiet_s: float = QUIET_S,
    ) -> None:
        self.features = Features(
            rename=False,
            links=False,
            symlinks=False,
            special_files=False,
            persistent_modes=False,
            random_writes=not may_write,
            change_feed=database.tells and not may_write,
            read_only=not may_write,
            prunable=may_prune,
            blocking=True,  # the first look at a long conversation reads all of its checkpoints
        )
        self.lock = waiting.Lock()
        self._database = database
        self._tree = Tree(database, cache=cache, blobs=blobs)
        if may_prune:
            self._tree.nodes.prunable = stat.S_IWUSR
            self._tree.root.mode |= stat.S_IWUSR
        self._quiet_s = quiet_s
        self._heads: list[WritableHead] = []
        self._head_of: dict[LineDirectory, WritableHead] = {}
        self._feed = Feed(self)
        used = self.lock, self._tree, self._feed
        self._locked, self._asked = _Entered(*used), _Entered(*used, polls=True)

    # -- heads -------------------------------------------------------------------------------------------------

    def _head(self, node: int) -> WritableHead | None:
        """The head that a node is in; None for a node of the tree."""
        if node < FIRST:
            return None
        index = (node - FIRST) >> NODE_BITS
        if index >= len(self._heads):
            raise oserror(errno.ESTALE)
        return self._heads[index]

    def _owner(self, node: int) -> RemoteVolume | Nodes:
        """What counts the kernel's references to a node."""
        head = self._head(node)
        return self._tree.nodes if head is None else head.tree

    def _writable(self, node: int) -> WritableHead:
        """The head that a node is in, which may be written to. EROFS, EBUSY, ENOTSUP."""
        head = self._head(node)
        if head is None:
            raise oserror(errno.EROFS)
        self._tree.poll(now=True)
        head.fresh().files.require_idle()
        return head

    def _write(self, verb: Callable[..., T], node: int, *arguments: Any) -> T:
        """Call a verb of the head that a node is in."""
        with self._asked:
            head = self._writable(node)
            found = verb(head.tree, node, *arguments)
            return cast("T", head.shown(found)) if isinstance(found, Attr) else found

    def _shown(self, node: Node) -> Attr:
        """A node of the tree with current attributes; in the place of a thread's own head the one to write to."""
        if self.features.read_only or not (isinstance(node, FilesDirectory) and node.is_head):
            return node.settle()
        thread = node.line.directory
        assert isinstance(thread, LineDirectory)
        if not thread.is_thread:
            return node  # the head of a sub-graph
        head = self._head_of.get(thread)
        if head is None:
            if len(self._heads) > MAX_HEADS:
                raise oserror(errno.EOVERFLOW)
            head = self._head_of[thread] = WritableHead(self._tree, len(self._heads), thread, self._quiet_s)
            self._heads.append(head)
        try:
            head.files.line().lineage.files_now()
        except Damaged:
            return node  # it has the error
        return head.shown(head.tree.getattr(head.root))

    # -- names -------------------------------------------------------------------------------------------------

    def lookup(self, parent: int, name: bytes) -> Attr:
        with self._asked:
            head = self._head(parent)
            if head is not None:
                return head.shown(head.fresh().tree.lookup(parent, name))
            node = self._tree.nodes.directory(parent).find(name)
            if node is None:
                raise oserror(errno.ENOENT, name)
            self._tree.nodes.looked_up(node)
            return self._shown(node)

    def readdir(self, node: int, after: bytes, limit: int) -> Sequence[tuple[bytes, Attr]]:
        return [(name, attr) for name, attr in self.readdir_without(node, after, limit, ()) if attr is not None]

    def readdir_without(
        self, node: int, after: bytes, limit: int, left_out: Container[bytes]
    ) -> list[tuple[bytes, Attr | None]]:
        """As `readdir`, with None in place of what has one of these names in the directory of a line."""
        with self._asked:
            head = self._head(node)
            if head is not None:
                return [(name, head.shown(attr)) for name, attr in head.fresh().tree.readdir(node, after, limit)]
            directory = self._tree.nodes.directory(node)
            without = left_out if isinstance(directory, LineDirectory) else ()
            page = directory.page(after, limit)
            return [(name, None if name in without else self._shown(found)) for name, found in page]

    def mknod(self, parent: int, name: bytes, mode: int, rdev: int, caller: Caller) -> Attr:
        return self._write(RemoteVolume.mknod, parent, name, mode, rdev, caller)

    def mkdir(self, parent: int, name: bytes, mode: int, caller: Caller) -> Attr:
        return self._write(RemoteVolume.mkdir, parent, name, mode, caller)

    def create(self, parent: int, name: bytes, mode: int, flags: int, caller: Caller) -> Attr:
        return self._write(RemoteVolume.create, parent, name, mode, flags, caller)

    def unlink(self, parent: int, name: bytes) -> None:
        self._write(RemoteVolume.unlink, parent, name)

    def rmdir(self, parent: int, name: bytes) -> None:
        """Outside of heads: delete a thread, or a checkpoint in its `history`. EROFS; EBUSY as `prune.remove`."""
        if self._head(parent) is not None:
            self._write(RemoteVolume.rmdir, parent, name)
            return
        with self._asked:
            node = self._tree.nodes.directory(parent).find(name)
            if node is None:
                raise oserror(errno.ENOENT, name)
            thread: Node = node
            checkpoint: str | None = None
            if isinstance(node, FilesDirectory) and node.checkpoint is not None:
                thread = node.line.directory
                checkpoint = node.checkpoint
            if not self.features.prunable or not isinstance(thread, LineDirectory) or not thread.is_thread:
                raise oserror(errno.EROFS, name)
        with contextlib.closing(self.tables()) as tables:
            remove(tables, thread.place.thread, checkpoint)
        self.pruned()

    def require_removable(self, path: str) -> None:
        """EROFS but below a head: a whole thread is refused at once, before a part of it is deleted."""
        if not is_below_head(names_of(path)):
            raise oserror(errno.EROFS)

    def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int = 0) -> None:
        with self._asked:
            head = self._writable(parent)
            if self._writable(new_parent) is not head:
                raise oserror(errno.EXDEV, new_name)
            head.tree.rename(parent, name, new_parent, new_name, flags)

    # -- attributes --------------------------------------------------------------------------------------------

    def getattr(self, node: int) -> Attr:
        with self._asked:
            head = self._head(node)
            return self._tree.nodes.get(node).settle() if head is None else head.shown(head.tree.getattr(node))

    def setattr(self, node: int, changes: AttrChanges) -> Attr:
        return self._write(RemoteVolume.setattr, node, changes)

    def xattrs(self, node: int) -> Mapping[bytes, bytes]:
        with self.lock:
            return {} if self._head(node) is not None else self._tree.nodes.get(node).xattrs()

    def readlink(self, node: int) -> bytes:
        with self.lock:
            found = self._tree.nodes.get(node)
            if not isinstance(found, Link):
                raise oserror(errno.EINVAL)
            return found.target

    # -- data --------------------------------------------------------------------------------------------------

    def open(self, node: int, flags: int) -> Attr | None:
        head = self._head(node)
        if flags & os.O_ACCMODE != os.O_RDONLY:
            self._write(RemoteVolume.open, node, flags)
            return None
        if head is not None:
            with self._asked:
                head.fresh().tree.open(node, flags)
                return None
        with self._locked if self._tree.nodes.file(node).never_changes else self._asked:
            file = self._tree.nodes.file(node)
            file.settle()
            opened = file.opened()
            self._tree.nodes.open(opened)
            return opened

    def read(self, node: int, offset: int, size: int) -> bytes:
        with self._locked:
            head = self._head(node)
            if head is not None:
                return head.tree.read(node, offset, size)
            return self._tree.nodes.file(node).data()[offset : offset + size]

    def write(self, node: int, offset: int, data: bytes) -> int:
        with self._locked:
            head = self._head(node)
            if head is None:
                raise oserror(errno.EROFS)
            return head.tree.write(node, offset, data)

    def flush(self, node: int) -> None:
        head = self._head(node)
        if head is not None:
            with self._asked:
                self._tree.poll(now=True)
                head.fresh().tree.flush(node)

    def fsync(self, node: int, datasync: bool = False) -> None:
        self.flush(node)

    def release(self, node: int, flags: int) -> None:
        with self._locked:
            head = self._head(node)
            if head is None:
                self._tree.nodes.release(node)
            else:
                head.tree.release(node, flags)

    # -- many at once ------------------------------------------------------------------------------------------

    def store(self, thread: bytes, files: Sequence[tuple[AgentPath, bytes]]) -> list[str | None]:
        """Store files, by their paths below the head of a thread, as one pending write. An error for each, or None.

        Raises:
            OSError: ENOENT where there is no such thread, EBUSY, ENOTSUP.
        """
        with self.changing() as changes, self._asked:
            root = self.lookup(self.lookup(ROOT_NODE, thread).node, HEAD)
            head = self._writable(root.node)
            replaced = {path for path, _ in files if head.files.has(path[1:])}
            found = head.files.store(files)
            changes += head.tree.told(*(path for path, _ in files))
            above = paths.join(paths.join(ROOT, paths.to_text(thread)), paths.to_text(HEAD))
            for (path, _), error in zip(files, found, strict=True):
                if error is None:
                    changes.append(Change(kind="modified" if path in replaced else "created", path=above + path))
            return [None if error is None else errors.code_of(error) for error in found]

    # -- life --------------------------------------------------------------------------------------------------

    def hold(self, node: int) -> None:
        self._owner(node).hold(node)

    def forget(self, nodes: Iterable[int]) -> None:
        gone: dict[RemoteVolume | Nodes, list[int]] = {}
        for node in nodes:
            gone.setdefault(self._owner(node), []).append(node)
        for owner, forgotten in gone.items():
            owner.forget(forgotten)

    def statfs(self) -> StatFs:
        return STATFS if self.features.read_only else STATFS_OF_HEADS

    def sync(self) -> None:
        """Flush all heads. The first error is raised at the end."""
        first: OSError | None = None
        for head in self._heads:
            try:
                with self._locked:
                    head.tree.sync()
            except OSError as error:
                first = first or error
        if first is not None:
            raise first

    def subscribe(self, callback: Callable[[Change], None]) -> Callable[[], None]:
        unsubscribe = super().subscribe(callback)
        self._feed.start()
        return unsubscribe

    def observe(self, callback: Observer) -> Callable[[], None]:
        unobserve = super().observe(callback)
        self._feed.start()
        return unobserve

    @property
    def trouble(self) -> tuple[float, str] | None:
        return self._database.trouble

    def follow(self) -> None:
        """Refresh the tree from the database, and notify caches and watchers."""
        with self.lock:
            changes = self._tree.refresh()
        if changes:
            self.publish(*changes)

    def tidy(self) -> None:
        """Give memory back after the kernel has dropped most of its inodes, or a large conversation was read."""
        if self._tree.nodes.forgotten > MANY_FORGOTTEN:
            self._tree.nodes.forgotten = 0
            gc.collect()
        rests = time.monotonic() - self._tree.used_at > LARGE_S
        if not self._tree.nodes.is_mostly_forgotten and not (rests and self._tree.has_large_values):
            return
        with self.lock:
            self._tree.let_go()
        gc.collect()  # lines and what is in them refer to each other
        with self.lock:
            self._tree.shrink()
        heap.give_back()

    def pruned(self) -> None:
        """Look at everything anew. The feed publishes it: the kernel has locked the directory of an rmdir, and a notify
        waits for that."""
        with self.lock:
            self._tree.expire()
        self._feed.hurry()

    def tables(self) -> SaverTables:
        """The database, opened once more. The caller closes it. ENOTSUP for a saver that is called itself."""
        if not isinstance(self._database, SaverTables):
            raise OSError(errno.ENOTSUP, "these threads have no tables: they are those of a saver object")
        return self._database.again()

    def threads_named(self, names: Sequence[bytes] = ()) -> dict[str, bytes]:
        """The ids of threads by their names, of all where none is given, with the names. ENOENT."""
        with self._asked:
            root = self._tree.root
            nodes = {name: root.find(name) for name in names} if names else root.entries()
            if missing := [name for name, node in nodes.items() if not isinstance(node, LineDirectory)]:
                raise oserror(errno.ENOENT, missing[0])
            return {node.place.thread: name for name, node in nodes.items() if isinstance(node, LineDirectory)}

    @property
    def has_listeners(self) -> bool:
        return bool(self._subscribers or self._observers)

    def close(self) -> None:
        try:
            self.sync()
        finally:
            self._feed.stop()
            with self.lock:
                self._database.close()


def is_below_head(names: Sequence[bytes]) -> bool:
    return len(names) > 2 and names[1] == HEAD


class _Entered:
    """With the volume's lock held, for a request: values are kept a while longer for it. One object for all requests of
    a kind.

    Args:
        tree, feed: of the volume. The feed publishes soon what a request has found to be changed.
        polls: the database is queried for news first.
    """

    __slots__ = ("_feed", "_lock", "_polls", "_tree")

    def __init__(self, lock: waiting.Lock, tree: Tree, feed: Feed, *, polls: bool = False) -> None:
        self._lock, self._tree, self._feed, self._polls = lock, tree, feed, polls

    def __enter__(self) -> None:
        self._lock.__enter__()
        self._tree.used_at = time.monotonic()
        if self._polls:
            try:
                self._tree.poll()
            except BaseException as error:
                self.__exit__(type(error), error, error.__traceback__)
                raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._tree.found:
            self._feed.hurry()
        self._lock.__exit__()


class Feed:
    """The thread that follows the database."""

    def __init__(self, volume: ThreadsVolume) -> None:
        self._volume = volume
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._gate = threading.Lock()
        self._ended = False

    def start(self) -> None:
        with self._gate:
            if self._thread is None and not self._ended:
                self._thread = threading.Thread(target=self._run, name="fusebackend-threads", daemon=True)
                self._thread.start()

    def hurry(self) -> None:
        self._wake.set()

    def stop(self) -> None:
        with self._gate:
            self._ended = True
            thread = self._thread
        self._wake.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        failed = False
        while not self._ended:
            try:
                if self._volume.has_listeners:
                    self._volume.follow()
                self._volume.tidy()
                failed = False
            except OSError as error:
                if not failed:
                    log.warning("the checkpoint database can't be followed: %s", error.strerror)
                failed = True
            self._wake.wait(FEED_INTERVAL_S)
            self._wake.clear()
