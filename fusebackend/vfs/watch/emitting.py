"""`ReportingVolume`: a route's volume while a `Watch` is open, for the calls that change something.

Each call is made, and its change reported, in one step under the volume's lock, so that events come in the order of the
changes. Without a watcher, the mount calls the volume itself.

Whole-file volumes give two events: when the mount shows new bytes, and when they are stored, for only then the other
face sees them.
"""

from __future__ import annotations

from collections.abc import Callable

from fusebackend.base import paths
from fusebackend.protocol import RENAME_EXCHANGE, Attr, AttrChanges, Caller, Change, EventKind
from fusebackend.vfs.junctions import Route
from fusebackend.vfs.watch.node_paths import NodePaths


class ReportingVolume:
    """See the module's docstring. Each method is as in `Volume`.

    `tell` is called with the lock held, with the change and the inode whose lock the kernel holds until the request is
    over: of the directory for a change of names, of the file for others. `unstored` holds the nodes with bytes that are
    not stored yet, for all routes of the volume.
    """

    def __init__(
        self, route: Route, names: NodePaths, tell: Callable[[Change, int], None], unstored: set[int]
    ) -> None:
        self._route = route
        self._volume = route.volume
        self._names = names
        self._tell = tell
        self._unstored = unstored

    # -- names -------------------------------------------------------------------------------------------------

    def mknod(self, parent: int, name: bytes, mode: int, rdev: int, caller: Caller) -> Attr:
        return self._make(self._volume.mknod, parent, name, mode, rdev, caller)

    def mkdir(self, parent: int, name: bytes, mode: int, caller: Caller) -> Attr:
        return self._make(self._volume.mkdir, parent, name, mode, caller)

    def symlink(self, parent: int, name: bytes, target: bytes, caller: Caller) -> Attr:
        return self._make(self._volume.symlink, parent, name, target, caller)

    def create(self, parent: int, name: bytes, mode: int, flags: int, caller: Caller) -> Attr:
        with self._volume.lock:
            attr = self._make(self._volume.create, parent, name, mode, flags, caller)
            self._written(attr.node)
            return attr

    def _make(self, function: Callable[..., Attr], parent: int, name: bytes, *args: object) -> Attr:
        with self._volume.lock:
            attr = function(parent, name, *args)
            self._named("created", parent, name, attr.is_dir)
            return attr

    def link(self, node: int, new_parent: int, new_name: bytes) -> Attr:
        with self._volume.lock:
            attr = self._volume.link(node, new_parent, new_name)
            self._named("created", new_parent, new_name, False)
            return attr

    def unlink(self, parent: int, name: bytes) -> None:
        with self._volume.lock:
            self._volume.unlink(parent, name)
            self._named("deleted", parent, name, False)

    def rmdir(self, parent: int, name: bytes) -> None:
        with self._volume.lock:
            self._volume.rmdir(parent, name)
            self._named("deleted", parent, name, True)

    def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int = 0) -> None:
        with self._volume.lock:
            moved, replaced = self._volume.lookup(parent, name), self._look(new_parent, new_name)
            old = self._path(parent, name, moved.is_dir)
            self._volume.rename(parent, name, new_parent, new_name, flags)
            if replaced is not None and replaced.node == moved.node:
                return  # two names of one file: POSIX leaves both
            new = self._path(new_parent, new_name, moved.is_dir)
            if old is None or new is None:
                change = Change(path="/")
            elif flags & RENAME_EXCHANGE and replaced is not None:
                before = old.rstrip("/") + ("/" if replaced.is_dir else "")
                change = Change(kind="exchanged", path=new, moved_from=before)
            else:
                change = Change(kind="moved", path=new, moved_from=old)
            self._tell(change, self._names.inode(self._route, new_parent))

    def _look(self, parent: int, name: bytes) -> Attr | None:
        try:
            return self._volume.lookup(parent, name)
        except FileNotFoundError:
            return None

    # -- attributes and data -----------------------------------------------------------------------------------

    def setattr(self, node: int, changes: AttrChanges) -> Attr:
        with self._volume.lock:
            attr = self._volume.setattr(node, changes)
            self._changed("attributes" if changes.size is None else "modified", node, attr.is_dir)
            if changes.size is not None:
                self._written(node)
            return attr

    def setxattr(self, node: int, name: bytes, value: bytes) -> None:
        with self._volume.lock:
            self._volume.setxattr(node, name, value)
            self._changed("attributes", node, self._volume.getattr(node).is_dir)

    def removexattr(self, node: int, name: bytes) -> None:
        with self._volume.lock:
            self._volume.removexattr(node, name)
            self._changed("attributes", node, self._volume.getattr(node).is_dir)

    def write(self, node: int, offset: int, data: bytes) -> int:
        return self._write(self._volume.write, node, offset, data)

    def append(self, node: int, data: bytes) -> int:
        return self._write(self._volume.append, node, data)

    def _write(self, function: Callable[..., int], node: int, *args: object) -> int:
        with self._volume.lock:
            written = function(node, *args)
            if written:
                self._changed("modified", node, False)
                self._written(node)
            return written

    def _written(self, node: int) -> None:
        if not self._volume.features.random_writes:
            self._unstored.add(node)

    def flush(self, node: int) -> None:
        with self._volume.lock:
            self._volume.flush(node)
            self._stored(node)

    def fsync(self, node: int, datasync: bool = False) -> None:
        self._volume.fsync(node, datasync)  # takes the lock itself, and may wait for a disk without it
        with self._volume.lock:
            self._stored(node)

    def _stored(self, node: int) -> None:
        if node in self._unstored:
            self._unstored.discard(node)
            self._changed("modified", node, False)

    # -- reports -----------------------------------------------------------------------------------------------

    def _path(self, parent: int, name: bytes, is_dir: bool) -> str | None:
        above = self._names.directory(self._route, parent)
        return None if above is None else paths.join(above, paths.to_text(name)) + ("/" if is_dir else "")

    def _named(self, kind: EventKind, parent: int, name: bytes, is_dir: bool) -> None:
        path = self._path(parent, name, is_dir)
        change = Change(path="/") if path is None else Change(kind=kind, path=path)
        self._tell(change, self._names.inode(self._route, parent))

    def _changed(self, kind: EventKind, node: int, is_dir: bool) -> None:
        path = self._names.of(self._route, node)
        inode = self._names.inode(self._route, node)
        if path is not None:
            self._tell(Change(kind=kind, path=path + "/" if is_dir and path != "/" else path), inode)
        elif not is_dir and self._volume.getattr(node).nlink > 0:
            self._tell(Change(path="/"), inode)  # it has a name that is not known
