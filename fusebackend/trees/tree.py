"""`Tree`: a directory tree as the kernel shows it, reached by descriptors and never through a symbolic link.

A path in a tree is relative, of bytes, and empty for the root. Each step opens one name with O_NOFOLLOW below the
descriptor of its directory, so a directory that a process swaps for a link meanwhile can't lead a call out of the tree.
Intermediate directories are opened with O_PATH: the kernel answers from its dentries, and no request is sent.

A tree belongs to one thread. Its calls wait for the file system.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections import OrderedDict
from collections.abc import Iterator
from typing import Protocol

from fusebackend.backends.directory.dirfd import FILE_FLAGS, PATH_FLAGS, Descriptor, open_names
from fusebackend.base.errors import oserror
from fusebackend.linux.holes import next_data

CACHED_DIRECTORIES = 32
"""Descriptors of directories kept open at most: trees are walked in order, so the next path is near the last one."""

COPY_BYTES = 1 << 20
"""Bytes that one read asks for."""

NO_XATTRS = frozenset({errno.ENOTSUP, errno.ENOSYS, errno.EPERM, errno.ENODATA})
"""Errors that mean: there are none to be seen."""


def join(path: bytes, name: bytes) -> bytes:
    return path + b"/" + name if path else name


def split(path: bytes) -> tuple[bytes, bytes]:
    """Split a path into its directory and its name."""
    directory, _, name = path.rpartition(b"/")
    return directory, name


def is_below(path: bytes, directory: bytes) -> bool:
    """Return True for a path inside a directory, not for the directory itself."""
    return not directory or path.startswith(directory + b"/")


class ReadTree(Protocol):
    """A tree whose files are compared: a `Tree`, or one that is put together from records (`recorded.py`). Errors are
    `OSError`s, as for `Tree`."""

    @property
    def device(self) -> int: ...
    def entry(self, path: bytes) -> os.stat_result | None: ...
    def entries(self, path: bytes) -> dict[bytes, os.stat_result]: ...
    def reading(self, path: bytes) -> contextlib.AbstractContextManager[int]: ...
    def is_followed(self, path: bytes) -> bool: ...
    def target(self, path: bytes) -> bytes: ...
    def xattrs(self, path: bytes) -> dict[str, bytes]: ...


class Tree:
    """A tree with its root at `path`. Links on the way to `path` are followed: it is the caller's choice.

    `xattr_prefixes` are those of the extended attributes that this user may see and set; all where there are none.
    """

    def __init__(self, path: str, *, xattr_prefixes: tuple[str, ...] = ("",)) -> None:
        self.path = path
        self.xattr_prefixes = xattr_prefixes
        self._root = Descriptor(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
        self._open: OrderedDict[bytes, Descriptor] = OrderedDict()

    @property
    def device(self) -> int:
        """Its st_dev: that of the root."""
        return os.fstat(self._root.fd).st_dev

    def forget(self) -> None:
        """Forget all paths: one of them was renamed or deleted."""
        self._open.clear()

    def directory(self, path: bytes) -> Descriptor:
        """Return an O_PATH descriptor of a directory. Keep it in a local variable while using its `fd`.

        Raises:
            OSError: ENOENT; ENOTDIR, also where a symbolic link is in the way.
        """
        known = path
        while known and known not in self._open:
            known = split(known)[0]
        found = self._root if not known else self._open[known]
        while len(known) < len(path):
            name = path[len(known) :].lstrip(b"/").partition(b"/")[0]
            known = join(known, name)
            with _naming(self, known):
                found = Descriptor(os.open(name, PATH_FLAGS | os.O_DIRECTORY, dir_fd=found.fd))
            self._open[known] = found
        if path:
            self._open.move_to_end(path)
        while len(self._open) > CACHED_DIRECTORIES:
            self._open.popitem(last=False)
        return found

    def parent(self, path: bytes) -> tuple[Descriptor, bytes]:
        """Return the directory of a path and its name there; `.` for the root."""
        directory, name = split(path)
        return self.directory(directory), name or b"."

    def entry(self, path: bytes) -> os.stat_result | None:
        """Return the attributes of a path as lstat(2), or None if it isn't there."""
        try:
            directory, name = self.parent(path)
            with _naming(self, path):
                return os.stat(name, dir_fd=directory.fd, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def entries(self, path: bytes) -> dict[bytes, os.stat_result]:
        """Return the attributes of all names in a directory."""
        directory = self.directory(path)
        with _naming(self, path):
            listed = open_names(directory)
            found = {}
            for text in os.listdir(listed.fd):
                name = os.fsencode(text)
                with contextlib.suppress(FileNotFoundError):  # deleted since
                    found[name] = os.stat(name, dir_fd=directory.fd, follow_symlinks=False)
        return found

    @contextlib.contextmanager
    def reading(self, path: bytes) -> Iterator[int]:
        """Open a regular file for reading.

        Raises:
            OSError: ELOOP for a symbolic link, EINVAL for a special file: it was a regular file before.
        """
        directory, name = self.parent(path)
        with _naming(self, path):
            opened = Descriptor(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | FILE_FLAGS, dir_fd=directory.fd))
            if not stat.S_ISREG(os.fstat(opened.fd).st_mode):
                raise oserror(errno.EINVAL)
            yield opened.fd

    def is_followed(self, path: bytes) -> bool:
        """Return True for a symbolic link that leads somewhere or to nothing, False for a loop."""
        directory, name = self.parent(path)
        try:
            os.stat(name, dir_fd=directory.fd)
        except OSError as error:
            return error.errno in (errno.ENOENT, errno.ENOTDIR)
        return True

    def target(self, path: bytes) -> bytes:
        """Return the target of a symbolic link."""
        directory, name = self.parent(path)
        with _naming(self, path):
            return os.readlink(name, dir_fd=directory.fd)

    def xattrs(self, path: bytes) -> dict[str, bytes]:
        """Return the extended attributes of a file, directory or link; none where the file system has none."""
        directory, name = self.parent(path)
        place = os.path.join(os.fsencode(directory.path), name)
        with _naming(self, path):
            found = {}
            for attribute in xattr_names(place, self.xattr_prefixes):
                with contextlib.suppress(OSError):  # removed since, or not for this user
                    found[attribute] = os.getxattr(place, attribute, follow_symlinks=False)
            return found


def xattr_names(place: bytes, prefixes: tuple[str, ...], *, follow: bool = False) -> list[str]:
    """Return the names of extended attributes with one of the prefixes; none where the file system has none."""
    try:
        return [name for name in os.listxattr(place, follow_symlinks=follow) if name.startswith(prefixes)]
    except OSError as error:
        if error.errno not in NO_XATTRS:
            raise
        return []


@contextlib.contextmanager
def _naming(tree: Tree, path: bytes) -> Iterator[None]:
    """Give errors the whole path: a call below a descriptor knows only a name."""
    try:
        yield
    except OSError as error:
        error.filename = os.path.join(tree.path, os.fsdecode(path))
        raise


def pieces(fd: int) -> Iterator[bytes]:
    """Read an open file from its beginning."""
    offset = 0
    while piece := os.pread(fd, COPY_BYTES, offset):
        yield piece
        offset += len(piece)


def same_bytes(one: int, other: int, size: int) -> bool:
    """Return True if two open files of `size` bytes hold the same. Holes that both have are not read."""
    offset = 0
    while offset < size:
        if size > COPY_BYTES:
            offset = max(offset, min(next_data(one, offset, size), next_data(other, offset, size)))
        mine, theirs = os.pread(one, COPY_BYTES, offset), os.pread(other, COPY_BYTES, offset)
        if mine != theirs:
            return False
        if not mine:
            return True
        offset += len(mine)
    return True
