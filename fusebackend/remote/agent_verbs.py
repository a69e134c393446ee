"""`FileVerbs`: the agent's verbs for a backend of remote files, over eight primitives that raise `OSError`.

Paths are normalised and held to Linux's limits before a primitive sees them, so that the mount can show what is stored;
whatever a primitive raises becomes the error of the record, in the words that all backends of this package use.
"""

from __future__ import annotations

import abc
import errno
from collections.abc import Callable, Hashable, Iterator, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias, Unpack

from fusebackend import text
from fusebackend.base import budget, paths
from fusebackend.base.budget import Spent
from fusebackend.base.errors import VANISHED, oserror
from fusebackend.base.globs import Matcher, compile_glob
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.protocol import (
    ANY,
    READ_LIMIT_LINES,
    BackendProtocol,
    Changed,
    Condition,
    Conditions,
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
    conditions_of,
    not_bytes,
    verbs,
    version_of_bytes,
)
from fusebackend.volumes.walk import names_of

FilesUpdate: TypeAlias = dict[str, Any] | None
"""The change of `runtime.state["files"]`, for a state's caller to merge; None of any other backend."""


UNCONDITIONAL = "A graph's state takes no change on a condition: two tool calls of one step both see the state before"


class Loaded(NamedTuple):
    """A whole file, and its times where they are known."""

    data: bytes
    created_at: str | None = None
    modified_at: str | None = None


class Unchanged(Exception):
    """An edit that can't be made; the text says why. Never leaves an `edit`."""


class Unreadable(Exception):
    """Raised by `_find` and `_grep` at their end: there was something that could not be looked into."""


class FileVerbs(BackendProtocol):
    """See the module's docstring.

    Args:
        on_exists: what `write` does to an existing file, `"error"` (the seeds) or `"replace"` (deepagents 0.7).

    Attributes:
        conditional: `if_version` and `if_absent` can be decided.
        ttl_s: see `Abilities`. `AgentRemote` also asks for the other hooks of any backend: `blocking`, `durable` …
    """

    conditional = True
    ttl_s: float | None = None

    def __init__(self, *, on_exists: OnExists = "error") -> None:
        self.on_exists = checked_on_exists(on_exists)

    # -- primitives --------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def _list(self, path: AgentPath) -> list[FileInfo]:
        """The entries of a directory. ENOENT, ENOTDIR."""

    @abc.abstractmethod
    def _load(self, path: AgentPath) -> Loaded:
        """A file. ENOENT, EISDIR."""

    @abc.abstractmethod
    def _put(self, path: AgentPath, data: bytes, *, replace: bool) -> FilesUpdate:
        """Create a file with its parents, or replace one. EEXIST, EISDIR, ENOTDIR."""

    @abc.abstractmethod
    def _rewrite(self, path: AgentPath, change: Callable[[bytes], bytes]) -> FilesUpdate:
        """Give a file other bytes, made from those it has. ESTALE when somebody else changes it meanwhile."""

    @abc.abstractmethod
    def _remove(self, path: AgentPath) -> FilesUpdate:
        """Delete a file, or a directory with all below it. ENOENT."""

    @abc.abstractmethod
    def _rename(self, old: AgentPath, new: AgentPath) -> FilesUpdate:
        """Move a file or directory, never over another. ENOENT, EEXIST."""

    @abc.abstractmethod
    def _find(self, path: AgentPath, matcher: Matcher) -> Iterator[FileInfo]:
        """Files below a path, or the one at it, whose path relative to it matches; sorted.
        `Spent` may end it, and `Unreadable`."""

    @abc.abstractmethod
    def _grep(
        self, pattern: str, path: AgentPath, matcher: Matcher | None, limit: int | None
    ) -> Iterator[tuple[str, Sequence[tuple[int, str]]]]:
        """Of the same files, the lines with a literal, file by file; about `limit` of them is enough."""

    def _put_new(self, files: Sequence[tuple[AgentPath, bytes]]) -> None:
        """Create files, all of them in one step or none. EEXIST, ESTALE; ENOTSUP where that can't be."""
        raise oserror(errno.ENOTSUP)

    def kernel_side(self, ttl_s: float) -> FileVerbs:
        """The backend that a mount calls, which caches for `ttl_s`."""
        return self

    def token(self) -> Hashable:
        """See `Remote.token`."""
        return None

    def follow(self, changed: Callable[..., None]) -> Callable[[], None] | None:
        """See `Remote.follow`."""
        return None

    def admits(self, path: AgentPath, *, is_dir: bool) -> None:
        """Raise the error of any new file or directory at this path, before it is written in vain."""

    # -- reading -----------------------------------------------------------------------------------------------

    @verbs.LS.answers()
    def ls(self, path: str) -> LsResult:
        return LsResult(entries=sorted(self._list(checked(path)), key=itemgetter("path")))

    @verbs.READ.answers()
    def read(self, file_path: str, offset: int = 0, limit: int = READ_LIMIT_LINES) -> ReadResult:
        path = checked(file_path)
        loaded = self._load(path)
        result = text.read_bytes(path, loaded.data, offset, limit)
        if result.file_data is not None:
            if loaded.created_at:
                result.file_data["created_at"] = loaded.created_at
            if loaded.modified_at:
                result.file_data["modified_at"] = loaded.modified_at
        if result.error is None:
            result.version = version_of_bytes(loaded.data)
        return result

    @verbs.GREP.answers()
    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        limit = None if max_count is None else max(0, max_count)
        matches: list[GrepMatch] = []
        truncated = False
        try:
            matcher = compile_glob(glob) if glob else None
            with budget.granted():
                # One more than wanted, to know whether there is more.
                wanted = None if limit is None else limit + 1
                left = budget.current()
                for found, lines in self._grep(pattern, checked(ROOT if path is None else path), matcher, wanted):
                    left.hold(sum(budget.ENTRY_BYTES + len(line) for _, line in lines))
                    left.rest()
                    matches += [GrepMatch(path=found, line=number, text=line) for number, line in lines]
        except (Spent, Unreadable):
            truncated = True
        cut = limit is not None and len(matches) > limit
        return GrepResult(matches=matches[:limit], truncated=truncated or cut)

    @verbs.GLOB.answers()
    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        matches: list[FileInfo] = []
        try:
            matcher = compile_glob(pattern)
            with budget.granted():
                for info in self._find(checked(ROOT if path is None else path), matcher):
                    budget.current().hold(budget.ENTRY_BYTES + len(info["path"]))
                    budget.current().rest()
                    matches.append(info)  # one by one: what there is when the budget is spent is the answer
        except Spent:
            return GlobResult(matches=matches, truncated=True, truncation_reason="budget")
        except Unreadable:
            return GlobResult(matches=matches, truncated=True, truncation_reason="unreadable")
        return GlobResult(matches=matches)

    def _moment(self) -> FileVerbs:
        """This backend for several looks at one moment."""
        return self

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        try:
            view = self._moment()
        except OSError as error:
            return [FileDownloadResponse(path=path, error=error.strerror) for path in paths]
        return [view._download(path) for path in paths]

    @verbs.DOWNLOAD_FILES.answers()
    def _download(self, path: str) -> FileDownloadResponse:
        data = self._load(checked(path)).data
        return FileDownloadResponse(path=path, content=data, version=version_of_bytes(data))

    # -- writing -----------------------------------------------------------------------------------------------

    @verbs.WRITE.answers()
    def write(
        self, file_path: str, content: str, *, if_version: str | None = None, if_absent: bool = False
    ) -> WriteResult:
        path, condition = checked(file_path), Condition.of(if_version, if_absent)
        update = self._store_if(path, content.encode("utf-8"), condition, self.on_exists == "replace")
        return WriteResult(path=path, files_update=update)

    def upload_files(
        self,
        files: list[tuple[str, bytes]],
        *,
        if_version: Sequence[str | None] | None = None,
        if_absent: Sequence[bool] | None = None,
    ) -> list[FileUploadResponse]:
        conditions = conditions_of(len(files), if_version, if_absent)
        return [self._upload(path, content, **when) for (path, content), when in zip(files, conditions, strict=True)]

    @verbs.UPLOAD_FILES.answers()
    def _upload(self, path: str, content: bytes, **when: Unpack[Conditions]) -> FileUploadResponse:
        if (refusal := not_bytes(path, content)) is not None:
            return refusal
        update = self._store_if(checked(path), bytes(content), Condition.of(**when), True)
        return FileUploadResponse(path=path, files_update=update)

    def _store_if(self, path: AgentPath, data: bytes, condition: Condition, replace: bool) -> FilesUpdate:
        """Store a file if a condition is met. EEXIST unless `replace`, or a version is wanted; Changed."""
        self._require_conditional(condition)
        if condition.version is not None:
            return self._rewrite_if(path, lambda before: data, condition)
        try:
            return self._put(path, data, replace=replace and not condition.absent)
        except FileExistsError:
            if condition.absent:
                raise Changed(self._version_at(path), is_there=True) from None
            raise

    def _rewrite_if(self, path: AgentPath, change: Callable[[bytes], bytes], condition: Condition) -> FilesUpdate:
        def if_met(before: bytes) -> bytes:
            condition.require(version_of_bytes(before))
            return change(before)

        try:
            return self._rewrite(path, change if condition == ANY else if_met)
        except OSError as error:
            if condition == ANY or error.errno not in VANISHED:
                raise
            condition.require(self._version_at(path), is_there=error.errno == errno.ESTALE)
            raise

    def _require(self, path: AgentPath, condition: Condition) -> None:
        """Compare what is at a path just before it is changed: whoever changes it in between is not seen."""
        self._require_conditional(condition)
        if condition != ANY:
            condition.require(version_of_bytes(self._load(path).data))

    def _require_conditional(self, condition: Condition) -> None:
        if condition != ANY and not self.conditional:
            raise OSError(errno.ENOTSUP, UNCONDITIONAL)

    def _version_at(self, path: AgentPath) -> str | None:
        try:
            return version_of_bytes(self._load(path).data)
        except OSError:
            return None

    @verbs.EDIT.answers()
    def edit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,
        *,
        if_version: str | None = None,
    ) -> EditResult:
        occurrences = 0

        def change(before: bytes) -> bytes:
            nonlocal occurrences
            outcome = text.replace_string(before.decode("utf-8"), old_string, new_string, replace_all)
            if isinstance(outcome, str):
                raise Unchanged(outcome)
            content, occurrences = outcome
            return content.encode("utf-8")

        path, condition = checked(file_path), Condition.of(if_version)
        self._require_conditional(condition)
        try:
            update = self._rewrite_if(path, change, condition)
        except Unchanged as refused:
            return EditResult(error=str(refused))
        return EditResult(path=path, occurrences=occurrences, files_update=update)

    @verbs.DELETE.answers()
    def delete(self, file_path: str, *, if_version: str | None = None) -> DeleteResult:
        path = checked(file_path)
        if path == ROOT:
            raise OSError(errno.EBUSY, "The root can't be deleted")
        if file_path.endswith("/"):
            self._list(path)  # ENOTDIR
        self._require(path, Condition.of(if_version))
        return DeleteResult(path=path, files_update=self._remove(path))

    @verbs.MOVE.answers()
    def move(
        self, source: str, destination: str, *, if_version: str | None = None, if_absent: bool = False
    ) -> MoveResult:
        old, new = checked(source), checked(destination)
        if old == ROOT:
            raise OSError(errno.EBUSY, "The root can't be moved")
        if old != new and paths.is_below(new, old):
            raise OSError(errno.EINVAL, "A directory can't be moved into itself")
        self._require(old, Condition.of(if_version))
        self._require_conditional(Condition(absent=if_absent))
        try:
            update = self._rename(old, new)
        except FileExistsError:
            if if_absent:
                raise Changed(self._version_at(new), is_there=True, of_target=True) from None
            raise
        return MoveResult(path=new, files_update=update)


def checked(path: str) -> AgentPath:
    """A path, normalised and held to the limits of Linux.

    Raises:
        PathError, OSError: as `walk.names_of`.
    """
    names_of(path)
    return paths.normalise(path)
