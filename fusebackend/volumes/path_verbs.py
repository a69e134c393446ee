"""`PathVerbs`: the agent's verbs over a few primitives that take paths and raise.

Every answer is a record; whatever a primitive raises becomes the error in it, in the words of `protocol/verbs.py`.
`VolumeBackend` has the primitives of a volume, whose paths are walked node by node, and `remote.agent_verbs.FileVerbs`
those of files that are found by their whole path.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar, Unpack

from fusebackend.base import budget, paths
from fusebackend.base.globs import GlobError
from fusebackend.base.paths import ROOT, PathError
from fusebackend.protocol import (
    ANY,
    READ_LIMIT_LINES,
    BackendProtocol,
    Condition,
    Conditions,
    DeleteResult,
    EditResult,
    FileDownloadResponse,
    FileInfo,
    FileUploadResponse,
    GlobResult,
    GrepResult,
    LsResult,
    MoveResult,
    OnExists,
    ReadResult,
    Verb,
    WriteResult,
    checked_on_exists,
    conditions_of,
    not_bytes,
    verbs,
)

Refusal = (OSError, PathError, GlobError, UnicodeError)
"""Exceptions that become errors of a record."""

FilesUpdate: TypeAlias = dict[str, Any] | None
"""The change of `runtime.state["files"]`, for a state's caller to merge; None of any other backend."""

R = TypeVar("R")


class PathVerbs(BackendProtocol):
    """See the module's docstring.

    Args:
        on_exists: how `write` treats an existing file, `"error"` (the seeds) or `"replace"` (deepagents 0.7).

    Attributes:
        max_file_bytes: larger files are EFBIG, for these verbs hold a file's contents in memory. A sparse file may
            claim any size.
        max_search_bytes: larger files are passed over by `grep`, and its answer says `truncated`.
    """

    max_file_bytes: int = 2 << 30
    max_search_bytes: int = 2 << 30

    def __init__(self, *, on_exists: OnExists = "error") -> None:
        self.on_exists = checked_on_exists(on_exists)

    # -- primitives; they raise a `Refusal` ------------------------------------------------------------------------

    @abc.abstractmethod
    def _entries(self, path: str) -> list[FileInfo]:
        """The entries of a directory, in any order. ENOENT, ENOTDIR."""

    @abc.abstractmethod
    def _read_lines(self, path: str, offset: int, limit: int) -> ReadResult:
        """The answer of `read`."""

    @abc.abstractmethod
    def _content(self, path: str) -> tuple[bytes, str | None]:
        """A file's bytes, and their version."""

    @abc.abstractmethod
    def _grep_files(
        self, pattern: str, path: str, glob: str | None, max_count: int | None, max_bytes: int
    ) -> GrepResult:
        """The answer of `grep`; when the budget is spent, that is what was found by then."""

    @abc.abstractmethod
    def _glob_files(self, pattern: str, path: str) -> GlobResult:
        """The answer of `glob`, likewise."""

    @abc.abstractmethod
    def _put(self, path: str, data: bytes, *, replace: bool, condition: Condition = ANY) -> FilesUpdate:
        """Create a file and its parents, or replace one. EEXIST unless `replace`; Changed."""

    @abc.abstractmethod
    def _edit(
        self, path: str, old: str, new: str, replace_all: bool, condition: Condition = ANY
    ) -> tuple[int | str, FilesUpdate]:
        """Replace a text; how often it was there, or why it can't be."""

    @abc.abstractmethod
    def _delete(self, path: str, condition: Condition = ANY) -> FilesUpdate:
        """Delete a file, or a directory with all below it. EBUSY for the root; Changed."""

    @abc.abstractmethod
    def _move(self, source: str, destination: str, condition: Condition, *, is_absent: bool) -> FilesUpdate:
        """Move a file or directory, never over another. EEXIST, or Changed if `is_absent` was stated."""

    def _refused(self, verb: Verb[R], error: Exception, *given: str) -> R:
        """The record of a verb that failed."""
        return verb.refused(error, *given)

    # -- reading -----------------------------------------------------------------------------------------------

    def ls(self, path: str) -> LsResult:
        try:
            entries = self._entries(path)
        except Refusal as error:
            return self._refused(verbs.LS, error, path)
        return LsResult(entries=sorted(entries, key=lambda info: info["path"]))

    def read(self, file_path: str, offset: int = 0, limit: int = READ_LIMIT_LINES) -> ReadResult:
        try:
            return self._read_lines(file_path, offset, limit)
        except Refusal as error:
            return self._refused(verbs.READ, error, file_path)

    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        path = ROOT if path is None else path
        try:
            with budget.granted():
                limit = min(self.max_search_bytes, self.max_file_bytes)
                return self._grep_files(pattern, path, glob, max_count, limit)
        except Refusal as error:
            return self._refused(verbs.GREP, error, path)

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        path = ROOT if path is None else path
        try:
            with budget.granted():
                return self._glob_files(pattern, path)
        except Refusal as error:
            return self._refused(verbs.GLOB, error, path)

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return [self.download(path) for path in paths]

    def download(self, path: str) -> FileDownloadResponse:
        """`download_files` of one file."""
        try:
            content, version = self._content(path)
        except Refusal as error:
            return self._refused(verbs.DOWNLOAD_FILES, error, path)
        return FileDownloadResponse(path=path, content=content, version=version)

    # -- writing -----------------------------------------------------------------------------------------------

    def write(
        self, file_path: str, content: str, *, if_version: str | None = None, if_absent: bool = False
    ) -> WriteResult:
        try:
            condition = Condition.of(if_version, if_absent)
            replace = self.on_exists == "replace" or condition.version is not None
            update = self._put(file_path, content.encode("utf-8"), replace=replace, condition=condition)
        except Refusal as error:
            return self._refused(verbs.WRITE, error, file_path)
        return WriteResult(path=paths.normalise(file_path), files_update=update)

    def upload_files(
        self,
        files: list[tuple[str, bytes]],
        *,
        if_version: Sequence[str | None] | None = None,
        if_absent: Sequence[bool] | None = None,
    ) -> list[FileUploadResponse]:
        conditions = conditions_of(len(files), if_version, if_absent)
        return [self.upload(path, content, **when) for (path, content), when in zip(files, conditions, strict=True)]

    def upload(self, path: str, content: bytes, **when: Unpack[Conditions]) -> FileUploadResponse:
        """`upload_files` of one file."""
        if (refusal := not_bytes(path, content)) is not None:
            return refusal
        try:
            update = self._put(path, bytes(content), replace=True, condition=Condition.of(**when))
        except Refusal as error:
            return self._refused(verbs.UPLOAD_FILES, error, path)
        return FileUploadResponse(path=path, files_update=update)

    def edit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,
        *,
        if_version: str | None = None,
    ) -> EditResult:
        try:
            condition = Condition.of(if_version)
            outcome, update = self._edit(file_path, old_string, new_string, replace_all, condition)
        except Refusal as error:
            return self._refused(verbs.EDIT, error, file_path)
        if isinstance(outcome, str):
            return EditResult(error=outcome)
        return EditResult(path=paths.normalise(file_path), occurrences=outcome, files_update=update)

    def delete(self, file_path: str, *, if_version: str | None = None) -> DeleteResult:
        try:
            update = self._delete(file_path, Condition.of(if_version))
        except Refusal as error:
            return self._refused(verbs.DELETE, error, file_path)
        return DeleteResult(path=paths.normalise(file_path), files_update=update)

    def move(
        self, source: str, destination: str, *, if_version: str | None = None, if_absent: bool = False
    ) -> MoveResult:
        try:
            update = self._move(source, destination, Condition.of(if_version), is_absent=if_absent)
        except Refusal as error:
            return self._refused(verbs.MOVE, error, source, destination)
        return MoveResult(path=paths.normalise(destination), files_update=update)
