"""`StateFiles`: the dict under `state["files"]` as a tree of paths, and how it is changed.

A state has keys and no directories; a directory is a path with a key below it. Keys are paths as a rule, but any string
may be there: `remote/keyed.py` says where a key is that is none.

The dict is replaced and never changed in place, for a checkpointer may still hold it. Changes are made one after the
other under one lock for the whole process, so two backends over one state lose no update of each other.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from fusebackend import text
from fusebackend.base import errors
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.remote.files_update import CHANGING, files_of, replace_files
from fusebackend.remote.keyed import Keyed, ListedTree, Prefixes


class KeyIndex(ListedTree):
    """The keys of a state as a tree."""

    def __init__(self, keys: Iterable[Any]) -> None:
        self.keys = tuple(keys)
        super().__init__(key for key in self.keys if isinstance(key, str))

    def fits(self, files: Mapping[str, Any]) -> bool:
        """True while these are the keys: others may change the dict in place. Some 10 ns a key."""
        return len(self.keys) == len(files) and self.keys == tuple(files)


class StateView:
    """Where files are: a runtime's state, below a prefix; with the index of its keys as they were last seen.

    The prefix is a function: it may depend on a state that is yet to be found.
    """

    def __init__(self, runtime: Any, prefix: Callable[[], str] = lambda: "") -> None:
        self.runtime = runtime
        self.prefix = prefix
        self._index = KeyIndex(())

    def now(self) -> StateFiles:
        """The files as they are at this moment."""
        files = files_of(self.runtime)
        index = self._index
        if not index.fits(files):
            index = self._index = KeyIndex(files)
        return StateFiles(files, self.prefix(), index)

    @contextlib.contextmanager
    def changing(self) -> Iterator[StateFiles]:
        """Files to change. The change is made when the block ends, unless by an error; until then no reader sees it."""
        with CHANGING:
            draft = dict(files_of(self.runtime))
            index = self._index  # another thread may put another in its place, of another state even
            index = index.copy() if index.fits(draft) else KeyIndex(draft)
            files = StateFiles(draft, self.prefix(), index)
            yield files
            if files.update:
                replace_files(self.runtime, draft)
                files.index.keys = tuple(draft)
                self._index = files.index


class StateFiles:
    """The files of a state at one moment, below a prefix, under paths that start there.

    Attributes:
        update: the changes since, as a `files_update` in those paths.
    """

    def __init__(self, files: Mapping[str, Any], prefix: str, index: KeyIndex) -> None:
        self._files = files
        self._prefix = prefix
        self.index = index
        self.update: dict[str, Any] = {}

    # -- looking -----------------------------------------------------------------------------------------------

    def find(self, path: AgentPath) -> Keyed | None:
        """The file or directory at a path."""
        if path != ROOT:
            return self.index.find(AgentPath(self._prefix + path))
        return Keyed(place=Prefixes(f"{self._prefix}/", f"{self._prefix[1:]}/" if self._prefix else ""))

    def tree(self, path: AgentPath) -> list[tuple[AgentPath, str]]:
        """The file at a path, or all below it, sorted by path, with their keys."""
        return self.index.below(path, self.find(path))

    def record(self, key: str) -> Any:
        return self._files[key]

    def key(self, path: AgentPath) -> str | None:
        """The key a file is kept under."""
        return None if path == ROOT else self.index.key(AgentPath(self._prefix + path))

    def data(self, path: AgentPath) -> bytes:
        """A file's bytes. ENOENT, EISDIR; TypeError and ValueError for a record that is no file data."""
        key = self.key(path)
        if key is not None:
            return text.decode_file_data(self._files[key])
        raise errors.oserror(errno.ENOENT if self.find(path) is None else errno.EISDIR)

    # -- changing ----------------------------------------------------------------------------------------------

    def require_place(self, path: AgentPath) -> None:
        """EISDIR, ENOTDIR, ENAMETOOLONG where a path has no place for a new file."""
        self.index.require_place(AgentPath(self._prefix + path))

    def put(self, path: AgentPath, key: str | None, record: Any) -> None:
        """Store a record at a path that is kept under `key` so far (None: there is none yet)."""
        plain = self._prefix + path
        if key is not None and key != plain:
            self.remove(key)
        if plain not in self._files:
            self.index.add(plain)
        self._draft[plain] = self.update[path] = record

    def remove(self, key: str) -> None:
        del self._draft[key]
        self.index.discard(key)
        self.update[key.removeprefix(self._prefix)] = None

    @property
    def _draft(self) -> dict[str, Any]:
        assert isinstance(self._files, dict), "files are changed inside of `changing`"
        return self._files
