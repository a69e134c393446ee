"""`TreeMachine`: the rules of both machines, and the invariants checked after each of them.

A subclass implements each operation (the methods from `do_create` to `do_list`); they return numbers that identify
nodes, and raise `OSError`. Every rule draws its operands from the model, gets from it the errnos that are allowed, does
the operation, and then repeats it on the model.
"""

from __future__ import annotations

import abc
import errno
import os
import stat
from collections.abc import Callable
from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fusebackend.protocol import RENAME_EXCHANGE, RENAME_NOREPLACE, Attr, AttrChanges, Features
from fusebackend.testing.model.tree import Node, Refusals, Tree
from fusebackend.testing.model.values import MAX_FILE_BYTES, NAMES, XATTRS, contents, lengths, offsets, times


class Handle(NamedTuple):
    """An open file: its node, and the subclass's token for reading and writing it."""

    node: Node
    token: Any


class Done(NamedTuple):
    """An operation that was not refused, and its result."""

    result: Any


class TreeMachine(RuleBasedStateMachine):
    """See the module's docstring."""

    features: Features = Features()
    directory_links = True
    """Directories count their subdirectories in `st_nlink` (some disks don't)."""

    def __init__(self, tree: Tree) -> None:
        super().__init__()
        self.tree = tree
        self.handles: list[Handle] = []
        self.orphans: list[Node] = []  # nodes without a name that are still open or held
        self.recent: Node | None = None  # the file that data rules used last

    # -- how it is done ----------------------------------------------------------------------------------------

    @abc.abstractmethod
    def do_create(self, parent: Node, name: bytes, mode: int, owner: tuple[int, int]) -> tuple[int, Any]:
        """Make a file and open it; return its number and the token of the handle."""

    @abc.abstractmethod
    def do_make(self, parent: Node, name: bytes, mode: int, target: bytes, owner: tuple[int, int]) -> int:
        """Make a directory, a link to `target` or a special file, by the type in `mode`; return its number."""

    @abc.abstractmethod
    def do_link(self, node: Node, parent: Node, name: bytes) -> None: ...

    @abc.abstractmethod
    def do_unlink(self, parent: Node, name: bytes) -> None: ...

    @abc.abstractmethod
    def do_rmdir(self, parent: Node, name: bytes) -> None: ...

    @abc.abstractmethod
    def do_rename(self, parent: Node, name: bytes, new_parent: Node, new_name: bytes, flags: int) -> None: ...

    @abc.abstractmethod
    def do_setattr(self, node: Node, changes: AttrChanges) -> None: ...

    @abc.abstractmethod
    def do_setxattr(self, node: Node, name: bytes, value: bytes) -> None: ...

    @abc.abstractmethod
    def do_removexattr(self, node: Node, name: bytes) -> None: ...

    @abc.abstractmethod
    def do_xattrs(self, node: Node) -> dict[bytes, bytes]: ...

    @abc.abstractmethod
    def do_readlink(self, node: Node) -> bytes: ...

    @abc.abstractmethod
    def do_open(self, node: Node) -> Any: ...

    @abc.abstractmethod
    def do_close(self, token: Any) -> None: ...

    @abc.abstractmethod
    def do_read(self, token: Any, offset: int, size: int) -> bytes: ...

    @abc.abstractmethod
    def do_write(self, token: Any, offset: int, data: bytes) -> None: ...

    @abc.abstractmethod
    def do_sync(self, token: Any) -> None: ...

    @abc.abstractmethod
    def do_stat(self, node: Node) -> Attr: ...

    @abc.abstractmethod
    def do_list(self, directory: Node) -> list[tuple[bytes, int]]:
        """Return all names of a directory, sorted, with their numbers."""

    def draw_owner(self, data: st.DataObject) -> tuple[int, int]:
        """Choose uid and gid of the next new node."""
        return os.geteuid(), os.getegid()

    def made(self, node: Node) -> None:
        """Note that a new node is in the model."""

    def lost_name(self, node: Node) -> None:
        """Note that a name of `node` is gone."""
        if node.links == 0 and self.is_open(node):
            self.orphans.append(node)

    def closed(self, node: Node) -> None:
        """Note that a handle of `node` is closed."""
        if node in self.orphans and not self.is_open(node):
            self.orphans.remove(node)

    def is_open(self, node: Node) -> bool:
        return any(handle.node is node for handle in self.handles)

    # -- choosing ----------------------------------------------------------------------------------------------

    def attempt(self, refusals: Refusals, call: Callable[..., Any], *arguments: Any) -> Done | None:
        """Call. With `refusals` it must fail with one of these errnos, and without any it must succeed."""
        try:
            result = call(*arguments)
        except OSError as error:
            wanted = [errno.errorcode[number] for number in refusals] or "success"
            assert error.errno in refusals, f"{call.__name__}{arguments}: {error!r} instead of {wanted}"
            return None
        assert not refusals, f"{call.__name__}{arguments}: success instead of {[errno.errorcode[n] for n in refusals]}"
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

    def draw_handle(self, data: st.DataObject) -> Handle:
        recent = [handle for handle in self.handles if handle.node is self.recent]
        handle: Handle = data.draw(st.sampled_from(self.handles + recent * len(self.handles)))
        self.recent = handle.node
        return handle

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
        parent, owner = self.draw_directory(data), self.draw_owner(data)
        name = data.draw(st.sampled_from(NAMES))
        done = self.attempt(self.tree.may_add(parent, name), self.do_create, parent, name, mode, owner)
        if done is not None:
            node = self.tree.add(parent, name, stat.S_IFREG | mode, *owner)
            node.number, token = done.result
            self.made(node)
            self.handles.append(Handle(node, token))

    @rule(data=st.data(), mode=st.sampled_from((0o700, 0o755)))
    def mkdir(self, data: st.DataObject, mode: int) -> None:
        self._make(data, stat.S_IFDIR | mode)

    @precondition(lambda self: self.features.symlinks)
    @rule(data=st.data(), leads_to=st.sampled_from((b"a", b"../b", b"/nowhere", b"\xff" * 1000)))
    def symlink(self, data: st.DataObject, leads_to: bytes) -> None:
        self._make(data, stat.S_IFLNK | 0o777, leads_to)

    @precondition(lambda self: self.features.special_files)
    @rule(data=st.data(), kind=st.sampled_from((stat.S_IFIFO, stat.S_IFSOCK)))
    def mknod(self, data: st.DataObject, kind: int) -> None:
        self._make(data, kind | 0o600)

    def _make(self, data: st.DataObject, mode: int, target: bytes = b"") -> None:
        parent, owner = self.draw_directory(data), self.draw_owner(data)
        name = data.draw(st.sampled_from(NAMES))
        done = self.attempt(self.tree.may_add(parent, name), self.do_make, parent, name, mode, target, owner)
        if done is not None:
            node = self.tree.add(parent, name, mode, *owner)
            node.number, node.data[:] = done.result, target
            self.made(node)

    @precondition(lambda self: self.features.links)
    @rule(data=st.data())
    def link(self, data: st.DataObject) -> None:
        node, parent = self.draw_node(data), self.draw_directory(data)
        name = data.draw(st.sampled_from(NAMES))
        assert node is not None
        if self.attempt(self.tree.may_link(node, parent, name), self.do_link, node, parent, name):
            self.tree.link(node, parent, name)

    @rule(data=st.data())
    def unlink(self, data: st.DataObject) -> None:
        parent = self.draw_directory(data)
        name = self.draw_name(data, parent)
        if self.attempt(self.tree.may_unlink(parent, name), self.do_unlink, parent, name):
            self.lost_name(self.tree.remove(parent, name))

    @rule(data=st.data())
    def rmdir(self, data: st.DataObject) -> None:
        parent = self.draw_directory(data)
        name = self.draw_name(data, parent)
        if self.attempt(self.tree.may_rmdir(parent, name), self.do_rmdir, parent, name):
            self.lost_name(self.tree.remove(parent, name))

    @precondition(lambda self: self.features.rename)
    @rule(data=st.data(), flags=st.sampled_from((0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE)))
    def rename(self, data: st.DataObject, flags: int) -> None:
        move = *self.draw_places(data), flags
        if self.attempt(self.tree.may_rename(*move), self.do_rename, *move):
            replaced = self.tree.rename(*move)
            if replaced is not None:
                self.lost_name(replaced)

    # -- rules: attributes -------------------------------------------------------------------------------------

    @precondition(lambda self: self.features.persistent_modes)
    @rule(data=st.data(), mode=st.sampled_from((0o700, 0o711, 0o755, 0o2755, 0o1777)))
    def chmod(self, data: st.DataObject, mode: int) -> None:
        node = self.draw_node(data, lambda node: not node.is_link)
        if node is not None and (node.is_directory or mode < 0o1000):
            self.do_setattr(node, AttrChanges(mode=mode))
            node.mode = stat.S_IFMT(node.mode) | mode

    @precondition(lambda self: self.features.persistent_modes)
    @rule(data=st.data(), mtime_ns=times)
    def set_times(self, data: st.DataObject, mtime_ns: int) -> None:
        node = self.draw_file(data)
        if node is not None:
            self.do_setattr(node, AttrChanges(atime_ns=mtime_ns // 2, mtime_ns=mtime_ns))
            node.mtime_ns = mtime_ns

    @precondition(lambda self: self.features.xattrs)
    @rule(data=st.data(), name=st.sampled_from(XATTRS), value=st.sampled_from((b"", b"value", b"\0" * 1000)))
    def set_xattr(self, data: st.DataObject, name: bytes, value: bytes) -> None:
        node = self.draw_node(data, lambda node: node.is_file or node.is_directory)
        if node is not None:
            self.do_setxattr(node, name, value)
            node.xattrs[name] = value

    @precondition(lambda self: self.features.xattrs)
    @rule(data=st.data(), name=st.sampled_from(XATTRS))
    def remove_xattr(self, data: st.DataObject, name: bytes) -> None:
        node = self.draw_node(data, lambda node: bool(node.xattrs))
        if node is not None:
            refusals = set() if name in node.xattrs else {errno.ENODATA}
            if self.attempt(refusals, self.do_removexattr, node, name):
                del node.xattrs[name]

    # -- rules: data -------------------------------------------------------------------------------------------

    @rule(data=st.data())
    def open(self, data: st.DataObject) -> None:
        node = self.draw_file(data)
        if node is not None and len(self.handles) < 20:
            self.handles.append(Handle(node, self.do_open(node)))

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        handle = self.handles.pop(data.draw(st.integers(0, len(self.handles) - 1)))
        self.do_close(handle.token)
        self.closed(handle.node)

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), offset=offsets, content=contents)
    def write(self, data: st.DataObject, offset: int, content: bytes) -> None:
        handle = self.draw_handle(data)
        content = content[: MAX_FILE_BYTES - offset]
        self.do_write(handle.token, offset, content)
        self.tree.write(handle.node, offset, content)
        self._compare_content(handle)

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), offset=offsets, size=lengths)
    def read(self, data: st.DataObject, offset: int, size: int) -> None:
        handle = self.draw_handle(data)
        self._compare(handle, offset, self.do_read(handle.token, offset, size), size)

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def sync_file(self, data: st.DataObject) -> None:
        self.do_sync(self.draw_handle(data).token)

    @rule(data=st.data(), size=offsets)
    def truncate(self, data: st.DataObject, size: int) -> None:
        node = self.draw_file(data)
        if node is not None:
            self.do_setattr(node, AttrChanges(size=size))
            self.tree.resize(node, size)
            self._open_and_compare(node)

    @rule()
    def read_everything(self) -> None:
        """Read every file, link and extended attribute, and compare them with the model."""
        for node in self.tree.nodes():
            if node.is_file:
                self._open_and_compare(node)
            elif node.is_link:
                assert self.do_readlink(node) == node.data, f"target of {node!r}"
            if self.features.xattrs and (node.is_file or node.is_directory):
                assert self.do_xattrs(node) == node.xattrs, f"extended attributes of {node!r}"

    def _open_and_compare(self, node: Node) -> None:
        handle = Handle(node, self.do_open(node))
        self._compare_content(handle)
        self.do_close(handle.token)

    def _compare_content(self, handle: Handle) -> None:
        self._compare(handle, 0, self.do_read(handle.token, 0, MAX_FILE_BYTES + 1), MAX_FILE_BYTES + 1)

    def _compare(self, handle: Handle, offset: int, got: bytes, size: int) -> None:
        wanted = bytes(handle.node.data[offset : offset + size])
        if got != wanted:
            at = next((at for at, pair in enumerate(zip(got, wanted, strict=False)) if pair[0] != pair[1]), None)
            raise AssertionError(
                f"reading {size} at {offset} of {handle.node!r}: {len(got)} bytes instead of {len(wanted)}"
                + (f", the first wrong one at {offset + at}" if at is not None else "")
            )

    # -- what must hold ----------------------------------------------------------------------------------------

    @invariant()
    def names_are_right(self) -> None:
        for path, node in self.tree.walk():
            if node.is_directory:
                listed = self.do_list(node)
                wanted = sorted(node.children)
                assert [name for name, _ in listed] == wanted, f"names in {b'/'.join(path)!r}"
                for name, number in listed:
                    known = node.children[name].number
                    assert known in (0, number), f"{name!r} in {b'/'.join(path)!r} is {number}, it was {known}"

    @invariant()
    def attributes_are_right(self) -> None:
        for node in self.tree.nodes() + self.orphans:
            attr = self.do_stat(node)
            self._compare_attributes(node, attr)

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
