"""Random operations against a dict: a hypothesis state machine for authors of volumes.

    from fusebackend.testing.model import VolumeMachine

    class MyMachine(VolumeMachine):
        def make_volume(self):
            return MyVolume()                     # new and empty

    TestMine = MyMachine.TestCase
    TestMine.settings = hypothesis.settings(max_examples=50, stateful_step_count=40, deadline=None)

`VolumeMachine` drives a `Volume` through its methods; with `reopen_volume` it also closes and opens it again. After
every step all names, link counts, sizes and modes are compared with the model (`Tree`), and after every write the
whole of the file. Operations that a volume's `features` exclude are skipped.

Over a `DirectoryVolume` (`backends/directory`) of a mounted directory its operations are system calls there; a plain
directory first proves that.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import stat
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fusebackend.protocol import RENAME_EXCHANGE, RENAME_NOREPLACE, ROOT_NODE, Attr, AttrChanges, Caller, Volume
from fusebackend.testing.posix.case import refused
from fusebackend.volumes.walk import paged

# -- values ------------------------------------------------------------------------------------------------------
#
# Names, offsets and contents that the machines try: few, so that they collide, and on both sides of every border.


NAMES = (b"a", b"b", b"c", b"d.txt", b"\xff\xfe", b"new\nline", "ü 字".encode(), b"n" * 255)
XATTRS = (b"user.a", b"user.b")
BORDERS = (0, 1, 100, 4095, 4096, 4097, 65535, 65536, 65537, 131071, 131072, 131073, 200_000)
"""Offsets and sizes around pages and chunks, where off-by-one errors show."""

MAX_FILE_BYTES = 320_000

NOISE = random.Random(0).randbytes(2 * MAX_FILE_BYTES)
"""The bytes of files. No two places of it look the same, so that misplaced bytes show."""

offsets = st.sampled_from(BORDERS) | st.integers(0, 200_000)
lengths = st.sampled_from(BORDERS[1:8]) | st.integers(1, 100_000)
contents = st.builds(lambda start, length: NOISE[start : start + length], st.integers(0, MAX_FILE_BYTES), lengths)
times = st.integers(-(10**18), 4 * 10**18)


# -- the model ---------------------------------------------------------------------------------------------------
#
# A POSIX tree in dicts, without storage, caches or concurrency.
#
# The `may_…` methods return the errnos that an operation may fail with (an empty set: it must succeed), the others
# apply it to the tree. Where POSIX leaves the order of the checks open, every errno that applies is allowed.


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


# -- the machine -------------------------------------------------------------------------------------------------
#
# Random operations on a volume's kernel face, called as the mount calls it, and what must hold.
#
# Every rule draws its operands from the model, gets from it the errnos that are allowed, does the operation, and then
# repeats it on the model. The machine holds every node that it has looked up or made, and forgets them from time to
# time, parents after their children. A node without a name, a handle or a hold must be gone. Listings are read in small
# pages, after any name.


OPEN_FLAGS = os.O_RDWR


class Done(NamedTuple):
    """An operation that was not refused, and its result."""

    result: Any


class VolumeMachine(RuleBasedStateMachine):
    """Subclass it and override `make_volume`; see the package's docstring."""

    directory_links = True
    """Directories count their subdirectories in `st_nlink` (some disks don't)."""

    owners: tuple[tuple[int, int], ...] = ((0, 0), (1000, 1000))
    """(uid, gid) of the callers that make nodes."""

    keeps_numbers = False
    """Nodes have the same numbers after `reopen_volume`."""

    def __init__(self) -> None:
        super().__init__()
        self.volume = self.make_volume()
        self.features = self.volume.features
        root = self.volume.getattr(ROOT_NODE)
        self.tree = Tree(root.mode, root.uid, root.gid)
        self.tree.root.number = ROOT_NODE
        self.handles: list[Node] = []  # open files, each as often as it is open
        self.held: set[Node] = set()  # nodes with a lookup count above 0
        self.recent: Node | None = None  # the file that data rules used last

    def make_volume(self) -> Volume:
        """Return a new and empty volume."""
        raise NotImplementedError("override make_volume")

    def reopen_volume(self) -> Volume | None:
        """Open the volume again after it was closed; None when nothing outlives it."""
        return None

    def teardown(self) -> None:
        self.volume.close()

    # -- life --------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.volume.features.durable)
    @rule()
    def sync(self) -> None:
        self.volume.sync()

    @precondition(lambda self: type(self).reopen_volume is not VolumeMachine.reopen_volume)
    @rule(release=st.booleans())
    def reopen(self, release: bool) -> None:
        """Close and reopen the volume: after a clean unmount (`release`), or with files still open."""
        if release:
            for node in self.handles:
                self.release(node)
        self.volume.close()
        volume = self.reopen_volume()
        assert volume is not None
        before = {node: node.number for node in self.tree.nodes()}
        self.start_over(volume)
        for node, number in before.items():
            now = self.number(node)
            assert not self.keeps_numbers or number in (0, now), f"{node!r} was node {number} and is {now}"

    def start_over(self, volume: Volume) -> None:
        """Go on with another volume that has the same files. Nothing is open or held there."""
        self.volume = volume
        self.handles, self.held = [], set()
        for node in self.tree.nodes():
            node.number = 0
        self.tree.root.number = ROOT_NODE

    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        """Forget a node as the kernel does: never the root, and a directory after its children."""
        node = self.draw_node(data, lambda node: node in self.held and self.held.isdisjoint(node.children.values()))
        if node is not None:
            self.held.remove(node)
            self.volume.forget([node.number])
            self._let_go(node)

    @property
    def orphans(self) -> list[Node]:
        """Nodes without a name that are still open or held, in the order of making."""
        return in_order(node for node in {*self.handles, *self.held} if node.links == 0)

    def _let_go(self, node: Node) -> None:
        """Check a node after a forget or a close: without a name, a handle or a hold it must be gone."""
        if node in self.held or node in self.handles:
            return
        if node.links:
            node.number = 0  # it may get another when it is looked up again
            return
        refused((errno.ENOENT, errno.ESTALE), self.volume.getattr, node.number)

    def number(self, node: Node) -> int:
        """Return the volume's number of a node; look it up and hold it if it was forgotten."""
        if node.links and node is not self.tree.root and node not in self.held:
            path = self.tree.path_of(node)
            assert path, f"{node!r} has no name to look it up by"
            above = self.tree.root
            for name in path:
                child = above.children[name]
                if child not in self.held:
                    number = self._hold(self.volume.lookup, above.number, name).node
                    assert child.number in (0, number), f"{child!r} is open as {child.number}, and found as {number}"
                    child.number = number
                    self.held.add(child)
                above = child
        return node.number

    def _hold(self, call: Callable[..., Attr], *arguments: Any) -> Attr:
        """Call and hold under the volume's lock, as the mount does: the node can't be freed between the two."""
        with self.volume.lock:
            attr = call(*arguments)
            self.volume.hold(attr.node)
            return attr

    # -- listing -----------------------------------------------------------------------------------------------

    @rule(data=st.data(), after=st.sampled_from((b"", *NAMES)), limit=st.integers(1, 5))
    def list_page(self, data: st.DataObject, after: bytes, limit: int) -> None:
        """Read a page after any name: it must hold the present names that follow, in order, after any changes."""
        directory = self.draw_directory(data)
        refusals = set() if directory.is_directory else {errno.ENOTDIR}
        done = self.attempt(refusals, self.volume.readdir, self.number(directory), after, limit)
        if done is not None:
            wanted = [name for name in sorted(directory.children) if name > after]
            got = [name for name, _ in done.result]
            assert got == wanted[: len(got)] and len(got) <= limit, f"page after {after!r}: {got} of {wanted}"
            assert bool(got) == bool(wanted), f"the listing ended after {after!r}, before {wanted}"
            for name, attr in done.result:
                self._compare_attributes(directory.children[name], attr)

    @rule(data=st.data())
    def look_up(self, data: st.DataObject) -> None:
        parent = self.draw_directory(data)
        name = self.draw_name(data, parent)
        done = self.attempt(self.tree.may_find(parent, name), self.volume.lookup, self.number(parent), name)
        if done is not None:
            assert parent.children[name].number in (0, done.result.node), f"{name!r} in {parent!r}: {done.result!r}"

    # -- choosing ----------------------------------------------------------------------------------------------

    def attempt(
        self, refusals: Refusals, call: Callable[..., Any], *arguments: Any, is_held: bool = False
    ) -> Done | None:
        """Call. With `refusals` it must fail with one of these errnos, and without any it must succeed. With `is_held`
        the node that it returns is held."""
        try:
            result = self._hold(call, *arguments) if is_held else call(*arguments)
        except OSError as error:
            wanted = [errno.errorcode[number] for number in refusals] or "success"
            assert error.errno in refusals, f"{call}{arguments}: {error!r} instead of {wanted}"
            return None
        assert not refusals, f"{call}{arguments}: success instead of {[errno.errorcode[n] for n in refusals]}"
        return Done(result)

    def draw_directory(self, data: st.DataObject) -> Node:
        """Draw mostly a directory; sometimes another kind of file, where every name is ENOTDIR."""
        lost = [node for node in self.orphans if node.is_directory]
        others = [node for node in self.tree.nodes() if not node.is_link]
        return data.draw(st.sampled_from(self.tree.directories() * 8 + lost * 4 + others))

    def draw_node(self, data: st.DataObject, wanted: Callable[[Node], bool] = lambda node: True) -> Node | None:
        nodes = [node for node in self.tree.nodes() + self.orphans * 3 if wanted(node)]
        if self.recent in nodes:
            nodes += [self.recent] * len(nodes)
        return data.draw(st.sampled_from(nodes)) if nodes else None

    def draw_file(self, data: st.DataObject) -> Node | None:
        """Draw a file; about half of the time the last one again, since most defects need several changes to show."""
        file = self.draw_node(data, lambda node: node.is_file)
        self.recent = file or self.recent
        return file

    def draw_open(self, data: st.DataObject) -> Node:
        recent = [node for node in self.handles if node is self.recent]
        self.recent = node = data.draw(st.sampled_from(self.handles + recent * len(self.handles)))
        return node

    def draw_places(self, data: st.DataObject) -> tuple[Node, bytes, Node, bytes]:
        """Draw source and target of a rename: mostly an existing source, half of the time over a file of its kind."""
        entries = [(holder, name) for holder in self.tree.directories() for name in sorted(holder.children)]
        source = self.draw_directory(data)
        parent, name = data.draw(st.sampled_from(entries * 4 + [(source, self.draw_name(data, source))]))
        moved = parent.children.get(name)
        like = [
            (holder, other)
            for holder, other in entries
            if moved is not None and holder.children[other].is_directory == moved.is_directory
        ]
        target = self.draw_directory(data)
        anywhere = [(target, self.draw_name(data, target))]
        return parent, name, *data.draw(st.sampled_from(like + anywhere * max(len(like), 1)))

    def draw_name(self, data: st.DataObject, directory: Node) -> bytes:
        """Draw a name, mostly an existing one."""
        return data.draw(st.sampled_from(NAMES + tuple(sorted(directory.children)) * len(NAMES)))

    # -- rules: names ------------------------------------------------------------------------------------------

    @rule(data=st.data(), mode=st.sampled_from((0o600, 0o644, 0o755)))
    def create(self, data: st.DataObject, mode: int) -> None:
        node = self._make(data, stat.S_IFREG | mode, self.volume.create, mode, OPEN_FLAGS)
        if node is not None:
            self.handles.append(node)

    @rule(data=st.data(), mode=st.sampled_from((0o700, 0o755)))
    def mkdir(self, data: st.DataObject, mode: int) -> None:
        self._make(data, stat.S_IFDIR | mode, self.volume.mkdir, mode)

    @precondition(lambda self: self.features.symlinks)
    @rule(data=st.data(), leads_to=st.sampled_from((b"a", b"../b", b"/nowhere", b"\xff" * 1000)))
    def symlink(self, data: st.DataObject, leads_to: bytes) -> None:
        node = self._make(data, stat.S_IFLNK | 0o777, self.volume.symlink, leads_to)
        if node is not None:
            node.data[:] = leads_to

    @precondition(lambda self: self.features.special_files)
    @rule(data=st.data(), kind=st.sampled_from((stat.S_IFIFO, stat.S_IFSOCK)))
    def mknod(self, data: st.DataObject, kind: int) -> None:
        self._make(data, kind | 0o600, self.volume.mknod, kind | 0o600, 0)

    def _make(self, data: st.DataObject, mode: int, call: Callable[..., Attr], *arguments: Any) -> Node | None:
        """Make a node by a call of the volume, in a directory and under a name that are drawn."""
        parent, owner = self.draw_directory(data), data.draw(st.sampled_from(self.owners))
        name, number = data.draw(st.sampled_from(NAMES)), self.number(parent)
        refusals = self.tree.may_add(parent, name)
        done = self.attempt(refusals, call, number, name, *arguments, Caller(*owner), is_held=True)
        if done is None:
            return None
        node = self.tree.add(parent, name, mode, *owner)
        node.number = done.result.node
        self.held.add(node)
        return node

    @precondition(lambda self: self.features.links)
    @rule(data=st.data())
    def link(self, data: st.DataObject) -> None:
        node, parent = self.draw_node(data), self.draw_directory(data)
        name = data.draw(st.sampled_from(NAMES))
        assert node is not None
        numbers = self.number(node), self.number(parent)
        refusals = self.tree.may_link(node, parent, name)
        done = self.attempt(refusals, self.volume.link, *numbers, name, is_held=True)
        if done is not None:
            assert done.result.node == node.number, f"a link to node {node.number} is node {done.result.node}"
            self.tree.link(parent, name, node)

    @rule(data=st.data())
    def unlink(self, data: st.DataObject) -> None:
        parent = self.draw_directory(data)
        name = self.draw_name(data, parent)
        if self.attempt(self.tree.may_unlink(parent, name), self.volume.unlink, self.number(parent), name):
            self.tree.remove(parent, name)

    @rule(data=st.data())
    def rmdir(self, data: st.DataObject) -> None:
        parent = self.draw_directory(data)
        name = self.draw_name(data, parent)
        if self.attempt(self.tree.may_rmdir(parent, name), self.volume.rmdir, self.number(parent), name):
            self.tree.remove(parent, name)

    @precondition(lambda self: self.features.rename)
    @rule(data=st.data(), flags=st.sampled_from((0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE)))
    def rename(self, data: st.DataObject, flags: int) -> None:
        self.move(*self.draw_places(data), flags)

    def move(self, parent: Node, name: bytes, new_parent: Node, new_name: bytes, flags: int) -> None:
        """Rename, in the volume and in the model."""
        refusals = self.tree.may_rename(parent, name, new_parent, new_name, flags)
        places = self.number(parent), name, self.number(new_parent), new_name
        if self.attempt(refusals, self.volume.rename, *places, flags):
            self.tree.rename(parent, name, new_parent, new_name, flags)

    # -- rules: attributes -------------------------------------------------------------------------------------

    @precondition(lambda self: self.features.persistent_modes)
    @rule(data=st.data(), mode=st.sampled_from((0o700, 0o711, 0o755, 0o2755, 0o1777)))
    def chmod(self, data: st.DataObject, mode: int) -> None:
        node = self.draw_node(data, lambda node: not node.is_link)
        if node is not None and (node.is_directory or mode < 0o1000):
            self.volume.setattr(self.number(node), AttrChanges(mode=mode))
            node.mode = stat.S_IFMT(node.mode) | mode

    @precondition(lambda self: self.features.persistent_modes)
    @rule(data=st.data(), mtime_ns=times)
    def set_times(self, data: st.DataObject, mtime_ns: int) -> None:
        node = self.draw_file(data)
        if node is not None:
            self.volume.setattr(self.number(node), AttrChanges(atime_ns=mtime_ns // 2, mtime_ns=mtime_ns))
            node.mtime_ns = mtime_ns

    @precondition(lambda self: self.features.xattrs)
    @rule(data=st.data(), name=st.sampled_from(XATTRS), value=st.sampled_from((b"", b"value", b"\0" * 1000)))
    def set_xattr(self, data: st.DataObject, name: bytes, value: bytes) -> None:
        node = self.draw_node(data, lambda node: node.is_file or node.is_directory)
        if node is not None:
            self.volume.setxattr(self.number(node), name, value)
            node.xattrs[name] = value

    @precondition(lambda self: self.features.xattrs)
    @rule(data=st.data(), name=st.sampled_from(XATTRS))
    def remove_xattr(self, data: st.DataObject, name: bytes) -> None:
        node = self.draw_node(data, lambda node: bool(node.xattrs))
        if node is not None:
            refusals = set() if name in node.xattrs else {errno.ENODATA}
            if self.attempt(refusals, self.volume.removexattr, self.number(node), name):
                del node.xattrs[name]

    # -- rules: data -------------------------------------------------------------------------------------------

    @rule(data=st.data())
    def open(self, data: st.DataObject) -> None:
        node = self.draw_file(data)
        if node is not None and len(self.handles) < 20:
            self.volume.open(self.number(node), OPEN_FLAGS)
            self.handles.append(node)

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        node = self.handles.pop(data.draw(st.integers(0, len(self.handles) - 1)))
        self.release(node)
        self._let_go(node)

    def release(self, node: Node) -> None:
        """Close a handle, as the kernel does."""
        if not self.features.random_writes:
            self.volume.flush(node.number)
        self.volume.release(node.number, OPEN_FLAGS)

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), offset=offsets, content=contents)
    def write(self, data: st.DataObject, offset: int, content: bytes) -> None:
        node, content = self.draw_open(data), content[: MAX_FILE_BYTES - offset]
        assert self.volume.write(node.number, offset, content) == len(content)
        self.tree.write(node, offset, content)
        self._compare(node, 0, MAX_FILE_BYTES + 1)

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), offset=offsets, size=lengths)
    def read(self, data: st.DataObject, offset: int, size: int) -> None:
        self._compare(self.draw_open(data), offset, size)

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def sync_file(self, data: st.DataObject) -> None:
        self.volume.fsync(self.draw_open(data).number)

    @rule(data=st.data(), size=offsets)
    def truncate(self, data: st.DataObject, size: int) -> None:
        node = self.draw_file(data)
        if node is not None:
            self.volume.setattr(self.number(node), AttrChanges(size=size))
            self.tree.resize(node, size)
            self._open_and_compare(node)

    @rule()
    def read_everything(self) -> None:
        """Read every file, link and extended attribute, and compare them with the model."""
        for node in self.tree.nodes():
            if node.is_file:
                self._open_and_compare(node)
            elif node.is_link:
                assert self.volume.readlink(self.number(node)) == node.data, f"target of {node!r}"
            if self.features.xattrs and (node.is_file or node.is_directory):
                number = self.number(node)
                one_by_one = {name: self.volume.getxattr(number, name) for name in self.volume.listxattr(number)}
                assert one_by_one == self.volume.xattrs(number) == node.xattrs, f"extended attributes of {node!r}"

    def _open_and_compare(self, node: Node) -> None:
        self.volume.open(self.number(node), OPEN_FLAGS)
        self._compare(node, 0, MAX_FILE_BYTES + 1)
        for offset in BORDERS:
            found = self.volume.next_data(node.number, offset)
            assert not any(node.data[offset:found]), f"data of {node!r} behind {offset} is in a hole, up to {found}"
        self.release(node)

    def _compare(self, node: Node, offset: int, size: int) -> None:
        got = self.volume.read(node.number, offset, size)
        wanted = bytes(node.data[offset : offset + size])
        if got != wanted:
            at = next((at for at, pair in enumerate(zip(got, wanted, strict=False)) if pair[0] != pair[1]), None)
            raise AssertionError(
                f"reading {size} at {offset} of {node!r}: {len(got)} bytes instead of {len(wanted)}"
                + (f", the first wrong one at {offset + at}" if at is not None else "")
            )

    # -- what must hold ----------------------------------------------------------------------------------------

    @invariant()
    def names_are_right(self) -> None:
        for path, node in self.tree.walk():
            if node.is_directory:
                listed = [(name, attr.node) for name, attr in paged(self.volume.readdir, self.number(node), 3)]
                wanted = sorted(node.children)
                assert [name for name, _ in listed] == wanted, f"names in {b'/'.join(path)!r}"
                for name, number in listed:
                    known = node.children[name].number
                    assert known in (0, number), f"{name!r} in {b'/'.join(path)!r} is {number}, it was {known}"

    @invariant()
    def attributes_are_right(self) -> None:
        for node in self.tree.nodes() + self.orphans:
            self._compare_attributes(node, self.volume.getattr(self.number(node)))

    def _compare_attributes(self, node: Node, attr: Attr) -> None:
        features = self.features
        assert stat.S_IFMT(attr.mode) == stat.S_IFMT(node.mode), f"type of {node!r}: {attr!r}"
        assert attr.blocks >= 0, f"blocks of {node!r}: {attr!r}"
        if features.persistent_modes:
            got, wanted = (attr.mode, attr.uid, attr.gid), (node.mode, node.uid, node.gid)
            assert got == wanted, f"mode and owner of {node!r}: {got} instead of {wanted}"
        if self.directory_links if node.is_directory else features.links:
            assert attr.nlink == node.nlink, f"link count of {node!r}: {attr.nlink} instead of {node.nlink}"
        if node.is_file or node.is_link:
            assert attr.size == len(node.data), f"size of {node!r}: {attr.size} instead of {len(node.data)}"
        if node.mtime_ns is not None and features.persistent_modes:
            assert attr.mtime_ns == node.mtime_ns, f"mtime of {node!r}: {attr.mtime_ns} instead of {node.mtime_ns}"
