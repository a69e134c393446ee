"""`VolumeMachine`: runs the rules on a volume's kernel face, called as the mount calls it.

The machine holds every node that it has looked up or made, and forgets them from time to time, parents after their
children. A node without a name, a handle or a hold must be gone. Listings are read in small pages, after any name.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from fusebackend.protocol import ROOT_NODE, Attr, AttrChanges, Caller, Volume
from fusebackend.testing.model.machine import TreeMachine
from fusebackend.testing.model.tree import Node, Tree
from fusebackend.testing.model.values import NAMES
from fusebackend.testing.posix.case import refused

OPEN_FLAGS = os.O_RDWR


class VolumeMachine(TreeMachine):
    """Subclass it and override `make_volume`; see the package's docstring."""

    owners: tuple[tuple[int, int], ...] = ((0, 0), (1000, 1000))
    """(uid, gid) of the callers that make nodes."""

    keeps_numbers = False
    """Nodes have the same numbers after `reopen_volume`."""

    def __init__(self) -> None:
        self.volume = self.make_volume()
        self.features = self.volume.features
        root = self.volume.getattr(ROOT_NODE)
        super().__init__(Tree(root.mode, root.uid, root.gid))
        self.held: set[Node] = set()  # nodes with a lookup count above 0
        self.tree.root.number = ROOT_NODE

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
            for handle in self.handles:
                self.do_close(handle.token)
        self.handles, self.orphans, self.held = [], [], set()
        self.volume.close()
        volume = self.reopen_volume()
        assert volume is not None
        self.volume = volume
        before = {node: node.number for node in self.tree.nodes()}
        for node in self.tree.nodes():
            node.number = 0
        self.tree.root.number = ROOT_NODE
        for node, number in before.items():
            now = self.number(node)
            assert not self.keeps_numbers or number in (0, now), f"{node!r} was node {number} and is {now}"

    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        """Forget a node as the kernel does: never the root, and a directory after its children."""
        node = self.draw_node(data, lambda node: node in self.held and self.held.isdisjoint(node.children.values()))
        if node is not None:
            self.held.remove(node)
            self.volume.forget([node.number])
            self._let_go(node)

    def made(self, node: Node) -> None:
        self.held.add(node)

    def lost_name(self, node: Node) -> None:
        if node.links == 0 and node.number:
            self.orphans.append(node)

    def closed(self, node: Node) -> None:
        self._let_go(node)

    def _let_go(self, node: Node) -> None:
        """Check a node after a forget or a close: without a name, a handle or a hold it must be gone."""
        if node in self.held or self.is_open(node):
            return
        if node.links:
            node.number = 0  # it may get another when it is looked up again
            return
        self.orphans.remove(node)
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
                    number = self._held(self.volume.lookup, above.number, name).node
                    assert child.number in (0, number), f"{child!r} is open as {child.number}, and found as {number}"
                    child.number = number
                    self.held.add(child)
                above = child
        return node.number

    def _held(self, call: Callable[..., Attr], *arguments: Any) -> Attr:
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

    # -- how it is done ----------------------------------------------------------------------------------------

    def draw_owner(self, data: st.DataObject) -> tuple[int, int]:
        return data.draw(st.sampled_from(self.owners))

    def do_create(self, parent: Node, name: bytes, mode: int, owner: tuple[int, int]) -> tuple[int, Any]:
        number = self._held(self.volume.create, self.number(parent), name, mode, OPEN_FLAGS, Caller(*owner)).node
        return number, number

    def do_make(self, parent: Node, name: bytes, mode: int, target: bytes, owner: tuple[int, int]) -> int:
        holder, caller = self.number(parent), Caller(*owner)
        if stat.S_ISDIR(mode):
            return self._held(self.volume.mkdir, holder, name, stat.S_IMODE(mode), caller).node
        if stat.S_ISLNK(mode):
            return self._held(self.volume.symlink, holder, name, target, caller).node
        return self._held(self.volume.mknod, holder, name, mode, 0, caller).node

    def do_link(self, node: Node, parent: Node, name: bytes) -> None:
        number = self._held(self.volume.link, self.number(node), self.number(parent), name).node
        assert number == node.number, f"a link to node {node.number} is node {number}"

    def do_unlink(self, parent: Node, name: bytes) -> None:
        self.volume.unlink(self.number(parent), name)

    def do_rmdir(self, parent: Node, name: bytes) -> None:
        self.volume.rmdir(self.number(parent), name)

    def do_rename(self, parent: Node, name: bytes, new_parent: Node, new_name: bytes, flags: int) -> None:
        self.volume.rename(self.number(parent), name, self.number(new_parent), new_name, flags)

    def do_setattr(self, node: Node, changes: AttrChanges) -> None:
        self.volume.setattr(self.number(node), changes)

    def do_setxattr(self, node: Node, name: bytes, value: bytes) -> None:
        self.volume.setxattr(self.number(node), name, value)

    def do_removexattr(self, node: Node, name: bytes) -> None:
        self.volume.removexattr(self.number(node), name)

    def do_xattrs(self, node: Node) -> dict[bytes, bytes]:
        number = self.number(node)
        return {name: self.volume.getxattr(number, name) for name in self.volume.listxattr(number)}

    def do_readlink(self, node: Node) -> bytes:
        return self.volume.readlink(self.number(node))

    def do_open(self, node: Node) -> Any:
        self.volume.open(self.number(node), OPEN_FLAGS)
        return node.number

    def do_close(self, token: Any) -> None:
        if not self.volume.features.random_writes:
            self.volume.flush(token)
        self.volume.release(token, OPEN_FLAGS)

    def do_read(self, token: Any, offset: int, size: int) -> bytes:
        return self.volume.read(token, offset, size)

    def do_write(self, token: Any, offset: int, data: bytes) -> None:
        assert self.volume.write(token, offset, data) == len(data)

    def do_sync(self, token: Any) -> None:
        self.volume.fsync(token)

    def do_stat(self, node: Node) -> Attr:
        return self.volume.getattr(self.number(node))

    def do_list(self, directory: Node) -> list[tuple[bytes, int]]:
        number, listed, after = self.number(directory), list[tuple[bytes, int]](), b""
        while page := self.volume.readdir(number, after, 3):
            listed += [(name, attr.node) for name, attr in page]
            after = listed[-1][0]
        return listed
