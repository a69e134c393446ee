"""`TreeVolume`: the POSIX rules of a native volume, written once over a small storage interface.

It owns what every rule is about: which errno, which link count, which timestamps change, when a nameless node goes; and
where chunks begin and end. A subclass owns where inodes, names, chunks and extended attributes are kept; it answers the
methods of the last section and decides nothing. `backends/memory.py` keeps them in dicts, `backends/sqlite/backend.py`
in one file.

Every public method holds `lock` and is atomic; none of them blocks except for the storage. Where the storage fails, it
has changed nothing: all that an operation reads is read (`_prepare`, `_named`) before the first change.
"""

from __future__ import annotations

import abc
import errno
import itertools
import os
import stat
from collections.abc import Iterable, Mapping, Sequence

from fusebackend.base import acl
from fusebackend.base.errors import oserror
from fusebackend.base.stamps import CLOCK, coarse_ns, now_ns
from fusebackend.protocol import (
    RENAME_EXCHANGE,
    RENAME_NOREPLACE,
    ROOT_NODE,
    Attr,
    AttrChanges,
    Caller,
    KnowsXattrs,
    NewFile,
    Usage,
    version_of_attr,
)
from fusebackend.volumes.quota import Quota, bytes_of_blocks, bytes_of_xattrs
from fusebackend.volumes.storage import (
    CHUNK_BYTES,
    CHUNK_SHIFT,
    MAX_FILE_BYTES,
    Chunk,
    Inode,
    allocated_blocks,
    cut_out,
)

DIRECTORY_BYTES = 4096
"""The `st_size` of every directory."""

TIME_MIN_NS, TIME_MAX_NS = -(1 << 63), (1 << 63) - 1
"""The times a volume can hold: the years 1678 to 2262. What is beyond becomes the nearest, as on other filesystems."""

_DAY_NS = 86_400 * 10**9


def _blocks_of(parts: Sequence[tuple[int, bytes]]) -> int:
    """The blocks that a new file of these bytes takes."""
    ends: dict[int, int] = {}
    for offset, part in parts:
        end = offset + len(part)
        for index in range(offset >> CHUNK_SHIFT, -(-end >> CHUNK_SHIFT)):
            ends[index] = max(ends.get(index, 0), min(end - (index << CHUNK_SHIFT), CHUNK_BYTES))
    return sum(map(allocated_blocks, ends.values()))


def _within_range(time_ns: int) -> int:
    return max(TIME_MIN_NS, min(time_ns, TIME_MAX_NS))


class TreeVolume(KnowsXattrs):
    """The rules, and the storage that they are over. See the module's docstring."""

    def __init__(self) -> None:
        self._versions = itertools.count(1)
        self._quota: Quota | None = None  # None for a volume without limits
        self._held: set[int] = set()  # nodes the kernel knows; apart from inodes, which a storage may let go of
        self._nameless: set[int] = set()  # nodes without a name that are held or open

    # -- names -------------------------------------------------------------------------------------------------

    def lookup(self, parent: int, name: bytes) -> Attr:
        with self.lock:
            node = self._child(parent, name)
            if node is None:
                self._directory(parent)
                raise oserror(errno.ENOENT, name)
            inode = self._inode(node)
            CLOCK.saw(inode.ctime_ns)
            return inode

    def readdir(self, node: int, after: bytes, limit: int) -> Sequence[tuple[bytes, Attr]]:
        with self.lock:
            if not after:
                self._accessed(self._inode(node))
            CLOCK.saw_all()
            while children := self._children(node, after, limit):
                found = self._entries(node, children)
                if found:
                    return found
                after = children[-1][0]  # none of them can be shown; the listing goes on behind them
            return []

    def mknod(self, parent: int, name: bytes, mode: int, rdev: int, caller: Caller) -> Attr:
        with self.lock:
            directory = self._vacant(parent, name)
            mode, acls = self._permissions(directory, mode, caller)
            inode = self._make(directory, name, mode, caller, acls)
            inode.rdev = rdev
            CLOCK.saw(inode.ctime_ns)
            return inode

    def mkdir(self, parent: int, name: bytes, mode: int, caller: Caller) -> Attr:
        with self.lock:
            directory = self._vacant(parent, name)
            mode, acls = self._permissions(directory, stat.S_IFDIR | stat.S_IMODE(mode), caller)
            inode = self._make(directory, name, mode, caller, acls)
            inode.nlink = 2
            inode.size = DIRECTORY_BYTES
            self._allocate(inode, allocated_blocks(DIRECTORY_BYTES))
            if directory.mode & stat.S_ISGID:
                inode.mode |= stat.S_ISGID
            directory.nlink += 1
            CLOCK.saw(inode.ctime_ns)
            return inode

    def place(self, file: NewFile) -> Attr:
        """The attributes returned are not for the kernel: files that are made in a row may have one change time."""
        parts = list(file.pieces)
        state = file.state
        with self.lock:
            self._admit(sum(len(part) for _, part in parts) + sum(map(len, state.xattrs.values())))
            if self._quota is not None:
                self._quota.require(bytes_of_blocks(_blocks_of(parts)) + bytes_of_xattrs(state.xattrs), 1)
            directory = self._vacant(file.parent, file.name)
            mode = stat.S_IFREG | stat.S_IMODE(state.mode)
            inode = self._make(directory, file.name, mode, Caller(state.uid, state.gid))
            for offset, part in parts:
                if part:
                    self._put(inode, offset, part)
                    inode.size = offset + len(part)
            inode.size, inode.gid = state.size, state.gid
            inode.atime_ns, inode.mtime_ns = _within_range(state.atime_ns), _within_range(state.mtime_ns)
            self._give(inode, state.xattrs)
            self._renewed(inode)
            self._changed(inode)
            CLOCK.passed(state.mtime_ns)
            return inode

    def symlink(self, parent: int, name: bytes, target: bytes, caller: Caller) -> Attr:
        with self.lock:
            inode = self._make(self._vacant(parent, name), name, stat.S_IFLNK | 0o777, caller)
            self._put(inode, 0, target)
            inode.size = len(target)
            CLOCK.saw(inode.ctime_ns)
            return inode

    def link(self, node: int, new_parent: int, new_name: bytes) -> Attr:
        with self.lock:
            inode = self._inode(node)
            if stat.S_ISDIR(inode.mode):
                raise oserror(errno.EPERM, new_name)
            if inode.nlink == 0:
                raise oserror(errno.ENOENT, new_name)
            directory = self._vacant(new_parent, new_name)
            self._admit(len(new_name))
            self._prepare(directory, names=True)
            self._prepare(inode)
            self._set_child(new_parent, new_name, node)
            inode.nlink += 1
            now = inode.ctime_ns = now_ns()
            self._changed(inode)
            self._date(directory, now)
            CLOCK.saw(inode.ctime_ns)
            return inode

    def unlink(self, parent: int, name: bytes) -> None:
        with self.lock:
            directory, inode = self._named(parent, name)
            if stat.S_ISDIR(inode.mode):
                raise oserror(errno.EISDIR, name)
            self._prepare(directory, names=True)
            self._prepare(inode)
            now = now_ns()
            self._unlink(directory, name, inode, now)
            self._date(directory, now)

    def rmdir(self, parent: int, name: bytes) -> None:
        with self.lock:
            directory, inode = self._named(parent, name)
            if not stat.S_ISDIR(inode.mode):
                raise oserror(errno.ENOTDIR, name)
            self._empty(inode, name)
            self._prepare(directory, names=True)
            self._prepare(inode)
            now = now_ns()
            self._unlink(directory, name, inode, now)
            self._date(directory, now)

    def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int = 0) -> None:
        if flags not in (0, RENAME_NOREPLACE, RENAME_EXCHANGE):
            raise oserror(errno.EINVAL, name)
        with self.lock:
            _, inode = self._named(parent, name)
            if self._directory(new_parent).nlink == 0:  # removed while a process works in it
                raise oserror(errno.ENOENT, new_name)
            node = self._child(new_parent, new_name)
            target = None if node is None else self._inode(node)
            if target is None and flags == RENAME_EXCHANGE:
                raise oserror(errno.ENOENT, new_name)
            if target is not None and flags == RENAME_NOREPLACE:
                raise oserror(errno.EEXIST, new_name)
            self._not_into_itself(inode, new_parent)
            if target is not None and flags == RENAME_EXCHANGE:
                self._not_into_itself(target, parent)
            if target is inode:
                return  # POSIX: two names of one file, nothing happens
            if target is not None and flags != RENAME_EXCHANGE:
                self._displace(inode, target, new_name)
            directory, new_directory = self._inode(parent), self._inode(new_parent)
            self._prepare(directory, names=True)
            self._prepare(new_directory, names=True)
            self._prepare(inode)
            if target is not None:
                self._prepare(target)
            now = now_ns()
            if stat.S_ISDIR(inode.mode) or (target is not None and stat.S_ISDIR(target.mode)):
                self._directory_moves()
            if flags == RENAME_EXCHANGE:
                assert target is not None
                self._set_child(parent, name, target.node)
                self._rehome(target, new_directory, directory, now)
            else:
                if target is not None:
                    self._unlink(new_directory, new_name, target, now)
                self._set_child(parent, name, None)
            self._set_child(new_parent, new_name, inode.node)
            self._rehome(inode, directory, new_directory, now)
            self._date(directory, now)
            self._date(new_directory, now)

    # -- attributes --------------------------------------------------------------------------------------------

    def getattr(self, node: int) -> Attr:
        with self.lock:
            inode = self._inode(node)
            CLOCK.saw(inode.ctime_ns)
            return inode

    def version_of(self, attr: Attr) -> str | None:
        version = version_of_attr(attr)
        # Hosts have clocks of their own.
        return f"{version}-{attr.version:x}" if version is not None and self.features.shared else version

    def setattr(self, node: int, changes: AttrChanges) -> Attr:
        with self.lock:
            inode = self._inode(node)
            now = now_ns(finer=changes.size is not None)
            self._prepare(inode)
            xattrs = self._xattrs(inode) if changes.mode is not None and self.features.acls else {}
            if changes.size is not None:
                self._resize(inode, changes.size)
                self._renewed(inode)
                inode.mtime_ns = now
            if changes.mode is not None:
                inode.mode = stat.S_IFMT(inode.mode) | stat.S_IMODE(changes.mode)
                if acl.ACCESS in xattrs:
                    xattrs[acl.ACCESS] = acl.with_mode(xattrs[acl.ACCESS], changes.mode)
                    self._xattrs_changed(inode)
            if changes.uid is not None:
                inode.uid = changes.uid
            if changes.gid is not None:
                inode.gid = changes.gid
            if changes.atime_ns is not None:
                inode.atime_ns = _within_range(changes.atime_ns)
            if changes.mtime_ns is not None:
                inode.mtime_ns = _within_range(changes.mtime_ns)
            inode.ctime_ns = now if changes.ctime_ns is None else _within_range(changes.ctime_ns)
            if changes.mtime_ns is not None:
                CLOCK.passed(changes.mtime_ns)
            self._changed(inode)
            CLOCK.saw(inode.ctime_ns)
            return inode

    def readlink(self, node: int) -> bytes:
        with self.lock:
            inode = self._inode(node)
            if not stat.S_ISLNK(inode.mode):
                raise oserror(errno.EINVAL)
            target = self._get(inode, 0, inode.size)
            self._accessed(inode)
            return target

    def setxattr(self, node: int, name: bytes, value: bytes) -> None:
        permissions, is_kept = self._said_by_acl(name, value) if name in acl.NAMES else (None, True)
        with self.lock:
            self._admit(len(name) + len(value) if is_kept else 0)
            inode = self._inode(node)
            self._prepare(inode)
            self._change_xattr(inode, name, value if is_kept else None, permissions)

    def _said_by_acl(self, name: bytes, value: bytes) -> tuple[int | None, bool]:
        """The permissions of the mode that an access ACL means, and whether an ACL is kept: a minimal ACL says no more
        than a mode, and is not."""
        if not self.features.acls:
            raise oserror(errno.ENOTSUP, name)
        try:
            permissions, is_minimal = acl.mode_of(value)
        except ValueError:
            raise oserror(errno.EINVAL, name) from None
        return (permissions, not is_minimal) if name == acl.ACCESS else (None, True)

    def xattrs(self, node: int) -> Mapping[bytes, bytes]:
        with self.lock:
            return dict(self._xattrs(self._inode(node)))

    def removexattr(self, node: int, name: bytes) -> None:
        with self.lock:
            inode = self._inode(node)
            if name not in self._xattrs(inode):
                raise oserror(errno.ENODATA, name)
            self._prepare(inode)
            self._change_xattr(inode, name, None)

    def _change_xattr(self, inode: Inode, name: bytes, value: bytes | None, permissions: int | None = None) -> None:
        """Give an inode an extended attribute, or with None take it away, and the permissions that it means."""
        xattrs = self._xattrs(inode)
        if self._quota is not None:
            before = len(name) + len(xattrs[name]) if name in xattrs else 0
            more = (0 if value is None else len(name) + len(value)) - before
            self._quota.require(more)
            self._quota.add(more)
        if value is None:
            xattrs.pop(name, None)
        else:
            xattrs[name] = value
        self._xattrs_changed(inode)
        if permissions is not None:
            inode.mode = inode.mode & ~0o777 | permissions
        inode.ctime_ns = now_ns(finer=False)
        self._changed(inode)

    # -- data --------------------------------------------------------------------------------------------------

    def open(self, node: int, flags: int) -> Attr | None:
        with self.lock:
            inode = self._inode(node)
            inode.opens += 1
            inode.unnoted += bool(flags & os.O_NOATIME)
            return inode

    def release(self, node: int, flags: int) -> None:
        with self.lock:
            inode = self._inode(node)
            assert inode.opens > 0, f"node {node} released more often than opened"
            inode.opens -= 1
            inode.unnoted -= bool(flags & os.O_NOATIME)
            if inode.nlink == 0:
                self._reap(inode)

    def read(self, node: int, offset: int, size: int) -> bytes:
        with self.lock:
            inode = self._inode(node)
            if stat.S_ISDIR(inode.mode):
                raise oserror(errno.EISDIR)
            data = self._get(inode, offset, size)
            self._accessed(inode)
            return data

    def next_data(self, node: int, offset: int) -> int | None:
        with self.lock:
            inode = self._inode(node)
            index = self._next_chunk(node, offset >> CHUNK_SHIFT) if offset < inode.size else None
            return None if index is None else max(offset, index << CHUNK_SHIFT)

    def write(self, node: int, offset: int, data: bytes) -> int:
        with self.lock:
            inode = self._inode(node)
            end = offset + len(data)
            if end > MAX_FILE_BYTES:
                raise oserror(errno.EFBIG)
            if data:
                if self._quota is not None:
                    self._require_room(inode, offset, len(data))
                self._admit(len(data))
                self._put(inode, offset, data)
                if end > inode.size:
                    inode.size = end
                self._renewed(inode)
                inode.mtime_ns = inode.ctime_ns = now_ns()
                self._changed(inode)
            return len(data)

    # -- life --------------------------------------------------------------------------------------------------

    def hold(self, node: int) -> None:
        self._held.add(node)

    def forget(self, nodes: Iterable[int]) -> None:
        with self.lock:
            for node in nodes:
                self._held.discard(node)
                if node in self._nameless:
                    self._reap(self._inode(node))
                else:
                    self._let_go(node)

    # -- rules -------------------------------------------------------------------------------------------------

    def _directory(self, node: int) -> Inode:
        inode = self._inode(node)
        if not stat.S_ISDIR(inode.mode):
            raise oserror(errno.ENOTDIR)
        return inode

    def _named(self, parent: int, name: bytes) -> tuple[Inode, Inode]:
        """The directory, and what is under the name."""
        node = self._child(parent, name)
        directory = self._directory(parent)
        if node is None:
            raise oserror(errno.ENOENT, name)
        return directory, self._inode(node)

    def _vacant(self, parent: int, name: bytes) -> Inode:
        """The directory, which must live and not hold the name yet."""
        directory = self._directory(parent)
        if directory.nlink == 0:  # removed while a process works in it
            raise oserror(errno.ENOENT, name)
        if self._child(parent, name) is not None:
            raise oserror(errno.EEXIST, name)
        return directory

    def _make(
        self, directory: Inode, name: bytes, mode: int, caller: Caller, acls: Mapping[bytes, bytes] | None = None
    ) -> Inode:
        """Make an inode under a name of a directory that is vacant (`_vacant`)."""
        if self._quota is not None:
            # A directory and a target take as much: no target is longer.
            takes_bytes = stat.S_ISDIR(mode) or stat.S_ISLNK(mode)
            self._quota.require((DIRECTORY_BYTES if takes_bytes else 0) + bytes_of_xattrs(acls or {}), 1)
        self._admit(len(name))
        self._prepare(directory, names=True)
        inode = self._new_inode(mode, directory.node if stat.S_ISDIR(mode) else 0)
        if self._quota is not None:
            self._quota.add(0, 1)
        inode.uid = caller.uid
        inode.gid = directory.gid if directory.mode & stat.S_ISGID else caller.gid
        now = inode.atime_ns = inode.mtime_ns = inode.ctime_ns = now_ns()
        self._set_child(directory.node, name, inode.node)
        if acls:
            self._give(inode, acls)
        self._changed(inode)
        self._date(directory, now)
        return inode

    def _permissions(self, directory: Inode, mode: int, caller: Caller) -> tuple[int, dict[bytes, bytes]]:
        """The mode of a new file in a directory, and the ACLs that it inherits. Where there are any, the umask does not
        count (acl(5), "Object creation and default ACLs")."""
        default = self._xattrs(directory).get(acl.DEFAULT) if self.features.acls else None
        if default is None:
            return mode & ~caller.umask, {}
        access, permissions = acl.inherited(default, mode & 0o777)
        acls = {} if access is None else {acl.ACCESS: access}
        if stat.S_ISDIR(mode):
            acls[acl.DEFAULT] = default
        return mode & ~0o777 | permissions, acls

    def _give(self, inode: Inode, xattrs: Mapping[bytes, bytes]) -> None:
        """Give a new inode its extended attributes."""
        if xattrs:
            self._xattrs(inode).update(xattrs)
            self._xattrs_changed(inode)
            if self._quota is not None:
                self._quota.add(bytes_of_xattrs(xattrs))

    def access_due(self, attr: Attr) -> bool:
        """As relatime, Linux's default: at the first read after a change, then daily."""
        return attr.atime_ns <= max(attr.mtime_ns, attr.ctime_ns) or coarse_ns() - attr.atime_ns > _DAY_NS

    def _accessed(self, inode: Inode) -> None:
        """Move the access time after a read. The reader is not known: not if all handles have O_NOATIME."""
        if self.access_due(inode) and not (inode.unnoted and inode.unnoted == inode.opens):
            inode.atime_ns = now_ns()
            self._changed(inode)

    def _date(self, directory: Inode, now: int) -> None:
        """A name in it has changed."""
        self._renewed(directory)
        directory.mtime_ns = directory.ctime_ns = now
        self._changed(directory)

    def _directory_moves(self) -> None:
        if self.directory_moves is not None:
            self.directory_moves += 1

    def _empty(self, inode: Inode, name: bytes) -> None:
        if self._children(inode.node, b"", 1):
            raise oserror(errno.ENOTEMPTY, name)

    def _unlink(self, directory: Inode, name: bytes, inode: Inode, now: int) -> None:
        """Take a name of `inode` away. A directory has only one, besides its own dot."""
        self._set_child(directory.node, name, None)
        inode.nlink -= 1
        if stat.S_ISDIR(inode.mode):
            inode.nlink = 0
            self._directory_moves()
            self._one_less_below(directory)
        assert inode.nlink >= 0, f"link count of node {inode.node} fell below zero"
        inode.ctime_ns = now
        self._changed(inode)
        if inode.nlink == 0:
            self._reap(inode)

    def _reap(self, inode: Inode) -> None:
        """Free a node without a name, if it has no open handle and is unknown to the kernel."""
        if inode.opens == 0 and inode.node not in self._held:
            self._nameless.discard(inode.node)
            if self._quota is not None:
                self._quota.add(-bytes_of_blocks(inode.blocks) - bytes_of_xattrs(self._xattrs(inode)), -1)
            self._drop(inode)
        else:
            self._nameless.add(inode.node)

    def _displace(self, inode: Inode, target: Inode, name: bytes) -> None:
        """Raise the error if `inode` can't replace `target`."""
        if stat.S_ISDIR(inode.mode):
            if not stat.S_ISDIR(target.mode):
                raise oserror(errno.ENOTDIR, name)
            self._empty(target, name)
        elif stat.S_ISDIR(target.mode):
            raise oserror(errno.EISDIR, name)

    def _entries(self, directory: int, children: list[tuple[bytes, int]]) -> list[tuple[bytes, Inode]]:
        """Return the inodes of names in a directory. A storage that may be damaged leaves out bad ones."""
        return [(name, self._inode(child)) for name, child in children]

    def _one_less_below(self, directory: Inode) -> None:
        """A directory has lost a subdirectory. A count that was too low by damage is not that of a removed one."""
        directory.nlink = max(2, directory.nlink - 1)

    def _not_into_itself(self, inode: Inode, parent: int) -> None:
        """A directory may not move below itself."""
        if not stat.S_ISDIR(inode.mode):
            return
        node, above = parent, set()
        while node != ROOT_NODE:
            if node == inode.node:
                raise oserror(errno.EINVAL)
            if node in above:  # a damaged volume: a circle that can't be reached from the root
                raise oserror(errno.EIO)
            above.add(node)
            node = self._parent_of(node)

    def _rehome(self, inode: Inode, old_parent: Inode, new_parent: Inode, now: int) -> None:
        """`inode` has moved; a directory takes its `..` along."""
        if stat.S_ISDIR(inode.mode) and old_parent.node != new_parent.node:
            inode.parent = new_parent.node
            self._one_less_below(old_parent)
            new_parent.nlink += 1
        inode.ctime_ns = now
        self._changed(inode)

    # -- storage: called with the lock held -------------------------------------------------------------------

    @property
    def usage(self) -> Usage | None:
        return None if self._quota is None else self._quota.usage

    @abc.abstractmethod
    def _inode(self, node: int) -> Inode:
        """The inode of a node; ESTALE when there is none."""

    def _parent_of(self, node: int) -> int:
        """The directory that a directory is in."""
        return self._inode(node).parent

    @abc.abstractmethod
    def _new_inode(self, mode: int, parent: int) -> Inode:
        """An inode with a number that was never used."""

    def _prepare(self, inode: Inode, names: bool = False) -> None:
        """The inode is about to be changed, or with `names` a name in it: read what that takes, which may fail."""

    @abc.abstractmethod
    def _changed(self, inode: Inode) -> None:
        """The inode's fields have changed. This and what follows it reads nothing that `_prepare` has not read."""

    def _renewed(self, inode: Inode) -> None:
        """The bytes of a file are others now, or the names in a directory: so is the version, if not the time."""
        inode.version = next(self._versions)

    def _let_go(self, node: int) -> None:
        """The kernel knows this node no longer; it need not be kept in memory."""

    @abc.abstractmethod
    def _drop(self, inode: Inode) -> None:
        """The inode is gone for good, with its chunks and extended attributes."""

    @abc.abstractmethod
    def _child(self, parent: int, name: bytes) -> int | None:
        """The node under a name."""

    @abc.abstractmethod
    def _set_child(self, parent: int, name: bytes, node: int | None) -> None:
        """Put a node under a name, or nothing."""

    @abc.abstractmethod
    def _children(self, parent: int, after: bytes, limit: int) -> list[tuple[bytes, int]]:
        """Up to `limit` names greater than `after`, in order, with their nodes."""

    @abc.abstractmethod
    def _chunk(self, node: int, index: int) -> Chunk | None:
        """A chunk of a file, None for a hole."""

    def _next_chunk(self, node: int, index: int) -> int | None:
        """The first chunk from an index on; None for none. A storage that can't tell says `index`."""
        return index

    @abc.abstractmethod
    def _chunk_changed(self, node: int, index: int, chunk: Chunk) -> None:
        """The chunk's bytes have changed, or it is a new one where there was a hole."""

    @abc.abstractmethod
    def _drop_chunks(self, node: int, first: int) -> int:
        """Forget the chunks from index `first` on, or fail before the first; returns the sum of `allocated_blocks` over
        those that were there."""

    @abc.abstractmethod
    def _xattrs(self, inode: Inode) -> dict[bytes, bytes]:
        """The extended attributes of an inode; `_xattrs_changed` follows a change."""

    @abc.abstractmethod
    def _xattrs_changed(self, inode: Inode) -> None: ...

    def _admit(self, size: int) -> None:
        """`size` bytes are about to be added: raise ENOSPC when there is no room."""

    def _allocate(self, inode: Inode, blocks: int) -> None:
        """The inode takes so many blocks more, or fewer."""
        inode.blocks += blocks
        if self._quota is not None:
            self._quota.add(bytes_of_blocks(blocks))

    def _growth(self, inode: Inode, offset: int, size: int) -> int:
        """The blocks that a file takes more after a write of so many bytes."""
        blocks, end = 0, offset + size
        for index in range(offset >> CHUNK_SHIFT, -(-end >> CHUNK_SHIFT)):
            chunk = self._chunk(inode.node, index) if index << CHUNK_SHIFT < inode.size else None
            before = 0 if chunk is None else len(chunk.data)
            after = min(end - (index << CHUNK_SHIFT), CHUNK_BYTES)
            blocks += allocated_blocks(max(before, after)) - allocated_blocks(before)
        return blocks

    # -- bytes: no chunk begins at or beyond the end of its file ---------------------------------------------------

    def _get(self, inode: Inode, offset: int, size: int) -> bytes:
        end = min(offset + size, inode.size)
        chunks: dict[int, bytes | bytearray] = {}
        if offset < end:
            for index in range(offset >> CHUNK_SHIFT, -(-end >> CHUNK_SHIFT)):
                chunk = self._chunk(inode.node, index)
                if chunk is not None:
                    chunks[index] = chunk.data
        return cut_out(chunks, offset, end)

    def require_room(self, attr: Attr, size_bytes: int) -> None:
        if self._quota is not None:
            self._quota.require(bytes_of_blocks(allocated_blocks(size_bytes) - attr.blocks))

    def _require_room(self, inode: Inode, offset: int, size: int) -> None:
        """Raise EDQUOT if a write of so many bytes would pass the volume's limit. The chunks are looked at near it."""
        quota = self._quota
        chunks = -(-(offset + size) >> CHUNK_SHIFT) - (offset >> CHUNK_SHIFT)
        if quota is not None and not quota.admits(chunks << CHUNK_SHIFT):
            quota.require(bytes_of_blocks(self._growth(inode, offset, size)))

    def _put(self, inode: Inode, offset: int, data: bytes) -> None:
        view, node, done = memoryview(data), inode.node, 0
        first, last = offset >> CHUNK_SHIFT, (offset + len(data) - 1) >> CHUNK_SHIFT
        # All are read before one is changed. Beyond the end there is no chunk, and no need to look for one.
        known = -(-inode.size >> CHUNK_SHIFT)
        chunks = [self._chunk(node, first) if first < known else None]
        if last > first:  # most writes are of one chunk
            chunks += [self._chunk(node, index) if index < known else None for index in range(first + 1, last + 1)]
        start = offset & (CHUNK_BYTES - 1)
        for index, chunk in enumerate(chunks, first):
            if chunk is None:
                chunk = Chunk()
            piece, before = view[done : done + CHUNK_BYTES - start], len(chunk.data)
            chunk.put(start, piece)
            if len(chunk.data) != before:
                self._allocate(inode, allocated_blocks(len(chunk.data)) - allocated_blocks(before))
            self._chunk_changed(node, index, chunk)
            done += len(piece)
            start = 0

    def _resize(self, inode: Inode, size: int) -> None:
        if stat.S_ISDIR(inode.mode):
            raise oserror(errno.EISDIR)
        if size > MAX_FILE_BYTES:
            raise oserror(errno.EFBIG)
        if size < inode.size:
            index, start = size >> CHUNK_SHIFT, size & (CHUNK_BYTES - 1)
            chunk = self._chunk(inode.node, index) if start else None
            self._allocate(inode, -self._drop_chunks(inode.node, index + 1 if start else index))
            if chunk is not None and len(chunk.data) > start:
                self._allocate(inode, allocated_blocks(start) - allocated_blocks(len(chunk.data)))
                chunk.cut(start)
                self._chunk_changed(inode.node, index, chunk)
        inode.size = size
