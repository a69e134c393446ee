"""`DirectoryMachine`: runs the rules on a directory, with system calls.

Open files are real descriptors, kept over renames and unlinks; files are also read through `mmap`, and listings
continue while the directory changes. Run it on a plain directory first: a failure there is a defect of the machine.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import stat
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from fusebackend.protocol import RENAME_EXCHANGE, RENAME_NOREPLACE, Attr, AttrChanges, Features
from fusebackend.testing.model.machine import Handle, TreeMachine
from fusebackend.testing.model.tree import Node, Tree
from fusebackend.testing.model.values import NAMES, contents
from fusebackend.testing.posix.case import AT_FDCWD, opened, renameat2

AT_EMPTY_PATH = 0x1000
_libc = ctypes.CDLL(None, use_errno=True)


class DirectoryMachine(TreeMachine):
    """Subclass it, override `make_directory`, and declare in `features` the features of the directory."""

    features = Features()

    def __init__(self) -> None:
        self.top = os.fsencode(self.make_directory())
        status = os.stat(self.top)
        super().__init__(Tree(status.st_mode, status.st_uid, status.st_gid))
        self.tree.root.number = status.st_ino
        self._umask = os.umask(0o022)
        self._listing: tuple[Node, Any, set[bytes]] | None = None

    def make_directory(self) -> Path:
        """Return a new and empty directory."""
        raise NotImplementedError("override make_directory")

    def teardown(self) -> None:
        """Close everything. An override that removes the directory calls this first."""
        os.umask(self._umask)
        self._end_listing()
        for handle in self.handles:
            os.close(handle.token)
        self.handles = []

    # -- rules that only a directory has -----------------------------------------------------------------------

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), content=contents)
    def append(self, data: st.DataObject, content: bytes) -> None:
        """Append through a descriptor of its own; other descriptors must see it."""
        node = self.draw_file(data)
        if node is not None and node.links and len(node.data) + len(content) < 600_000:
            with opened(self.path(node), os.O_WRONLY | os.O_APPEND) as fd:
                assert os.write(fd, content) == len(content)
            self.tree.write(node, len(node.data), content)

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def read_mapped(self, data: st.DataObject) -> None:
        handle = self.draw_handle(data)
        if handle.node.data:
            with mmap.mmap(handle.token, len(handle.node.data), prot=mmap.PROT_READ) as mapped:
                self._compare(handle, 0, mapped[:], len(mapped))

    @rule(data=st.data(), content=contents)
    def save(self, data: st.DataObject, content: bytes) -> None:
        """Save as editors do: write a temporary file beside the old one, sync it, rename it over."""
        parent = data.draw(st.sampled_from(self.tree.directories()))
        name = data.draw(st.sampled_from(NAMES))
        old = parent.children.get(name)
        if b"tmp" in parent.children or (old is not None and old.is_directory):
            return
        number, fd = self.do_create(parent, b"tmp", 0o644, self.draw_owner(data))
        os.write(fd, content)
        os.fsync(fd)
        os.rename(self.path(parent, b"tmp"), self.path(parent, name))
        if old is not None:
            self.lost_name(self.tree.remove(parent, name))
        node = self.tree.add(parent, name, stat.S_IFREG | 0o644, *self.draw_owner(data))
        node.number = number
        self.tree.write(node, 0, content)
        self.handles.append(Handle(node, fd))

    @precondition(lambda self: self._listing is None)
    @rule(data=st.data())
    def start_listing(self, data: st.DataObject) -> None:
        directory = data.draw(st.sampled_from(self.tree.directories()))
        self._listing = directory, os.scandir(self.path(directory)), set(directory.children)

    @precondition(lambda self: self._listing is not None)
    @rule()
    def finish_listing(self) -> None:
        """End a listing: names that existed all the time must appear exactly once."""
        assert self._listing is not None
        _, iterator, stayed = self._listing
        seen = [os.fsencode(entry.name) for entry in iterator]
        self._listing = None
        assert len(seen) == len(set(seen)), f"seen twice in one listing: {seen}"
        assert stayed <= set(seen), f"{stayed - set(seen)} were there all the time and were not listed"

    def lost_name(self, node: Node) -> None:
        super().lost_name(node)
        if self._listing is not None:
            self._listing[2].intersection_update(self._listing[0].children)

    def _end_listing(self) -> None:
        if self._listing is not None:
            self._listing[1].close()
            self._listing = None

    # -- how it is done ----------------------------------------------------------------------------------------

    def path(self, directory: Node, *names: bytes) -> bytes:
        above = self.tree.path_of(directory)
        assert above is not None, f"{directory!r} has no path"
        return b"/".join((self.top, *above, *names))

    def place(self, node: Node) -> bytes | int:
        """Return the path of a node, or an open descriptor if it has no name left."""
        if node.links:
            return self.path(node)
        tokens: list[int] = [handle.token for handle in self.handles if handle.node is node]
        return tokens[0]

    def do_create(self, parent: Node, name: bytes, mode: int, owner: tuple[int, int]) -> tuple[int, Any]:
        fd = os.open(self.path(parent, name), os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
        return os.fstat(fd).st_ino, fd

    def do_make(self, parent: Node, name: bytes, mode: int, target: bytes, owner: tuple[int, int]) -> int:
        path = self.path(parent, name)
        if stat.S_ISDIR(mode):
            os.mkdir(path, stat.S_IMODE(mode))
        elif stat.S_ISLNK(mode):
            os.symlink(target, path)
        else:
            os.mknod(path, mode)
        return os.lstat(path).st_ino

    def do_link(self, node: Node, parent: Node, name: bytes) -> None:
        place, path = self.place(node), self.path(parent, name)
        if isinstance(place, bytes):
            os.link(place, path)
        elif _libc.linkat(place, b"", AT_FDCWD, path, AT_EMPTY_PATH) != 0:
            raise OSError(ctypes.get_errno(), "linkat")

    def do_unlink(self, parent: Node, name: bytes) -> None:
        os.unlink(self.path(parent, name))

    def do_rmdir(self, parent: Node, name: bytes) -> None:
        os.rmdir(self.path(parent, name))

    def do_rename(self, parent: Node, name: bytes, new_parent: Node, new_name: bytes, flags: int) -> None:
        source, target = self.path(parent, name), self.path(new_parent, new_name)
        if flags in (RENAME_NOREPLACE, RENAME_EXCHANGE):
            renameat2(Path(os.fsdecode(source)), Path(os.fsdecode(target)), flags)
        else:
            os.rename(source, target)
        if self._listing is not None:  # a listing may show a renamed entry under either name, or not at all
            self._listing[2].difference_update({name, new_name})

    def do_setattr(self, node: Node, changes: AttrChanges) -> None:
        place = self.place(node)
        if changes.size is not None:
            os.truncate(place, changes.size)
        if changes.mode is not None:
            os.chmod(place, changes.mode)
        if changes.mtime_ns is not None and changes.atime_ns is not None:
            os.utime(place, ns=(changes.atime_ns, changes.mtime_ns))

    def do_setxattr(self, node: Node, name: bytes, value: bytes) -> None:
        os.setxattr(self.place(node), name, value)

    def do_removexattr(self, node: Node, name: bytes) -> None:
        os.removexattr(self.place(node), name)

    def do_xattrs(self, node: Node) -> dict[bytes, bytes]:
        place = self.place(node)
        return {name.encode(): os.getxattr(place, name) for name in os.listxattr(place) if name.startswith("user.")}

    def do_readlink(self, node: Node) -> bytes:
        return os.readlink(self.path(node))

    def do_open(self, node: Node) -> Any:
        place = self.place(node)
        return os.open(place if isinstance(place, bytes) else f"/proc/self/fd/{place}", os.O_RDWR)

    def do_close(self, token: Any) -> None:
        os.close(token)

    def do_read(self, token: Any, offset: int, size: int) -> bytes:
        return os.pread(token, size, offset)

    def do_write(self, token: Any, offset: int, data: bytes) -> None:
        assert os.pwrite(token, data, offset) == len(data)

    def do_sync(self, token: Any) -> None:
        os.fsync(token)

    def do_stat(self, node: Node) -> Attr:
        place = self.place(node)
        status = os.lstat(place) if isinstance(place, bytes) else os.fstat(place)
        return Attr(
            status.st_ino, status.st_mode, nlink=status.st_nlink, uid=status.st_uid, gid=status.st_gid,
            size=status.st_size, blocks=status.st_blocks, mtime_ns=status.st_mtime_ns,
        )  # fmt: skip

    def do_list(self, directory: Node) -> list[tuple[bytes, int]]:
        with contextlib.closing(os.scandir(self.path(directory))) as entries:
            return sorted((os.fsencode(entry.name), entry.inode()) for entry in entries)
