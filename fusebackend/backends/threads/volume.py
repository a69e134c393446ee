"""`ThreadsVolume`: the kernel face of a checkpoint database, read-only.

A thread of its own asks the database for news while somebody keeps caches or watches, and tells them what has changed.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from fusebackend.backends.threads.database.rows import Damaged, Database
from fusebackend.backends.threads.tree import Tree
from fusebackend.base import heap
from fusebackend.base.errors import oserror
from fusebackend.protocol import Attr, Change, Features, Observer, StatFs
from fusebackend.volumes.native import NativeVolume

log = logging.getLogger(__name__)

FEED_INTERVAL_S: Final = 0.25
"""How often the database is asked for news while somebody wants to know."""

STATFS: Final = StatFs(4096, 1 << 30, 0, 1 << 31, 0)
"""What is in a checkpoint database can't be counted cheaply; nothing can be added."""


class ThreadsVolume(NativeVolume):
    """See the module's docstring. The volume owns the database from now on: `close` closes it."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self.features = Features(
            rename=False,
            links=False,
            symlinks=False,
            special_files=False,
            persistent_modes=False,
            change_feed=database.tells,
            read_only=True,
            blocking=database.blocking,
        )
        self._database = database
        self._tree = Tree(database)
        self._feed = Feed(self)

    # -- names -------------------------------------------------------------------------------------------------

    def lookup(self, parent: int, name: bytes) -> Attr:
        with self._asked():
            node = self._tree.nodes.directory(parent).find(name)
            if node is None:
                raise oserror(errno.ENOENT, name)
            return node.settle()

    def readdir(self, node: int, after: bytes, limit: int) -> Sequence[tuple[bytes, Attr]]:
        with self._asked():
            page = self._tree.nodes.directory(node).page(after, limit)
            return [(name, found.settle()) for name, found in page]

    # -- attributes --------------------------------------------------------------------------------------------

    def getattr(self, node: int) -> Attr:
        with self._asked():
            return self._tree.nodes.get(node).settle()

    def getxattr(self, node: int, name: bytes) -> bytes:
        with self.lock:
            try:
                return self._tree.nodes.get(node).xattrs()[name]
            except KeyError:
                raise oserror(errno.ENODATA, name) from None

    def listxattr(self, node: int) -> Sequence[bytes]:
        with self.lock:
            return sorted(self._tree.nodes.get(node).xattrs())

    # -- data --------------------------------------------------------------------------------------------------

    def open(self, node: int, flags: int) -> None:
        with self._asked():
            file = self._tree.nodes.file(node)
            file.settle()
            file.data()  # what is damaged is EIO now, and not when it is read
            self._tree.nodes.open(file)

    def read(self, node: int, offset: int, size: int) -> bytes:
        with self._locked():
            return self._tree.nodes.file(node).data()[offset : offset + size]

    def release(self, node: int, flags: int) -> None:
        with self.lock:
            self._tree.nodes.release(node)

    # -- life --------------------------------------------------------------------------------------------------

    def hold(self, node: int) -> None:
        self._tree.nodes.hold(node)

    def forget(self, nodes: Iterable[int]) -> None:
        self._tree.nodes.forget(nodes)

    def statfs(self) -> StatFs:
        return STATFS

    def subscribe(self, callback: Callable[[Change], None]) -> Callable[[], None]:
        unsubscribe = super().subscribe(callback)
        self._feed.start()
        return unsubscribe

    def observe(self, callback: Observer) -> Callable[[], None]:
        unobserve = super().observe(callback)
        self._feed.start()
        return unobserve

    def follow(self) -> None:
        """Find out what has been written to the database, and tell whoever keeps caches or watches."""
        with self._locked():
            self._tree.refresh()
            found = self._tree.take()
        if found:
            self.publish(*found.changes)

    def tidy(self) -> None:
        """Give memory back after the kernel has forgotten most of what it knew."""
        if not self._tree.nodes.is_mostly_forgotten:
            return
        with self.lock:
            self._tree.let_go()
        gc.collect()  # lines and what is in them refer to each other
        with self.lock:
            self._tree.shrink()
        heap.give_back()

    @property
    def has_listeners(self) -> bool:
        return bool(self._subscribers or self._observers)

    def close(self) -> None:
        self._feed.stop()
        with self.lock:
            self._database.close()

    # -- inside ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _asked(self) -> Iterator[None]:
        """With the lock, after asking for news. What is found is told soon, by the feed."""
        with self._locked():
            self._tree.poll()
            yield
            if self._tree.found:
                self._feed.hurry()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with self.lock:
            try:
                yield
            except Damaged as error:
                raise OSError(errno.EIO, str(error)) from None


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
