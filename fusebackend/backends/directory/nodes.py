"""`NodeTable`: the nodes of a directory on disk, with their numbers, where each was last seen, and descriptors.

A node stands for a file of the system, known by device and inode number; its own number is never used twice. Where the
system has used an inode number again, the other file gets another node (`NodeTable.is_same`). A node remembers one name
and the node of the directory that holds it, which is how its file is found again. Nodes that the kernel holds, that are
open, or that other nodes were found in are kept; of the others the ones used last are, up to `IDLE_FILES` and
`IDLE_DIRECTORIES`. All calls are made with the volume's lock held.
"""

from __future__ import annotations

import errno
import os
import stat

from fusebackend.backends.directory import dirfd
from fusebackend.backends.directory.dirfd import FILE_FLAGS, PATH_FLAGS, Descriptor, OpenFile
from fusebackend.base.errors import oserror
from fusebackend.base.recent import Recent
from fusebackend.protocol import ROOT_NODE, Attr, Caller

IDLE_FILES = 2_000
IDLE_DIRECTORIES = 10_000
"""Nodes that are not held. Directories are kept longer, for a recursive delete comes back to the ones it passed."""

_STALE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
"""Of a step down: the name is gone, or leads to something else."""


def key_of(status: os.stat_result) -> int:
    """Return what a file is known by: its device, its inode number and its type, for a file of another type is another
    file. As one integer, which is a third of a tuple's size."""
    return (status.st_dev << 64 | status.st_ino) << 16 | stat.S_IFMT(status.st_mode)


class Node:
    """One file of the system. `parent` is None for the root and for files that have lost the name they were known
    by."""

    __slots__ = (
        "changed_ns",
        "children",
        "held",
        "key",
        "kind",
        "name",
        "name_unsynced",
        "number",
        "opened",
        "parent",
        "pin",
    )

    def __init__(self, number: int, status: os.stat_result) -> None:
        self.number = number
        self.key = key_of(status)
        self.kind = stat.S_IFMT(status.st_mode)
        self.changed_ns = status.st_ctime_ns  # when it was first seen
        self.parent: Node | None = None
        self.name = b""
        self.children = 0  # nodes with this `parent`
        self.held = False
        self.opened: OpenFile | None = None
        self.pin: Descriptor | None = None  # how it is found without a name
        self.name_unsynced = False  # its directory has not been synced since it got this name

    @property
    def inode(self) -> int:
        """The system's number for the file."""
        return self.key >> 16 & (1 << 64) - 1


class NodeTable:
    """Every node that is known, and descriptors of their files.

    Every step down is one `openat` with O_NOFOLLOW from the directory above. A missing file, or another file than the
    node's, is ESTALE.

    Args:
        root: the root directory, which belongs to this from now on.
    """

    def __init__(self, root: Descriptor) -> None:
        self._last = ROOT_NODE
        self.root = Node(ROOT_NODE, os.fstat(root.fd))
        self.root.held = True
        self.root.pin = root
        self._numbers: dict[int, Node] = {ROOT_NODE: self.root}
        self._keys: dict[int, Node] = {self.root.key: self.root}
        # In the order of their last use.
        self._idle_files: dict[int, Node] = {}
        self._idle_directories: dict[int, Node] = {}
        self._descriptors: Recent[int, Descriptor] = Recent(dirfd.most_cached())

    def __len__(self) -> int:
        return len(self._numbers)

    def get(self, number: int) -> Node:
        """The node of a number. ESTALE when it is not known (any more)."""
        node = self._numbers.get(number)
        if node is None:
            raise oserror(errno.ESTALE)
        if not node.held:
            idle = self._idle(node)
            if number in idle:
                del idle[number]
                idle[number] = node
        return node

    def find(self, status: os.stat_result) -> Node | None:
        """The node of a file, if it is known."""
        return self._keys.get(key_of(status))

    def twin(self, other: NodeTable, number: int | None) -> int | None:
        """The number here of the file that is `number` in another table, if both know it."""
        node = other._numbers.get(number) if number is not None else None
        found = None if node is None else self._keys.get(node.key)
        return None if found is None else found.number

    def depth(self, number: int) -> int:
        """How many directories down from the root the directory is in which a node was last seen."""
        depth, above = 0, self.get(number).parent
        while above is not None and above is not self.root:
            depth, above = depth + 1, above.parent
        return depth

    def seen(self, parent: Node, name: bytes, status: os.stat_result, *, new: bool = False) -> Node:
        """Return the node of a file that has just been found under a name; a new one if it was not known.

        Args:
            new: the file has just been made; a node with its inode number is of a file that is gone.
        """
        node = self.find(status)
        if node is not None and not new:
            if node.parent is parent and node.name == name:
                return node
            may_be_link = node.kind != stat.S_IFDIR and status.st_nlink > 1 and node.parent is not None
            new = not may_be_link and not self.is_same(node, parent, name, status)
        if node is None or new:
            # If the system has used an inode number again, the old node stays, and is stale.
            self._last += 1
            node = Node(self._last, status)
            self._numbers[node.number] = self._keys[node.key] = node
        self.place(node, parent, name)
        return node

    def place(self, node: Node, parent: Node | None, name: bytes = b"") -> None:
        """This is where the node is now; with no parent, it has lost its name."""
        if node is self.root:
            return
        before = node.parent
        node.parent, node.name = parent, name
        if parent is not None:
            parent.children += 1
            node.pin = None
            self.settle(parent)
        if before is not None:
            before.children -= 1
            self.settle(before)
        self.settle(node)

    def settle(self, node: Node) -> None:
        """Keep a node, let it be idle, or drop it, after what speaks for it has changed."""
        if node.held:
            return
        pending = [node]
        while pending:
            node = pending.pop()
            idle = self._idle(node)
            idle.pop(node.number, None)
            if node.held or node.opened is not None or node.children:
                continue
            if node.parent is not None:
                idle[node.number] = node
                if len(idle) <= (IDLE_DIRECTORIES if idle is self._idle_directories else IDLE_FILES):
                    continue
                node = idle.pop(next(iter(idle)))
            parent = self._drop(node)
            if parent is not None:
                pending.append(parent)

    def _drop(self, node: Node) -> Node | None:
        """Forget a node; its directory has one child less, and is returned for `settle`."""
        if self._numbers.pop(node.number, None) is None:
            return None
        if self._keys.get(node.key) is node:
            del self._keys[node.key]
        node.pin = None
        self._descriptors.pop(node.number, None)
        parent, node.parent = node.parent, None
        if parent is not None:
            parent.children -= 1
        return parent

    def hold(self, number: int, held: bool) -> None:
        """The kernel took or gave back a node. An unknown node is ignored."""
        node = self._numbers.get(number)
        if node is not None and node is not self.root and node.held != held:
            node.held = held
            if held:
                self._idle(node).pop(number, None)
            self.settle(node)

    def _idle(self, node: Node) -> dict[int, Node]:
        return self._idle_directories if node.kind == stat.S_IFDIR else self._idle_files

    # -- descriptors -------------------------------------------------------------------------------------------

    @property
    def root_descriptor(self) -> Descriptor:
        """EBADF when it is closed."""
        if self.root.pin is None:
            raise oserror(errno.EBADF)
        return self.root.pin

    def forget_descriptors(self) -> None:
        """Close the descriptors that can be opened again."""
        self._descriptors.clear()

    def close(self) -> None:
        """Close every descriptor."""
        for node in self._numbers.values():
            node.pin = node.opened = None
        self._descriptors.clear()

    def directory(self, number: int) -> tuple[Node, Descriptor]:
        """A directory and its descriptor. ENOTDIR for anything else; EIO for a root that was removed, which would look
        like an empty one."""
        node, at = self.directory_of_name(number)
        self.require_there(node)
        return node, at

    def directory_of_name(self, number: int) -> tuple[Node, Descriptor]:
        """As `directory`, for a caller that looks up a name in it, and calls `require_there` if there is none."""
        node = self.get(number)
        if node.kind != stat.S_IFDIR:
            raise oserror(errno.ENOTDIR)
        return node, self.of(node)

    def require_there(self, node: Node) -> None:
        """EIO for a root that was removed."""
        if node is self.root and not os.fstat(self.root_descriptor.fd).st_nlink:
            raise oserror(errno.EIO)

    def of(self, node: Node) -> Descriptor:
        """An O_PATH descriptor of the node's file. Its directories are opened as far up as is needed."""
        found = self._known(node)
        if found is not None:
            return found
        way = []
        while found is None:
            way.append(node)
            node = self._above(node)
            found = self._known(node)
        for node in reversed(way):
            found = self._step(found, node)
        return found

    def _known(self, node: Node) -> Descriptor | None:
        """A descriptor that is open already."""
        return node.pin or self._descriptors.use(node.number)

    def _above(self, node: Node) -> Node:
        """The directory that a node was last seen in. ESTALE for none, EBADF when the root is closed."""
        if node.parent is None:
            raise oserror(errno.EBADF if self.root.pin is None else errno.ESTALE)
        return node.parent

    def _step(self, above: Descriptor, node: Node) -> Descriptor:
        try:
            below = Descriptor(os.open(node.name, PATH_FLAGS, dir_fd=above.fd))
        except OSError as error:
            raise self._lost(node) if error.errno in _STALE else error from None
        if key_of(os.fstat(below.fd)) != node.key:
            raise self._lost(node)
        self._descriptors[node.number] = below
        return below

    def status(self, node: Node) -> os.stat_result:
        """`stat` of a node, by an open descriptor or else by its name, which opens nothing but directories."""
        known = node.opened.descriptor if node.opened is not None else self._known(node)
        if known is not None:
            return os.fstat(known.fd)
        above = self.of(self._above(node))
        try:
            status = os.stat(node.name, dir_fd=above.fd, follow_symlinks=False)
        except OSError as error:
            raise self._lost(node) if error.errno in _STALE else error from None
        if key_of(status) != node.key:
            raise self._lost(node)
        return status

    def _lost(self, node: Node) -> OSError:
        """Note that a node's name is gone or another file's, and return ESTALE. From now on a lookup finds it again."""
        self.place(node, None)
        return oserror(errno.ESTALE)

    def is_same(self, node: Node, parent: Node, name: bytes, status: os.stat_result) -> bool:
        """Return True if a file found under another name than the node's is the node's, which was moved.

        False if the system has used the inode number again: directories are made with one that was just freed (ext4).
        An open descriptor keeps a number. Else the file's birth time tells, against the node's ctime when it was first
        seen: they can be equal, within a tick of the clock (4 ms) of a new file. Then a rename has moved ctime since.
        Where the file system has no birth times, a node that was found to be gone stays gone.
        """
        if node.opened is not None or self._known(node) is not None:
            return True
        born_ns = dirfd.born_ns(self.of(parent), name)
        if born_ns is None:
            return node.parent is not None
        if born_ns == node.changed_ns:
            return status.st_ctime_ns > born_ns
        return born_ns < node.changed_ns

    def open(self, node: Node, flags: int) -> Descriptor:
        """Open a regular file for reading or writing. EISDIR for a directory, EINVAL for a special file."""
        if node.kind != stat.S_IFREG:
            raise oserror(errno.EISDIR if node.kind == stat.S_IFDIR else errno.EINVAL)
        found = self.of(node)
        return Descriptor(os.open(found.path, flags | FILE_FLAGS))

    def to_sync(self, node: Node) -> list[Descriptor]:
        """Return descriptors, which the caller closes, to sync for a node's data and name to be durable.

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
    if name in (b"", b".", b"..") or ord("/") in name or 0 in name:  # 0.3 us less than with bytes, for each of them
        raise oserror(errno.EINVAL, name)


def group_of_new(above: os.stat_result, caller: Caller) -> int:
    """The group of something new in this directory: one with set-group-ID passes its own on (POSIX, open)."""
    return above.st_gid if above.st_mode & stat.S_ISGID else caller.gid


def attr_of(node: Node, status: os.stat_result) -> Attr:
    """Return the attributes of a node's file."""
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
