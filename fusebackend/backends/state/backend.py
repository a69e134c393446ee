"""`StateBackend`: files in an agent's state, `runtime.state["files"]`, a dict from path to file data.

What the seeds do: `write` and `edit` change nothing themselves, they return `files_update` (path → file data, a deleted
path → None) and the graph merges that into the state, after the tool call. What this one does: it returns the same
`files_update`, and also puts it into `runtime.state["files"]` at once, so that the next read sees it, whoever makes it.
Merging the update again, as the graph, `CompositeBackend` or a caller will, changes nothing.

Without a runtime the state is found at the first use, and kept (`graph.py`): inside a running LangGraph graph with
`files` in its state it is that graph's, in whichever thread of it, and outside of one then is an error; anywhere else
it is one of the backend's own, in this process. Nothing here is durable: keeping the state is the checkpointer's work.

Both formats are read: the seeds' list of lines (v1), and text or base64 (v2). What is written is `file_format`, but for
bytes that are no UTF-8, which only v2 can hold. There are no directories in a state, only paths: an empty directory
can't be, and one is gone with its last file.

Each verb is atomic: a reader sees the files as they were at one moment, and a batch of uploads is one change.
"""

from __future__ import annotations

import copy
import errno
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, Literal

from fusebackend import text
from fusebackend.backends.state.files import StateFiles, StateView
from fusebackend.backends.state.graph import GRAPH_STATE, LateRuntime
from fusebackend.base import budget, errors, paths
from fusebackend.base.budget import Spent
from fusebackend.base.globs import GlobError, Matcher, compile_glob
from fusebackend.base.paths import ROOT, AgentPath, PathError
from fusebackend.protocol import (
    READ_LIMIT_LINES,
    BackendProtocol,
    DeleteResult,
    EditResult,
    FileDownloadResponse,
    FileInfo,
    FileUploadResponse,
    GlobResult,
    GrepMatch,
    GrepResult,
    LsResult,
    MoveResult,
    OnExists,
    ReadResult,
    WriteResult,
    checked_on_exists,
    not_bytes,
    verbs,
)
from fusebackend.protocol.registered import registered_with
from fusebackend.remote.files_update import apply_files_update
from fusebackend.volumes.walk import names_of

Refusal = (PathError, GlobError, OSError, UnicodeError)
"""Exceptions that become errors of a record."""

_MALFORMED = (TypeError, ValueError)
"""What `text.decode_file_data` raises for a record that is no file data."""

_tables: dict[str, SimpleNamespace] = {}
"""The runtimes of named tables. They last as long as the process."""


@registered_with("deepagents.backends.state", "StateBackend")  # then an agent's state has a key for files
class StateBackend(BackendProtocol):
    """Files in `runtime.state["files"]`.

    Args:
        runtime: anything with a `state`, a mapping; None for the running graph's, or one of its own.
        file_format: how files are written, `"v2"` (text or base64) or `"v1"` (the seeds' list of lines).
        on_exists: what `write` does to an existing file, `"error"` (the seeds) or `"replace"` (deepagents 0.7).
    """

    exact_sizes = True  # `ls` gives sizes in bytes; `ForeignVolume` need not check
    blocking = False
    durable = False

    def __init__(
        self,
        runtime: Any = None,
        *,
        file_format: Literal["v1", "v2"] = "v2",
        on_exists: OnExists = "error",
    ) -> None:
        if file_format not in ("v1", "v2"):
            raise ValueError(f"file_format must be 'v1' or 'v2', not {file_format!r}")
        self.runtime = runtime if runtime is not None else LateRuntime()
        self.file_format = file_format
        self.on_exists = checked_on_exists(on_exists)
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

    def below(self, prefix: AgentPath) -> StateBackend:
        """The directory `prefix` of this state as a backend of its own; results speak in paths below it."""
        view = copy.copy(self)
        view._view = StateView(self.runtime, self._view.prefix + prefix)
        return view

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
                return own.prefix
            return (other._view.prefix if isinstance(other, StateBackend) else "") + prefix

        view = copy.copy(self)
        view._view = StateView(self.runtime, place)
        return view

    @property
    def in_graph(self) -> bool:
        """May the files be in the state of a running LangGraph graph?"""
        return not _is_settled(self.runtime) or self.runtime.state is GRAPH_STATE

    @property
    def only_in_graph(self) -> bool:
        """Are they, for good? Asking settles it: so a mount, which asks, and an agent that runs later share a state."""
        return self.runtime.state is GRAPH_STATE

    def apply_update(self, update: Mapping[str, Any]) -> bool:
        """Merge a `files_update` with paths of this backend into the state."""
        apply_files_update(self.runtime, {self._view.prefix + path: record for path, record in update.items()})
        return True

    # -- reading -----------------------------------------------------------------------------------------------

    def ls(self, path: str) -> LsResult:
        try:
            base, files = _checked(path), self._view.now()
        except Refusal as error:
            return verbs.LS.refused(error, path)
        entries: dict[str, FileInfo] = {}
        for found, key in files.tree(base):
            name, slash, _ = found[len(base) :].lstrip("/").partition("/")
            child = paths.join(base, name)
            if slash:
                entries[child + "/"] = FileInfo(path=child + "/", is_dir=True, size=0)
            elif name:
                entries[child] = _file_info(child, files.record(key))
        if not entries and base != ROOT:
            why = "path_not_found" if files.key(base) is None else "not_a_directory"
            return LsResult(error=f"Path '{path}': {why}")
        return LsResult(entries=sorted(entries.values(), key=lambda info: info["path"]))

    def read(self, file_path: str, offset: int = 0, limit: int = READ_LIMIT_LINES) -> ReadResult:
        try:
            path, files = _checked(file_path), self._view.now()
            result = text.read_bytes(path, files.data(path), offset, limit)
        except Refusal as error:
            return verbs.READ.refused(error, file_path)
        except _MALFORMED as error:
            return ReadResult(error=f"File '{file_path}': {error}")
        record = files.record(files.key(path) or path)
        if result.file_data is not None and record.get("created_at"):
            result.file_data["created_at"] = str(record["created_at"])
        if result.file_data is not None and record.get("modified_at"):
            result.file_data["modified_at"] = str(record["modified_at"])
        return result

    def _search(self, path: str, matcher: Matcher | None) -> Iterator[tuple[AgentPath, Any]]:
        """Files at or below a path, with their records, sorted by path. Of a file, the pattern sees the name."""
        base, files = _checked(path), self._view.now()
        for found, key in budget.current().metered(files.tree(base)):
            relative = found[len(base) :].lstrip("/") or paths.parent_and_name(found)[1]
            if matcher is None or matcher.matches(relative):
                yield found, files.record(key)

    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        matches: list[GrepMatch] = []
        limit = None if max_count is None else max(0, max_count)
        try:
            with budget.granted():
                for found, record in self._search(ROOT if path is None else path, compile_glob(glob) if glob else None):
                    try:
                        data = text.decode_file_data(record)
                    except _MALFORMED:
                        continue  # no text file; `read` says what is wrong with it
                    wanted = None if limit is None else limit + 1 - len(matches)
                    lines = text.grep_lines(data, pattern, wanted, budget.current().hold)
                    budget.current().rest()
                    matches.extend(GrepMatch(path=found, line=number, text=line) for number, line in lines)
                    if limit is not None and len(matches) > limit:
                        return GrepResult(matches=matches[:limit], truncated=True)
        except Spent:
            return GrepResult(matches=matches, truncated=True)
        except Refusal as error:
            return verbs.GREP.refused(error, path or ROOT)
        return GrepResult(matches=matches)

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        matches: list[FileInfo] = []
        try:
            with budget.granted():
                for found, record in self._search(ROOT if path is None else path, compile_glob(pattern)):
                    budget.current().hold(budget.ENTRY_BYTES + len(found))
                    budget.current().rest()
                    matches.append(_file_info(found, record))
            return GlobResult(matches=matches)
        except Spent:
            return GlobResult(matches=matches, truncated=True, truncation_reason="budget")
        except Refusal as error:
            return verbs.GLOB.refused(error, path or ROOT)

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        try:
            files = self._view.now()
        except OSError as error:
            return [FileDownloadResponse(path=path, error=_words(error)) for path in paths]
        return [_download(files, path) for path in paths]

    # -- writing -----------------------------------------------------------------------------------------------

    def write(self, file_path: str, content: str) -> WriteResult:
        try:
            path, data = _checked(file_path), content.encode("utf-8")
            with self._view.changing() as files:
                self._put(files, path, data, replace=self.on_exists == "replace")
        except Refusal as error:
            return verbs.WRITE.refused(error, file_path)
        return WriteResult(path=path, files_update=files.update)

    def _put(self, files: StateFiles, path: AgentPath, data: bytes, *, replace: bool) -> None:
        key = files.key(path)
        if key is None:
            files.require_place(path)
        elif not replace:
            raise errors.oserror(errno.EEXIST)
        before = files.record(key) if key is not None else None
        now = text.now_iso()
        created_at = before.get("created_at") if isinstance(before, Mapping) else None
        record = text.encode_file_data(
            data, created_at=created_at or now, modified_at=now, file_format=self.file_format
        )
        files.put(path, key, record)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        try:
            with self._view.changing() as draft:
                return [self._upload(draft, path, content) for path, content in files]
        except OSError as error:
            return [FileUploadResponse(path=path, error=_words(error)) for path, _ in files]

    def _upload(self, files: StateFiles, path: str, content: bytes) -> FileUploadResponse:
        if (refusal := not_bytes(path, content)) is not None:
            return refusal
        earlier, files.update = files.update, {}
        try:
            self._put(files, _checked(path), bytes(content), replace=True)
            return FileUploadResponse(path=path, files_update=files.update)
        except Refusal as error:
            return verbs.UPLOAD_FILES.refused(error, path)
        finally:
            files.update = {**earlier, **files.update}

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        try:
            path = _checked(file_path)
            with self._view.changing() as files:
                before = files.data(path).decode("utf-8")
                outcome = text.replace_string(before, old_string, new_string, replace_all)
                if isinstance(outcome, str):
                    return EditResult(error=outcome)
                self._put(files, path, outcome[0].encode("utf-8"), replace=True)
        except Refusal as error:
            return verbs.EDIT.refused(error, file_path)
        except _MALFORMED as error:
            return EditResult(error=f"Error editing file '{file_path}': {error}")
        return EditResult(path=path, files_update=files.update, occurrences=outcome[1])

    def delete(self, file_path: str) -> DeleteResult:
        try:
            path = _checked(file_path)
            if path == ROOT:
                raise OSError(errno.EBUSY, "The root can't be deleted")
            with self._view.changing() as files:
                for _, key in files.tree(path):
                    files.remove(key)
            if not files.update:
                raise errors.oserror(errno.ENOENT)
        except Refusal as error:
            return verbs.DELETE.refused(error, file_path)
        return DeleteResult(path=path, files_update=files.update)

    def move(self, source: str, destination: str) -> MoveResult:
        try:
            old, new = _checked(source), _checked(destination)
            with self._view.changing() as files:
                _move(files, old, new)
        except Refusal as error:
            return verbs.MOVE.refused(error, source, destination)
        return MoveResult(path=new, files_update=files.update)


def _is_settled(runtime: Any) -> bool:
    return not isinstance(runtime, LateRuntime) or runtime.settled


def _move(files: StateFiles, old: AgentPath, new: AgentPath) -> None:
    if old == ROOT:
        raise OSError(errno.EBUSY, "The root can't be moved")
    moved = files.tree(old)
    if not moved:
        raise errors.oserror(errno.ENOENT)
    if new == ROOT or files.tree(new):
        raise errors.oserror(errno.EEXIST)
    if paths.is_below(new, old):
        raise OSError(errno.EINVAL, "A directory can't be moved into itself")
    files.require_place(new)
    for found, key in moved:
        record = files.record(key)
        files.remove(key)
        files.put(AgentPath(new + found[len(old) :]), None, record)


def _download(files: StateFiles, path: str) -> FileDownloadResponse:
    try:
        return FileDownloadResponse(path=path, content=files.data(_checked(path)))
    except Refusal as error:
        return verbs.DOWNLOAD_FILES.refused(error, path)
    except _MALFORMED as error:
        return FileDownloadResponse(path=path, error=str(error))


def _checked(path: str) -> AgentPath:
    """Normalise a path, and hold it to the limits of Linux, so that the mount can show what is stored.

    Raises:
        PathError, OSError: as `walk.names_of`.
    """
    names_of(path)
    return paths.normalise(path)


def _words(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _file_info(path: str, record: Any) -> FileInfo:
    info = FileInfo(path=path, is_dir=False)
    try:
        info["size"] = _size_bytes(record)
    except _MALFORMED:
        pass  # listed without a size; `read` says what is wrong with it
    modified_at = record.get("modified_at") if isinstance(record, Mapping) else None
    if modified_at:
        info["modified_at"] = str(modified_at)
    return info


def _size_bytes(record: Any) -> int:
    content = record.get("content") if isinstance(record, Mapping) else None
    if isinstance(content, str) and content.isascii() and record.get("encoding") in (None, "utf-8"):
        return len(content)
    return len(text.decode_file_data(record))
