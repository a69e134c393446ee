"""`StateBackend`: files in an agent's state, `runtime.state["files"]`, a dict from path to file data.

In the seeds `write` and `edit` change nothing themselves: they return `files_update` (path → file data, a deleted path
→ None) and the graph merges that into the state, after the tool call. This backend returns the same `files_update`, and
also puts it into `runtime.state["files"]` at once, so that each later read sees it. Merging the update again, as the
graph, `CompositeBackend` or a caller will, changes nothing.

Without a runtime the state is found at the first use, and kept (`LateRuntime`): inside a running LangGraph graph
with `files` in its state it is that graph's, in whichever thread of it, and outside of one then is an error; anywhere
else it is one of the backend's own, in this process. Nothing here is durable: keeping the state is the checkpointer's
work.

Both formats are read: the seeds' list of lines (v1), and text or base64 (v2). New files have `file_format`; bytes that
are no UTF-8 are always v2. There are no directories in a state, only paths: an empty directory can't be, and one is
gone with its last file.

Each verb is atomic: a reader sees the files as they were at one moment, and a batch of uploads is one change.
"""

from __future__ import annotations

import contextlib
import copy
import errno
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

from fusebackend import text
from fusebackend.base import budget, errors, paths
from fusebackend.base.globs import Matcher
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.databases.langgraph import GRAPH_STATE, LateRuntime
from fusebackend.protocol import (
    ANY,
    WHOLE_FILES,
    Condition,
    FileInfo,
    FileUploadResponse,
    OnExists,
)
from fusebackend.protocol.registered import registered_with
from fusebackend.protocol.scheme import ON_EXISTS, Scheme
from fusebackend.remote.agent_verbs import FileVerbs, Loaded
from fusebackend.remote.files_update import CHANGING, apply_files_update, files_of, replace_files
from fusebackend.remote.keyed import Keyed, ListedTree, Prefixes
from fusebackend.volumes.agent_face import FilesUpdate
from fusebackend.volumes.search import Lines, Search

UNCONDITIONAL = "A graph's state takes no change on a condition: two tool calls of one step both see the state before"

_MALFORMED = (TypeError, ValueError)
"""What `text.decode_file_data` raises for a record that is no file data."""

_tables: dict[str, SimpleNamespace] = {}
"""The runtimes of named tables. They last as long as the process."""


# -- the dict as a tree ----------------------------------------------------------------------------------------
#
# A state has keys and no directories; a directory is a path with a key below it. Keys are paths as a rule, but any
# string may be there: `remote/keyed.py` says where a key is that is none.
#
# The dict is replaced and never changed in place, for a checkpointer may still hold it. Changes are made one after the
# other under one lock for the whole process, so two backends over one state lose no update of each other.


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
        records: what is in the state, by key.
        update: the changes since, as a `files_update` in those paths.
    """

    def __init__(self, files: Mapping[str, Any], prefix: str, index: KeyIndex) -> None:
        self.records = files
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

    def key(self, path: AgentPath) -> str | None:
        """The key a file is kept under."""
        return None if path == ROOT else self.index.key(AgentPath(self._prefix + path))

    def data(self, path: AgentPath) -> bytes:
        """A file's bytes. ENOENT, EISDIR; EIO, with the reason, for a record that is no file data."""
        key = self.key(path)
        if key is None:
            raise errors.oserror(errno.ENOENT if self.find(path) is None else errno.EISDIR)
        try:
            return text.decode_file_data(self.records[key])
        except _MALFORMED as error:
            raise OSError(errno.EIO, str(error)) from None

    # -- changing ----------------------------------------------------------------------------------------------

    def require_place(self, path: AgentPath) -> None:
        """EISDIR, ENOTDIR, ENAMETOOLONG where a path has no place for a new file."""
        self.index.require_place(AgentPath(self._prefix + path))

    def put(self, path: AgentPath, key: str | None, record: Any) -> None:
        """Store a record at a path that is kept under `key` so far (None: there is none yet)."""
        plain = self._prefix + path
        if key is not None and key != plain:
            self.remove(key)
        if plain not in self.records:
            self.index.add(plain)
        self._draft[plain] = self.update[path] = record

    def remove(self, key: str) -> None:
        del self._draft[key]
        self.index.discard(key)
        self.update[key.removeprefix(self._prefix)] = None

    @property
    def _draft(self) -> dict[str, Any]:
        assert isinstance(self.records, dict), "files are changed inside of `changing`"
        return self.records


# -- the backend -----------------------------------------------------------------------------------------------


@registered_with("deepagents.backends.state", "StateBackend")  # then an agent's state has a key for files
class StateBackend(FileVerbs):
    """Files in `runtime.state["files"]`.

    Args:
        runtime: anything with a `state`, a mapping; None for the running graph's, or one of its own.
        file_format: how files are written, `"v2"` (text or base64) or `"v1"` (the seeds' list of lines).
        on_exists: `"error"` (the seeds) or `"replace"` (deepagents 0.7) for `write` to an existing file.
    """

    schemes: ClassVar = {
        "state": Scheme(
            "state:[NAME]",
            "files as an agent's state holds them, gone when the server ends; routes of one name share theirs",
            lambda url: StateBackend.named(url.rest, **url.parameters) if url.rest else StateBackend(**url.parameters),
            takes="name",
            parameters=ON_EXISTS,
            features=replace(WHOLE_FILES, durable=False),
        )
    }

    blocking = False

    def __init__(
        self,
        runtime: Any = None,
        *,
        file_format: Literal["v1", "v2"] = "v2",
        on_exists: OnExists = "error",
    ) -> None:
        if file_format not in ("v1", "v2"):
            raise ValueError(f"file_format must be 'v1' or 'v2', not {file_format!r}")
        super().__init__(on_exists=on_exists)
        self.runtime = runtime if runtime is not None else LateRuntime()
        self.file_format = file_format
        self._view = StateView(self.runtime)
        self.is_table = False

    @classmethod
    def named(cls, name: str, **options: Any) -> StateBackend:
        """Files in a table of this process that every backend of the same name shares (the CMDC seed's
        `Backend.State.new(:my_table)`). A mount of one believes for its time to live what it has seen of another's."""
        if not name or not isinstance(name, str):
            raise ValueError(f"a table needs a name, not {name!r}")
        backend = cls(_tables.setdefault(name, SimpleNamespace(state={"files": {}})), **options)
        backend.is_table = True
        return backend

    def beside(self, other: Any, prefix: str) -> StateBackend:
        """This backend as it is attached at `prefix` to another. If both keep their files in one state, its own are
        there under the paths an agent sees; of two that have yet to find their state, that is known when they have. A
        named table is the same at each place."""
        theirs = getattr(other, "runtime", None)
        if theirs is None or self.is_table:
            return self

        def shared() -> bool:
            return theirs is self.runtime or getattr(theirs, "state", None) is self.runtime.state

        if _is_settled(theirs) and _is_settled(self.runtime) and not shared():
            return self
        own = self._view

        def place() -> str:
            if not shared():
                return own.prefix()
            return (other._view.prefix() if isinstance(other, StateBackend) else "") + prefix

        view = copy.copy(self)
        view._view = StateView(self.runtime, place)
        return view

    @property
    def in_graph(self) -> bool:
        """True while the files may be in the state of a running LangGraph graph."""
        return not _is_settled(self.runtime) or self.runtime.state is GRAPH_STATE

    @property
    def only_in_graph(self) -> bool:
        """True if they are there for good. Asking fixes it: so a mount, which asks, and an agent that runs later share
        a state."""
        return self.runtime.state is GRAPH_STATE

    def apply_update(self, update: Mapping[str, Any]) -> bool:
        """Merge a `files_update` with paths of this backend into the state."""
        apply_files_update(self.runtime, {self._view.prefix() + path: record for path, record in update.items()})
        return True

    def _condition(self, if_version: str | None = None, if_absent: bool = False) -> Condition:
        condition = super()._condition(if_version, if_absent)
        if condition != ANY:
            raise OSError(errno.ENOTSUP, UNCONDITIONAL)
        return condition

    # -- primitives of `FileVerbs` -----------------------------------------------------------------------------

    def _list(self, path: AgentPath) -> list[FileInfo]:
        files = self._view.now()
        at = files.find(path)
        if at is None or not at.is_dir:
            raise errors.oserror(errno.ENOENT if at is None else errno.ENOTDIR)
        return [
            FileInfo(path=paths.join(path, name) + "/", is_dir=True, size=0)
            if child.is_dir
            else _file_info(paths.join(path, name), files.records[files.index.key_of(child)])
            for name, child in files.index.children(at).items()
        ]

    def _load(self, path: AgentPath) -> Loaded:
        files = self._view.now()
        data = files.data(path)
        record = files.records[files.key(path) or path]
        created_at, modified_at = record.get("created_at"), record.get("modified_at")
        return Loaded(data, created_at and str(created_at), modified_at and str(modified_at))

    def _put(self, path: AgentPath, data: bytes, *, replace: bool) -> FilesUpdate:
        with self._view.changing() as files:
            self._store(files, path, data, replace=replace)
        return files.update

    def _store(self, files: StateFiles, path: AgentPath, data: bytes, *, replace: bool) -> None:
        key = files.key(path)
        if key is None:
            files.require_place(path)
        elif not replace:
            raise errors.oserror(errno.EEXIST)
        before = files.records[key] if key is not None else None
        now = text.now_iso()
        created_at = before.get("created_at") if isinstance(before, Mapping) else None
        record = text.encode_file_data(
            data, created_at=created_at or now, modified_at=now, file_format=self.file_format
        )
        files.put(path, key, record)

    def _rewrite(self, path: AgentPath, change: Callable[[bytes], bytes]) -> FilesUpdate:
        with self._view.changing() as files:
            self._store(files, path, change(files.data(path)), replace=True)
        return files.update

    def _remove(self, path: AgentPath) -> FilesUpdate:
        with self._view.changing() as files:
            for _, key in files.tree(path):
                files.remove(key)
        if not files.update:
            raise errors.oserror(errno.ENOENT)
        return files.update

    def _rename(self, old: AgentPath, new: AgentPath) -> FilesUpdate:
        with self._view.changing() as files:
            moved = files.tree(old)
            if not moved:
                raise errors.oserror(errno.ENOENT)
            if new == ROOT or files.tree(new):
                raise errors.oserror(errno.EEXIST)
            files.require_place(new)
            for found, key in moved:
                record = files.records[key]
                files.remove(key)
                files.put(AgentPath(new + found[len(old) :]), None, record)
        return files.update

    def _search(self, path: AgentPath, matcher: Matcher | None, pattern: str | None = None) -> Search:
        return StateSearch(self._view.now(), path, matcher)

    def _moment(self) -> StateBackend:
        return self._over(self._view.now())

    def upload_files(
        self,
        files: list[tuple[str, bytes]],
        *,
        if_version: Sequence[str | None] | None = None,
        if_absent: Sequence[bool] | None = None,
    ) -> list[FileUploadResponse]:
        """All of them in one change."""
        try:
            with self._view.changing() as draft:
                return FileVerbs.upload_files(self._over(draft), files, if_version=if_version, if_absent=if_absent)
        except OSError as error:
            return [FileUploadResponse(path=path, error=error.strerror) for path, _ in files]

    def _over(self, files: StateFiles) -> StateBackend:
        """This backend for these files alone."""
        view = copy.copy(self)
        view._view = _StateMoment(files)
        return view


class StateSearch(Search):
    """A search of the files of one moment."""

    def __init__(self, files: StateFiles, path: AgentPath, matcher: Matcher | None) -> None:
        super().__init__(path, matcher)
        self._files = files

    def _records(self) -> Iterator[tuple[AgentPath, Any]]:
        """Files with their records."""
        for found, key in budget.current().metered(self._files.tree(self._path)):
            if self._matches(found[len(self._path) :].lstrip("/")):
                yield found, self._files.records[key]

    def files(self) -> Iterator[FileInfo]:
        return (_file_info(found, record) for found, record in self._records())

    def lines(self, pattern: str, limit: int | None) -> Iterator[Lines]:
        for found, record in self._records():
            try:
                data = text.decode_file_data(record)
            except _MALFORMED:
                continue  # no text file; `read` gives the reason
            yield found, text.grep_lines((data,), pattern, limit, budget.current().hold)


class _StateMoment(StateView):
    """The files of one moment, or in the middle of a change, of which each change of them is a part."""

    def __init__(self, files: StateFiles) -> None:
        self._files = files

    def now(self) -> StateFiles:
        return self._files

    @contextlib.contextmanager
    def changing(self) -> Iterator[StateFiles]:
        files = self._files
        earlier, files.update = files.update, {}
        part = copy.copy(files)
        try:
            yield part
        finally:
            files.update = {**earlier, **part.update}


def _is_settled(runtime: Any) -> bool:
    return not isinstance(runtime, LateRuntime) or runtime.settled


def _file_info(path: str, record: Any) -> FileInfo:
    info = FileInfo(path=path, is_dir=False)
    try:
        info["size"] = text.file_data_size(record)
    except _MALFORMED:
        pass  # listed without a size; `read` gives the reason
    modified_at = record.get("modified_at") if isinstance(record, Mapping) else None
    if modified_at:
        info["modified_at"] = str(modified_at)
    return info
