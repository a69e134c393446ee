"""Directories of files: `Head`, where they are as of now, and `Checkpoint`, where they are as they were then.

Both are filled from a dict of records when somebody looks into them, and brought up to date in place, so that a file
or folder that stays keeps its node. The files of a checkpoint are the records themselves; those of a head are nodes of
their own, by path, whose contents change. A checkpoint's folders may be let go of, and come back with other numbers
unless somebody holds one of them.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias, Union

from fusebackend.backends.threads.database.checkpoint_names import time_ns_of
from fusebackend.backends.threads.database.rows import Damaged, Listed
from fusebackend.backends.threads.difference import UNTOLD, Difference
from fusebackend.backends.threads.file_records import Record
from fusebackend.backends.threads.nodes import FILE_MODE, DirectoryNode, FileNode, Node, Nodes, TextFile
from fusebackend.base.stamps import now_ns
from fusebackend.remote.keys import arrange

if TYPE_CHECKING:
    from fusebackend.backends.threads.line_view import Line

ERROR_NAME = b"ERROR.txt"

Wanted: TypeAlias = dict[bytes, Union["Wanted", Record, str]]
"""What is to be in a directory: directories, files, and what `ERROR.txt` says."""


def wanted(files: Mapping[str, Record]) -> Wanted:
    """The tree that the keys of files make, as in `remote/keys.py`."""
    root: Wanted = {}
    for names, key in arrange(files).items():
        directory = root
        for name in names[:-1]:
            below = directory.setdefault(name, {})
            assert isinstance(below, dict), f"{key!r} is below a file"
            directory = below
        directory[names[-1]] = files[key]
    return root


class Entries(dict[bytes, Node]):
    """What is in a directory, as an object that can be referred to weakly."""

    __slots__ = ("__weakref__",)


class Folder(DirectoryNode):
    """A directory below a `Head` or `Checkpoint`."""

    __slots__ = ("_entries", "_siblings")

    def __init__(self, nodes: Nodes, parent: DirectoryNode, name: bytes, siblings: Entries) -> None:
        super().__init__(nodes, parent, name, parent.mtime_ns)
        self._entries = Entries()
        self._siblings = siblings  # whoever holds this folder keeps what leads to it

    def entries(self) -> Entries:
        return self._entries


class FilesDirectory(DirectoryNode):
    """What `Head` and `Checkpoint` have in common."""

    __slots__ = ("_entries", "_nodes", "_weakly", "line")

    def __init__(self, nodes: Nodes, line: Line, parent: DirectoryNode, name: bytes, mtime_ns: int) -> None:
        super().__init__(nodes, parent, name, mtime_ns)
        self._nodes = nodes
        self.line = line
        self._entries: Entries | None = None
        self._weakly: weakref.ref[Entries] | None = None

    def entries(self) -> Entries:
        self.line.fresh()
        entries = self._known()
        if entries is None:
            entries = Entries()
            self._update(self, entries, self._wanted(), UNTOLD)
            self._weakly = weakref.ref(entries)
        self._entries = entries
        self.line.looked_into(self)
        return entries

    def let_go(self) -> None:
        """What is in here need not be remembered, unless somebody holds it."""
        self._entries = None

    def refresh(self, difference: Difference) -> None:
        """Bring what is known of this directory up to date."""
        entries = self._known()
        if entries is not None:
            self._update(self, entries, self._wanted(), difference)

    def _known(self) -> Entries | None:
        if self._entries is None and self._weakly is not None:
            return self._weakly()
        return self._entries

    def _files(self) -> Mapping[str, Record]:
        raise NotImplementedError

    def _wanted(self) -> Wanted:
        try:
            return wanted(self._files())
        except Damaged as error:
            return {ERROR_NAME: f"The files of this checkpoint can't be shown. {error}\n"}

    def _update(self, directory: DirectoryNode, entries: Entries, target: Wanted, difference: Difference) -> None:
        for name in [name for name, node in entries.items() if not _same_kind(node, target.get(name))]:
            gone = entries.pop(name)
            gone.nlink = 0
            directory.renamed()
            directory.date(self.mtime_ns)
            difference.deleted(directory, name, gone)
        for name, item in target.items():
            node = entries.get(name)
            if isinstance(item, dict):
                folder = node if isinstance(node, Folder) else Folder(self._nodes, directory, name, entries)
                if folder is not node:
                    self._added(directory, entries, name, folder, difference)
                self._update(folder, folder.entries(), item, difference)
            elif node is None:
                self._added(directory, entries, name, self._file(item), difference)
            else:
                self._changed(directory, entries, name, node, item, difference)

    def _added(
        self, directory: DirectoryNode, entries: Entries, name: bytes, node: Node, difference: Difference
    ) -> None:
        entries[name] = node
        directory.renamed()
        directory.date(self.mtime_ns)
        difference.created(directory, name, node)

    def _file(self, item: Record | str) -> FileNode:
        return TextFile(self._nodes, item.encode("utf-8", "replace"), self.mtime_ns) if isinstance(item, str) else item

    def _changed(
        self, directory: DirectoryNode, entries: Entries, name: bytes, node: Node, item: Record | str,
        difference: Difference,
    ) -> None:  # fmt: skip
        """A file is to be there, and one is."""
        if isinstance(item, str):
            if isinstance(node, TextFile) and node.data() == item.encode("utf-8", "replace"):
                return
        elif node is item:
            return
        entries[name] = self._file(item)
        difference.replaced(directory, name, entries[name])


def _same_kind(node: Node, item: Wanted | Record | str | None) -> bool:
    return item is not None and isinstance(item, dict) == node.is_dir


class Checkpoint(FilesDirectory):
    """The files at one checkpoint."""

    __slots__ = ("listed",)

    def __init__(self, nodes: Nodes, line: Line, parent: DirectoryNode, name: bytes, listed: Listed) -> None:
        super().__init__(nodes, line, parent, name, time_ns_of(listed.id, listed.ts) or 0)
        self.listed = listed

    def _files(self) -> Mapping[str, Record]:
        return self.line.lineage.files_at(self.listed.id)

    def xattrs(self) -> dict[bytes, bytes]:
        return {b"user.fusebackend.checkpoint": self.listed.id.encode("utf-8", "surrogateescape")}


class HeadFile(FileNode):
    """A file as of now: its contents change."""

    __slots__ = ("_line", "record")

    def __init__(self, nodes: Nodes, line: Line, record: Record) -> None:
        super().__init__(nodes, FILE_MODE)
        self._line = line
        self.record = record
        self._show(record)

    def settle(self) -> HeadFile:
        self._line.fresh()
        return self

    def become(self, record: Record) -> None:
        self._show(record)
        self.ctime_ns = now_ns()  # its own times may be those of the version before
        self.record = record

    def _show(self, record: Record) -> None:
        self.date(record.mtime_ns)
        self.resize(record.size)

    def data(self) -> bytes:
        return self.record.data()

    def load(self) -> None:
        self.record.load()

    def unload(self) -> None:
        self.record.unload()

    def xattrs(self) -> dict[bytes, bytes]:
        return self.record.xattrs()


class Head(FilesDirectory):
    """The files as of now."""

    __slots__ = ()

    def _files(self) -> Mapping[str, Record]:
        return self.line.lineage.files_now()

    def _file(self, item: Record | str) -> FileNode:
        return HeadFile(self._nodes, self.line, item) if isinstance(item, Record) else super()._file(item)

    def _changed(
        self, directory: DirectoryNode, entries: Entries, name: bytes, node: Node, item: Record | str,
        difference: Difference,
    ) -> None:  # fmt: skip
        if isinstance(node, HeadFile) and isinstance(item, Record):
            if node.record is not item:
                node.become(item)
                difference.modified(directory, name, node)
            return
        super()._changed(directory, entries, name, node, item, difference)
