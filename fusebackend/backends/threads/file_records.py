"""`Record`: one version of a file, as an agent's state holds it; and `Records`, where equal ones become one.

A record that did not change is the same object in every checkpoint, and so the same inode: `diff -r` between two
checkpoints reads only what differs, and a page cached for one is cached for all. Its link count is 1 all the same, for
programs that archive would make hard links of it.
"""

from __future__ import annotations

import errno
import sys
import weakref
from collections.abc import Mapping
from typing import Any

from fusebackend import text
from fusebackend.backends.threads.nodes import FILE_MODE, FileNode, Nodes
from fusebackend.remote.agent_remote import time_ns


class Record(FileNode):
    """A file's content and times.

    Attributes:
        source: the record itself.
        file_format: `v2` (text and encoding), `v1` (a list of lines), or `v0`, the bare text of the first deepagents.
        error: why there is no content, or None.
    """

    __slots__ = ("_data", "error", "file_format", "source")

    def __init__(self, nodes: Nodes, source: Any) -> None:
        super().__init__(nodes, FILE_MODE)
        self.source = source
        self._data: bytes | None = None
        self.error: str | None = None
        content = source.get("content") if isinstance(source, Mapping) else None
        self.file_format = "v0" if isinstance(source, str) else "v1" if isinstance(content, (list, tuple)) else "v2"
        self.date(_mtime_ns(source))
        try:
            self.resize(len(self._decode()))
        except (TypeError, ValueError) as error:
            self.error = str(error)

    def data(self) -> bytes:
        if self.error is not None:
            raise OSError(errno.EIO, f"this is no file data: {self.error}")
        return self._data if self._data is not None else self._decode()

    def load(self) -> None:
        if self.error is None:
            self._data = self._decode()

    def unload(self) -> None:
        self._data = None

    def xattrs(self) -> dict[bytes, bytes]:
        return {} if self.error is None else {b"user.fusebackend.error": self.error.encode("utf-8", "replace")}

    def _decode(self) -> bytes:
        if isinstance(self.source, str):
            return self.source.encode("utf-8")
        return text.decode_file_data(self.source)

    @property
    def created_at(self) -> str | None:
        found = self.source.get("created_at") if isinstance(self.source, Mapping) else None
        return found if isinstance(found, str) else None


class Records:
    """Every record that is in use, once."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._known: weakref.WeakValueDictionary[object, Record] = weakref.WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._known)

    def of(self, source: Any) -> Record:
        key = _key(source)
        if key is None:
            return Record(self._nodes, source)
        record = self._known.get(key)
        if record is None:
            record = self._known[key] = Record(self._nodes, source)
        return record

    def shrink(self) -> None:
        """Give the memory of a table back that was once much larger."""
        self._known = weakref.WeakValueDictionary(self._known)


def _key(source: Any) -> object | None:
    """What is equal for equal records; None where that can't be told quickly."""
    if isinstance(source, str):
        return source
    if not isinstance(source, Mapping):
        return None
    content = source.get("content")
    if isinstance(content, (list, tuple)):
        content = tuple(content)
    # What is the same in many records is kept once.
    rest = (_once(source.get(name)) for name in ("encoding", "created_at", "modified_at"))
    key = (content, *rest)
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _once(value: Any) -> Any:
    return sys.intern(value) if type(value) is str else value


def _mtime_ns(source: Any) -> int:
    """1970 where a record does not say: the same in every checkpoint."""
    if not isinstance(source, Mapping):
        return 0
    for name in ("modified_at", "created_at"):
        found = source.get(name)
        when = time_ns(found) if isinstance(found, str) else None
        if when is not None:
            return when
    return 0
