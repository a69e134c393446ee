"""The model: a POSIX tree in dicts, without storage, caches or concurrency.

The `may_…` methods return the errnos that an operation may fail with (an empty set: it must succeed), the others apply
it to the tree. Where POSIX leaves the order of the checks open, every errno that applies is allowed.
"""

from __future__ import annotations

import errno
import itertools
import stat
from collections.abc import Iterable, Iterator

from fusebackend.protocol import RENAME_EXCHANGE, RENAME_NOREPLACE

Refusals = set[int]


class Node:
    """A file, directory, link or special file, with the notes that a machine keeps about it."""

    def __init__(self, serial: int, mode: int, uid: int, gid: int) -> None:
        self.serial = serial  # in the order of making
        self.mode = mode
        self.uid = uid
        self.gid = gid
        self.children: dict[bytes, Node] = {}  # of a directory, by their names
        self.parent: Node | None = None  # of a directory that has not been removed
        self.links = 0  # names
        self.data = bytearray()  # of a file; the target of a link
        self.xattrs: dict[bytes, bytes] = {}
        self.mtime_ns: int | None = None  # when it was set and not changed since
        self.number = 0  # its node number in the volume while the machine holds it, else 0

    def __repr__(self) -> str:
        return f"<{self.serial} {self.mode:o} {self.links} names>"

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.mode)

    @property
    def nlink(self) -> int:
        if not self.is_directory:
            return self.links
        return 2 + sum(child.is_directory for child in self.children.values()) if self.links else 0


def in_order(nodes: Iterable[Node]) -> list[Node]:
    """Return the nodes in the order of making."""
    return sorted(nodes, key=lambda node: node.serial)


class Tree:
    """A tree of nodes with names. The machine knows those that lost their last name (`VolumeMachine.orphans`)."""

    def __init__(self, mode: int, uid: int, gid: int) -> None:
        self._serials = itertools.count(1)
        self.root = Node(next(self._serials), mode, uid, gid)
        self.root.links = 1
        self.root.parent = self.root

    def walk(self) -> Iterator[tuple[tuple[bytes, ...], Node]]:
        """Yield every name as a path, parents first, in the order of names. A file with two names comes twice."""
        waiting: list[tuple[tuple[bytes, ...], Node]] = [((), self.root)]
        while waiting:
            path, node = waiting.pop(0)
            yield path, node
            waiting += [((*path, name), child) for name, child in sorted(node.children.items())]

    def nodes(self) -> list[Node]:
        """Return every node that has a name, once, in the order of making."""
        return in_order({node for _, node in self.walk()})

    def directories(self) -> list[Node]:
        return [node for node in self.nodes() if node.is_directory]

    def path_of(self, wanted: Node) -> tuple[bytes, ...] | None:
        """Return the first path to a node; None when it has no name left."""
        return next((path for path, node in self.walk() if node is wanted), None)

    def add(self, parent: Node, name: bytes, mode: int, uid: int, gid: int) -> Node:
        """Make a node under a new name. A setgid directory passes its group on, and to directories the bit as well."""
        inherits = bool(parent.mode & stat.S_ISGID)
        if inherits and stat.S_ISDIR(mode):
            mode |= stat.S_ISGID
        node = Node(next(self._serials), mode, uid, parent.gid if inherits else gid)
        self.link(parent, name, node)
        return node

    # -- names -------------------------------------------------------------------------------------------------

    def may_find(self, parent: Node, name: bytes) -> Refusals:
        if not parent.is_directory:
            return {errno.ENOTDIR}
        return set() if name in parent.children else {errno.ENOENT}

    def may_add(self, parent: Node, name: bytes) -> Refusals:
        if not parent.is_directory:
            return {errno.ENOTDIR}
        if parent.links == 0:
            return {errno.ENOENT}
        return {errno.EEXIST} if name in parent.children else set()

    def may_link(self, node: Node, parent: Node, name: bytes) -> Refusals:
        refusals = self.may_add(parent, name)
        if node.is_directory:
            refusals.add(errno.EPERM)
        elif node.links == 0:
            refusals.add(errno.ENOENT)
        return refusals

    def link(self, parent: Node, name: bytes, node: Node) -> None:
        assert parent.is_directory and name not in parent.children
        parent.children[name] = node
        node.links += 1
        if node.is_directory:
            node.parent = parent

    def may_unlink(self, parent: Node, name: bytes) -> Refusals:
        return self.may_find(parent, name) or ({errno.EISDIR} if parent.children[name].is_directory else set())

    def may_rmdir(self, parent: Node, name: bytes) -> Refusals:
        refusals = self.may_find(parent, name)
        if refusals:
            return refusals
        node = parent.children[name]
        if not node.is_directory:
            return {errno.ENOTDIR}
        return {errno.ENOTEMPTY} if node.children else set()

    def remove(self, parent: Node, name: bytes) -> None:
        node = parent.children.pop(name)
        node.links -= 1
        if node.is_directory:
            node.parent = None

    def may_rename(self, parent: Node, name: bytes, new_parent: Node, new_name: bytes, flags: int) -> Refusals:
        refusals = self.may_find(parent, name)
        if not new_parent.is_directory:
            return refusals | {errno.ENOTDIR}
        if new_parent.links == 0:
            return refusals | {errno.ENOENT}
        if refusals:
            return refusals
        node, target = parent.children[name], new_parent.children.get(new_name)
        if target is None:
            if flags == RENAME_EXCHANGE:
                refusals.add(errno.ENOENT)
        elif flags == RENAME_NOREPLACE:
            refusals.add(errno.EEXIST)
        elif flags == 0 and target is not node:
            refusals |= self._may_replace(node, target)
        if self._is_above(node, new_parent):
            refusals.add(errno.EINVAL)
        if target is not None and target is not node and self._is_above(target, parent):
            refusals.add(errno.EINVAL if flags == RENAME_EXCHANGE else errno.ENOTEMPTY)
        return refusals

    def rename(self, parent: Node, name: bytes, new_parent: Node, new_name: bytes, flags: int) -> None:
        node, target = parent.children[name], new_parent.children.get(new_name)
        if target is node:
            return
        self.remove(parent, name)
        if target is not None:
            self.remove(new_parent, new_name)
        self.link(new_parent, new_name, node)
        if flags == RENAME_EXCHANGE and target is not None:
            self.link(parent, name, target)

    def _may_replace(self, node: Node, target: Node) -> Refusals:
        if node.is_directory and not target.is_directory:
            return {errno.ENOTDIR}
        if target.is_directory and not node.is_directory:
            return {errno.EISDIR}
        return {errno.ENOTEMPTY} if target.children else set()

    def _is_above(self, node: Node, directory: Node) -> bool:
        """Return whether `node` is the directory itself, or one above it."""
        above: Node | None = directory
        while above is not None and above is not node and above is not self.root:
            above = above.parent
        return above is node

    # -- data --------------------------------------------------------------------------------------------------

    def write(self, node: Node, offset: int, data: bytes) -> None:
        if not data:
            return
        if offset > len(node.data):
            node.data.extend(bytes(offset - len(node.data)))
        node.data[offset : offset + len(data)] = data
        node.mtime_ns = None

    def resize(self, node: Node, size: int) -> None:
        del node.data[size:]
        node.data.extend(bytes(size - len(node.data)))
        node.mtime_ns = None
