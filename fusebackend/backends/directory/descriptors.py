"""`Places`: where the nodes of a directory on disk are, as descriptors. It owns the root's.

Every step down is one `openat` with O_NOFOLLOW from the directory above, and what it finds must be the file the node
stands for; if not, or if there is nothing, that is ESTALE. Calls are made with the volume's lock held.
"""

from __future__ import annotations

import errno
import os
import stat

from fusebackend.backends.directory import dirfd
from fusebackend.backends.directory.dirfd import FILE_FLAGS, PATH_FLAGS, Descriptor, DescriptorCache
from fusebackend.backends.directory.nodes import Node, NodeTable
from fusebackend.base.errors import oserror
from fusebackend.protocol import Attr, Caller

_STALE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})


class Places:
    """See the module's docstring. `table` holds the nodes."""

    def __init__(self, root: Descriptor) -> None:
        self._root: Descriptor | None = root
        self._descriptors = DescriptorCache()
        self.table = NodeTable(os.fstat(root.fd), self._descriptors.discard)

    @property
    def root(self) -> Descriptor:
        """EBADF when it is closed."""
        if self._root is None:
            raise oserror(errno.EBADF)
        return self._root

    @property
    def closed(self) -> bool:
        return self._root is None

    def forget(self) -> None:
        """Close the descriptors that can be opened again."""
        self._descriptors.clear()

    def close(self) -> None:
        self.table.close()
        self._descriptors.clear()
        self._root = None

    def directory(self, number: int) -> tuple[Node, Descriptor]:
        """A directory and its descriptor. ENOTDIR for anything else."""
        node = self.table.get(number)
        if node.kind != stat.S_IFDIR:
            raise oserror(errno.ENOTDIR)
        return node, self.of(node)

    def of(self, node: Node) -> Descriptor:
        """An O_PATH descriptor of the node's file. Its directories are opened as far up as is needed."""
        found = self._known(node)
        if found is not None:
            return found
        way = []
        while found is None:
            way.append(node)
            if node.parent is None:
                raise oserror(errno.ESTALE)
            node = node.parent
            found = self._known(node)
        for node in reversed(way):
            found = self._step(found, node)
        return found

    def _known(self, node: Node) -> Descriptor | None:
        """A descriptor that is open already."""
        if node is self.table.root:
            return self.root
        return node.pin or self._descriptors.get(node.number)

    def _step(self, above: Descriptor, node: Node) -> Descriptor:
        try:
            below = Descriptor(os.open(node.name, PATH_FLAGS, dir_fd=above.fd))
        except OSError as error:
            raise oserror(errno.ESTALE) if error.errno in _STALE else error from None
        if not self.table.is_node(node, os.fstat(below.fd)):
            raise oserror(errno.ESTALE)
        self._descriptors.put(node.number, below)
        return below

    def status(self, node: Node) -> os.stat_result:
        """`stat` of a node, by what is open already or else by its name, which opens nothing but directories."""
        known = node.opened.descriptor if node.opened is not None else self._known(node)
        if known is not None:
            return os.fstat(known.fd)
        if node.parent is None:
            raise oserror(errno.ESTALE)
        above = self.of(node.parent)
        try:
            status = os.stat(node.name, dir_fd=above.fd, follow_symlinks=False)
        except OSError as error:
            raise oserror(errno.ESTALE) if error.errno in _STALE else error from None
        if not self.table.is_node(node, status):
            raise oserror(errno.ESTALE)
        return status

    def open(self, node: Node, flags: int) -> Descriptor:
        """Open a regular file for reading or writing. EISDIR, and EINVAL for what is neither file nor directory."""
        if node.kind != stat.S_IFREG:
            raise oserror(errno.EISDIR if node.kind == stat.S_IFDIR else errno.EINVAL)
        found = self.of(node)
        return Descriptor(os.open(found.path, flags | FILE_FLAGS))

    def to_sync(self, node: Node) -> list[Descriptor]:
        """What has to be synced for a node's data and name to be durable, as descriptors of the caller's own.

        POSIX asks for the data alone; but a new file without its name is no file.
        """
        wanted: list[Descriptor] = []
        if node.kind == stat.S_IFDIR:
            wanted.append(dirfd.open_names(self.of(node)))
        elif node.opened is not None:
            wanted.append(node.opened.descriptor)
        elif node.kind == stat.S_IFREG:
            try:
                wanted.append(self.open(node, os.O_RDONLY))
            except PermissionError:
                wanted.append(self.open(node, os.O_WRONLY))
        if node.name_unsynced and node.parent is not None:
            wanted.append(dirfd.open_names(self.of(node.parent)))
        return wanted


def check_name(name: bytes) -> None:
    """The mount checks names; here a wrong one would lead out of the root, so they are checked again."""
    if name in (b"", b".", b"..") or b"/" in name or b"\0" in name:
        raise oserror(errno.EINVAL, name)


def group_of_new(at: Descriptor, caller: Caller) -> int:
    """The group of something new: a set-group-ID directory passes its own on (POSIX, open)."""
    above = os.fstat(at.fd)
    return above.st_gid if above.st_mode & stat.S_ISGID else caller.gid


def attr_of(node: Node, status: os.stat_result) -> Attr:
    """What `stat` says of a node's file."""
    return Attr(
        node.number,
        status.st_mode,
        nlink=status.st_nlink,
        uid=status.st_uid,
        gid=status.st_gid,
        rdev=status.st_rdev,
        size=status.st_size,
        blocks=status.st_blocks,
        atime_ns=status.st_atime_ns,
        mtime_ns=status.st_mtime_ns,
        ctime_ns=status.st_ctime_ns,
    )
