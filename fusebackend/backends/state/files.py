"""`StateFiles`: the dict under `state["files"]` as a tree of paths, and how it is changed.

A state has keys and no directories; a directory is a path with a key below it. Keys are paths as a rule, but any string
may be there: a key that is no normalised path is found under its normalised path, unless that is a key itself.

The dict is replaced and never changed in place, for a checkpointer may still hold it. Changes are made one after the
other under one lock for the whole process, so two backends over one state lose no update of each other.
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from fusebackend import text
from fusebackend.base import errors, paths
from fusebackend.base.paths import ROOT, AgentPath, PathError
from fusebackend.remote.files_update import CHANGING, files_of, replace_files
from fusebackend.remote.keyed import KeyList

_NOT_NORMALISED = re.compile(r"/\.{0,2}(?:/|\Z)")


class KeyIndex(KeyList):
    """The keys of a state: normalised paths in order, so that a directory is a range of them; and `odd`, all others."""

    def __init__(self, keys: Iterable[Any]) -> None:
        self.keys = tuple(keys)
        super().__init__(key for key in self.keys if not _is_odd(key))
        self.odd = [key for key in self.keys if _is_odd(key)]

    def fits(self, files: Mapping[str, Any]) -> bool:
        """True while these are the keys: others may change the dict in place. Some 10 ns a key."""
        return len(self.keys) == len(files) and self.keys == tuple(files)

    def copy(self) -> KeyIndex:
        index = KeyIndex(())
        index._keys, index.odd = list(self._keys), list(self.odd)
        return index

    def discard(self, key: Any) -> None:
        if _is_odd(key):
            self.odd.remove(key)
        else:
            super().discard(key)


class StateView:
    """Where files are: a runtime's state, below a prefix; with the index of its keys as they were last seen.

    The prefix may be a function, where it depends on a state that is yet to be found.
    """

    def __init__(self, runtime: Any, prefix: str | Callable[[], str] = "") -> None:
        self.runtime = runtime
        self._prefix = prefix
        self._index = KeyIndex(())

    @property
    def prefix(self) -> str:
        return self._prefix if isinstance(self._prefix, str) else self._prefix()

    def now(self) -> StateFiles:
        """The files as they are at this moment."""
        files = files_of(self.runtime)
        index = self._index
        if not index.fits(files):
            index = self._index = KeyIndex(files)
        return StateFiles(files, self.prefix, index)

    @contextlib.contextmanager
    def changing(self) -> Iterator[StateFiles]:
        """Files to change. The change is made when the block ends, unless by an error; until then no reader sees it."""
        with CHANGING:
            draft = dict(files_of(self.runtime))
            index = self._index  # another thread may put another in its place, of another state even
            index = index.copy() if index.fits(draft) else KeyIndex(draft)
            files = StateFiles(draft, self.prefix, index)
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

    def tree(self, path: AgentPath) -> list[tuple[AgentPath, str]]:
        """The file at a path and all below it, sorted by path, with their keys."""
        start = len(self._prefix)
        whole = self._prefix + ("" if path == ROOT else path)
        found = [(AgentPath(key[start:]), key) for key in self.index.below(whole + "/")]
        if path != ROOT and whole in self._files:
            found.insert(0, (path, whole))
        odd: dict[AgentPath, str] = {}
        for key in self.index.odd:
            meant = self._meaning(key)
            if meant is not None and paths.is_below(meant, path) and self._prefix + meant not in self._files:
                odd.setdefault(meant, key)
        return sorted([*found, *odd.items()]) if odd else found

    def record(self, key: str) -> Any:
        return self._files[key]

    def key(self, path: AgentPath) -> str | None:
        """The key a file is kept under."""
        key = self._prefix + path
        if key in self._files and path != ROOT:
            return key
        return next((key for key in self.index.odd if self._meaning(key) == path), None)

    def is_directory(self, path: AgentPath) -> bool:
        if path == ROOT or self.index.any_below(f"{self._prefix}{path}/"):
            return True
        return any(paths.is_below(self._meaning(key) or ROOT, path) for key in self.index.odd)

    def data(self, path: AgentPath) -> bytes:
        """A file's bytes. ENOENT, EISDIR; TypeError and ValueError for a record that is no file data."""
        key = self.key(path)
        if key is not None:
            return text.decode_file_data(self._files[key])
        raise errors.oserror(errno.EISDIR if self.is_directory(path) else errno.ENOENT)

    def _meaning(self, key: Any) -> AgentPath | None:
        """The path that an odd key means; None when it has none."""
        try:
            path = paths.normalise(key)
        except PathError:
            return None
        if not paths.is_below(path, self._prefix or ROOT) or path in (ROOT, self._prefix):
            return None
        return AgentPath(path[len(self._prefix) :])

    # -- changing ----------------------------------------------------------------------------------------------

    def require_place(self, path: AgentPath) -> None:
        """EISDIR, ENOTDIR where a path has no place for a new file."""
        if self.is_directory(path):
            raise errors.oserror(errno.EISDIR)
        directory, _ = paths.parent_and_name(path)
        while directory != ROOT:
            if self.key(directory) is not None:
                raise errors.oserror(errno.ENOTDIR)
            directory, _ = paths.parent_and_name(directory)

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


def _is_odd(key: Any) -> bool:
    """True for a key that may not be a normalised path."""
    return not isinstance(key, str) or not key.startswith("/") or _NOT_NORMALISED.search(key) is not None
