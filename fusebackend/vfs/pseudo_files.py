"""`PseudoFiles`: a read-only directory of computed files, as in proc(5). Each open computes the content anew.

Race: a reader that gets a file in several reads, while its content changes, would get parts of several contents: JSON
that does not parse. So each open computes the content once and keeps it until that handle is closed: `open` answers
with a node of its own for it (`Volume.open`), and the mount reads that past the page cache, which all handles of an
inode share.

`st_size` is exact for a reader that is alone: while the file is open it is that of the latest open, so that `fstat`
after `open` agrees with the bytes; else it is that of a content computed for the question. A second reader of other
length does not cut the first one short: reads past the page cache end where the content ends. The modification time is
the time at which the content was first seen as it is.

Any thread; a content is computed without the lock, for it may ask other parts of the server. Cost: one computation for
each lookup, `stat` and open of such a file, and nothing for any other.

`PseudoDirectory` is what such directories have in common; see `server/trees.py`, too.
"""

from __future__ import annotations

import abc
import errno
import itertools
import os
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from fusebackend.base.errors import oserror
from fusebackend.base.paths import to_name
from fusebackend.protocol import BLOCK_BYTES, ROOT_NODE, WHOLE_FILES, Attr, StatFs, Volume

FIRST_OPENED = 1 << 32
"""Nodes from here on are contents of open handles; those below are the files."""

MAX_OPENED = 4096
"""Contents of open handles at once; the next open is ENFILE. A status takes some 2 KiB for each route."""

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_APPEND


def own_attr(node: int, mode: int, since_ns: int, size: int = 0) -> Attr:
    """Return the attributes of a file or directory that is the server's own, and no volume's of a backend."""
    times = {"atime_ns": since_ns, "mtime_ns": since_ns, "ctime_ns": since_ns}
    owner = {"uid": os.geteuid(), "gid": os.getegid()}
    return Attr(node, mode, nlink=1 + stat.S_ISDIR(mode), **owner, size=size, blocks=-(-size // BLOCK_BYTES), **times)


class ContentSince(NamedTuple):
    """The content of a file at one moment."""

    data: bytes
    since_ns: int
    """When it was first seen so, since the epoch."""


class PseudoFile:
    """One file: its node, the function that computes its content, and the contents of its open handles."""

    def __init__(self, node: int, compute: Callable[[], bytes]) -> None:
        self.node = node
        self.compute = compute
        self.last = ContentSince(b"", 0)
        self.opened: dict[int, ContentSince] = {}  # by the handle's node, in the order of the opens


class PseudoDirectory(Volume):
    """A read-only directory of computed files: names, attributes but for sizes, and what no open may do."""

    features = replace(WHOLE_FILES, random_writes=True, durable=False, read_only=True)
    ttl_s = 0.0
    file_mode = 0o444
    directory_mode = 0o555

    def __init__(self) -> None:
        self.since_ns = time.time_ns()

    @abc.abstractmethod
    def nodes(self) -> Mapping[bytes, int]:
        """Return the files, by name."""

    @abc.abstractmethod
    def file_attr(self, node: int) -> Attr:
        """Return the attributes of a file. OSError: ESTALE."""

    @abc.abstractmethod
    def opened(self, node: int) -> Attr:
        """Open a file for reading, as `open`."""

    def lookup(self, parent: int, name: bytes) -> Attr:
        if parent != ROOT_NODE:
            raise oserror(errno.ENOTDIR)
        node = self.nodes().get(name)
        if node is None:
            raise oserror(errno.ENOENT)
        return self.file_attr(node)

    def readdir(self, node: int, after: bytes, limit: int) -> Sequence[tuple[bytes, Attr]]:
        if node != ROOT_NODE:
            raise oserror(errno.ENOTDIR)
        nodes = self.nodes()
        return [(name, self.file_attr(nodes[name])) for name in sorted(nodes) if name > after][:limit]

    def getattr(self, node: int) -> Attr:
        if node == ROOT_NODE:
            return own_attr(node, stat.S_IFDIR | self.directory_mode, self.since_ns)
        return self.file_attr(node)

    def open(self, node: int, flags: int) -> Attr:
        if flags & _WRITING:
            raise oserror(errno.EROFS)
        if node == ROOT_NODE:
            raise oserror(errno.EISDIR)
        return self.opened(node)

    def statfs(self) -> StatFs:
        return StatFs(BLOCK_BYTES, 0, 0, len(self.nodes()), 0)


class PseudoFiles(PseudoDirectory):
    """See the module's docstring. `add` gives it a file; files stay."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count(ROOT_NODE + 1)
        self._handles = itertools.count(FIRST_OPENED)
        self._names: dict[bytes, PseudoFile] = {}  # replaced as a whole: it is read with no lock
        self._files: dict[int, PseudoFile] = {}  # by node, those of open handles included

    def add(self, name: str, compute: Callable[[], bytes]) -> None:
        """Add a file. In any thread.

        Args:
            name: of the file.
            compute: returns its content; called by any thread, the mount's loop included, so it must not wait.

        Raises:
            ValueError: there is a file of that name.
        """
        with self.lock:
            at = to_name(name)
            if at in self._names:
                raise ValueError(f"there is a file '{name}' already")
            file = PseudoFile(next(self._numbers), compute)
            self._files[file.node] = file
            self._names = {**self._names, at: file}

    # -- names and attributes ----------------------------------------------------------------------------------

    def nodes(self) -> Mapping[bytes, int]:
        return {name: file.node for name, file in self._names.items()}

    def file_attr(self, node: int) -> Attr:
        file = self._file(node)
        with self.lock:
            content = file.opened.get(node) or next(reversed(file.opened.values()), None)
        return self._attr_of(node, content or self._computed(file))

    def _file(self, node: int) -> PseudoFile:
        file = self._files.get(node)
        if file is None:
            raise oserror(errno.ESTALE)
        return file

    def _attr_of(self, node: int, content: ContentSince) -> Attr:
        return own_attr(node, stat.S_IFREG | self.file_mode, content.since_ns, len(content.data))

    def _computed(self, file: PseudoFile) -> ContentSince:
        data = file.compute()
        with self.lock:
            if data != file.last.data or not file.last.since_ns:
                file.last = ContentSince(data, time.time_ns())
            return file.last

    # -- data --------------------------------------------------------------------------------------------------

    def opened(self, node: int) -> Attr:
        file = self._file(node)
        content = self._computed(file)
        with self.lock:
            if len(self._files) - len(self._names) >= MAX_OPENED:
                raise oserror(errno.ENFILE)
            handle = next(self._handles)
            file.opened[handle] = content
            self._files[handle] = file
        return self._attr_of(handle, content)

    def read(self, node: int, offset: int, size: int) -> bytes:
        content = self._file(node).opened.get(node)
        if content is None:
            raise oserror(errno.EBADF)
        return content.data[offset : offset + size]

    def release(self, node: int, flags: int) -> None:
        with self.lock:
            file = self._files.pop(node)
            del file.opened[node]
