"""`DirectoryVolume`: the kernel face of a directory on disk, and of nothing outside it.

Every step down the tree is one `openat` with O_NOFOLLOW from the directory above, so neither symbolic links nor a
directory that is swapped for one lead out; links are read and never followed. If the file of a node has moved, calls
fail with ESTALE, and the kernel looks its name up again. FIFOs, sockets and devices are never opened.

A file has the name that its directory lists. Another spelling by which the file system finds it as well (vfat, CIFS:
case, Unicode forms, dots at the end, `LONGNA~1`) is ENOENT here, and nothing is made by one. So rules, the log and the
kernel's dentries know each file by one name. What a file system finds is compared with a listing, once in a TTL for
names that are there; not where it is known to find a file by its name alone (`dirfd.EXACT`).

The calls don't wait for a network, so the mount makes them inline. Others may change the directory unseen: there is no
change feed, and the kernel's caches of it expire.
"""

from __future__ import annotations

import bisect
import contextlib
import errno
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import NamedTuple

from fusebackend.backends.directory import dirfd
from fusebackend.backends.directory.dirfd import FILE_FLAGS, PATH_FLAGS, Descriptor, OpenFile, born_ns
from fusebackend.backends.directory.nodes import Node, NodeTable, attr_of, check_name, group_of_new
from fusebackend.base import acl
from fusebackend.base.at_path import AtPath
from fusebackend.base.errors import ABSENT, LACKING, NOT_TAKEN, UNREAD, oserror, unless
from fusebackend.base.paths import to_text
from fusebackend.base.recent import Recent
from fusebackend.linux.holes import next_data
from fusebackend.protocol import (
    DEFAULT_TTL_S,
    RENAME_EXCHANGE,
    Attr,
    AttrChanges,
    Caller,
    Features,
    NewFile,
    State,
    StatFs,
    Volume,
    version_of_attr,
)
from fusebackend.protocol.versions import COARSE_NS
from fusebackend.volumes.walk import resolve

PAGE_ENTRIES = 1000
"""The most entries of one answer of `readdir`: far fewer than the idle nodes that are kept."""

LISTINGS = 32
"""Directories with a cached list of sorted names: while they are read page by page, or names are compared with it."""


_ELSEWHERE = (
    "its directory {} was moved or deleted, and the mount goes on with the old directory; bring it back, or mount again"
)
_PLAIN = re.compile(rb"\.?[\w-]+(?:\.[\w-]+)*")
"""A name whose other spellings differ in case alone: ASCII, no `~`, no dot or space at its end."""

_EXACTLY = contextlib.nullcontext()
"""A generator in its place takes a tenth of the time of a `create`."""

_NO_TMPFILE = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT})
"""Of O_TMPFILE: the file system has none, or the kernel does not know it."""


class _Listing(NamedTuple):
    """The names of a directory, in order."""

    names: list[bytes]
    read_s: float
    """When, by the monotonic clock."""

    def has(self, name: bytes) -> bool:
        index = bisect.bisect_left(self.names, name)
        return index < len(self.names) and self.names[index] == name

    def note(self, name: bytes, is_there: bool) -> None:
        """Keep up with a change of a name."""
        index = bisect.bisect_left(self.names, name)
        self.names[index : index + self.has(name)] = [name] if is_there else []


class DirectoryVolume(Volume):
    """See the module's docstring.

    Args:
        root: a directory that exists. It stays the root when it is renamed, and when another one takes its path:
            what is confined to a directory can't be led elsewhere. Once it is removed, everything in it is EIO.

    Raises:
        FileNotFoundError, NotADirectoryError, PermissionError: there is no such directory, or it can't be entered.
    """

    features = Features(acls=True, change_feed=False)

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._nodes = NodeTable(dirfd.open_root(os.fspath(root)))
        status = os.fstat(self._nodes.root_descriptor.fd)
        self._at = AtPath(os.path.abspath(root), (status.st_dev, status.st_ino), _ELSEWHERE)
        self._listings: Recent[int, _Listing] = Recent(LISTINGS)
        self._may_chown = os.geteuid() == 0
        try:
            os.listxattr(self._nodes.root_descriptor.path)
        except OSError as error:
            if error.errno in LACKING:
                self.features = replace(self.features, xattrs=False, acls=False)

    @property
    def trouble(self) -> tuple[float, str] | None:
        """Set when another directory is at the path of the root, or none."""
        return self._at.trouble

    # -- names -------------------------------------------------------------------------------------------------

    def lookup(self, parent: int, name: bytes) -> Attr:
        with self.lock:
            return self._lookup(*self._nodes.directory_of_name(parent), name)

    def way_to(self, directory: int) -> bytes | None:
        with self.lock, contextlib.suppress(OSError):
            _, at = self._nodes.directory_of_name(directory)
            if at.is_exact:
                return dirfd.names_between(self._nodes.root_descriptor, at)
        return None

    def _lookup(self, directory: Node, at: Descriptor, name: bytes, *, is_listed: bool = False) -> Attr:
        status = self._status(directory, at, name, is_listed)
        return attr_of(self._nodes.seen(directory, name, status), status)

    def _status(self, directory: Node, at: Descriptor, name: bytes, is_listed: bool = False) -> os.stat_result:
        """`stat` of a name of a directory. ENOENT, also for another spelling of one; EIO if the root was removed."""
        check_name(name)
        try:
            status = os.stat(name, dir_fd=at.fd, follow_symlinks=False)
        except FileNotFoundError:
            self._nodes.require_there(directory)
            raise
        if not (is_listed or at.is_exact or self._is_listed(directory, at, name)):
            raise oserror(errno.ENOENT, name)
        return status

    def _is_listed(self, directory: Node, at: Descriptor, name: bytes) -> bool:
        known = self._listings.use(directory.number)
        ttl_s = DEFAULT_TTL_S if self.ttl_s is None else self.ttl_s
        if known is not None and time.monotonic() - known.read_s < ttl_s and known.has(name):
            return True
        try:
            return self._listing(directory, at, b"").has(name)
        except PermissionError:
            if self._is_plain(at, name):
                return True
            raise

    def _is_plain(self, at: Descriptor, name: bytes) -> bool:
        """Return True for a name of which no other spelling is found, as far as one more `stat` can tell."""
        return _PLAIN.fullmatch(name) is not None and name != (other := name.swapcase()) and not _exists(at, other)

    def _naming(
        self, directory: Node, at: Descriptor, name: bytes, take_back: Callable[..., object] = os.unlink
    ) -> AbstractContextManager[None]:
        """Enclose what makes a name. EINVAL for another spelling of a name that is there, and where the file system
        stores another name (`x` for `x.` on vfat): `take_back` then undoes it, given the name and `dir_fd`."""
        return _EXACTLY if at.is_exact else self._naming_anew(directory, at, name, take_back)

    @contextlib.contextmanager
    def _naming_anew(
        self, directory: Node, at: Descriptor, name: bytes, take_back: Callable[..., object]
    ) -> Iterator[None]:
        refusal = OSError(errno.EINVAL, f"The file system below takes '{to_text(name)}' for another name")
        if _exists(at, name) and not self._is_listed(directory, at, name):
            raise refusal
        try:
            yield
        except OSError as error:
            if error.errno in LACKING:
                raise oserror(errno.EPERM, name) from None  # a link or special file
            raise
        is_own = False
        try:
            is_own = self._is_plain(at, name) or self._listing(directory, at, b"").has(name)
        finally:
            if not is_own:
                take_back(name, dir_fd=at.fd)
        if not is_own:
            raise refusal

    def _note(self, directory: Node, at: Descriptor, name: bytes, is_there: bool) -> None:
        """Note a change of a name, for the names that are compared with a listing."""
        if not at.is_exact and (known := self._listings.get(directory.number)) is not None:
            known.note(name, is_there)

    def readdir(self, node: int, after: bytes, limit: int) -> Sequence[tuple[bytes, Attr]]:
        with self.lock:
            directory, at = self._nodes.directory(node)
            names = self._listing(directory, at, after).names
            page: list[tuple[bytes, Attr]] = []
            limit = min(limit, PAGE_ENTRIES)
            for index in range(bisect.bisect_right(names, after), len(names)):
                if len(page) >= limit:
                    break
                try:
                    page.append((names[index], self._lookup(directory, at, names[index], is_listed=True)))
                except FileNotFoundError:
                    continue  # it went away since the names were read
            if not page and at.is_exact:
                self._listings.pop(node, None)
            return page

    def _listing(self, directory: Node, at: Descriptor, after: bytes) -> _Listing:
        """The names of a directory: as they are when a listing starts, and as they were then for its rest."""
        listing = self._listings.use(directory.number) if after else None
        if listing is None:
            opened, read_s = dirfd.open_names(at), time.monotonic()
            listing = _Listing(sorted(map(os.fsencode, os.listdir(opened.fd))), read_s)
            self._listings[directory.number] = listing
        return listing

    def mknod(self, parent: int, name: bytes, mode: int, rdev: int, caller: Caller) -> Attr:
        kind = stat.S_IFMT(mode) or stat.S_IFREG
        with self.lock:
            if kind == stat.S_IFREG:
                attr = self.create(parent, name, mode, os.O_RDONLY, caller)
                self.release(attr.node, os.O_RDONLY)
                return attr
            return self._make(
                parent, name, lambda fd: os.mknod(name, kind | 0o600, rdev, dir_fd=fd), os.unlink, mode, caller
            )

    def mkdir(self, parent: int, name: bytes, mode: int, caller: Caller) -> Attr:
        with self.lock:
            return self._make(parent, name, lambda fd: os.mkdir(name, 0o700, dir_fd=fd), os.rmdir, mode, caller)

    def symlink(self, parent: int, name: bytes, target: bytes, caller: Caller) -> Attr:
        with self.lock:
            return self._make(parent, name, lambda fd: os.symlink(target, name, dir_fd=fd), os.unlink, None, caller)

    def _make(
        self,
        parent: int,
        name: bytes,
        make: Callable[[int], None],
        unmake: Callable[..., None],
        mode: int | None,
        caller: Caller,
    ) -> Attr:
        """Make something in a directory that `make` is given; give it its owner, its mode (a link has none) and a node.
        An error undoes it."""
        check_name(name)
        directory, at = self._nodes.directory(parent)
        with self._naming(directory, at, name, unmake):
            make(at.fd)
        new = Descriptor(os.open(name, PATH_FLAGS, dir_fd=at.fd))
        status = os.fstat(new.fd)
        if not stat.S_ISDIR(status.st_mode) and status.st_nlink != 1:
            raise oserror(errno.ESTALE)  # not what was made: a link to another file was put in its place
        status = self._give(at, name, new, unmake, mode, caller)
        return attr_of(self._made(directory, at, name, status), status)

    def _give(
        self,
        at: Descriptor,
        name: bytes,
        new: Descriptor,
        unmake: Callable[..., None],
        mode: int | None,
        caller: Caller,
    ) -> os.stat_result:
        """Give something new in a directory its owner and its mode (a link has none), and return its `fstat`. An error
        undoes it."""
        try:
            above = os.fstat(at.fd)
            if self._may_chown:
                os.chown(new.path, caller.uid, group_of_new(above, caller))
            if mode is not None:
                inherited = above.st_mode & stat.S_ISGID if stat.S_ISDIR(os.fstat(new.fd).st_mode) else 0
                os.chmod(new.path, self._mode_of_new(at, mode | inherited, caller))
            return os.fstat(new.fd)
        except OSError:
            with contextlib.suppress(OSError):  # the first error is the one to tell
                unmake(name, dir_fd=at.fd)
            raise

    def _mode_of_new(self, at: Descriptor, mode: int, caller: Caller) -> int:
        """The mode of something new in a directory: a default ACL takes the place of the umask (acl(5)).

        The new file has that ACL from the lower file system, which made it with the owner's permissions alone.
        """
        mode = stat.S_IMODE(mode)
        default = unless(UNREAD, os.getxattr, at.path, os.fsdecode(acl.DEFAULT))
        if default is None:
            return mode & ~caller.umask
        return mode & ~0o777 | acl.inherited(default, mode & 0o777)[1]

    def _made(self, directory: Node, at: Descriptor, name: bytes, status: os.stat_result, *, new: bool = True) -> Node:
        self._note(directory, at, name, True)
        node = self._nodes.seen(directory, name, status, new=new)
        node.name_unsynced = True
        return node

    def link(self, node: int, new_parent: int, new_name: bytes) -> Attr:
        with self.lock:
            check_name(new_name)
            source = self._nodes.get(node)
            if source.kind == stat.S_IFDIR:
                raise oserror(errno.EPERM)
            found = self._nodes.of(source)
            directory, at = self._nodes.directory(new_parent)
            with self._naming(directory, at, new_name):
                os.link(found.path, new_name, dst_dir_fd=at.fd, follow_symlinks=True)
            status = os.fstat(found.fd)
            return attr_of(self._made(directory, at, new_name, status, new=False), status)

    def unlink(self, parent: int, name: bytes) -> None:
        self._remove(parent, name, os.unlink)

    def rmdir(self, parent: int, name: bytes) -> None:
        self._remove(parent, name, os.rmdir)

    def require_removable(self, path: str) -> None:
        with self.lock:
            place = resolve(self, path, follow=False)
            _, at = self._nodes.directory(place.parent)
        dirfd.require_removable(at, place.name)

    def _remove(self, parent: int, name: bytes, remove: Callable[..., None]) -> None:
        with self.lock:
            directory, at = self._nodes.directory_of_name(parent)
            node, pin = self._pinned(directory, at, name)
            remove(name, dir_fd=at.fd)
            self._note(directory, at, name, False)
            self._unname(node, pin, directory, name)

    def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int = 0) -> None:
        with self.lock:
            source, source_at = self._nodes.directory_of_name(parent)
            target, target_at = self._nodes.directory_of_name(new_parent)
            moved, _ = self._pinned(source, source_at, name)
            try:
                replaced, pin = self._pinned(target, target_at, new_name)
            except FileNotFoundError:
                replaced, pin = None, None

            def take_back(new_name: bytes, *, dir_fd: int) -> None:
                dirfd.rename(target_at, new_name, source_at, name, 0)

            with self._naming(target, target_at, new_name, take_back):
                dirfd.rename(source_at, name, target_at, new_name, flags)
            if moved is not None and moved is replaced:
                return  # two names of one file: POSIX leaves both
            if flags == RENAME_EXCHANGE and replaced is not None:
                self._nodes.place(replaced, source, name)
                replaced.name_unsynced = True
            else:
                self._note(source, source_at, name, flags == RENAME_EXCHANGE)
                self._note(target, target_at, new_name, True)
                self._unname(replaced, pin, target, new_name)
            if moved is not None:
                self._nodes.place(moved, target, new_name)
                moved.name_unsynced = True

    def _pinned(self, directory: Node, at: Descriptor, name: bytes) -> tuple[Node | None, Descriptor | None]:
        """The node of a name that may be about to go, if it is known; and a descriptor of it if it has to outlive the
        name. ENOENT."""
        node = self._nodes.find(self._status(directory, at, name))
        if node is None or not (node.held or node.opened is not None):
            return node, None
        if node.parent is not directory or node.name != name:
            return node, None  # it is known by another name
        return node, self._nodes.of(node)

    def _unname(self, node: Node | None, pin: Descriptor | None, directory: Node, name: bytes) -> None:
        if node is not None and node.parent is directory and node.name == name:
            node.pin = pin
            self._nodes.place(node, None)

    # -- attributes --------------------------------------------------------------------------------------------

    def getattr(self, node: int) -> Attr:
        with self.lock:
            found = self._nodes.get(node)
            return attr_of(found, self._nodes.status(found))

    def version_of(self, attr: Attr) -> str | None:
        """By the system's inode number."""
        with self.lock:
            return version_of_attr(attr, self._nodes.get(attr.node).inode, coarse_by_ns=COARSE_NS)

    def lasting(self, node: int) -> bytes | None:
        """The inode number with the birth time: the system uses a number again."""
        with self.lock:
            found = self._nodes.get(node)
            made_ns = None if found.parent is None else born_ns(self._nodes.of(found.parent), found.name)
            return None if made_ns is None else b"%d:%d" % (found.inode, made_ns)

    def clone_to(self, node: int, descriptor: int) -> bool:
        with self.lock:
            source = self._nodes.open(self._nodes.get(node), os.O_RDONLY)
        return dirfd.clone(source, descriptor)

    def setattr(self, node: int, changes: AttrChanges) -> Attr:
        with self.lock:
            found = self._nodes.get(node)
            at = self._nodes.of(found)
            if changes.size is not None:
                writing = self._writing(found)
                os.ftruncate(writing.fd, changes.size)
            # A change of owner clears set-user-ID, so the mode comes after it; all of them change ctime alone.
            if changes.uid is not None or changes.gid is not None:
                uid = -1 if changes.uid is None else changes.uid
                os.chown(at.path, uid, -1 if changes.gid is None else changes.gid)
            if changes.mode is not None:
                os.chmod(at.path, stat.S_IMODE(changes.mode))
            if changes.atime_ns is not None or changes.mtime_ns is not None:
                before = os.fstat(at.fd)
                atime_ns = before.st_atime_ns if changes.atime_ns is None else changes.atime_ns
                mtime_ns = before.st_mtime_ns if changes.mtime_ns is None else changes.mtime_ns
                os.utime(at.path, ns=(atime_ns, mtime_ns))
            return attr_of(found, os.fstat(at.fd))

    def _writing(self, node: Node) -> Descriptor:
        opened = None if node.opened is None else node.opened.writing
        return opened or self._nodes.open(node, os.O_WRONLY)

    def readlink(self, node: int) -> bytes:
        with self.lock:
            found = self._nodes.get(node)
            if found.kind != stat.S_IFLNK:
                raise oserror(errno.EINVAL)
            at = self._nodes.of(found)
            return os.readlink(b"", dir_fd=at.fd)

    def getxattr(self, node: int, name: bytes) -> bytes:
        with self.lock:
            at = self._nodes.of(self._nodes.get(node))
            try:
                return os.getxattr(at.path, name)
            except OSError as error:
                if name in acl.NAMES and error.errno in ABSENT:
                    raise oserror(errno.ENODATA, name) from None  # ENOTSUP fails the kernel's check of permissions
                raise

    def setxattr(self, node: int, name: bytes, value: bytes) -> None:
        with self.lock:
            at = self._nodes.of(self._nodes.get(node))
            os.setxattr(at.path, name, value)

    def listxattr(self, node: int) -> Sequence[bytes]:
        with self.lock:
            at = self._nodes.of(self._nodes.get(node))
            return _listxattr(at.path)

    def removexattr(self, node: int, name: bytes) -> None:
        with self.lock:
            at = self._nodes.of(self._nodes.get(node))
            os.removexattr(at.path, name)

    # -- data --------------------------------------------------------------------------------------------------

    def create(self, parent: int, name: bytes, mode: int, flags: int, caller: Caller) -> Attr:
        with self.lock:
            check_name(name)
            directory, at = self._nodes.directory(parent)
            how = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | FILE_FLAGS
            with self._naming(directory, at, name):
                new = Descriptor(os.open(name, how, 0o600, dir_fd=at.fd))
            status = self._give(at, name, new, os.unlink, mode, caller)
            node = self._made(directory, at, name, status)
            node.opened = OpenFile()
            node.opened.acquire(flags, lambda access: new)  # which is for reading and writing
            self._nodes.settle(node)
            return attr_of(node, status)

    def place(self, file: NewFile) -> Attr | None:
        """The file gets its name when it is complete. None where the file system has no files without a name
        (O_TMPFILE, open(2)), and where this process may not give the file all of its attributes."""
        check_name(file.name)
        parts = list(file.pieces)
        with self.lock:
            directory, at = self._nodes.directory(file.parent)
            try:
                new = Descriptor(os.open(b".", os.O_WRONLY | os.O_TMPFILE | FILE_FLAGS, 0o600, dir_fd=at.fd))
            except OSError as error:
                if error.errno not in _NO_TMPFILE:
                    raise
                return None
            size = 0
            for offset, piece in parts:
                size = offset + dirfd.write_all(new, piece, offset)
            if size != file.state.size:
                os.ftruncate(new.fd, file.state.size)
            if not _became(new, file.state):
                return None
            with self._naming(directory, at, file.name):
                os.link(new.path, file.name, dst_dir_fd=at.fd, follow_symlinks=True)
            status = os.fstat(new.fd)
            return attr_of(self._made(directory, at, file.name, status), status)

    def open(self, node: int, flags: int) -> None:
        with self.lock:
            found = self._nodes.get(node)
            opened = found.opened or OpenFile()
            opened.acquire(flags, lambda access: self._nodes.open(found, access))
            found.opened = opened
            self._nodes.settle(found)

    def _opened(self, node: int) -> OpenFile:
        opened = self._nodes.get(node).opened
        if opened is None:
            raise oserror(errno.EBADF)
        return opened

    def read(self, node: int, offset: int, size: int) -> bytes:
        with self.lock:
            return os.pread(self._opened(node).descriptor.fd, size, offset)

    def next_data(self, node: int, offset: int) -> int | None:
        with self.lock:
            file = self._opened(node).descriptor
            size = os.fstat(file.fd).st_size
            found = next_data(file.fd, offset, size)  # every read and write gives its own offset
            return found if found < size else None

    def write(self, node: int, offset: int, data: bytes) -> int:
        with self.lock:
            file = self._opened(node).writing
            if file is None:
                raise oserror(errno.EBADF)
            return dirfd.write_all(file, data, offset)

    def fsync(self, node: int, datasync: bool = False) -> None:
        with self.lock:
            found = self._nodes.get(node)
            wanted = self._nodes.to_sync(found)
            name_unsynced, found.name_unsynced = found.name_unsynced, False
        # A disk may take long: other calls do not wait for the lock meanwhile.
        try:
            for number, descriptor in enumerate(wanted):
                (os.fdatasync if datasync and number == 0 else os.fsync)(descriptor.fd)
        except OSError:
            found.name_unsynced |= name_unsynced
            raise

    def release(self, node: int, flags: int) -> None:
        with self.lock:
            found = self._nodes.get(node)
            opened = self._opened(node)
            opened.release(flags)
            if opened.idle:
                found.opened = None
                self._nodes.settle(found)

    # -- life --------------------------------------------------------------------------------------------------

    def statfs(self) -> StatFs:
        with self.lock:
            vfs = os.fstatvfs(self._nodes.root_descriptor.fd)
            return StatFs(vfs.f_frsize, vfs.f_blocks, vfs.f_bavail, vfs.f_files, vfs.f_favail, vfs.f_namemax)

    def hold(self, node: int) -> None:
        with self.lock:
            self._nodes.hold(node, True)

    def forget(self, nodes: Iterable[int]) -> None:
        with self.lock:
            for node in nodes:
                self._nodes.hold(node, False)

    def sync(self) -> None:
        dirfd.sync_filesystem(self._nodes.root_descriptor)

    def expire(self) -> None:
        """Find the file of a name again by the name, not by an open descriptor."""
        with self.lock:
            self._nodes.forget_descriptors()
            self._listings.clear()

    def close(self) -> None:
        with self.lock:
            if self._nodes.root.pin is not None:
                self.sync()
                self._listings.clear()
                self._nodes.close()

    # -- for the agent face of this package --------------------------------------------------------------------

    def open_directory(self, node: int) -> Descriptor:
        """A directory, opened so that its names can be read; ENOTDIR for anything else."""
        with self.lock:
            _, at = self._nodes.directory(node)
            return dirfd.open_names(at)

    def twin(self, other: DirectoryVolume, node: int | None) -> int | None:
        """The number here of the file that is `node` in another volume, None if one of them does not know it."""
        with self.lock:
            return self._nodes.twin(other._nodes, node)


def _exists(at: Descriptor, name: bytes) -> bool:
    try:
        os.stat(name, dir_fd=at.fd, follow_symlinks=False)
    except OSError as error:
        return error.errno != errno.ENOENT
    return True


def _listxattr(file: str | int) -> list[bytes]:
    names = unless(LACKING, os.listxattr, file)
    return [os.fsencode(name) for name in names] if names else []


def _became(new: Descriptor, state: State) -> bool:
    """Give a new file all attributes; False if this process may not. A change of owner clears set-ID bits, so the mode
    comes after it."""
    try:
        status = os.fstat(new.fd)
        if (status.st_uid, status.st_gid) != (state.uid, state.gid):
            os.fchown(new.fd, state.uid, state.gid)
        for key, value in state.xattrs.items():
            os.setxattr(new.fd, key, value)
        if set(_listxattr(new.fd)) != state.xattrs.keys():  # such as a default ACL's
            return False
        os.fchmod(new.fd, stat.S_IMODE(state.mode))
        os.utime(new.fd, ns=(state.atime_ns, state.mtime_ns))
    except OSError as error:
        if error.errno not in NOT_TAKEN:
            raise
        return False
    return True
